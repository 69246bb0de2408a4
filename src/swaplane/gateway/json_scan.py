"""Finds a few members of a JSON object without parsing the rest of it.

Works on bytes or a map of any length: long strings are skipped at the speed of the memory, nesting costs no
stack, and of a mapped file only a few MB stay resident. It is tolerant: nested values are skipped by their
brackets and strings alone, without judging them. Decides nothing about the members it finds. Called by
`model_field`, for long bodies in a thread; each step is short, so that the event loop gets its turns.
"""

from __future__ import annotations

import json
import mmap
import re
from dataclasses import dataclass
from typing import NamedTuple

View = bytes | mmap.mmap

_WINDOW = 64 << 10  # bytes that one regular expression may look at: about a millisecond
_STRIDE = 1 << 20  # bytes of a mapped file that may be resident behind the scanner

# Each text has one way at most to match, so giving up takes no longer than trying. (Possessive quantifiers would
# say so, but the `re` of Python 3.11.2, which Debian 12 has, gets them wrong.)
_SPACE = rb"[ \t\n\r]*"
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_SCALAR = rb"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)"
_PLAIN = rb'[^"\[\]{}]*'
# What may stand inside brackets, up to two levels of brackets deep.
_FLAT = _PLAIN + rb"(?:" + _STRING + _PLAIN + rb")*"
_NESTED = _PLAIN + rb"(?:(?:" + _STRING + rb"|[\[{]" + _FLAT + rb"[\]}])" + _PLAIN + rb")*"

_space = re.compile(_SPACE)
_in_string = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_scalar = re.compile(_SCALAR)
_number_rest = re.compile(rb"[-+.0-9eE]*")
_nested = re.compile(_NESTED, re.DOTALL)
_openers = re.compile(rb"[\[{]*")
_closers = re.compile(rb"[\]}]*")
# A key with its colon; and its value with the delimiter after it, where all that is within the window.
_member = re.compile(
    _SPACE + rb'"([^"\\]*(?:\\.[^"\\]*)*)"' + _SPACE + rb":" + _SPACE
    + rb"(?:(" + _STRING + rb"|" + _SCALAR + rb"|[\[{]" + _NESTED + rb"[\]}])" + _SPACE + rb"([,}]))?",
    re.DOTALL,
)  # fmt: skip

_QUOTE, _BACKSLASH, _COLON, _OPEN, _CLOSE = b'"\\:{}'
_OPENERS = b"[{"
_SPACES = b" \t\n\r"
_UNEXPECTED_END = "unexpected end of the text"


