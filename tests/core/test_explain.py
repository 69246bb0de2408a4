"""What people are told: positions, reasons, and a forecast that comes true when nothing else happens."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from swaplane.core import events as ev
from swaplane.core.explain import JobView, LaneView, job_view, lane_view
from swaplane.core.forecast import UNKNOWN_LOAD_S, UNKNOWN_RUN_S, forecast
from swaplane.core.plan import LanePlan, ModelPlan
from swaplane.core.score import ScoreRules
from tests.core.world import Auto, World, make_plan, together

MODELS = ("a", "b")
MEMBERS = ("ann", "ben", "cleo")
PRIORITIES = (-100, -98, 0, 50, 100)


def gpu(world: World, limit: int = 100) -> LaneView:
    return lane_view(world.dispatcher, world.dispatcher.lanes["gpu"], world.now, limit=limit)


def view(world: World, job_id: str, limit: int = 100) -> JobView:
    found = job_view(world.dispatcher, job_id, world.now, limit=limit)
    assert found is not None
    return found


def busy() -> World:
    """Ann's job runs on a; hers, Ben's and Cleo's wait."""
    world = World(make_plan("a", "b"))
    world.have_ready("a", member="zoe")
    world.arrive("ann 1", "a", member="ann")
    world.now = 10.0
    world.arrive("ann 2", "a", member="ann")
    world.arrive("ben 1", "a", member="ben", priority=2)
    world.arrive("cleo 1", "b", member="cleo", priority=-98)
    world.arrive("ann 3", "a", member="ann")
    world.now = 40.0
    return world


# One lane.


def test_the_next_job_is_told_of_the_swap_that_comes_before_it() -> None:
    world = busy()
    world.arrive("dan 1", "b", member="dan", priority=100)
    assert view(world, "dan 1").reason == "next, when ann 1 of ann ends (a runs), then b loads"


def test_an_idle_lane() -> None:
    view = gpu(World(make_plan("a", lanes=[LanePlan(name="gpu", size=2)])))
    assert (view.name, view.size, view.paused) == ("gpu", 2, False)
    assert (view.resident, view.running, view.waiting, view.waiting_total) == ((), (), (), 0)


def test_the_line_in_the_order_of_dispatch_with_reasons() -> None:
    view = gpu(busy())
    assert view.resident == ("a",)
    assert [(each.job.id, each.state, each.position, each.reason) for each in view.running] == [
        ("ann 1", "running", None, "running for 40.0 s")
    ]
    assert [(each.job.id, each.position, each.reason) for each in view.waiting] == [
        ("ben 1", 1, "next, when ann 1 of ann ends (a runs)"),
        ("ann 2", 2, "behind 1 other"),
        ("ann 3", 3, "behind your own ann 2"),
        ("cleo 1", 4, "behind 3 others"),
    ]
    assert view.waiting_total == 4


def test_the_next_job_is_told_what_it_waits_for() -> None:
    world = World(make_plan(ModelPlan(id="a", lane="gpu", slots=3), "b"))
    world.arrive("1", "a", member="ann")
    world.arrive("2", "a", member="ben")
    assert view(world, "2").reason == "next, when a is ready", "a slot is free"
    world.ready("a")
    world.arrive("3", "b", member="cleo", priority=100)
    assert view(world, "3").reason == "next, when all jobs of a end, then b loads"
    world.end("1")
    assert view(world, "3").reason == "next, when 2 of ben ends (a runs), then b loads"


def test_the_next_job_is_told_which_models_hold_all_places() -> None:
    plan = make_plan(ModelPlan(id="a", lane="gpu", slots=2), "b", groups=[together("a", "b")])
    world = World(plan)
    world.have_ready("b")
    world.have_ready("a")
    for number in range(2):
        world.arrive(f"{number}", "a", member=f"m{number}")
    world.arrive("same", "a", member="ann")
    assert view(world, "same").reason == "next, when a job of a ends"
    world.arrive("other", "b", member="ben", priority=100)
    assert view(world, "other").reason == "next, when a job of a ends"


def test_a_line_is_shown_up_to_the_limit() -> None:
    view = gpu(busy(), limit=2)
    assert [each.job.id for each in view.waiting] == ["ben 1", "ann 2"]
    assert view.waiting_total == 4


def test_running_jobs_are_shown_oldest_first() -> None:
    world = World(make_plan(ModelPlan(id="a", lane="gpu", slots=2)))
    world.have_ready("a")
    for job_id in ("1", "2", "3"):
        world.arrive(job_id, "a")
    assert [each.job.id for each in gpu(world).running] == ["1", "2"]
    world.end("1")
    assert [each.job.id for each in gpu(world).running] == ["2", "3"]


def test_a_paused_lane_says_so() -> None:
    world = busy()
    world.do(ev.LanePaused(lane="gpu"))
    assert gpu(world).paused
    assert {each.reason for each in gpu(world).waiting} == {"lane gpu is paused"}


