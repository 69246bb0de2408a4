"""The dispatcher: events in, commands out.

It decides which job gets a place, which models stop and start for it, and when an idle model is unloaded.
`handle` is the one entry point; `runtime` calls it and carries out what it returns. It knows nothing of
processes, sockets or clocks, and the same events always give the same commands.

After each event every lane is settled in three steps:
  (a) idle models that are retired or past their ttl are stopped;
  (b) models with granted jobs are started, or sent their jobs, once all that must leave has left;
  (c) while the best waiting job fits, it is given a place (`_grant_best`), and (b) is repeated: what fits may
      depend on whether a job was sent.

No backfill: when the best job does not fit, nothing else is started in its lane until it does.
"""

from __future__ import annotations

from typing import assert_never

from swaplane.core.commands import (
    AbortJob,
    Command,
    PriorityCause,
    RecordDispatch,
    RunJob,
    StartModel,
    StopCause,
)
from swaplane.core.comparison import BY_SUBMIT
from swaplane.core.events import (
    Event,
    Job,
    JobArrived,
    JobEnded,
    JobLeft,
    JobsRestored,
    LanePaused,
    LaneResumed,
    ModelExited,
    ModelReady,
    ModelStartFailed,
    ModelStopped,
    PlanChanged,
    PriorityChanged,
    ShutdownRequested,
    TimePassed,
    UnloadRequested,
)
from swaplane.core.gatekeeper import Gatekeeper
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import Plan
from swaplane.core.record import record, start_cause
from swaplane.core.state import Grant, LaneState, ModelPhase, ModelState

#: Seconds before the next start after this many failures in a row: the first is tried again at once, as
#: llama-swap does; a model that keeps failing is tried ever more seldom.
BACKOFF_S = (0.0, 2.0, 5.0, 15.0, 60.0)


