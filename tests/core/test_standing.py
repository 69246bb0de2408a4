"""What did not run costs its member nothing: not its turn, not its share, not its budget."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from swaplane.core.explain import members_view
from swaplane.core.limits import Allowance, Limits
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import ModelPlan
from swaplane.core.score import Fairness, ScoreRules
from tests.core.world import World, make_plan, together

MINUTE = 60.0


def between_turns(fairness: Fairness) -> World:
    """Ann has had a turn of a minute, Ben's job runs, one of Ann's waits, and she may have one more waiting."""
    plan = make_plan(
        "m",
        ModelPlan(id="cold", lane="gpu"),
        groups=[together("m", "cold")],
        rules=ScoreRules(fairness=fairness),
        limits=Limits(member=Allowance(jobs=2)),
    )
    world = World(plan)
    world.have_ready("m", member="zoe")
    world.arrive("ann 1", "m")
    world.arrive("ann 2", "m")
    world.arrive("ben 1", "m", member="ben")
    world.now += MINUTE
    assert world.end("ann 1") == ["run ben 1"]
    return world


def refused(world: World) -> None:
    assert world.arrive("more", "m") == []
    assert world.arrive("too many", "m") == ["end too many (refused_full)"]
    world.leave("more")


def expired(world: World) -> None:
    assert world.arrive("hasty", "m", max_wait_s=0.0) == ["end hasty (waited_too_long)"]


def cancelled(world: World) -> None:
    world.arrive("more", "m")
    assert world.leave("more", cancelled=True) == ["end more (cancelled_waiting)"]


def gone_away(world: World) -> None:
    world.arrive("more", "m")
    assert world.leave("more") == ["end more (left_waiting)"]


def lowered(world: World) -> None:
    world.arrive("more", "m", priority=100)
    world.reprioritise("more", -100)
    world.leave("more")


def failed_to_start(world: World) -> None:
    world.end("ben 1")
    world.end("ann 2")
    world.arrive("cold", "cold")
    assert world.fail("cold") == ["end cold (start_failed)"]


def expired_while_loading(world: World) -> None:
    world.end("ben 1")
    world.end("ann 2")
    assert world.arrive("cold", "cold", max_wait_s=0.5) == ["start cold (idle)"]
    assert world.wait(0.5) == ["end cold (waited_too_long)"]


def unloaded_while_loading(world: World) -> None:
    world.end("ben 1")
    world.end("ann 2")
    world.arrive("cold", "cold")
    assert world.unload("cold") == ["end cold (unloaded_waiting)", "stop cold (unload)"]


def clock_of(world: World, member: str) -> float:
    """The moment from which the next job of a member ages."""
    job = world.job("probe", "m", member=member)
    return world.dispatcher.queue.clock(job, "gpu").starts_at(0.0, 0.0, world.plan.rules)


def gpu_s_of(world: World, member: str) -> float:
    (view,) = [each for each in members_view(world.dispatcher, world.now) if each.member == member]
    return view.gpu_s


@pytest.mark.parametrize("fairness", ["turns", "gpu_time"])
@pytest.mark.parametrize("way", [refused, expired, cancelled, gone_away, lowered])
def test_a_job_that_never_held_a_place_changes_nothing_in_its_members_standing(
    way: Callable[[World], None], fairness: Fairness
) -> None:
    world = between_turns(fairness)
    before = clock_of(world, "ann"), gpu_s_of(world, "ann")
    assert before[1] == MINUTE
    way(world)
    assert (clock_of(world, "ann"), gpu_s_of(world, "ann")) == before
    assert world.end("ben 1") == ["run ann 2"]


@pytest.mark.parametrize("fairness", ["turns", "gpu_time"])
@pytest.mark.parametrize("way", [failed_to_start, expired_while_loading, unloaded_while_loading])
def test_a_job_whose_model_never_became_ready_changes_nothing_either(
    way: Callable[[World], None], fairness: Fairness
) -> None:
    without, world = between_turns(fairness), between_turns(fairness)
    for each in (without, world):
        each.now += 1.0
    without.end("ben 1")
    without.end("ann 2")
    way(world)
    assert clock_of(world, "ann") == clock_of(without, "ann")
    assert gpu_s_of(world, "ann") == gpu_s_of(without, "ann")


@pytest.mark.parametrize("outcome", [each for each in Outcome if each.ran])
def test_a_job_that_was_sent_to_its_model_costs_what_it_used_however_it_ended(outcome: Outcome) -> None:
    world = between_turns("turns")
    world.now += 30.0
    world.end("ben 1")
    world.now += 30.0
    if outcome is Outcome.UNLOADED_RUNNING:
        world.unload("m")
    world.end("ann 2", outcome)
    assert gpu_s_of(world, "ann") == MINUTE + 30.0
    assert clock_of(world, "ann") == world.now


def test_members_that_were_served_long_ago_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any header may name a new member."""
    monkeypatch.setattr("swaplane.core.usage.MEMBERS", 2)
    world = World(make_plan("m"))
    world.have_ready("m", member="zoe")
    for number, member in enumerate(("ann", "ben", "cleo", "ann")):
        world.arrive(f"{number}", "m", member=member)
        world.now += MINUTE
        world.end(f"{number}")
    assert {each.member: each.gpu_s for each in members_view(world.dispatcher, world.now)} == {
        "ann": MINUTE,
        "cleo": MINUTE,
    }
    assert world.dispatcher.usage.total_s == 4 * MINUTE
    assert repr(world.dispatcher.usage) == "<Usage of 2 members>"


def test_what_was_used_within_the_last_hour_is_shown_to_the_minute() -> None:
    world = World(make_plan("m"))
    world.have_ready("m", member="zoe")
    for job_id in ("1", "2"):
        world.arrive(job_id, "m")
        world.now += 10 * MINUTE
        world.end(job_id)
    for later_s, expected_min in [(0.0, 20.0), (49 * MINUTE, 20.0), (2 * MINUTE, 10.0), (10 * MINUTE, 0.0)]:
        world.now += later_s
        (ann,) = [each for each in members_view(world.dispatcher, world.now) if each.member == "ann"]
        assert ann.hour_gpu_s / MINUTE == expected_min, f"at minute {world.now / MINUTE}"
        assert ann.gpu_s == 20 * MINUTE
