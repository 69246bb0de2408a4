"""Keeps the priority of stored jobs that somebody changes while they wait, so that the next gateway has it too.

Decides nothing about priorities. The runtime tells of every change of a job; those whose priority is what the store
has cost one look into a dict. Used by `detached`.
"""

from __future__ import annotations

import asyncio

import structlog

from swaplane.core.outcomes import Outcome
from swaplane.gateway.errors import NotStored
from swaplane.gateway.outage import Outage
from swaplane.runtime import Runtime
from swaplane.store import Store, StoreError
from swaplane.ticket import Ticket

log = structlog.get_logger("swaplane.detached")

_KEPT_S = 10.0  # how long whoever changed a priority waits for the disk


class PriorityNotStored(NotStored):
    """A job has its new priority, and the disk does not take that."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"job `{job_id}` has its new priority, which the disk has not taken yet: a restart may bring back the old"
        )


class StoredPriorities:
    """The priorities of the stored jobs that are in the queue."""

    def __init__(self, runtime: Runtime, store: Store, outage: Outage) -> None:
        self._store = store
        self._outage = outage
        self._kept: dict[str, int] = {}  # by job: what is in the store, or on its way there
        self._writing: dict[asyncio.Task[None], str] = {}  # with the job of each
        runtime.watchers.append(self._changed)

    def watch(self, ticket: Ticket, stored: int) -> None:
        """Keep the changes of a job whose priority in the store is this; also one that was made before this call."""
        self._kept[ticket.job.id] = stored
        self._changed(ticket)

    def drop(self, job_id: str) -> None:
        """The job is not in the queue any more; what is being written is."""
        self._kept.pop(job_id, None)

    async def kept(self, job_id: str) -> None:
        """Return when a job's priority is durable. Raises PriorityNotStored when the disk does not take it in time."""
        tasks = [task for task, its_id in self._writing.items() if its_id == job_id]
        if tasks and (await asyncio.wait(tasks, timeout=_KEPT_S))[1]:
            raise PriorityNotStored(job_id)

    async def close(self) -> None:
        """Return when nothing is being written; changes that the store does not take now are lost."""
        for task in self._writing if self._outage.is_on else ():
            task.cancel()
        if self._writing:
            await asyncio.wait(self._writing)

    def _changed(self, ticket: Ticket, _outcome: Outcome | None = None) -> None:
        job = ticket.job
        if self._kept.get(job.id, job.priority) == job.priority:
            return
        self._kept[job.id] = job.priority
        task = asyncio.get_running_loop().create_task(self._write(ticket))
        self._writing[task] = job.id
        task.add_done_callback(self._writing.pop)

    async def _write(self, ticket: Ticket) -> None:
        while True:
            try:  # with what it is now, which may have changed again
                await self._store.jobs.priority(
                    ticket.job.id, ticket.job.priority, band=ticket.band, reason=ticket.priority_reason
                )
                return
            except StoreError as error:
                if not await self._outage.begins(error):
                    log.error("the new priority of a job is not stored", job=ticket.job.id, error=str(error))
                    return
            await self._outage.over()
