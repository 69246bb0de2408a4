"""`scheduling:` as the score's rules and the lanes.

Decides whether bands, tiers, affinity and rests fit together: none but waiting may put a job above one of a higher
band. What may wait and for how long is read in `limits`, the arithmetic of the score itself is in `core.score`. Called
by `load`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from types import MappingProxyType

from swaplane.config.problems import Path, Problems
from swaplane.config.schema import LaneEntry, SchedulingEntry
from swaplane.core.plan import LanePlan
from swaplane.core.score import Band, ScoreRules, band_distance
from swaplane.core.turns import LONGEST_REST_POINTS

DEFAULT_LANE = "gpu"
_BAND_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LANE_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_COMFORT = 4  #: times the need: below it, minutes of waiting already cross a band


def lanes_of(entry: SchedulingEntry, rules: ScoreRules, problems: Problems) -> Mapping[str, LanePlan]:
    """The lanes by name; `gpu` is always among them, because it is every model's default."""
    lanes = {DEFAULT_LANE: LanePlan(name=DEFAULT_LANE)}
    for name, lane in entry.lanes.items():
        if not _LANE_NAME.fullmatch(name):
            where = ("scheduling", "lanes", name)
            problems.add(where, "a lane's name may contain letters, digits, `_`, `.` and `-` only", at_key=True)
        _check_reserve(name, lane, rules, problems)
        lanes[name] = LanePlan(name=name, size=lane.size, reserve=MappingProxyType(dict(lane.reserve)))
    return MappingProxyType(lanes)


def _check_reserve(name: str, lane: LaneEntry, rules: ScoreRules, problems: Problems) -> None:
    where = ("scheduling", "lanes", name, "reserve")
    for band in lane.reserve:
        if is_band(band, (*where, band), rules, problems, at_key=True) and band == rules.bands[0].name:
            sentence = f"`{band}` is the lowest band: there is none below it to keep out"
            problems.add((*where, band), sentence, at_key=True)
    total = sum(lane.reserve.values())
    if total >= lane.size:
        sentence = f"{total} of {lane.size} places are reserved, but one at least must be left for all"
        problems.add(where, f"{sentence}: reserve fewer, or raise `size`", at_key=True)


def is_band(name: str, path: Path, rules: ScoreRules, problems: Problems, *, at_key: bool = False) -> bool:
    """Whether a band has this name, exactly as written; a problem at `path` (at its key) says so if none has."""
    names = [band.name for band in rules.bands]
    if name not in names and not problems.within(("scheduling", "bands")):
        problems.add(path, f"there is no band `{name}` under scheduling.bands", at_key=at_key, near=(name, names))
    return name in names


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
        weights=MappingProxyType(dict(entry.weights)),
        priority_min=low,
        priority_max=high,
    )
    if rules.weights and (rules.fairness == "none" or rules.aging_clock == "submit"):
        why = "`fairness: none`" if rules.fairness == "none" else "`aging_clock: submit`"
        warnings.append(f"scheduling.weights changes nothing with {why}: no member has a clock of its own")
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
    elif (rules.fairness, rules.aging_clock) == ("gpu_time", "turn") and distance <= need + LONGEST_REST_POINTS:
        with_rest = f"{sum_of} + a rest of {LONGEST_REST_POINTS:g} = {need + LONGEST_REST_POINTS:g}"
        wider = f"widen by {math.floor(need + LONGEST_REST_POINTS - distance) + 1}"
        sentence = f"{facts}, but with `gpu_time` {with_rest} must be smaller: {wider} or choose `turns`"
        problems.add(("scheduling", "fairness"), sentence)
    elif distance < _COMFORT * need:
        warnings.append(
            f"scheduling: {facts}, less than {_COMFORT} times {need:g} ({sum_of}):"
            " a short wait already lifts a job over a band"
        )
