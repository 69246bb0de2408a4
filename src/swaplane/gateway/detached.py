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
from dataclasses import replace
from itertools import accumulate
from typing import Any

import structlog

from swaplane.config.settings import ModelSettings
from swaplane.core.events import Turn
from swaplane.core.outcomes import Outcome
from swaplane.gateway.answers import ShuttingDown
from swaplane.gateway.keyed import KeyReused, fingerprint
from swaplane.gateway.lines import LINES_AT_ONCE, BatchLines
from swaplane.gateway.outage import EndNotStored, JobNotStored, Outage
from swaplane.gateway.passage import Errand, Passage
from swaplane.gateway.room import NotTaken, check_room
from swaplane.gateway.stored_errand import new_job, with_priority_of
from swaplane.gateway.stored_priority import StoredPriorities
from swaplane.gateway.stored_run import StoredRuns
from swaplane.runtime import Runtime
from swaplane.store import Store, StoredJob, StoreError
from swaplane.ticket import Ticket, Wish

log = structlog.get_logger("swaplane.detached")

ATTEMPTS = 3  #: how often a job may be running when the gateway dies
EXPIRE_EVERY_S = 60.0
_CLOSE_S = 10.0  # how long the last ends may take to be written at shutdown
_END_S = 10.0  # how long a cancel waits for the disk to take the end


