from __future__ import annotations

import pytest

from swaplane.core.plan import LanePlan
from tests.config.reading import problems, settings


def test_every_key_reaches_the_rules() -> None:
    read = settings("""
scheduling:
  bands: {high: 500, low: -500, mid: 0}
  tiers: {basic: 0, gold: 7}
  swap_affinity: 2.5
  aging_divisor: 30
  aging_clock: submit
  fairness: none
  priority_limits: [-600, 600]
  lanes: {cpu: 2, npu: {size: 3, reserve: {high: 1, mid: 1}}, tpu: {}}
""")
    rules = read.rules
    assert [(band.name, band.value) for band in rules.bands] == [("low", -500), ("mid", 0), ("high", 500)]
    assert rules.tiers == {"basic": 0, "gold": 7}
    assert (rules.swap_affinity, rules.aging_divisor_s, rules.aging_clock, rules.fairness) == (
        2.5,
        30,
        "submit",
        "none",
    )
    assert (rules.priority_min, rules.priority_max) == (-600, 600)
    assert read.lanes == {
        "gpu": LanePlan(name="gpu", size=1),
        "cpu": LanePlan(name="cpu", size=2),
        "npu": LanePlan(name="npu", size=3, reserve={"high": 1, "mid": 1}),
        "tpu": LanePlan(name="tpu", size=1),
    }
    assert read.warnings == ("models: there is none in this file",)


def test_the_default_lane_may_be_resized() -> None:
    assert settings("scheduling: {lanes: {gpu: 2}}").lanes == {"gpu": LanePlan(name="gpu", size=2)}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("swap_affinity: auto", "18: scheduling.swap_affinity: `auto` is not available yet; give points, such as 10"),
        ("swap_affinity: -1", "18: scheduling.swap_affinity: must be at least 0, not -1"),
        (
            "fairness: turn",
            '13: scheduling.fairness: must be `turns`, `gpu_time` or `none`, not the text "turn" (did you mean'
            " `turns`?)",
        ),
        (
            "aging_clock: submitt",
            '16: scheduling.aging_clock: must be `turn` or `submit`, not the text "submitt" (did you mean `submit`?)',
        ),
        ("aging_divisor: 0", "18: scheduling.aging_divisor: must be greater than 0, not 0"),
        ("swap_afinity: 1", "3: scheduling.swap_afinity: unknown key `swap_afinity` (did you mean `swap_affinity`?)"),
        ("tiers: {pro: -1}", "16: scheduling.tiers.pro: must be at least 0, not -1"),
        ("tiers: {pro: 1.5}", "16: scheduling.tiers.pro: must be a whole number, not 1.5"),
        (
            "lanes: {cpu: {size: 2, reserve: {hot: 1}}}",
            "36: scheduling.lanes.cpu.reserve.hot: there is no band `hot` under scheduling.bands",
        ),
        (
            "lanes: {cpu: {size: 2, reserve: {Normal: 1}}}",
            "36: scheduling.lanes.cpu.reserve.Normal: there is no band `Normal` under scheduling.bands"
            " (did you mean `normal`?)",
        ),
        (
            "lanes: {cpu: {size: 2, reserve: {batch: 1}}}",
            "36: scheduling.lanes.cpu.reserve.batch: `batch` is the lowest band: there is none below it to keep out",
        ),
        (
            "lanes: {cpu: {size: 2, reserve: {normal: 1, interactive: 1}}}",
            "26: scheduling.lanes.cpu.reserve: 2 of 2 places are reserved, but one at least must be left for all:"
            " reserve fewer, or raise `size`",
        ),
        (
            "lanes: {gpu: {reserve: {interactive: 1}}}",
            "17: scheduling.lanes.gpu.reserve: 1 of 1 places are reserved, but one at least must be left for all",
        ),
        (
            "lanes: {cpu: {size: 2, reserve: {normal: 0}}}",
            "44: scheduling.lanes.cpu.reserve.normal: must be at least 1, not 0",
        ),
        ("weights: {alice: 0}", "20: scheduling.weights.alice: must be at least 0.1, not 0"),
        ("weights: {alice: 10.5}", "20: scheduling.weights.alice: must be at most 10, not 10.5"),
        ("weights: {alice: high}", '20: scheduling.weights.alice: must be a number, not the text "high"'),
        ("lanes: {cpu: 0}", "11: scheduling.lanes.cpu.size: must be at least 1, not 0"),
        ("lanes: {cpu: {sise: 1}}", "17: scheduling.lanes.cpu.sise: unknown key `sise` (did you mean `size`?)"),
        (
            "lanes: {a/b: 1}",
            "11: scheduling.lanes.a/b: a lane's name may contain letters, digits, `_`, `.` and `-` only",
        ),
        (
            "priority_limits: [5, 1]",
            "20: scheduling.priority_limits: must be two whole numbers [min, max], the smaller first",
        ),
        ("priority_limits: [1]", "20: scheduling.priority_limits: must be two whole numbers [min, max]"),
        ("priority_limits: 5", "20: scheduling.priority_limits: must be a list, not 5"),
        ("bands: {}", "10: scheduling.bands: at least one band is needed"),
        ("bands: {a: x}", '14: scheduling.bands.a: must be a whole number, not the text "x"'),
        ("bands: {100: 0}", "11: scheduling.bands.100: the band name `100` must begin with a letter"),
        ("bands: {+5: 0}", "11: scheduling.bands.+5: the band name `+5` must begin with a letter"),
        ("bands: {٣: 0}", "11: scheduling.bands.٣: the band name `٣` must begin with a letter"),
        ("bands: {hot: 0, HOT: 9}", "19: scheduling.bands.HOT: `HOT` and `hot` are the same name"),
        ("bands: {a: 7, b: 7}", "20: scheduling.bands.b: the bands `a` and `b` have the same value 7"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(line: str, message: str) -> None:
    (found,) = problems(f"scheduling:\n  {line}")
    assert found.startswith(f"c.yaml:2:{message}")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["bands: {normal: 0, hot: 10}"],
            "2:10: scheduling.bands: the smallest distance between bands is 10 (normal 0 to hot 10), but tier bonus 2"
            " + swap_affinity 10 = 12 must be smaller: widen by 3 or lower swap_affinity below 8",
        ),
        (
            ["swap_affinity: 98"],
            "2:18: scheduling.swap_affinity: the smallest distance between bands is 100 (batch -100 to normal 0), but"
            " tier bonus 2 + swap_affinity 98 = 100 must be smaller: widen by 1 or lower swap_affinity below 98",
        ),
        (
            ["tiers: {gold: 100}"],
            "2:10: scheduling.tiers: the smallest distance between bands is 100 (batch -100 to normal 0), but"
            " tier bonus 100 + swap_affinity 10 = 110 must be smaller: widen by 11 or lower the tiers",
        ),
        (
            ["bands: {a: 0, b: 50, c: 53}", "tiers: {}", "swap_affinity: 3.5"],
            "2:10: scheduling.bands: the smallest distance between bands is 3 (b 50 to c 53), but"
            " tier bonus 0 + swap_affinity 3.5 = 3.5 must be smaller: widen by 1 or lower swap_affinity below 3",
        ),
        (
            ["fairness: gpu_time", "bands: {normal: 0, hot: 42}"],
            "2:13: scheduling.fairness: the smallest distance between bands is 42 (normal 0 to hot 42), but with"
            " `gpu_time` tier bonus 2 + swap_affinity 10 + a rest of 30 = 42 must be smaller: widen by 1 or choose"
            " `turns`",
        ),
    ],
)
def test_bands_too_close_are_refused_with_numbers(lines: list[str], message: str) -> None:
    assert problems("scheduling:\n  " + "\n  ".join(lines)) == (f"c.yaml:{message}",)


