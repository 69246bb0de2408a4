"""A film queued whole, and people who chat meanwhile: hour 8 is like hour 1."""

from __future__ import annotations

from itertools import cycle
from statistics import median

import pytest

from swaplane.core.plan import ModelPlan
from swaplane.core.score import AgingClock, Fairness, ScoreRules
from tests.core.world import Auto, World, make_plan

MINUTE = 60.0
HOUR = 60 * MINUTE
SHOTS = 174
SHOT_S = 4 * MINUTE
CHAT_S = 20.0
LOAD_S = 30.0
EVERY_S = 7 * MINUTE  #: not a multiple of anything else here
HOURS = 12


def chat_waits(
    fairness: Fairness = "turns", aging_clock: AgingClock = "turn", *, other_model: bool = False
) -> dict[int, list[float]]:
    """By hour, counted from 1: how long each chat of three members waited, seconds."""
    chat = "chat" if other_model else "film"
    models = [ModelPlan(id=name, lane="gpu") for name in {"film", chat}]
    plan = make_plan(*models, rules=ScoreRules(fairness=fairness, aging_clock=aging_clock))
    # A chat of the film's own model takes as long as a shot: the worst case.
    world = World(plan, Auto(run_s={"film": SHOT_S, "chat": CHAT_S}, load_s=LOAD_S), watched=False)
    for number in range(SHOTS):
        world.arrive(f"shot {number}", "film", priority=-100, member="ann")
    asked_at: dict[str, float] = {}
    members = cycle(("ben", "cleo", "dan"))
    while (moment := EVERY_S * (len(asked_at) + 1)) < HOURS * HOUR:
        world.run(until=moment)
        world.now = moment
        job_id = f"chat {len(asked_at)}"
        asked_at[job_id] = moment
        world.arrive(job_id, chat, priority=100, member=next(members))
    assert sum(job_id not in world.ran_at for job_id in asked_at) <= 1 or aging_clock == "submit"
    shots_left = SHOTS - sum(job_id.startswith("shot") for job_id in world.ran_at)
    assert shots_left or aging_clock == "submit", "the film is over too early to show anything"
    world.run()
    assert len(world.ran_at) == SHOTS + len(asked_at), "somebody never ran"
    waits: dict[int, list[float]] = {hour: [] for hour in range(1, HOURS + 1)}
    for job_id, moment in asked_at.items():
        waits[int(moment // HOUR) + 1].append(world.ran_at[job_id] - moment)
    return waits


@pytest.mark.parametrize("other_model", [False, True])
@pytest.mark.parametrize("fairness", ["turns", "gpu_time"])
def test_a_film_queued_whole_leaves_interactive_waits_where_they_were(fairness: Fairness, other_model: bool) -> None:
    waits = chat_waits(fairness, other_model=other_model)
    one_shot_s = SHOT_S + (LOAD_S if other_model else 0.0)
    for hour, found in waits.items():
        assert max(found) <= one_shot_s, f"hour {hour}: {found}"
    for hour in range(2, HOURS + 1):
        # Where in a shot a chat falls differs by hour; a second shot before any of them would be 4 minutes more.
        assert abs(median(waits[hour]) - median(waits[1])) < SHOT_S / 2, f"hour {hour}: {waits[hour]}, 1: {waits[1]}"


@pytest.mark.parametrize("fairness", ["turns", "gpu_time"])
def test_with_submit_clocks_the_same_film_holds_back_interactive_requests_for_hours(fairness: Fairness) -> None:
    waits = chat_waits(fairness, "submit")
    assert max(waits[1]) <= SHOT_S
    assert median(waits[8]) > HOUR
