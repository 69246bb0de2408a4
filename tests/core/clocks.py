"""Whose wait counts, kept a second time: plain numbers by (lane, member, band), moved as the rules say.

Nothing here uses the turn clocks under test. `observer` says what ran, for how long, and who else was there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from swaplane.core.score import ScoreRules
from tests.core.judge import TurnKey

LONGEST_REST_POINTS = 30.0


@dataclass(slots=True)
class Clocks:
    """Since when each (lane, member, band) ages, seconds."""

    since: dict[TurnKey, float] = field(default_factory=dict)
    rest_s: dict[TurnKey, float] = field(default_factory=dict)  #: of the last job, for the others to catch up
    served: dict[TurnKey, int] = field(default_factory=dict)  #: jobs of the turn that is under way

    def remember(self, key: TurnKey, ended_at: float) -> None:
        """An earlier gateway gave a turn."""
        self.since[key] = max(ended_at, self.since.get(key, ended_at))

    def new_rules(self) -> None:
        """Whatever of a turn was used is forgotten."""
        self.served.clear()

    def ran(
        self,
        key: TurnKey,
        *,
        now: float,
        service_s: float,
        aged_from: float,
        active: Collection[TurnKey],
        rules: ScoreRules,
    ) -> None:
        """A job of `key` ended after `service_s` of GPU time; `active` waited or held places, `key` among them.

        `aged_from` is its clock when it was given its place.
        """
        if rules.fairness == "gpu_time":
            beside = {each for each in active if (each[0], each[2]) == (key[0], key[2])}
            weights = sum(weight(each[1], rules) for each in beside)
            share, most_s = weights / weight(key[1], rules), LONGEST_REST_POINTS * rules.aging_divisor_s
            rest_s = min(service_s * (share - 1), most_s)
            longest_s = max([rest_s, *(self.rest_s.get(each, 0.0) for each in beside)])
            self.rest_s[key] = rest_s
            stood_at = max(aged_from, self.since.get(key, aged_from))
            self.since[key] = min(max(stood_at + service_s * share, now + rest_s - longest_s), now + most_s)
            return
        served = self.served.get(key, 0) + 1
        if served >= turns(key[1], rules):
            self.since[key], served = now, 0
        self.served[key] = served


def weight(member: str, rules: ScoreRules) -> float:
    return rules.weights.get(member, 1.0)


def turns(member: str, rules: ScoreRules) -> float:
    """Jobs of one turn: the weight in units of the smallest; whole numbers in all tests that use this."""
    if rules.fairness != "turns":
        return 1.0
    return weight(member, rules) / min([1.0, *rules.weights.values()])
