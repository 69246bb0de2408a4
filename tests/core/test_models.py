"""Models start, fail, crash, idle and stop; lanes pause; the gateway goes down."""

from __future__ import annotations

import pytest

from swaplane.core import events as ev
from swaplane.core.commands import EndJob, StopCause
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import LanePlan, ModelPlan
from swaplane.core.residency import Group
from tests.core.world import World, make_plan, together


def details(world: World) -> list[str]:
    return [command.detail for command in world.commands if isinstance(command, EndJob)]


# Starts that fail.


def test_a_failed_start_fails_all_its_jobs_in_order_of_arrival() -> None:
    world = World(make_plan("a", "b"))
    world.arrive("1", "a", priority=-100)
    world.arrive("2", "b")
    world.arrive("3", "a", priority=100)
    world.arrive("4", "a")
    assert world.fail("a", "out of memory") == [
        "end 1 (start_failed)",
        "end 3 (start_failed)",
        "end 4 (start_failed)",
        "start b (idle)",
    ]
    assert details(world) == ["out of memory"] * 3


def test_a_model_that_keeps_failing_is_tried_ever_more_seldom() -> None:
    world = World(make_plan("a"))
    for failures, left_alone_s in enumerate([0.0, 2.0, 5.0, 15.0, 60.0, 60.0], start=1):
        assert world.arrive(f"try {failures}", "a") == ["start a (idle)"]
        world.fail("a", "no such file")
        if left_alone_s:
            world.now += 0.5
            assert world.arrive(f"early {failures}", "a") == [f"end early {failures} (refused_backoff)"]
            refusal = world.commands[0]
            assert isinstance(refusal, EndJob)
            assert refusal.retry_after_s == left_alone_s - 0.5
            assert f"failed to start {failures} times" in refusal.detail
            assert "no such file" in refusal.detail
            world.now += left_alone_s - 0.5


def test_a_successful_start_forgives_earlier_failures() -> None:
    world = World(make_plan("a", "b"))
    for attempt in range(3):
        world.now += 60.0
        world.arrive(f"{attempt}", "a")
        world.fail("a")
    world.now += 60.0
    world.have_ready("a")
    assert world.arrive("swap", "b") == ["stop a (swap)"]
    world.leave("swap")
    world.stopped("a")
    world.arrive("again", "a")
    world.fail("a")
    assert world.arrive("at once", "a") == ["start a (idle)"]


def test_a_start_that_fails_after_it_was_told_to_stop_is_no_failure() -> None:
    world = World(make_plan("a", "b"))
    world.arrive("1", "a")
    world.arrive("2", "b")
    world.leave("1")
    assert world.fail("a") == ["start b (idle)"]
    assert world.dispatcher.models["a"].failed_starts == 0


# Crashes.


def test_a_crash_holds_the_place_until_its_jobs_have_ended() -> None:
    world = World(make_plan(ModelPlan(id="a", lane="gpu", slots=2), "b"))
    world.have_ready("a")
    world.arrive("1", "a")
    world.arrive("2", "a")
    world.arrive("3", "a")
    assert world.crash("a") == []
    assert world.end("1", Outcome.UPSTREAM_BROKEN) == []
    assert world.end("2", Outcome.UPSTREAM_BROKEN) == ["start a (idle)"]
    assert world.ready("a") == ["run 3"]


def test_after_a_crash_another_model_may_start_once_the_jobs_have_ended() -> None:
    world = World(make_plan("a", "b"))
    world.have_ready("a")
    world.arrive("1", "a")
    world.arrive("2", "b")
    assert world.crash("a") == []
    assert world.end("1", Outcome.UPSTREAM_BROKEN) == ["start b (idle)"]


def test_the_crash_of_an_idle_model_is_noticed_and_nothing_starts() -> None:
    world = World(make_plan("a"))
    world.have_ready("a")
    assert world.crash("a") == []
    assert world.arrive("1", "a") == ["start a (idle)"]


def test_a_model_that_crashes_between_its_turn_and_its_run_is_started_again() -> None:
    polite = Group(name="polite", members=frozenset({"b"}), exclusive=False)
    world = World(make_plan("a", "b", lanes=[LanePlan(name="gpu", size=2)], groups=[polite]))
    world.have_ready("a")
    world.have_ready("b")
    assert world.arrive("1", "a") == ["stop b (swap)"]
    assert world.crash("a") == []
    assert world.stopped("b") == ["start a (idle)"]


