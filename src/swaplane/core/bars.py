"""Who may not be given a place now: the `Bar` of a lane.

Decides by the limits of running jobs and by reserved places. `gatekeeper` asks for what holds places, `forecast` for
what it imagines to hold them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf

from swaplane.core.comparison import OPEN, Bar
from swaplane.core.events import Job
from swaplane.core.limits import Limits
from swaplane.core.plan import LanePlan
from swaplane.core.score import ScoreRules

Holder = tuple[str, str]  #: ("member" or "key", name)


def holders_of(job: Job) -> tuple[Holder, Holder]:
    """For whom a job that holds a place counts."""
    return (("member", job.member), ("key", job.key))


def has_bar(lane: LanePlan, limits: Limits) -> bool:
    """Whether anybody may ever be kept out of a lane."""
    return limits.bound_running or bool(lane.reserve)


def bar_of(
    lane: LanePlan,
    limits: Limits,
    rules: ScoreRules,
    *,
    held: Mapping[Holder, int],
    tops: Mapping[str, int],
    joinable: Collection[str],
) -> Bar:
    """Who is kept out of a lane.

    `held` counts jobs with a place in any lane. `tops` has, for each model that holds a place of this lane, the highest
    priority of its jobs; `joinable` are those of them which have a free slot.
    """
    members: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    if limits.bound_running:
        most = inf if limits.max_running is None else limits.max_running
        full = [
            (kind, name)
            for (kind, name), count in held.items()
            if count >= (most if kind == "member" else limits.running_of_keys.get(name, inf))
        ]
        members = frozenset(name for kind, name in full if kind == "member")
        keys = frozenset(name for kind, name in full if kind == "key")
    below, overdrawn = _reserved_below(lane, rules, tops.values()) if lane.reserve else (-inf, -inf)
    joins = {model: overdrawn if tops[model] < overdrawn else -inf for model in joinable} if below > -inf else {}
    bar = Bar(members, keys, below, joins)
    return OPEN if bar == OPEN else bar


def _reserved_below(lane: LanePlan, rules: ScoreRules, tops: Collection[int]) -> tuple[float, float]:
    """Jobs of a priority below the first may not take a further place; those below the second hold more than they may.

    A place counts for the most urgent of the jobs that hold it. When that one has ended, the others may hold a place
    too many: then nobody joins them, so that it comes free.
    """
    left = lane.size
    below, overdrawn = -inf, -inf
    for band in reversed(rules.bands):
        reserved = lane.reserve.get(band.name, 0)
        left -= reserved
        held = sum(top < band.value for top in tops)
        if reserved and held >= left:
            below = max(below, band.value)
        if reserved and held > left:
            overdrawn = max(overdrawn, band.value)
    return below, overdrawn
