"""Runs one stored job, or ends it without running it, and keeps how it ended.

Decides what is kept as a job's answer: what its model said, if that is whole, else an error that says why it is not.
Which jobs run, and when, is decided elsewhere. Called by `detached`, once for each job.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import structlog

from swaplane.config.settings import ModelSettings
from swaplane.core.outcomes import Outcome
from swaplane.gateway.answers import CUT_WORDS, send_answer
from swaplane.gateway.body import Body
from swaplane.gateway.forward import failure
from swaplane.gateway.outage import Outage
from swaplane.gateway.passage import Passage
from swaplane.gateway.recording import Recording
from swaplane.gateway.stored_errand import (
    job_headers,
    opened_body,
    recording_for,
    restored_errand,
    tell_not_run,
    with_priority_of,
)
from swaplane.runtime import Runtime
from swaplane.store import Store, StoredJob, StoreError
from swaplane.ticket import Dropped, Run, Ticket

log = structlog.get_logger("swaplane.detached")

_STORE_AGAIN_S = 5.0  # before an end is written again that the store did not take

#: How the gateway's own shutdown ends a job: a stored one goes on at the next start.
_STOPPED = frozenset({Outcome.STOPPED_WAITING, Outcome.STOPPED_RUNNING, Outcome.REFUSED_STOPPING})


class StoredRuns:
    """The one way from a stored job to its durable end."""

    def __init__(self, runtime: Runtime, store: Store, passage: Passage, outage: Outage) -> None:
        self.closing = False  #: no end is tried to be stored a second time
        self.on_ended: list[Callable[[StoredJob], None]] = []  #: called after each end is durable
        self._runtime = runtime
        self._store = store
        self._passage = passage
        self._outage = outage

    def __repr__(self) -> str:
        return f"<StoredRuns of {self._store!r}>"

    async def run(self, job: StoredJob, model: ModelSettings, ticket: Ticket) -> Outcome:
        """Take a job from the queue to its end; one that the gateway's shutdown ends stays open in the store.

        So does one that is `deferred`, because the store does not take that it runs.
        """
        turn = await ticket.turn
        if isinstance(turn, Dropped) and turn.outcome in _STOPPED:
            return turn.outcome
        job = with_priority_of(ticket, job)
        outcome = Outcome.GATEWAY_ERROR
        recording = recording_for(job, self._store.jobs.answer_path(job.id))
        try:
            outcome = await self._pass(job, model, ticket, turn, recording)
            if outcome is not Outcome.DEFERRED and outcome not in _STOPPED:
                await self._settle(job, outcome, recording, ticket)
            elif outcome in _STOPPED and job.key is None and self._runtime.settings.jobs.interrupted == "rerun":
                await self._store.jobs.waits_again(job.id)  # no crash: it does not count as one
        except StoreError as error:
            log.error("a detached job is left as it is until the next start", job=job.id, error=str(error))
        finally:
            recording.close()
        return outcome

    async def _pass(
        self, job: StoredJob, model: ModelSettings, ticket: Ticket, turn: Run | Dropped, recording: Recording
    ) -> Outcome:
        """Run a job whose turn has come, and record its answer."""
        outcome = Outcome.GATEWAY_ERROR
        try:
            cuts: list[Outcome] = []
            ticket.on_cut(cuts.append)
            if isinstance(turn, Dropped):
                outcome = turn.outcome
                tell_not_run(recording, job, turn)
            elif (body := await self._begun(job)) is not None:
                with body:
                    errand = restored_errand(job, model, body)
                    outcome = await self._passage.run(recording, errand, ticket)
            elif Outcome.CANCELLED_RUNNING in cuts:
                outcome = Outcome.CANCELLED_WAITING  # it was not sent
                cancelled = Dropped(outcome=outcome, waited_s=turn.waited_s, detail="", retry_after_s=None)
                tell_not_run(recording, job, cancelled)
            else:
                outcome = Outcome.DEFERRED
        except (StoreError, OSError) as error:
            log.error("a detached job could not be run", job=job.id, error=str(error))
        except Exception:
            log.exception("a detached job failed: %r", ticket)
        finally:
            ticket.ended(outcome)
        return outcome

    async def _begun(self, job: StoredJob, *, again: bool = True) -> Body | None:
        """A job's body, once the store has it that the job runs; None when the store does not work.

        Raises StoreError and OSError when the store works, but not for this job.
        """
        if self._outage.is_on:
            return None
        try:
            body = await opened_body(self._store.jobs, job.id)
            try:
                await self._store.jobs.started(job.id)
            except BaseException:
                body.close()
                raise
            return body
        except StoreError as error:
            if not await self._outage.begins(error) and not again:
                raise
        # What failed may have been the last moment of an outage.
        return await self._begun(job, again=False)

    async def _settle(self, job: StoredJob, outcome: Outcome, recording: Recording, ticket: Ticket) -> None:
        """Keep how a job ended, and its answer."""
        ended = self._runtime.recent.get(job.id)
        if ticket.server_id is not None:
            with contextlib.suppress(StoreError):  # the end itself is what must be stored
                await self._store.jobs.server_id(job.id, ticket.server_id)
        recording.abort()  # nothing, unless it failed
        await recording.saved()
        if recording.trouble:
            outcome = Outcome.GATEWAY_ERROR  # nobody left: it was the disk
        if recording.broken:
            words = recording.trouble or CUT_WORDS.get(outcome, "the answer broke off before it was whole")
            recording = await self._told_failure(job, outcome, words)
        await self._end(
            job,
            outcome,
            recording,
            lane=ticket.lane,
            waited_s=None if ended is None else ended.waited_s,
            run_s=ended.run_s if ended is not None and outcome.ran else None,
        )

    async def _told_failure(self, job: StoredJob, outcome: Outcome, words: str) -> Recording:
        """Another recording in place of one that broke off."""
        recording = recording_for(job, self._store.jobs.answer_path(job.id))
        extra = job_headers(job)
        status, headers, body = failure(outcome, words, accept=recording.header(b"accept"), extra=extra)
        send_answer(recording, status, headers, body)
        await recording.saved()
        recording.close()
        return recording

    async def drop(self, job: StoredJob, outcome: Outcome) -> None:
        """End a job that is not in the queue. The lines of a batch need no answer: their outcome tells all."""
        waited_s = max(time.time() - job.submitted_at, 0.0)
        detail = f"model {job.model} is no longer configured" if outcome is Outcome.MODEL_REMOVED else ""
        recording = recording_for(job, self._store.jobs.answer_path(job.id))
        if job.batch is None:
            dropped = Dropped(outcome=outcome, waited_s=waited_s, detail=detail, retry_after_s=None)
            tell_not_run(recording, job, dropped)
            await recording.saved()
        recording.close()
        model = self._runtime.settings.resolve(job.model)
        lane = "" if model is None else model.lane
        await self._end(job, outcome, recording, lane=lane, waited_s=None if outcome.ran else waited_s, run_s=None)

    async def _end(
        self,
        job: StoredJob,
        outcome: Outcome,
        recording: Recording,
        *,
        lane: str,
        waited_s: float | None,
        run_s: float | None,
    ) -> None:
        """Make an end durable, then tell it."""
        log.info("detached job ended", job=job.id, outcome=str(outcome), status=recording.status)
        kept = recording.complete
        now = time.time()
        while True:
            try:
                await self._store.jobs.ended(
                    job.id,
                    outcome=str(outcome),
                    lane=lane,
                    ran=outcome.ran,
                    waited_s=waited_s,
                    run_s=run_s,
                    ended_at=now,
                    # The lines of a batch are kept until it is written.
                    expires_at=None if job.batch is not None else now + self._runtime.settings.jobs.keep_s,
                    status=recording.status if kept else None,
                    reason=recording.reason.decode("latin-1") if kept else "",
                    answer_headers=recording.headers if kept else None,
                    answer_bytes=recording.length if kept else None,
                )
                break
            except StoreError as error:  # a full disk, most likely
                if self.closing:
                    raise
                log.error("the end of a detached job is not stored yet", job=job.id, error=str(error))
                await asyncio.sleep(_STORE_AGAIN_S)
        ended = await self._store.jobs.get(job.id)
        if ended is not None:
            for tell in self.on_ended:
                tell(ended)