class DetachedJobs:
    """All detached jobs of one gateway."""

    def __init__(self, runtime: Runtime, store: Store, passage: Passage) -> None:
        self._runtime = runtime
        self._store = store
        self._passage = passage
        self._outage = Outage(store)
        self._runs = StoredRuns(runtime, store, passage, self._outage)
        self._priorities = StoredPriorities(runtime, store, self._outage)
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by job: those in the queue or running
        self._lines = BatchLines(runtime, store, self._runs, self._queue)
        self._deferred: dict[str, StoredJob] = {}  # those whose turn came while the store did not work
        self._ending: set[str] = set()  # those told to end whose end is not stored yet
        self._resuming: asyncio.Task[None] | None = None
        self._expiring: asyncio.Task[None] | None = None
        # One offset for all: with another for each, jobs of one moment would change places.
        self._ahead_s = time.monotonic() - time.time()

    def __repr__(self) -> str:
        return f"<DetachedJobs {len(self._tasks)} in the queue or running, {len(self._lines)} lines behind them>"

    @property
    def on_ended(self) -> list[Callable[[StoredJob], None]]:
        """Called after each end is durable; put in before `restore`, which may end jobs."""
        return self._runs.on_ended

    # Taking jobs in.

    async def accept(
        self, errand: Errand, *, kind: str = "async", key: str | None = None, webhook: str | None = None
    ) -> StoredJob:
        """Store a job and put it into the queue; it is durable when this returns. The errand's body is not kept.

        A key that its member sent before stands for the earlier job, which is returned, also where there is no
        room for another. Raises KeyReused when that was another request, NotTaken, ShuttingDown, and JobNotStored.
        """
        if self._runtime.dispatcher.shutting_down:
            raise ShuttingDown
        content_type = next((v for k, v in errand.headers if k.lower() == b"content-type"), b"")
        mark = "" if key is None else await fingerprint(errand.method, errand.target, content_type, errand.body)
        job = replace(
            new_job(errand, self._runtime.next_id(), self._runtime.dispatcher.rules),
            kind=kind,
            key=key,
            fingerprint=mark,
            webhook=webhook,
        )
        try:
            if not await self._is_known(job):
                check_room(self._runtime, errand)
            stored = await self._store.jobs.add(job, errand.body.pieces(), errand.body.length)
            if _is_past(stored):  # its key is free again
                await self._store.jobs.delete(stored.id)
                stored = await self._store.jobs.add(job, errand.body.pieces(), errand.body.length)
        except StoreError as error:
            raise JobNotStored(str(error)) from error
        if stored.id == job.id and key is None:
            await self._still_room(errand, stored)
        # Nothing is awaited from here on: the queue gets jobs in the order in which the store did.
        if stored.id == job.id:
            self._spawn(stored, self._run(stored, errand.model, self._passage.submit(errand, job_id=stored.id)))
        elif key is not None and stored.fingerprint != mark:
            raise KeyReused(key)
        return stored

    async def _still_room(self, errand: Errand, stored: StoredJob) -> None:
        """Forget a job again whose room others have got while it was being stored."""
        try:
            check_room(self._runtime, errand)
        except NotTaken:
            await self._store.jobs.delete(stored.id)
            raise

    async def _is_known(self, job: StoredJob) -> bool:
        """Whether a job was taken in before, with the same Idempotency-Key."""
        known = None if job.key is None else await self._store.jobs.by_key(job.key_name, job.member, job.key)
        return known is not None and not _is_past(known)

    async def accept_lines(self, batch: str, lines: Sequence[tuple[StoredJob, bytes]]) -> None:
        """Store lines of a batch in one transaction; they follow those that it has already, in this order."""
        await self._lines.add(batch, await self._store.jobs.add_many(lines))

    # Looking at jobs and ending them.

    async def get(self, job_id: str) -> StoredJob | None:
        """A job, whatever its state; None when it is unknown or its answer has expired."""
        job = await self._store.jobs.get(job_id)
        if job is not None and _is_past(job):  # it will be deleted soon
            self._runtime.recent.pop(job_id, None)
            return None
        return job

    async def priority_kept(self, job_id: str) -> None:
        """Return when the priority that a job was given is durable. Raises PriorityNotStored."""
        await self._priorities.kept(job_id)

    async def cancel(self, job_id: str) -> bool:
        """End a job; False when there is nothing to end. Its end is durable when this returns.

        Raises EndNotStored when the disk does not take the end in time; it is then taken later.
        """
        found = True
        task = self._end_deferred(job_id)
        if task is None and (task := self._tasks.get(job_id)) is not None:
            found = self._runtime.cancel(job_id) or job_id in self._ending
        if task is None:
            job = await self._store.jobs.get(job_id)
            if job is None or not self._lines.withdraw(job):
                return False
            task = self._spawn(job, self._drop(job, Outcome.CANCELLED_WAITING))
        done, _ = await asyncio.wait([task], timeout=_END_S)
        if not done:
            self._ending.add(job_id)
            raise EndNotStored(job_id)
        return found

    def _end_deferred(self, job_id: str) -> asyncio.Task[None] | None:
        job = self._deferred.pop(job_id, None)
        return None if job is None else self._spawn(job, self._drop_queued(job, Outcome.CANCELLED_WAITING))

    async def cancel_lines(self, batch: str) -> None:
        """End all lines of a batch that are not over; returns when their ends are durable, however long that takes."""
        waiting = await self._lines.withdraw_all(batch)
        ending = []
        async for job in self._store.jobs.of_batch(batch):
            task = self._end_deferred(job.id) or self._tasks.get(job.id)
            if task is not None:
                self._runtime.cancel(job.id)
                ending.append(task)
        if ending:
            await asyncio.wait(ending)
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
        await self._forget_past()
        self._expiring = asyncio.get_running_loop().create_task(self._expire())
        self._runtime.avoid_ids(await self._store.jobs.epochs())
        turns = [
            Turn(lane=lane, member=member, band=band, ended_at=min(ended_at + self._ahead_s, time.monotonic()))
            for lane, member, band, ended_at in await self._store.jobs.turns()
        ]
        again: list[StoredJob] = []
        for job in await self._store.jobs.open():
            if job.state == "running" and self._is_over(job):
                self._spawn(job, self._drop(job, Outcome.INTERRUPTED))
            elif self._runtime.settings.resolve(job.model) is None:
                self._spawn(job, self._drop(job, Outcome.MODEL_REMOVED))
            else:
                again.append(job)
        try:
            ran = [job.id for job in again if job.state == "running"]
            await asyncio.gather(*(self._store.jobs.waits_again(job_id) for job_id in ran))
        except StoreError as error:  # they wait all the same
            log.error("that jobs of an earlier gateway wait again is not stored", error=str(error))
        self._queue([job for job in again if self._lines.restored(job)], turns)
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
        self._lines.close()
        await self._priorities.close()
        self._outage.close()
        if self._resuming is not None:
            self._resuming.cancel()
        self._runs.closing = True
        if self._tasks:
            _, late = await asyncio.wait(self._tasks.values(), timeout=_CLOSE_S)
            for task in late:
                task.cancel()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            await self._forget_past()

    async def _forget_past(self) -> None:
        try:
            await self._store.expire(time.time())
        except StoreError as error:
            log.error("what is past its time could not be deleted", error=str(error))

    # Into the queue.

    def _queue(self, jobs: Iterable[StoredJob], turns: Iterable[Turn] = ()) -> None:
        """Put stored jobs into the queue all at once, each as if it had waited there since it was submitted."""
        resolved = ((job, self._runtime.settings.resolve(job.model)) for job in jobs)
        found = [(job, model) for job, model in resolved if model is not None]
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
                key=job.key_name,
                body_bytes=job.body_bytes,
                max_wait_s=job.max_wait_s,
                ran_before=job.attempts > 0,
            )
            for (job, model), arrival in zip(found, arrivals, strict=True)
        ]
        for (job, model), ticket in zip(found, self._runtime.restore(wishes, turns), strict=True):
            self._spawn(job, self._run(job, model, ticket))

    async def _resume(self) -> None:
        """Put the deferred jobs back into the queue, all at once, when the store works again."""
        await self._outage.over()
        self._resuming = None
        jobs = sorted(self._deferred.values(), key=lambda job: job.seq)
        self._deferred.clear()
        self._queue(jobs)
        for job in jobs:
            if self._runtime.settings.resolve(job.model) is None:
                self._spawn(job, self._drop_queued(job, Outcome.MODEL_REMOVED))

    # Each job's task.

    def _spawn(self, job: StoredJob, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=f"detached job {job.id}")
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._over(job.id, task))
        return task

    def _over(self, job_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(job_id) is task:  # else it was deferred, and has another by now
            del self._tasks[job_id]
            self._priorities.drop(job_id)
            self._ending.discard(job_id)

    async def _run(self, job: StoredJob, model: ModelSettings, ticket: Ticket) -> None:
        self._priorities.watch(ticket, job.priority)
        if await self._runs.run(job, model, ticket) is not Outcome.DEFERRED:
            await self._lines.over(job)
            return
        self._runtime.recent.pop(job.id, None)  # it is not over
        self._deferred[job.id] = with_priority_of(ticket, job)
        if self._resuming is None and not self._runs.closing:
            self._resuming = asyncio.get_running_loop().create_task(self._resume())

    async def _drop(self, job: StoredJob, outcome: Outcome) -> None:
        """End a job that is not in the queue; the gateway's end may come before."""
        try:
            await self._runs.drop(job, outcome)
        except StoreError as error:
            log.error("a detached job is left as it is until the next start", job=job.id, error=str(error))

    async def _drop_queued(self, job: StoredJob, outcome: Outcome) -> None:
        """End a job that was put off; as a line it counts as one in the queue."""
        await self._drop(job, outcome)
        await self._lines.over(job)


def _is_past(job: StoredJob) -> bool:
    """Whether an ended job's time is over."""
    return job.expires_at is not None and job.expires_at <= time.time()
