"""An independent reading of the rules: who goes next, by brute force.

Nothing here uses the queue or the turn clocks under test: every comparison goes over all jobs that it is given (whoever
is passed over is not), and clocks are plain numbers, see `clocks`. With times that are multiples of 1/8 s and whole
divisors all sums are exact, so equal means equal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from swaplane.core.events import Job
from swaplane.core.score import ScoreRules

TurnKey = tuple[str, str, str]  #: lane, member ("" when a whole band shares a clock), band
Clock = Callable[[Job], float]
Rank = tuple[float, float, int]


def band_value(job: Job, rules: ScoreRules) -> int:
    """The value of the job's band, by looking at all of them."""
    return max([band.value for band in rules.bands if band.value <= job.priority], default=rules.bands[0].value)


def turn_key(job: Job, lane: str, rules: ScoreRules) -> TurnKey:
    name = next(band.name for band in rules.bands if band.value == band_value(job, rules))
    return (lane, "" if rules.fairness == "none" else job.member, name)


def affinity(job: Job, resident: Collection[str], rules: ScoreRules) -> float:
    if job.model not in resident:
        return 0.0
    if job.priority < rules.bands[0].value:
        return rules.swap_affinity
    higher = [band.value for band in rules.bands if band.value > job.priority]
    return min([rules.swap_affinity, *(float(value - 1 - job.priority) for value in higher)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The ids of the winners of one comparison and of its variants."""

    winner: str
    without_aging: str
    without_affinity: str
    without_turns: str
    first_come: str


def judge(
    waiting: Collection[Job], *, lane: str, now: float, resident: Collection[str], rules: ScoreRules, turn: Clock
) -> Verdict:
    """Who goes next of all that wait in one lane. `turn` gives the clock that counts between members."""

    def submit(job: Job) -> float:
        return job.submitted_at

    def winner(second_clock: Clock, *, aging: bool = True, affine: bool = True) -> str:
        def rank(clock: Clock) -> Callable[[Job], Rank]:
            def of(job: Job) -> Rank:
                points = job.priority + (affinity(job, resident, rules) if affine else 0.0)
                if aging:
                    points = points * rules.aging_divisor_s + (now - clock(job))  # in seconds: exact
                return (points, -clock(job), -job.seq)

            return of

        groups: dict[TurnKey, list[Job]] = {}
        for job in waiting:
            groups.setdefault(turn_key(job, lane, rules), []).append(job)
        candidates = [max(group, key=rank(submit)) for group in groups.values()]
        return max(candidates, key=rank(second_clock)).id

    return Verdict(
        winner=winner(turn),
        without_aging=winner(turn, aging=False),
        without_affinity=winner(turn, affine=False),
        without_turns=winner(submit),
        first_come=min(waiting, key=lambda job: (job.submitted_at, job.seq)).id,
    )
