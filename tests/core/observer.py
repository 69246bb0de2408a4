"""Watches a dispatcher from outside: the events it is given, the commands it gives. Knows what must hold.

What it knows is its ledger's. `see` is called once per event and raises AssertionError for anything that must not be.
"""

from __future__ import annotations

from dataclasses import dataclass

from swaplane.core import events as ev
from swaplane.core.commands import (
    AbortJob,
    Command,
    Dispatch,
    EndJob,
    PriorityCause,
    RecordDispatch,
    RunJob,
    StartModel,
    StopCause,
    StopModel,
    TellPriority,
)
from swaplane.core.outcomes import Outcome
from tests.core.clocks import turns
from tests.core.gate import is_overdue
from tests.core.judge import Verdict, band_value, judge
from tests.core.ledger import Ledger

HIGHEST = 250  #: no test sends a higher priority where the waiting bound is checked


@dataclass(slots=True, kw_only=True)
class Observer(Ledger):
    dispatches: int = 0
    _anyone_expired: bool = False  #: at this event

    def see(self, event: ev.Event, commands: list[Command], now: float) -> None:
        """Take in one event and what the dispatcher did about it."""
        self.now = now
        self._must_end, self._must_be_cut, self._must_be_told, self._anyone_expired = {}, {}, [], False
        self._must_keep_to_budget = set()
        self._apply(event)
        for command in commands:
            self._check(command, event)
        assert not self._must_end, f"jobs that must end did not: {self._must_end}"
        assert not self._must_be_cut, f"jobs that must be cut were not: {self._must_be_cut}"
        assert not self._must_be_told, f"priorities that must be told were not: {self._must_be_told}"
        for job in self.waiting.values():
            used_up = job.member in self._must_keep_to_budget and self._is_over_budget(job)
            assert not used_up, f"{job.id} is not lowered"
        self._check_state()

    # What each command must be like.

    def _check(self, command: Command, event: ev.Event) -> None:
        match command:
            case RecordDispatch(dispatch=dispatch):
                self._check_dispatch(dispatch)
            case EndJob():
                if command.outcome is Outcome.WAITED_TOO_LONG:
                    self._check_expiry(command)
                assert next(iter(self._must_end), None) == command.job_id, f"{command} is not due"
                assert self._must_end.pop(command.job_id) is command.outcome
                self._check_retry(command, event)
                self._ended(command.job_id, command.outcome)
            case AbortJob():
                assert command.job_id in self.running
                assert self._must_be_cut.pop(command.job_id) is command.outcome
            case TellPriority(cause=PriorityCause.OVER_BUDGET):
                self._lowered(command.job_id, command.priority)
            case TellPriority():
                assert self._must_be_told.pop(0) == (command.job_id, command.priority)
            case RunJob():
                job = self.granted.pop(command.job_id)
                assert job.model == command.model
                assert self.servers[job.model].phase == "ready"
                assert not self._leaving(job.model)
                self.running[job.id] = job
                self._sent_at[job.id] = self.now
            case StartModel():
                self._check_start(command)
                self.servers[command.model].phase = "starting"
            case StopModel():
                self._check_stop(command, event)
                self.servers[command.model].phase = "stopping"

    def _check_expiry(self, command: EndJob) -> None:
        """A job that waited too long could not be sent just now; of several only the first is looked at."""
        job_id = command.job_id
        job = self.waiting.get(job_id) or self.granted[job_id]
        assert is_overdue(job, self.now, self.plan), f"{job_id} may wait longer"
        lane = self.servers[job.model].config.lane
        if lane in self.paused:
            assert command.retry_after_s is None
        elif job_id in self.waiting:
            # Coming again helps nobody whom only a load stands in the way of.
            cold = self.servers[job.model].phase != "ready"
            assert (command.retry_after_s or 0) >= 0
            assert command.retry_after_s is not None or cold
            best = self._best(lane)
            could_go = not self._anyone_expired and best is not None and best.winner == job_id and self.fits(job)
            assert not could_go, f"{job_id} could have been sent"
        self._anyone_expired = True
        self._drop(job_id, Outcome.WAITED_TOO_LONG)

    def _check_retry(self, command: EndJob, event: ev.Event) -> None:
        """Trying again later makes sense where something moves."""
        if command.outcome is Outcome.REFUSED_BACKOFF:
            assert command.retry_after_s is not None
            assert command.retry_after_s > 0
        elif command.outcome is Outcome.REFUSED_FULL:
            assert isinstance(event, ev.JobArrived)
            lane = self.servers[event.job.model].config.lane
            if command.retry_after_s is None:
                assert self.paused
            else:
                assert command.retry_after_s >= 0
                assert lane not in self.paused
                assert any(self.waiting_in(other) for other in self.lanes() - self.paused)
        elif command.outcome is not Outcome.WAITED_TOO_LONG:
            assert command.retry_after_s is None

    def _check_start(self, command: StartModel) -> None:
        server = self.servers[command.model]
        assert server.phase == "stopped", f"{command.model} is started while it is {server.phase}"
        assert server.config == self.plan.models[command.model]
        assert self.count(self.granted, command.model)
        assert not self.count(self.running, command.model)
        assert not self._leaving(command.model)

    def _check_stop(self, command: StopModel, event: ev.Event) -> None:
        server = self.servers[command.model]
        assert server.phase in ("starting", "ready")
        if command.cause in (StopCause.UNLOAD, StopCause.STUCK):
            assert event == ev.UnloadRequested(model=command.model, cause=command.cause)
            return
        assert not self.held(command.model), f"{command.model} is stopped under its jobs"
        match command.cause:
            case StopCause.SWAP | StopCause.ABANDONED:
                assert (command.cause is StopCause.SWAP) == (server.phase == "ready")
                assert any(command.model in self._leaving(job.model) for job in self.granted.values())
            case StopCause.TTL:
                due_at = self.expires_at(command.model)
                assert due_at is not None
                assert self.now >= due_at
            case StopCause.RELOAD:
                assert self._retiring(command.model)
            case StopCause.SHUTDOWN:
                assert self.shutting_down

    def _check_dispatch(self, dispatch: Dispatch) -> None:
        rules, lane = self.plan.rules, dispatch.lane
        admitted, found = self.admitted_in(lane), self._best(lane)
        assert found is not None, f"{dispatch} was to be passed over"
        assert found.winner == dispatch.winner.job_id, f"{found} does not say what {dispatch} says"
        assert found.without_aging == dispatch.without_aging.job_id
        assert found.without_affinity == dispatch.without_affinity.job_id
        assert found.without_turns == dispatch.without_turns.job_id
        assert found.first_come == dispatch.first_come.job_id
        job = self.waiting[found.winner]
        assert self.fits(job), f"{job.id} does not fit"
        assert not self._is_over_budget(job), f"{job.id} is run beyond its member's budget"
        self.dispatches += 1
        waiting = len(self.waiting_in(lane))
        assert (dispatch.number, dispatch.at, dispatch.waiting) == (self.dispatches, self.now, waiting)
        assert dispatch.clock == self.clock(job), f"{job.id} ages from {self.clock(job)}, not {dispatch.clock}"
        assert dispatch.swap == (job.model not in self.resident_in(lane))
        # Neither affinity nor a tier lifts anybody past a higher band; only aging may.
        highest = max(band_value(each, rules) for each in admitted)
        assert band_value(self.waiting[found.without_aging], rules) == highest
        self._check_patience(job, admitted)
        self._aged_from[job.id] = self.clock(job)
        self.granted[job.id] = self.waiting.pop(job.id)

    def _check_patience(self, job: ev.Job, admitted: list[ev.Job]) -> None:
        """Nobody who has waited long enough is passed again and again, unless by a limit of his own."""
        lane = self.servers[job.model].config.lane
        barred = {self._key(each) for each in self.waiting_in(lane) if each not in admitted}
        for key in barred:
            self.patience.forget(key)
        if self.plan.rules.aging_clock == "turn":
            passed = self.patience.served(
                self._key(job),
                now=self.now,
                waiting=[(self._key(each), each) for each in admitted],
                busy=barred | {self._key(each) for each in self.holding()},
                clock=self.clock,
                highest=HIGHEST,
                rules=self.plan.rules,
            )
            most = turns(job.member, self.plan.rules)
            assert passed <= most, f"{job.member} was served {passed} times before somebody who is starving"

    # What must hold after each event.

    def _check_state(self) -> None:
        for lane in self.lanes():
            holders = sum(self.held(name) for name in self._of_lane(lane))
            assert holders <= max(self._lanes[lane].size, self._places.get(lane, 0))
            self._places[lane] = holders
            self._check_best(lane)
        for name, server in self.servers.items():
            held = self.count(self.granted, name) + self.count(self.running, name)
            assert held <= max(server.config.slots, self._slots.get(name, 0))
            self._slots[name] = held
            if not held and server.phase in ("starting", "ready"):
                assert not self._retiring(name)
                assert not self.shutting_down
                due_at = self.expires_at(name)
                assert due_at is None or due_at > self.now, f"{name} outlives its ttl"
        self._pairs &= self._exclusive_pairs()
        assert self._exclusive_pairs() == self._pairs
        self._check_runs()
        for job in self.granted.values():
            self._check_granted(job)
        for job in [*self.waiting.values(), *self.granted.values()]:
            assert not is_overdue(job, self.now, self.plan), f"{job.id} has waited too long"

    def _check_runs(self) -> None:
        """No member and no key has more jobs with a place than it may, but for what a reload took from it."""
        limits, runs = self.plan.limits, self.runs()
        for (kind, name), held in runs.items():
            most = limits.max_running if kind == "member" else limits.running_of_keys.get(name)
            assert most is None or held <= max(most, self._runs.get((kind, name), 0)), f"{kind} {name} runs {held}"
        self._runs = runs

    def _check_best(self, lane: str) -> None:
        """Nothing waits while a place it could use is free."""
        best = self._best(lane)
        assert best is None or not self.fits(self.waiting[best.winner]), f"{best} could have a place"

    def _check_granted(self, job: ev.Job) -> None:
        """A job with a place waits for nothing but what is on its way."""
        phase, leaving = self.servers[job.model].phase, self._leaving(job.model)
        for other in leaving:
            assert not self.held(other), f"{job.id} has a place, but {other} still has jobs"
            assert self.servers[other].phase == "stopping", f"nobody stops {other}"
        if not leaving:
            assert phase != "ready", f"{job.id} was not sent"
            assert phase != "stopped" or self.count(self.running, job.model), f"{job.model} was not started"

    def _best(self, lane: str) -> Verdict | None:
        """Who goes next in a lane, as the judge has it; None when nobody may."""
        admitted = self.admitted_in(lane)
        if not admitted:
            return None
        resident = self.resident_in(lane)
        return judge(admitted, lane=lane, now=self.now, resident=resident, rules=self.plan.rules, turn=self.clock)