class Member(NamedTuple):
    """One member of the outermost object."""

    key: bytes  #: with escapes resolved
    start: int  #: offset of the first byte of its value
    end: int  #: offset after the last byte of its value


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The first place where the text cannot be JSON."""

    at: int  #: offset in bytes
    what: str  #: what is wrong there, for people


def scan_object(view: View, keys: frozenset[bytes]) -> tuple[list[Member], Fault | None]:
    """The members of the outermost object whose key is one of `keys`, in order, and at most two with one key.

    With a fault, the members are those before it. A text that is JSON but no object has no members.
    """
    members: list[Member] = []
    try:
        _Scanner(view).scan(keys, members)
    except _Malformed as error:
        return members, error.fault
    return members, None


class _Malformed(Exception):  # noqa: N818 (never leaves this module)
    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.fault = Fault(at=at, what=what)


class _Scanner:
    """One pass over one text. The methods take an offset and return the one after what they skipped."""

    __slots__ = ("_end", "_resident_from", "_view")

    def __init__(self, view: View) -> None:
        self._view = view
        self._end = len(view)
        self._resident_from = 0

    def scan(self, keys: frozenset[bytes], members: list[Member]) -> None:
        """Append the members with these keys; raises _Malformed."""
        view = self._view
        pos = self._after_space(3 if view[:3] == b"\xef\xbb\xbf" else 0)
        is_object = self._byte(pos) == _OPEN
        pos = self._after_space(self._members(pos, keys, members) if is_object else self._after_value(pos))
        if pos < self._end:
            raise _Malformed(pos, "expected the end of the text")

    def _members(self, pos: int, keys: frozenset[bytes], members: list[Member]) -> int:
        """After the object whose brace is at `pos`."""
        view = self._view
        pos = self._after_space(pos + 1)
        if self._byte(pos) == _CLOSE:
            return pos + 1
        while True:
            found = _member.match(view, pos, pos + _WINDOW)
            if found is not None and found.lastindex == 3:  # key, value and delimiter in one step
                key, delimiter = found.group(1, 3)
                start, end = found.span(2)
                pos = found.end()
            else:
                key, pos = self._long_key(pos) if found is None else (found[1], found.end())
                start = self._after_space(pos)
                end = self._after_value(start)
                pos = self._after_space(end) + 1
                delimiter = view[pos - 1 : pos]
            if b"\\" in key:
                key = _unescaped(key)
            if key in keys and sum(member.key == key for member in members) < 2:
                members.append(Member(key, start, end))
            if delimiter == b"}":
                return pos
            if delimiter != b",":
                raise _Malformed(pos - 1, "expected `,` or `}` after a value" if delimiter else _UNEXPECTED_END)
            if pos > _STRIDE:
                self._forget(pos)

    def _long_key(self, pos: int) -> tuple[bytes, int]:
        """A key, or the space around it, that does not fit into the window; or no key at all."""
        start = self._after_space(pos)
        if self._byte(start) != _QUOTE:
            raise _Malformed(start, "expected a key in double quotes")
        end = self._after_string(start)
        pos = self._after_space(end)
        if self._byte(pos) != _COLON:
            raise _Malformed(pos, "expected `:` after a key")
        # Only its beginning is needed: no wanted key is that long.
        return self._view[start + 1 : min(end - 1, start + 1 + _WINDOW)], pos + 1

    def _byte(self, pos: int) -> int:
        if pos >= self._end:
            raise _Malformed(self._end, _UNEXPECTED_END)
        return self._view[pos]

    def _after_space(self, pos: int) -> int:
        while True:
            if pos < self._end and self._view[pos] not in _SPACES:
                return pos
            edge = min(pos + _WINDOW, self._end)
            pos = _skip(_space, self._view, pos, edge)
            if pos < edge or pos == self._end:
                return pos
            self._forget(pos)

    def _after_value(self, pos: int) -> int:
        first = self._byte(pos)
        if first == _QUOTE:
            return self._after_string(pos)
        if first in _OPENERS:
            return self._after_brackets(pos)
        end = _skip(_scalar, self._view, pos, min(pos + _WINDOW, self._end))
        if end == pos:
            raise _Malformed(pos, "expected a value")
        while end - pos == _WINDOW:  # a number longer than the window
            pos = end
            end = _skip(_number_rest, self._view, pos, min(pos + _WINDOW, self._end))
            self._forget(end)
        return end

    def _after_string(self, start: int) -> int:
        """After the string whose opening quote is at `start`."""
        view, size = self._view, self._end
        pos = start + 1  # never right after a backslash that escapes
        while pos < size:
            edge = min(pos + _WINDOW, size)
            # Finding the next quote is a hundred times faster than the expression, which is needed only
            # where a backslash stands before that quote or before the edge.
            window = view[pos:edge]
            quote = window.find(b'"')
            last = quote if quote >= 0 else len(window)
            if last == 0 or window[last - 1] != _BACKSLASH:
                pos += last
            else:
                pos = _skip(_in_string, view, pos, edge)
            if pos < size and view[pos] == _QUOTE:
                return pos + 1
            if pos == size - 1 and view[pos] == _BACKSLASH:
                break
            self._forget(pos)
        raise _Malformed(start, "a string begins here and has no end")

    def _after_brackets(self, start: int) -> int:
        """After the array or object whose opening bracket is at `start`."""
        view, size = self._view, self._end
        pos, depth = start, 0
        while pos < size:
            edge = min(pos + _WINDOW, size)
            inside = _skip(_openers, view, pos, edge)
            depth += inside - pos
            pos = _skip(_nested, view, inside, edge)
            if pos < edge and view[pos] == _QUOTE:
                pos = self._after_string(pos)
            elif pos < edge:
                outside = _skip(_closers, view, pos, edge)
                if depth <= outside - pos:
                    return pos + depth
                depth -= outside - pos
                pos = outside
            self._forget(pos)
        raise _Malformed(start, "a bracket is opened here and never closed")

    def _forget(self, pos: int) -> None:
        """Let the pages of a mapped file before `pos` go: they would count as this process's memory."""
        if pos - self._resident_from >= _STRIDE and isinstance(self._view, mmap.mmap):
            start = self._resident_from - self._resident_from % mmap.PAGESIZE
            self._view.madvise(mmap.MADV_DONTNEED, start, pos - start)
            self._resident_from = pos


def _skip(pattern: re.Pattern[bytes], view: View, pos: int, edge: int) -> int:
    """The offset after the match at `pos`, which may be empty; nothing from `edge` on is looked at."""
    found = pattern.match(view, pos, edge)
    return pos if found is None else found.end()


def _unescaped(key: bytes) -> bytes:
    try:
        return str(json.loads(f'"{key.decode()}"')).encode("utf-8", "replace")
    except ValueError:
        return key


def place_of(view: View, at: int) -> str:
    """Where the byte at offset `at` is, for people: line and column (from 1, in characters) and byte (from 0)."""
    line = column = 1
    for start in range(0, at, _WINDOW):
        window = view[start : min(start + _WINDOW, at)]
        newline = window.rfind(b"\n")
        if newline >= 0:
            line += window.count(b"\n")
            column = 1
        # Characters are counted by their first bytes.
        column += len(window[newline + 1 :].translate(None, _CONTINUATION))
    return f"line {line}, column {column} (byte {at})"


_CONTINUATION = bytes(range(0x80, 0xC0))
