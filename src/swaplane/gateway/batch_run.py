"""One batch from its input file to its output files: the steps, and how each is taken again after a crash.

Decides a batch's status. Its lines are detached jobs: their order and their runs are not its business. What it did
is in the store before the next step begins, and each step can be taken twice without doing anything twice:

    validating ──► in_progress ──► finalizing ──► completed or expired
        │  └─► failed     └──────► cancelling ──► cancelled

Made by `batches` for each batch that is not over.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence

import structlog

from swaplane.gateway.access import caller_with
from swaplane.gateway.batch_input import Checked, Line, LineFault, check
from swaplane.gateway.batch_output import file_lines
from swaplane.gateway.batch_record import OVER, Batch, BatchError, BatchErrors, Counts, stored_batch
from swaplane.gateway.detached import DetachedJobs
from swaplane.gateway.errors import RawHeaders
from swaplane.gateway.job_answers import succeeded
from swaplane.gateway.openai_files import unknown_file
from swaplane.gateway.routes import ROUTES
from swaplane.runtime import Runtime
from swaplane.store import Store, StoredJob, StoreError
from swaplane.store.files import StoredFile

log = structlog.get_logger("swaplane.batches")

KIND = "batch"  #: of a detached job

_AGAIN_S = 30.0  # before a step is taken again after the disk failed
_LOOK_S = 600.0  # how long the clock is trusted: it may be set while we wait for the batch's last moment
_DELETED_AT_ONCE = 500
_KEY_REMOVED = "the API key that the batch came with was removed before its file was checked"


class BatchRun:
    """The work on one batch."""

    def __init__(self, batch: Batch, *, runtime: Runtime, store: Store, detached: DetachedJobs) -> None:
        self.batch = batch
        self._runtime = runtime
        self._store = store
        self._detached = detached
        self._given_up = threading.Event()  # what is checked in a thread is not wanted any more
        self._ended = 0  # lines whose end was told to us
        self._awaited = 0  # how many of those make it worth looking again
        self._news = asyncio.Event()

    def line_ended(self) -> None:
        """Called after the end of each of its lines is stored."""
        self._ended += 1
        if self._ended >= self._awaited:
            self._news.set()

    async def cancel(self) -> None:
        """Have it end as cancelled, with the output of what has run; for a batch that is validating or in progress."""
        self.batch.status, self.batch.ending = "cancelling", "cancelled"
        self.batch.cancelling_at = _now()
        self._given_up.set()
        self._news.set()
        await self._save()

    def give_up(self) -> None:
        """The gateway ends: let the thread that checks the file end, too."""
        self._given_up.set()

    async def counts(self) -> Counts:
        """The lines as they are now. Raises StoreError."""
        if self.batch.status not in ("in_progress", "cancelling"):
            return self.batch.request_counts
        now = await self._store.jobs.batch_counts(self.batch.id)
        return Counts(total=sum(now.values()), completed=now["completed"], failed=now["failed"])

    async def run(self) -> None:
        """Do all that is left to do; returns when the batch is over and nothing is left of its lines."""
        done = False
        while not done:
            try:
                await self._advance()
                done = True
            except (OSError, StoreError) as error:
                log.error("a batch cannot go on for now", batch=self.batch.id, error=str(error))
                await asyncio.sleep(_AGAIN_S)

    async def _advance(self) -> None:
        batch = self.batch
        if batch.status == "validating":
            await self._validate()
        if batch.status in ("in_progress", "cancelling"):
            await self._all_ended()
            if batch.ending != "cancelled":
                batch.status, batch.finalizing_at = "finalizing", _now()
            await self._save()
        if batch.status not in OVER:
            await self._write_files()
            batch.status = batch.ending
            setattr(batch, f"{batch.ending}_at", _now())
        await self._save()  # before the lines go, of which it could not be told any more
        await self._delete_lines()
        await self._save(is_open=False)
        log.info("batch ended", batch=batch.id, status=batch.status, **batch.request_counts.model_dump())

    async def _save(self, *, is_open: bool = True) -> None:
        await self._store.batches.update(stored_batch(self.batch, is_open=is_open))

    # Validating.

    async def _validate(self) -> None:
        batch = self.batch
        total = sum((await self._store.jobs.batch_counts(batch.id)).values())
        if not total:  # else the gateway ended right after it had made the lines
            checked = await self._checked()
            if batch.status != "validating":
                return  # cancelled meanwhile
            if checked.faults:
                batch.errors = BatchErrors(data=[_error(fault) for fault in checked.faults])
                batch.status, batch.failed_at = "failed", _now()
                return
            ids = [self._runtime.next_id() for _ in checked.lines]
            lines = await asyncio.to_thread(self._jobs, ids, checked.lines)
            total = len(lines)
            await self._detached.accept_lines(batch.id, lines)
        batch.request_counts = Counts(total=total)
        if batch.status == "validating":
            batch.status, batch.in_progress_at = "in_progress", _now()
        await self._save()

    async def _checked(self) -> Checked:
        file_id, settings = self.batch.input_file_id, self._runtime.settings
        caller = caller_with(self.batch.sender.key, settings.keys)
        if caller is None:
            return Checked(faults=[LineFault(code="key_removed", message=_KEY_REMOVED)])
        if await self._store.files.get(file_id) is not None:
            path = self._store.files.path(file_id)
            with contextlib.suppress(FileNotFoundError):  # deleted at this moment
                return await asyncio.to_thread(check, path, self.batch.endpoint, settings, caller, self._given_up)
        return Checked(faults=[LineFault(code="file_not_found", message=unknown_file(file_id).message)])

    def _jobs(self, ids: Sequence[str], lines: Sequence[Line]) -> list[tuple[StoredJob, bytes]]:
        batch, sender = self.batch, self.batch.sender
        band = self._runtime.settings.rules.band_of(sender.priority).name
        target = ROUTES[batch.endpoint]["POST"].upstream_path
        # The answers are read here, so they have to come as they are.
        headers: RawHeaders = [(b"Content-Type", b"application/json"), (b"Accept-Encoding", b"identity")]
        if sender.authorization is not None:
            headers.append((b"Authorization", sender.authorization.encode("latin-1")))
        now = time.time()
        return [
            (
                StoredJob(
                    id=job_id,
                    kind=KIND,
                    model=line.model.id,
                    member=sender.member,
                    key_name=sender.key,
                    priority=sender.priority,
                    band=band,
                    label=sender.label,
                    method="POST",
                    target=target,
                    headers=headers,
                    client=sender.client,
                    submitted_at=now,
                    batch=batch.id,
                    line=line.number,
                    custom_id=line.custom_id,
                ),
                line.body,
            )
            for job_id, line in zip(ids, lines, strict=True)
        ]

    # Running.

    async def _all_ended(self) -> None:
        """Return when all lines have ended, by themselves or because the batch is cancelled or out of time."""
        batch = self.batch
        cut = False
        while True:
            told = self._ended
            counts = await self._store.jobs.batch_counts(batch.id)
            batch.request_counts.completed, batch.request_counts.failed = counts["completed"], counts["failed"]
            left = counts["waiting"] + counts["running"]
            if not left:
                return
            if batch.ending == "completed" and time.time() >= batch.expires_at:
                batch.ending = "expired"
                await self._save()
            if batch.ending != "completed" and not cut:
                cut = True
                await self._detached.cancel_lines(batch.id)
                continue
            # Ends that are in the counts may be told only now, so this wakes too early rather than too late.
            self._awaited = told + left
            self._news.clear()
            if self._ended >= self._awaited or (batch.ending != "completed" and not cut):
                continue
            wait_s = _LOOK_S if cut else min(_LOOK_S, max(batch.expires_at - time.time(), 0.0))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), wait_s)

    # Ending.

    async def _write_files(self) -> None:
        """Write the files that are not there yet; each is there whole or not at all."""
        batch = self.batch
        completed = failed = 0
        async for job in self._store.jobs.of_batch(batch.id):
            if succeeded(job):
                completed += 1
            else:
                failed += 1
        batch.request_counts.completed, batch.request_counts.failed = completed, failed
        if completed:
            await self._write(batch.future_output_file_id, "output", errors=False)
            batch.output_file_id = batch.future_output_file_id
        if failed:
            await self._write(batch.future_error_file_id, "error", errors=True)
            batch.error_file_id = batch.future_error_file_id

    async def _write(self, file_id: str, what: str, *, errors: bool) -> None:
        if await self._store.files.get(file_id) is not None:
            return
        now = _now()
        file = StoredFile(
            id=file_id,
            filename=f"{self.batch.id}_{what}.jsonl",
            purpose="batch_output",
            bytes=0,
            created_at=now,
            member=self.batch.sender.member,
            key_name=self.batch.sender.key,
            expires_at=now + self.batch.output_kept_s,
        )
        await self._store.files.add(file, file_lines(self._store.jobs, self.batch, errors=errors))

    async def _delete_lines(self) -> None:
        ids = [job.id async for job in self._store.jobs.of_batch(self.batch.id)]
        for at in range(0, len(ids), _DELETED_AT_ONCE):
            await asyncio.gather(*(self._store.jobs.delete(job_id) for job_id in ids[at : at + _DELETED_AT_ONCE]))


def _now() -> int:
    return int(time.time())


def _error(fault: LineFault) -> BatchError:
    return BatchError(code=fault.code, line=fault.line, message=fault.message, param=fault.param)
