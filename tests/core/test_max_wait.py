"""How long a job may wait, and what happens when it has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swaplane.core import events as ev
from swaplane.core.limits import Limits
from swaplane.core.outcomes import Outcome
from tests.core.door import expect, limited, measured, ready, told
from tests.core.world import World, make_plan


def test_a_job_ends_when_it_has_waited_as_long_as_it_wants_to() -> None:
    world = measured(Limits())
    assert world.arrive("waits", "m", max_wait_s=30.0) == []
    assert world.wakes_at() == world.now + 30.0
    assert world.wait(29.5) == []
    assert world.wait(0.5) == ["end waits (waited_too_long)"]
    words = "it has waited 30.0 s for its turn: X-LlamaSwap-Max-Wait allows 30 s"
    expect(world, Outcome.WAITED_TOO_LONG, retry_after_s=20.0, words=words)
    assert world.wakes_at() is None
    assert world.end("runs") == []


@pytest.mark.parametrize(("wish_s", "expected_s"), [(None, 60.0), (30.0, 30.0), (90.0, 60.0), (60.0, 60.0)])
def test_a_job_may_wait_for_less_than_its_band_but_not_for_longer(wish_s: float | None, expected_s: float) -> None:
    world = measured(Limits(max_wait_s={"normal": 60.0}))
    world.arrive("waits", "m", max_wait_s=wish_s)
    world.arrive("batch", "m", priority=-100)
    assert world.wakes_at() == world.now + expected_s
    assert world.wait(expected_s) == ["end waits (waited_too_long)"]


def test_those_whose_time_is_up_end_in_the_order_of_their_deadlines() -> None:
    world = measured(Limits())
    for job_id, max_wait_s in [("c", 30.0), ("a", 10.0), ("b", 20.0), ("d", 40.0)]:
        world.arrive(job_id, "m", max_wait_s=max_wait_s)
    assert world.wakes_at() == world.now + 10.0
    assert world.wait(35.0) == [f"end {job_id} (waited_too_long)" for job_id in "abc"]


def test_who_does_not_want_to_wait_runs_at_once_on_an_idle_model() -> None:
    assert ready(limited(Limits())).arrive("now or never", "m", max_wait_s=0.0) == ["run now or never"]


def test_who_does_not_want_to_wait_ends_at_once_when_something_runs() -> None:
    world = measured(Limits())
    assert world.arrive("now or never", "m", max_wait_s=0.0) == ["end now or never (waited_too_long)"]
    words = "it has waited 0.0 s for its turn: X-LlamaSwap-Max-Wait allows 0 s"
    expect(world, Outcome.WAITED_TOO_LONG, retry_after_s=10.0, words=words)


def test_who_does_not_want_to_wait_starts_no_model() -> None:
    world = World(limited(Limits()))
    assert world.arrive("now or never", "m", max_wait_s=0.0) == ["end now or never (waited_too_long)"]
    assert world.dispatches == []
    words = "it has waited 0.0 s and m, which is not loaded, is not loaded for that: X-LlamaSwap-Max-Wait allows 0 s"
    expect(world, Outcome.WAITED_TOO_LONG, retry_after_s=None, words=words)


def test_who_does_not_want_to_wait_does_not_hold_up_who_does() -> None:
    """The first in line cannot run any more; the second one's place is free at the same moment."""
    world = World(make_plan("a", "b"))
    world.do(ev.LanePaused(lane="gpu"))
    world.arrive("patient", "b", priority=-100)
    world.arrive("hasty", "a", priority=100, max_wait_s=20.0)
    world.now += 20.0
    assert world.do(ev.LaneResumed(lane="gpu")) == ["end hasty (waited_too_long)", "start b (idle)"]


def test_a_job_ends_while_its_model_loads_and_the_model_is_there_for_others() -> None:
    world = World(make_plan("a", "b"))
    assert world.arrive("hasty", "a", max_wait_s=5.0) == ["start a (idle)"]
    assert world.wakes_at() == 5.0
    assert world.wait(5.0) == ["end hasty (waited_too_long)"]
    assert told(world).detail == "it has waited 5.0 s for a to load: X-LlamaSwap-Max-Wait allows 5 s"
    assert world.ready("a") == []
    assert world.arrive("next", "a") == ["run next"]


