"""Whose wait counts: the turn clock.

Every member is treated as if it submitted one job at a time and re-queued. The waiting of a (member, band)
therefore counts from its job's submit or from the end of the member's last job in this band, whichever is
later; while one of its jobs in this band runs, the clock stands at now.

This keeps a backlog of hundreds of jobs from ageing past new, more urgent work all at once, and makes
members with the same number take turns. `queue` asks; `dispatcher` reports starts and ends.
"""

from __future__ import annotations

from math import inf

from swaplane.core.score import ScoreRules


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


def turn_key(member: str, band: str, rules: ScoreRules) -> tuple[str, str]:
    """Who shares one clock: a member's jobs of one band, or with `fairness: none` the whole band."""
    return (member if rules.fairness == "turns" else "", band)
