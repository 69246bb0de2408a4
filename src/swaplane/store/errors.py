"""The one error of the store, and how those of the disk and of SQLite become it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StoreError(Exception):
    """The store cannot do what it was asked to; the text is one sentence for people."""


@contextmanager
def store_errors(place: Path) -> Iterator[None]:
    """Raise StoreError, naming `place`, for what the disk or SQLite raises inside the block."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{place} cannot be read or written: {error.strerror or error}") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            hint = "put a copy in its place, or move it away to begin with an empty one"
            raise StoreError(f"{place} is damaged or is not a database ({error}): {hint}") from error
        raise StoreError(f"{place} cannot be read or written: {error}") from error
