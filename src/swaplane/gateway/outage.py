"""A store that does not work at the moment, because its disk is full or somebody holds its database.

Decides when it works again, by trying, and what clients are told who cannot wait for that. Used by `detached` and
`stored_run`.
"""

from __future__ import annotations

import asyncio

import structlog

from swaplane.gateway.errors import NotStored
from swaplane.store import Store, StoreError

PROBE_EVERY_S = 2.0  #: between two tries

log = structlog.get_logger("swaplane.detached")


class JobNotStored(NotStored):
    """The job cannot be kept, so it is not accepted."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the job was not accepted, because it could not be stored: {reason}")


class EndNotStored(NotStored):
    """A job is being ended, and the disk does not take its end."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"job `{job_id}` has been told to end, but the disk has not taken its end yet; ask again later"
        )


class Outage:
    """The present outage of a store, if there is one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._over = asyncio.Event()
        self._over.set()
        self._probing: asyncio.Task[None] | None = None

    @property
    def is_on(self) -> bool:
        """Whether the store was seen to fail and not to work since."""
        return not self._over.is_set()

    async def begins(self, error: StoreError) -> bool:
        """Look whether an error is the store's, not of what was asked of it; then the outage has begun."""
        if not self.is_on:
            try:
                await self._store.probe()
            except StoreError:
                if not self.is_on:  # else another job has found out meanwhile
                    self._over.clear()
                    log.error("jobs wait until the disk takes what must be kept of them", error=str(error))
                    self._probing = asyncio.get_running_loop().create_task(self._probe())
        return self.is_on

    async def over(self) -> None:
        """Return when the store works."""
        await self._over.wait()

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(PROBE_EVERY_S)
            try:
                await self._store.probe()
            except StoreError:
                continue
            log.info("the disk takes what must be kept of jobs again")
            self._over.set()
            return

    def close(self) -> None:
        """Try no more."""
        if self._probing is not None:
            self._probing.cancel()
