"""The queue as a table for people: every job with each term of its score in a column of its own.

Pure rendering of what `GET /api/queue` answers; it asks nothing and decides nothing. Readable at 80 columns
and without colour: colour only repeats what a word says. Called by `swaplane queue` and by the demo.
"""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from swaplane.wire import JobJson, LaneJson, QueueJson

_STATE_STYLES = {"running": "bold green", "loading": "yellow"}
_HEADINGS = ("job", "model", "member", "label", "base", "tier", "affin", "aging", "score", "waited", "state")
_LABEL, _STATE = _HEADINGS.index("label"), _HEADINGS.index("state")
#: Texts may be shortened where the width is short; numbers never are.
_TEXTS = (_HEADINGS.index("model"), _HEADINGS.index("member"), _LABEL, _STATE)
_LEFT = (_HEADINGS.index("job"), *_TEXTS)
_SHORTEST_TEXT = 6
#: Left out one after the other where the width is too short even so.
_DISPENSABLE = ("label", "tier", "affin", "aging", "base", "member", "waited")
_LINES_AROUND = 4  # of a lane's table: title, heading and two notes


def queue_table(queue: QueueJson, *, width: int | None = None, height: int | None = None) -> Table:
    """One table per lane below each other, laid out for `width` columns (80 when absent).

    With `height`, the last waiting jobs are left out where the lines do not suffice, and counted. Where even
    shortened texts do not fit, columns are left out: ids, scores and what is waited for stay whole.

    Running jobs come first, then the waiting ones in the order in which they would go, each by its id, which
    `swaplane cancel` takes. The four terms (base, tier, affinity, aging) add up to the score. Labels keep
    their end, which tells one shot from the next.
    """
    lanes = Table.grid()
    lanes.add_column()
    share = None if height is None else height // max(len(queue["lanes"]), 1)
    for lane in queue["lanes"]:
        lanes.add_row(_lane_table(_cut(lane, share), width or 80))
    return lanes


def _cut(lane: LaneJson, height: int | None) -> LaneJson:
    """The lane with no more waiting jobs than `height` lines show, its title, heading and notes included."""
    if height is None:
        return lane
    room = max(height - _LINES_AROUND - len(lane["running"]), 1)
    return {**lane, "waiting": lane["waiting"][:room]}


def short_time(seconds: float) -> str:
    """A duration in at most six characters: `4.2s`, `3m07s`, `2h05m`, `4d03h`."""
    if seconds < 59.95:
        return f"{max(seconds, 0.0):.1f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    minutes = whole // 60
    if minutes < 48 * 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    hours = minutes // 60
    return f"{hours // 24}d{hours % 24:02d}h"


def _lane_table(lane: LaneJson, width: int) -> Table:
    jobs = [*lane["running"], *lane["waiting"]]
    rows = [_cells(job) for job in jobs]
    wanted = [max(map(cell_len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
    shown = _columns(wanted, width)
    widths = _fit(wanted, width, shown)
    notes = _notes(lane, widths[_STATE])
    table = Table(
        title=_lane_title(lane),
        title_justify="left",
        caption=Text("\n".join(notes)) if notes else None,
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for index in shown:
        justify: JustifyMethod = "left" if index in _LEFT else "right"
        table.add_column(_HEADINGS[index], justify=justify, no_wrap=True, overflow="ellipsis", width=widths[index])
    for job, cells in zip(jobs, rows, strict=True):
        texts = [Text(cell) for cell in cells]
        texts[_LABEL] = Text(_tail(cells[_LABEL], widths[_LABEL]))
        texts[_STATE].stylize(_STATE_STYLES.get(job["state"], ""))
        table.add_row(*(texts[index] for index in shown))
    return table


def _notes(lane: LaneJson, state_width: int) -> list[str]:
    """What the rows have no room for: the other waiting jobs, and what the next one waits for."""
    notes = []
    more = lane["waiting_total"] - len(lane["waiting"])
    if more > 0:
        notes.append(f"and {more} more waiting")
    following = lane["waiting"][0] if lane["waiting"] else None
    if following is not None and len(following["reason"]) > state_width:
        notes.append(f"{following['id']}: {following['reason']}")
    return notes


def _cells(job: JobJson) -> tuple[str, ...]:
    """What a row says, in the order of the headings, at full length."""
    return (
        job["id"],
        job["model"],
        job["member"],
        job["label"],
        str(job["base"]),
        _bonus(job["tier_bonus"]),
        _bonus(job["affinity"]),
        _points(job["aging"], "+"),
        _points(job["score"], ""),
        short_time(job["waited_s"]),
        _state(job),
    )


def _state(job: JobJson) -> str:
    # What a job waits for is worth more than the word "waiting".
    if job["state"] == "waiting" and job["reason"]:
        return job["reason"]
    progress = job.get("progress")  # a gateway of an earlier version says nothing of it
    return job["state"] if progress is None else f"at {progress:.0f} %"


def _columns(wanted: list[int], width: int) -> list[int]:
    """The columns for which there is room when all texts are as short as they may be."""
    least = [min(each, _SHORTEST_TEXT) if index in _TEXTS else each for index, each in enumerate(wanted)]
    shown = list(range(len(_HEADINGS)))
    for heading in _DISPENSABLE:
        if sum(least[index] for index in shown) + len(shown) - 1 <= width:
            break
        shown.remove(_HEADINGS.index(heading))
    return shown


def _fit(wanted: list[int], width: int, shown: list[int]) -> list[int]:
    """Shorten the longest text shown, one character at a time, until the row fits into `width`."""
    widths = list(wanted)
    texts = [index for index in _TEXTS if index in shown]
    while sum(widths[index] for index in shown) + len(shown) - 1 > width:
        longest = max(texts, key=lambda index: widths[index])
        if widths[longest] <= _SHORTEST_TEXT:
            break
        widths[longest] -= 1
    return widths


def _lane_title(lane: LaneJson) -> Text:
    resident = ", ".join(lane["resident"]) or "no model"
    title = Text(style="bold")
    title.append(
        f"lane {lane['name']}: {resident} resident, {len(lane['running'])} running, {lane['waiting_total']} waiting"
    )
    if lane["paused"]:
        title.append(", paused", style="yellow")
    return title


def _bonus(value: float) -> str:
    """Points with a sign; a bare 0, so that the others stand out."""
    return f"{value:+.3g}" if value else "0"


def _points(value: float, sign: str) -> str:
    """Points with two decimals, from a hundred on with one."""
    return format(value, f"{sign}.{2 if abs(value) < 100 else 1}f")


def _tail(label: str, width: int) -> str:
    """The last part of a label that is too long, else its last characters: what tells one shot from the next."""
    if len(label) <= width:
        return label
    last = label.rsplit(";", 1)[-1].strip()
    return last if len(last) <= width else "…" + label[1 - width :]
