"""GPU time by member: since the start, and within the last hour.

Adds up what `dispatcher` reports and decides whether a member's budget is used up. It orders nothing: whose clock
counts is decided in `turns`.
"""

from __future__ import annotations

from collections import OrderedDict, deque

HOUR_S = 3600.0
_STEP_S = 60.0  # what is added up together, so that an hour of short jobs takes no more room than one of long ones
MEMBERS = 10_000  #: those who were served last are told apart; the others are added to `forgotten_s`


class Hour:
    """A sum over the last hour, to the minute."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: deque[tuple[int, float]] = deque()  # (number of the minute, seconds in it)

    def add(self, now: float, seconds: float) -> None:
        """Add `seconds` at `now`."""
        step = int(now // _STEP_S)
        if self._steps and self._steps[-1][0] == step:
            seconds += self._steps.pop()[1]
        self._steps.append((step, seconds))
        self._drop(now)

    def sum(self, now: float) -> float:
        """What was added within the last hour, seconds."""
        self._drop(now)
        return sum(seconds for _, seconds in self._steps)

    def _drop(self, now: float) -> None:
        oldest = int((now - HOUR_S) // _STEP_S)
        while self._steps and self._steps[0][0] < oldest:
            self._steps.popleft()


class MemberUsage:
    """One member's GPU time."""

    __slots__ = ("gpu_s", "hour", "hour_at_budget")

    def __init__(self) -> None:
        self.gpu_s = 0.0  #: since the gateway's start
        self.hour = Hour()
        self.hour_at_budget = Hour()  #: of jobs at or above the band that has a budget


class Usage:
    """The GPU time of all members."""

    def __init__(self) -> None:
        self.members: OrderedDict[str, MemberUsage] = OrderedDict()  #: the last served last
        self.forgotten_s = 0.0  #: of members that are not told apart any more

    def __repr__(self) -> str:
        return f"<Usage of {len(self.members)} members>"

    @property
    def total_s(self) -> float:
        """GPU seconds of everybody since the start."""
        return self.forgotten_s + sum(member.gpu_s for member in self.members.values())

    def charge(self, member: str, now: float, gpu_s: float, *, at_budget: bool) -> None:
        """A job has ended that had `gpu_s` seconds of GPU time; `at_budget`: it counts for the member's budget."""
        used = self.members.setdefault(member, MemberUsage())
        self.members.move_to_end(member)
        used.gpu_s += gpu_s
        used.hour.add(now, gpu_s)
        if at_budget:
            used.hour_at_budget.add(now, gpu_s)
        while len(self.members) > MEMBERS:
            self.forgotten_s += self.members.popitem(last=False)[1].gpu_s

    def spent_s(self, member: str, now: float) -> float:
        """What counts for a member's budget of the last hour, seconds."""
        used = self.members.get(member)
        return 0.0 if used is None else used.hour_at_budget.sum(now)
