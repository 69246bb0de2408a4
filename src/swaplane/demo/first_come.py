"""First come, first served, worked out: what the same jobs would have waited in strict order of arrival.

Pure arithmetic on measured numbers, no I/O and no clock. One job at a time; a model is loaded whenever it is not
the one of the job before. Called by `report` for the column to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job as it was: when it came, what it needed and for how long."""

    at_s: float  #: when it arrived, in seconds since the start
    model: str  #: which model it needs
    run_s: float  #: how long that model worked on it


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCome:
    """What strict order of arrival comes to."""

    waits_s: tuple[float, ...]  #: from arrival to the start of the work, loading included; in the order of the input
    swaps: int  #: how many times a model was loaded
    end_s: float  #: when the last job ends, in seconds since the start


def first_come(jobs: Sequence[Job], load_s: Mapping[str, float]) -> FirstCome:
    """Serve `jobs` strictly in order of arrival; of those that arrive together, as they are listed.

    `load_s` gives each model's load seconds; a model that is not in it loads in no time. Nothing is loaded
    at the start.
    """
    waits = [0.0] * len(jobs)
    free_at = 0.0
    swaps = 0
    resident: str | None = None
    for index in sorted(range(len(jobs)), key=lambda index: jobs[index].at_s):
        job = jobs[index]
        start = max(free_at, job.at_s)
        if job.model != resident:
            start += load_s.get(job.model, 0.0)
            swaps += 1
            resident = job.model
        waits[index] = start - job.at_s
        free_at = start + job.run_s
    return FirstCome(waits_s=tuple(waits), swaps=swaps, end_s=free_at)
