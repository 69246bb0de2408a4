"""Jobs that were accepted earlier come into the queue: by an earlier gateway, or while others are served."""

from __future__ import annotations

from itertools import permutations

import pytest

from swaplane.core import events as ev
from swaplane.core.forecast import forecast
from swaplane.core.plan import LanePlan, ModelPlan
from swaplane.core.score import ScoreRules
from tests.core.world import Auto, World, make_plan

MINUTE = 60.0


def turn(member: str, ended_at: float, *, lane: str = "gpu", band: str = "normal") -> ev.Turn:
    return ev.Turn(lane=lane, member=member, band=band, ended_at=ended_at)


def new_gateway(rules: ScoreRules | None = None) -> World:
    """One minute after its start; every job takes a minute."""
    plan = make_plan("a", "b", rules=rules)
    return World(plan, Auto(run_s={"a": MINUTE, "b": MINUTE}, load_s=0.0), now=MINUTE)


def order(world: World) -> list[str]:
    """The ids of all jobs in the order in which they run."""
    world.run()
    return [dispatch.winner.job_id for dispatch in world.dispatches]


# All at once.


@pytest.mark.parametrize("named", list(permutations(range(3))))
def test_the_best_goes_first_whatever_the_order_they_are_named_in(named: tuple[int, ...]) -> None:
    world = new_gateway()
    jobs = [
        world.job("batch", "a", priority=-100, member="ann"),
        world.job("interactive", "b", priority=100, member="ben"),
        world.job("normal", "a", member="cleo"),
    ]
    assert world.restore(*(jobs[number] for number in named)) == ["start b (idle)"]
    assert world.dispatches[0].waiting == 3, "all of them were compared"
    assert order(world) == ["interactive", "normal", "batch"]


def test_each_lane_compares_its_own() -> None:
    plan = make_plan("a", ModelPlan(id="c", lane="cpu"), lanes=[LanePlan(name="gpu"), LanePlan(name="cpu")])
    world = World(plan)
    jobs = [world.job(f"{model} {number}", model, priority=number) for model in "ac" for number in (0, 100)]
    assert world.restore(*jobs) == ["start a (idle)", "start c (idle)"]
    assert [each.winner.job_id for each in world.dispatches] == ["a 100", "c 100"]


def test_nothing_to_restore() -> None:
    assert World(make_plan("a")).restore() == []


# As if they had waited here.


def test_they_have_waited_since_their_submit_though_the_gateway_is_younger() -> None:
    world = new_gateway()
    old = world.job("old", "a", priority=-98, member="ann", at=-197 * MINUTE)
    fresh = world.job("fresh", "a", priority=100, member="ben")
    world.restore(fresh, old)
    first = world.dispatches[0]
    assert (first.winner.job_id, first.submitted_at, first.clock) == ("old", -197 * MINUTE, -197 * MINUTE)
    assert first.winner.score.aging == 198.0  # both have 100 points: the earlier clock decides


@pytest.mark.parametrize("members", ["aaa", "abc"])
def test_at_equal_scores_the_order_of_submit_is_kept(members: str) -> None:
    world = new_gateway()
    jobs = [world.job(f"{number}", "a", member=member, at=-MINUTE) for number, member in enumerate(members)]
    world.restore(*reversed(jobs))
    assert order(world) == ["0", "1", "2"]


@pytest.mark.parametrize("member", ["ann", "ben"])
def test_an_older_job_goes_before_those_that_wait_already(member: str) -> None:
    world = new_gateway()
    world.do(ev.LanePaused(lane="gpu"))
    world.arrive("newer", "a", member="ann")
    world.restore(world.job("oldest", "a", member=member, at=-2.0), world.job("newest", "a", member="cleo"))
    world.restore(world.job("older", "a", member=member, at=-1.0))
    world.do(ev.LaneResumed(lane="gpu"))
    assert world.dispatches[0].winner == world.dispatches[0].first_come
    assert order(world)[0] == "oldest"


def test_an_older_job_of_the_same_line_is_forecast_before_the_others() -> None:
    world = new_gateway()
    world.do(ev.LanePaused(lane="gpu"))
    for number, submitted_at in enumerate([30.0, 10.0, 40.0, 20.0, 10.0]):
        world.restore(world.job(f"{number}", "a", at=submitted_at))
    line = ["1", "4", "3", "0", "2"]
    assert [each.job.id for each in forecast(world.dispatcher, world.dispatcher.lanes["gpu"], world.now)] == line
    world.do(ev.LaneResumed(lane="gpu"))
    assert order(world) == line


# Whose turn it is.


def two_waiting(*turns: ev.Turn, rules: ScoreRules | None = None) -> list[str]:
    """Ann's job is one second older than Ben's."""
    world = new_gateway(rules)
    world.restore(
        world.job("ann's", "a", member="ann", at=0.0), world.job("ben's", "a", member="ben", at=1.0), turns=turns
    )
    return order(world)


def test_whoever_was_served_longest_ago_goes_first() -> None:
    assert two_waiting() == ["ann's", "ben's"]
    assert two_waiting(turn("ann", 5.0)) == ["ben's", "ann's"]
    assert two_waiting(turn("ann", 5.0), turn("ben", 6.0)) == ["ann's", "ben's"]
    assert two_waiting(turn("ann", -5.0)) == ["ann's", "ben's"], "before its submit"


@pytest.mark.parametrize("ends", list(permutations([5.0, 7.0, -3.0])))
def test_of_several_turns_the_latest_counts(ends: tuple[float, ...]) -> None:
    anns = [turn("ann", ended_at) for ended_at in ends]
    assert two_waiting(*anns, turn("ben", 6.0)) == ["ben's", "ann's"]
    assert two_waiting(*anns, turn("ben", 8.0)) == ["ann's", "ben's"]


