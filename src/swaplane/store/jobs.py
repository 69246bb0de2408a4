"""Jobs that outlive the connection they came on: their requests, how far they are, how they ended.

A job is waiting, running, or ended; it ends once, and nothing changes it afterwards but its webhook's calls. What
a state leads to is decided by the gateway. Bodies of requests up to 1 MiB are in the database, longer ones are
files; bodies of answers are files that others write. Called by the gateway's detached jobs, batches and webhooks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, unquote

import aiosqlite

from swaplane.store.database import Database
from swaplane.store.disk import FileFolder, in_thread
from swaplane.store.errors import StoreError, store_errors
from swaplane.store.owner import OWNED, Owner, owned_by
from swaplane.store.rows import RawHeaders, headers_text
from swaplane.store.stored_job import INSERT, INSERT_NEW_KEY, StoredJob, job_of, row_of

__all__ = ["JobTable", "StoredJob"]

INLINE_BYTES = 1 << 20  #: a longer body is a file
_LINES_READ = 200  # of a batch, at once

_ANSWER = ".answer"


_BY_KEY = "SELECT * FROM jobs WHERE key_name = ? AND member = ? AND key = ?"
_OPEN_BELOW = f"""
    SELECT * FROM jobs
    WHERE state <> 'ended' AND substr(target, 1, length(:path)) = :path AND {OWNED}
    ORDER BY seq
"""  # noqa: S608 (our text)
_INSERT_BODY = "INSERT INTO bodies (seq, bytes, file, data) VALUES (?, ?, ?, ?)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """Where a body is: in memory, or already on disk."""

    length: int  #: bytes
    file: str | None = None
    data: bytes | None = None


_END = """
    UPDATE jobs SET state = 'ended', outcome = :outcome, lane = :lane, ran = :ran, waited_s = :waited_s,
        run_s = :run_s, ended_at = :ended_at, expires_at = :expires_at, status = :status, reason = :reason,
        answer_headers = :answer_headers, answer_bytes = :answer_bytes,
        webhook_at = iif(webhook IS NULL, NULL, :ended_at)
    WHERE id = :id AND state <> 'ended'
