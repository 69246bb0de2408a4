"""When a waiting job is expected to be given its place: what is known, what is guessed, and who is held back."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from swaplane.core import events as ev
from swaplane.core.forecast import UNKNOWN_LOAD_S, UNKNOWN_RUN_S, forecast
from swaplane.core.limits import Limits
from swaplane.core.plan import LanePlan, ModelPlan
from swaplane.core.score import ScoreRules
from tests.core.door import limited, measured, ready
from tests.core.world import Auto, World, make_plan, together

MINUTE = 60.0


def expected(world: World, *, lane: str = "gpu", first: int = 100) -> list[tuple[str, float, bool]]:
    """(job, seconds from now, whether that is known) of those that wait, in order."""
    found = islice(forecast(world.dispatcher, world.dispatcher.lanes[lane], world.now), first)
    return [(each.job.id, each.at - world.now, each.known) for each in found]


def order(world: World) -> list[str]:
    return [job_id for job_id, _, _ in expected(world)]


def test_each_job_is_expected_after_those_that_go_before_it() -> None:
    world = measured(Limits())
    for job_id, member in [("1", "ben"), ("2", "cleo"), ("3", "dan")]:
        world.arrive(job_id, "m", member=member)
    world.now += 4.0
    assert expected(world) == [("1", 6.0, True), ("2", 16.0, True), ("3", 26.0, True)]


def test_a_job_that_takes_longer_than_usual_is_expected_to_take_as_long_as_it_is_late() -> None:
    world = measured(Limits())
    world.arrive("next", "m", member="ben")
    world.now += 500.0
    assert expected(world) == [("next", 490.0, True)]


def test_nobody_waits() -> None:
    assert expected(measured(Limits())) == []


# What was never measured.


def test_after_a_job_of_a_model_that_never_ran_all_is_a_guess() -> None:
    world = ready(limited(Limits(), "m", "new"))
    world.arrive("measured", "m", member="zoe")
    world.now += 10.0
    world.end("measured")
    world.arrive("runs", "m")
    world.arrive("1", "m", member="ben")
    world.arrive("2", "new", member="cleo")
    world.arrive("3", "m", member="dan")
    assert expected(world) == [("1", 10.0, True), ("2", 20.0, True), ("3", 20.0 + UNKNOWN_RUN_S, False)]


def test_while_a_job_of_a_model_that_never_ran_runs_all_is_a_guess() -> None:
    world = ready(limited(Limits()))
    world.arrive("runs", "m")
    world.arrive("1", "m", member="ben")
    assert expected(world) == [("1", UNKNOWN_RUN_S, False)]


def test_a_model_that_never_loaded_is_a_guess_too() -> None:
    world = World(make_plan("m", "cold"))
    world.have_ready("m", member="zoe")
    world.dispatcher.models["m"].run_s = world.dispatcher.models["cold"].run_s = 10.0
    world.arrive("runs", "m")
    world.arrive("1", "cold", member="ben", priority=100)
    world.arrive("2", "cold", member="cleo", priority=100)
    assert expected(world) == [("1", 10.0, True), ("2", 20.0 + UNKNOWN_LOAD_S, False)]


def test_what_a_load_takes_is_known_once_it_was_measured() -> None:
    world = World(make_plan("m", "n"))
    world.have_ready("n", member="zoe")
    world.arrive("runs", "m")
    world.stopped("n")
    world.ready("m", load_s=30.0)
    world.dispatcher.models["m"].run_s = world.dispatcher.models["n"].run_s = 5.0
    world.arrive("1", "n", member="ben", priority=100)
    world.arrive("2", "m", member="cleo")
    assert expected(world) == [("1", 5.0, True), ("2", 5.0 + 10.0 + 5.0, True)]


def test_while_a_lane_is_paused_nothing_is_known() -> None:
    world = measured(Limits())
    world.arrive("1", "m", member="ben")
    world.do(ev.LanePaused(lane="gpu"))
    assert [(job_id, known) for job_id, _, known in expected(world)] == [("1", False)]


# Who is held back.


def test_a_member_that_has_as_many_running_as_it_may_is_expected_when_one_of_its_jobs_ends() -> None:
    """Ann's job in the other lane takes a minute more; Ben's and Cleo's jobs go first."""
    models = [ModelPlan(id="m", lane="gpu"), ModelPlan(id="slow", lane="cpu")]
    lanes = [LanePlan(name="gpu"), LanePlan(name="cpu")]
    world = World(make_plan(*models, lanes=lanes, limits=Limits(max_running=1)))
    for model in ("m", "slow"):
        world.have_ready(model, member="zoe")
    world.dispatcher.models["m"].run_s = 10.0
    world.dispatcher.models["slow"].run_s = MINUTE
    world.arrive("far away", "slow", member="ann")
    world.arrive("runs", "m", member="zoe")
    world.arrive("ann's", "m", member="ann", priority=100)
    world.arrive("ben's", "m", member="ben")
    world.arrive("cleo's", "m", member="cleo")
    assert expected(world) == [("ben's", 10.0, True), ("cleo's", 20.0, True), ("ann's", MINUTE, True)]


def test_the_same_of_a_key() -> None:
    world = ready(limited(Limits(running_of_keys={"bot": 1}), ModelPlan(id="m", lane="gpu", slots=2)))
    world.dispatcher.models["m"].run_s = 10.0
    world.arrive("runs", "m", member="ann", key="bot")
    world.arrive("waits", "m", member="ben", key="bot", priority=100)
    world.now += 4.0
    assert expected(world) == [("waits", 6.0, True)]


