"""Finds a few fields of a multipart form of any length.

Decides nothing about the values. Called by `model_field` and `named_jobs`, for long bodies in a thread.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from swaplane.gateway.json_scan import View

_PORTION = 64 << 10  # bytes given to the parser at once


class FormField(NamedTuple):
    """One part of a form that is no file."""

    name: bytes
    value: bytes
    start: int  #: offset of the value in the body

    @property
    def span(self) -> tuple[int, int]:
        """Where the value is in the body."""
        return self.start, self.start + len(self.value)


def read_multipart(view: View, boundary: bytes, names: frozenset[bytes], *, longest: int) -> list[FormField]:
    """The fields of these names, in order. Of a value longer than `longest` bytes somewhat more than that is given.

    What comes before a fault counts: the model server judges the rest.
    """
    return _MultipartFields(names, longest).read(view, boundary)


class _MultipartFields:
    """Collects fields from the callbacks of a push parser."""

    def __init__(self, names: frozenset[bytes], longest: int) -> None:
        self._names = names
        self._longest = longest
        self._found: list[FormField] = []
        self._portion = b""  # what is being parsed
        self._base = 0  # its offset in the body
        self._begin()

    def read(self, view: View, boundary: bytes) -> list[FormField]:
        with contextlib.suppress(FormParserError):
            parser = self._parser(boundary)
            # What stands before the first boundary is no part of the form, and the parser does not skip it.
            self._base = max(view.find(b"--" + boundary), 0)
            while self._base < len(view):
                self._portion = view[self._base : self._base + _PORTION]
                parser.write(self._portion)
                self._base += len(self._portion)
        return self._found

    def _parser(self, boundary: bytes) -> MultipartParser:
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_name_part,
                "on_header_value": self._header_value_part,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._data,
                "on_part_end": self._end,
            },
        )

    def _begin(self) -> None:
        self._header_name, self._header_value = bytearray(), bytearray()
        self._disposition = b""
        self._wanted = b""
        self._value = bytearray()
        self._start = 0

    def _header_name_part(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _header_value_part(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _header_end(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header_name, self._header_value = bytearray(), bytearray()

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        # A part with a file name is a file, whatever its field is called.
        if not options.get(b"filename") and options.get(b"name") in self._names:
            self._wanted = options[b"name"]

    def _data(self, data: bytes, start: int, end: int) -> None:
        if not self._wanted or len(self._value) > self._longest:
            return
        if not self._value:
            # What looked like a boundary at the end of the last portion and is none comes in another buffer.
            self._start = self._base + start if data is self._portion else self._base - (end - start)
        self._value += data[start:end]

    def _end(self) -> None:
        if self._wanted:
            self._found.append(FormField(self._wanted, bytes(self._value), self._start))
