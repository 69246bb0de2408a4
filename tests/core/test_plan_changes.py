"""A new plan takes over: what is unchanged goes on, what changed restarts once its jobs have ended."""

from __future__ import annotations

from swaplane.core import events as ev
from swaplane.core.commands import EndJob
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import LanePlan, ModelPlan
from swaplane.core.residency import Group
from swaplane.core.score import Band, ScoreRules
from tests.core.world import World, make_plan, together


def model(name: str, version: str = "", *, lane: str = "gpu", slots: int = 1, ttl_s: float | None = None) -> ModelPlan:
    return ModelPlan(id=name, lane=lane, slots=slots, ttl_s=ttl_s, fingerprint=version)


TWO_LANES = (LanePlan(name="gpu"), LanePlan(name="cpu"))


def running_a() -> World:
    """Model a is resident and runs job 1."""
    world = World(make_plan("a", "b"))
    world.have_ready("a")
    world.arrive("1", "a")
    return world


# Models.


def test_an_unchanged_model_is_not_touched() -> None:
    world = running_a()
    world.arrive("2", "a")
    assert world.change(make_plan("a", "new")) == []
    assert world.end("1") == ["run 2"]
    assert world.end("2") == []
    assert world.change(make_plan("a")) == []


def test_a_changed_model_restarts_once_its_jobs_have_ended_and_its_server_is_gone() -> None:
    world = running_a()
    world.arrive("2", "a")
    assert world.change(make_plan(model("a", "v2"), "b")) == []
    assert world.arrive("3", "b") == []
    assert world.end("1") == ["stop a (reload)"]
    assert world.stopped("a") == ["start a (idle)"]
    assert world.ready("a") == ["run 2"]


def test_a_changed_model_that_is_idle_or_loads_for_nobody_stops_at_once() -> None:
    world = running_a()
    world.end("1")
    assert world.change(make_plan(model("a", "v2"), "b")) == ["stop a (reload)"]
    world.stopped("a")
    world.arrive("2", "a")
    world.leave("2")
    assert world.change(make_plan(model("a", "v3"), "b")) == ["stop a (reload)"]


def test_a_model_that_loads_for_a_job_runs_it_before_it_restarts() -> None:
    world = World(make_plan("a"))
    world.arrive("1", "a")
    world.arrive("2", "a")
    assert world.change(make_plan(model("a", "v2", slots=2))) == []
    assert world.ready("a") == ["run 1"]
    assert world.end("1") == ["stop a (reload)"]
    assert world.stopped("a") == ["start a (idle)"]
    assert world.ready("a") == ["run 2"]


def test_a_stopped_model_changes_in_place_and_its_failures_are_forgotten() -> None:
    world = World(make_plan("a"))
    for number in range(2):
        world.arrive(f"{number}", "a")
        world.fail("a")
    world.change(make_plan("a"))
    assert world.arrive("refused", "a") == ["end refused (refused_backoff)"]
    assert world.change(make_plan(model("a", "v2"))) == []
    assert world.arrive("again", "a") == ["start a (idle)"]


def test_a_crashed_model_changes_when_its_last_job_has_ended() -> None:
    world = running_a()
    world.arrive("2", "a")
    world.change(make_plan(model("a", "v2"), "b"))
    assert world.crash("a") == []
    assert world.end("1", Outcome.UPSTREAM_BROKEN) == ["start a (idle)"]


def test_slots_and_ttl_change_in_place() -> None:
    world = running_a()
    world.arrive("2", "a")
    assert world.change(make_plan(model("a", slots=2, ttl_s=30.0), "b")) == ["run 2"]
    assert world.change(make_plan(model("a", slots=1, ttl_s=30.0), "b")) == []
    world.arrive("3", "a")
    assert world.end("1") == []  # both of two slots were taken, now only one is left
    assert world.end("2") == ["run 3"]
    world.end("3")
    assert world.wakes_at() == 30.0


