"""The SQLite file of the store: opened, locked, brought to the newest schema, written and read.

Every write is on disk when its call returns. Writes that wait at the same time are committed together, so a thousand
of them take a few syncs, not a thousand; one that cannot be stored does not take the others with it. Reads have a
connection of their own and see only what is committed. What is in the tables is not decided here. Used by the tables
and by `Store`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.resources
import os
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite

from swaplane.store.disk import in_thread, make_private, private, settled, sync_folder
from swaplane.store.errors import StoreError, store_errors

FILE_NAME = "jobs.db"
LOCK_NAME = "lock"

BUSY_S = 10.0  # how long SQLite waits for a lock, which `give_back` or another program's look into the file may hold
WAL_KEPT_BYTES = 64 << 20  # the log is cut back to this after a flood of long bodies
GIVEN_BACK_PAGES = 5000  # of 4 KiB, by one `give_back`; writers wait for it

_PRAGMAS = f"""
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA foreign_keys = ON;
PRAGMA journal_size_limit = {WAL_KEPT_BYTES};
"""

T = TypeVar("T")
Parameters = Sequence[Any] | Mapping[str, Any]
#: What is done inside a transaction; it is done again, alone, when its group could not be committed.
Work = Callable[[aiosqlite.Connection], Awaitable[T]]


class Database:
    """One folder's database; `open` makes it."""

    def __init__(
        self, folder: Path, writer: aiosqlite.Connection, reader: aiosqlite.Connection, resources: AsyncExitStack
    ) -> None:
        self.folder = folder
        self.file = folder / FILE_NAME
        self.commits = 0  #: transactions committed
        self._writer = writer
        self._reader = reader
        self._resources = resources
        self._waiting: list[tuple[Work[Any], asyncio.Future[Any]]] = []
        self._news = asyncio.Event()
        self._closed = False
        self._writing = asyncio.get_running_loop().create_task(self._write())

    def __repr__(self) -> str:
        return f"<Database {self.file}, {self.commits} commits, {len(self._waiting)} writes waiting>"

    @classmethod
    async def open(cls, folder: Path) -> Database:
        """The database in this folder, which is made if it is missing.

        Raises StoreError when the folder cannot be used, another gateway uses it, or its database is damaged or
        was made by a newer version.
        """
        file = folder / FILE_NAME
        async with AsyncExitStack() as resources:
            lock = _Lock(folder)
            resources.callback(lock.release)
            with store_errors(folder):
                await in_thread(lock.acquire)
            with store_errors(file):
                migrations = await in_thread(_migrations)
                await in_thread(_make_private, file)
                # The connections begin no transaction by themselves.
                writer = await resources.enter_async_context(_connect(file))
                [(pages,)] = await writer.execute_fetchall("PRAGMA page_count")
                if pages == 0:  # a file gives back what is deleted only if that is said before all else
                    await writer.execute("PRAGMA auto_vacuum = INCREMENTAL")
                await writer.executescript(_PRAGMAS)
                await _migrate(writer, file, migrations)
                reader = await resources.enter_async_context(_connect(file))
                reader.row_factory = writer.row_factory = sqlite3.Row
                await reader.execute("PRAGMA query_only = ON")
                await in_thread(sync_folder, folder)
            return cls(folder, writer, reader, resources.pop_all())

    async def close(self) -> None:
        """Write what waits, close the file and let go of the folder; further calls do nothing.

        Raises StoreError when the file cannot be closed.
        """
        if self._closed:
            return
        self._closed = True
        self._news.set()
        try:
            await settled(self._writing)
        finally:
            with store_errors(self.file):
                await settled(self._resources.aclose())

    async def rows(self, sql: str, parameters: Parameters = ()) -> list[sqlite3.Row]:
        """All rows of a query. Raises StoreError."""
        self._check_open()
        with store_errors(self.file):
            return list(await self._reader.execute_fetchall(sql, parameters))

    async def row(self, sql: str, parameters: Parameters = ()) -> sqlite3.Row | None:
        """The first row of a query; None when there is none. Raises StoreError."""
        rows = await self.rows(sql, parameters)
        return rows[0] if rows else None

    async def change(self, sql: str, parameters: Parameters = ()) -> None:
        """One statement that changes something, on disk when this returns. Raises StoreError."""

        async def work(writer: aiosqlite.Connection) -> None:
            await writer.execute_fetchall(sql, parameters)

        await self.write(work)

    async def write(self, work: Work[T]) -> T:
        """The result of `work`, whose changes are all on disk when this returns; none are when it raises StoreError.

        A caller that is cancelled is told so when it is over: the changes may have been made.
        """
        self._check_open()
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, done))
        self._news.set()
        with store_errors(self.file):
            return await settled(done)

    async def give_back(self) -> None:
        """Let the file shrink by some of what was deleted. Raises StoreError."""
        self._check_open()
        with store_errors(self.file):
            # Of its own: only a script runs this to its end, and a script ends the transaction it is run in.
            async with _connect(self.file) as other:
                await other.executescript(f"PRAGMA incremental_vacuum({GIVEN_BACK_PAGES})")

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.file} is closed: the gateway is shutting down")

    # The one writer.

    async def _write(self) -> None:
        group: list[tuple[Work[Any], asyncio.Future[Any]]] = []
        try:
            while self._waiting or not self._closed:
                await self._news.wait()
                self._news.clear()
                group, self._waiting = self._waiting, []
                if group:
                    await self._commit(group)
        except asyncio.CancelledError:
            # The loop ends, and nobody has closed this: what waits may not wait for ever, and neither may the
            # process for the threads of the connections.
            self._closed = True
            for _, done in group + self._waiting:
                done.cancel()
            await self._resources.aclose()
            raise

    async def _commit(self, group: list[tuple[Work[Any], asyncio.Future[Any]]]) -> None:
        begun = False
        try:
            await self._writer.execute("BEGIN IMMEDIATE")
            begun = True
            results = [await work(self._writer) for work, _ in group]
            await self._writer.commit()
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                await self._writer.rollback()  # does nothing where SQLite has done so by itself
            if not isinstance(error, Exception):
                raise
            if begun and len(group) > 1:
                for one in group:
                    await self._commit([one])
                return
            for _, done in group:
                done.set_exception(error)
            return
        self.commits += 1
        for (_, done), result in zip(group, results, strict=True):
            done.set_result(result)