def test_a_crashed_model_is_not_started_beside_its_running_jobs() -> None:
    polite = Group(name="polite", members=frozenset({"b"}), exclusive=False)
    slots = ModelPlan(id="a", lane="gpu", slots=2)
    world = World(make_plan(slots, "b", lanes=[LanePlan(name="gpu", size=2)], groups=[polite]))
    world.have_ready("a")
    world.arrive("1", "a")
    world.have_ready("b")
    assert world.arrive("2", "a") == ["stop b (swap)"]
    assert world.crash("a") == []
    assert world.stopped("b") == []
    assert world.end("1", Outcome.UPSTREAM_BROKEN) == ["start a (idle)"]
    assert world.ready("a") == ["run 2"]


# Idle time.


def test_the_ttl_counts_from_the_end_of_the_last_job() -> None:
    world = World(make_plan(ModelPlan(id="a", lane="gpu", ttl_s=30.0)))
    assert world.wakes_at() is None
    world.arrive("1", "a")
    world.ready("a")
    world.wait(100.0)  # a long job does not count as idle
    world.end("1")
    assert world.wakes_at() == 130.0
    world.wait(20.0)
    world.arrive("2", "a")
    assert world.wakes_at() is None
    world.end("2")
    assert world.wakes_at() == 150.0
    assert world.wait(29.0) == []
    assert world.wait(1.0) == ["stop a (ttl)"]
    assert world.wakes_at() is None
    assert world.stopped("a") == []


def test_the_ttl_of_a_model_that_was_never_used_counts_from_ready() -> None:
    world = World(make_plan(ModelPlan(id="a", lane="gpu", ttl_s=30.0)))
    world.arrive("1", "a")
    world.leave("1")
    world.now = 50.0
    world.ready("a")
    assert world.wakes_at() == 80.0


def test_a_model_is_not_idle_while_jobs_wait_for_it() -> None:
    world = World(make_plan(ModelPlan(id="a", lane="gpu", ttl_s=30.0)))
    world.have_ready("a")
    world.do(ev.LanePaused(lane="gpu"))
    world.arrive("1", "a")
    assert world.wakes_at() is None
    assert world.wait(100.0) == []
    assert world.do(ev.LaneResumed(lane="gpu")) == ["run 1"]


def test_the_earliest_ttl_wakes() -> None:
    plan = make_plan(
        ModelPlan(id="a", lane="gpu", ttl_s=30.0),
        ModelPlan(id="b", lane="gpu", ttl_s=20.0),
        "c",
        groups=[together("a", "b", "c")],
    )
    world = World(plan)
    for model in "abc":
        world.have_ready(model)
    assert world.wakes_at() == 20.0
    assert world.wait(25.0) == ["stop b (ttl)"]
    assert world.wakes_at() == 30.0


# Unloading.


def test_unloading_cuts_running_jobs_and_lets_waiting_ones_wait() -> None:
    world = World(make_plan("a"))
    world.have_ready("a")
    world.arrive("1", "a")
    world.arrive("2", "a")
    assert world.unload("a") == ["abort 1 (unloaded_running)", "stop a (unload)"]
    assert world.stopped("a") == []  # the place is held until the job has ended
    assert world.end("1", Outcome.UNLOADED_RUNNING) == ["start a (idle)"]
    assert world.ready("a") == ["run 2"]


def test_a_job_may_end_before_its_unloaded_model_is_gone() -> None:
    world = World(make_plan("a", "b"))
    world.have_ready("a")
    world.arrive("1", "a")
    world.arrive("2", "b")
    world.unload("a")
    assert world.end("1", Outcome.UNLOADED_RUNNING) == []
    assert world.stopped("a") == ["start b (idle)"]


def test_unloading_a_model_that_loads_ends_the_job_it_loads_for() -> None:
    world = World(make_plan("a"))
    world.arrive("1", "a")
    world.arrive("2", "a")
    assert world.unload("a") == ["end 1 (unloaded_waiting)", "stop a (unload)"]
    assert details(world) == ["model unloaded"]
    assert world.stopped("a") == ["start a (idle)"]


@pytest.mark.parametrize("model", ["a", "unknown"])
def test_unloading_what_is_not_loaded_does_nothing(model: str) -> None:
    assert World(make_plan("a")).unload(model) == []


# A server that is stuck with a job.


def test_a_stuck_server_is_stopped_under_all_its_jobs_and_started_again_for_those_that_wait() -> None:
    world = World(make_plan(ModelPlan(id="a", lane="gpu", slots=2)))
    world.have_ready("a")
    for job_id in ("stuck", "beside", "waits"):
        world.arrive(job_id, "a")
    assert world.unload("a", StopCause.STUCK) == [
        "abort stuck (unloaded_running)",
        "abort beside (unloaded_running)",
        "stop a (stuck)",
    ]
    assert world.stopped("a") == []
    assert world.end("beside", Outcome.UNLOADED_RUNNING) == []
    assert world.end("stuck", Outcome.OVERDUE) == ["start a (idle)"]
    assert world.ready("a") == ["run waits"]


