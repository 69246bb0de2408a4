"""Whose wait counts: the turn clock.

Every member is treated as if it submitted one job at a time and re-queued. The waiting of a (member, band)
therefore counts from its job's submit or from the end of the member's last job in this band, whichever is
later; while one of its jobs in this band runs, the clock stands at now.

This keeps a backlog of hundreds of jobs from ageing past new, more urgent work all at once, and makes
members with the same number take turns. `queue` asks; `dispatcher` reports starts and ends.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf

from swaplane.core.score import ScoreRules

#: How many clocks are kept of those who neither wait nor hold a place: any header can name a new member.
IDLE_CLOCKS = 10_000

ClockKey = tuple[str, str, str]  #: the lane, and who shares the clock: see `turn_key`


class TurnClock:
    """The clock of one (member, band) in one lane."""

    __slots__ = ("last_end", "running")

    def __init__(self) -> None:
        self.running = 0  #: jobs that hold a place now
        self.last_end: float | None = None  #: when the last job that ran ended, seconds

    def started(self) -> None:
        """One of the jobs was given a place."""
        self.running += 1

    def ended(self, now: float, *, ran: bool) -> None:
        """One of the jobs gave its place back; only one that was sent to its model consumed a turn."""
        self.running -= 1
        if ran:
            self.last_end = now

    def starts_at(self, submitted_at: float, now: float, rules: ScoreRules) -> float:
        """The moment (seconds) from which a job submitted at `submitted_at` ages in the comparison."""
        return max(submitted_at, self.floor(now, rules))

    def floor(self, now: float, rules: ScoreRules) -> float:
        """The moment (seconds) before which no job starts to age."""
        if rules.aging_clock == "submit":
            return -inf
        if self.running:
            return now
        return -inf if self.last_end is None else self.last_end

    def __repr__(self) -> str:
        return f"<TurnClock running={self.running} last_end={self.last_end}>"


class TurnClocks:
    """The clocks of all lanes.

    A clock outlasts its last job, because a job that was accepted earlier may come into the queue later and must
    not age from before its member's last turn. Of the clocks that are not in use, those used last are kept.
    """

    def __init__(self) -> None:
        self._in_use: dict[ClockKey, TurnClock] = {}
        self._idle: OrderedDict[ClockKey, TurnClock] = OrderedDict()

    def __repr__(self) -> str:
        return f"<TurnClocks {len(self._in_use)} in use, {len(self._idle)} idle>"

    def use(self, key: ClockKey) -> TurnClock:
        """The clock of somebody who waits or holds a place; the same one until `let_go`."""
        if key not in self._in_use:
            self._in_use[key] = self._idle.pop(key) if key in self._idle else TurnClock()
        return self._in_use[key]

    def let_go(self, key: ClockKey) -> None:
        """No job waits on this clock any more; it stays in use while one holds a place."""
        if self._in_use[key].running:
            return
        clock = self._in_use.pop(key)
        if clock.last_end is not None:
            self._idle[key] = clock
            while len(self._idle) > IDLE_CLOCKS:
                self._idle.popitem(last=False)

    def remember(self, key: ClockKey, ended_at: float) -> None:
        """A job ended at `ended_at`, seconds. A clock that is later already stays where it is."""
        unused = key not in self._in_use
        clock = self.use(key)
        clock.last_end = ended_at if clock.last_end is None else max(clock.last_end, ended_at)
        if unused:
            self.let_go(key)

    def unused(self) -> TurnClocks:
        """The same moments, none of them in use."""
        clocks = TurnClocks()
        for key, clock in [*self._idle.items(), *self._in_use.items()]:
            if clock.last_end is not None:
                clocks._idle[key] = TurnClock()
                clocks._idle[key].last_end = clock.last_end
        return clocks


def turn_key(member: str, band: str, rules: ScoreRules) -> tuple[str, str]:
    """Who shares one clock: a member's jobs of one band, or with `fairness: none` the whole band."""
    return (member if rules.fairness == "turns" else "", band)
