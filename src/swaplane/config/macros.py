"""Macros: `${name}` in the values of the file.

Decides which macros may be declared, in which order they are put in (the last declared first, so a macro may
use those declared before it), and which were left over. It does not know what a value means; `load` says which
values are expanded and gives out the ports. `${env.NAME}` is earlier and elsewhere, in `document`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from swaplane.config.problems import Path, Problems

Scalar = str | int | float | bool

#: Macros that are not declared, and where they are known.
RESERVED = {
    "PORT": "it is known only to models whose cmd contains it",
    "PID": "it is known only in cmdStop",
    "MODEL_ID": "it is known only to models",
}
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_REFERENCE = re.compile(r"\$\{([a-zA-Z0-9_-]+)\}")
_LONGEST = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Macro:
    """A name and what stands in its place."""

    name: str
    value: Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The macros of one block."""

    macros: tuple[Macro, ...] = ()  #: in the order of the file
    broken: frozenset[str] = frozenset()  #: names whose declaration is reported; their uses are not reported again


def declare(block: Mapping[str, object], path: Path, problems: Problems, *, owner: str = "") -> Declared:
    """Read one `macros` block; `owner` is put before each message ("model m: ")."""
    macros: list[Macro] = []
    broken: set[str] = set()
    for name, value in block.items():
        fault = _fault(name, value)
        if fault is None:
            assert isinstance(value, Scalar)  # noqa: S101 - _fault has seen to it
            macros.append(Macro(name=name, value=value))
        else:
            broken.add(name)
            problems.add((*path, name), f"{owner}{fault}", at_key=True)
    return Declared(macros=tuple(macros), broken=frozenset(broken))


def _fault(name: str, value: object) -> str | None:
    if len(name) > _LONGEST:
        return f"macro name '{name}' exceeds maximum length of {_LONGEST} characters"
    if not _NAME.fullmatch(name):
        return f"macro name '{name}' contains invalid characters, must match pattern ^[a-zA-Z0-9_-]+$"
    if name in RESERVED:
        return f"macro name '{name}' is reserved"
    if not isinstance(value, Scalar):
        kind = "list" if isinstance(value, list) else "mapping" if isinstance(value, dict) else "null"
        return f"macro '{name}' has invalid type {kind}, must be a scalar type (string, int, float, or bool)"
    if isinstance(value, str) and f"${{{name}}}" in value:
        return f"macro '{name}' contains self-reference"
    return None


def scope(model_id: str, shared: Sequence[Macro], own: Sequence[Macro]) -> tuple[Macro, ...]:
    """The macros of one model: MODEL_ID, the shared ones, its own.

    An own macro with the name of a shared one takes that one's position, so that what was declared after it
    still finds it.
    """
    merged = {macro.name: macro for macro in (Macro(name="MODEL_ID", value=model_id), *shared)}
    merged.update((macro.name, macro) for macro in own)
    return tuple(merged.values())


def expand(value: object, macros: Sequence[Macro]) -> object:
    """`value` with the macros put in, in every text inside lists and mappings; keys are left alone.

    A text that is nothing but one reference takes the macro's own type.
    """
    if isinstance(value, dict):
        return {key: expand(inner, macros) for key, inner in value.items()}
    if isinstance(value, list):
        return [expand(inner, macros) for inner in value]
    result = value
    for macro in reversed(macros):
        if not isinstance(result, str):
            break
        reference = f"${{{macro.name}}}"
        result = macro.value if result == reference else result.replace(reference, spelled(macro.value))
    return result


def spelled(value: Scalar) -> str:
    """A scalar inside a longer text, spelled as llama-swap does: 0.70 is `0.7`, 1.0 is `1`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        whole = value.is_integer() and abs(value) < 1e21  # from there on with an exponent
        return str(int(value)) if whole else float.__repr__(value)
    return int.__repr__(value) if isinstance(value, int) else value


def left_over(value: object, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Each (path, macro name) that is still in `value`."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from left_over(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from left_over(inner, (*path, index))
    elif isinstance(value, str):
        for name in _REFERENCE.findall(value):
            yield path, name


def refuse(
    name: str, path: Path, sentence: str, *, known: Sequence[Macro], broken: frozenset[str], problems: Problems
) -> None:
    """Report a reference that was left over, unless its macro's declaration is already reported."""
    names = [macro.name for macro in known]
    if name in broken:
        problems.explain(path)
    elif name in names:
        problems.add(path, f"{sentence}; a macro may use only macros that are declared before it")
    elif name in RESERVED:
        problems.add(path, f"{sentence}; {RESERVED[name]}")
    else:
        problems.add(path, sentence, near=(name, (*names, *RESERVED)))
