"""What may wait, what is refused, and when to try again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from swaplane.core import events as ev
from swaplane.core.limits import Allowance, Limits
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import LanePlan, ModelPlan
from tests.core.door import expect, limited, measured, ready, told
from tests.core.world import World, make_plan

# What may wait.


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(total=Allowance(jobs=2)), "2 jobs wait already, and at most 2 may"),
        (
            Limits(bands={"normal": Allowance(jobs=2)}),
            "2 jobs in band normal wait already, and at most 2 may",
        ),
        (Limits(member=Allowance(jobs=2)), "2 jobs of member ann wait already, and at most 2 may"),
        (Limits(keys={"bot": Allowance(jobs=2)}), "2 jobs of key bot wait already, and at most 2 may"),
        (
            Limits(total=Allowance(bytes=250)),
            "200 bytes wait already, and with these 100 more than the 250 that may",
        ),
        (
            Limits(bands={"normal": Allowance(bytes=250)}),
            "200 bytes in band normal wait already, and with these 100 more than the 250 that may",
        ),
        (
            Limits(member=Allowance(bytes=250)),
            "200 bytes of member ann wait already, and with these 100 more than the 250 that may",
        ),
        (
            Limits(keys={"bot": Allowance(bytes=250)}),
            "200 bytes of key bot wait already, and with these 100 more than the 250 that may",
        ),
        (
            Limits(total=Allowance(jobs=2), keys={"bot": Allowance(jobs=2)}, member=Allowance(jobs=2)),
            "2 jobs of key bot wait already, and at most 2 may",
        ),
    ],
)
def test_each_limit_refuses_the_job_that_breaks_it_and_says_whose_it_is(limits: Limits, words: str) -> None:
    world = ready(limited(limits))
    assert world.arrive("runs", "m", key="bot", body=1000) == ["run runs"], "what runs does not count"
    for number in (1, 2):
        assert world.arrive(f"{number}", "m", key="bot", body=100) == []
    assert world.arrive("3", "m", key="bot", body=100) == ["end 3 (refused_full)"]
    assert told(world).detail == words
    assert world.end("runs") == ["run 1"]
    assert world.arrive("4", "m", key="bot", body=100) == [], "one left the queue, so there is room again"


@pytest.mark.parametrize(
    ("limits", "other"),
    [
        (Limits(bands={"normal": Allowance(jobs=1)}), {"priority": 100}),
        (Limits(bands={"normal": Allowance(jobs=1)}), {"priority": -98}),
        (Limits(member=Allowance(jobs=1)), {"member": "ben"}),
        (Limits(keys={"bot": Allowance(jobs=1)}), {"key": "other"}),
        (Limits(keys={"bot": Allowance(jobs=1)}), {"key": ""}),
    ],
)
def test_a_limit_that_one_has_reached_does_not_refuse_others(limits: Limits, other: dict[str, str]) -> None:
    world = ready(limited(limits))
    world.arrive("runs", "m", key="bot")
    world.arrive("waits", "m", key="bot")
    assert world.arrive("refused", "m", key="bot") == ["end refused (refused_full)"]
    assert world.arrive("other", "m", **{"key": "bot", **other}) == []  # type: ignore[arg-type]


def test_a_body_longer_than_all_that_may_wait_is_let_in_when_nothing_else_waits() -> None:
    world = ready(limited(Limits(total=Allowance(bytes=100))))
    world.arrive("runs", "m")
    assert world.arrive("long", "m", body=5000) == []
    assert world.arrive("short", "m", body=1) == ["end short (refused_full)"]
    world.end("runs")
    assert world.arrive("again", "m", body=5000) == []


def test_a_promised_job_is_not_refused_by_a_limit_but_counts_for_it() -> None:
    world = ready(limited(Limits(total=Allowance(jobs=1))))
    for job_id in ("runs", "1", "2"):
        assert world.arrive(job_id, "m", promised=True) == (["run runs"] if job_id == "runs" else [])
    assert world.arrive("3", "m") == ["end 3 (refused_full)"]
    world.end("runs")
    assert world.arrive("4", "m") == ["end 4 (refused_full)"]
    world.end("1")
    assert world.arrive("5", "m") == []


def test_what_waits_is_summed_up_in_a_line() -> None:
    world = ready(limited(Limits()))
    for job_id in ("runs", "1", "2"):
        world.arrive(job_id, "m", body=100, max_wait_s=30.0)
    assert repr(world.dispatcher.queue.tally) == "<Tally 2 jobs, 200 bytes>"
    assert repr(world.dispatcher._deadlines) == "<Deadlines of 2 jobs, some of which may be gone>"


def test_asking_whether_a_job_would_be_refused_changes_nothing_about_the_jobs() -> None:
    world = ready(limited(Limits(total=Allowance(jobs=1))))
    world.arrive("runs", "m")
    job = world.job("asked", "m")
    assert world.dispatcher.refusal(job, world.now) is None
    world.arrive("waits", "m")
    found = world.dispatcher.refusal(job, world.now)
    assert found is not None
    assert found.outcome is Outcome.REFUSED_FULL
    again = world.dispatcher.refusal(job, world.now)
    assert again is not None
    assert again.retry_after_s is not None
    assert found.retry_after_s is not None
    assert replace(again, retry_after_s=found.retry_after_s) == found
    assert again.retry_after_s > found.retry_after_s, "there is not room for both"
    assert world.end("runs") == ["run waits"]


def test_a_job_that_left_the_queue_in_any_way_makes_room() -> None:
    def leave(world: World) -> None:
        world.leave("waits")

    def time_out(world: World) -> None:
        world.wait(30.0)

    def be_lowered(world: World) -> None:
        world.do(ev.PriorityChanged(job_id="waits", priority=-100))

    def model_is_gone(world: World) -> None:
        world.crash("m")
        world.fail("m")

    ways: list[Callable[[World], None]] = [leave, time_out, be_lowered]
    for way in ways:
        world = ready(limited(Limits(bands={"normal": Allowance(jobs=1, bytes=1)})))
        world.arrive("runs", "m")
        world.arrive("waits", "m", max_wait_s=30.0, body=1)
        way(world)
        assert world.arrive("other", "m", body=1) == [], way.__name__


def test_a_reload_that_lowers_a_limit_ends_nobody_who_waits() -> None:
    world = ready(limited(Limits()))
    for job_id in ("runs", "1", "2", "3"):
        world.arrive(job_id, "m")
    assert world.change(limited(Limits(total=Allowance(jobs=1)))) == []
    assert world.arrive("4", "m") == ["end 4 (refused_full)"]
    for job_id in ("runs", "1", "2"):
        world.end(job_id)
    assert world.arrive("5", "m") == []


# When to try again.


def test_a_refused_client_is_told_when_a_job_is_expected_to_leave_the_queue() -> None:
    world = measured(Limits(total=Allowance(jobs=2)))
    world.arrive("1", "m", member="ben")
    world.arrive("2", "m", member="cleo")
    world.now += 4.0
    world.arrive("3", "m")
    words = "2 jobs wait already, and at most 2 may"
    expect(world, Outcome.REFUSED_FULL, retry_after_s=6.0, words=words)


def test_a_member_at_its_limit_is_told_when_one_of_its_own_jobs_leaves_the_queue() -> None:
    world = measured(Limits(member=Allowance(jobs=1)))
    for member in ("ben", "cleo", "dan"):
        world.arrive(f"of {member}", "m", member=member)
    world.now += 4.0
    world.arrive("again", "m", member="dan")
    words = "1 job of member dan waits already, and at most 1 may"
    expect(world, Outcome.REFUSED_FULL, retry_after_s=6.0 + 2 * 10.0, words=words)


def test_a_band_at_its_limit_is_told_of_the_jobs_of_higher_bands_that_go_first() -> None:
    world = measured(Limits(bands={"batch": Allowance(jobs=1)}))
    world.arrive("batch", "m", priority=-100)
    world.arrive("chat", "m", priority=100, member="ben")
    world.arrive("again", "m", priority=-98)
    words = "1 job in band batch waits already, and at most 1 may"
    expect(world, Outcome.REFUSED_FULL, retry_after_s=20.0, words=words)


def test_who_has_to_wait_for_many_others_is_told_of_the_first_twenty() -> None:
    """Looking further ahead would take too long in a long line."""
    world = measured(Limits(bands={"batch": Allowance(jobs=1)}))
    world.arrive("batch", "m", priority=-100)
    for number in range(30):
        world.arrive(f"{number}", "m", member=f"member {number}")
    world.arrive("again", "m", priority=-100)
    assert told(world).retry_after_s == pytest.approx(20 * 10.0)


def test_those_who_are_refused_have_more_to_wait_for_where_more_waits_than_may() -> None:
    world = measured(Limits())
    for number in range(5):
        world.arrive(f"{number}", "m", member=f"member {number}")
    world.change(limited(Limits(total=Allowance(jobs=2))))
    world.arrive("refused", "m")
    words = "5 jobs wait already, and at most 2 may"
    expect(world, Outcome.REFUSED_FULL, retry_after_s=4 * 10.0, words=words)


def test_many_bytes_that_have_to_leave_take_longer_than_the_first_job() -> None:
    world = measured(Limits(total=Allowance(bytes=1000)))
    for number in range(5):
        world.arrive(f"{number}", "m", member=f"member {number}", body=200)
    world.arrive("refused", "m", body=500)
    assert told(world).retry_after_s == pytest.approx(3 * 10.0), "three of them have to leave"


def test_a_thousand_refusals_look_ahead_once_a_second() -> None:
    world = measured(Limits(total=Allowance(jobs=1)))
    world.arrive("waits", "m")
    world.arrive("refused", "m")
    assert told(world).retry_after_s == 10.0
    world.dispatcher.models["m"].run_s = 50.0  # now it would be another number
    world.now += 0.5
    world.arrive("refused too", "m")
    assert told(world).retry_after_s == 2 * 9.5, "the second of those who are refused at once comes later"
    world.now += 0.5
    world.arrive("refused again", "m")
    assert told(world).retry_after_s == 49.0


def test_while_the_lane_is_paused_nobody_knows_when_to_try_again() -> None:
    world = measured(Limits(total=Allowance(jobs=1)))
    world.arrive("waits", "m")
    world.do(ev.LanePaused(lane="gpu"))
    world.arrive("refused", "m")
    words = "1 job waits already, and at most 1 may; lane gpu is paused"
    expect(world, Outcome.REFUSED_FULL, retry_after_s=None, words=words)


def test_a_lane_that_is_idle_tells_when_the_other_lanes_jobs_leave_the_queue_they_share() -> None:
    plan = make_plan("m", ModelPlan(id="c", lane="cpu"), lanes=[LanePlan(name="gpu"), LanePlan(name="cpu")])
    world = World(replace(plan, limits=Limits(total=Allowance(jobs=1))))
    world.have_ready("c")
    world.arrive("runs", "c")
    world.arrive("waits", "c")
    world.do(ev.LanePaused(lane="gpu"))
    world.arrive("refused", "m")
    assert told(world).retry_after_s is None, "its own lane does nothing"
    world.do(ev.LaneResumed(lane="gpu"))
    world.arrive("refused too", "m")
    assert told(world).retry_after_s is not None, "it is contended, not gone"
    world.do(ev.LanePaused(lane="cpu"))
    world.arrive("refused again", "m")
    assert told(world).retry_after_s is None, "what waits there does not move"