def test_the_jobs_of_a_removed_model_end_and_running_ones_may_finish() -> None:
    world = running_a()
    world.arrive("2", "b")
    world.arrive("3", "a")
    assert world.change(make_plan("b")) == ["end 3 (model_removed)"]
    assert isinstance(world.commands[0], EndJob)
    assert world.commands[0].detail == "model a is no longer configured"
    assert world.arrive("4", "a") == ["end 4 (model_removed)"]
    assert world.end("1") == ["stop a (reload)"]
    assert "a" in world.dispatcher.models
    assert world.stopped("a") == ["start b (idle)"]
    assert "a" not in world.dispatcher.models
    assert world.arrive("5", "a") == ["end 5 (model_removed)"]


def test_the_load_of_a_removed_model_is_given_up() -> None:
    world = World(make_plan("a", "b"))
    world.arrive("1", "a")
    assert world.change(make_plan("b")) == ["end 1 (model_removed)", "stop a (reload)"]


def test_a_model_that_is_removed_before_its_server_was_started_is_forgotten() -> None:
    world = running_a()
    world.end("1")
    world.arrive("2", "b")
    assert world.change(make_plan("a")) == ["end 2 (model_removed)"]
    assert list(world.dispatcher.models) == ["a"]


def test_a_removed_model_that_comes_back_before_it_has_stopped_goes_on() -> None:
    world = running_a()
    world.change(make_plan("b"))
    world.change(make_plan("a", "b"))
    world.arrive("2", "a")
    assert world.end("1") == ["run 2"]


def test_a_removed_model_that_comes_back_changed_restarts() -> None:
    world = running_a()
    world.change(make_plan("b"))
    world.change(make_plan(model("a", "v2"), "b"))
    world.arrive("2", "a")
    assert world.end("1") == ["stop a (reload)"]
    assert world.stopped("a") == ["start a (idle)"]


def test_a_model_that_changes_back_is_not_restarted() -> None:
    world = running_a()
    world.change(make_plan(model("a", "v2"), "b"))
    world.change(make_plan("a", "b"))
    assert world.end("1") == []


# Lanes.


def test_a_model_moves_to_another_lane_with_its_waiting_jobs_once_its_server_is_gone() -> None:
    world = running_a()
    world.arrive("2", "a")
    world.arrive("3", "b")
    assert world.change(make_plan(model("a", lane="cpu"), "b", lanes=TWO_LANES)) == []
    assert world.dispatcher.queue.lane_of("2") == "gpu"
    assert world.end("1") == ["stop a (reload)"]
    assert world.stopped("a") == ["start b (idle)", "start a (idle)"]
    assert world.ready("a") == ["run 2"]


def test_a_job_that_has_a_place_when_its_model_moves_waits_for_one_in_the_other_lane() -> None:
    """Otherwise it would hold a place there that was never free."""
    plan = make_plan("a", "b", model("c", lane="cpu"), lanes=TWO_LANES)
    world = World(plan)
    world.have_ready("b")
    world.have_ready("c")
    world.arrive("busy", "c")
    world.arrive("1", "a")  # waits for b to leave
    moved = make_plan(model("a", lane="cpu"), "b", model("c", lane="cpu"), lanes=TWO_LANES)
    assert world.change(moved) == []
    assert "1" in world.dispatcher.queue
    assert world.end("busy") == ["stop c (swap)"]
    assert world.stopped("c") == ["start a (priority)"]


def test_a_shrunk_lane_keeps_what_it_holds() -> None:
    beside = [together("a", "b")]
    world = World(make_plan("a", "b", lanes=[LanePlan(name="gpu", size=2)], groups=beside))
    for name in "ab":
        world.have_ready(name)
        world.arrive(name, name)
    world.arrive("a2", "a")
    assert world.change(make_plan("a", "b", groups=beside)) == []
    assert world.end("a") == []
    assert world.end("b") == ["run a2"]


