"""What is wrong with a configuration file, and where.

Collects problems, each with file, line, column and the nearest known word, so that one run shows them all.
It decides how a problem is worded and which of several at one place is shown, not what is a problem: the
other modules of this package do, and `load` raises the result.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Path = tuple[str | int, ...]  #: keys and list positions from the top of the file, such as ("models", "m", "env", 0)


class ConfigError(Exception):
    """The configuration file cannot be used; nothing of it is applied."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems: tuple[str, ...] = tuple(problems)  #: "FILE:LINE:COL: dotted.path: sentence" each
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A position in the file as it lies on disk, both counted from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Places:
    """Where each key and each value was written. Text taken from an anchor is found where it was written."""

    keys: dict[Path, Place] = field(default_factory=dict)
    values: dict[Path, Place] = field(default_factory=dict)

    def find(self, path: Path, *, at_key: bool) -> Place:
        """The place of the key or value at `path`, or of the nearest thing around it that was written."""
        first, second = (self.keys, self.values) if at_key else (self.values, self.keys)
        for length in range(len(path), 0, -1):
            place = first.get(path[:length]) or second.get(path[:length])
            if place is not None:
                return place
            first, second = self.keys, self.values
        return Place(1, 1)


class Problems:
    """The problems of one file, at most one for each path: the first explains those that follow from it.

    `private` are top-level sections that hold secrets, with the words in them that may be shown. A secret may stand
    where a word should, so the path of a problem ends before the first other word.
    """

    def __init__(
        self,
        file: str,
        places: Places | None = None,
        private: Mapping[str, frozenset[str]] = MappingProxyType({}),
    ) -> None:
        self.file = file
        self.places = places or Places()
        self._private = private
        self._found: list[tuple[Place, str]] = []
        self._explained: set[Path] = set()

    def __repr__(self) -> str:
        return f"<{len(self._found)} problems in {self.file}>"

    def add(
        self,
        path: Path,
        sentence: str,
        *,
        at_key: bool = False,
        near: tuple[str, Iterable[str]] | None = None,
        place: Place | None = None,
    ) -> None:
        """Note a problem of the value (or key) at `path`, unless that path already has one.

        `near` is a word and the known words among which the closest is offered; `place` overrides the
        position of the path.
        """
        if path in self._explained:
            return
        self._explained.add(path)
        if near is not None and (close := nearest(*near, n=1)):
            sentence = f"{sentence} (did you mean `{close[0]}`?)"
        self.add_at(place or self.places.find(path, at_key=at_key), path, sentence)

    def add_at(self, place: Place, path: Path, sentence: str) -> None:
        """Note a problem at a place, however many that path has."""
        where = f"{self.file}:{place.line}:{place.column}: "
        told = dotted(self._told(path))
        self._found.append((place, f"{where}{told}: {sentence}" if told else f"{where}{sentence}"))

    def may_tell(self, path: Path) -> bool:
        """Whether all words of the path may be shown."""
        return self._told(path) == path

    def _told(self, path: Path) -> Path:
        words = self._private.get(str(path[0])) if path else None
        if words is None:
            return path
        shown = itertools.takewhile(lambda part: isinstance(part, int) or part in words, path[1:])
        return (path[0], *shown)

    def explain(self, path: Path) -> None:
        """Treat the value at `path` as reported: what is wrong with it follows from a problem elsewhere."""
        self._explained.add(path)

    def explained(self, path: Path) -> bool:
        """Whether this path has a problem already."""
        return path in self._explained

    def within(self, path: Path) -> bool:
        """Whether anything at or below this path has a problem already."""
        return any(found[: len(path)] == path for found in self._explained)

    def raise_any(self) -> None:
        """Raise ConfigError with all problems in the order of the file; do nothing when there are none."""
        if self._found:
            raise ConfigError(text for _, text in sorted(self._found, key=lambda found: found[0]))


def dotted(path: Path) -> str:
    """The path as people write it: `models.m.env[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def nearest(word: str, known: Iterable[str], n: int = 3) -> list[str]:
    """At most `n` of the known words that resemble `word`, best first, whatever their case."""
    by_lower: dict[str, str] = {}
    for name in known:
        by_lower.setdefault(name.lower(), name)
    return [by_lower[match] for match in difflib.get_close_matches(word.lower(), by_lower, n)]
