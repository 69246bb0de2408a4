from __future__ import annotations

import pytest

from swaplane.core.limits import Allowance, Budget, Limits
from tests.config.reading import problems, settings

BANDS = ("batch", "normal", "interactive")


def limits(text: str) -> Limits:
    return settings(f"scheduling:\n  {text}").limits


def test_without_a_word_the_defaults_hold() -> None:
    assert settings("").limits == limits("") == limits("limits: {}") == limits("limits: {waiting: }") == Limits()


def test_every_limit_arrives() -> None:
    text = """
scheduling:
  max_running_per_member: 2
  max_wait: {batch: 86400, interactive: 300.5}
  interactive_budget: {minutes: 10, band: normal}
  limits:
    waiting: 500
    waiting_bytes: 1_000
    bands: {batch: {waiting: 100}, normal: {waiting_bytes: 4GiB}, interactive: }
    member: {waiting: 50, waiting_bytes: 512MB}
"""
    assert settings(text).limits == Limits(
        total=Allowance(jobs=500, bytes=1000),
        bands={
            "batch": Allowance(jobs=100),
            "normal": Allowance(bytes=4 << 30),
            "interactive": Allowance(),
        },
        member=Allowance(jobs=50, bytes=512_000_000),
        max_wait_s={"batch": 86400, "interactive": 300.5},
        max_running=2,
        budget=Budget(band="normal", gpu_s=600),
    )


def test_none_is_no_limit() -> None:
    text = """
scheduling:
  max_running_per_member: none
  max_wait: none
  interactive_budget: none
  limits: {waiting: none, waiting_bytes: none, member: {waiting: none}}
"""
    assert settings(text).limits == Limits(total=Allowance())


def test_one_longest_wait_holds_for_all_bands() -> None:
    assert limits("max_wait: 60").max_wait_s == dict.fromkeys(BANDS, 60)
    assert limits("max_wait: {batch: none, normal: 5}").max_wait_s == {"normal": 5}


def test_bare_minutes_are_a_budget_of_the_highest_band() -> None:
    assert limits("interactive_budget: 2.5").budget == Budget(band="interactive", gpu_s=150)
    assert limits("interactive_budget: {minutes: 1}\n  bands: {a: 0, b: 900}").budget == Budget(band="b", gpu_s=60)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("1", 1),
        ("5B", 5),
        ("3kB", 3000),
        ("3 KiB", 3072),
        ("512MB", 512_000_000),
        ("512 mib", 512 << 20),
        ("1.5GB", 1_500_000_000),
        ("4GiB", 4 << 30),
        ("2TB", 2 * 10**12),
    ],
)
def test_bytes_may_have_a_unit(written: str, size: int) -> None:
    assert limits(f"limits: {{waiting_bytes: {written}}}").total.bytes == size


@pytest.mark.parametrize("written", ["0", "-1", "1.5", "4e9", "0MB", "512M", "MB", "GB4", "1iB", "many", "[1]", "true"])
def test_anything_else_is_no_number_of_bytes(written: str) -> None:
    (found,) = problems(f"scheduling:\n  limits: {{waiting_bytes: {written}}}")
    sentence = "must be a number of bytes of at least 1, such as 512MB or 4GiB, or `none`, not "
    assert found.startswith(f"c.yaml:2:27: scheduling.limits.waiting_bytes: {sentence}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "limits: {waiting: 0}",
            "21: scheduling.limits.waiting: must be a whole number of at least 1, or `none`, not 0",
        ),
        (
            'limits: {waiting: "5"}',
            '21: scheduling.limits.waiting: must be a whole number of at least 1, or `none`, not the text "5":'
            " write it without quotes",
        ),
        (
            "limits: {member: {waiting: true}}",
            "30: scheduling.limits.member.waiting: must be a whole number of at least 1, or `none`, not true",
        ),
        (
            "limits: {bands: {bach: {waiting: 1}}}",
            "20: scheduling.limits.bands.bach: there is no band `bach` under scheduling.bands (did you mean `batch`?)",
        ),
        (
            "limits: {waitin: 5}",
            "12: scheduling.limits.waitin: unknown key `waitin` (did you mean `waiting`?)",
        ),
        (
            "limits: {bands: {batch: {waitin: 5}}}",
            "28: scheduling.limits.bands.batch.waitin: unknown key `waitin` (did you mean `waiting`?)",
        ),
        ("limits: 5", "11: scheduling.limits: must be a mapping, not 5"),
        (
            "max_running_per_member: 0",
            "27: scheduling.max_running_per_member: must be a whole number of at least 1, or `none`, not 0",
        ),
        (
            "max_wait: 5m",
            "13: scheduling.max_wait: must be a number of seconds greater than 0, or `none`,"
            ' not the text "5m": write 300',
        ),
        (
            "max_wait: {batch: 1h30m}",
            "21: scheduling.max_wait.batch: must be a number of seconds greater than 0, or `none`,"
            ' not the text "1h30m": write 5400',
        ),
        (
            "max_wait: 1500ms",
            "13: scheduling.max_wait: must be a number of seconds greater than 0, or `none`,"
            ' not the text "1500ms": write 1.5',
        ),
        (
            'max_wait: "5"',
            "13: scheduling.max_wait: must be a number of seconds greater than 0, or `none`,"
            ' not the text "5": write it without quotes',
        ),
        (
            "max_wait: {hot: 5}",
            "14: scheduling.max_wait.hot: there is no band `hot` under scheduling.bands",
        ),
        ("max_wait: 0", "13: scheduling.max_wait: must be a number of seconds greater than 0, or `none`, not 0"),
        ("max_wait: .inf", "13: scheduling.max_wait: must be a number of seconds greater than 0, or `none`, not .inf"),
        ("max_wait: .nan", "13: scheduling.max_wait: must be a number of seconds greater than 0, or `none`, not .nan"),
        ("max_wait: yes", "13: scheduling.max_wait: must be a number of seconds greater than 0, or `none`, not the"),
        ("max_wait: [5]", "13: scheduling.max_wait: must be a number of seconds greater than 0, or `none`, not a list"),
        (
            "interactive_budget: 0",
            "3: scheduling.interactive_budget.minutes: must be greater than 0, not 0",
        ),
        (
            "interactive_budget: 5m",
            '3: scheduling.interactive_budget.minutes: must be a number, not the text "5m"',
        ),
        (
            "interactive_budget: {band: normal}",
            "23: scheduling.interactive_budget: `minutes` is missing: the minutes of GPU time",
        ),
        (
            "interactive_budget: {minutes: 1, band: interactiv}",
            "42: scheduling.interactive_budget.band: there is no band `interactiv` under scheduling.bands"
            " (did you mean `interactive`?)",
        ),
        (
            "interactive_budget: {minutes: 1, band: batch}",
            "42: scheduling.interactive_budget.band: `batch` is the lowest band: there is none below it",
        ),
        (
            "interactive_budget: {minuts: 1}",
            "24: scheduling.interactive_budget.minuts: unknown key `minuts` (did you mean `minutes`?)",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(line: str, message: str) -> None:
    (found,) = problems(f"scheduling:\n  {line}")
    assert found.startswith(f"c.yaml:2:{message}")


def test_a_budget_needs_a_second_band() -> None:
    (found,) = problems("scheduling: {bands: {all: 0}, interactive_budget: 5}")
    assert found.endswith("`all` is the lowest band: there is none below it for what is over the budget")