def test_a_lane_nobody_uses_any_more_is_forgotten() -> None:
    world = World(make_plan("a", lanes=TWO_LANES))
    world.have_ready("a")
    world.change(make_plan("a"))
    assert list(world.dispatcher.lanes) == ["gpu"]
    world.change(make_plan(model("a", lane="cpu"), lanes=[LanePlan(name="cpu")]))
    assert list(world.dispatcher.lanes) == ["gpu", "cpu"]  # a has not left it yet
    world.stopped("a")
    assert list(world.dispatcher.lanes) == ["cpu"]


def test_a_paused_lane_stays_paused() -> None:
    world = World(make_plan("a"))
    world.do(ev.LanePaused(lane="gpu"))
    world.change(make_plan("a", lanes=TWO_LANES))
    assert world.arrive("1", "a") == []


# Residency.

BESIDE = [together("a", "b")]
ROOM_FOR_TWO = [LanePlan(name="gpu", size=2)]


def test_models_that_exclude_each_other_from_now_on_do_not_wait_for_each_other() -> None:
    """Both load for a job when the rules change: the newer one gives its place back."""
    world = World(make_plan("a", "b", lanes=ROOM_FOR_TWO, groups=BESIDE))
    world.arrive("1", "a")
    world.arrive("2", "b")
    assert world.change(make_plan("a", "b", lanes=ROOM_FOR_TWO)) == ["stop b (abandoned)"]
    assert world.stopped("b") == []
    assert world.ready("a") == ["run 1"]
    assert world.end("1") == ["stop a (swap)"]


def test_a_resident_model_that_must_leave_from_now_on_is_told_so() -> None:
    world = World(make_plan("a", "b", lanes=ROOM_FOR_TWO, groups=BESIDE))
    world.have_ready("b")
    assert world.arrive("1", "a") == ["start a (idle)"]
    assert world.change(make_plan("a", "b", lanes=ROOM_FOR_TWO)) == ["stop b (swap)"]
    assert world.ready("a") == []
    assert world.stopped("b") == ["run 1"]


def test_a_model_with_jobs_may_end_them_before_it_must_leave() -> None:
    world = World(make_plan("a", "b", lanes=ROOM_FOR_TWO, groups=BESIDE))
    world.have_ready("b")
    world.arrive("1", "b")
    world.arrive("2", "a")
    polite = [Group(name="polite", members=frozenset({"b"}), exclusive=False)]
    assert world.change(make_plan("a", "b", lanes=ROOM_FOR_TWO, groups=polite)) == []
    assert "2" in world.dispatcher.queue  # it gave its place back: b's job runs
    assert world.ready("a") == []
    assert world.end("1") == ["stop b (swap)"]
    assert world.stopped("b") == ["run 2"]


# Rules.


def test_other_bands_take_over_at_once() -> None:
    world = running_a()
    world.arrive("40", "a", priority=40, member="ben")
    world.arrive("50", "a", priority=50, member="ben")
    bands = (Band(name="low", value=-100), Band(name="mid", value=0), Band(name="soon", value=45))
    world.change(make_plan("a", "b", rules=ScoreRules(bands=bands, swap_affinity=1.0)))
    world.end("1")
    assert world.dispatches[-1].winner.band == "soon"
    assert world.dispatches[-1].runner_up is not None
    assert world.dispatches[-1].runner_up.band == "mid"


def test_clocks_survive_a_change_of_the_rules() -> None:
    world = running_a()
    world.now = 10.0
    world.arrive("ann's", "a", member="ann")
    world.now = 20.0
    world.arrive("ben's", "a", member="ben")
    world.change(make_plan("a", "b", rules=ScoreRules(swap_affinity=5.0)))
    world.now = 30.0
    assert world.end("1") == ["run ben's"]


def test_a_plan_may_change_while_the_gateway_goes_down() -> None:
    world = running_a()
    world.do(ev.ShutdownRequested())
    assert world.change(make_plan("a", "b", "c")) == []
    assert world.end("1") == ["stop a (shutdown)"]
