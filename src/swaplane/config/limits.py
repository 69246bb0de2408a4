"""The limits under `scheduling:`: how much may wait, how long, and how much of the GPU one member may have.

Decides whether the numbers make sense and what bands they name. It counts nothing and refuses no job: that is for
`core`. Called by `load`; the limits of single keys come from `keys`.
"""

from __future__ import annotations

import re
from types import MappingProxyType

from swaplane.config.fields import NO_LIMIT, NUMBER, shown
from swaplane.config.problems import Path, Problems
from swaplane.config.scheduling import is_band
from swaplane.config.schema import AllowanceEntry, SchedulingEntry
from swaplane.core.limits import Allowance, Budget, Limits
from swaplane.core.score import ScoreRules

_GO_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_GO_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)")
_MINUTE_S = 60


def limits_of(entry: SchedulingEntry, rules: ScoreRules, problems: Problems) -> Limits:
    """The limits for everybody; what is wrong becomes problems."""
    where = ("scheduling", "limits", "bands")
    bands = {
        name: allowance(written)
        for name, written in entry.limits.bands.items()
        if is_band(name, (*where, name), rules, problems, at_key=True)
    }
    return Limits(
        total=allowance(entry.limits),
        bands=MappingProxyType(bands),
        member=allowance(entry.limits.member),
        max_wait_s=MappingProxyType(_max_wait_s(entry.max_wait, rules, problems)),
        max_running=entry.max_running_per_member,
        budget=_budget(entry, rules, problems),
    )


def allowance(entry: AllowanceEntry) -> Allowance:
    """What may wait according to one section."""
    return Allowance(jobs=entry.waiting, bytes=entry.waiting_bytes)


def _max_wait_s(written: object, rules: ScoreRules, problems: Problems) -> dict[str, float]:
    """Seconds by band: those written for it, or for all."""
    path = ("scheduling", "max_wait")
    if not isinstance(written, dict):
        seconds = _seconds(written, path, problems)
        return {} if seconds is None else {band.name: seconds for band in rules.bands}
    found = {
        name: _seconds(value, (*path, name), problems)
        for name, value in written.items()
        if is_band(name, (*path, name), rules, problems, at_key=True)
    }
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def _seconds(value: object, path: Path, problems: Problems) -> float | None:
    if value is None or value == NO_LIMIT:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf"):
        return float(value)
    sentence = f"must be a number of seconds greater than 0, or `{NO_LIMIT}`, not {shown(value)}"
    if isinstance(value, str) and NUMBER.fullmatch(value):
        sentence = f"{sentence}: write it without quotes"
    elif isinstance(value, str) and (seconds := _go_seconds(value)):
        sentence = f"{sentence}: write {seconds:.15g}"
    problems.add(path, sentence)
    return None


def _go_seconds(text: str) -> float | None:
    """The seconds of a duration as Go writes it, such as 1h30m; None when it is none."""
    if _GO_PART.sub("", text):
        return None
    return sum(float(number) * _GO_SECONDS[unit] for number, unit in _GO_PART.findall(text))


def _budget(entry: SchedulingEntry, rules: ScoreRules, problems: Problems) -> Budget | None:
    written = entry.interactive_budget
    path = ("scheduling", "interactive_budget")
    if written is None or problems.within(path):
        return None
    band = written.band or rules.bands[-1].name
    where: Path = (*path, "band") if written.band else path
    if written.minutes is None:
        problems.add(path, "`minutes` is missing: the minutes of GPU time that a member may use in an hour")
        return None
    if not is_band(band, where, rules, problems):
        return None
    if band == rules.bands[0].name:
        problems.add(where, f"`{band}` is the lowest band: there is none below it for what is over the budget")
        return None
    return Budget(band=band, gpu_s=written.minutes * _MINUTE_S)
