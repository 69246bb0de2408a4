from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from swaplane.tables import members_table
from swaplane.wire import MemberJson


def member(name: str, **changes: Any) -> MemberJson:
    about: MemberJson = {
        "member": name,
        "weight": 1,
        "running": 0,
        "waiting": 0,
        "gpu_s": 0.0,
        "share": 0.0,
        "hour_gpu_s": 0.0,
        "budget_left_s": None,
    }
    return about | changes  # type: ignore[return-value]


BUSY = [
    member("film", running=1, waiting=173, gpu_s=91234.5, share=0.912, hour_gpu_s=3600, budget_left_s=0.0),
    member("alice", weight=2, waiting=3, gpu_s=5123, share=0.0512, hour_gpu_s=611, budget_left_s=589.3),
    member("nightly-batch-of-the-research-group", weight=0.5, gpu_s=3621, share=0.036, budget_left_s=1200),
]


def rendered(*members: MemberJson, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(members_table({"members": list(members), "since_s": 518400.0}, width=width))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def test_at_80_columns_everything_is_there() -> None:
    assert rendered(*BUSY, width=80) == (
        """\
27h46m of GPU time in 6d00h
member                 weight running waiting    GPU share last hour budget left
film                        1       1     173 25h20m  91 %     1h00m        0.0s
alice                       2       0       3  1h25m   5 %    10m11s       9m49s
nightly-batch-of-the-…    0.5       0       0  1h00m   4 %      0.0s      20m00s"""
    )


def test_at_40_columns_who_uses_the_gpu_is_left() -> None:
    assert rendered(*BUSY, width=40) == (
        """\
27h46m of GPU time in 6d00h
member      running waiting    GPU share
film              1     173 25h20m  91 %
alice             0       3  1h25m   5 %
nightly-ba…       0       0  1h00m   4 %"""
    )


def test_weights_and_budgets_are_shown_where_there_are_any() -> None:
    heading = rendered(member("a"), member("b"), width=120).splitlines()[1]
    assert heading.split() == ["member", "running", "waiting", "GPU", "share", "last", "hour"]
    assert "weight" in rendered(member("a"), member("b", weight=2), width=120)
    assert "budget left" in rendered(member("a"), member("b", budget_left_s=1.0), width=120)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_line_is_longer_than_the_width(width: int) -> None:
    text = rendered(member("m" * 100, weight=2, gpu_s=1e9, hour_gpu_s=3600, budget_left_s=60), width=width)
    assert max(map(len, text.splitlines())) <= width


def test_nobody_is_told_in_words() -> None:
    assert rendered(width=80).splitlines()[-1] == "no member has sent a job"


def test_names_are_not_read_as_markup() -> None:
    assert "[red]x" in rendered(member("[red]x"), width=80)
