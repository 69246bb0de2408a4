"""The score: who goes next.

    score(t) = base + tier_bonus + swap_affinity + aging

This module holds the rules' numbers and the arithmetic of one score. It does not know queues, members or
models: whose clock counts is decided in `turns`, who is compared with whom in `queue`.

`base + tier_bonus` is the applied priority, the integer from the request. Aging is the only term that may
lift a job past a higher band, and it is meant to.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

AgingClock = Literal["turn", "submit"]
Fairness = Literal["turns", "gpu_time", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A named priority: the label under which all priorities from `value` up to the next band are shown."""

    name: str  #: such as "interactive"; also accepted in place of a number in the priority header
    value: int  #: the smallest priority of this band


DEFAULT_BANDS = (
    Band(name="batch", value=-100),
    Band(name="normal", value=0),
    Band(name="interactive", value=100),
)
DEFAULT_TIERS: Mapping[str, int] = MappingProxyType({"free": 0, "pro": 1, "max": 2})


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The four terms of one job's score at one moment, in points."""

    base: int  #: the band's value, or the bare number where it is not "band + a tier's bonus"
    tier_bonus: int  #: who pays more goes first within a band
    affinity: float  #: points for a model that is resident: what a swap would cost in waiting
    aging: float  #: points for waiting, one per `aging_divisor_s` on the clock that counts

    @property
    def total(self) -> float:
        """The sum of the four terms: the one number that decides."""
        return (self.base + self.tier_bonus + self.affinity) + self.aging


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRules:
    """The numbers of the score, as configured under `scheduling:`."""

    bands: tuple[Band, ...] = DEFAULT_BANDS  #: in ascending order of value, at least one
    tiers: Mapping[str, int] = field(default_factory=lambda: DEFAULT_TIERS)  #: tier name -> bonus in points
    swap_affinity: float = 10.0  #: points for a job whose model is resident
    aging_divisor_s: float = 60.0  #: seconds of waiting that are worth one point
    aging_clock: AgingClock = "turn"  #: whether a member's jobs age one at a time, or all at once since submit
    fairness: Fairness = "turns"  #: whether members share turns, share GPU time, or a whole band is one line
    weights: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """By member, above 0: a member of weight 2 gets twice the share of one of weight 1, which is everybody else's."""
    priority_min: int = -1000  #: smaller requests are clamped to this
    priority_max: int = 1000  #: larger requests are clamped to this
    _values: tuple[int, ...] = field(init=False, repr=False, compare=False)  #: of the bands

    def __post_init__(self) -> None:
        object.__setattr__(self, "_values", tuple(band.value for band in self.bands))

    def band_of(self, priority: int) -> Band:
        """The greatest band that is not above `priority`; below all bands, the lowest."""
        return self.bands[max(bisect_right(self._values, priority) - 1, 0)]

    def value_of(self, band: str) -> int:
        """The value of the band of this name. Raises StopIteration when there is none."""
        return next(each.value for each in self.bands if each.name == band)

    def split(self, priority: int) -> tuple[int, int]:
        """`priority` as (base, tier_bonus): -98 is band -100 and tier bonus 2.

        A number whose distance to its band is no tier's bonus (50, 250, -300) is all base.
        """
        base = self.band_of(priority).value
        bonus = priority - base
        return (base, bonus) if bonus in self.tiers.values() else (priority, 0)

    def weight_of(self, member: str) -> float:
        """A member's share of the GPU compared with others at the same priority."""
        return self.weights.get(member, 1.0)

    def turns_of(self, member: str) -> float:
        """How many turns a member gets for one of the member with the smallest weight; at least 1."""
        return self.weight_of(member) / min(1.0, *self.weights.values()) if self.weights else 1.0

    def affinity_for(self, priority: int) -> float:
        """Points for a job of this priority when its model is resident.

        For bands and tiers this is `swap_affinity` (`band_fault` sees to the distance). A number just below
        the next band, such as 99, gets less, so that affinity never lifts a job into a higher band.
        """
        higher = bisect_right(self._values, priority)
        if higher == len(self._values) or priority < self._values[0]:
            return self.swap_affinity
        room = self._values[higher] - priority - 1
        return min(self.swap_affinity, float(room))

    def aging(self, now: float, clock: float) -> float:
        """Points for the time from `clock` to `now` (both seconds); unbounded on purpose."""
        return (now - clock) / self.aging_divisor_s

    def score(self, priority: int, *, resident: bool, now: float, clock: float) -> Score:
        """The score of a job of this priority whose clock started at `clock` (seconds)."""
        base, tier_bonus = self.split(priority)
        return Score(
            base=base,
            tier_bonus=tier_bonus,
            affinity=self.affinity_for(priority) if resident else 0.0,
            aging=self.aging(now, clock),
        )


def band_distance(rules: ScoreRules) -> tuple[int, float] | None:
    """(smallest distance between two bands, largest tier bonus + swap affinity); None with a single band.

    The first must exceed the second, or tier and affinity could lift a job into a higher band. Under four
    times it, a wait of minutes already does what only a wait of hours should.
    """
    if len(rules.bands) < 2:
        return None
    smallest = min(high.value - low.value for low, high in itertools.pairwise(rules.bands))
    return smallest, max(rules.tiers.values(), default=0) + rules.swap_affinity