class Dispatcher(Gatekeeper):
    """All that is decided about one gateway's jobs and models."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in what happened at `now` (seconds, never going back); what is to be done, in order."""
        self._commands = []
        match event:
            case JobArrived():
                self._job_arrived(event.job, now, promised=event.promised)
            case JobsRestored():
                self._jobs_restored(event, now)
            case JobLeft():
                self._job_left(event, now)
            case JobEnded():
                self._job_ended(event, now)
            case PriorityChanged():
                if event.job_id in self.queue:
                    cause, reason = PriorityCause.REQUESTED, "changed by request"
                    self._change_priority(event.job_id, event.priority, cause, reason, now)
            case ModelReady():
                self._model_ready(event, now)
            case ModelStartFailed():
                self._model_start_failed(event, now)
            case ModelStopped() | ModelExited():
                self._model_gone(event.model, now)
            case UnloadRequested():
                self._unload(event, now)
            case LanePaused() | LaneResumed():
                self._pause(event.lane, paused=isinstance(event, LanePaused))
            case PlanChanged():
                self._plan_changed(event.plan, now)
            case ShutdownRequested():
                self._shut_down(now)
            case TimePassed():
                pass
            case _:
                assert_never(event)
        if self._queue_is_stale:
            self._rebuild_queue()
            self._limits_changed()
        self._settle_all(now)
        if self._end_overdue(now):  # where a model loads for such a job, another may be loaded instead
            self._settle_all(now)
        self._refresh_bars()
        return self._commands

    @property
    def wakes_at(self) -> float | None:
        """When `TimePassed` is due: an idle model is past its ttl, or a job has waited too long."""
        due = [at for model in self.models.values() if (at := self._expires_at(model)) is not None]
        if (deadline := self._deadlines.next(self._deadline)) is not None:
            due.append(deadline)
        return min(due, default=None)

    # What happened to a job.

    def _job_arrived(self, job: Job, now: float, *, promised: bool) -> None:
        refusal = self.refusal(job, now)
        if refusal is not None and not (promised and refusal.outcome is Outcome.REFUSED_FULL):
            self._commands.append(refusal)
            return
        self.queue.add(job, self.models[job.model].plan.lane)
        self._deadlines.add(job.id, self.leaves_at(job))
        if self.has_budget(job):
            self._keep_to_budget(job.member, now)

    def _jobs_restored(self, event: JobsRestored, now: float) -> None:
        for job in sorted(event.jobs, key=BY_SUBMIT):
            self._job_arrived(job, now, promised=True)
        for turn in event.turns:
            self.queue.remember(turn)

    def _job_left(self, event: JobLeft, now: float) -> None:
        waiting = Outcome.CANCELLED_WAITING if event.cancelled else Outcome.LEFT_WAITING
        if event.job_id in self.queue:
            self.queue.remove(event.job_id)
            self._end(event.job_id, waiting)
        elif (grant := self._grants.get(event.job_id)) is None:
            pass  # it ended while the news was on its way
        elif grant.running:
            running = Outcome.CANCELLED_RUNNING if event.cancelled else Outcome.LEFT_RUNNING
            self._commands.append(AbortJob(job_id=event.job_id, outcome=running))
        else:
            self._release(grant, now, ran=False)
            self._end(event.job_id, waiting)

    def _job_ended(self, event: JobEnded, now: float) -> None:
        grant = self._grants.get(event.job_id)
        if grant is None or grant.sent_at is None:
            return
        if event.outcome is Outcome.COMPLETED:
            model = self.models[grant.job.model]
            model.run_s = _smoothed(model.run_s, now - grant.sent_at)
        self._release(grant, now, ran=event.outcome.ran)
        if self.has_budget(grant.job):
            self._keep_to_budget(grant.job.member, now)

    # What happened to a model's server.

    def _model_ready(self, event: ModelReady, now: float) -> None:
        model = self.models.get(event.model)
        if model is None or model.phase is not ModelPhase.STARTING:
            return  # it was told to stop in the meantime
        model.failed_starts = 0
        model.idle_since = now
        model.load_s = _smoothed(model.load_s, event.load_s)
        self._set_phase(model, ModelPhase.READY)

    def _model_start_failed(self, event: ModelStartFailed, now: float) -> None:
        model = self.models.get(event.model)
        if model is None:
            return
        if model.phase is ModelPhase.STARTING:
            model.failed_starts += 1
            model.last_failure, model.last_failure_private = event.message, event.private
            model.retry_at = now + BACKOFF_S[min(model.failed_starts, len(BACKOFF_S)) - 1]
            # All who wait for it fail at once: trying again for each would starve the other models.
            self._fail_all(model, Outcome.START_FAILED, event.message, now, event.private)
        self._model_gone(event.model, now)

    def _model_gone(self, model_id: str, now: float) -> None:
        model = self.models.get(model_id)
        if model is not None:
            self._set_phase(model, ModelPhase.STOPPED)
            self._succeed(model, now)

    def _unload(self, event: UnloadRequested, now: float) -> None:
        model = self.models.get(event.model)
        if model is None or model.phase not in (ModelPhase.STARTING, ModelPhase.READY):
            return
        for grant in list(model.grants.values()):
            if grant.running:
                self._commands.append(AbortJob(job_id=grant.job.id, outcome=Outcome.UNLOADED_RUNNING))
            elif event.cause is StopCause.UNLOAD:  # otherwise nobody wants the model gone: it is started again
                self._release(grant, now, ran=False)
                self._end(grant.job.id, Outcome.UNLOADED_WAITING, "model unloaded")
        self._stop(model, event.cause)

    # What happened to the gateway.

    def _pause(self, lane_name: str, *, paused: bool) -> None:
        lane = self.lanes.get(lane_name)
        if lane is not None:
            lane.paused = paused

    def _plan_changed(self, plan: Plan, now: float) -> None:
        for name, model in list(self.models.items()):
            if name not in plan.models:
                self._fail_all(model, Outcome.MODEL_REMOVED, f"model {name} is no longer configured", now)
        self._plan = plan
        for name, model in self.models.items():
            new = plan.models.get(name)
            model.removed = new is None
            model.successor = None
            if new is None:
                continue
            if new.fingerprint == model.plan.fingerprint and new.lane == model.plan.lane:
                model.plan = new
            else:
                model.successor = new
        for name, planned in plan.models.items():
            if name not in self.models:
                self.models[name] = ModelState(plan=planned)
        for name, lane in plan.lanes.items():
            if name in self.lanes:
                self.lanes[name].plan = lane
            else:
                self.lanes[name] = LaneState(plan=lane)
        for model in list(self.models.values()):
            self._succeed(model, now)
        for grant in reversed(list(self._grants.values())):
            # Under other residency rules two models may wait for each other's places: the newer one gives way.
            model = self.models[grant.job.model]
            if not grant.running and any(other.grants for other in self._must_leave(model)):
                self._take_back(grant, now)
        self._forget_lanes()
        self._queue_is_stale = True

    def _shut_down(self, now: float) -> None:
        self.shutting_down = True
        for model in self.models.values():
            self._fail_all(model, Outcome.STOPPED_WAITING, "the gateway is shutting down", now)

    # Settling a lane.

    def _settle_all(self, now: float) -> None:
        lanes = list(self.lanes.values())
        # Where places in all lanes count for a member, one given here may keep out a job that others wait behind there.
        again = len(lanes) > 1 and self.limits.bound_running
        while sum(self._settle(lane, now) for lane in lanes) and again:
            pass

    def _settle(self, lane: LaneState, now: float) -> bool:
        """See the three steps above; whether a place was given."""
        for model in self._of_lane(lane):  # (a)
            if not model.grants and model.phase in (ModelPhase.STARTING, ModelPhase.READY):
                expires_at = self._expires_at(model)
                if self.shutting_down:
                    self._stop(model, StopCause.SHUTDOWN)
                elif model.retiring:
                    self._stop(model, StopCause.RELOAD)
                elif expires_at is not None and now >= expires_at:
                    self._stop(model, StopCause.TTL)
        self._serve_grants(lane, now)  # (b)
        given = False
        while self._grant_best(lane, now):  # (c)
            self._serve_grants(lane, now)
            given = True
        return given

    def _grant_best(self, lane: LaneState, now: float) -> bool:
        """Give the lane's best job a place if it fits; whether it did.

        Jobs that the lane's bar keeps out do not count. The best of the others does not fit when (1) the lane is
        paused, full, or the gateway is going down; (2) its model holds a place already and has no free slot, or is
        not ready for a further job; (3) its model holds no place and no whole place is free; (4) it cannot be sent
        at once, and may not wait any longer; (5) a model that must leave for it still has jobs; (6) it would have to
        leave again for a model that is being loaded for a job.
        """
        if not self.queue.count(lane.plan.name):
            return False
        holders = [model for model in self._of_lane(lane) if model.grants]
        full = len(holders) >= lane.plan.size
        if lane.paused or self.shutting_down or (full and not any(model.takes_more for model in holders)):  # (1)
            return False
        bar = self._bar(lane, holders)
        pick = self.queue.pick(lane.plan.name, now=now, resident=lane.resident, bar=bar)
        while pick is not None and self.has_budget(pick.winner) and self._keep_to_budget(pick.winner.member, now):
            pick = self.queue.pick(lane.plan.name, now=now, resident=lane.resident, bar=bar)
        if pick is None:
            return False
        model = self.models[pick.winner.model]
        if model.grants and not model.takes_more:  # (2)
            return False
        if full and not model.grants:  # (3)
            return False
        leaving = self._must_leave(model)
        leaves_at = self.leaves_at(pick.winner)
        if leaves_at is not None and leaves_at <= now and (leaving or model.phase is not ModelPhase.READY):
            return False  # (4): it ends right after this
        if any(other.grants for other in leaving):  # (5)
            return False
        loading = [other.plan.id for other in holders if other.loading]
        if any(self.residency.must_leave(other, [model.plan.id]) for other in loading):  # (6)
            return False

        self._dispatched += 1
        dispatch = record(
            pick, number=self._dispatched, lane=lane, model=model, queue=self.queue, rules=self.rules, now=now
        )
        self._commands.append(RecordDispatch(dispatch=dispatch))
        if dispatch.swap:
            model.start_cause = start_cause(pick, leaving, lane)
        self._make_leave(leaving)
        job = self.queue.take(pick.winner.id)
        self._hold(Grant(job=job, lane=lane.plan.name, score=dispatch.winner.score, clock=pick.clock, granted_at=now))
        return True

    def _serve_grants(self, lane: LaneState, now: float) -> None:
        """Send ready models their granted jobs and start stopped ones, once nothing that must leave is left."""
        for model in self._of_lane(lane):
            if not model.grants or not (loading := model.loading):
                continue
            if leaving := self._must_leave(model):
                self._make_leave(leaving)  # after a change of the residency rules, some may not have been told yet
            elif model.phase is ModelPhase.READY:
                for grant in loading:
                    grant.sent_at = now
                    self._commands.append(RunJob(job_id=grant.job.id, model=model.plan.id))
            elif model.phase is ModelPhase.STOPPED and len(loading) == len(model.grants):
                self._set_phase(model, ModelPhase.STARTING)
                self._commands.append(StartModel(model=model.plan.id, cause=model.start_cause))


def _smoothed(average: float | None, value: float) -> float:
    """An exponential average that follows quickly: the newest of a few values counts a third."""
    return value if average is None else average + (value - average) / 3
