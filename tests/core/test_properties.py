"""A random world around the dispatcher: whatever happens in whatever order, what must hold holds.

The machine knows only what a runtime would know: which answers are still owed. `Observer` judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from swaplane.core import events as ev
from swaplane.core.commands import Command, EndJob, StopCause
from swaplane.core.dispatcher import Dispatcher
from swaplane.core.explain import lane_view, members_view
from swaplane.core.forecast import forecast
from swaplane.core.limits import Limits
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import Plan
from tests.core.observer import Observer
from tests.core.strategies import (
    KEYS,
    LANES,
    MEMBERS,
    MODELS,
    PRIORITIES,
    PastTurn,
    RestoredJob,
    bodies,
    limits,
    max_waits,
    plans,
    restored_jobs,
    seconds,
    turns,
)

T = TypeVar("T")

choice = st.integers(min_value=0, max_value=10**6)


def chosen(options: Iterable[T], number: int) -> T:
    found = list(options)
    return found[number % len(found)]


class AnyWorld(RuleBasedStateMachine):
    @initialize(plan=plans())
    def begin(self, plan: Plan) -> None:
        self.first_plan = plan
        self.dispatcher = Dispatcher(plan)
        self.observer = Observer(plan=plan)
        self.now = 0.0
        self.seq = 0
        self.owed_end: set[str] = set()
        self.log: list[tuple[ev.Event | ev.Job, float, list[Command] | EndJob | None]] = []

    def do(self, event: ev.Event) -> None:
        if isinstance(event, ev.JobArrived) and not event.promised:
            self.would_be_refused(event.job)
        commands = self.dispatcher.handle(event, self.now)
        self.log.append((event, self.now, commands))
        self.observer.see(event, commands, self.now)
        assert self.dispatcher.wakes_at == self.observer.wakes_at()

    def would_be_refused(self, job: ev.Job) -> None:
        """Asking is told to the second dispatcher: those who are refused are told one moment after the other."""
        refusal = self.dispatcher.refusal(job, self.now)
        self.log.append((job, self.now, refusal))
        self.observer.now = self.now
        assert (None if refusal is None else refusal.outcome) is self.observer.refused(job)

    def models_in(self, *phases: str) -> list[str]:
        return sorted(name for name, server in self.observer.servers.items() if server.phase in phases)

    def any_model(self, number: int) -> str:
        """Mostly one that there is."""
        return chosen([*(sorted(self.observer.servers) * 3), "unknown"], number)

    def job(
        self,
        model: int,
        member: str,
        priority: int,
        *,
        ago_s: float = 0.0,
        key: str = "",
        body: int = 0,
        max_wait_s: float | None = None,
    ) -> ev.Job:
        self.seq += 1
        return ev.Job(
            id=f"j{self.seq}",
            seq=self.seq,
            model=self.any_model(model),
            member=member,
            priority=priority,
            submitted_at=self.now - ago_s,
            key=key,
            bytes=body,
            max_wait_s=max_wait_s,
        )

    # Clients.

    @rule(
        model=choice,
        member=st.sampled_from(MEMBERS),
        priority=st.sampled_from(PRIORITIES),
        key=st.sampled_from(KEYS),
        body=bodies,
        max_wait_s=max_waits,
        promised=st.sampled_from([False, False, False, True]),
        count=st.integers(1, 4),
    )
    def jobs_arrive(
        self,
        model: int,
        member: str,
        priority: int,
        key: str,
        body: int,
        max_wait_s: float | None,
        promised: bool,
        count: int,
    ) -> None:
        for _ in range(count):
            job = self.job(model, member, priority, key=key, body=body, max_wait_s=max_wait_s)
            self.do(ev.JobArrived(job=job, promised=promised))

    @rule(
        model=choice,
        member=st.sampled_from(MEMBERS),
        priority=st.sampled_from(PRIORITIES),
        key=st.sampled_from(KEYS),
        count=st.integers(3, 9),
    )
    def a_backlog_arrives(self, model: int, member: str, priority: int, key: str, count: int) -> None:
        for _ in range(count):
            self.do(ev.JobArrived(job=self.job(model, member, priority, key=key)))

    @rule(jobs=st.lists(restored_jobs, max_size=4), turns=st.lists(turns, max_size=2), named=st.randoms())
    def jobs_are_restored(self, jobs: list[RestoredJob], turns: list[PastTurn], named: Random) -> None:
        """At any time, though a gateway does it at its start; in whatever order, submitted before it or not."""
        found = [
            replace(self.job(model, member, priority, ago_s=ago_s, max_wait_s=max_wait_s), ran_before=ran_before)
            for model, member, priority, ago_s, max_wait_s, ran_before in jobs
        ]
        named.shuffle(found)
        ended = [
            ev.Turn(lane=lane, member=member, band=band, ended_at=self.now - ago_s)
            for lane, member, band, ago_s in turns
        ]
        self.do(ev.JobsRestored(jobs=tuple(found), turns=tuple(ended)))

    @precondition(lambda self: self.observer.waiting or self.observer.granted or self.observer.running)
    @rule(number=choice, cancelled=st.booleans())
    def a_client_leaves(self, number: int, cancelled: bool) -> None:
        seen = self.observer
        self.do(ev.JobLeft(job_id=chosen([*seen.granted, *seen.running, *seen.waiting], number), cancelled=cancelled))

    @precondition(lambda self: self.observer.waiting or self.observer.granted or self.observer.running)
    @rule(number=choice, priority=st.sampled_from(PRIORITIES))
    def a_job_gets_another_priority(self, number: int, priority: int) -> None:
        """Also one that does not wait any more: the wish and its dispatch may cross."""
        seen = self.observer
        self.do(
            ev.PriorityChanged(
                job_id=chosen([*seen.waiting, *seen.waiting, *seen.granted, *seen.running], number), priority=priority
            )
        )

    @rule()
    def somebody_looks(self) -> None:
        """What is shown agrees with what is so; that looking changes nothing, the second dispatcher tells."""
        seen = self.observer
        for name, lane in self.dispatcher.lanes.items():
            view = lane_view(self.dispatcher, lane, self.now, limit=10**6)
            waiting = seen.waiting_in(name)
            assert {each.job.id for each in view.waiting} == {job.id for job in waiting}
            assert [each.position for each in view.waiting] == list(range(1, len(waiting) + 1))
            expected = [each.at for each in forecast(self.dispatcher, lane, self.now)]
            assert expected == sorted(expected)
            assert not expected or expected[0] >= self.now
            assert {job.id for job in waiting if lane.bar.keeps_out(job)} == {
                job.id for job in waiting if seen.kept_out(job)
            }
        members = members_view(self.dispatcher, self.now)
        for member in members:
            assert member.budget_left_s == seen.budget_left_s(member.member)
            assert member.running == seen.runs().get(("member", member.member), 0)
            assert member.waiting == sum(job.member == member.member for job in seen.waiting.values())
        assert {job.member for job in [*seen.waiting.values(), *seen.holding()]} <= {each.member for each in members}
        assert sum(member.share for member in members) in (0.0, pytest.approx(1.0))

    # Answers to commands, in any order.

    @precondition(lambda self: self.observer.running)
    @rule(number=choice, outcome=st.sampled_from([Outcome.COMPLETED, *Outcome]))
    def a_run_ends(self, number: int, outcome: Outcome) -> None:
        self.do(ev.JobEnded(job_id=chosen(self.observer.running, number), outcome=outcome))

    @precondition(lambda self: self.models_in("starting"))
    @rule(number=choice)
    def a_model_is_ready(self, number: int) -> None:
        self.do(ev.ModelReady(model=chosen(self.models_in("starting"), number), load_s=5.0))

    @precondition(lambda self: self.models_in("starting", "stopping"))
    @rule(number=choice)
    def a_start_fails(self, number: int) -> None:
        """Also when it was told to stop: the failure and the order may cross."""
        model = chosen(self.models_in("starting", "stopping"), number)
        self.do(ev.ModelStartFailed(model=model, fault=ev.StartFault.EXITED, message="exited"))

    @precondition(lambda self: self.models_in("stopping"))
    @rule(number=choice)
    def a_model_has_stopped(self, number: int) -> None:
        self.do(ev.ModelStopped(model=chosen(self.models_in("stopping"), number)))

    @precondition(lambda self: self.models_in("ready", "stopping"))
    @rule(number=choice)
    def a_model_crashes(self, number: int) -> None:
        """Also when it was told to stop: the crash and the order may cross."""
        self.do(ev.ModelExited(model=chosen(self.models_in("ready", "stopping"), number), message="exited"))

    @rule(count=st.integers(1, 12), step_s=st.sampled_from([0.0, 0.25, 1.0, 10.0, 60.0]))
    def all_goes_well(self, count: int, step_s: float) -> None:
        for _ in range(count):
            self.now += step_s
            self.next_answer()

    def next_answer(self) -> None:
        """Something that is under way comes to its end."""
        if stopping := self.models_in("stopping"):
            self.do(ev.ModelStopped(model=stopping[0]))
        elif starting := self.models_in("starting"):
            self.do(ev.ModelReady(model=starting[0], load_s=1.0))
        elif self.observer.running:
            self.do(ev.JobEnded(job_id=next(iter(self.observer.running)), outcome=Outcome.COMPLETED))

    @rule(kind=st.integers(0, 6))
    def news_comes_too_late(self, kind: int) -> None:
        late: list[ev.Event] = [
            ev.JobLeft(job_id="nobody"),
            ev.JobEnded(job_id="nobody", outcome=Outcome.COMPLETED),
            ev.PriorityChanged(job_id="nobody", priority=100),
            ev.ModelStopped(model="nothing"),
            ev.ModelStartFailed(model="nothing", fault=ev.StartFault.TIMEOUT, message="too slow"),
            ev.LanePaused(lane="nowhere"),
            *(ev.ModelReady(model=model, load_s=1.0) for model in self.models_in("stopping")),
        ]
        self.do(chosen(late, kind))

    # Operators and time.

    @rule(model=st.sampled_from(MODELS), cause=st.sampled_from([StopCause.UNLOAD, StopCause.STUCK]))
    def a_server_has_to_be_stopped(self, model: str, cause: StopCause) -> None:
        self.do(ev.UnloadRequested(model=model, cause=cause))

    @rule(lane=st.sampled_from(LANES), make=st.sampled_from([ev.LanePaused, ev.LaneResumed, ev.LaneResumed]))
    def an_operator_pauses(self, lane: str, make: Callable[..., ev.Event]) -> None:
        self.do(make(lane=lane))

    @rule(plan=st.one_of(st.none(), st.none(), plans()))
    def the_plan_changes(self, plan: Plan | None) -> None:
        if plan is not None:
            self.do(ev.PlanChanged(plan=plan))

    @rule(limits=st.one_of(st.none(), limits()))
    def the_limits_change(self, limits: Limits | None) -> None:
        if limits is not None:
            self.do(ev.PlanChanged(plan=replace(self.observer.plan, limits=limits)))

    @rule(step_s=seconds)
    def time_passes(self, step_s: float) -> None:
        self.now += step_s
        self.do(ev.TimePassed())

    @precondition(lambda self: self.dispatcher.wakes_at is not None)
    @rule()
    def the_alarm_goes_off(self) -> None:
        assert self.dispatcher.wakes_at is not None
        self.now = max(self.now, self.dispatcher.wakes_at)
        self.do(ev.TimePassed())

    @precondition(lambda self: len(self.log) > 20)
    @rule(really=st.integers(0, 9))
    def the_gateway_shuts_down(self, really: int) -> None:
        if really == 0:
            self.do(ev.ShutdownRequested())

    # The end.

    def teardown(self) -> None:
        if not hasattr(self, "observer"):
            return
        self.everything_drains()
        again = Dispatcher(self.first_plan)
        for what, now, answer in self.log:
            same = again.refusal(what, now) if isinstance(what, ev.Job) else again.handle(what, now)
            assert same == answer, f"another answer to {what}"

    def everything_drains(self) -> None:
        """Once all commands are answered, every job that came has ended, once."""
        seen = self.observer
        for lane in LANES:
            self.do(ev.LaneResumed(lane=lane))
        for _ in range(10 * seen.arrivals + 20):
            self.now += 1.0
            self.next_answer()
        assert [*seen.waiting, *seen.granted, *seen.running] == []
        assert len(seen.outcomes) == seen.arrivals
        assert len(self.dispatcher.queue) == len(self.dispatcher.grants()) == 0


AnyWorld.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestAnyWorld = pytest.mark.timeout(600)(AnyWorld.TestCase)  # a failure takes minutes to be made short
