"""Who is let in, how long he may stay and who is passed over, by counting everything anew each time.

Nothing here uses the tallies, deadlines or bars under test.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from swaplane.core.events import Job
from swaplane.core.limits import Allowance
from swaplane.core.plan import LanePlan, Plan
from swaplane.core.score import ScoreRules
from tests.core.judge import band_value


def band_name(job: Job, rules: ScoreRules) -> str:
    return next(band.name for band in rules.bands if band.value == band_value(job, rules))


def is_full(job: Job, waiting: Collection[Job], plan: Plan) -> bool:
    """Whether a limit keeps a further job out."""
    limits, rules = plan.limits, plan.rules
    band = band_name(job, rules)
    scopes: list[tuple[Allowance | None, list[Job]]] = [
        (limits.total, list(waiting)),
        (limits.bands.get(band), [each for each in waiting if band_name(each, rules) == band]),
        (limits.member, [each for each in waiting if each.member == job.member]),
        (limits.keys.get(job.key), [each for each in waiting if each.key == job.key]),
    ]
    return any(allowed is not None and _breaks(job, those, allowed) for allowed, those in scopes)


def _breaks(job: Job, waiting: list[Job], allowed: Allowance) -> bool:
    if allowed.jobs is not None and len(waiting) + 1 > allowed.jobs:
        return True
    if allowed.bytes is None or not waiting:
        return False
    return sum(each.bytes for each in [*waiting, job]) > allowed.bytes


def leaves_at(job: Job, plan: Plan) -> float | None:
    """When a job ends that was not sent; None: never."""
    if job.ran_before:
        return None
    in_band_since = job.submitted_at if job.in_band_since is None else job.in_band_since
    wishes = [
        (job.submitted_at, job.max_wait_s),
        (in_band_since, plan.limits.max_wait_s.get(band_name(job, plan.rules))),
    ]
    return min([since + wish for since, wish in wishes if wish is not None], default=None)


def is_overdue(job: Job, now: float, plan: Plan) -> bool:
    at = leaves_at(job, plan)
    return at is not None and at <= now


# Budgets.


def counts_for_budget(job: Job, plan: Plan) -> bool:
    budget = plan.limits.budget
    return budget is not None and job.priority >= _budget_floor(plan)


def lowered(job: Job, plan: Plan) -> int:
    """The job's priority in the band below the budget's; a tier's bonus stays."""
    below = max(band.value for band in plan.rules.bands if band.value < _budget_floor(plan))
    bonus = job.priority - band_value(job, plan.rules)
    return below + (bonus if bonus in plan.rules.tiers.values() else 0)


def _budget_floor(plan: Plan) -> int:
    budget = plan.limits.budget
    assert budget is not None
    return {band.name: band.value for band in plan.rules.bands}[budget.band]


@dataclass(slots=True)
class Bills:
    """What members used of their budgets."""

    charges: list[tuple[str, float, float]] = field(default_factory=list)  #: member, when, seconds

    def left_s(self, member: str, running: Iterable[tuple[Job, float]], now: float, plan: Plan) -> float | None:
        """`running` are the jobs that run, with the GPU time of each so far. The hour is counted in whole minutes."""
        budget = plan.limits.budget
        if budget is None:
            return None
        used = sum(s for whose, at, s in self.charges if whose == member and at // 60 >= (now - 3600) // 60)
        used += sum(s for job, s in running if job.member == member and counts_for_budget(job, plan))
        return max(0.0, budget.gpu_s - used)


# Who is passed over.


def runs_too_much(job: Job, holding: Collection[Job], plan: Plan) -> bool:
    """Whether its member or its key has as many jobs with a place as it may."""
    limits = plan.limits
    of_member = sum(each.member == job.member for each in holding)
    of_key = sum(each.key == job.key for each in holding)
    most = limits.running_of_keys.get(job.key)
    return (limits.max_running is not None and of_member >= limits.max_running) or (most is not None and of_key >= most)


def is_reserved(
    job: Job, lane: LanePlan, tops: Collection[int], rules: ScoreRules, *, joins: int | None = None
) -> bool:
    """Whether jobs below some band hold all that is not reserved, and a place is not for this one.

    `tops` has the highest priority of the jobs of each place that is taken, `joins` that of the place which the job
    would share; None: it needs a further one.
    """
    for band in rules.bands:
        reserved = sum(lane.reserve.get(each.name, 0) for each in rules.bands if each.value >= band.value)
        left = lane.size - reserved - sum(top < band.value for top in tops)
        if not reserved or job.priority >= band.value:
            continue
        if left <= 0 if joins is None else (left < 0 and joins < band.value):
            return True
    return False
