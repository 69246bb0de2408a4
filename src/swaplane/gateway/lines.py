"""The lines of batches on their way into the queue: which wait behind it, and how many are in it.

Decides when a line goes into the queue: as long as few of its batch are there, and its model is not left alone after
failed starts. How it gets there, and what becomes of it, is up to `detached`, the only user.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from swaplane.core.outcomes import Outcome
from swaplane.gateway.stored_run import StoredRuns
from swaplane.runtime import Runtime
from swaplane.store import Store, StoredJob, StoreError

log = structlog.get_logger("swaplane.detached")

LINES_AT_ONCE = 200  #: of one batch, in the queue at a time
_READ_AGAIN_S = 5.0  # before a line is read again that the store did not give


@dataclass(slots=True, kw_only=True)
class _Lines:
    """One batch's lines that are not over."""

    waiting: deque[str] = field(default_factory=deque)  #: ids of those not in the queue yet, in order of line
    in_queue: int = 0  #: with those that run, and those that are put off
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  #: held to move lines into the queue
    timer: asyncio.TimerHandle | None = None


class BatchLines:
    """The lines of all batches that are not over."""

    def __init__(
        self, runtime: Runtime, store: Store, runs: StoredRuns, put_in: Callable[[Iterable[StoredJob]], None]
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._runs = runs
        self._put_in = put_in
        self._batches: dict[str, _Lines] = {}
        self._refills: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many wait behind the queue."""
        return sum(len(lines.waiting) for lines in self._batches.values())

    async def add(self, batch: str, jobs: Iterable[StoredJob]) -> None:
        """Take in new lines of a batch, in this order."""
        self._batches.setdefault(batch, _Lines()).waiting.extend(job.id for job in jobs)
        await self._refill(batch)

    def restored(self, job: StoredJob) -> bool:
        """Take in a job of an earlier gateway; False for a line that is not to go into the queue yet."""
        if job.batch is None:
            return True
        lines = self._batches.setdefault(job.batch, _Lines())
        if lines.in_queue == LINES_AT_ONCE:
            lines.waiting.append(job.id)
            return False
        lines.in_queue += 1
        return True

    async def over(self, job: StoredJob) -> None:
        """Have another line take the place of one that was in the queue; nothing when the job is none."""
        if job.batch is not None and (lines := self._batches.get(job.batch)) is not None:
            lines.in_queue -= 1
            await self._refill(job.batch)

    def withdraw(self, job: StoredJob) -> bool:
        """Have a line never get into the queue; False when it does not wait behind it."""
        lines = None if job.batch is None else self._batches.get(job.batch)
        if lines is None or job.id not in lines.waiting:
            return False
        lines.waiting.remove(job.id)
        return True

    async def withdraw_all(self, batch: str) -> list[str]:
        """The ids of a batch's lines that waited behind the queue; no more will get into it."""
        lines = self._batches.get(batch)
        if lines is None:
            return []
        waiting = list(lines.waiting)
        lines.waiting.clear()
        async with lines.turn:  # a line may just be on its way into the queue
            return waiting

    def close(self) -> None:
        """Have none moved by the time alone."""
        for lines in self._batches.values():
            if lines.timer is not None:
                lines.timer.cancel()

    async def _refill(self, batch: str) -> None:
        """Move lines of a batch into the queue as far as there is room for them."""
        lines = self._batches.get(batch)
        if lines is None:
            return
        async with lines.turn:
            while lines.waiting and lines.in_queue < LINES_AT_ONCE and not self._runtime.dispatcher.shutting_down:
                job_id = lines.waiting.popleft()
                try:
                    job = await self._store.jobs.get(job_id)
                except StoreError as error:
                    log.error("the lines of a batch cannot go on for now", batch=batch, error=str(error))
                    lines.waiting.appendleft(job_id)
                    self._refill_later(batch, lines, _READ_AGAIN_S)
                    break
                if job is None:
                    continue
                model = self._runtime.settings.resolve(job.model)
                if model is None:
                    await self._runs.drop(job, Outcome.MODEL_REMOVED)
                elif (backoff_s := self._runtime.backoff_s(model.id)) > 0:  # it would be refused, and so would the rest
                    lines.waiting.appendleft(job_id)
                    self._refill_later(batch, lines, backoff_s)
                    break
                else:
                    lines.in_queue += 1
                    self._put_in([job])
        if not lines.waiting and not lines.in_queue:
            self._batches.pop(batch, None)

    def _refill_later(self, batch: str, lines: _Lines, after_s: float) -> None:
        if lines.timer is not None:
            lines.timer.cancel()
        lines.timer = asyncio.get_running_loop().call_later(after_s, self._spawn_refill, batch)

    def _spawn_refill(self, batch: str) -> None:
        task = asyncio.get_running_loop().create_task(self._refill(batch))
        self._refills.add(task)
        task.add_done_callback(self._refills.discard)