def test_a_job_that_may_not_have_the_reserved_place_is_expected_when_another_place_is_free() -> None:
    world = ready(limited(Limits(), "m", "n", size=2, reserve=1))
    for model in ("m", "n"):
        world.dispatcher.models[model].run_s = 10.0
    world.arrive("batch 1", "m", priority=-100)
    world.now += 4.0
    world.arrive("batch 2", "n", priority=-100)
    assert expected(world) == [("batch 2", 6.0, True)]


# Under other rules.


@pytest.mark.parametrize("fairness", ["turns", "gpu_time", "none"])
def test_the_order_is_that_in_which_the_jobs_then_run(fairness: str) -> None:
    """Two members, jobs of four minutes and of one, from the end of the first job on."""
    rules = ScoreRules(fairness=fairness, swap_affinity=0.0, weights={"cleo": 2.0})  # type: ignore[arg-type]
    plan = replace(limited(Limits(), "long", "short"), rules=rules)
    world = World(plan, Auto(run_s={"long": 4 * MINUTE, "short": MINUTE}, load_s=0.0))
    for model in ("long", "short"):
        world.arrive(f"measured {model}", model, member="zoe")
    world.run()
    for number in range(4):
        world.arrive(f"ann {number}", "long")
        world.arrive(f"ben {number}", "short", member="ben")
        world.arrive(f"cleo {number}", "short", member="cleo")
    foreseen = order(world)
    before = len(world.dispatches)
    world.run()
    assert [each.winner.job_id for each in world.dispatches[before:]] == foreseen


def test_looking_ahead_changes_nothing() -> None:
    world = measured(Limits())
    for number in range(3):
        world.arrive(f"ann {number}", "m")
        world.arrive(f"ben {number}", "m", member="ben", priority=2)
    before = expected(world)
    assert expected(world, first=2) == before[:2]
    assert expected(world) == before
    world.now += 10.0
    assert world.end("runs") == [f"run {before[0][0]}"]


# Several at once.


def test_in_a_lane_of_two_places_two_jobs_are_expected_to_run_side_by_side() -> None:
    world = ready(limited(Limits(), "m", "n", size=2))
    for model in ("m", "n"):
        world.dispatcher.models[model].run_s = 10.0
        world.arrive(f"runs on {model}", model)
    for number, model in enumerate("mnmn"):
        world.arrive(f"{number}", model, member=f"member {number}")
    assert expected(world) == [("0", 10.0, True), ("1", 10.0, True), ("2", 20.0, True), ("3", 20.0, True)]


def test_so_are_jobs_in_the_slots_of_one_model() -> None:
    world = ready(limited(Limits(), ModelPlan(id="m", lane="gpu", slots=4)))
    world.dispatcher.models["m"].run_s = 10.0
    for number in range(12):
        world.arrive(f"{number}", "m", member=f"member {number}")
    assert [at for _, at, _ in expected(world)] == [10.0] * 4 + [20.0] * 4


def test_what_must_leave_first_is_waited_for() -> None:
    """Two of three slots run; the best job's model must have the place to itself."""
    world = World(make_plan(ModelPlan(id="m", lane="gpu", slots=3), "n", groups=[together("x")]))
    world.have_ready("m", member="zoe")
    world.dispatcher.models["m"].run_s, world.dispatcher.models["n"].run_s = 10.0, 5.0
    world.dispatcher.models["n"].load_s = 30.0
    world.arrive("1", "m", member="ann")
    world.now += 4.0
    world.arrive("2", "m", member="ben")
    world.arrive("swap", "n", member="cleo", priority=100)
    world.arrive("3", "n", member="dan", priority=100)
    assert expected(world) == [("swap", 10.0, True), ("3", 45.0, True)]


def test_a_member_at_its_limit_stays_at_it_while_its_jobs_follow_one_another() -> None:
    """Three slots, and Ann may use one of them: her jobs come one after the other, Ben's in between."""
    world = ready(limited(Limits(max_running=1), ModelPlan(id="m", lane="gpu", slots=3)))
    world.dispatcher.models["m"].run_s = 10.0
    for number in range(4):
        world.arrive(f"ann {number}", "m")
    for number in range(3):
        world.arrive(f"ben {number}", "m", member="ben")
    found = {job_id: at for job_id, at, _ in expected(world)}
    assert found == {"ann 1": 10.0, "ben 1": 10.0, "ann 2": 20.0, "ben 2": 20.0, "ann 3": 30.0}


@pytest.mark.parametrize(("size", "reserve"), [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1)])
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("limits", [Limits(), Limits(max_running=2), Limits(running_of_keys={"bot": 1})])
def test_the_forecast_of_many_jobs_at_once_comes_true_to_the_second(
    size: int, reserve: int, slots: int, limits: Limits
) -> None:
    models = [ModelPlan(id=name, lane="gpu", slots=slots) for name in ("a", "b", "c")]
    lane = LanePlan(name="gpu", size=size, reserve={"interactive": reserve} if reserve else {})
    plan = make_plan(*models, lanes=[lane], groups=[together("a", "b")], limits=limits)
    run_s = {"a": 7.0, "b": 11.0, "c": 13.0}
    world = World(plan, Auto(run_s=run_s, load_s=3.0), watched=False)
    for model in run_s:
        world.arrive(f"measured {model}", model, member="zoe")
    world.run()
    for number in range(40):
        member, key = ("ann", "ben", "cleo", "dan")[number % 4], ("", "bot", "cli")[number % 3]
        priority = (-100, 0, 100, -98, 2)[number % 5]
        world.arrive(f"{number}", "abc"[number * 7 % 3], member=member, key=key, priority=priority)
    world.now += 1.5
    foreseen = [(job_id, world.now + at) for job_id, at, _ in expected(world)]
    before = len(world.dispatches)
    world.run()
    assert [(each.winner.job_id, each.at) for each in world.dispatches[before:]] == foreseen