def test_a_job_that_has_its_place_but_was_not_sent_to_the_stuck_server_keeps_it() -> None:
    polite = Group(name="polite", members=frozenset({"b"}), exclusive=False)
    slots = ModelPlan(id="a", lane="gpu", slots=2)
    world = World(make_plan(slots, "b", lanes=[LanePlan(name="gpu", size=2)], groups=[polite]))
    world.have_ready("a")
    world.arrive("stuck", "a")
    world.have_ready("b")
    assert world.arrive("loads", "a") == ["stop b (swap)"]
    assert world.unload("a", StopCause.STUCK) == ["abort stuck (unloaded_running)", "stop a (stuck)"]
    assert world.stopped("b") == []
    assert world.stopped("a") == []
    assert world.end("stuck", Outcome.UPSTREAM_LOST) == ["start a (idle)"]
    assert world.ready("a") == ["run loads"]


def test_a_stuck_server_that_is_on_its_way_out_already_is_not_told_again() -> None:
    world = World(make_plan("a", "b"))
    world.have_ready("a")
    world.arrive("stuck", "a")
    world.unload("a")
    assert world.unload("a", StopCause.STUCK) == []


# Pausing.


def test_a_paused_lane_ends_what_runs_and_starts_nothing() -> None:
    world = World(make_plan("a", ModelPlan(id="c", lane="cpu"), lanes=[LanePlan(name="gpu"), LanePlan(name="cpu")]))
    world.have_ready("a")
    world.arrive("1", "a")
    world.arrive("2", "a")
    assert world.do(ev.LanePaused(lane="gpu")) == []
    assert world.end("1") == []
    assert world.arrive("3", "c") == ["start c (idle)"]
    assert world.do(ev.LaneResumed(lane="gpu")) == ["run 2"]


def test_a_job_whose_model_loads_when_its_lane_is_paused_still_runs() -> None:
    world = World(make_plan("a"))
    world.arrive("1", "a")
    world.do(ev.LanePaused(lane="gpu"))
    assert world.ready("a") == ["run 1"]


def test_an_unknown_lane_cannot_be_paused() -> None:
    world = World(make_plan("a"))
    assert world.do(ev.LanePaused(lane="nowhere")) == []
    assert world.arrive("1", "a") == ["start a (idle)"]


# Going down.


def test_a_shutdown_ends_what_waits_and_lets_finish_what_runs() -> None:
    plan = make_plan("a", "b", "idle", lanes=[LanePlan(name="gpu", size=2)], groups=[together("a", "b", "idle")])
    world = World(plan)
    world.have_ready("idle")
    world.have_ready("a")
    world.arrive("running", "a")
    world.arrive("waiting", "a", priority=-100)
    world.arrive("loading", "b")
    assert world.do(ev.ShutdownRequested()) == [
        "end waiting (stopped_waiting)",
        "end loading (stopped_waiting)",
        "stop b (shutdown)",
        "stop idle (shutdown)",
    ]
    assert world.arrive("late", "a") == ["end late (refused_stopping)"]
    assert world.end("running") == ["stop a (shutdown)"]
    assert world.stopped("a") == []


# News that comes too late.


def test_news_of_models_that_are_not_there_changes_nothing() -> None:
    world = World(make_plan("a"))
    assert world.ready("unknown") == []
    assert world.fail("unknown") == []
    assert world.stopped("unknown") == []
    assert world.crash("unknown") == []
    assert world.stopped("a") == []
    assert world.ready("a") == []  # it was never started
    assert world.arrive("1", "a") == ["start a (idle)"]


def test_measured_seconds_follow_the_newest_values() -> None:
    world = World(make_plan("a", "b"))
    model = world.dispatcher.models["a"]
    assert (model.load_s, model.run_s) == (None, None)
    world.arrive("1", "a")
    world.ready("a", load_s=7.5)
    world.now += 30.0
    world.end("1")
    assert (model.load_s, model.run_s) == (7.5, 30.0)
    world.arrive("2", "a")
    world.now += 60.0
    world.end("2")
    world.arrive("3", "a")
    world.end("3", Outcome.UPSTREAM_ERROR)  # says nothing about how long a job takes
    assert model.run_s == 40.0  # a third of the way
