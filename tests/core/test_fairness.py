"""Hours of imagined time: a film never holds back anybody, and nobody is starved."""

from __future__ import annotations

from swaplane.core import events as ev
from swaplane.core.score import AgingClock, Fairness, ScoreRules
from tests.core.world import Auto, World, make_plan

MINUTE = 60.0
SHOT_S = 4 * MINUTE
CHAT_S = 0.5 * MINUTE
LOAD_S = 30.0
SHOTS = 174
CHATS = 72  #: one every ten minutes, for twelve hours


def film(chat_model: str, aging_clock: AgingClock = "turn") -> list[float]:
    """Ann queues a film of 174 shots at batch; Ben asks at interactive every ten minutes. Ben's waits, in minutes."""
    plan = make_plan("image", "chat", rules=ScoreRules(aging_clock=aging_clock))
    world = World(plan, Auto(run_s={"image": SHOT_S, "chat": CHAT_S}, load_s=LOAD_S), watched=False)
    for number in range(SHOTS):
        world.arrive(f"shot {number}", "image", priority=-100, member="ann")
    asked_at = {f"chat {number}": (5 + 10 * number) * MINUTE for number in range(CHATS)}
    for job_id, moment in asked_at.items():
        world.run(until=moment)
        world.now = moment
        world.arrive(job_id, chat_model, priority=100, member="ben")
    world.run()
    assert len(world.ran_at) == SHOTS + CHATS
    return [(world.ran_at[job_id] - moment) / MINUTE for job_id, moment in asked_at.items()]


def test_a_film_never_holds_back_an_interactive_request() -> None:
    """Twelve hours: each request waits for the shot that runs, never for a second one."""
    assert max(film("image")) <= SHOT_S / MINUTE


def test_a_film_never_holds_back_an_interactive_request_of_another_model() -> None:
    assert max(film("chat")) <= (SHOT_S + LOAD_S) / MINUTE


def test_with_submit_clocks_the_film_inverts_the_bands_after_200_minutes() -> None:
    """The documented contrast: all shots age at once, and then hold the lane for hours."""
    waits = film("image", aging_clock="submit")
    assert max(waits[:18]) <= SHOT_S / MINUTE  # asked in the first three hours
    assert max(waits) > 5 * 60.0
    assert sorted(waits)[len(waits) // 2] > 60.0


def shares(fairness: Fairness) -> list[str]:
    """Who has the first eight turns when Ann queues eight jobs and Ben eight a moment later."""
    world = World(make_plan("a", rules=ScoreRules(fairness=fairness)), Auto(run_s={"a": MINUTE}))
    for member in ("ann", "ben"):
        for number in range(8):
            world.arrive(f"{member} {number}", "a", member=member)
    world.run()
    return [dispatch.winner.member for dispatch in world.dispatches[:8]]


def test_members_with_the_same_number_take_turns() -> None:
    assert shares("turns") == ["ann", "ben"] * 4


def test_without_fairness_a_band_is_one_line() -> None:
    assert shares("none") == ["ann"] * 8


def test_a_batch_job_is_not_starved_by_busy_interactive_members() -> None:
    """Twenty members keep the lane full for ever; the batch job runs after 200 minutes and one job of each."""
    members = [f"member {number}" for number in range(20)]
    world = World(make_plan("a"), Auto(run_s={"a": CHAT_S}, load_s=0.0), watched=False)
    for member in members:
        for number in range(60):
            world.at(0.0, ev.JobArrived(job=world.job(f"{member}: {number}", "a", priority=100, member=member)))
    world.at(0.0, ev.JobArrived(job=world.job("batch", "a", priority=-100, member="ann")))
    world.run(until=220 * MINUTE)
    assert 200 * MINUTE <= world.ran_at["batch"] <= 200 * MINUTE + len(members) * CHAT_S


def test_a_member_alone_does_not_starve_its_own_job_for_another_model() -> None:
    """A stream of images at more than the lane can do; the video asked for at ten minutes still gets its turn."""
    world = World(make_plan("image", "video"), Auto(run_s={"image": 2 * MINUTE, "video": 5 * MINUTE}, load_s=LOAD_S))
    for number in range(120):
        moment = number * 1.9 * MINUTE
        world.at(moment, ev.JobArrived(job=world.job(f"image {number}", "image", at=moment)))
    world.at(10 * MINUTE, ev.JobArrived(job=world.job("video", "video", at=10 * MINUTE)))
    world.run()
    assert world.ran_at["video"] < 40 * MINUTE
