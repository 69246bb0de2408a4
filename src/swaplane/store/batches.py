"""Batches as their owner writes them down; their lines are stored jobs. What `data` says is not known here.

Called by the gateway's batches.
"""

from __future__ import annotations

import builtins
import sqlite3
from dataclasses import dataclass

from swaplane.store.database import Database
from swaplane.store.owner import OWNED, Owner, owned_by
from swaplane.store.rows import page, values


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """One batch. Times are unix seconds."""

    id: str
    created_at: float
    data: str  #: JSON
    open: bool  #: whether something is still to be done for it
    member: str  #: on whose behalf it runs
    key_name: str  #: of the API key that it came with; empty without one
    expires_at: float | None = None  #: None: it stays


_LIST = f"""
    SELECT * FROM batches
    WHERE {OWNED} AND (
        :after IS NULL OR rowid * :step > :step * (SELECT rowid FROM batches WHERE id = :after AND {OWNED}))
    ORDER BY rowid * :step LIMIT :limit + 1
"""  # noqa: S608 (our text)


class BatchTable:
    """The batches."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(self, batch: StoredBatch) -> None:
        """Store a batch. Raises StoreError, also when the id is there already."""
        await self._db.change(
            """
            INSERT INTO batches (id, created_at, data, open, member, key_name, expires_at)
            VALUES (:id, :created_at, :data, :open, :member, :key_name, :expires_at)
            """,
            values(batch),
        )

    async def get(self, batch_id: str) -> StoredBatch | None:
        """The batch of this id."""
        row = await self._db.row("SELECT * FROM batches WHERE id = ?", (batch_id,))
        return None if row is None else _batch(row)

    async def update(self, batch: StoredBatch) -> None:
        """Take its fields in place of those it had; nothing where there is no such batch."""
        await self._db.change(
            "UPDATE batches SET data = :data, open = :open, expires_at = :expires_at WHERE id = :id", values(batch)
        )

    async def list(
        self, *, limit: int, after: str | None = None, newest_first: bool = True, owner: Owner | None = None
    ) -> tuple[builtins.list[StoredBatch], bool]:
        """At most `limit` of the owner's batches, those that follow the id `after`, and whether there are more.

        None follow an id that is not known as the owner's.
        """
        step = -1 if newest_first else 1
        rows = await self._db.rows(_LIST, {"after": after, "step": step, "limit": limit, **owned_by(owner)})
        return page([_batch(row) for row in rows], limit)

    async def open(self) -> builtins.list[StoredBatch]:
        """The batches that are open, oldest first."""
        return [_batch(row) for row in await self._db.rows("SELECT * FROM batches WHERE open ORDER BY rowid")]

    async def expire(self, now: float) -> None:
        """Forget the batches that are past their time."""
        await self._db.change("DELETE FROM batches WHERE expires_at <= ?", (now,))


def _batch(row: sqlite3.Row) -> StoredBatch:
    columns = dict(row)
    return StoredBatch(**columns | {"open": bool(columns["open"])})
