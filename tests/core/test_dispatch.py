"""Jobs get places: runs, swaps, lanes, slots, leaving at any stage, and the record of each dispatch."""

from __future__ import annotations

import pytest

from swaplane.core import events as ev
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import LanePlan, ModelPlan
from swaplane.core.residency import Group
from swaplane.core.score import ScoreRules
from tests.core.world import World, make_plan, together


def two_models() -> World:
    """Models a and b that exclude each other; a is resident."""
    world = World(make_plan("a", "b"))
    world.have_ready("a")
    return world


# A lane of one place.


def test_a_cold_start_and_the_next_job() -> None:
    world = World(make_plan("a"))
    assert repr(world.dispatcher) == "<Dispatcher 0 waiting, 0 granted; nothing resident>"
    assert world.arrive("1", "a") == ["start a (idle)"]
    assert world.arrive("2", "a") == []
    assert world.ready("a") == ["run 1"]
    assert repr(world.dispatcher) == "<Dispatcher 1 waiting, 1 granted; a=ready>"
    assert world.end("1") == ["run 2"]
    assert world.end("2") == []
    assert world.arrive("3", "a") == ["run 3"]


def test_the_highest_score_goes_first() -> None:
    world = two_models()
    world.arrive("running", "a", priority=-100)
    for job_id, priority in [("batch", -100), ("normal", 0), ("interactive", 100), ("-98", -98), ("+100", 100)]:
        assert world.arrive(job_id, "a", priority=priority) == []
    order = ["running"]
    while world.observer.running:
        world.end(order[-1])
        order += list(world.observer.running)
    assert order == ["running", "interactive", "+100", "normal", "-98", "batch"]


def test_a_swap_stops_the_old_model_before_the_new_one_starts() -> None:
    world = two_models()
    world.arrive("1", "a")
    assert world.arrive("2", "b") == []
    assert world.end("1") == ["stop a (swap)"]
    assert world.stopped("a") == ["start b (priority)"]
    assert world.ready("b") == ["run 2"]


def test_a_swap_that_only_aging_forced_says_so() -> None:
    world = two_models()
    world.arrive("1", "a")
    world.arrive("2", "b", member="ben")
    world.now += 11 * 60.0
    world.arrive("3", "a", member="cleo")
    world.end("1")
    assert world.stopped("a") == ["start b (aging)"]


def test_jobs_of_the_resident_model_go_first_for_a_while() -> None:
    world = two_models()
    world.arrive("1", "a")
    world.arrive("2", "b", member="ben")
    world.arrive("3", "a", member="cleo")
    assert world.end("1") == ["run 3"]
    assert world.dispatches[-1].without_affinity.job_id == "2"


def test_no_backfill_while_the_best_job_waits_for_a_swap() -> None:
    """A stream of requests for the resident model does not keep the other model's job waiting."""
    world = World(make_plan(ModelPlan(id="a", lane="gpu", slots=2), "b"))
    world.have_ready("a")
    assert world.arrive("1", "a") == ["run 1"]
    assert world.arrive("urgent", "b", priority=100, member="ben") == []
    assert world.arrive("2", "a", member="cleo") == []  # a has a free slot, but is not next
    assert world.end("1") == ["stop a (swap)"]


def test_slots_let_jobs_of_one_model_run_side_by_side() -> None:
    world = World(make_plan(ModelPlan(id="a", lane="gpu", slots=2), "b"))
    assert world.arrive("1", "a") == ["start a (idle)"]
    assert world.arrive("2", "a") == []  # joins when it is ready
    assert world.ready("a") == ["run 1", "run 2"]
    assert world.arrive("3", "a") == []
    assert world.end("1") == ["run 3"]


# Lanes.


def test_a_lane_of_two_places_runs_two_models() -> None:
    world = World(make_plan("a", "b", "c", lanes=[LanePlan(name="gpu", size=2)], groups=[together("a", "b", "c")]))
    assert world.arrive("1", "a") == ["start a (idle)"]
    assert world.arrive("2", "b") == ["start b (idle)"]
    assert world.arrive("3", "c") == []
    assert world.ready("b") == ["run 2"]
    assert world.end("2") == ["start c (idle)"]  # b stays resident: nothing makes it leave


def test_two_places_do_not_help_models_that_exclude_each_other() -> None:
    world = World(make_plan("a", "b", lanes=[LanePlan(name="gpu", size=2)]))
    world.have_ready("a")
    world.arrive("1", "a")
    assert world.arrive("2", "b") == []
    assert world.end("1") == ["stop a (swap)"]


