"""The board: all that the dispatcher knows, and the small steps that change it.

Models, lanes, granted jobs and the queue belong together: a step such as giving a place back touches several of
them. Nothing here chooses; `dispatcher.Dispatcher` does, and it is the only user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from swaplane.core.bars import Holder, holders_of
from swaplane.core.commands import Command, EndJob, StopCause, StopModel
from swaplane.core.events import Job
from swaplane.core.limits import Limits
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import Plan
from swaplane.core.queue import Queue
from swaplane.core.residency import Residency
from swaplane.core.score import ScoreRules
from swaplane.core.state import Grant, LaneState, ModelPhase, ModelState
from swaplane.core.usage import Usage


class Board:
    """What a gateway's dispatcher remembers between two events."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.queue = Queue(plan.rules)
        self.models = {name: ModelState(plan=model) for name, model in plan.models.items()}
        self.lanes = {name: LaneState(plan=lane) for name, lane in plan.lanes.items()}
        self.usage = Usage()
        self.shutting_down = False
        self._grants: dict[str, Grant] = {}
        self._held_by: Counter[Holder] = Counter()  # jobs that hold a place
        self._dispatched = 0
        self._commands: list[Command] = []
        self._queue_is_stale = False  # the rules, or the lane of a model's waiting jobs, have changed

    def __repr__(self) -> str:
        alive = " ".join(f"{m.plan.id}={m.phase}" for m in self.models.values() if m.alive)
        return f"<Dispatcher {len(self.queue)} waiting, {len(self._grants)} granted; {alive or 'nothing resident'}>"

    @property
    def rules(self) -> ScoreRules:
        """The score's rules in force."""
        return self._plan.rules

    @property
    def limits(self) -> Limits:
        """The limits in force."""
        return self._plan.limits

    @property
    def residency(self) -> Residency:
        """The residency rules in force."""
        return self._plan.residency

    def grant(self, job_id: str) -> Grant | None:
        """The job's grant while it holds a place."""
        return self._grants.get(job_id)

    def grants(self) -> Collection[Grant]:
        """All jobs that hold a place, in the order in which they were given it."""
        return self._grants.values()

    def _of_lane(self, lane: LaneState) -> list[ModelState]:
        return [model for model in self.models.values() if model.plan.lane == lane.plan.name]

    def _must_leave(self, model: ModelState) -> list[ModelState]:
        lane = self.lanes[model.plan.lane]
        present = [other.plan.id for other in self._of_lane(lane) if other.alive or other.grants]
        return [self.models[name] for name in self.residency.must_leave(model.plan.id, present)]

    def _make_leave(self, models: Iterable[ModelState]) -> None:
        """Stop these; none of them has a job, or the one they make room for would not have a place."""
        for model in models:
            if model.phase is ModelPhase.STARTING:
                self._stop(model, StopCause.ABANDONED)
            elif model.phase is ModelPhase.READY:
                self._stop(model, StopCause.SWAP)

    def _expires_at(self, model: ModelState) -> float | None:
        idle = model.phase is ModelPhase.READY and not model.grants
        if model.plan.ttl_s is None or not idle or self.queue.waits_for(model.plan.id):
            return None
        return model.idle_since + model.plan.ttl_s

    def _set_phase(self, model: ModelState, phase: ModelPhase) -> None:
        model.phase = phase
        lane = self.lanes[model.plan.lane]
        resident = frozenset(each.plan.id for each in self._of_lane(lane) if each.phase is ModelPhase.READY)
        if resident != lane.resident:
            lane.resident = resident

    def _stop(self, model: ModelState, cause: StopCause) -> None:
        self._set_phase(model, ModelPhase.STOPPING)
        self._commands.append(StopModel(model=model.plan.id, cause=cause))

    def _hold(self, grant: Grant) -> None:
        """A job that was taken from the queue holds a place."""
        job = grant.job
        self.models[job.model].grants[job.id] = self._grants[job.id] = grant
        for holder in holders_of(job):
            self._held_by[holder] += 1

    def _release(self, grant: Grant, now: float, *, ran: bool) -> None:
        job = grant.job
        del self._grants[job.id]
        for holder in holders_of(job):
            self._held_by[holder] -= 1
            if not self._held_by[holder]:
                del self._held_by[holder]
        model = self.models[job.model]
        del model.grants[job.id]
        service_s = self.gpu_s(grant, now) if ran and grant.running else None
        self.queue.give_back(job, grant.lane, now, service_s=service_s, clock=grant.clock)
        if service_s is not None:
            self.usage.charge(job.member, now, service_s, at_budget=self.has_budget(job))
        model.idle_since = now
        self._succeed(model, now)

    def _fail_all(self, model: ModelState, outcome: Outcome, detail: str, now: float, private: str = "") -> None:
        """End all jobs of a model that do not run yet, in the order of their arrival."""
        granted = model.loading
        for grant in granted:
            self._release(grant, now, ran=False)
        waiting = self.queue.jobs(model=model.plan.id)
        for job in waiting:
            self.queue.remove(job.id)
        for job in sorted([*(grant.job for grant in granted), *waiting], key=lambda job: job.seq):
            self._end(job.id, outcome, detail, private)

    def _end(self, job_id: str, outcome: Outcome, detail: str = "", private: str = "") -> None:
        self._commands.append(EndJob(job_id=job_id, outcome=outcome, detail=detail, private=private))

    def gpu_s(self, grant: Grant, now: float) -> float:
        """The GPU time that a job has had, seconds: its part of its model's place since it was sent."""
        return 0.0 if grant.sent_at is None else (now - grant.sent_at) / self.models[grant.job.model].plan.slots

    def has_budget(self, job: Job) -> bool:
        """Whether what this job uses counts for its member's budget."""
        budget = self.limits.budget
        return budget is not None and job.priority >= self.rules.value_of(budget.band)

    # A change of plan.

    def _succeed(self, model: ModelState, now: float) -> None:
        """Once a retiring model's server is gone and no job of it runs, its successor takes over."""
        if model.alive or any(grant.running for grant in model.grants.values()):
            return
        if model.removed:
            del self.models[model.plan.id]
        elif model.successor is not None:
            moved = model.successor.lane != model.plan.lane
            model.plan, model.successor = model.successor, None
            model.failed_starts, model.retry_at = 0, 0.0
            if moved:  # its jobs wait for a place in the other lane from now on
                for grant in model.loading:
                    self._take_back(grant, now)
                self._queue_is_stale = True
        self._forget_lanes()

    def _take_back(self, grant: Grant, now: float) -> None:
        """A place whose job was not sent yet is taken back: its job waits again, as long as before."""
        self.queue.add(grant.job, self.models[grant.job.model].plan.lane)
        self._release(grant, now, ran=False)

    def _forget_lanes(self) -> None:
        used = {model.plan.lane for model in self.models.values()}
        self.lanes = {n: lane for n, lane in self.lanes.items() if n in used or n in self._plan.lanes}

    def _rebuild_queue(self) -> None:
        self._queue_is_stale = False
        self.queue = self.queue.rebuilt(
            self._plan.rules,
            {name: model.plan.lane for name, model in self.models.items()},
            [(grant.job, grant.lane) for grant in self._grants.values()],
        )
