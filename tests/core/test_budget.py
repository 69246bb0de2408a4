"""Ten GPU minutes an hour at interactive: who has used them is lowered, and nobody is refused or held back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swaplane.core.commands import PriorityCause, TellPriority
from swaplane.core.explain import members_view
from swaplane.core.limits import Allowance, Budget, Limits
from swaplane.core.plan import LanePlan
from swaplane.core.score import Band, ScoreRules
from tests.core.door import limited, ready
from tests.core.world import Auto, World, make_plan, together

MINUTE = 60.0
HOUR = 60 * MINUTE
TEN_MINUTES = Budget(band="interactive", gpu_s=10 * MINUTE)


def budgeted(limits: Limits | None = None) -> World:
    return ready(limited(replace(limits or Limits(), budget=TEN_MINUTES)))


def spend(world: World, minutes: float, *, member: str = "ann", priority: int = 100) -> None:
    job_id = f"spent at {world.now}"
    world.arrive(job_id, "m", member=member, priority=priority)
    world.now += minutes * MINUTE
    world.end(job_id)


def left_min(world: World, member: str = "ann") -> float:
    left_s = world.dispatcher.left_of_budget_s(member, world.now)
    assert left_s is not None
    return left_s / MINUTE


def applied(world: World, priority: int, *, member: str = "ann", job_id: str = "asked") -> int:
    """At which priority a job that comes now waits."""
    world.arrive(job_id, "m", member=member, priority=priority)
    return world.dispatcher.queue.job(job_id).priority


def over_budget() -> World:
    """Ann has used ten minutes; Zoe's long job runs."""
    world = budgeted()
    spend(world, 10)
    world.arrive("runs", "m", member="zoe")
    return world


@pytest.mark.parametrize(("asked", "lowered"), [(100, 0), (101, 1), (102, 2), (150, 0), (1000, 0), (99, 99), (0, 0)])
def test_over_the_budget_a_job_is_of_the_next_band_and_keeps_its_tier(asked: int, lowered: int) -> None:
    assert applied(over_budget(), asked) == lowered


def test_who_is_lowered_is_told_why() -> None:
    world = over_budget()
    assert world.arrive("asked", "m", priority=102) == ["tell asked 2 (over_budget)"]
    assert world.commands == [
        TellPriority(
            job_id="asked",
            priority=2,
            cause=PriorityCause.OVER_BUDGET,
            reason="lowered from 102 to 2: the member has used its 10 GPU minutes an hour at interactive",
        )
    ]


def test_what_waits_when_the_budget_is_used_up_by_a_job_that_runs_on_is_lowered_before_it_gets_a_place() -> None:
    lanes, groups = [LanePlan(name="gpu", size=2)], [together("a", "b")]
    world = World(make_plan("a", "b", lanes=lanes, groups=groups, limits=Limits(budget=TEN_MINUTES)))
    world.have_ready("a")
    world.have_ready("b")
    world.arrive("runs on", "a", member="ann", priority=100)
    world.arrive("other", "b", member="zoe")
    world.arrive("dear", "b", member="ann", priority=102)
    world.arrive("next", "b", member="ben", priority=3)
    world.now += 11 * MINUTE
    assert world.end("other") == ["tell dear 2 (over_budget)", "run next"]


def test_the_budget_is_each_members_own() -> None:
    assert applied(over_budget(), 100, member="ben") == 100


def test_what_runs_below_the_bands_budget_does_not_count() -> None:
    world = budgeted()
    spend(world, 30, priority=99)
    assert left_min(world) == 10
    spend(world, 4, priority=102)
    assert left_min(world) == 6


def test_a_running_job_counts_by_what_it_has_used_so_far() -> None:
    world = budgeted()
    world.arrive("runs", "m", priority=100)
    world.now += 4 * MINUTE
    assert left_min(world) == 6
    assert applied(world, 100, job_id="within") == 100
    world.now += 6 * MINUTE
    assert left_min(world) == 0
    assert applied(world, 100, job_id="beyond") == 0