def test_when_a_job_ends_while_its_model_loads_another_model_may_be_loaded_instead() -> None:
    world = World(make_plan("a", "b"))
    world.arrive("hasty", "a", max_wait_s=5.0)
    world.arrive("other", "b")
    assert world.wait(5.0) == ["end hasty (waited_too_long)", "stop a (abandoned)"]
    assert world.stopped("a") == ["start b (idle)"]


def test_a_job_that_was_sent_to_its_model_has_no_deadline_any_more() -> None:
    world = ready(limited(Limits(max_wait_s={"normal": 5.0})))
    world.arrive("runs", "m", max_wait_s=5.0)
    assert world.wakes_at() is None
    assert world.wait(100.0) == []
    assert world.end("runs") == []


def test_a_job_that_ran_before_waits_as_long_as_it_takes() -> None:
    world = measured(Limits(max_wait_s={"normal": 60.0}))
    job = replace(world.job("again", "m", max_wait_s=30.0), ran_before=True)
    world.do(ev.JobArrived(job=job, promised=True))
    assert world.wakes_at() is None
    assert world.wait(1000.0) == []
    assert world.do(ev.JobEnded(job_id="runs", outcome=Outcome.COMPLETED)) == ["run again"]


def test_the_priority_of_a_job_that_runs_stays() -> None:
    world = measured(Limits())
    assert world.do(ev.PriorityChanged(job_id="runs", priority=100)) == []


def test_time_runs_while_the_lane_is_paused() -> None:
    world = measured(Limits())
    world.do(ev.LanePaused(lane="gpu"))
    world.arrive("waits", "m", max_wait_s=30.0)
    assert world.wakes_at() == world.now + 30.0
    assert world.wait(30.0) == ["end waits (waited_too_long)"]
    words = "it has waited 30.0 s for its turn: X-LlamaSwap-Max-Wait allows 30 s; lane gpu is paused"
    expect(world, Outcome.WAITED_TOO_LONG, retry_after_s=None, words=words)


def test_a_job_moved_to_another_band_may_wait_as_long_as_that_one() -> None:
    world = measured(Limits(max_wait_s={"normal": 60.0, "batch": 600.0}))
    start = world.now
    world.arrive("waits", "m")
    world.do(ev.PriorityChanged(job_id="waits", priority=-98))
    assert world.wakes_at() == start + 600.0
    assert world.wait(60.0) == []
    world.do(ev.PriorityChanged(job_id="waits", priority=100))
    assert world.wakes_at() is None, "interactive jobs may wait for ever"
    assert world.do(ev.PriorityChanged(job_id="waits", priority=0)) == ["tell waits 0 (requested)"]
    assert world.wakes_at() == start + 60.0 + 60.0, "nobody is ended by being helped: its time there begins now"
    assert world.do(ev.PriorityChanged(job_id="waits", priority=2)) == ["tell waits 2 (requested)"]
    assert world.wakes_at() == start + 60.0 + 60.0, "it is the same band"
    assert world.wait(60.0) == ["end waits (waited_too_long)"]
    assert told(world).detail == "it has waited 120.0 s for its turn: max_wait allows 60 s in band normal"


def test_a_job_moved_back_and_forth_ends_once() -> None:
    world = measured(Limits(max_wait_s={"batch": 600.0}))
    world.arrive("waits", "m", max_wait_s=30.0)
    for priority in (-98, 0, 2, 1, 0):
        world.do(ev.PriorityChanged(job_id="waits", priority=priority))
    assert world.wait(30.0) == ["end waits (waited_too_long)"]


def test_a_reload_changes_how_long_those_may_wait_who_do_already() -> None:
    world = measured(Limits())
    start = world.now
    world.arrive("waits", "m")
    assert world.wakes_at() is None
    world.change(limited(Limits(max_wait_s={"normal": 60.0})))
    assert world.wakes_at() == start + 60.0
    world.change(limited(Limits(max_wait_s={"normal": 120.0})))
    assert world.wakes_at() == start + 120.0
    assert world.wait(100.0) == []
    assert world.change(limited(Limits(max_wait_s={"normal": 100.0}))) == ["end waits (waited_too_long)"]


def test_thousands_of_deadlines_of_jobs_that_are_gone_are_forgotten() -> None:
    world = measured(Limits())
    world.watched = False
    for number in range(5000):
        world.arrive(f"{number}", "m", max_wait_s=1000.0)
        world.leave(f"{number}")
    assert world.wakes_at() is None
    assert len(world.dispatcher._deadlines._heap) < 200