def _make_private(file: Path) -> None:
    """Make the file if need be; SQLite gives those that it puts beside it the same mode."""
    os.close(private(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC))
    for suffix in ("-wal", "-shm"):
        make_private(file.with_name(file.name + suffix))


def _connect(file: Path) -> aiosqlite.Connection:
    return aiosqlite.connect(file, timeout=BUSY_S, isolation_level=None)


class _Lock:
    """The sign that a gateway uses the folder; it goes with the process, however that ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Make the folder if need be, and take it. Raises StoreError when somebody else has it, and OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what people ask is nobody else's business
        sync_folder(self._folder.parent)
        self._descriptor = private(self._folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"another gateway uses the folder {self._folder}: give each its own") from error

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _migrations() -> list[str]:
    """The scripts, in order: the first makes version 1."""
    folder = importlib.resources.files("swaplane.store") / "migrations"
    scripts = sorted((entry.name, entry.read_text()) for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [script for _, script in scripts]


async def _migrate(writer: aiosqlite.Connection, file: Path, migrations: list[str]) -> None:
    [(version,)] = await writer.execute_fetchall("PRAGMA user_version")
    if version > len(migrations):
        raise StoreError(
            f"{file} was made by a newer version of swaplane (its schema is {version}, this version knows "
            f"{len(migrations)}): use that version, or another folder"
        )
    for number, script in enumerate(migrations[version:], version + 1):
        # The version is part of the transaction: a script is applied whole, and once.
        await writer.executescript(f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;")
