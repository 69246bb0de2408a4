"""What the demo ends with: waits per band here against first come, first served, on the same arrivals.

It compares what was measured with `first_come`'s arithmetic and puts both into a table and a JSON document.
It measures nothing itself. Called by `show`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from rich.table import Table

from swaplane.demo.film import Ended
from swaplane.demo.first_come import Job, first_come

_BANDS = ("interactive", "normal", "batch")
HOW_COMPARED = (
    "First come, first served is worked out, not played: the same arrivals, each job's measured run time and each "
    "model's mean measured load time of this run, served strictly in order of arrival, with a load whenever the "
    "model is not the one of the job before. Waits include loading."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """The waits of one band, both ways."""

    count: int  #: jobs that were served
    median_s: float  #: here
    max_s: float  #: here
    first_come_median_s: float  #: in strict order of arrival
    first_come_max_s: float  #: in strict order of arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Here against first come, first served."""

    bands: Mapping[str, Waits]  #: the most urgent band first; bands without a served job are left out
    swaps: int  #: models loaded here
    first_come_swaps: int  #: models loaded in strict order of arrival
    end_s: float  #: when the last job ended here, in seconds since the first arrival
    first_come_end_s: float  #: the same in strict order of arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """How often models were loaded and how long it took, from the gateway's metrics."""

    count: int  #: loads of all models
    mean_s: Mapping[str, float]  #: model -> mean seconds of a load


def read_loads(metrics_text: str) -> Loads:
    """Read the histogram `swaplane_swap_seconds` out of what `GET /metrics` answers."""
    counts: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics_text):
        for sample in family.samples:
            if sample.name == "swaplane_swap_seconds_count":
                counts[sample.labels["model"]] = sample.value
            elif sample.name == "swaplane_swap_seconds_sum":
                seconds[sample.labels["model"]] = sample.value
    means = {model: seconds.get(model, 0.0) / count for model, count in counts.items() if count}
    return Loads(count=round(sum(counts.values())), mean_s=means)


def compare(ended: Sequence[Ended], loads: Loads) -> Comparison:
    """Compare the jobs that were served; those that failed have no run time to compare with."""
    served = [job for job in ended if not job.error]
    jobs = [Job(at_s=job.arrival.at_s, model=job.arrival.model, run_s=job.run_s) for job in served]
    other = first_come(jobs, loads.mean_s)
    bands = {}
    for band in _BANDS:
        here = [job.wait_s for job in served if job.arrival.band == band]
        there = [wait_s for job, wait_s in zip(served, other.waits_s, strict=True) if job.arrival.band == band]
        if here:
            bands[band] = Waits(
                count=len(here),
                median_s=statistics.median(here),
                max_s=max(here),
                first_come_median_s=statistics.median(there),
                first_come_max_s=max(there),
            )
    return Comparison(
        bands=bands,
        swaps=loads.count,
        first_come_swaps=other.swaps,
        end_s=max((job.arrival.at_s + job.wait_s + job.run_s for job in served), default=0.0),
        first_come_end_s=other.end_s,
    )


def comparison_table(comparison: Comparison) -> Table:
    """The comparison for people, at most 80 columns wide."""
    table = Table(
        title="Waits, in seconds: here / first come, first served",
        title_justify="left",
        caption=f"Models loaded: {comparison.swaps} / {comparison.first_come_swaps}. "
        f"All done after {comparison.end_s:.0f} s / {comparison.first_come_end_s:.0f} s.",
        caption_justify="left",
        width=80,
    )
    table.add_column("band")
    for heading in ("jobs", "median", "longest", "FCFS median", "FCFS longest"):
        table.add_column(heading, justify="right")
    for band, waits in comparison.bands.items():
        times = (waits.median_s, waits.max_s, waits.first_come_median_s, waits.first_come_max_s)
        table.add_row(band, str(waits.count), *(f"{time_s:.1f}" for time_s in times))
    return table


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison for programs."""
    return {
        "waits": {
            band: {
                "jobs": waits.count,
                "here": {"median_s": waits.median_s, "max_s": waits.max_s},
                "first_come": {"median_s": waits.first_come_median_s, "max_s": waits.first_come_max_s},
            }
            for band, waits in comparison.bands.items()
        },
        "swaps": {"here": comparison.swaps, "first_come": comparison.first_come_swaps},
        "end_s": {"here": comparison.end_s, "first_come": comparison.first_come_end_s},
    }


def job_json(job: Ended) -> dict[str, Any]:
    """One ended job for programs; a shot's bytes are left out."""
    arrival = job.arrival
    return {
        "job": job.job,
        "at_s": arrival.at_s,
        "band": arrival.band,
        "member": arrival.member,
        "label": arrival.label,
        "model": arrival.model,
        "wait_s": job.wait_s,
        "run_s": job.run_s,
        "says": job.says,
        "error": job.error,
    }
