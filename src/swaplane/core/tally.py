"""What waits, added up: by band, by member, by key and in all, in jobs and in bytes of their bodies.

Decides which limit a further job would break. `queue` keeps it; it knows no order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import ceil
from typing import Literal, NamedTuple

from swaplane.core.events import Job
from swaplane.core.limits import Allowance, Limits

Kind = Literal["total", "band", "member", "key"]


class Scope(NamedTuple):
    """Jobs that share an allowance."""

    kind: Kind
    name: str  #: of the band, member or key; empty for all jobs


class Full(NamedTuple):
    """The allowance that a job found used up."""

    scope: Scope
    leave: int  #: how many of the jobs in it have to leave before there is room; of bytes, if all are equally long
    words: str  #: for people: whose it is and how much it is


class Tally:
    """The sums over the waiting jobs."""

    def __init__(self) -> None:
        self._jobs: Counter[Scope] = Counter()
        self._bytes: Counter[Scope] = Counter()

    def __repr__(self) -> str:
        total = Scope("total", "")
        return f"<Tally {self._jobs[total]} jobs, {self._bytes[total]} bytes>"

    def add(self, job: Job, band: str) -> None:
        """A job waits."""
        for scope in scopes_of(job, band):
            self._jobs[scope] += 1
            self._bytes[scope] += job.bytes

    def remove(self, job: Job, band: str) -> None:
        """It does not wait any more."""
        for scope in scopes_of(job, band):
            self._jobs[scope] -= 1
            self._bytes[scope] -= job.bytes
            if not self._jobs[scope]:
                del self._jobs[scope], self._bytes[scope]

    def of_member(self, member: str) -> int:
        """How many jobs of a member wait."""
        return self._jobs[Scope("member", member)]

    def members(self) -> Iterator[str]:
        """The members that wait."""
        return (scope.name for scope in self._jobs if scope.kind == "member")

    def full(self, job: Job, band: str, limits: Limits) -> Full | None:
        """The narrowest limit that would be broken if this job waited too; None when it may.

        Of bytes one job may always wait, however long it is: it would be refused for ever otherwise.
        """
        for scope in reversed(scopes_of(job, band)):
            allowed = _allowance(scope, limits)
            if allowed is None:
                continue
            jobs, whose = self._jobs[scope], _whose(scope)
            if allowed.jobs is not None and jobs >= allowed.jobs:
                held = f"1 job{whose} waits" if jobs == 1 else f"{jobs} jobs{whose} wait"
                return Full(scope, jobs - allowed.jobs + 1, f"{held} already, and at most {allowed.jobs} may")
            if allowed.bytes is not None and jobs and self._bytes[scope] + job.bytes > allowed.bytes:
                excess = self._bytes[scope] + job.bytes - allowed.bytes
                leave = min(ceil(excess * jobs / self._bytes[scope]), jobs) if self._bytes[scope] else jobs
                held = f"{self._bytes[scope]} bytes{whose} wait already"
                return Full(scope, leave, f"{held}, and with these {job.bytes} more than the {allowed.bytes} that may")
        return None


def scopes_of(job: Job, band: str) -> tuple[Scope, ...]:
    """What a job counts for, the widest first."""
    scopes = (Scope("total", ""), Scope("band", band), Scope("member", job.member))
    return (*scopes, Scope("key", job.key)) if job.key else scopes


def _allowance(scope: Scope, limits: Limits) -> Allowance | None:
    match scope.kind:
        case "total":
            return limits.total
        case "band":
            return limits.bands.get(scope.name)
        case "member":
            return limits.member
    return limits.keys.get(scope.name)


def _whose(scope: Scope) -> str:
    return {"total": "", "band": " in band ", "member": " of member ", "key": " of key "}[scope.kind] + scope.name
