"""Folders of files that rows of the database refer to by name.

A file is whole and on disk before the row that names it is committed, and it is removed after its row: so a crash
leaves at most a file that nobody refers to, which `sweep` removes. Which names are referred to is the tables'
business. All work on the disk is done in threads. Used by the tables only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from io import FileIO
from pathlib import Path
from typing import ParamSpec, TypeVar

from swaplane.store.errors import StoreError, store_errors

PORTION = 1 << 20  #: bytes written at once

P = ParamSpec("P")
T = TypeVar("T")


async def settled(work: Awaitable[T]) -> T:
    """Await `work` to its end, also when the caller is cancelled meanwhile: that is raised afterwards."""
    future = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None or future.cancelled():
        return future.result()
    future.exception()  # nobody else asks how it went
    raise cancelled


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like `asyncio.to_thread`, but returns only when the thread is done, also when cancelled."""
    return await settled(asyncio.to_thread(function, *args, **kwargs))


def sync_folder(path: Path) -> None:
    """Put the names of the folder's files on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Put a file that others have written on disk, with its name. Raises OSError."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    sync_folder(path.parent)


def private(path: str | Path, flags: int) -> int:
    """An `opener` of `open`: nobody but the file's owner may read and write it, whatever umask and folder say.

    Raises OSError.
    """
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def make_private(path: Path) -> None:
    """Have a file or a folder that is there be for its owner alone; nothing when there is none. Raises OSError."""
    if not path.exists():
        return
    mode = path.stat().st_mode
    wanted = 0o700 if stat.S_ISDIR(mode) else 0o600
    if stat.S_IMODE(mode) != wanted:
        path.chmod(wanted)


class FileFolder:
    """One folder, and one suffix: files in it with other names are left alone, whoever put them there."""

    def __init__(self, path: Path, suffix: str) -> None:
        self.path = path
        self._suffix = suffix
        self._fresh: set[str] = set()  # names that no row has yet, and that are not left over either

    def __repr__(self) -> str:
        return f"<FileFolder {self.path}, {len(self._fresh)} files being written>"

    def file(self, name: str) -> Path:
        """Where the file of this name is or goes."""
        return self.path / name

    def claim(self, name: str = "") -> str:
        """The name, or a new one, which `sweep` spares from now on until `release`.

        Raises StoreError when it is claimed already.
        """
        name = name or f"{uuid.uuid4().hex}{self._suffix}"
        if name in self._fresh:
            raise StoreError(f"{self.file(name)} is being written already")
        self._fresh.add(name)
        return name

    def release(self, name: str) -> None:
        """Spare the file from now on only if a row names it."""
        self._fresh.discard(name)

    @asynccontextmanager
    async def written(self, pieces: AsyncIterator[bytes], claimed: str = "") -> AsyncIterator[tuple[str, int]]:
        """A file with these bytes, on disk: gives its name and its length, and removes it if the block raises.

        Its name is new, or was claimed before. The block commits the row that has the name. Raises StoreError; what
        `pieces` raises, unless it is an OSError, passes.
        """
        name = claimed or self.claim()
        writing = _Writing(self.file(name))
        try:
            with store_errors(self.path):
                held = bytearray()
                async for piece in pieces:
                    held += piece
                    if len(held) >= PORTION:
                        await in_thread(writing.append, held)
                        held = bytearray()
                await in_thread(writing.finish, held)
            yield name, writing.length
        except BaseException:
            if writing.begun:
                await in_thread(writing.discard)
            raise
        finally:
            self.release(name)

    async def remove(self, names: Iterable[str]) -> None:
        """Remove the files of these names; those that are gone are no matter. Raises StoreError."""
        with store_errors(self.path):
            await in_thread(self._remove, list(names))

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self.file(name).unlink(missing_ok=True)

    def make_private(self) -> None:
        """Make the folder if need be; neither it nor what is in it is for others to read. Raises OSError."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        make_private(self.path)
        for name in self._names():
            make_private(self.file(name))

    async def sweep(self, unreferenced: Callable[[list[str]], Awaitable[Iterable[str]]]) -> None:
        """Remove the files that no row names; `unreferenced` picks their names from those it is given.

        Raises StoreError.
        """
        # In this order: a file that is found, and is not fresh any more afterwards, has its row by now or none.
        with store_errors(self.path):
            found = await in_thread(self._names)
        left = [name for name in found if name not in self._fresh]
        if left:
            await self.remove(await unreferenced(left))

    def _names(self) -> list[str]:
        with os.scandir(self.path) as entries:
            return [e.name for e in entries if e.name.endswith(self._suffix) and e.is_file(follow_symlinks=False)]


class _Writing:
    """A file while it is written. One descriptor throughout, so that no failed write goes unnoticed by fsync."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self.length = 0  #: bytes

    @property
    def begun(self) -> bool:
        """Whether the file was made here."""
        return self._file is not None

    def append(self, data: bytearray) -> None:
        if self._file is None:
            self._file = open(self._path, "wb", buffering=0, opener=private)  # noqa: SIM115 (closed at its end)
        self.length += len(data)
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

    def finish(self, data: bytearray) -> None:
        self.append(data)
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
        sync_folder(self._path.parent)

    def discard(self) -> None:
        """Remove the file; where even that fails, `sweep` does it later."""
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
            self._path.unlink(missing_ok=True)
