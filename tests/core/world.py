"""A small world around one dispatcher: tests tell it what happens, it tells them what the dispatcher does.

Every event is also shown to an `Observer`, so each scenario checks all that must always hold. A world made with
`auto` answers commands by itself after the given seconds of imagined time; `run` lets that time pass.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
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
    TellPriority,
)
from swaplane.core.dispatcher import Dispatcher
from swaplane.core.limits import Limits
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import LanePlan, ModelPlan, Plan
from swaplane.core.residency import Group, Residency
from swaplane.core.score import ScoreRules
from tests.core.observer import Observer


def make_plan(
    *models: str | ModelPlan,
    lanes: Iterable[LanePlan] = (LanePlan(name="gpu"),),
    groups: Iterable[Group] = (),
    rules: ScoreRules | None = None,
    limits: Limits | None = None,
) -> Plan:
    """A plan. A model given by its name alone is one of lane "gpu" with the defaults."""
    plans = [ModelPlan(id=model, lane="gpu") if isinstance(model, str) else model for model in models]
    return Plan(
        models={model.id: model for model in plans},
        lanes={lane.name: lane for lane in lanes},
        residency=Residency(groups),
        rules=rules or ScoreRules(),
        limits=limits or Limits(),
    )


def together(*models: str, name: str = "together") -> Group:
    """A group whose models stay resident side by side, and beside all others."""
    return Group(name=name, members=frozenset(models), swap=False, exclusive=False)


def brief(command: Command) -> str:
    """A command in a few words. Dispatches are left out: every run or start has one; see `World.dispatches`."""
    match command:
        case StartModel():
            return f"start {command.model} ({command.cause})"
        case StopModel():
            return f"stop {command.model} ({command.cause})"
        case RunJob():
            return f"run {command.job_id}"
        case EndJob():
            return f"end {command.job_id} ({command.outcome})"
        case AbortJob():
            return f"abort {command.job_id} ({command.outcome})"
        case TellPriority():
            return f"tell {command.job_id} {command.priority} ({command.cause})"
        case RecordDispatch():
            return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """How long everything takes, in seconds."""

    run_s: dict[str, float]  #: by model
    load_s: float = 10.0
    stop_s: float = 0.0


@dataclass(slots=True)
class World:
    plan: Plan
    auto: Auto | None = None
    now: float = 0.0
    watched: bool = True  #: False for long lines, where judging by brute force takes minutes
    dispatcher: Dispatcher = field(init=False)
    observer: Observer = field(init=False)
    commands: list[Command] = field(default_factory=list)  #: of the last event
    dispatches: list[Dispatch] = field(default_factory=list)
    ran_at: dict[str, float] = field(default_factory=dict)  #: job id -> when it was sent
    _arrivals: int = 0
    _due: list[tuple[float, int, ev.Event]] = field(default_factory=list)
    _dues: int = 0

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(self.plan)
        self.observer = Observer(plan=self.plan)

    def do(self, event: ev.Event) -> list[str]:
        """One event; what the dispatcher commands, in brief."""
        self.commands = self.dispatcher.handle(event, self.now)
        if self.watched:
            self.observer.see(event, self.commands, self.now)
            assert self.dispatcher.wakes_at == self.observer.wakes_at()
        for command in self.commands:
            if isinstance(command, RecordDispatch):
                self.dispatches.append(command.dispatch)
            elif isinstance(command, RunJob):
                self.ran_at[command.job_id] = self.now
            if self.auto:
                self._answer(command, self.auto)
        return [text for command in self.commands if (text := brief(command))]

    def wakes_at(self) -> float | None:
        return self.dispatcher.wakes_at

    def job(
        self,
        job_id: str,
        model: str,
        *,
        priority: int = 0,
        member: str = "ann",
        key: str = "",
        body: int = 0,
        max_wait_s: float | None = None,
        at: float | None = None,
    ) -> ev.Job:
        self._arrivals += 1
        return ev.Job(
            id=job_id,
            seq=self._arrivals,
            model=model,
            member=member,
            priority=priority,
            submitted_at=self.now if at is None else at,
            key=key,
            bytes=body,
            max_wait_s=max_wait_s,
        )

    def arrive(
        self,
        job_id: str,
        model: str,
        *,
        priority: int = 0,
        member: str = "ann",
        key: str = "",
        body: int = 0,
        max_wait_s: float | None = None,
        promised: bool = False,
    ) -> list[str]:
        job = self.job(job_id, model, priority=priority, member=member, key=key, body=body, max_wait_s=max_wait_s)
        return self.do(ev.JobArrived(job=job, promised=promised))

    def reprioritise(self, job_id: str, priority: int) -> list[str]:
        return self.do(ev.PriorityChanged(job_id=job_id, priority=priority))

    def restore(self, *jobs: ev.Job, turns: Iterable[ev.Turn] = ()) -> list[str]:
        return self.do(ev.JobsRestored(jobs=jobs, turns=tuple(turns)))

    def leave(self, job_id: str, *, cancelled: bool = False) -> list[str]:
        return self.do(ev.JobLeft(job_id=job_id, cancelled=cancelled))

    def end(self, job_id: str, outcome: Outcome = Outcome.COMPLETED) -> list[str]:
        return self.do(ev.JobEnded(job_id=job_id, outcome=outcome))

    def ready(self, model: str, load_s: float = 10.0) -> list[str]:
        return self.do(ev.ModelReady(model=model, load_s=load_s))

    def fail(self, model: str, message: str = "exited with code 1") -> list[str]:
        return self.do(ev.ModelStartFailed(model=model, fault=ev.StartFault.EXITED, message=message))

    def stopped(self, model: str) -> list[str]:
        return self.do(ev.ModelStopped(model=model))

    def crash(self, model: str) -> list[str]:
        return self.do(ev.ModelExited(model=model, message="killed by signal 9"))

    def unload(self, model: str, cause: StopCause = StopCause.UNLOAD) -> list[str]:
        return self.do(ev.UnloadRequested(model=model, cause=cause))

    def change(self, plan: Plan) -> list[str]:
        return self.do(ev.PlanChanged(plan=plan))

    def wait(self, seconds: float) -> list[str]:
        self.now += seconds
        return self.do(ev.TimePassed())

    def have_ready(self, model: str, **kind: str) -> None:
        """Make a model resident and idle."""
        job_id = f"warm-up-{model}"
        self.arrive(job_id, model, **kind)  # type: ignore[arg-type]
        self.ready(model)
        self.end(job_id)

    # With `auto`.

    def at(self, moment: float, event: ev.Event) -> None:
        """Let something happen later."""
        self._dues += 1
        heapq.heappush(self._due, (moment, self._dues, event))

    def run(self, until: float = float("inf")) -> None:
        """Let time pass until `until`, or until nothing is on its way any more."""
        while self._due and self._due[0][0] <= until:
            self.now, _, event = heapq.heappop(self._due)
            self.do(event)

    def _answer(self, command: Command, auto: Auto) -> None:
        match command:
            case StartModel():
                self.at(self.now + auto.load_s, ev.ModelReady(model=command.model, load_s=auto.load_s))
            case StopModel():
                self.at(self.now + auto.stop_s, ev.ModelStopped(model=command.model))
            case RunJob():
                ended = ev.JobEnded(job_id=command.job_id, outcome=Outcome.COMPLETED)
                self.at(self.now + auto.run_s[command.model], ended)
            case _:
                pass
