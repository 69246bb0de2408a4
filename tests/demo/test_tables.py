from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, cast

import pytest
from rich.console import Console
from rich.text import Text

from swaplane.tables import queue_table, short_time
from swaplane.wire import JobJson, LaneJson


def job(**changes: Any) -> JobJson:
    about = {
        "id": "j1",
        "model": "video",
        "member": "filmmaker",
        "label": "film=night-train; shot=3/12",
        "priority": -100,
        "band": "batch",
        "base": -100,
        "tier_bonus": 0,
        "affinity": 10.0,
        "aging": 0.21,
        "score": -89.79,
        "waited_s": 12.4,
        "aging_s": 12.4,
        "position": 1,
        "state": "waiting",
        "reason": "",
        **changes,
    }
    return cast("JobJson", about)


def lane(*, waiting: Sequence[JobJson] = (), more: int = 0, **changes: Any) -> LaneJson:
    about = {"name": "gpu", "size": 1, "paused": False, "resident": [], "running": [], **changes}
    return cast("LaneJson", {**about, "waiting": list(waiting), "waiting_total": len(waiting) + more})


BUSY = lane(
    resident=["video"],
    running=[job(id="7f3a-1", label="film=night-train; shot=1/12", state="running", position=None)],
    waiting=[
        job(id="7f3a-2", model="smollm2", member="alice", label="", base=100, tier_bonus=2, affinity=0.0, aging=198.04,
            score=300.04, waited_s=11884,
            reason="next, when 7f3a-1 of filmmaker ends (video running)"),
        job(id="7f3a-3", position=2, reason="your own earlier job runs"),
        job(id="7f3a-14", position=3, label="film=night-train; shot=12/12"),
    ],
    more=37,
)  # fmt: skip


def rendered(*lanes: LaneJson, width: int, colour: bool = False) -> str:
    output = io.StringIO()
    console = Console(
        file=output,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
    )
    console.print(queue_table({"lanes": list(lanes)}, width=width))
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def test_at_80_columns_numbers_are_whole_and_texts_are_shortened() -> None:
    assert rendered(BUSY, width=80) == (
        """\
lane gpu: video resident, 1 running, 40 waiting
job     model   member   label    base tier affin  aging  score waited state
7f3a-1  video   filmmak… …ot=1/12 -100    0   +10  +0.21 -89.79  12.4s running
7f3a-2  smollm2 alice              100   +2     0 +198.0  300.0  3h18m next, wh…
7f3a-3  video   filmmak… …ot=3/12 -100    0   +10  +0.21 -89.79  12.4s your own…
7f3a-14 video   filmmak… …t=12/12 -100    0   +10  +0.21 -89.79  12.4s waiting
and 37 more waiting
7f3a-2: next, when 7f3a-1 of filmmaker ends (video running)"""
    )


def test_a_wide_terminal_shows_whole_labels_and_reasons() -> None:
    text = rendered(BUSY, width=130)
    assert "film=night-train; shot=3/12" in text
    assert "your own earlier job runs" in text


@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_line_is_longer_than_the_width(width: int) -> None:
    long = job(model="m" * 60, member="n" * 60, label="x" * 200, reason="r" * 200, aging=123456.78, score=123356.78)
    text = rendered(lane(waiting=[long]), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "+123456.8 123356.8" in text


def test_a_label_that_is_cut_shows_its_end() -> None:
    label = "x" * 50 + "the end"
    assert "…" in rendered(lane(waiting=[job(label=label)]), width=80)
    assert "the end" in rendered(lane(waiting=[job(label=label)]), width=80)


def test_every_lane_is_shown_and_an_empty_one_says_so() -> None:
    text = rendered(BUSY, lane(name="cpu", paused=True), width=80)
    assert "lane cpu: no model resident, 0 running, 0 waiting, paused" in text
    assert text.index("lane gpu") < text.index("lane cpu")


def test_a_loading_job_says_so() -> None:
    assert rendered(lane(running=[job(state="loading", position=None, reason="its model loads")]), width=80).endswith(
        "loading"
    )


def test_names_are_not_read_as_markup() -> None:
    assert "[red]x" in rendered(lane(waiting=[job(member="[red]x", label="[/]")]), width=80)


def test_colour_adds_nothing_to_the_words() -> None:
    coloured = rendered(BUSY, width=80, colour=True)
    assert "\x1b[" in coloured
    plain = "\n".join(line.rstrip() for line in Text.from_ansi(coloured).plain.splitlines())
    assert plain == rendered(BUSY, width=80)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-0.001, "0.0s"),
        (4.25, "4.2s"),
        (59.94, "59.9s"),
        (59.96, "1m00s"),
        (187, "3m07s"),
        (3599.6, "1h00m"),
        (11884, "3h18m"),
        (172799, "47h59m"),
        (172800, "2d00h"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert short_time(seconds) == text
    assert len(text) <= 6


def test_a_narrow_terminal_keeps_ids_and_scores_whole() -> None:
    waiting = [job(id="7f3a-3", position=1, reason="next, when 7f3a-1 of filmmaker ends (video runs)")]
    text = rendered(lane(waiting=waiting), width=60)
    assert max(map(len, text.splitlines())) <= 60
    heading, row = text.splitlines()[1:3]
    assert heading.split() == ["job", "model", "member", "base", "affin", "aging", "score", "waited", "state"]
    assert row.startswith("7f3a-3 ")
    assert " -89.79 " in row


def test_a_low_terminal_counts_what_it_leaves_out() -> None:
    waiting = [job(id=f"7f3a-{n}", position=n, reason=f"behind {n} others, and a longer story") for n in range(1, 41)]
    busy = lane(running=[job(state="running", position=None)], waiting=waiting)
    console = Console(file=io.StringIO(), width=80)
    console.print(queue_table({"lanes": [busy]}, width=80, height=24))
    lines = cast("io.StringIO", console.file).getvalue().splitlines()
    assert len(lines) <= 24
    assert any("and 21 more waiting" in line for line in lines)
    assert lines[-1].startswith("7f3a-1: behind 1 others")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_running_job_whose_server_tells_shows_how_far_it_is(width: int) -> None:
    running = [
        job(id="j1", state="running", position=None, progress=41.6),
        job(id="j2", state="running", position=None, progress=None),
    ]
    first, second = rendered(lane(running=running), width=width).splitlines()[2:4]
    assert first.split()[-3:] == ["at", "42", "%"]
    assert second.split()[-1] == "running"


def test_when_a_job_starts_is_shown_where_there_is_plenty_of_room() -> None:
    jobs = [
        job(id="j1", state="running", position=None, expected_wait_s=None),
        job(id="j2", expected_wait_s=305.2),
        job(id="j3", expected_wait_s=None),
    ]
    text = rendered(lane(waiting=jobs), width=100)
    heading, running, known, unknown = text.splitlines()[1:5]
    at = slice(heading.index("starts in"), heading.index("starts in") + len("starts in"))
    assert [row[at].strip() for row in (running, known, unknown)] == ["", "5m05s", "?"]
    assert "starts in" not in rendered(lane(waiting=jobs), width=80)


@pytest.mark.parametrize("width", [40, 80, 100])
def test_somebody_elses_job_has_no_id_to_show(width: int) -> None:
    text = rendered(lane(waiting=[job(id="", member="other", label="", reason="next, when " + "x" * 80)]), width=width)
    assert any(line.startswith("- ") for line in text.splitlines())
    assert "first in line: next," in text
