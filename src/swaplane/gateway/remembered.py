"""Which job an id of a model server stands for, and what is kept of jobs whose server may be gone by now.

A server is stopped when another model needs the GPU, and what it made goes with it. So what clients will ask for
is fetched when a job is over, before its place is given on. Decides nothing about jobs. `following` reports to it;
`bystander` and `videos` answer from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from swaplane.completion.rule import Completion
from swaplane.core.events import Job
from swaplane.core.outcomes import Outcome
from swaplane.gateway.access import EVERYBODY, Caller
from swaplane.gateway.connection import RawHeaders, UpstreamError
from swaplane.gateway.fetch import fetch_into
from swaplane.gateway.forward import whole_answer_headers
from swaplane.gateway.owned import owner_of
from swaplane.gateway.upstream import UpstreamPool
from swaplane.store.disk import private
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
        self._live: dict[str, Following] = {}  # by the gateway's job, as are those below
        self._chosen: list[tuple[Job, str]] = []  # jobs that are being sent, with the ids that they choose
        self._unstored: OrderedDict[str, Remembered] = OrderedDict()  # the disk did not take them

    def __repr__(self) -> str:
        return f"<RememberedJobs {len(self._live)} at their servers>"

    def live(self, server_id: str, model: str, *, caller: Caller = EVERYBODY) -> Following | None:
        """The caller's running job of this id at this model's server."""
        return next((each for each in self.live_at(model, caller=caller) if each.server_id == server_id), None)

    def live_at(self, model: str, *, caller: Caller = EVERYBODY) -> list[Following]:
        """The caller's jobs that run at this model's server, newest first."""
        jobs = ((each, each.ticket.job) for each in reversed(self._live.values()))
        return [each for each, job in jobs if job.model == model and caller.owns(member=job.member, key=job.key)]

    def is_shared(self, following: Following) -> bool:
        """Whether the server takes another running job for the same one, because it gave both the same id."""
        jobs = self.live_at(following.ticket.job.model)
        return any(each.server_id == following.server_id and each is not following for each in jobs)

    async def add(self, following: Following) -> None:
        """A server has taken a job. One that the store does not take is followed all the same."""
        job = following.ticket.job
        self._live[job.id] = following
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
            self._unstored[job.id] = taken
            if len(self._unstored) > UNSTORED_REMEMBERED:
                self._unstored.popitem(last=False)

    async def over(self, following: Following, outcome: Outcome) -> None:
        """A job has ended: keep how."""
        job, server_id = following.ticket.job, following.server_id
        last = following.last
        if outcome not in (Outcome.COMPLETED, Outcome.UPSTREAM_ERROR):
            last = following.rule.epitaph(server_id, last, following.why or _TOLD[outcome]) or last
        try:
            try:
                if outcome is not Outcome.COMPLETED:
                    await self._store_late(job.id)
                    await self._keep_end(following.rule, job.id, server_id, last)
            finally:
                await self._end(job.id, outcome, last)
        except StoreError as error:
            _log.error("what is known of a job is not kept", model=job.model, id=server_id, error=str(error))

    def drop(self, following: Following) -> None:
        """It does not run any more."""
        self._live.pop(following.ticket.job.id, None)

    async def get(self, server_id: str, model: str | None = None, *, caller: Caller = EVERYBODY) -> Remembered | None:
        """What is known of the caller's job of this id; of several the newest."""
        found = await self._table.get(server_id, model, owner=owner_of(caller))
        if found is None:
            own = (job for job in self._unstored.values() if _owns(caller, job) and model in (None, job.model))
            found = next((job for job in own if job.server_id == server_id), None)
        if found is None or (found.expires_at is not None and found.expires_at <= time.time()):
            return None
        return self._newest(found)

    async def is_only_of_others(self, server_id: str, model: str, caller: Caller) -> bool:
        """Whether somebody else has a job of this id at this model's server, or sends one, and the caller has none."""
        if await self.get(server_id, model, caller=caller) is not None:
            return False
        if await self.get(server_id, model) is not None:
            return True
        sent = (job for job, known in self._chosen if (job.model, known) == (model, server_id))
        return any(not caller.owns(member=job.member, key=job.key) for job in sent)

    @contextlib.contextmanager
    def chosen(self, job: Job, server_ids: Sequence[str]) -> Iterator[None]:
        """Know the ids that a job chooses while its server has not told its id yet."""
        claims = [(job, server_id) for server_id in server_ids]
        self._chosen += claims
        try:
            yield
        finally:
            for claim in claims:
                self._chosen.remove(claim)

    async def of_job(self, job_id: str, *, caller: Caller = EVERYBODY) -> Remembered | None:
        """What is known at its server of one of the gateway's jobs, if it is the caller's."""
        found = await self._table.of_job(job_id) or self._unstored.get(job_id)
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
        live = self._live.get(found.job_id)
        return found if live is None else replace(found, last=live.last)

    async def kept(self, model: str, target: str, *, caller: Caller) -> KeptAnswer | None:
        """The answer that is kept for a GET of this path and query, of the newest of the caller's jobs that has it."""
        return await self._table.kept(model, target, owner=owner_of(caller))

    async def forget(self, job_id: str) -> None:
        """Delete all that is kept of what one of the gateway's jobs became; it is over."""
        await self._table.forget(job_id)

    async def restore(self, rule_of: Callable[[str], Completion | None]) -> None:
        """Jobs that ran when an earlier gateway ended are over: their servers ended with it."""
        for found in await self._table.running():
            rule, last = rule_of(found.model), found.last
            if rule is not None:
                last = rule.epitaph(found.server_id, last, _TOLD[Outcome.INTERRUPTED]) or last
                await self._keep_end(rule, found.job_id, found.server_id, last)
            await self._end(found.job_id, Outcome.INTERRUPTED, last)

    # Keeping.

    async def fetch(
        self, following: Following, pool: UpstreamPool, targets: Sequence[str], *, patience_s: float
    ) -> str:
        """Fetch what a job that is done has made; what is missing, for people: empty when nothing is.

        A server that is busy or breaks off is asked again for `patience_s`; what it refuses is not missed.
        """
        job, told = following.ticket.job, {"model": following.ticket.job.model, "id": following.server_id}
        trouble = ""
        try:
            async with asyncio.timeout(patience_s):
                await self._store_late(job.id)
                for target in targets:
                    while trouble := await self._fetch(following, pool, target):
                        _log.warning("a result is fetched again", **told, error=trouble)
                        await asyncio.sleep(FETCH_AGAIN_S)
        except TimeoutError:
            return f"its result could not be fetched in {patience_s:g} s" + (f": {trouble}" if trouble else "")
        except (StoreError, OSError) as error:
            _log.error("a result could not be kept", **told, error=str(error))
            return f"its result could not be kept: {error}"
        return ""

    async def _fetch(self, following: Following, pool: UpstreamPool, target: str) -> str:
        """One try; what went wrong, if another one makes sense. Raises StoreError and OSError."""
        path = self._table.new_path()
        try:
            answer = await fetch_into(pool, target.encode(), path)
        except UpstreamError as error:
            return following.words(error)
        if answer.status != HTTPStatus.OK:
            await asyncio.to_thread(path.unlink, missing_ok=True)
            told = f"GET {target} was answered with {answer.status}"
            if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                return told
            _log.warning("a result is not kept", model=following.ticket.job.model, id=following.server_id, why=told)
            return ""
        kept = KeptAnswer(
            status=answer.status,
            reason=answer.reason.decode("latin-1"),
            headers=whole_answer_headers(answer.headers),
            path=path,
            bytes=answer.length,
        )
        await self._table.keep(following.ticket.job.id, following.rule.kept_under(target), kept)
        return ""

    async def _store_late(self, job_id: str) -> None:
        """Store a job that the disk did not take when it began: nothing is kept of one that is not stored."""
        unstored = self._unstored.get(job_id)
        if unstored is not None:
            await self._table.add(unstored)
            self._unstored.pop(job_id, None)

    async def _keep_end(self, rule: Completion, job_id: str, server_id: str, told: bytes) -> None:
        """Keep how a job ended as the answer to a look at its state."""
        path = self._table.new_path()
        headers: RawHeaders = [(b"Content-Type", b"application/json")]
        try:
            await asyncio.to_thread(_write, path, told)
        except OSError as error:
            _log.warning("an answer could not be kept", job=job_id, id=server_id, error=str(error))
            return
        kept = KeptAnswer(status=HTTPStatus.OK, reason="OK", headers=headers, path=path, bytes=len(told))
        await self._table.keep(job_id, rule.kept_under(rule.polls(server_id)[-1].path), kept)

    async def _end(self, job_id: str, outcome: Outcome, last: bytes) -> None:
        now = time.time()
        stage = "done" if outcome is Outcome.COMPLETED else "failed"
        known = self._unstored.get(job_id) or await self._table.of_job(job_id)
        if known is not None:
            ended = replace(known, stage=stage, last=last, ended_at=now, expires_at=now + self._keep_s())
            if job_id in self._unstored:
                self._unstored[job_id] = ended
            else:
                await self._table.update(ended)


def _write(path: Path, content: bytes) -> None:
    with open(path, "xb", opener=private) as file:
        file.write(content)


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
