"""What a dispatcher must know by now, rebuilt from the events it was given and the commands it gave.

Never read from the dispatcher, so that it can contradict it. `observer` compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from swaplane.core import events as ev
from swaplane.core.commands import StopCause
from swaplane.core.dispatcher import BACKOFF_S
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import LanePlan, ModelPlan, Plan
from tests.core.clocks import Clocks
from tests.core.gate import (
    Bills,
    band_name,
    counts_for_budget,
    is_full,
    is_overdue,
    is_reserved,
    leaves_at,
    lowered,
    runs_too_much,
)
from tests.core.judge import TurnKey, turn_key
from tests.core.patience import Patience


@dataclass(slots=True, kw_only=True)
class Server:
    """One model's server, as the commands and answers tell it."""

    config: ModelPlan  #: what it runs with; the plan's own once it is gone and its jobs have ended
    phase: str = "stopped"
    idle_since: float = 0.0
    failed_starts: int = 0
    retry_at: float = 0.0


@dataclass(slots=True, kw_only=True)
class Ledger:
    plan: Plan
    servers: dict[str, Server] = field(default_factory=dict)
    waiting: dict[str, ev.Job] = field(default_factory=dict)
    granted: dict[str, ev.Job] = field(default_factory=dict)  #: hold a place, not sent yet
    running: dict[str, ev.Job] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    arrivals: int = 0
    paused: set[str] = field(default_factory=set)
    shutting_down: bool = False
    clocks: Clocks = field(default_factory=Clocks)
    bills: Bills = field(default_factory=Bills)
    patience: Patience = field(default_factory=Patience)
    now: float = 0.0
    _aged_from: dict[str, float] = field(default_factory=dict)  #: clock of each job with a place, at its dispatch
    _sent_at: dict[str, float] = field(default_factory=dict)  #: of each job that was sent
    _must_end: dict[str, Outcome] = field(default_factory=dict)
    _must_be_cut: dict[str, Outcome] = field(default_factory=dict)
    _must_be_told: list[tuple[str, int]] = field(default_factory=list)
    _must_keep_to_budget: set[str] = field(default_factory=set)  #: members
    _places: dict[str, int] = field(default_factory=dict)  #: by lane: what a shrunk lane may still hold
    _slots: dict[str, int] = field(default_factory=dict)  #: by model: the same
    _runs: dict[tuple[str, str], int] = field(default_factory=dict)  #: by member and by key: the same
    _pairs: set[frozenset[str]] = field(default_factory=set)  #: excluded each other only since a plan change
    _lanes: dict[str, LanePlan] = field(default_factory=dict)  #: also those that are being given up

    def __post_init__(self) -> None:
        self.servers = {name: Server(config=model) for name, model in self.plan.models.items()}
        self._lanes = dict(self.plan.lanes)

    # What an event alone changes.

    def _apply(self, event: ev.Event) -> None:
        match event:
            case ev.JobArrived(job=job):
                self._arrive(job, promised=event.promised)
            case ev.JobsRestored(jobs=jobs, turns=turns):
                for job in sorted(jobs, key=lambda job: (job.submitted_at, job.seq)):
                    self._arrive(job, promised=True)
                for turn in turns:
                    member = "" if self.plan.rules.fairness == "none" else turn.member
                    key = (turn.lane, member, turn.band)
                    self.clocks.remember(key, turn.ended_at)
                    self.patience.forget(key)  # its clock may be later
            case ev.JobLeft(job_id=job_id) if job_id in self.waiting or job_id in self.granted:
                self._drop(job_id, Outcome.CANCELLED_WAITING if event.cancelled else Outcome.LEFT_WAITING)
            case ev.JobLeft(job_id=job_id) if job_id in self.running:
                self._must_be_cut[job_id] = Outcome.CANCELLED_RUNNING if event.cancelled else Outcome.LEFT_RUNNING
            case ev.JobEnded(job_id=job_id) if job_id in self.running:
                self._run_ended(job_id, event.outcome)
            case ev.PriorityChanged(job_id=job_id) if job_id in self.waiting:
                self._reprioritise(job_id, event.priority)
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

    def _arrive(self, job: ev.Job, *, promised: bool) -> None:
        self.arrivals += 1
        if (outcome := self.refused(job, promised=promised)) is not None:
            self._must_end[job.id] = outcome
            return
        self.waiting[job.id] = job
        if job.submitted_at < self.now:
            self.patience.forget(self._key(job))  # its oldest job may be another
        self._keeps_to_budget(job)

    def refused(self, job: ev.Job, *, promised: bool = False) -> Outcome | None:
        """How the job has to be refused now; None when it has to be taken."""
        server = self.servers.get(job.model)
        if self.shutting_down:
            return Outcome.REFUSED_STOPPING
        if server is None or job.model not in self.plan.models:
            return Outcome.MODEL_REMOVED
        if self.now < server.retry_at:
            return Outcome.REFUSED_BACKOFF
        applied = replace(job, priority=lowered(job, self.plan)) if self._is_over_budget(job) else job
        if not promised and is_full(applied, self.waiting.values(), self.plan):
            return Outcome.REFUSED_FULL
        return None

    def _run_ended(self, job_id: str, outcome: Outcome) -> None:
        job = self.running[job_id]
        key, slots = self._key(job), self.servers[job.model].config.slots
        if outcome.ran:
            service_s = (self.now - self._sent_at[job_id]) / slots
            active = {self._key(each) for each in [*self.waiting.values(), *self.holding()]}
            self.clocks.ran(
                key,
                now=self.now,
                service_s=service_s,
                aged_from=self._aged_from[job_id],
                active=active,
                rules=self.plan.rules,
            )
            if counts_for_budget(job, self.plan):
                self.bills.charges.append((job.member, self.now, service_s))
        else:
            self.patience.not_served(key)
        del self.running[job_id]
        self._ended(job_id, outcome)
        self.servers[job.model].idle_since = self.now
        self._succeed()
        self._keeps_to_budget(job)

    def _keeps_to_budget(self, job: ev.Job) -> None:
        """A job came or ended that counts for its member's budget: what waits of it must be lowered if that is over."""
        if counts_for_budget(job, self.plan):
            self._must_keep_to_budget.add(job.member)

    def _lowered(self, job_id: str, priority: int) -> None:
        """A job was told that it is lowered."""
        job = self.waiting[job_id]
        assert self._is_over_budget(job), f"{job_id} is lowered, and its member has budget left"
        assert priority == lowered(job, self.plan)
        self._move(job, priority)

    def _is_over_budget(self, job: ev.Job) -> bool:
        return counts_for_budget(job, self.plan) and self.budget_left_s(job.member) == 0

    def _reprioritise(self, job_id: str, priority: int) -> None:
        self._move(self.waiting[job_id], priority)
        self._must_be_told.append((job_id, priority))

    def _move(self, job: ev.Job, priority: int) -> None:
        self.patience.forget(self._key(job))
        moved = replace(job, priority=priority)
        if band_name(moved, self.plan.rules) != band_name(job, self.plan.rules):
            moved = replace(moved, in_band_since=self.now)
        self.waiting[job.id] = moved
        self.patience.forget(self._key(moved))

    def _change_plan(self, plan: Plan) -> None:
        for name in self.servers:
            if name not in plan.models:
                self._drop_all(name, Outcome.MODEL_REMOVED)
        sizes = {name: lane.size for name, lane in self._lanes.items()}
        slots = {name: server.config.slots for name, server in self.servers.items()}
        self.plan = plan
        self._lanes |= plan.lanes
        for name, model in plan.models.items():
            self.servers.setdefault(name, Server(config=model))
        self._succeed()
        for job in reversed(list(self.granted.values())):
            if any(self.held(other) for other in self._leaving(job.model)):
                self._take_back(job)
        self._places |= {lane: max(sizes.get(lane, 0), self._places.get(lane, 0)) for lane in self.lanes()}
        self._slots |= {name: max(slots.get(name, 0), self._slots.get(name, 0)) for name in self.servers}
        self._runs = self.runs()
        self._pairs = self._exclusive_pairs()
        self.patience.forget()
        self.clocks.new_rules()

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
                    self._take_back(job)
                self.patience.forget()
                self.clocks.new_rules()
        self.paused &= self.lanes()

    def _take_back(self, job: ev.Job) -> None:
        self.waiting[job.id] = self.granted.pop(job.id)

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

    # What may happen now.

    def kept_out(self, job: ev.Job) -> bool:
        """Whether a waiting job is passed over for now."""
        if runs_too_much(job, self.holding(), self.plan):
            return True
        server = self.servers[job.model]
        places: dict[str, int] = {}
        for each in self.holding():
            if self.servers[each.model].config.lane == server.config.lane:
                places[each.model] = max(each.priority, places.get(each.model, each.priority))
        joins = places[job.model] if self.held(job.model) and self.takes_more(job.model) else None
        return is_reserved(job, self._lanes[server.config.lane], places.values(), self.plan.rules, joins=joins)

    def fits(self, job: ev.Job) -> bool:
        """Whether a waiting job could have a place now."""
        lane = self.servers[job.model].config.lane
        holders = [name for name in self._of_lane(lane) if self.held(name)]
        if lane in self.paused or self.shutting_down:
            return False
        if job.model in holders:
            if not self.takes_more(job.model):
                return False
        elif len(holders) >= self._lanes[lane].size:
            return False
        leaving = self._leaving(job.model)
        if any(self.held(other) for other in leaving):
            return False
        at_once = self.servers[job.model].phase == "ready" and not leaving
        if is_overdue(job, self.now, self.plan) and not at_once:
            return False
        loading = [name for name in holders if self.count(self.granted, name)]
        return not any(self.plan.residency.must_leave(name, [job.model]) for name in loading)

    def takes_more(self, model: str) -> bool:
        server = self.servers[model]
        count = self.count(self.granted, model) + self.count(self.running, model)
        return server.phase == "ready" and not self._retiring(model) and count < server.config.slots

    def budget_left_s(self, member: str) -> float | None:
        so_far = [
            (job, (self.now - self._sent_at[job.id]) / self.servers[job.model].config.slots)
            for job in self.running.values()
        ]
        return self.bills.left_s(member, so_far, self.now, self.plan)

    def wakes_at(self) -> float | None:
        idle = [self.expires_at(name) for name in self.servers]
        waits = [leaves_at(job, self.plan) for job in [*self.waiting.values(), *self.granted.values()]]
        return min([at for at in [*idle, *waits] if at is not None], default=None)

    def expires_at(self, name: str) -> float | None:
        server = self.servers[name]
        wanted = self.count(self.waiting, name) or self.held(name)
        if server.config.ttl_s is None or server.phase != "ready" or wanted:
            return None
        return server.idle_since + server.config.ttl_s

    # Small questions.

    def lanes(self) -> set[str]:
        return {*self.plan.lanes, *(server.config.lane for server in self.servers.values())}

    def waiting_in(self, lane: str) -> list[ev.Job]:
        return [job for job in self.waiting.values() if self.servers[job.model].config.lane == lane]

    def admitted_in(self, lane: str) -> list[ev.Job]:
        """Those that wait in a lane and are not passed over."""
        return [job for job in self.waiting_in(lane) if not self.kept_out(job)]

    def resident_in(self, lane: str) -> list[str]:
        return [name for name, server in self._of_lane(lane).items() if server.phase == "ready"]

    def holding(self) -> list[ev.Job]:
        return [*self.granted.values(), *self.running.values()]

    def runs(self) -> dict[tuple[str, str], int]:
        """Jobs with a place, by member and by key."""
        found: dict[tuple[str, str], int] = {}
        for job in self.holding():
            for who in (("member", job.member), ("key", job.key)):
                found[who] = found.get(who, 0) + 1
        return found

    def count(self, jobs: dict[str, ev.Job], model: str) -> int:
        return sum(job.model == model for job in jobs.values())

    def held(self, model: str) -> bool:
        return any(job.model == model for job in self.holding())

    def clock(self, job: ev.Job) -> float:
        """The moment from which a waiting job ages."""
        if self.plan.rules.aging_clock == "submit":
            return job.submitted_at
        key = self._key(job)
        since = max(job.submitted_at, self.clocks.since.get(key, job.submitted_at))
        return max(since, self.now) if any(self._key(other) == key for other in self.holding()) else since

    def _key(self, job: ev.Job) -> TurnKey:
        return turn_key(job, self.servers[job.model].config.lane, self.plan.rules)

    def _of_lane(self, lane: str) -> dict[str, Server]:
        return {name: server for name, server in self.servers.items() if server.config.lane == lane}

    def _leaving(self, model: str) -> list[str]:
        """The other models of its lane that have to leave before it may serve."""
        lane = self._of_lane(self.servers[model].config.lane)
        present = [name for name, server in lane.items() if server.phase != "stopped" or self.held(name)]
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
