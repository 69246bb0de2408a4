"""Watches a dispatcher from outside: the events it is given, the commands it gives. Knows what must hold.

The state here is rebuilt from events and commands alone, never read from the dispatcher, so that it can
contradict it. `see` is called once per event and raises AssertionError for anything that must not be.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swaplane.core import events as ev
from swaplane.core.commands import (
    AbortJob,
    Command,
    Dispatch,
    EndJob,
    RecordDispatch,
    RunJob,
    StartModel,
    StopCause,
    StopModel,
)
from swaplane.core.dispatcher import BACKOFF_S
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import ModelPlan, Plan
from tests.core.judge import Patience, TurnKey, band_value, judge, turn_key

HIGHEST = 250  #: no test sends a higher priority where the waiting bound is checked


@dataclass(slots=True, kw_only=True)
class Server:
    """One model's server, as the commands and answers tell it."""

    config: ModelPlan  #: what it runs with; the plan's own once it is gone and its jobs have ended
    phase: str = "stopped"
    idle_since: float = 0.0
    failed_starts: int = 0
    retry_at: float = 0.0


@dataclass(slots=True, kw_only=True)
class Observer:
    plan: Plan
    servers: dict[str, Server] = field(default_factory=dict)
    waiting: dict[str, ev.Job] = field(default_factory=dict)
    granted: dict[str, ev.Job] = field(default_factory=dict)  #: hold a place, not sent yet
    running: dict[str, ev.Job] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    arrivals: int = 0
    dispatches: int = 0
    paused: set[str] = field(default_factory=set)
    shutting_down: bool = False
    last_end: dict[TurnKey, float] = field(default_factory=dict)
    patience: Patience = field(default_factory=Patience)
    now: float = 0.0
    _must_end: dict[str, Outcome] = field(default_factory=dict)
    _must_be_cut: dict[str, Outcome] = field(default_factory=dict)
    _places: dict[str, int] = field(default_factory=dict)  #: by lane: what a shrunk lane may still hold
    _slots: dict[str, int] = field(default_factory=dict)  #: by model: the same
    _pairs: set[frozenset[str]] = field(default_factory=set)  #: excluded each other only since a plan change
    _sizes: dict[str, int] = field(default_factory=dict)  #: of the lanes, also those that are being given up

    def __post_init__(self) -> None:
        self.servers = {name: Server(config=model) for name, model in self.plan.models.items()}
        self._sizes = {name: lane.size for name, lane in self.plan.lanes.items()}

    def see(self, event: ev.Event, commands: list[Command], now: float) -> None:
        """Take in one event and what the dispatcher did about it."""
        self.now = now
        self._must_end, self._must_be_cut = {}, {}
        self._apply(event)
        for command in commands:
            self._check(command, event)
        assert not self._must_end, f"jobs that must end did not: {self._must_end}"
        assert not self._must_be_cut, f"jobs that must be cut were not: {self._must_be_cut}"
        self._check_state()

    # What the event alone changes.

    def _apply(self, event: ev.Event) -> None:
        match event:
            case ev.JobArrived(job=job):
                self._arrive(job)
            case ev.JobsRestored(jobs=jobs, turns=turns):
                for job in sorted(jobs, key=lambda job: (job.submitted_at, job.seq)):
                    self._arrive(job)
                for turn in turns:
                    member = turn.member if self.plan.rules.fairness == "turns" else ""
                    key = (turn.lane, member, turn.band)
                    self._turn_ended(key, turn.ended_at)
                    self.patience.forget(key)  # its clock may be later
            case ev.JobLeft(job_id=job_id) if job_id in self.waiting or job_id in self.granted:
                self._drop(job_id, Outcome.CANCELLED_WAITING if event.cancelled else Outcome.LEFT_WAITING)
            case ev.JobLeft(job_id=job_id) if job_id in self.running:
                self._must_be_cut[job_id] = Outcome.CANCELLED_RUNNING if event.cancelled else Outcome.LEFT_RUNNING
            case ev.JobEnded(job_id=job_id) if job_id in self.running:
                job = self.running.pop(job_id)
                self._ended(job_id, event.outcome)
                key = self._key(job)
                if event.outcome.ran:
                    self._turn_ended(key, self.now)
                else:
                    self.patience.not_served(key)
                self.servers[job.model].idle_since = self.now
                self._succeed()
            case ev.ModelReady(model=name) if name in self.servers and self.servers[name].phase == "starting":
                server = self.servers[name]
                server.phase, server.idle_since, server.failed_starts = "ready", self.now, 0
            case ev.ModelStartFailed(model=name) if name in self.servers:
                server = self.servers[name]
                if server.phase == "starting":
                    server.failed_starts += 1
                    server.retry_at = self.now + BACKOFF_S[min(server.failed_starts, 5) - 1]
                    self._drop_all(name, Outcome.START_FAILED)
                server.phase = "stopped"
                self._succeed()
            case ev.ModelStopped(model=name) | ev.ModelExited(model=name) if name in self.servers:
                self.servers[name].phase = "stopped"
                self._succeed()
            case ev.UnloadRequested(model=name) if name in self.servers:
                if self.servers[name].phase in ("starting", "ready"):
                    cut = [job.id for job in self.running.values() if job.model == name]
                    self._must_be_cut = dict.fromkeys(cut, Outcome.UNLOADED_RUNNING)
                    loading = [job.id for job in self.granted.values() if job.model == name]
                    for job_id in loading if event.cause is StopCause.UNLOAD else []:
                        self._drop(job_id, Outcome.UNLOADED_WAITING)
            case ev.LanePaused(lane=lane):
                self.paused |= {lane} & self.lanes()
            case ev.LaneResumed(lane=lane):
                self.paused -= {lane}
            case ev.PlanChanged(plan=plan):
                self._change_plan(plan)
            case ev.ShutdownRequested():
                self.shutting_down = True
                for name in self.servers:
                    self._drop_all(name, Outcome.STOPPED_WAITING)
            case _:
                pass

    def _arrive(self, job: ev.Job) -> None:
        self.arrivals += 1
        server = self.servers.get(job.model)
        if self.shutting_down:
            self._must_end[job.id] = Outcome.REFUSED_STOPPING
        elif server is None or job.model not in self.plan.models:
            self._must_end[job.id] = Outcome.MODEL_REMOVED
        elif self.now < server.retry_at:
            self._must_end[job.id] = Outcome.REFUSED_BACKOFF
        else:
            self.waiting[job.id] = job
            if job.submitted_at < self.now:
                self.patience.forget(self._key(job))  # its oldest job may be another

    def _turn_ended(self, key: TurnKey, ended_at: float) -> None:
        self.last_end[key] = max(ended_at, self.last_end.get(key, ended_at))

    def _change_plan(self, plan: Plan) -> None:
        for name in self.servers:
            if name not in plan.models:
                self._drop_all(name, Outcome.MODEL_REMOVED)
        sizes = dict(self._sizes)
        slots = {name: server.config.slots for name, server in self.servers.items()}
        self.plan = plan
        self._sizes |= {name: lane.size for name, lane in plan.lanes.items()}
        for name, model in plan.models.items():
            self.servers.setdefault(name, Server(config=model))
        self._succeed()
        for job in reversed(list(self.granted.values())):
            if any(self._held(other) for other in self._leaving(job.model)):
                self.waiting[job.id] = self.granted.pop(job.id)
        self._places |= {lane: max(sizes.get(lane, 0), self._places.get(lane, 0)) for lane in self.lanes()}
        self._slots |= {name: max(slots.get(name, 0), self._slots.get(name, 0)) for name in self.servers}
        self._pairs = self._exclusive_pairs()
        self.patience.forget()

    def _succeed(self) -> None:
        """Servers that are gone, with all their jobs, take over the plan's configuration."""
        for name, server in list(self.servers.items()):
            if server.phase != "stopped" or any(job.model == name for job in self.running.values()):
                if not self._retiring(name):
                    server.config = self.plan.models[name]
                continue
            new = self.plan.models.get(name)
            if new is None:
                del self.servers[name]
                continue
            if self._retiring(name):
                server.failed_starts, server.retry_at = 0, 0.0
            moved, server.config = new.lane != server.config.lane, new
            if moved:
                for job in [job for job in self.granted.values() if job.model == name]:
                    self.waiting[job.id] = self.granted.pop(job.id)
                self.patience.forget()
        self.paused &= self.lanes()

    def _drop_all(self, model: str, outcome: Outcome) -> None:
        found = [job for job in [*self.waiting.values(), *self.granted.values()] if job.model == model]
        for job in sorted(found, key=lambda job: job.seq):
            self._drop(job.id, outcome)

    def _drop(self, job_id: str, outcome: Outcome) -> None:
        """A job that was not sent must be told its end now."""
        if job_id in self.granted:
            job = self.granted.pop(job_id)
            self.patience.not_served(self._key(job))
            self.servers[job.model].idle_since = self.now
        else:
            job = self.waiting.pop(job_id)
        self.patience.forget(self._key(job))
        self._must_end[job_id] = outcome

    def _ended(self, job_id: str, outcome: Outcome) -> None:
        assert job_id not in self.outcomes, f"{job_id} ended twice"
        self.outcomes[job_id] = outcome

    # What each command must be like.

    def _check(self, command: Command, event: ev.Event) -> None:
        match command:
            case RecordDispatch(dispatch=dispatch):
                self._check_dispatch(dispatch)
            case EndJob():
                assert next(iter(self._must_end), None) == command.job_id, f"{command} is not due"
                assert self._must_end.pop(command.job_id) is command.outcome
                self._ended(command.job_id, command.outcome)
            case AbortJob():
                assert command.job_id in self.running
                assert self._must_be_cut.pop(command.job_id) is command.outcome
            case RunJob():
                job = self.granted.pop(command.job_id)
                assert job.model == command.model
                assert self.servers[job.model].phase == "ready"
                assert not self._leaving(job.model)
                self.running[job.id] = job
            case StartModel():
                server = self.servers[command.model]
                assert server.phase == "stopped", f"{command.model} is started while it is {server.phase}"
                assert server.config == self.plan.models[command.model]
                assert self._count(self.granted, command.model)
                assert not self._count(self.running, command.model)
                assert not self._leaving(command.model)
                server.phase = "starting"
            case StopModel():
                self._check_stop(command, event)
                self.servers[command.model].phase = "stopping"

    def _check_stop(self, command: StopModel, event: ev.Event) -> None:
        server = self.servers[command.model]
        assert server.phase in ("starting", "ready")
        if command.cause in (StopCause.UNLOAD, StopCause.STUCK):
            assert event == ev.UnloadRequested(model=command.model, cause=command.cause)
            return
        assert not self._held(command.model), f"{command.model} is stopped under its jobs"
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
        waiting = self.waiting_in(lane)
        resident = [name for name, server in self._of_lane(lane).items() if server.phase == "ready"]
        found = judge(waiting, lane=lane, now=self.now, resident=resident, rules=rules, turn=self._clock)
        assert found.winner == dispatch.winner.job_id, f"{found} does not say what {dispatch} says"
        assert found.without_aging == dispatch.without_aging.job_id
        assert found.without_affinity == dispatch.without_affinity.job_id
        assert found.without_turns == dispatch.without_turns.job_id
        assert found.first_come == dispatch.first_come.job_id
        job = self.waiting[found.winner]
        assert self.fits(job), f"{job.id} does not fit"
        self.dispatches += 1
        assert (dispatch.number, dispatch.at, dispatch.waiting) == (self.dispatches, self.now, len(waiting))
        assert dispatch.clock == self._clock(job)
        assert dispatch.swap == (job.model not in resident)
        # Neither affinity nor a tier lifts anybody past a higher band; only aging may.
        highest = max(band_value(each, rules) for each in waiting)
        assert band_value(self.waiting[found.without_aging], rules) == highest
        self._check_patience(job, waiting)
        self.granted[job.id] = self.waiting.pop(job.id)

    def _check_patience(self, job: ev.Job, waiting: list[ev.Job]) -> None:
        if self.plan.rules.aging_clock == "turn":
            passed = self.patience.served(
                self._key(job),
                now=self.now,
                waiting=[(self._key(each), each) for each in waiting],
                busy={self._key(each) for each in self._holding()},
                last_end=self.last_end,
                highest=HIGHEST,
                rules=self.plan.rules,
            )
            assert passed <= 1, f"{job.member} was served {passed} times before somebody who is starving"

    # What must hold after each event.

    def _check_state(self) -> None:
        for lane in self.lanes():
            holders = sum(self._held(name) for name in self._of_lane(lane))
            assert holders <= max(self._sizes[lane], self._places.get(lane, 0))
            self._places[lane] = holders
            self._check_best(lane)
        for name, server in self.servers.items():
            held = self._count(self.granted, name) + self._count(self.running, name)
            assert held <= max(server.config.slots, self._slots.get(name, 0))
            self._slots[name] = held
            if not held and server.phase in ("starting", "ready"):
                assert not self._retiring(name)
                assert not self.shutting_down
                due_at = self.expires_at(name)
                assert due_at is None or due_at > self.now, f"{name} outlives its ttl"
        self._pairs &= self._exclusive_pairs()
        assert self._exclusive_pairs() == self._pairs
        for job in self.granted.values():
            self._check_granted(job)

    def _check_best(self, lane: str) -> None:
        """Nothing waits while a place it could use is free."""
        waiting = self.waiting_in(lane)
        if waiting:
            resident = [name for name, server in self._of_lane(lane).items() if server.phase == "ready"]
            found = judge(waiting, lane=lane, now=self.now, resident=resident, rules=self.plan.rules, turn=self._clock)
            assert not self.fits(self.waiting[found.winner]), f"{found.winner} could have a place"

    def _check_granted(self, job: ev.Job) -> None:
        """A job with a place waits for nothing but what is on its way."""
        phase, leaving = self.servers[job.model].phase, self._leaving(job.model)
        for other in leaving:
            assert not self._held(other), f"{job.id} has a place, but {other} still has jobs"
            assert self.servers[other].phase == "stopping", f"nobody stops {other}"
        if not leaving:
            assert phase != "ready", f"{job.id} was not sent"
            assert phase != "stopped" or self._count(self.running, job.model), f"{job.model} was not started"

    def fits(self, job: ev.Job) -> bool:
        """Whether a waiting job could have a place now."""
        server = self.servers[job.model]
        lane = server.config.lane
        holders = [name for name in self._of_lane(lane) if self._held(name)]
        if lane in self.paused or self.shutting_down:
            return False
        if job.model in holders:
            count = self._count(self.granted, job.model) + self._count(self.running, job.model)
            if server.phase != "ready" or self._retiring(job.model) or count >= server.config.slots:
                return False
        elif len(holders) >= self._sizes[lane]:
            return False
        if any(self._held(other) for other in self._leaving(job.model)):
            return False
        loading = [name for name in holders if self._count(self.granted, name)]
        return not any(self.plan.residency.must_leave(name, [job.model]) for name in loading)

    def wakes_at(self) -> float | None:
        return min([at for name in self.servers if (at := self.expires_at(name)) is not None], default=None)

    def expires_at(self, name: str) -> float | None:
        server = self.servers[name]
        wanted = self._count(self.waiting, name) or self._held(name)
        if server.config.ttl_s is None or server.phase != "ready" or wanted:
            return None
        return server.idle_since + server.config.ttl_s

    # Small questions.

    def lanes(self) -> set[str]:
        return {*self.plan.lanes, *(server.config.lane for server in self.servers.values())}

    def waiting_in(self, lane: str) -> list[ev.Job]:
        return [job for job in self.waiting.values() if self.servers[job.model].config.lane == lane]

    def _of_lane(self, lane: str) -> dict[str, Server]:
        return {name: server for name, server in self.servers.items() if server.config.lane == lane}

    def _holding(self) -> list[ev.Job]:
        return [*self.granted.values(), *self.running.values()]

    def _count(self, jobs: dict[str, ev.Job], model: str) -> int:
        return sum(job.model == model for job in jobs.values())

    def _held(self, model: str) -> bool:
        return any(job.model == model for job in self._holding())

    def _leaving(self, model: str) -> list[str]:
        """The other models of its lane that have to leave before it may serve."""
        lane = self._of_lane(self.servers[model].config.lane)
        present = [name for name, server in lane.items() if server.phase != "stopped" or self._held(name)]
        return [name for name in present if self.plan.residency.must_leave(model, [name])]

    def _exclusive_pairs(self) -> set[frozenset[str]]:
        alive = [name for name, server in self.servers.items() if server.phase != "stopped"]
        return {
            frozenset((one, two))
            for one in alive
            for two in alive
            if one < two
            and self.servers[one].config.lane == self.servers[two].config.lane
            and self.plan.residency.must_leave(one, [two])
            and self.plan.residency.must_leave(two, [one])
        }

    def _retiring(self, name: str) -> bool:
        old, new = self.servers[name].config, self.plan.models.get(name)
        return new is None or (old.fingerprint, old.lane) != (new.fingerprint, new.lane)

    def _key(self, job: ev.Job) -> TurnKey:
        return turn_key(job, self.servers[job.model].config.lane, self.plan.rules)

    def _clock(self, job: ev.Job) -> float:
        if self.plan.rules.aging_clock == "submit":
            return job.submitted_at
        key = self._key(job)
        if any(self._key(other) == key for other in self._holding()):
            return self.now
        return max(job.submitted_at, self.last_end.get(key, job.submitted_at))
