"""How long anybody may be passed: the proven bound, and who has come how near to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from swaplane.core.events import Job
from swaplane.core.score import ScoreRules
from tests.core.clocks import LONGEST_REST_POINTS
from tests.core.judge import TurnKey


class Patience:
    """The proven bound: how often a waiting (member, band) may be passed.

    Let E0 be the clock of its oldest job, and B the seconds of aging that are worth the distance from that job's
    priority to the highest, with affinity, and with the rest that `gpu_time` may take off a clock. After E0 + 2 B
    each other (member, band) of the lane is served at most one turn before it: whoever had a turn has a clock later
    than E0 + B and scores less from then on.
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
        clock: Callable[[Job], float],
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
        points = rules.swap_affinity + (LONGEST_REST_POINTS if rules.fairness == "gpu_time" else 0.0)
        most = 0
        for other, job in oldest.items():
            bound_s = (highest - job.priority + points) * rules.aging_divisor_s
            if now > clock(job) + 2 * bound_s:
                passed = self._passed.setdefault(other, Counter())
                passed[key] += 1
                most = max(most, passed[key])
        return most
