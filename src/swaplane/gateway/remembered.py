"""Which job an id of a model server stands for, and what is kept of jobs whose server may be gone by now.

A server is stopped when another model needs the GPU, and what it made goes with it. So what clients will ask for
is fetched when a job is over, before its place is given on. Decides nothing about jobs. `following` reports to it;
`bystander` and `videos` answer from it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog

from swaplane.completion.rule import Completion
from swaplane.core.outcomes import Outcome
from swaplane.gateway.connection import RawHeaders, UpstreamError
from swaplane.gateway.fetch import fetch_into
from swaplane.gateway.forward import downstream_headers
from swaplane.gateway.upstream import UpstreamPool
from swaplane.store.errors import StoreError
from swaplane.store.remembered import KeptAnswer, Remembered, RememberedTable

_log = structlog.get_logger("swaplane.remembered")

FETCH_TIMEOUT_S = 600.0  # for one answer that is kept; the place is held meanwhile

if TYPE_CHECKING:
    from swaplane.gateway.following import Following


class RememberedJobs:
    """The jobs at model servers: those that run there, and what is known of those that are over."""

    def __init__(self, table: RememberedTable, keep_s: Callable[[], float]) -> None:
        self._table = table
        self._keep_s = keep_s
        self._live: dict[tuple[str, str], Following] = {}

    def __repr__(self) -> str:
        return f"<RememberedJobs {len(self._live)} at their servers>"

    def live(self, server_id: str, model: str | None = None) -> Following | None:
        """The running job of this id, at this model's server or at any."""
        if model is not None:
            return self._live.get((model, server_id))
        return next((each for (_, known), each in self._live.items() if known == server_id), None)

    async def add(self, following: Following) -> None:
        """A server has taken a job. One that the store does not take is followed all the same."""
        job = following.ticket.job
        self._live[job.model, following.server_id] = following
        taken = Remembered(
            model=job.model,
            server_id=following.server_id,
            job_id=job.id,
            completion=following.rule.name,
            created_at=time.time(),
            stage="running",
            last=following.last,
        )
        try:
            await self._table.add(taken)
        except StoreError as error:
            _log.error("a job is not remembered", model=job.model, id=following.server_id, error=str(error))

    async def over(
        self,
        following: Following,
        outcome: Outcome,
        pool: UpstreamPool,
        targets: Sequence[str],
    ) -> None:
        """A job has ended: fetch `targets` from its server, and keep how it ended."""
        model, server_id = following.ticket.job.model, following.server_id
        try:
            await self._keep(following, outcome, pool, targets)
        except StoreError as error:
            _log.error("what is known of a job is not kept", model=model, id=server_id, error=str(error))

    async def _keep(self, following: Following, outcome: Outcome, pool: UpstreamPool, targets: Sequence[str]) -> None:
        model, server_id = following.ticket.job.model, following.server_id
        for target in targets:
            await self._fetch(model, server_id, pool, target)
        last = following.last
        if outcome is not Outcome.COMPLETED:
            if outcome is not Outcome.UPSTREAM_ERROR:
                last = following.rule.epitaph(server_id, last, _TOLD[outcome]) or last
            await self._keep_end(following.rule, model, server_id, last)
        await self._end(model, server_id, outcome, last)

    def drop(self, following: Following) -> None:
        """It does not run any more."""
        self._live.pop((following.ticket.job.model, following.server_id), None)

    async def get(self, server_id: str, model: str | None = None) -> Remembered | None:
        """What is known of the job of this id; of several the newest."""
        found = await self._table.get(server_id, model)
        return None if found is None else self._newest(found)

    async def of_job(self, job_id: str) -> Remembered | None:
        """What is known at its server of one of the gateway's jobs."""
        found = await self._table.of_job(job_id)
        return None if found is None else self._newest(found)

    async def page(
        self, *, completion: str, model: str | None, limit: int, after: str | None, newest_first: bool
    ) -> tuple[list[Remembered], bool]:
        """At most `limit` jobs of one kind, those that follow the id `after`, and whether there are more."""
        found, more = await self._table.list(
            completion=completion, model=model, limit=limit, after=after, newest_first=newest_first
        )
        return [self._newest(each) for each in found], more

    def _newest(self, found: Remembered) -> Remembered:
        live = self._live.get((found.model, found.server_id))
        return found if live is None else replace(found, last=live.last)

    async def kept(self, model: str, target: str) -> KeptAnswer | None:
        """The answer that is kept for a GET of this path and query."""
        return await self._table.kept(model, target)

    async def forget(self, model: str, server_id: str) -> None:
        """Delete all that is kept of a job that is over."""
        await self._table.forget(model, server_id)

    async def restore(self, rule_of: Callable[[str], Completion | None]) -> None:
        """Jobs that ran when an earlier gateway ended are over: their servers ended with it."""
        for found in await self._table.running():
            rule, last = rule_of(found.model), found.last
            if rule is not None:
                last = rule.epitaph(found.server_id, last, _TOLD[Outcome.INTERRUPTED]) or last
                await self._keep_end(rule, found.model, found.server_id, last)
            await self._end(found.model, found.server_id, Outcome.INTERRUPTED, last)

    # Keeping.

    async def _fetch(self, model: str, server_id: str, pool: UpstreamPool, target: str) -> None:
        path = self._table.new_path()
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                answer = await fetch_into(pool, target.encode(), path)
        except (UpstreamError, TimeoutError, OSError) as error:
            _log.warning("an answer could not be kept", model=model, id=server_id, target=target, error=str(error))
            return
        if answer.status != HTTPStatus.OK:
            path.unlink(missing_ok=True)
            _log.warning(
                "an answer is not worth keeping", model=model, id=server_id, target=target, status=answer.status
            )
            return
        passed, _ = downstream_headers(answer.headers)
        headers = [header for header in passed if header[0].lower() != b"content-length"]
        kept = KeptAnswer(
            status=answer.status,
            reason=answer.reason.decode("latin-1"),
            headers=headers,
            path=path,
            bytes=answer.length,
        )
        await self._table.keep(model, server_id, target, kept)

    async def _keep_end(self, rule: Completion, model: str, server_id: str, told: bytes) -> None:
        """Keep how a job ended as the answer to a look at its state."""
        path = self._table.new_path()
        headers: RawHeaders = [(b"Content-Type", b"application/json")]
        try:
            await asyncio.to_thread(path.write_bytes, told)
        except OSError as error:
            _log.warning("an answer could not be kept", model=model, id=server_id, error=str(error))
            return
        kept = KeptAnswer(status=HTTPStatus.OK, reason="OK", headers=headers, path=path, bytes=len(told))
        await self._table.keep(model, server_id, rule.polls(server_id)[-1].path, kept)

    async def _end(self, model: str, server_id: str, outcome: Outcome, last: bytes) -> None:
        now = time.time()
        found = await self._table.get(server_id, model)
        if found is not None:
            stage = "done" if outcome is Outcome.COMPLETED else "failed"
            ended = replace(found, stage=stage, last=last, ended_at=now, expires_at=now + self._keep_s())
            await self._table.update(ended)


_TOLD = {
    Outcome.UPSTREAM_BROKEN: "the model's server ended while it ran",
    Outcome.UPSTREAM_LOST: "the model's server does not know it any more, or gave no news of it for too long",
    Outcome.OVERDUE: "it was not over by the model's deadline, and the server was stopped",
    Outcome.CANCELLED_RUNNING: "cancelled by request while it ran",
    Outcome.LEFT_RUNNING: "the client left before it was told the id",
    Outcome.UNLOADED_RUNNING: "the model was unloaded while it ran",
    Outcome.STOPPED_RUNNING: "the gateway shut down while it ran",
    Outcome.INTERRUPTED: "the gateway ended while it ran",
}
