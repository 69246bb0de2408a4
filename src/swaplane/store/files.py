"""Files that clients upload, and those that batches write. What they are for is not known here.

Called by the gateway's endpoints for files and by its batches.
"""

from __future__ import annotations

import asyncio
import builtins
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, unquote

from swaplane.store.database import Database
from swaplane.store.disk import FileFolder
from swaplane.store.errors import StoreError
from swaplane.store.owner import OWNED, Owner, owned_by
from swaplane.store.rows import page, values

_SUFFIX = ".file"

_LIST = f"""
    SELECT * FROM files
    WHERE (:purpose IS NULL OR purpose = :purpose) AND {OWNED}
        AND (:after IS NULL OR rowid * :step > :step * (SELECT rowid FROM files WHERE id = :after AND {OWNED}))
    ORDER BY rowid * :step LIMIT :limit + 1
"""  # noqa: S608 (our text)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file. Times are unix seconds."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: float
    member: str  #: on whose behalf it was made
    key_name: str  #: of the API key; empty without one
    expires_at: float | None = None  #: None: when it is deleted


class FileTable:
    """The files."""

    def __init__(self, database: Database, folder: FileFolder) -> None:
        self._db = database
        self._folder = folder

    async def add(self, file: StoredFile, content: AsyncIterator[bytes]) -> StoredFile:
        """Store a file, on disk when this returns; its `bytes` are those that came.

        A caller that is cancelled has stored nothing. Raises StoreError, also when the id is there already; what
        `content` raises passes.
        """
        name = self._folder.claim(self.path(file.id).name)
        try:
            if await self.get(file.id) is not None:
                raise StoreError(f"a file with the id {file.id} is stored already")
            async with self._folder.written(content, name) as (_, length):
                file = replace(file, bytes=length)
                await self._insert(file)
        finally:
            self._folder.release(name)
        return file

    async def _insert(self, file: StoredFile) -> None:
        try:
            await self._db.change(
                """
                INSERT INTO files (id, filename, purpose, bytes, created_at, member, key_name, expires_at)
                VALUES (:id, :filename, :purpose, :bytes, :created_at, :member, :key_name, :expires_at)
                """,
                values(file),
            )
        except asyncio.CancelledError:
            await self._db.change("DELETE FROM files WHERE id = ?", (file.id,))
            raise

    async def get(self, file_id: str) -> StoredFile | None:
        """The file of this id."""
        row = await self._db.row("SELECT * FROM files WHERE id = ?", (file_id,))
        return None if row is None else StoredFile(**dict(row))

    def path(self, file_id: str) -> Path:
        """Where the content of a file is."""
        return self._folder.file(quote(file_id, safe="") + _SUFFIX)

    async def list(
        self,
        *,
        purpose: str | None = None,
        limit: int,
        after: str | None = None,
        newest_first: bool = True,
        owner: Owner | None = None,
    ) -> tuple[builtins.list[StoredFile], bool]:
        """At most `limit` of the owner's files, those that follow the id `after`, and whether there are more.

        None follow an id that is not known as the owner's.
        """
        step = -1 if newest_first else 1
        rows = await self._db.rows(
            _LIST, {"purpose": purpose, "after": after, "step": step, "limit": limit, **owned_by(owner)}
        )
        return page([StoredFile(**dict(row)) for row in rows], limit)

    async def delete(self, file_id: str) -> None:
        """Forget a file; nothing where there is none."""
        await self._db.change("DELETE FROM files WHERE id = ?", (file_id,))
        await self._folder.remove([self.path(file_id).name])

    async def expire(self, now: float) -> None:
        """Forget the files that are past their time, and remove those that have no row."""
        await self._db.change("DELETE FROM files WHERE expires_at <= ?", (now,))
        await self._folder.sweep(self._without_row)

    async def _without_row(self, names: builtins.list[str]) -> Iterable[str]:
        by_id = {unquote(name.removesuffix(_SUFFIX)): name for name in names}
        rows = await self._db.rows(
            "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT id FROM files)",
            (json.dumps(builtins.list(by_id)),),
        )
        return [by_id[file_id] for (file_id,) in rows]