def test_lanes_do_not_wait_for_each_other() -> None:
    plan = make_plan("a", ModelPlan(id="c", lane="cpu"), lanes=[LanePlan(name="gpu"), LanePlan(name="cpu")])
    world = World(plan)
    assert world.arrive("1", "a") == ["start a (idle)"]
    assert world.arrive("2", "c") == ["start c (idle)"]
    assert world.ready("c") == ["run 2"]
    assert world.ready("a") == ["run 1"]


def test_whoever_would_have_to_leave_again_does_not_join_a_load() -> None:
    """b may join a, but a makes b leave: while a loads for a job, b would only be in its way."""
    polite = Group(name="polite", members=frozenset({"b"}), exclusive=False)
    world = World(make_plan("a", "b", lanes=[LanePlan(name="gpu", size=2)], groups=[polite]))
    assert world.arrive("1", "a") == ["start a (idle)"]
    assert world.arrive("2", "b") == []
    assert world.ready("a") == ["run 1", "start b (idle)"]
    assert world.ready("b") == ["run 2"]
    assert world.end("1") == []
    assert world.arrive("3", "a") == []  # b runs a job
    assert world.end("2") == ["stop b (swap)"]
    assert world.stopped("b") == ["run 3"]


# Leaving.


@pytest.mark.parametrize(("cancelled", "word"), [(False, "left"), (True, "cancelled")])
def test_leaving_while_waiting(cancelled: bool, word: str) -> None:
    world = two_models()
    world.arrive("1", "a")
    world.arrive("2", "b")
    assert world.leave("2", cancelled=cancelled) == [f"end 2 ({word}_waiting)"]
    assert world.end("1") == []


@pytest.mark.parametrize(("cancelled", "word"), [(False, "left"), (True, "cancelled")])
def test_leaving_while_running_keeps_the_place_until_the_server_is_free(cancelled: bool, word: str) -> None:
    world = two_models()
    world.arrive("1", "a")
    world.arrive("2", "a")
    assert world.leave("1", cancelled=cancelled) == [f"abort 1 ({word}_running)"]
    assert world.arrive("3", "a") == []
    assert world.end("1", Outcome.LEFT_RUNNING) == ["run 2"]


def test_when_the_job_that_caused_a_load_leaves_the_next_takes_the_load_over() -> None:
    world = World(make_plan("a", "b"))
    world.arrive("1", "a")
    world.arrive("2", "a")
    assert world.leave("1") == ["end 1 (left_waiting)"]
    assert world.ready("a") == ["run 2"]


def test_a_load_nobody_waits_for_goes_on() -> None:
    world = World(make_plan("a", "b"))
    world.arrive("1", "a")
    assert world.leave("1") == ["end 1 (left_waiting)"]
    assert world.ready("a") == []
    assert world.arrive("2", "a") == ["run 2"]


def test_a_load_nobody_waits_for_is_abandoned_for_another_model() -> None:
    world = World(make_plan("a", "b"))
    world.arrive("1", "a")
    world.arrive("2", "b")
    assert world.leave("1") == ["end 1 (left_waiting)", "stop a (abandoned)"]
    assert world.ready("a") == []  # too late
    assert world.stopped("a") == ["start b (idle)"]


def test_leaving_before_the_old_model_is_gone_starts_nothing() -> None:
    world = two_models()
    assert world.arrive("1", "b") == ["stop a (swap)"]
    assert world.leave("1") == ["end 1 (left_waiting)"]
    assert world.stopped("a") == []


def test_a_job_for_the_model_that_was_just_told_to_stop_starts_it_again() -> None:
    world = two_models()
    world.arrive("1", "b")
    world.leave("1")
    assert world.arrive("2", "a") == []
    assert world.stopped("a") == ["start a (idle)"]


def test_news_of_jobs_that_are_not_there_changes_nothing() -> None:
    world = two_models()
    world.arrive("1", "b")
    assert world.leave("nobody") == []
    assert world.end("nobody") == []
    assert world.end("1") == []  # it was not sent yet
    assert world.dispatcher.grant("1") is not None


# Turns.


def ended_turn(outcome: Outcome | None) -> World:
    """Ann's job ended so at 60 s, or left before it was sent; Ann's and Ben's next ones wait for a place."""
    world = World(make_plan("a"))
    world.have_ready("a")
    world.do(ev.LanePaused(lane="gpu"))
    world.arrive("ann 1", "a", member="ann")
    world.arrive("ann 2", "a", member="ann")
    world.now = 1.0
    world.arrive("ben 1", "a", member="ben")
    if outcome is None:
        world.leave("ann 1")
    else:
        world.do(ev.LaneResumed(lane="gpu"))
        world.now = 60.0
        world.do(ev.LanePaused(lane="gpu"))
        world.end("ann 1", outcome)
    world.do(ev.LaneResumed(lane="gpu"))
    return world


