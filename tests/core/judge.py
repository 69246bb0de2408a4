"""An independent reading of the rules: who goes next by brute force, and how long anybody may be passed.

Nothing here uses the queue or the turn clocks under test: every comparison goes over all waiting jobs, and
clocks are plain numbers kept by `observer`. With times that are multiples of 1/8 s and whole divisors all sums are
exact, so equal means equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
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
    return (lane, job.member if rules.fairness == "turns" else "", name)


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


class Patience:
    """The proven bound: how often a waiting (member, band) may be passed.

    Let E0 be the later of its oldest job's submit and the end of its last job, and B the seconds of aging that
    are worth the distance from that job's priority to the highest, with affinity. After E0 + 2 B each other
    (member, band) of the lane is served at most once before it: whoever was served has a clock later than
    E0 + B and scores less from then on.
    """

    def __init__(self) -> None:
        self._passed: dict[TurnKey, Counter[TurnKey]] = {}

    def forget(self, key: TurnKey | None = None) -> None:
        """Something of this (member, band), or of all, left or was reconfigured: counting starts anew."""
        if key is None:
            self._passed.clear()
        else:
            self._passed.pop(key, None)

    def not_served(self, key: TurnKey) -> None:
        """A dispatch came to nothing: it used no turn, so it does not count."""
        for passed in self._passed.values():
            del passed[key]

    def served(
        self,
        key: TurnKey,
        *,
        now: float,
        waiting: Iterable[tuple[TurnKey, Job]],
        busy: Collection[TurnKey],
        last_end: Mapping[TurnKey, float],
        highest: int,
        rules: ScoreRules,
    ) -> int:
        """A job of `key` was dispatched while `waiting` waited: how often it has passed the most patient one."""
        self.forget(key)
        oldest: dict[TurnKey, Job] = {}
        for other, job in waiting:
            if other != key and other[0] == key[0] and other not in busy:
                known = oldest.setdefault(other, job)
                if (job.submitted_at, job.seq) < (known.submitted_at, known.seq):
                    oldest[other] = job
        most = 0
        for other, job in oldest.items():
            since = max(job.submitted_at, last_end.get(other, job.submitted_at))
            bound_s = (highest - job.priority + rules.swap_affinity) * rules.aging_divisor_s
            if now > since + 2 * bound_s:
                passed = self._passed.setdefault(other, Counter())
                passed[key] += 1
                most = max(most, passed[key])
        return most
