"""Dataclasses as rows and back, and pages of a list. Used by the tables only.

A table has a column for each field of its dataclass, with the same name; headers are JSON text in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RawHeaders = list[tuple[bytes, bytes]]  #: names and values as they came, in order

T = TypeVar("T")


def values(item: DataclassInstance) -> dict[str, Any]:
    """The columns of a dataclass that is one row."""
    return {field.name: getattr(item, field.name) for field in fields(item)}


def headers_text(headers: RawHeaders | None) -> str | None:
    """Headers as a column has them."""
    if headers is None:
        return None
    return json.dumps([[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers])


def headers_of(text: str | None) -> RawHeaders | None:
    """Headers out of a column."""
    if text is None:
        return None
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in json.loads(text)]


def page(items: Sequence[T], limit: int) -> tuple[list[T], bool]:
    """The first `limit` items, and whether there are more; one more than `limit` was asked for."""
    return list(items[:limit]), len(items) > limit
