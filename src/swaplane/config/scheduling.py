"""`scheduling:` as the score's rules and the lanes.

Decides whether bands, tiers and affinity fit together: none but waiting may lift a job into a higher band.
Called by `load`; the arithmetic of the score itself is in `core.score`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from types import MappingProxyType

from swaplane.config.problems import Problems
from swaplane.config.schema import SchedulingEntry
from swaplane.core.plan import LanePlan
from swaplane.core.score import Band, ScoreRules, band_distance

DEFAULT_LANE = "gpu"
_BAND_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LANE_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_COMFORT = 4  #: times the need: below it, minutes of waiting already cross a band


def lanes_of(entry: SchedulingEntry, problems: Problems) -> Mapping[str, LanePlan]:
    """The lanes by name; `gpu` is always among them, because it is every model's default."""
    lanes = {DEFAULT_LANE: LanePlan(name=DEFAULT_LANE)}
    for name, lane in entry.lanes.items():
        if not _LANE_NAME.fullmatch(name):
            where = ("scheduling", "lanes", name)
            problems.add(where, "a lane's name may contain letters, digits, `_`, `.` and `-` only", at_key=True)
        lanes[name] = LanePlan(name=name, size=lane.size)
    return MappingProxyType(lanes)


def rules_of(entry: SchedulingEntry, problems: Problems, warnings: list[str]) -> ScoreRules:
    """The score's rules. Whatever would let a job cross a band by tier or affinity becomes a problem."""
    low, high = _limits(entry, problems)
    rules = ScoreRules(
        bands=_bands(entry, problems),
        tiers=MappingProxyType(dict(entry.tiers)),
        swap_affinity=entry.swap_affinity,
        aging_divisor_s=entry.aging_divisor,
        aging_clock=entry.aging_clock,
        fairness=entry.fairness,
        priority_min=low,
        priority_max=high,
    )
    warnings.extend(
        f"scheduling.bands.{band.name}: {band.value} lies outside priority_limits [{low}, {high}]: it stays empty"
        for band in rules.bands
        if not low <= band.value <= high
    )
    _check_distance(rules, entry, problems, warnings)
    return rules


def _limits(entry: SchedulingEntry, problems: Problems) -> tuple[int, int]:
    match entry.priority_limits:
        case [low, high] if low <= high:
            return low, high
    problems.add(("scheduling", "priority_limits"), "must be two whole numbers [min, max], the smaller first")
    return -1000, 1000


def _bands(entry: SchedulingEntry, problems: Problems) -> tuple[Band, ...]:
    where = ("scheduling", "bands")
    taken: dict[str | int, str] = {}
    for name, value in entry.bands.items():
        if not _BAND_NAME.fullmatch(name):
            sentence = f"the band name `{name}` must begin with a letter and contain only letters, digits, `_` and `-`"
            problems.add((*where, name), sentence, at_key=True)
        elif name.lower() in taken:
            sentence = (
                f"`{name}` and `{taken[name.lower()]}` are the same name: case does not count in a priority header"
            )
            problems.add((*where, name), sentence, at_key=True)
        elif value in taken:
            problems.add((*where, name), f"the bands `{taken[value]}` and `{name}` have the same value {value}")
        else:
            taken[name.lower()] = taken[value] = name
            continue
    bands = [Band(name=name, value=value) for name, value in entry.bands.items()]
    if not bands:
        if not problems.within(where):
            problems.add(where, "at least one band is needed")
        return ScoreRules().bands
    return tuple(sorted(bands, key=lambda band: band.value))


def _check_distance(rules: ScoreRules, entry: SchedulingEntry, problems: Problems, warnings: list[str]) -> None:
    smallest_and_need = band_distance(rules)
    terms = ("bands", "tiers", "swap_affinity")
    if smallest_and_need is None or any(problems.within(("scheduling", term)) for term in terms):
        return
    distance, need = smallest_and_need
    below, above = min(itertools.pairwise(rules.bands), key=lambda pair: pair[1].value - pair[0].value)
    tier = max(rules.tiers.values(), default=0)
    facts = (
        f"the smallest distance between bands is {distance} ({below.name} {below.value} to {above.name} {above.value})"
    )
    sum_of = f"tier bonus {tier} + swap_affinity {rules.swap_affinity:g}"
    if distance <= need:
        wider = f"widen by {math.floor(need - distance) + 1}"
        room = distance - tier
        lower = f"lower swap_affinity below {room}" if room > 0 else "lower the tiers"
        written = next(term for term in terms if term in entry.model_fields_set)
        problems.add(("scheduling", written), f"{facts}, but {sum_of} = {need:g} must be smaller: {wider} or {lower}")
    elif distance < _COMFORT * need:
        warnings.append(
            f"scheduling: {facts}, less than {_COMFORT} times {need:g} ({sum_of}):"
            " a short wait already lifts a job over a band"
        )
