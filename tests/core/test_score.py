"""The arithmetic of one score: parts, bands, affinity that stays below the next band."""

from __future__ import annotations

import pytest

from swaplane.core.score import Band, ScoreRules, band_distance
from swaplane.core.turns import IDLE_CLOCKS, TurnClock, TurnClocks, turn_key

RULES = ScoreRules()
MINUTE = 60.0


@pytest.mark.parametrize(
    ("priority", "band", "base", "tier_bonus"),
    [
        (-1000, "batch", -1000, 0),
        (-300, "batch", -300, 0),
        (-101, "batch", -101, 0),
        (-100, "batch", -100, 0),
        (-99, "batch", -100, 1),
        (-98, "batch", -100, 2),
        (-97, "batch", -97, 0),
        (-1, "batch", -1, 0),
        (0, "normal", 0, 0),
        (1, "normal", 0, 1),
        (2, "normal", 0, 2),
        (50, "normal", 50, 0),
        (99, "normal", 99, 0),
        (100, "interactive", 100, 0),
        (102, "interactive", 100, 2),
        (250, "interactive", 250, 0),
        (1000, "interactive", 1000, 0),
    ],
)
def test_a_priority_is_its_band_and_a_tiers_bonus_or_bare(priority: int, band: str, base: int, tier_bonus: int) -> None:
    assert RULES.band_of(priority).name == band
    assert RULES.split(priority) == (base, tier_bonus)


def test_the_score_is_the_sum_of_four_parts() -> None:
    score = RULES.score(-98, resident=True, now=30 * MINUTE, clock=10 * MINUTE)
    assert (score.base, score.tier_bonus, score.affinity, score.aging) == (-100, 2, 10.0, 20.0)
    assert score.total == -68.0


def test_a_model_that_is_not_resident_gets_no_affinity() -> None:
    assert RULES.score(0, resident=False, now=0.0, clock=0.0).total == 0.0


def test_whoever_pays_more_goes_first_within_a_band() -> None:
    totals = [RULES.score(number, resident=False, now=60.0, clock=60.0).total for number in (-98, -99, -100)]
    assert totals == [-98.0, -99.0, -100.0]


@pytest.mark.parametrize(
    ("priority", "affinity"),
    [
        (-300, 10.0),
        (-100, 10.0),
        (-98, 10.0),
        (-11, 10.0),
        (-10, 9.0),
        (-1, 0.0),
        (0, 10.0),
        (89, 10.0),
        (95, 4.0),
        (99, 0.0),
        (100, 10.0),
        (250, 10.0),
    ],
)
def test_affinity_is_cut_off_below_the_next_band(priority: int, affinity: float) -> None:
    assert RULES.affinity_for(priority) == affinity


def test_affinity_never_reaches_a_higher_band() -> None:
    for priority in range(-320, 320):
        total = RULES.score(priority, resident=True, now=0.0, clock=0.0).total
        assert total >= priority
        assert RULES.band_of(int(total)) == RULES.band_of(priority)


def test_aging_is_one_point_per_divisor_and_unbounded() -> None:
    rules = ScoreRules(aging_divisor_s=30.0)
    assert rules.aging(now=30.0, clock=0.0) == 1.0
    assert rules.aging(now=30.0e6, clock=0.0) == 1.0e6


def test_a_single_band_takes_every_number() -> None:
    rules = ScoreRules(bands=(Band(name="all", value=0),))
    assert {rules.band_of(number).name for number in (-5, 0, 5)} == {"all"}
    assert rules.affinity_for(5) == rules.affinity_for(-5) == 10.0
    assert band_distance(rules) is None


def test_the_distance_of_bands_is_shown_against_tier_and_affinity() -> None:
    assert band_distance(RULES) == (100, 12.0)
    narrow = ScoreRules(bands=tuple(Band(name=f"b{value}", value=value) for value in (-100, 0, 7, 100)), tiers={})
    assert band_distance(narrow) == (7, 10.0)


@pytest.mark.parametrize(
    ("since", "running", "submitted_at", "clock"),
    [
        (None, 0, 5.0, 5.0),  # never had a turn
        (3.0, 0, 5.0, 5.0),  # came after its member's last turn
        (8.0, 0, 5.0, 8.0),  # waited already while its member had a turn
        (None, 1, 5.0, 20.0),  # its member has a turn now
        (8.0, 2, 5.0, 20.0),
        (25.0, 0, 5.0, 25.0),  # rests
        (25.0, 1, 5.0, 25.0),
    ],
)
def test_the_turn_clock(since: float | None, running: int, submitted_at: float, clock: float) -> None:
    turn = TurnClock()
    turn.since, turn.running = since, running
    assert turn.starts_at(submitted_at, 20.0, RULES) == clock
    assert turn.starts_at(submitted_at, 20.0, ScoreRules(aging_clock="submit")) == submitted_at


def test_only_a_job_that_ran_uses_its_members_turn() -> None:
    clocks, key = TurnClocks(RULES), ("gpu", "ann", "batch")
    clock = clocks.use(key)
    clock.started()
    clocks.ended(key, 7.0, service_s=None, clock=0.0)
    assert repr(clock) == "<TurnClock running=0 since=None>"
    clock.started()
    clocks.ended(key, 9.0, service_s=2.0, clock=0.0)
    assert repr(clock) == "<TurnClock running=0 since=9.0>"


def test_clocks_belong_to_a_member_in_a_band_or_to_the_whole_band() -> None:
    assert turn_key("ann", "batch", RULES) == ("ann", "batch")
    assert turn_key("ann", "batch", ScoreRules(fairness="none")) == turn_key(
        "ben", "batch", ScoreRules(fairness="none")
    )


def test_a_clock_is_the_same_as_long_as_anybody_waits_or_runs_on_it() -> None:
    clocks, key = TurnClocks(RULES), ("gpu", "ann", "batch")
    clock = clocks.use(key)
    clock.started()
    clocks.let_go(key)
    assert clocks.use(key) is clock
    clock.stopped()
    clocks.let_go(key)
    assert repr(clocks) == "<TurnClocks 0 in use, 0 idle>", "it never moved"
    assert clocks.use(key) is not clock


def test_of_the_clocks_that_are_not_in_use_those_used_last_are_kept() -> None:
    clocks = TurnClocks(RULES)
    waits = clocks.use(("gpu", "waits", "batch"))
    clocks.remember(("gpu", "waits", "batch"), 1.0)
    for number in range(IDLE_CLOCKS):
        clocks.remember(("gpu", f"{number}", "batch"), 2.0)
    clocks.remember(("gpu", "0", "batch"), 1.0)
    clocks.remember(("gpu", "one more", "batch"), 3.0)
    assert repr(clocks) == f"<TurnClocks 1 in use, {IDLE_CLOCKS} idle>"
    assert waits.since == 1.0
    assert clocks.use(("gpu", "0", "batch")).since == 2.0
    assert clocks.use(("gpu", "1", "batch")).since is None
    assert repr(clocks.unused(RULES)) == f"<TurnClocks 0 in use, {IDLE_CLOCKS + 1} idle>"