@pytest.mark.parametrize(
    "lines",
    [
        ["bands: {normal: 0, hot: 13}"],
        ["bands: {normal: 0, hot: 43}", "fairness: gpu_time"],
        ["bands: {normal: 0, hot: 42}", "fairness: gpu_time", "aging_clock: submit"],
        ["bands: {normal: 0, hot: 3}", "swap_affinity: 0.9"],
        ["bands: {only: 0}", "swap_affinity: 5000"],
        ["bands: {normal: 0, hot: 1}", "swap_affinity: 0", "tiers: {free: 0}"],
    ],
)
def test_bands_just_far_enough_are_accepted(lines: list[str]) -> None:
    settings("scheduling:\n  " + "\n  ".join(lines))


@pytest.mark.parametrize(("hot", "warned"), [(13, True), (47, True), (48, False)])
def test_bands_nearer_than_four_times_the_need_are_told(hot: int, warned: bool) -> None:
    warnings = settings(f"models: {{}}\nscheduling: {{bands: {{normal: 0, hot: {hot}}}}}").warnings
    text = (
        f"scheduling: the smallest distance between bands is {hot} (normal 0 to hot {hot}), less than 4 times 12"
        " (tier bonus 2 + swap_affinity 10): a short wait already lifts a job over a band"
    )
    assert (text in warnings) == warned


def test_a_band_nobody_can_reach_is_told() -> None:
    warnings = settings("scheduling: {priority_limits: [-100, 50]}").warnings
    assert "scheduling.bands.interactive: 100 lies outside priority_limits [-100, 50]: it stays empty" in warnings


def test_members_may_weigh_more_or_less_and_share_gpu_time() -> None:
    rules = settings("scheduling: {fairness: gpu_time, weights: {alice: 10, bob: 0.1, 7: 2}}").rules
    assert rules.fairness == "gpu_time"
    assert rules.weights == {"alice": 10, "bob": 0.1, "7": 2}


@pytest.mark.parametrize(
    ("rule", "warned"), [("fairness: none", True), ("aging_clock: submit", True), ("fairness: gpu_time", False)]
)
def test_weights_that_change_nothing_are_told(rule: str, warned: bool) -> None:
    text = f"scheduling.weights changes nothing with `{rule}`: no member has a clock of its own"
    assert (text in settings(f"scheduling: {{{rule}, weights: {{alice: 2}}}}").warnings) == warned


def test_a_wrong_band_is_told_once_and_not_again_where_it_is_used() -> None:
    assert problems("scheduling: {bands: {low: 0, hot: x}, lanes: {gpu: {size: 2, reserve: {hot: 1}}}}") == (
        'c.yaml:1:35: scheduling.bands.hot: must be a whole number, not the text "x"',
    )
