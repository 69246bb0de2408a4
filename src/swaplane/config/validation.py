"""A part of the file as one of the sections of `schema`, and what is wrong with it in words.

Decides how the findings of the validation are told and that what is wrong counts as not written. Called by `load`,
`models` and `completion`.
"""

from __future__ import annotations

import typing
from types import UnionType
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from swaplane.config.fields import NUMBER, shown
from swaplane.config.problems import Path, Problems
from swaplane.config.schema import Section

S = TypeVar("S", bound=Section)


def validated(kind: type[S], value: object, path: Path, problems: Problems) -> S:
    """`value` as a section of this kind; what is wrong with it becomes problems and counts as not written."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        wrong = error.errors(include_url=False)
    for detail in wrong:
        _report(kind, detail, path, problems)
    rest = value if isinstance(value, dict) else {}
    for detail in wrong:
        rest = _without(rest, detail["loc"])
    return kind.model_validate(rest)


def _without(tree: dict[str, Any], loc: tuple[str | int, ...]) -> dict[str, Any]:
    """The mapping without what is at `loc`; a list with a wrong item goes whole."""
    if not loc or loc[0] not in tree:
        return tree
    key = str(loc[0])
    inner = tree[key]
    if len(loc) > 1 and isinstance(inner, dict):
        return {**tree, key: _without(inner, loc[1:])}
    return {other: value for other, value in tree.items() if other != key}


def _report(kind: type[Section], detail: ErrorDetails, path: Path, problems: Problems) -> None:
    where = (*path, *detail["loc"])
    key = where[-1] if where else ""
    if detail["type"] == "extra_forbidden":
        problems.add(where, f"unknown key `{key}`", at_key=True, near=(str(key), _known_beside(kind, detail["loc"])))
    else:
        near = (str(detail["input"]), _words(detail)) if detail["type"] == "literal_error" else None
        problems.add(where, _sentence(detail), near=near)


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def _sentence(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "refused":
        return detail["msg"]
    if kind == "greater_than":
        expected = f"greater than {context['gt']:g}"
    elif kind == "greater_than_equal":
        expected = f"at least {context['ge']:g}"
    elif kind == "less_than_equal":
        expected = f"at most {context['le']:g}"
    elif kind == "literal_error":
        *others, last = (f"`{word}`" for word in _words(detail))
        expected = f"{', '.join(others)} or {last}"
    elif kind in _EXPECTED:
        expected = _EXPECTED[kind]
    else:
        return detail["msg"]
    sentence = f"must be {expected}, not {shown(detail['input'])}"
    quoted = isinstance(detail["input"], str) and "number" in expected and NUMBER.fullmatch(detail["input"])
    return f"{sentence}: write it without quotes" if quoted else sentence


def _words(detail: ErrorDetails) -> list[str]:
    """The words a Literal takes, from pydantic's own listing of them."""
    return [word for word in detail["ctx"]["expected"].split("'") if word.isidentifier() and word != "or"]


def _known_beside(kind: type[Section], loc: tuple[str | int, ...]) -> list[str]:
    """The keys that may stand where `loc` ends."""
    here: Any = kind
    for part in loc[:-1]:
        inside = here.known_keys()[str(part)] if _is_section(here) else typing.get_args(here)[-1]
        here = typing.get_args(inside)[0] if isinstance(inside, UnionType) else inside
    return list(here.known_keys()) if _is_section(here) else []


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)
