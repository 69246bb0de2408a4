"""Whose wait counts: the turn clock.

Every member is treated as if it submitted one job at a time and re-queued. The waiting of a (member, band)
therefore counts from its job's submit or from the end of the member's last job in this band, whichever is
later; while one of its jobs in this band runs, the clock stands at now.

This keeps a backlog of hundreds of jobs from ageing past new, more urgent work all at once, and makes
members with the same number take turns. Two rules change what follows a job that ran:

- `fairness: turns`, a member of weight w: it is treated as if it submitted w jobs at a time, so its clock moves on
  after every w-th job. Weights count relative to the smallest.
- `fairness: gpu_time`: the clock rests for as long as the other active members need to catch up in proportion to
  their weights, `service x (all weights / own weight - 1)`, which is `service x (members - 1)` with equal ones.
  Of what it had waited before, at most the longest rest of its band is deducted: without that, short jobs lose the
  time that they wait behind each long one, and two members with jobs of 1 s and 0.25 s get 57 to 43 per cent.

`queue` asks; `dispatcher` reports starts and ends.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from math import inf

from swaplane.core.score import ScoreRules

#: How many clocks are kept of those who neither wait nor hold a place: any header can name a new member.
IDLE_CLOCKS = 10_000

LONGEST_REST_POINTS = 30.0  #: so that a member that rests does not fall into the band below

_NO_TURN_LEFT = 1e-9  # of a turn: less is rounding

ClockKey = tuple[str, str, str]  #: the lane, and who shares the clock: see `turn_key`


class TurnClock:
    """The clock of one (member, band) in one lane; `turns` of its jobs make it move on once."""

    __slots__ = ("_turns", "_turns_left", "rest_s", "running", "since")

    def __init__(self, turns: float = 1.0) -> None:
        self.running = 0  #: jobs that hold a place now
        self.since: float | None = None  #: no job ages from before this, seconds; None until one has run
        self.rest_s = 0.0  #: how long it rests after its last job
        self._turns = self._turns_left = turns

    @property
    def was_used(self) -> bool:
        """Whether anything is lost when it is forgotten: the end of a job, or a part of a turn."""
        return self.since is not None or self._turns_left != self._turns

    def started(self) -> None:
        """One of the jobs was given a place."""
        self.running += 1

    def stopped(self) -> None:
        """One of the jobs gave its place back."""
        self.running -= 1

    def had_turn(self, now: float) -> None:
        """A job that was sent to its model has ended."""
        self._turns_left -= 1
        if self._turns_left <= _NO_TURN_LEFT:
            self._turns_left += self._turns
            self.since = now

    def rests(self, until: float, *, rest_s: float) -> None:
        """A job that was sent to its model has ended: age only after a rest, which is over at `until`, seconds."""
        self.rest_s = rest_s
        self.since = until

    def starts_at(self, submitted_at: float, now: float, rules: ScoreRules) -> float:
        """The moment (seconds) from which a job submitted at `submitted_at` ages in the comparison."""
        return max(submitted_at, self.floor(now, rules))

    def floor(self, now: float, rules: ScoreRules) -> float:
        """The moment (seconds) before which no job starts to age; after now for one that rests."""
        if rules.aging_clock == "submit":
            return -inf
        since = -inf if self.since is None else self.since
        return max(now, since) if self.running else since

    def idle_copy(self) -> TurnClock:
        """The same moments, with no job running."""
        clock = TurnClock(self._turns)
        clock.since, clock.rest_s, clock._turns_left = self.since, self.rest_s, self._turns_left
        return clock

    def __repr__(self) -> str:
        return f"<TurnClock running={self.running} since={self.since}>"


class TurnClocks:
    """The clocks of all lanes.

    A clock outlasts its last job, because a job that was accepted earlier may come into the queue later and must
    not age from before its member's last turn. Of the clocks that are not in use, those used last are kept.
    """

    def __init__(self, rules: ScoreRules) -> None:
        self._rules = rules
        self._in_use: dict[ClockKey, TurnClock] = {}
        self._idle: OrderedDict[ClockKey, TurnClock] = OrderedDict()

    def __repr__(self) -> str:
        return f"<TurnClocks {len(self._in_use)} in use, {len(self._idle)} idle>"

    def use(self, key: ClockKey) -> TurnClock:
        """The clock of somebody who waits or holds a place; the same one until `let_go`."""
        if key not in self._in_use:
            self._in_use[key] = self._idle.pop(key) if key in self._idle else self._new(key)
        return self._in_use[key]

    def _new(self, key: ClockKey) -> TurnClock:
        _, member, _ = key
        return TurnClock(self._rules.turns_of(member) if self._rules.fairness == "turns" else 1.0)

    def ended(self, key: ClockKey, now: float, *, service_s: float | None, clock: float) -> None:
        """A job gave its place back; `service_s` is the GPU time it had, None when it was never sent to its model.

        `clock` is the moment from which it aged when it was given the place, seconds.
        """
        own = self._in_use[key]
        own.stopped()
        if service_s is None:
            return
        if self._rules.fairness == "gpu_time":
            share = self.shares(key[0])[key]
            longest_s = max(each.rest_s for each in self._beside(key))
            until, its_s = rest_until(own, now, service_s, share, self._rules, clock=clock, longest_s=longest_s)
            own.rests(until, rest_s=its_s)
        else:
            own.had_turn(now)

    def shares(self, lane: str) -> dict[ClockKey, float]:
        """The weights of all who wait or run beside each clock's member, in units of its own: 2 for one of two."""
        weights = {key: self._rules.weight_of(key[1]) for key in self._in_use if key[0] == lane}
        totals: defaultdict[str, float] = defaultdict(float)
        for (_, _, band), weight in weights.items():
            totals[band] += weight
        return {key: totals[key[2]] / weight for key, weight in weights.items()}

    def _beside(self, key: ClockKey) -> Iterator[TurnClock]:
        lane, _, band = key
        return (clock for (at, _, b), clock in self._in_use.items() if at == lane and b == band)

    def let_go(self, key: ClockKey) -> None:
        """No job waits on this clock any more; it stays in use while one holds a place."""
        if self._in_use[key].running:
            return
        clock = self._in_use.pop(key)
        if clock.was_used:
            self._idle[key] = clock
            while len(self._idle) > IDLE_CLOCKS:
                self._idle.popitem(last=False)

    def remember(self, key: ClockKey, ended_at: float) -> None:
        """A job ended at `ended_at`, seconds. A clock that is later already stays where it is."""
        unused = key not in self._in_use
        clock = self.use(key)
        clock.since = ended_at if clock.since is None else max(clock.since, ended_at)
        if unused:
            self.let_go(key)

    def unused(self, rules: ScoreRules) -> TurnClocks:
        """The same moments under other rules, none of them in use."""
        clocks = TurnClocks(rules)
        for key, clock in [*self._idle.items(), *self._in_use.items()]:
            if clock.since is not None:
                fresh = clocks._new(key)
                fresh.since, fresh.rest_s = clock.since, clock.rest_s
                clocks._idle[key] = fresh
        return clocks


def rest_until(
    clock_of: TurnClock,
    now: float,
    service_s: float,
    share: float,
    rules: ScoreRules,
    *,
    clock: float,
    longest_s: float,
) -> tuple[float, float]:
    """Until when a clock rests after a job that had `service_s` seconds of GPU time, and how long that is, seconds.

    `share` are the weights of all who wait or run beside it and itself, in units of its own: 2 for one of two. The
    clock moves on by `service_s x share` from where it stood, which is `clock` or what a job of the same member that
    ran beside this one has left. Of what it has waited, `longest_s` counts at most.
    """
    longest_rest_s = LONGEST_REST_POINTS * rules.aging_divisor_s
    its_s = min(service_s * (share - 1), longest_rest_s)
    stood_at = clock if clock_of.since is None else max(clock, clock_of.since)
    earliest = now + its_s - max(longest_s, its_s)
    return min(max(stood_at + service_s * share, earliest), now + longest_rest_s), its_s


def turn_key(member: str, band: str, rules: ScoreRules) -> tuple[str, str]:
    """Who shares one clock: a member's jobs of one band, or with `fairness: none` the whole band."""
    return ("" if rules.fairness == "none" else member, band)
