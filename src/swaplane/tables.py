"""The queue and the members as tables for people; of a job, each term of its score has a column of its own.

Pure rendering of what `GET /api/queue` and `GET /api/members` answer; it asks nothing and decides nothing. Readable
at 40 columns and without colour: colour only repeats what a word says. Called by `swaplane queue`, `swaplane members`
and by the demo.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from swaplane.wire import JobJson, LaneJson, MemberJson, MembersJson, QueueJson

_STATE_STYLES = {"running": "bold green", "loading": "yellow"}
_SHORTEST_TEXT = 6
_EASY_TEXT = 12  # a text of this width is easy to read


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Which columns a table has, and which of them gives way where the width is short.

    Texts are shortened there; numbers never are. Where even short texts do not fit, columns are left out.
    """

    headings: tuple[str, ...]
    texts: tuple[str, ...]  #: to the left, and shortened if need be
    extra: tuple[str, ...] = ()  #: shown only where all texts stay easy to read
    dispensable: tuple[str, ...]  #: left out one after the other where the width is too short even so

    def widths(self, rows: Iterable[Sequence[str]], width: int, *, without: Collection[str] = ()) -> dict[str, int]:
        """The columns for which there is room, by heading, and how wide each is; those `without` are not wanted."""
        wanted = {
            heading: max(map(cell_len, column))
            for heading, column in zip(self.headings, zip(self.headings, *rows, strict=True), strict=True)
            if heading not in without
        }
        for heading in self.extra:
            if self._row_width(wanted, _EASY_TEXT) > width:
                del wanted[heading]
        for heading in self.dispensable:
            if self._row_width(wanted, _SHORTEST_TEXT) <= width:
                break
            wanted.pop(heading, None)
        texts = [heading for heading in self.texts if heading in wanted]
        while self._row_width(wanted) > width:  # one character at a time from the longest
            longest = max(texts, key=wanted.__getitem__)
            if wanted[longest] <= _SHORTEST_TEXT:
                break
            wanted[longest] -= 1
        return wanted

    def _row_width(self, wanted: dict[str, int], longest_text: int | None = None) -> int:
        """Columns of a row, when texts are cut to `longest_text`."""
        cells = (
            each if longest_text is None or heading not in self.texts else min(each, longest_text)
            for heading, each in wanted.items()
        )
        return sum(cells) + len(wanted) - 1

    def table(self, widths: dict[str, int], title: Text, notes: Sequence[str]) -> Table:
        """An empty table with these columns."""
        table = Table(
            title=title,
            title_justify="left",
            caption=Text("\n".join(notes)) if notes else None,
            caption_justify="left",
            box=None,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        for heading, width in widths.items():
            justify: JustifyMethod = "left" if heading in self.texts or heading == self.headings[0] else "right"
            table.add_column(heading, justify=justify, no_wrap=True, overflow="ellipsis", width=width)
        return table


_JOBS = _Layout(
    headings=(
        *("job", "model", "member", "label", "base", "tier", "affin", "aging", "score"),
        *("waited", "starts in", "state"),
    ),
    texts=("model", "member", "label", "state"),
    extra=("starts in",),
    dispensable=("label", "tier", "affin", "aging", "base", "member", "waited"),
)
_MEMBERS = _Layout(
    headings=("member", "weight", "running", "waiting", "GPU", "share", "last hour", "budget left"),
    texts=("member",),
    dispensable=("weight", "last hour", "budget left"),
)
_LINES_AROUND = 4  # of a lane's table: title, heading and two notes


def queue_table(queue: QueueJson, *, width: int | None = None, height: int | None = None) -> Table:
    """One table per lane below each other, laid out for `width` columns (80 when absent).

    With `height`, the last waiting jobs are left out where the lines do not suffice, and counted. Where even
    shortened texts do not fit, columns are left out: ids, scores and what is waited for stay whole. When a job is
    expected to start has a column only where there is plenty of room.

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


def members_table(answer: MembersJson, *, width: int) -> Table:
    """What each member has running and waiting, and what it has used, laid out for `width` columns.

    Weights and budgets have a column only where there are any.
    """
    members = answer["members"]
    rows = [_member_cells(member) for member in members]
    unused = set()
    if all(member["weight"] == 1 for member in members):
        unused.add("weight")
    if all(member["budget_left_s"] is None for member in members):
        unused.add("budget left")
    widths = _MEMBERS.widths(rows, width, without=unused)
    used = short_time(sum(member["gpu_s"] for member in members))
    title = Text(f"{used} of GPU time in {short_time(answer['since_s'])}", style="bold")
    table = _MEMBERS.table(widths, title, () if rows else ("no member has sent a job",))
    for cells in rows:
        by_heading = dict(zip(_MEMBERS.headings, cells, strict=True))
        table.add_row(*(Text(by_heading[heading]) for heading in widths))
    return table


def _member_cells(member: MemberJson) -> tuple[str, ...]:
    """What a row says, in the order of the headings, at full length."""
    left = member["budget_left_s"]
    return (
        member["member"],
        f"{member['weight']:g}",
        str(member["running"]),
        str(member["waiting"]),
        short_time(member["gpu_s"]),
        f"{100 * member['share']:.0f} %",
        short_time(member["hour_gpu_s"]),
        "" if left is None else short_time(left),
    )


def _lane_table(lane: LaneJson, width: int) -> Table:
    jobs = [*lane["running"], *lane["waiting"]]
    rows = [_cells(job) for job in jobs]
    widths = _JOBS.widths(rows, width)
    table = _JOBS.table(widths, _lane_title(lane), _notes(lane, widths["state"]))
    for job, cells in zip(jobs, rows, strict=True):
        texts = {heading: Text(cell) for heading, cell in zip(_JOBS.headings, cells, strict=True)}
        if "label" in widths:
            texts["label"] = Text(_tail(job["label"], widths["label"]))
        texts["state"].stylize(_STATE_STYLES.get(job["state"], ""))
        table.add_row(*(texts[heading] for heading in widths))
    return table


def _notes(lane: LaneJson, state_width: int) -> list[str]:
    """What the rows have no room for: the other waiting jobs, and what the next one waits for."""
    notes = []
    more = lane["waiting_total"] - len(lane["waiting"])
    if more > 0:
        notes.append(f"and {more} more waiting")
    following = lane["waiting"][0] if lane["waiting"] else None
    if following is not None and len(following["reason"]) > state_width:
        notes.append(f"{following['id'] or 'first in line'}: {following['reason']}")
    return notes


def _cells(job: JobJson) -> tuple[str, ...]:
    """What a row says, in the order of the headings, at full length."""
    return (
        job["id"] or "-",
        job["model"],
        job["member"],
        job["label"],
        str(job["base"]),
        _bonus(job["tier_bonus"]),
        _bonus(job["affinity"]),
        _points(job["aging"], "+"),
        _points(job["score"], ""),
        short_time(job["waited_s"]),
        _starts_in(job),
        _state(job),
    )


def _starts_in(job: JobJson) -> str:
    """From now until its place; empty once it has it, a question mark where that is unknown."""
    if job["state"] != "waiting":
        return ""
    expected_s = job.get("expected_wait_s")  # a gateway of an earlier version says nothing of it
    return "?" if expected_s is None else short_time(expected_s)


def _state(job: JobJson) -> str:
    # What a job waits for is worth more than the word "waiting".
    if job["state"] == "waiting" and job["reason"]:
        return job["reason"]
    progress = job.get("progress")  # ... nor of this
    return job["state"] if progress is None else f"at {progress:.0f} %"


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