"""


class JobTable:
    """The stored jobs."""

    def __init__(self, database: Database, *, bodies: FileFolder, answers: FileFolder) -> None:
        self._db = database
        self._bodies = bodies
        self._answers = answers

    # Coming.

    async def add(self, job: StoredJob, body: AsyncIterator[bytes], length: int) -> StoredJob:
        """The job with its `seq`, on disk with its body of `length` bytes.

        When its Idempotency-Key is there already: the job that has it, and nothing is stored. Jobs that are added at
        the same time are given back in the order of their `seq`. A caller that is cancelled has stored nothing.
        Raises StoreError, also when the body has another length or the id is there already.
        """
        if length <= INLINE_BYTES:
            with store_errors(self._db.file):
                data = b"".join([piece async for piece in body])
            _check_length(job, len(data), length)
            return await self._add(job, _Body(length=length, data=data))
        async with self._bodies.written(body) as (file, written):
            _check_length(job, written, length)
            stored = await self._add(job, _Body(length=length, file=file))
        if stored.id != job.id:
            await self._bodies.remove([file])
        return stored

    async def add_many(self, jobs: Sequence[tuple[StoredJob, bytes]]) -> list[StoredJob]:
        """The jobs with their `seq`, in this order, all stored with their bodies, or none.

        A caller that is cancelled has stored nothing. Raises StoreError, also when one of their ids or keys is
        there already.
        """
        jobs = [(replace(job, body_bytes=len(data)), data) for job, data in jobs]
        async with AsyncExitStack() as files:
            bodies = []
            for _, data in jobs:
                if len(data) <= INLINE_BYTES:
                    bodies.append(_Body(length=len(data), data=data))
                else:
                    file, _ = await files.enter_async_context(self._bodies.written(_pieces(data)))
                    bodies.append(_Body(length=len(data), file=file))

            async def work(writer: aiosqlite.Connection) -> int:
                [(last,)] = await writer.execute_fetchall(
                    "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'jobs'"
                )
                numbered = enumerate(zip(jobs, bodies, strict=True), last + 1)
                await writer.executemany(INSERT, (row_of(job, seq) for seq, ((job, _), _) in numbered))
                numbered = enumerate(zip(jobs, bodies, strict=True), last + 1)
                await writer.executemany(_INSERT_BODY, ((seq, b.length, b.file, b.data) for seq, (_, b) in numbered))
                return int(last)

            try:
                last = await self._db.write(work)
            except asyncio.CancelledError:
                await self._withdraw([job.id for job, _ in jobs])
                raise
        return [replace(job, seq=seq) for seq, (job, _) in enumerate(jobs, last + 1)]

    async def _add(self, job: StoredJob, body: _Body) -> StoredJob:
        job = replace(job, body_bytes=body.length)

        async def work(writer: aiosqlite.Connection) -> StoredJob:
            for (seq,) in await writer.execute_fetchall(INSERT_NEW_KEY, row_of(job)):
                await writer.execute_fetchall(_INSERT_BODY, (seq, body.length, body.file, body.data))
                return replace(job, seq=seq)
            [row] = await writer.execute_fetchall(_BY_KEY, (job.key_name, job.member, job.key))
            return job_of(row)

        try:
            return await self._db.write(work)
        except asyncio.CancelledError:
            await self._withdraw([job.id])
            raise

    async def _withdraw(self, ids: list[str]) -> None:
        """Undo an `add` that nobody waits for any more. Files are removed by whoever wrote them."""
        await self._db.change("DELETE FROM jobs WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(ids),))

    # Looking.

    async def get(self, job_id: str) -> StoredJob | None:
        """The job of this id."""
        row = await self._db.row("SELECT * FROM jobs WHERE id = ?", (job_id,))
        return None if row is None else job_of(row)

    async def by_key(self, key_name: str, member: str, key: str) -> StoredJob | None:
        """The job with this Idempotency-Key, which belongs to an API key and a member."""
        row = await self._db.row(_BY_KEY, (key_name, member, key))
        return None if row is None else job_of(row)

    async def body(self, job_id: str) -> bytes | Path:
        """The request's body, or the file that is it. Raises StoreError, also when there is no such job."""
        row = await self._db.row(
            "SELECT file, data, bytes FROM bodies JOIN jobs USING (seq) WHERE jobs.id = ?", (job_id,)
        )
        if row is None:
            raise StoreError(f"job {job_id} has no stored body: it was deleted")
        if row["file"] is None:
            return bytes(row["data"])
        path = self._bodies.file(row["file"])
        with store_errors(path):
            length = (await in_thread(path.stat)).st_size
        if length != row["bytes"]:
            raise StoreError(f"{path}, the body of job {job_id}, has {length} bytes where it must have {row['bytes']}")
        return path

    def answer_path(self, job_id: str) -> Path:
        """Where the body of the job's answer is or goes. It counts once `ended` tells of it."""
        return self._answers.file(quote(job_id, safe="") + _ANSWER)

    async def open_below(self, path: str, *, owner: Owner | None = None) -> list[StoredJob]:
        """Those of the open ones that are the owner's and whose target begins so, in order of acceptance."""
        rows = await self._db.rows(_OPEN_BELOW, {"path": path, **owned_by(owner)})
        return [job_of(row) for row in rows]

    async def open(self) -> list[StoredJob]:
        """The jobs that wait or run, by `seq`."""
        return [job_of(row) for row in await self._db.rows("SELECT * FROM jobs WHERE state <> 'ended' ORDER BY seq")]

    async def of_batch(self, batch: str) -> AsyncIterator[StoredJob]:
        """The batch's jobs by line, each as it is when it comes up; what is deleted before that is left out."""
        line = -1
        while True:
            rows = await self._db.rows(
                "SELECT * FROM jobs WHERE batch = ? AND line > ? ORDER BY line LIMIT ?", (batch, line, _LINES_READ)
            )
            for row in rows:
                yield job_of(row)
            if len(rows) < _LINES_READ:
                return
            line = rows[-1]["line"]

    async def batch_counts(self, batch: str) -> dict[str, int]:
        """How many of the batch's jobs are "waiting", "running", "completed" (status 200 to 299) and "failed"."""
        rows = await self._db.rows(
            """
            SELECT CASE WHEN state <> 'ended' THEN state
                        WHEN status BETWEEN 200 AND 299 THEN 'completed' ELSE 'failed' END, count(*)
            FROM jobs WHERE batch = ? GROUP BY 1
            """,
            (batch,),
        )
        return {"waiting": 0, "running": 0, "completed": 0, "failed": 0} | {row[0]: row[1] for row in rows}

    async def turns(self) -> list[tuple[str, str, str, float]]:
        """(lane, member, band, when the latest of these jobs ended), of the jobs that ran."""
        rows = await self._db.rows(
            "SELECT lane, member, band, max(ended_at) FROM jobs WHERE ran AND state = 'ended' GROUP BY 1, 2, 3"
        )
        return [(lane, member, band, ended_at) for lane, member, band, ended_at in rows]

    async def epochs(self) -> set[str]:
        """What ids that are known begin with, before their "-"."""
        rows = await self._db.rows(
            """
            SELECT substr(id, 1, instr(id, '-') - 1) FROM jobs WHERE instr(id, '-')
            UNION SELECT substr(job_id, 1, instr(job_id, '-') - 1) FROM remembered WHERE instr(job_id, '-')
            """
        )
        return {epoch for (epoch,) in rows}

    # Going on. What is done to a job that is ended or deleted changes nothing.

    async def started(self, job_id: str) -> None:
        """It is about to be sent to its model, once more."""
        await self._db.change(
            "UPDATE jobs SET state = 'running', attempts = attempts + 1 WHERE id = ? AND state <> 'ended'", (job_id,)
        )

    async def waits_again(self, job_id: str) -> None:
        """It does not run any more, and is to; its server has forgotten it."""
        await self._db.change(
            "UPDATE jobs SET state = 'waiting', server_id = NULL WHERE id = ? AND state = 'running'", (job_id,)
        )

    async def priority(self, job_id: str, priority: int, *, band: str, reason: str) -> None:
        """It waits with another priority from now on, which is in this band."""
        await self._db.change(
            "UPDATE jobs SET priority = ?, band = ?, priority_reason = ? WHERE id = ? AND state <> 'ended'",
            (priority, band, reason, job_id),
        )

    async def server_id(self, job_id: str, server_id: str) -> None:
        """Its model's server knows it by this id."""
        await self._db.change("UPDATE jobs SET server_id = ? WHERE id = ? AND state <> 'ended'", (server_id, job_id))

    async def ended(
        self,
        job_id: str,
        *,
        outcome: str,
        lane: str,
        ran: bool,
        waited_s: float | None,
        run_s: float | None,
        ended_at: float,
        expires_at: float | None,
        status: int | None,
        reason: str,
        answer_headers: RawHeaders | None,
        answer_bytes: int | None,
    ) -> None:
        """It is over; its webhook, if it has one, is due, and its body is no longer needed.

        The answer's body must be on disk before.
        """
        values = {
            "id": job_id,
            "outcome": outcome,
            "lane": lane,
            "ran": ran,
            "waited_s": waited_s,
            "run_s": run_s,
            "ended_at": ended_at,
            "expires_at": expires_at,
            "status": status,
            "reason": reason,
            "answer_headers": headers_text(answer_headers),
            "answer_bytes": answer_bytes,
        }

        async def work(writer: aiosqlite.Connection) -> list[str]:
            await writer.execute_fetchall(_END, values)
            return await _drop_body(writer, job_id)

        await self._bodies.remove(await self._db.write(work))

    async def probe(self) -> None:
        """A change that changes nothing, and has to reach the disk all the same."""
        await self._db.change("UPDATE probes SET count = count + 1")

    # Webhooks.

    async def due_webhooks(self, now: float) -> list[tuple[str, str]]:
        """(id, address) of the ended jobs whose webhook is to be called by `now`, the one that waits longest first."""
        rows = await self._db.rows(
            "SELECT id, webhook FROM jobs WHERE webhook_at <= ? ORDER BY webhook_at, seq", (now,)
        )
        return [(job_id, address) for job_id, address in rows]

    async def next_webhook(self, *, after: float) -> float | None:
        """The earliest moment later than `after` at which a webhook is due."""
        row = await self._db.row("SELECT min(webhook_at) FROM jobs WHERE webhook_at > ?", (after,))
        return None if row is None else row[0]

    async def webhook_tried(self, job_id: str, *, again_at: float | None) -> None:
        """It was called, and is to be called again at `again_at`; None: it is done, or given up."""
        await self._db.change(
            "UPDATE jobs SET webhook_at = ?, webhook_tries = webhook_tries + 1 WHERE id = ?", (again_at, job_id)
        )

    # Leaving.

    async def delete(self, job_id: str) -> None:
        """Forget the job, its body and its answer; nothing where there is no such job."""

        async def work(writer: aiosqlite.Connection) -> list[str]:
            files = await _drop_body(writer, job_id)
            await writer.execute_fetchall("DELETE FROM jobs WHERE id = ?", (job_id,))
            return files

        await self._bodies.remove(await self._db.write(work))
        await self._answers.remove([self.answer_path(job_id).name])

    async def expire(self, now: float) -> None:
        """Forget the jobs that are past their time and whose webhook is done, and files that belong to none."""
        await self._db.change("DELETE FROM jobs WHERE expires_at <= ? AND webhook_at IS NULL", (now,))
        await self._bodies.sweep(self._bodies_of_none)
        await self._answers.sweep(self._answers_of_none)

    async def _bodies_of_none(self, names: list[str]) -> Iterable[str]:
        rows = await self._db.rows(
            "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT file FROM bodies WHERE file IS NOT NULL)",
            (json.dumps(names),),
        )
        return [name for (name,) in rows]

    async def _answers_of_none(self, names: list[str]) -> Iterable[str]:
        by_id = {unquote(name.removesuffix(_ANSWER)): name for name in names}
        rows = await self._db.rows(
            "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT id FROM jobs)", (json.dumps(list(by_id)),)
        )
        return [by_id[job_id] for (job_id,) in rows]


async def _drop_body(writer: aiosqlite.Connection, job_id: str) -> list[str]:
    """Forget a job's body; the name of its file, if it has one, which is to be removed."""
    files = await writer.execute_fetchall(
        "DELETE FROM bodies WHERE seq = (SELECT seq FROM jobs WHERE id = ?) RETURNING file", (job_id,)
    )
    return [file for (file,) in files if file is not None]


def _check_length(job: StoredJob, came: int, length: int) -> None:
    if came != length:
        raise StoreError(f"the body of job {job.id} ended after {came} bytes where it must have {length}")


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data
