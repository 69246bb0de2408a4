"""One folder with all that outlives the gateway: a database, and files that its rows name.

    lock        held by the gateway that uses the folder
    jobs.db     the database, with jobs.db-wal and jobs.db-shm beside it while it is open
    bodies/     bodies of stored requests that are longer than 1 MiB
    answers/    recorded answers of stored jobs
    kept/       answers that model servers gave and that outlive them
    files/      uploaded files, and those that batches write
    reserve     4 MiB of nothing, given up when the disk is full and rows must be written to delete others

Files and folders are made for their owner alone, and so are those that are there already; the folder around them is
left as it is. Decides what is deleted when. Opened once by the gateway; its tables are used by everything that stores.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from swaplane.store.batches import BatchTable
from swaplane.store.database import Database
from swaplane.store.disk import FileFolder, in_thread, private
from swaplane.store.errors import StoreError, store_errors
from swaplane.store.files import FileTable
from swaplane.store.jobs import JobTable
from swaplane.store.remembered import RememberedTable

__all__ = ["Store", "StoreError"]

_RESERVE = "reserve"
_RESERVE_BYTES = 4 << 20


class Store:
    """The tables of one folder. All their methods raise StoreError when the disk or the database fails."""

    def __init__(self, database: Database) -> None:
        folder = database.folder
        self.folder = folder
        bodies, answers, kept, files = self._folders = [
            FileFolder(folder / name, suffix)
            for name, suffix in (("bodies", ".body"), ("answers", ".answer"), ("kept", ".kept"), ("files", ".file"))
        ]
        self.jobs = JobTable(database, bodies=bodies, answers=answers)
        self.remembered = RememberedTable(database, kept)
        self.files = FileTable(database, files)
        self.batches = BatchTable(database)
        self._database = database

    def __repr__(self) -> str:
        return f"<Store {self._database!r}>"

    @classmethod
    async def open(cls, folder: Path) -> Store:
        """The store in this folder, which is made if it is missing.

        Raises StoreError when the folder cannot be used, another gateway uses it, or its database is damaged or
        was made by a newer version.
        """
        database = await Database.open(folder)
        try:
            store = cls(database)
            with store_errors(folder):
                await in_thread(store._make_folders)
        except BaseException:
            await database.close()
            raise
        return store

    def _make_folders(self) -> None:
        for folder in self._folders:
            folder.make_private()
        with contextlib.suppress(OSError):  # a disk that is that full is told of by whatever is written first
            _keep_room(self.folder / _RESERVE)

    async def close(self) -> None:
        """Write what waits, and let go of the folder; calls that come later raise StoreError."""
        await self._database.close()

    async def probe(self) -> None:
        """Return if a change reaches the disk. Raises StoreError when it does not."""
        await self.jobs.probe()

    async def expire(self, now: float) -> None:
        """Delete what is past its time at `now` (unix seconds), with its files, and files that nobody refers to.

        A job whose webhook is still to be called stays until it was, or was given up. This works on a full disk too.
        """
        reserve = self.folder / _RESERVE
        try:
            await self._expire(now)
        except StoreError:
            with contextlib.suppress(OSError):
                await in_thread(reserve.unlink)
            await self._expire(now)
        with contextlib.suppress(OSError):  # another time
            await in_thread(_keep_room, reserve)
        await self._database.give_back()

    async def _expire(self, now: float) -> None:
        await self.jobs.expire(now)
        await self.remembered.expire(now)
        await self.files.expire(now)
        await self.batches.expire(now)


def _keep_room(reserve: Path) -> None:
    with open(reserve, "ab", opener=private) as file:
        os.posix_fallocate(file.fileno(), 0, _RESERVE_BYTES)
