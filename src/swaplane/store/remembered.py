"""Jobs as model servers know them, and the answers that are kept because a server is stopped when others need its GPU.

Each is known by the gateway's job that it came of. The id that its server gave it need not be its alone: two models'
servers may give the same one, and a server may give one again, because it was started anew or knew the answer already.
That makes an earlier job of the same API key forgotten; somebody else keeps theirs, with what was kept of it. One of
the gateway's jobs that is run again is known by its last attempt alone. Decides nothing about jobs. Called by the
gateway's `remembered`.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import aiosqlite

from swaplane.store.database import Database
from swaplane.store.disk import FileFolder, in_thread, sync_file
from swaplane.store.errors import store_errors
from swaplane.store.owner import OWNED, Owner, owned_by
from swaplane.store.rows import RawHeaders, headers_of, headers_text, page, values


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """One job at a model's server. Times are unix seconds."""

    model: str
    server_id: str
    job_id: str
    member: str  #: of the job
    key_name: str  #: of the API key that the job came with; empty without one
    completion: str  #: name of the rule by which its end is known
    created_at: float
    stage: str  #: "running", "done", "failed" or "gone"
    last: bytes  #: JSON of the last poll, or of the submit
    ended_at: float | None = None
    expires_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """An answer to a GET, fetched while the server lived."""

    status: int
    reason: str
    headers: RawHeaders
    path: Path  #: of its body
    bytes: int  #: of its body


_INSERT = """
    INSERT INTO remembered (
        model, server_id, job_id, member, key_name, completion, created_at, stage, last, ended_at, expires_at
    ) VALUES (
        :model, :server_id, :job_id, :member, :key_name, :completion, :created_at, :stage, :last, :ended_at, :expires_at
    )
"""
_TAKES_PLACE_OF = """
    SELECT job_id FROM remembered
    WHERE job_id = :job_id OR (model = :model AND server_id = :server_id AND key_name = :key_name)
"""
_UPDATE = """
    UPDATE remembered SET model = :model, server_id = :server_id, member = :member, key_name = :key_name,
        completion = :completion, created_at = :created_at, stage = :stage, last = :last, ended_at = :ended_at,
        expires_at = :expires_at
    WHERE job_id = :job_id
"""
_NEWEST = f"""
    SELECT * FROM remembered
    WHERE server_id = :server_id AND (:model IS NULL OR model = :model) AND {OWNED}
    ORDER BY rowid DESC LIMIT 1
"""  # noqa: S608 (our text)
_LIST = f"""
    SELECT * FROM remembered
    WHERE completion = :completion AND (:model IS NULL OR model = :model) AND {OWNED}
        AND (:after IS NULL OR rowid * :step > :step * (
            SELECT max(rowid) FROM remembered
            WHERE server_id = :after AND (:model IS NULL OR model = :model) AND {OWNED}))
    ORDER BY rowid * :step LIMIT :limit + 1
"""  # noqa: S608 (our text)

_KEPT = f"""
    SELECT status, reason, headers, file, bytes FROM kept_answers JOIN remembered USING (job_id, model)
    WHERE model = :model AND target = :target AND {OWNED}
    ORDER BY kept_answers.rowid DESC LIMIT 1
"""  # noqa: S608 (our text)