def test_jobs_that_wait_already_are_lowered_when_the_budget_is_used_up() -> None:
    world = budgeted()
    world.arrive("runs", "m", priority=100)
    world.arrive("chat", "m", priority=101)
    world.arrive("batch", "m", priority=-100)
    world.arrive("ben's", "m", member="ben", priority=50)
    world.now += 10 * MINUTE
    assert world.end("runs") == ["tell chat 1 (over_budget)", "run ben's"]
    assert {job.id: job.priority for job in world.dispatcher.queue.jobs()} == {"chat": 1, "batch": -100}


def test_a_lowered_job_has_waited_as_long_as_before() -> None:
    world = over_budget()
    world.arrive("asked", "m", priority=100)
    world.now += MINUTE
    world.end("runs")
    assert world.dispatches[-1].submitted_at == world.now - MINUTE


def test_after_an_hour_the_budget_is_there_again() -> None:
    world = budgeted()
    spend(world, 6)
    world.now += 30 * MINUTE
    spend(world, 4)
    assert left_min(world) == 0
    world.now += 27 * MINUTE  # the first job has ended 61 minutes ago
    assert left_min(world) == 6
    world.now += 34 * MINUTE
    assert left_min(world) == 10
    world.arrive("runs", "m", member="zoe")
    assert applied(world, 100) == 100


def test_nobody_is_refused_because_the_band_that_a_lowered_job_leaves_is_full() -> None:
    world = budgeted(Limits(bands={"interactive": Allowance(jobs=1)}))
    spend(world, 10)
    world.arrive("runs", "m", member="zoe")
    world.arrive("fills", "m", member="ben", priority=100)
    assert world.arrive("refused", "m", member="cleo", priority=100) == ["end refused (refused_full)"]
    assert world.arrive("lowered", "m", priority=100) == ["tell lowered 0 (over_budget)"]


def test_a_lowered_job_counts_for_what_may_wait_in_the_band_that_it_comes_to() -> None:
    world = budgeted(Limits(bands={"normal": Allowance(jobs=1)}))
    spend(world, 10)
    world.arrive("runs", "m", member="zoe")
    world.arrive("fills", "m", member="ben")
    assert world.arrive("refused", "m", priority=100) == ["end refused (refused_full)"]


def test_without_a_budget_nobody_is_lowered() -> None:
    world = ready(limited(Limits()))
    spend(world, 500)
    world.arrive("runs", "m", member="zoe")
    assert world.dispatcher.left_of_budget_s("ann", world.now) is None
    assert applied(world, 100) == 100


def test_a_budget_of_a_band_in_the_middle_lowers_all_above_it_too() -> None:
    bands = (Band(name="low", value=-50), Band(name="mid", value=0), Band(name="high", value=200))
    budget = Limits(budget=Budget(band="mid", gpu_s=MINUTE))
    world = ready(limited(budget, rules=ScoreRules(bands=bands)))
    spend(world, 1, priority=0)
    world.arrive("runs", "m", member="zoe")
    assert [applied(world, asked, job_id=f"{asked}") for asked in (202, 1, -49)] == [-48, -49, -49]


def test_members_are_shown_what_is_left() -> None:
    world = budgeted()
    spend(world, 4)
    world.arrive("runs", "m", member="ben", priority=100)
    world.now += MINUTE
    left = {each.member: each.budget_left_s for each in members_view(world.dispatcher, world.now)}
    assert left == {"ann": 6 * MINUTE, "ben": 9 * MINUTE, "zoe": 10 * MINUTE}


def test_others_do_not_wait_longer_because_a_member_uses_more_than_its_budget() -> None:
    """Ben chats every five minutes; Ann has a backlog of interactive jobs of two minutes all the time."""

    def waits(budget: Budget | None) -> list[float]:
        limits = Limits(budget=budget)
        world = World(limited(limits), Auto(run_s={"m": 2 * MINUTE}, load_s=0.0), watched=False)
        for number in range(100):
            world.arrive(f"ann {number}", "m", priority=102)
        asked: dict[str, float] = {}
        for number in range(24):
            moment = (number + 1) * 5 * MINUTE + 7
            world.run(until=moment)
            world.now = moment
            asked[f"ben {number}"] = moment
            world.arrive(f"ben {number}", "m", member="ben", priority=100)
        world.run()
        return [world.ran_at[job_id] - moment for job_id, moment in asked.items()]

    without, within = waits(None), waits(TEN_MINUTES)
    assert max(within) <= max(without)
    assert sum(within) <= sum(without)
