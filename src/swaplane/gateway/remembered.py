"""Which job an id of a model server stands for, and what is kept of jobs whose server may be gone by now.

A server is stopped when another model needs the GPU, and what it made goes with it. So what clients will ask for
is fetched when a job is over, before its place is given on. Decides nothing about jobs. `following` reports to it;
`bystander` and `videos` answer from it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog

from swaplane.completion.rule import Completion
from swaplane.core.outcomes import Outcome
from swaplane.gateway.access import EVERYBODY, Caller
from swaplane.gateway.connection import RawHeaders, UpstreamError
from swaplane.gateway.fetch import fetch_into
from swaplane.gateway.forward import whole_answer_headers
from swaplane.gateway.owned import owner_of
from swaplane.gateway.upstream import UpstreamPool
from swaplane.store.errors import StoreError
from swaplane.store.remembered import KeptAnswer, Remembered, RememberedTable

_log = structlog.get_logger("swaplane.remembered")

FETCH_AGAIN_S = 0.5  # between two tries to fetch a result
UNSTORED_REMEMBERED = 1000  # jobs that the disk did not take

if TYPE_CHECKING:
    from swaplane.gateway.following import Following


class RememberedJobs:
    """The jobs at model servers: those that run there, and what is known of those that are over."""

    def __init__(self, table: RememberedTable, keep_s: Callable[[], float]) -> None:
        self._table = table
        self._keep_s = keep_s
        self._live: dict[tuple[str, str], Following] = {}
        self._unstored: OrderedDict[tuple[str, str], Remembered] = OrderedDict()  # the disk did not take them

    def __repr__(self) -> str:
        return f"<RememberedJobs {len(self._live)} at their servers>"

    def live(self, server_id: str, model: str | None = None) -> Following | None:
        """The running job of this id, at this model's server or at any."""
        if model is not None:
            return self._live.get((model, server_id))
        return next((each for (_, known), each in self._live.items() if known == server_id), None)

    def live_at(self, model: str) -> list[Following]:
        """The jobs that run at this model's server."""
        return [each for (of, _), each in self._live.items() if of == model]

    async def add(self, following: Following) -> None:
        """A server has taken a job. One that the store does not take is followed all the same."""
        job = following.ticket.job
        self._live[job.model, following.server_id] = following
        taken = Remembered(
            model=job.model,
            server_id=following.server_id,
            job_id=job.id,
            member=job.member,
            key_name=job.key,
            completion=following.rule.name,
            created_at=time.time(),
            stage="running",
            last=following.last,
        )
        try:
            await self._table.add(taken)
        except StoreError as error:
            _log.error("a job is remembered in memory only", model=job.model, id=following.server_id, error=str(error))
            self._unstored[job.model, following.server_id] = taken
            if len(self._unstored) > UNSTORED_REMEMBERED:
                self._unstored.popitem(last=False)

    async def over(self, following: Following, outcome: Outcome) -> None:
        """A job has ended: keep how."""
        model, server_id = following.ticket.job.model, following.server_id
        last = following.last
        if outcome not in (Outcome.COMPLETED, Outcome.UPSTREAM_ERROR):
            last = following.rule.epitaph(server_id, last, following.why or _TOLD[outcome]) or last
        try:
            try:
                if outcome is not Outcome.COMPLETED:
                    await self._store_late(model, server_id)
                    await self._keep_end(following.rule, model, server_id, last)
            finally:
                await self._end(model, server_id, outcome, last)
        except StoreError as error:
            _log.error("what is known of a job is not kept", model=model, id=server_id, error=str(error))

    def drop(self, following: Following) -> None:
        """It does not run any more."""
        self._live.pop((following.ticket.job.model, following.server_id), None)

    async def get(self, server_id: str, model: str | None = None, *, caller: Caller = EVERYBODY) -> Remembered | None:
        """What is known of the caller's job of this id; of several the newest."""
        found = await self._table.get(server_id, model, owner=owner_of(caller))
        if found is None:
            ids = ((of, known) for of, known in self._unstored if known == server_id and model in (None, of))
            found = next((job for job in map(self._unstored.__getitem__, ids) if _owns(caller, job)), None)
        if found is None or (found.expires_at is not None and found.expires_at <= time.time()):
            return None
        return self._newest(found)

    async def of_job(self, job_id: str, *, caller: Caller = EVERYBODY) -> Remembered | None:
        """What is known at its server of one of the gateway's jobs, if it is the caller's."""
        found = await self._table.of_job(job_id)
        if found is None:
            found = next((each for each in self._unstored.values() if each.job_id == job_id), None)
        return None if found is None or not _owns(caller, found) else self._newest(found)

    async def page(
        self, *, caller: Caller, completion: str, model: str | None, limit: int, after: str | None, newest_first: bool
    ) -> tuple[list[Remembered], bool]:
        """At most `limit` of the caller's jobs of one kind, those that follow `after`, and whether there are more."""
        found, more = await self._table.list(
            owner=owner_of(caller),
            completion=completion,
            model=model,
            limit=limit,
            after=after,
            newest_first=newest_first,
        )
        return [self._newest(each) for each in found], more

    def _newest(self, found: Remembered) -> Remembered:
        live = self._live.get((found.model, found.server_id))
        return found if live is None else replace(found, last=live.last)

    async def kept(self, model: str, target: str, *, caller: Caller) -> KeptAnswer | None:
        """The answer that is kept for a GET of this path and query, if it is of one of the caller's jobs."""
        return await self._table.kept(model, target, owner=owner_of(caller))

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

    async def fetch(
        self, following: Following, pool: UpstreamPool, targets: Sequence[str], *, patience_s: float
    ) -> str:
        """Fetch what a job that is done has made; what is missing, for people: empty when nothing is.

        A server that is busy or breaks off is asked again for `patience_s`; what it refuses is not missed.
        """
        model, server_id = following.ticket.job.model, following.server_id
        trouble = ""
        try:
            async with asyncio.timeout(patience_s):
                await self._store_late(model, server_id)
                for target in targets:
                    while trouble := await self._fetch(following.rule, model, server_id, pool, target):
                        _log.warning("a result is fetched again", model=model, id=server_id, error=trouble)
                        await asyncio.sleep(FETCH_AGAIN_S)
        except TimeoutError:
            return f"its result could not be fetched in {patience_s:g} s" + (f": {trouble}" if trouble else "")
        except (StoreError, OSError) as error:
            _log.error("a result could not be kept", model=model, id=server_id, error=str(error))
            return f"its result could not be kept: {error}"
        return ""

    async def _fetch(self, rule: Completion, model: str, server_id: str, pool: UpstreamPool, target: str) -> str:
        """One try; what went wrong, if another one makes sense. Raises StoreError and OSError."""
        path = self._table.new_path()
        try:
            answer = await fetch_into(pool, target.encode(), path)
        except UpstreamError as error:
            return str(error)
        if answer.status != HTTPStatus.OK:
            await asyncio.to_thread(path.unlink, missing_ok=True)
            told = f"GET {target} was answered with {answer.status}"
            if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                return told
            _log.warning("a result is not kept", model=model, id=server_id, why=told)
            return ""
        kept = KeptAnswer(
            status=answer.status,
            reason=answer.reason.decode("latin-1"),
            headers=whole_answer_headers(answer.headers),
            path=path,
            bytes=answer.length,
        )
        await self._table.keep(model, server_id, rule.kept_under(target), kept)
        return ""

    async def _store_late(self, model: str, server_id: str) -> None:
        """Store a job that the disk did not take when it began: nothing is kept of one that is not stored."""
        unstored = self._unstored.get((model, server_id))
        if unstored is not None:
            await self._table.add(unstored)
            self._unstored.pop((model, server_id), None)

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
        await self._table.keep(model, server_id, rule.kept_under(rule.polls(server_id)[-1].path), kept)

    async def _end(self, model: str, server_id: str, outcome: Outcome, last: bytes) -> None:
        now = time.time()
        stage = "done" if outcome is Outcome.COMPLETED else "failed"
        known = self._unstored.get((model, server_id)) or await self._table.get(server_id, model)
        if known is not None:
            ended = replace(known, stage=stage, last=last, ended_at=now, expires_at=now + self._keep_s())
            if (model, server_id) in self._unstored:
                self._unstored[model, server_id] = ended
            else:
                await self._table.update(ended)


def _owns(caller: Caller, job: Remembered) -> bool:
    return caller.owns(member=job.member, key=job.key_name)


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
