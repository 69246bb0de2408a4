"""Follows one job at a server that answers first and works afterwards, until it is over there.

Decides when the job is over, whether a cancel has reached the server, and when nothing but the server's end will
free what the job occupies. What the server's answers mean is decided by the model's `Completion`; the order of
jobs is nobody's business here. Made by `passage` for each such job, whose place is held until `run` returns.

The rules, by what happens:

- done: what the client will want of it is fetched before the place is given on, for as long as the rule's patience;
  the job is completed, or upstream_lost where the server does not give what it made.
- failed: upstream_error.
- the server forgets the id: it ends as upstream_lost. Where forgetting does not free the GPU, the server is stopped.
- polls fail or say nothing for the rule's patience: the server is stopped, upstream_lost.
- it is not over by the rule's deadline: the server is stopped, overdue.
- the server dies: upstream_broken.
- somebody cancels it: the server is asked to stop it and polled until it has; one that cannot, or does not within
  `CANCEL_PATIENCE_S`, is stopped.
- the submit gets no whole answer, or one without an id, so that nobody knows what began: the server is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Sequence
from http import HTTPStatus
from typing import Any

import structlog

from swaplane.completion.rule import Answer, Call, Completion, Report, Stage
from swaplane.core.commands import StopCause
from swaplane.core.outcomes import Outcome
from swaplane.gateway.answers import CUT_WORDS, send_answer
from swaplane.gateway.body import Body
from swaplane.gateway.client_side import ClientSide
from swaplane.gateway.connection import RawHeaders, UpstreamError
from swaplane.gateway.fetch import Fetched, fetch
from swaplane.gateway.forward import failure, whole_answer_headers
from swaplane.gateway.remembered import RememberedJobs
from swaplane.gateway.upstream import UpstreamPool
from swaplane.runtime import Runtime
from swaplane.ticket import Ticket

FIRST_POLL_S, LONGEST_POLL_S, POLL_GROWTH = 0.2, 1.0, 1.5  # between two polls
POLL_TIMEOUT_S = 30.0  # how long one poll may take; a server that computes may answer late
SUBMIT_PATIENCE_S = 30.0  # how long a submit may still be answered once nobody wants the job any more
CANCEL_PATIENCE_S = 20.0  # how long a server may take to let go of a cancelled job
_SHORT_BYTES = 1 << 20  # of what a server says of a job; longer, it holds the work itself

#: Endings after which the server is gone, or about to be.
_WITH_ITS_SERVER = frozenset({Outcome.UPSTREAM_BROKEN, Outcome.STOPPED_RUNNING, Outcome.UNLOADED_RUNNING})

_log = structlog.get_logger("swaplane.following")


class Following:
    """One job that outlives its response."""

    def __init__(
        self, *, runtime: Runtime, remembered: RememberedJobs, ticket: Ticket, rule: Completion, pool: UpstreamPool
    ) -> None:
        self.ticket = ticket
        self.rule = rule
        self.server_id = ""  #: what the server calls the job, once it has taken it
        self.last = b""  #: JSON: what the server last said of the job
        self.why = ""  #: for people: why it ended, where the gateway ended it
        self.over = asyncio.Event()  #: set when the job has ended and what is kept of it is there
        self._runtime = runtime
        self._remembered = remembered
        self._pool = pool
        self._ending: Outcome | None = None  # wanted from outside
        self._final: tuple[Report, Sequence[Answer]] | None = None  # seen by whoever polled
        self._woken = asyncio.Event()  # one of the two is there
        self._heard_at = 0.0  # the last time a poll said something

    def __repr__(self) -> str:
        return f"<Following {self.ticket.job.id} as {self.server_id or '?'} at {self._pool.base_url}>"

    async def run(
        self, client: ClientSide, *, target: bytes, headers: RawHeaders, body: Body | None, extra: RawHeaders
    ) -> Outcome:
        """Submit the job, answer the client, and return when the job is over at its server.

        `headers` are for the server, `extra` ours for the client.
        """
        sent_at = time.monotonic()
        self.ticket.on_cut(self.cut)
        client.on_departure(lambda: self.cut(Outcome.LEFT_RUNNING))
        readable = [header for header in headers if header[0].lower() != b"accept-encoding"]
        try:
            answer = await self._submitted(
                fetch(self._pool, client.method.decode(), target, headers=readable, body=body)
            )
        except (UpstreamError, TimeoutError, OSError) as error:
            return await self._never_taken(client, self.words(error), extra)
        said = Answer(status=answer.status, body=answer.body)
        self.server_id = self.rule.id_of(said) or ""
        if not self.server_id and answer.status < HTTPStatus.BAD_REQUEST:
            why = (
                f"the model's server answered {answer.status} to a request that starts a job, but told no id of the job"
            )
            self.cut(Outcome.UPSTREAM_LOST)
            return await self._never_taken(client, why, extra)
        if not self.server_id:
            client.on_departure(None)
            pass_on(client, answer, extra)
            return Outcome.UPSTREAM_ERROR if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR else Outcome.COMPLETED
        self.last = answer.body
        self.ticket.server_id = self.server_id
        await self._remembered.add(self)  # before the client can ask for it
        try:
            client.on_departure(None)
            pass_on(client, answer, extra)
            outcome = await self._until_over(sent_at)
            if outcome is Outcome.COMPLETED:
                outcome = await self._fetched()
            await self._remembered.over(self, outcome)
        finally:
            self._remembered.drop(self)
            self.over.set()
        return outcome

    def cut(self, outcome: Outcome) -> None:
        """End the job as `outcome`; the first wish counts, and none once the server has said how it ended."""
        if self._ending is None:
            self._ending = outcome
        self._woken.set()

    async def look(self) -> tuple[Report, Sequence[Answer]]:
        """Ask the server now; what it says counts for the job as the regular polls do. Raises UpstreamError."""
        answers: list[Answer] = []
        report: Report | None = None
        for call in self.rule.polls(self.server_id):
            fetched = await self._call(call)
            answers.append(Answer(status=fetched.status, body=fetched.body))
            if fetched.length > _SHORT_BYTES:
                report = await asyncio.to_thread(self.rule.read, self.server_id, answers)
            else:
                report = self.rule.read(self.server_id, answers)
            if report is not None:
                break
        report = report or Report(stage=Stage.UNCLEAR)
        if report.stage is not Stage.UNCLEAR:
            self._heard_at = time.monotonic()
        if self._final is None:  # else its end is told already
            news = f"no news: {report.detail}" if report.stage is Stage.UNCLEAR else report.detail
            self.ticket.tell(progress=report.progress, news=news)
        if report.stage in (Stage.RUNNING, Stage.DONE, Stage.FAILED) and len(answers[-1].body) <= _SHORT_BYTES:
            self.last = answers[-1].body
        if report.stage in (Stage.DONE, Stage.FAILED, Stage.GONE) and self._final is None:
            self._final = (report, answers)
            self._woken.set()
        return report, answers

    async def _call(self, call: Call) -> Fetched:
        body = Body(call.body, len(call.body)) if call.body else None
        headers: RawHeaders = []
        if body is not None:
            headers = [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % body.length)]
        async with asyncio.timeout(POLL_TIMEOUT_S):
            return await fetch(self._pool, call.method, call.path.encode(), headers=headers, body=body)

    # The submit.

    async def _submitted(self, submit: Awaitable[Fetched]) -> Fetched:
        """The submit's answer. Once nobody wants the job, it is waited for a while: it holds the id to cancel."""
        task = asyncio.ensure_future(submit)
        try:
            await self._unless_woken(task, timeout_s=self.rule.deadline_s)
            if self._ending is not None and self._ending not in _WITH_ITS_SERVER:
                await asyncio.wait([task], timeout=SUBMIT_PATIENCE_S)
            if not task.done():
                self._ending = self._ending or Outcome.OVERDUE
                raise TimeoutError("the model's server has not answered the request that submits the job")
            return task.result()
        finally:
            task.cancel()

    def words(self, error: Exception) -> str:
        """What went wrong, as the holder of the job's key may read it."""
        if not isinstance(error, UpstreamError):
            return str(error)
        return error.told(operator=self._runtime.settings.is_operator(self.ticket.job.key))

    async def _never_taken(self, client: ClientSide, why: str, extra: RawHeaders) -> Outcome:
        """Nobody knows whether the job has begun: only the server's end makes sure that it does not go on."""
        client.on_departure(None)
        await self._runtime.assured(self.ticket.job.model)
        outcome = self._ending or Outcome.UPSTREAM_BROKEN
        if not client.departed:
            words = CUT_WORDS.get(outcome, why) if self._ending else why
            send_answer(client, *failure(outcome, words, accept=client.header(b"accept"), extra=extra))
        if outcome is Outcome.UNLOADED_RUNNING:
            await self._runtime.gone(self.ticket.job.model)
        elif outcome is not Outcome.STOPPED_RUNNING:
            await self._stop_server(why)
        return outcome

    # The job.

    async def _until_over(self, sent_at: float) -> Outcome:
        self._heard_at = time.monotonic()
        wait_s = FIRST_POLL_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            wait_s = min(wait_s * POLL_GROWTH, LONGEST_POLL_S)
            if not self._woken.is_set() and not await self._polled():
                return Outcome.UPSTREAM_BROKEN
            if self._final is not None:
                return await self._ended_there(self._final[0].stage)
            if self._ending is not None:
                return await self._ended_from_outside(self._ending)
            now = time.monotonic()
            if now - sent_at > self.rule.deadline_s:
                self.why = f"it was not over by its model's deadline of {self.rule.deadline_s:g} s"
                await self._stop_server(self.why)
                return Outcome.OVERDUE
            if now - self._heard_at > self.rule.patience_s:
                news = f" ({self.ticket.news})" if self.ticket.news else ""
                self.why = f"its server said nothing of the job for {self.rule.patience_s:g} s{news}"
                await self._stop_server(self.why)
                return Outcome.UPSTREAM_LOST

    async def _polled(self) -> bool:
        """One poll, or less when the job is cut meanwhile; False when the server is gone."""
        task = asyncio.ensure_future(self.look())
        try:
            await self._unless_woken(task, timeout_s=None)
            if task.done():
                task.result()
        except (UpstreamError, TimeoutError, OSError) as error:
            self.ticket.tell(progress=None, news=f"no news: {self.words(error)}")
            await self._runtime.assured(self.ticket.job.model)
            return self._ending is not None or self._runtime.is_ready(self.ticket.job.model)
        finally:
            task.cancel()
        return True

    async def _unless_woken(self, task: asyncio.Future[Any], *, timeout_s: float | None) -> None:
        """Return when the task is done, or there is something else to act on."""
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            both: list[asyncio.Future[Any]] = [task, woken]
            await asyncio.wait(both, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()

    async def _ended_there(self, stage: Stage) -> Outcome:
        if stage is Stage.GONE:
            self.why = "its server does not know the job any more"
            if not self.rule.frees_on_cancel(self.server_id):
                await self._stop_server(f"{self.why}, which may still occupy it")
        return _OUTCOMES[stage]

    async def _fetched(self) -> Outcome:
        """Keep what the job made, unless somebody ends it meanwhile."""
        assert self._final is not None  # noqa: S101 - its server has said that it is done
        targets = self.rule.keeps(self.server_id, self._final[1])
        if self._ending is None:  # else somebody has ended it in the same moment
            self._woken.clear()
        self.ticket.tell(progress=None, news="done; its result is fetched")
        fetching = asyncio.ensure_future(
            self._remembered.fetch(self, self._pool, targets, patience_s=self.rule.patience_s)
        )
        try:
            await self._unless_woken(fetching, timeout_s=None)
            if fetching.done():
                missing = fetching.result()
                self.why = f"it was done, but {missing}" if missing else ""
                return Outcome.UPSTREAM_LOST if missing else Outcome.COMPLETED
        finally:
            fetching.cancel()
        outcome = self._ending or Outcome.UPSTREAM_BROKEN
        if outcome is Outcome.UNLOADED_RUNNING:
            await self._runtime.gone(self.ticket.job.model)
        return outcome

    async def _ended_from_outside(self, outcome: Outcome) -> Outcome:
        model = self.ticket.job.model
        if outcome is Outcome.UNLOADED_RUNNING:
            await self._runtime.gone(model)
        elif outcome not in _WITH_ITS_SERVER and not await self._let_go():
            await self._stop_server("it was cancelled, and its server did not let go of it")
        return outcome

    async def _let_go(self) -> bool:
        """Ask the server to stop the job; whether it has, or will not be asked because it is another one's too."""
        if self._remembered.is_shared(self):
            return True
        calls = self.rule.cancels(self.server_id)
        if not calls or not self.rule.frees_on_cancel(self.server_id):
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_PATIENCE_S):
                while True:
                    try:
                        for call in calls:
                            await self._call(call)
                        await self.look()
                    except (UpstreamError, OSError):
                        await self._runtime.assured(self.ticket.job.model)
                        if not self._runtime.is_ready(self.ticket.job.model):
                            return False
                    if self._final is not None:
                        return True
                    await asyncio.sleep(FIRST_POLL_S)
        return False

    async def _stop_server(self, why: str) -> None:
        model = self.ticket.job.model
        if self._runtime.is_ready(model):
            _log.warning("the model's server is stopped", model=model, job=self.ticket.job.id, why=why)
            await self._runtime.unload(model, StopCause.STUCK)
        else:
            await self._runtime.gone(model)


_OUTCOMES = {
    Stage.DONE: Outcome.COMPLETED,
    Stage.FAILED: Outcome.UPSTREAM_ERROR,
    Stage.GONE: Outcome.UPSTREAM_LOST,
}


def pass_on(client: ClientSide, answer: Fetched, extra: RawHeaders) -> None:
    """Give a client a server's whole answer, with `extra` headers of ours."""
    if client.departed:
        return
    headers = [*whole_answer_headers(answer.headers), (b"Content-Length", b"%d" % len(answer.body)), *extra]
    client.start(status=answer.status, reason=answer.reason, headers=headers, framing="length")
    client.write(answer.body)
    client.finish()