@pytest.mark.parametrize(
    "other",
    [
        turn("ann", 5.0, lane="cpu"),
        turn("ann", 5.0, lane="nowhere"),
        turn("ann", 5.0, band="batch"),
        turn("ann", 5.0, band="unknown"),
        turn("cleo", 5.0),
    ],
)
def test_a_turn_elsewhere_changes_nothing(other: ev.Turn) -> None:
    assert two_waiting(other) == ["ann's", "ben's"]


def test_turns_count_as_the_rules_say() -> None:
    assert two_waiting(turn("ann", 5.0), rules=ScoreRules(aging_clock="submit")) == ["ann's", "ben's"]
    assert two_waiting(turn("ann", 5.0), rules=ScoreRules(fairness="none")) == ["ann's", "ben's"]


def test_without_fairness_the_latest_turn_of_anybody_is_the_lines() -> None:
    world = new_gateway(ScoreRules(fairness="none"))
    world.restore(world.job("1", "a", at=-9.0), turns=[turn("ann", 5.0), turn("ben", 7.0), turn("cleo", 6.0)])
    assert world.dispatches[0].clock == 7.0


def test_a_turn_never_moves_a_clock_back() -> None:
    world = new_gateway()
    world.arrive("1", "a", member="ann")
    world.arrive("2", "a", member="ann")
    world.run(until=2 * MINUTE)  # 1 has ended, 2 runs
    world.arrive("3", "a", member="ann")
    world.restore(turns=[turn("ann", MINUTE)])
    world.run()
    assert [dispatch.clock for dispatch in world.dispatches] == [MINUTE, 2 * MINUTE, 3 * MINUTE]


def test_a_turn_of_somebody_whose_job_runs_counts_no_less_when_it_did_not_use_its_own() -> None:
    world = World(make_plan("a"), now=MINUTE)
    world.arrive("1", "a", member="ann")
    world.restore(turns=[turn("ann", 50.0)])
    world.leave("1")
    world.ready("a")
    world.restore(world.job("2", "a", member="ann", at=0.0))
    assert world.dispatches[-1].clock == 50.0


def test_a_turn_counts_for_a_job_that_comes_later() -> None:
    """The earlier gateway may have accepted more than are put into the queue at once."""
    world = new_gateway()
    world.do(ev.LanePaused(lane="gpu"))
    world.restore(turns=[turn("ann", 5.0)])
    world.restore(world.job("ann's", "a", member="ann", at=0.0), world.job("ben's", "a", member="ben", at=1.0))
    world.do(ev.LaneResumed(lane="gpu"))
    assert order(world) == ["ben's", "ann's"]


def test_a_job_submitted_before_its_members_last_turn_here_ages_from_that() -> None:
    world = new_gateway()
    world.arrive("1", "a", member="ann")
    world.run()
    ended_at = world.now
    world.now += MINUTE
    world.restore(world.job("2", "a", member="ann", at=0.0))
    assert world.dispatches[-1].clock == ended_at
    world.run()
    again_at = world.now
    world.change(make_plan("a", "b", rules=ScoreRules(swap_affinity=5.0)))  # the queue is built anew
    world.restore(world.job("3", "a", member="ann", at=0.0))
    assert world.dispatches[-1].clock == again_at


# Not everything can be taken in again.


def test_jobs_of_models_that_are_gone_end_and_the_others_wait() -> None:
    world = World(make_plan("a"))
    jobs = [world.job("1", "gone"), world.job("2", "a"), world.job("3", "gone", at=-1.0)]
    assert world.restore(*jobs) == ["end 3 (model_removed)", "end 1 (model_removed)", "start a (idle)"]


def test_a_removed_model_that_has_not_ended_yet_takes_none() -> None:
    world = World(make_plan("a", "b"))
    world.have_ready("a")
    world.arrive("runs", "a")
    world.change(make_plan("b"))
    assert world.restore(world.job("1", "a")) == ["end 1 (model_removed)"]


def test_jobs_of_a_model_that_is_left_alone_are_refused() -> None:
    world = World(make_plan("a", "b"))
    for number in range(2):
        world.arrive(f"{number}", "a")
        world.fail("a")
    jobs = [world.job("of a", "a", at=-MINUTE), world.job("of b", "b", at=-MINUTE)]
    assert world.restore(*jobs) == ["end of a (refused_backoff)", "start b (idle)"]


def test_a_gateway_that_goes_down_takes_none() -> None:
    world = World(make_plan("a"))
    world.do(ev.ShutdownRequested())
    jobs = [world.job("1", "a"), world.job("2", "gone")]
    assert world.restore(*jobs, turns=[turn("ann", 0.0)]) == ["end 1 (refused_stopping)", "end 2 (refused_stopping)"]


def test_in_a_paused_lane_they_wait_and_are_compared_when_it_goes_on() -> None:
    world = World(make_plan("a"))
    world.do(ev.LanePaused(lane="gpu"))
    assert world.restore(world.job("normal", "a"), world.job("urgent", "a", priority=100)) == []
    assert world.do(ev.LaneResumed(lane="gpu")) == ["start a (idle)"]
    assert world.ready("a") == ["run urgent"]


def test_they_wait_for_a_place_like_others() -> None:
    world = World(make_plan("a", "b"))
    world.have_ready("a")
    world.arrive("runs", "a")
    assert world.restore(world.job("urgent", "b", priority=100, at=-MINUTE)) == []
    assert world.end("runs") == ["stop a (swap)"]