class RememberedTable:
    """The jobs at model servers, and the kept answers."""

    def __init__(self, database: Database, kept: FileFolder) -> None:
        self._db = database
        self._kept = kept

    async def add(self, remembered: Remembered) -> None:
        """A server has taken a job. One of the same API key that had this id at this model before is forgotten.

        So is an earlier attempt at the same one of the gateway's jobs.
        """

        async def work(writer: aiosqlite.Connection) -> builtins.list[str]:
            files = []
            for (job_id,) in await writer.execute_fetchall(_TAKES_PLACE_OF, values(remembered)):
                files += await _forget(writer, job_id)
            await writer.execute_fetchall(_INSERT, values(remembered))
            return files

        await self._kept.remove(await self._db.write(work))

    async def get(self, server_id: str, model: str | None = None, *, owner: Owner | None = None) -> Remembered | None:
        """The owner's job of this id, at this model's server or at any; the newest when there are several."""
        row = await self._db.row(_NEWEST, {"server_id": server_id, "model": model, **owned_by(owner)})
        return None if row is None else Remembered(**dict(row))

    async def of_job(self, job_id: str) -> Remembered | None:
        """The job at a server that one of the gateway's jobs became; the last one when it was run again."""
        row = await self._db.row("SELECT * FROM remembered WHERE job_id = ?", (job_id,))
        return None if row is None else Remembered(**dict(row))

    async def update(self, remembered: Remembered) -> None:
        """Take its fields in place of those it had; nothing where it is forgotten."""
        await self._db.change(_UPDATE, values(remembered))

    async def forget(self, job_id: str) -> None:
        """Forget the job and what is kept of it; nothing where it is forgotten already."""

        async def work(writer: aiosqlite.Connection) -> builtins.list[str]:
            return await _forget(writer, job_id)

        await self._kept.remove(await self._db.write(work))

    async def running(self) -> builtins.list[Remembered]:
        """The jobs in the stage "running", oldest first."""
        rows = await self._db.rows("SELECT * FROM remembered WHERE stage = 'running' ORDER BY rowid")
        return [Remembered(**dict(row)) for row in rows]

    async def list(
        self,
        *,
        completion: str,
        model: str | None,
        limit: int,
        after: str | None,
        newest_first: bool,
        owner: Owner | None = None,
    ) -> tuple[builtins.list[Remembered], bool]:
        """At most `limit` of the owner's jobs of one rule, those after the id `after`, and whether there are more.

        None follow an id that is not known as the owner's.
        """
        rows = await self._db.rows(
            _LIST,
            {
                "completion": completion,
                "model": model,
                "after": after,
                "step": -1 if newest_first else 1,
                "limit": limit,
                **owned_by(owner),
            },
        )
        return page([Remembered(**dict(row)) for row in rows], limit)

    def new_path(self) -> Path:
        """A path at which the body of an answer can be written before it is kept.

        What is there and was not kept when the process ends is removed by a later `expire`.
        """
        return self._kept.file(self._kept.claim())

    async def keep(self, job_id: str, target: str, answer: KeptAnswer) -> None:
        """Keep what the server answered to a GET of `target`, in place of what was kept for it of the same job.

        The body was written at a `new_path`; it is removed if the job is forgotten by now. Raises StoreError.
        """
        name = answer.path.name
        with store_errors(answer.path):
            await in_thread(sync_file, answer.path)

        async def work(writer: aiosqlite.Connection) -> builtins.list[str]:
            known = list(await writer.execute_fetchall("SELECT model FROM remembered WHERE job_id = ?", (job_id,)))
            if not known:
                return [name]
            replaced = await writer.execute_fetchall(
                "DELETE FROM kept_answers WHERE job_id = ? AND target = ? RETURNING file", (job_id, target)
            )
            headers = headers_text(answer.headers)
            await writer.execute_fetchall(
                """
                INSERT INTO kept_answers (job_id, model, target, status, reason, headers, file, bytes)
                VALUES (?, ?, ?, ?, ?, ?, ?, ?)
                """,
                (job_id, *known[0], target, answer.status, answer.reason, headers, name, answer.bytes),
            )
            return [file for (file,) in replaced]

        try:
            await self._kept.remove(await self._db.write(work))
        finally:
            self._kept.release(name)

    async def kept(self, model: str, target: str, *, owner: Owner | None = None) -> KeptAnswer | None:
        """What is kept for a GET of `target` at this model's server, of the newest of the owner's jobs that has it."""
        row = await self._db.row(_KEPT, {"model": model, "target": target, **owned_by(owner)})
        if row is None:
            return None
        return KeptAnswer(
            status=row["status"],
            reason=row["reason"],
            headers=headers_of(row["headers"]) or [],
            path=self._kept.file(row["file"]),
            bytes=row["bytes"],
        )

    async def expire(self, now: float) -> None:
        """Forget the jobs that are past their time, and files of answers that nobody keeps."""
        await self._db.change("DELETE FROM remembered WHERE expires_at <= ?", (now,))
        await self._kept.sweep(self._kept_by_none)

    async def _kept_by_none(self, names: builtins.list[str]) -> Iterable[str]:
        rows = await self._db.rows(
            "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT file FROM kept_answers)", (json.dumps(names),)
        )
        return [name for (name,) in rows]


async def _forget(writer: aiosqlite.Connection, job_id: str) -> list[str]:
    """The files that were kept of the job; its answers' rows go with its own."""
    files = await writer.execute_fetchall("SELECT file FROM kept_answers WHERE job_id = ?", (job_id,))
    await writer.execute_fetchall("DELETE FROM remembered WHERE job_id = ?", (job_id,))
    return [file for (file,) in files]