def test_looking_changes_nothing() -> None:
    world = busy()
    assert gpu(world) == gpu(world)
    assert world.end("ann 1") == ["run ben 1"]


# One job.


def test_a_waiting_job() -> None:
    job = view(busy(), "ann 2")
    assert (job.band, job.state, job.position) == ("normal", "waiting", 2)
    assert (job.waited_s, job.aging_s) == (30.0, 0.0)  # ann's clock stands while her job runs
    assert (job.score.affinity, job.score.aging) == (10.0, 0.0)


def test_a_waiting_job_of_a_model_that_is_not_resident() -> None:
    job = view(busy(), "cleo 1")
    assert (job.waited_s, job.aging_s, job.position) == (30.0, 30.0, 4)
    assert (job.score.base, job.score.tier_bonus, job.score.affinity, job.score.aging) == (-100, 2, 0.0, 0.5)


def test_a_job_too_far_back_has_no_position() -> None:
    job = view(busy(), "cleo 1", limit=2)
    assert (job.position, job.reason) == (None, "far back in the line")


def test_a_running_job_keeps_the_score_it_won_with() -> None:
    world = World(make_plan("a"))
    world.have_ready("a")
    world.do(ev.LanePaused(lane="gpu"))
    world.arrive("1", "a")
    world.now = 120.0
    world.do(ev.LaneResumed(lane="gpu"))
    world.now = 300.0
    job = view(world, "1")
    assert (job.state, job.position, job.reason) == ("running", None, "running for 180.0 s")
    assert (job.score.total, job.waited_s, job.aging_s) == (12.0, 120.0, 120.0)


def test_a_job_whose_model_loads() -> None:
    world = World(make_plan("a", "b"))
    world.have_ready("a")
    world.arrive("1", "b")
    world.now = 5.0
    assert view(world, "1").reason == "b is waiting for other models to leave, then loading for it"
    world.stopped("a")
    job = view(world, "1")
    assert (job.state, job.waited_s, job.reason) == ("loading", 5.0, "b is loading for it")
    world.arrive("2", "b")
    assert view(world, "2").reason == "next, when 1 of ann ends (b loads)"


def test_a_job_that_is_over_or_unknown() -> None:
    assert job_view(busy().dispatcher, "warm-up-a", 0.0, limit=10) is None


# The forecast.


def test_models_that_never_ran_are_assumed_to_take_some_seconds() -> None:
    """Ann's clock moves by what her job is assumed to take, so Ben's later job overtakes her second one."""
    world = World(make_plan("a"))
    world.do(ev.LanePaused(lane="gpu"))
    world.arrive("ann 1", "a", member="ann")
    world.arrive("ann 2", "a", member="ann")
    world.now = UNKNOWN_LOAD_S
    world.arrive("ben 1", "a", member="ben")
    lane = world.dispatcher.lanes["gpu"]
    assert [each.job.id for each in forecast(world.dispatcher, lane, world.now)] == ["ann 1", "ben 1", "ann 2"]


@settings(deadline=None, max_examples=150)
@given(
    arrivals=st.lists(
        st.tuples(
            st.integers(0, 1200),
            st.sampled_from(MODELS),
            st.sampled_from(MEMBERS),
            st.sampled_from(PRIORITIES),
        ),
        min_size=1,
        max_size=25,
    ),
    pause_s=st.sampled_from([0, 1, 300, 5000]),
    looked_after_s=st.integers(0, 2000),
    rules=st.sampled_from(
        [
            ScoreRules(),
            ScoreRules(aging_divisor_s=2.0, swap_affinity=2.0),
            ScoreRules(aging_clock="submit"),
            ScoreRules(fairness="none"),
            ScoreRules(weights={"ann": 2.0, "ben": 0.5}),
        ]
    ),
)
def test_the_forecast_comes_true_when_all_takes_as_long_as_assumed(
    arrivals: list[tuple[int, str, str, int]], pause_s: int, looked_after_s: int, rules: ScoreRules
) -> None:
    """Whenever one looks: while nothing is held, while a model loads or a job runs."""
    world = World(
        make_plan(*MODELS, rules=rules), Auto(run_s=dict.fromkeys(MODELS, UNKNOWN_RUN_S), load_s=UNKNOWN_LOAD_S)
    )
    world.do(ev.LanePaused(lane="gpu"))
    for second, model, member, priority in sorted(arrivals):
        world.now = float(second)
        world.arrive(f"job {world.now} {len(world.observer.waiting)}", model, member=member, priority=priority)
    world.now += pause_s
    world.do(ev.LaneResumed(lane="gpu"))
    # Between two whole seconds, so that no job ends or starts at this very moment.
    world.run(until=world.now + looked_after_s / 100 + 0.125)
    world.now += 0.125
    expected = [each.job.id for each in forecast(world.dispatcher, world.dispatcher.lanes["gpu"], world.now)]
    before = len(world.dispatches)
    world.run()
    assert [dispatch.winner.job_id for dispatch in world.dispatches[before:]] == expected
