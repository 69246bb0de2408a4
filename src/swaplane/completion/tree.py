"""What can be found in a server's JSON, whatever it turns out to be.

Decides how values become text, numbers and ids, and never raises. It knows no server.
"""

from __future__ import annotations

import json
import math

from swaplane.completion.rule import Answer

_LONGEST_ID = 512
_LONGEST_DETAIL = 500
_LONGEST_INDEX = 9


def parsed(body: bytes) -> object:
    """The body as JSON; None when it is none, or `null`."""
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value


def succeeded(answer: Answer) -> bool:
    """Whether the server did what it was asked."""
    return 200 <= answer.status < 300


def at(tree: object, dotted: str) -> object:
    """The value at a path such as "data.0.id"; None when there is none."""
    for part in dotted.split("."):
        if isinstance(tree, dict):
            tree = tree.get(part)
        else:
            index = _index(tree, part)
            tree = tree[index] if isinstance(tree, list) and index is not None else None
    return tree


def with_value(tree: object, dotted: str, value: object) -> object:
    """A copy of the tree with this value at the path, which is made where there is none."""
    part, _, rest = dotted.partition(".")
    index = _index(tree, part)
    if isinstance(tree, list) and index is not None:
        return [*tree[:index], with_value(tree[index], rest, value) if rest else value, *tree[index + 1 :]]
    base = tree if isinstance(tree, dict) else {}
    return {**base, part: with_value(base.get(part), rest, value) if rest else value}


def _index(tree: object, part: str) -> int | None:
    """The part of a path as a position in the tree; None when the tree is no list or has none there."""
    if not isinstance(tree, list) or not (part.isascii() and part.isdigit()) or len(part) > _LONGEST_INDEX:
        return None
    return int(part) if int(part) < len(tree) else None


def written(tree: object) -> bytes | None:
    """The tree as JSON; None when it is nested too deeply."""
    try:
        return json.dumps(tree).encode()
    except RecursionError:
        return None


def text(value: object) -> str | None:
    """A text, number or switch as text, as JSON writes it; None for anything else."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, bool | int | float) else None


def job_id(value: object) -> str | None:
    """The value as a job's id that can be put into a path; None when it is none."""
    written = None if isinstance(value, bool | float) else text(value)
    usable = written and written.isprintable() and len(written) <= _LONGEST_ID and written not in {".", ".."}
    return written if usable else None


def per_cent(value: object) -> float | None:
    """A number as per cent from 0 to 100; None when it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    clamped = float(min(max(value, 0), 100))  # an int may be too large for a float
    return None if math.isnan(clamped) else clamped


def for_people(value: object) -> str:
    """Text as one line of bounded length that can be shown anywhere; empty for anything else."""
    if not isinstance(value, str):
        return ""
    shown = "".join(char if char.isprintable() else " " for char in value[:_LONGEST_DETAIL])
    return " ".join(shown.split())


def fault(tree: object) -> str:
    """Why something failed, from where servers usually say it; empty when it is not found."""
    places = ("error.message", "error", "message", "detail", "detail.0.msg")
    return next((found for place in places if (found := for_people(at(tree, place)))), "")
