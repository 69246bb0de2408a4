"""One gateway's parts, put together in the order in which they need one another.

Decides nothing. `server` makes an `Assembly`, restores what an earlier gateway left, and closes it at the end.
"""

from __future__ import annotations

import asyncio

import structlog

import swaplane
from swaplane.completion.rule import Completion
from swaplane.gateway.api import create_api
from swaplane.gateway.app import Gateway
from swaplane.gateway.background import Background
from swaplane.gateway.batches import Batches
from swaplane.gateway.detached import DetachedJobs
from swaplane.gateway.job_events import JobEvents
from swaplane.gateway.job_priority import JobPriority
from swaplane.gateway.jobs_api import JobsApi
from swaplane.gateway.keyed import KeyedRequests
from swaplane.gateway.members_api import MembersApi
from swaplane.gateway.openai_files import OpenAIFiles
from swaplane.gateway.passage import Passage, Pools
from swaplane.gateway.remembered import RememberedJobs
from swaplane.gateway.videos import Videos
from swaplane.gateway.webhook import Webhooks
from swaplane.gateway.why import Why
from swaplane.runtime import Runtime
from swaplane.store import Store, StoreError

log = structlog.get_logger("swaplane.gateway")


class Assembly:
    """The parts of one gateway."""

    def __init__(self, runtime: Runtime, store: Store) -> None:
        self._runtime = runtime
        pools = Pools()
        self._remembered = RememberedJobs(store.remembered, lambda: runtime.settings.jobs.keep_s)
        passage = Passage(runtime, self._remembered, pools)
        self._keyed = KeyedRequests(lambda: runtime.settings.jobs.replay_s)
        self._detached = DetachedJobs(runtime, store, passage)
        self._webhooks = Webhooks(runtime, store)
        self._detached.on_ended.append(self._webhooks.job_ended)
        background = Background(self._detached, store)
        files = OpenAIFiles(store.files)
        self._batches = Batches(runtime, store, self._detached, files)
        routes = (
            *JobsApi(runtime, store, self._detached).routes(),
            *JobPriority(runtime, self._detached).routes(),
            *files.routes(),
            *self._batches.routes(),
            *background.routes(),
            *Why(runtime, self._detached).routes(),
            *JobEvents(runtime).routes(),
            *MembersApi(runtime).routes(),
        )
        self.gateway = Gateway(
            runtime,
            create_api(runtime, routes, version=swaplane.__version__),
            passage=passage,
            pools=pools,
            remembered=self._remembered,
            known_videos=Videos(runtime, self._remembered, store.jobs),
            keyed=self._keyed,
            detached=self._detached,
            in_background=background,
        )

    async def restore(self) -> None:
        """Go on with what an earlier gateway left; before requests are taken.

        On a disk that is full, or holds damaged pages, the models can still be used: what cannot be gone on with now
        is left for the next start.
        """
        for restore in (self._detached.restore, self._restore_remembered, self._batches.restore):
            try:
                await restore()
            except StoreError as error:
                log.error("jobs of an earlier gateway are left for the next start", error=str(error))
        self._webhooks.start()

    async def _restore_remembered(self) -> None:
        await self._remembered.restore(self._completion_of)

    def _completion_of(self, model: str) -> Completion | None:
        settings = self._runtime.settings.models.get(model)
        return None if settings is None else settings.completion

    async def close(self) -> None:
        """Return when nothing is being written any more; once the runtime has ended its jobs."""
        await asyncio.gather(self._keyed.close(), self._detached.close(), self._batches.close())
        await self._webhooks.close()