def test_all_ran_but_those_that_were_refused_or_dropped_while_they_waited() -> None:
    assert [outcome for outcome in Outcome if not outcome.ran] == [
        Outcome.REFUSED_BACKOFF,
        Outcome.REFUSED_STOPPING,
        Outcome.REFUSED_FULL,
        Outcome.LEFT_WAITING,
        Outcome.CANCELLED_WAITING,
        Outcome.WAITED_TOO_LONG,
        Outcome.START_FAILED,
        Outcome.UNLOADED_WAITING,
        Outcome.MODEL_REMOVED,
        Outcome.STOPPED_WAITING,
        Outcome.DEFERRED,
    ]


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome.ran])
def test_a_job_that_was_sent_used_its_members_turn(outcome: Outcome) -> None:
    assert list(ended_turn(outcome).observer.running) == ["ben 1"]


@pytest.mark.parametrize("outcome", [None, *(outcome for outcome in Outcome if not outcome.ran)])
def test_a_job_that_never_ran_used_none(outcome: Outcome | None) -> None:
    assert list(ended_turn(outcome).observer.running) == ["ann 2"]


def test_a_failed_start_uses_no_turn() -> None:
    world = World(make_plan("a", "b"))
    world.arrive("ann 1", "b", member="ann")
    world.arrive("ann 2", "a", member="ann")
    world.now = 1.0
    world.arrive("ben 1", "a", member="ben")
    assert world.fail("b") == ["end ann 1 (start_failed)", "start a (idle)"]
    assert world.ready("a") == ["run ann 2"]


# The record.


def test_the_record_of_a_dispatch() -> None:
    world = World(make_plan("a", "b"), now=1000.0)
    world.have_ready("a", member="zoe")
    world.arrive("1", "a", member="ann", priority=-98)
    world.now = 1060.0
    world.arrive("2", "b", member="ben")
    world.arrive("3", "a", member="ann", priority=-98)
    world.now = 1120.0
    world.arrive("4", "a", member="cleo", priority=-100)
    world.now = 1180.0
    world.end("1")
    record = world.dispatches[-1]
    assert (record.number, record.at, record.lane, record.swap, record.waiting) == (3, 1180.0, "gpu", True, 3)
    winner, runner_up = record.winner, record.runner_up
    assert (winner.job_id, winner.model, winner.member, winner.band) == ("2", "b", "ben", "normal")
    assert (record.submitted_at, record.clock) == (1060.0, 1060.0)
    assert (winner.score.base, winner.score.tier_bonus, winner.score.affinity, winner.score.aging) == (0, 0, 0.0, 2.0)
    assert runner_up is not None
    assert (runner_up.job_id, runner_up.band) == ("3", "batch")
    score = runner_up.score  # ann's clock moved to the end of her job
    assert (score.base, score.tier_bonus, score.affinity, score.aging) == (-100, 2, 10.0, 0.0)
    assert record.margin == winner.score.total - score.total == 90.0
    assert record.without_aging == record.without_affinity == record.without_turns == record.first_come == winner


def test_the_record_of_a_job_whose_member_had_a_turn() -> None:
    world = World(make_plan("a"))
    world.have_ready("a", member="zoe")
    world.arrive("1", "a")
    world.arrive("2", "a")
    world.now = 60.0
    world.end("1")
    record = world.dispatches[-1]
    assert (record.winner.job_id, record.submitted_at, record.clock) == ("2", 0.0, 60.0)
    assert (record.runner_up, record.margin, record.swap) == (None, None, False)


def test_a_grant_tells_who_holds_a_place() -> None:
    world = World(make_plan("a"), now=5.0)
    world.arrive("1", "a")
    grant = world.dispatcher.grant("1")
    assert grant is not None
    assert (grant.lane, grant.granted_at, grant.running) == ("gpu", 5.0, False)
    world.now = 9.0
    world.ready("a")
    assert (grant.sent_at, grant.running) == (9.0, True)
    assert list(world.dispatcher.grants()) == [grant]
    assert world.dispatcher.grant("2") is None


def test_the_rules_in_force_can_be_asked_for() -> None:
    rules = ScoreRules(swap_affinity=3.0)
    plan = make_plan("a", rules=rules)
    assert World(plan).dispatcher.rules is rules
    assert World(plan).dispatcher.residency is plan.residency
