"""Jobs that outlive the connection they came on: stored before they are accepted, run in their turn, kept.

Decides what becomes of such a job when the gateway ends, and what is run again:

- What waits at the gateway's end waits again with its old id, its old submit time and its member's turn clock,
  whether the end was orderly or not.
- What ran is run again in its old place, so it runs at least once; `jobs.interrupted: report`, or an
  Idempotency-Key, which says that once is the most, ends it as `interrupted`. So does its third crash: a job
  that takes the gateway down with it must not do so for ever.
- A job whose model is no longer configured ends as `model_removed`.

The order of jobs is the runtime's business, the way of each to its model is `passage`'s, and the answer is kept by
a `recording`. Nothing is run before the store has it, and no end is told before the store has that. An answer that
broke off is not kept: the job's answer is then an error that says so. The gateway makes one `DetachedJobs`; the
app, batches and background responses put jobs in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import accumulate
from typing import Any

import structlog

from swaplane.config.settings import ModelSettings
from swaplane.core.events import Turn
from swaplane.core.outcomes import Outcome
from swaplane.gateway.answers import ShuttingDown
from swaplane.gateway.errors import RequestRefused
from swaplane.gateway.keyed import KeyReused, fingerprint
from swaplane.gateway.lines import Lines
from swaplane.gateway.passage import Errand, Passage
from swaplane.gateway.stored_run import StoredRuns
from swaplane.runtime import Runtime
from swaplane.store import Store, StoredJob, StoreError
from swaplane.ticket import Ticket, Wish

log = structlog.get_logger("swaplane.detached")

LINES_AT_ONCE = 200  #: of one batch, in the queue at a time
ATTEMPTS = 3  #: how often a job may be running when the gateway dies
EXPIRE_EVERY_S = 60.0
_CLOSE_S = 10.0  # how long the last ends may take to be written at shutdown


class JobNotStored(RequestRefused):
    """The job cannot be kept, so it is not accepted."""

    status = 507
    code = "insufficient_storage"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the job was not accepted, because it could not be stored: {reason}")


class DetachedJobs:
    """All detached jobs of one gateway."""

    def __init__(self, runtime: Runtime, store: Store, passage: Passage) -> None:
        self._runtime = runtime
        self._store = store
        self._passage = passage
        self._runs = StoredRuns(runtime, store, passage)
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by job: those in the queue or running
        self._lines: dict[str, Lines] = {}  # by batch
        self._refills: set[asyncio.Task[None]] = set()
        self._expiring: asyncio.Task[None] | None = None
        # One offset for all: with another for each, jobs of one moment would change places.
        self._ahead_s = time.monotonic() - time.time()

    def __repr__(self) -> str:
        lines = sum(len(lines.waiting) for lines in self._lines.values())
        return f"<DetachedJobs {len(self._tasks)} in the queue or running, {lines} lines behind them>"

    @property
    def on_ended(self) -> list[Callable[[StoredJob], None]]:
        """Called after each end is durable; put in before `restore`, which may end jobs."""
        return self._runs.on_ended

    # Taking jobs in.

    async def accept(
        self, errand: Errand, *, kind: str = "async", key: str | None = None, webhook: str | None = None
    ) -> StoredJob:
        """Store a job and put it into the queue; it is durable when this returns. The errand's body is not kept.

        A key that its member sent before stands for the earlier job, which is returned. Raises KeyReused when
        that was another request, ShuttingDown, and JobNotStored.
        """
        if self._runtime.dispatcher.shutting_down:
            raise ShuttingDown
        own, content_type = errand.own, next((v for k, v in errand.headers if k.lower() == b"content-type"), b"")
        mark = "" if key is None else await fingerprint(errand.method, errand.target, content_type, errand.body)
        job = StoredJob(
            id=self._runtime.next_id(),
            kind=kind,
            model=errand.model.id,
            member=own.member,
            priority=own.priority.applied,
            band=self._runtime.dispatcher.rules.band_of(own.priority.applied).name,
            label=own.label,
            method=errand.method.decode("latin-1"),
            target=errand.target.decode("latin-1"),
            headers=errand.headers,
            client=errand.client_host,
            submitted_at=time.time(),
            key=key,
            fingerprint=mark,
            webhook=webhook,
        )
        try:
            stored = await self._store.jobs.add(job, errand.body.pieces(), errand.body.length)
        except StoreError as error:
            raise JobNotStored(str(error)) from error
        # Nothing is awaited from here on: the queue gets jobs in the order in which the store did.
        if stored.id == job.id:
            self._spawn(stored, self._run(stored, errand.model, self._passage.submit(errand, job_id=stored.id)))
        elif key is not None and stored.fingerprint != mark:
            raise KeyReused(key)
        return stored

    async def accept_lines(self, batch: str, lines: Sequence[tuple[StoredJob, bytes]]) -> None:
        """Store lines of a batch in one transaction; they follow those that it has already, in this order."""
        stored = await self._store.jobs.add_many(lines)
        self._lines.setdefault(batch, Lines()).waiting.extend(job.id for job in stored)
        await self._refill(batch)

    # Looking at jobs and ending them.

    async def get(self, job_id: str) -> StoredJob | None:
        """A job, whatever its state; None when it is unknown or its answer has expired."""
        return await self._store.jobs.get(job_id)

    async def cancel(self, job_id: str) -> bool:
        """End a job; False when there is nothing to end. Its end is durable when this returns."""
        task = self._tasks.get(job_id)
        if task is not None:
            found = self._runtime.cancel(job_id)
            await asyncio.wait([task])
            return found
        job = await self._store.jobs.get(job_id)
        lines = self._lines.get(job.batch) if job is not None and job.batch is not None else None
        if job is None or lines is None or job_id not in lines.waiting:
            return False
        lines.waiting.remove(job_id)
        await self._runs.drop(job, Outcome.CANCELLED_WAITING)
        return True

    async def cancel_lines(self, batch: str) -> None:
        """End all lines of a batch that are not over, as `cancel` does."""
        lines = self._lines.get(batch)
        if lines is None:
            return
        waiting = list(lines.waiting)
        lines.waiting.clear()
        async with lines.turn:  # a line may just be on its way into the queue
            pass
        in_queue = [job async for job in self._store.jobs.of_batch(batch) if job.id in self._tasks]
        await asyncio.gather(*(self.cancel(job.id) for job in in_queue))
        for at in range(0, len(waiting), LINES_AT_ONCE):  # side by side, so that they are committed together
            dropped = waiting[at : at + LINES_AT_ONCE]
            await asyncio.gather(*(self._drop_line(job_id) for job_id in dropped))

    async def _drop_line(self, job_id: str) -> None:
        if job := await self._store.jobs.get(job_id):
            await self._runs.drop(job, Outcome.CANCELLED_WAITING)

    async def delete(self, job_id: str) -> bool:
        """Forget an ended job and its answer; False when there is none."""
        job = await self._store.jobs.get(job_id)
        if job is None or job.state != "ended":
            return False
        await self._store.jobs.delete(job_id)
        self._runtime.recent.pop(job_id, None)
        return True

    # From one gateway to the next.

    async def restore(self) -> None:
        """Go on with what an earlier gateway left; once, before requests are taken. Raises StoreError."""
        await self._store.expire(time.time())
        self._runtime.avoid_ids(await self._store.jobs.epochs())
        turns = [
            Turn(lane=lane, member=member, band=band, ended_at=min(ended_at + self._ahead_s, time.monotonic()))
            for lane, member, band, ended_at in await self._store.jobs.turns()
        ]
        again: list[StoredJob] = []
        for job in await self._store.jobs.open():
            if job.state == "running" and self._is_over(job):
                self._spawn(job, self._runs.drop(job, Outcome.INTERRUPTED))
            elif job.model not in self._runtime.settings.models:
                self._spawn(job, self._runs.drop(job, Outcome.MODEL_REMOVED))
            else:
                if job.state == "running":
                    await self._store.jobs.waits_again(job.id)
                again.append(job)
        first = []
        for job in again:
            if job.batch is not None:
                lines = self._lines.setdefault(job.batch, Lines())
                if lines.in_queue == LINES_AT_ONCE:
                    lines.waiting.append(job.id)
                    continue
                lines.in_queue += 1
            first.append(job)
        self._queue(first, turns)
        self._expiring = asyncio.get_running_loop().create_task(self._expire())
        if again:
            log.info("jobs of an earlier gateway wait again", jobs=len(again))

    def _is_over(self, job: StoredJob) -> bool:
        """Whether a job that ran when its gateway ended is not run once more."""
        report = self._runtime.settings.jobs.interrupted == "report"
        return report or job.key is not None or job.attempts >= ATTEMPTS

    async def close(self) -> None:
        """Return when no end is being written; once the runtime has ended its jobs."""
        if self._expiring is not None:
            self._expiring.cancel()
        for lines in self._lines.values():
            lines.stop()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks.values(), timeout=_CLOSE_S)
            for task in late:
                task.cancel()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            try:
                await self._store.expire(time.time())
            except StoreError as error:
                log.error("what is past its time could not be deleted", error=str(error))

    # Into the queue.

    def _queue(self, jobs: Iterable[StoredJob], turns: Iterable[Turn] = ()) -> None:
        """Put stored jobs into the queue all at once, each as if it had waited there since it was submitted."""
        found = [(job, self._runtime.settings.models[job.model]) for job in jobs]
        now = time.monotonic()
        # They arrived in the order of their acceptance, also where the wall clock was set back in between.
        arrivals = accumulate((job.submitted_at for job, _ in found), max)
        wishes = [
            Wish(
                job_id=job.id,
                model=model,
                member=job.member,
                priority=job.priority,
                label=job.label,
                submitted_at=min(arrival + self._ahead_s, now),
            )
            for (job, model), arrival in zip(found, arrivals, strict=True)
        ]
        for (job, model), ticket in zip(found, self._runtime.restore(wishes, turns), strict=True):
            self._spawn(job, self._run(job, model, ticket))

    async def _refill(self, batch: str) -> None:
        """Move lines of a batch into the queue as far as there is room for them."""
        lines = self._lines.get(batch)
        if lines is None:
            return
        async with lines.turn:
            while lines.waiting and lines.in_queue < LINES_AT_ONCE and not self._runtime.dispatcher.shutting_down:
                job = await self._store.jobs.get(lines.waiting.popleft())
                if job is None:
                    continue
                if job.model not in self._runtime.settings.models:
                    await self._runs.drop(job, Outcome.MODEL_REMOVED)
                    continue
                if (backoff_s := self._runtime.backoff_s(job.model)) > 0:  # it would be refused, and so would the rest
                    lines.waiting.appendleft(job.id)
                    lines.retry(backoff_s, lambda: self._spawn_refill(batch))
                    break
                lines.in_queue += 1
                self._queue([job])
        if not lines.waiting and not lines.in_queue:
            self._lines.pop(batch, None)

    def _spawn_refill(self, batch: str) -> None:
        task = asyncio.get_running_loop().create_task(self._refill(batch))
        self._refills.add(task)
        task.add_done_callback(self._refills.discard)

    def _spawn(self, job: StoredJob, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"detached job {job.id}")
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))

    async def _run(self, job: StoredJob, model: ModelSettings, ticket: Ticket) -> None:
        await self._runs.run(job, model, ticket)
        if job.batch is not None and (lines := self._lines.get(job.batch)) is not None:
            lines.in_queue -= 1
            await self._refill(job.batch)
