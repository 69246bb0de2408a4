"""Lanes and jobs as JSON: the answers of `/api/queue` and `/api/jobs/{id}`.

The order and the reasons come from `core.explain`; here they only get their shape. Called by `api`.
"""

from __future__ import annotations

from typing import Literal, TypedDict, cast

from swaplane.core.explain import JobView, LaneView, lane_view
from swaplane.runtime import Runtime
from swaplane.ticket import Ended, Ticket
from swaplane.wire import JobJson, JobState, LaneJson, QueueJson

_DECIMALS = 3  # of seconds and points


class EndedJobJson(TypedDict):
    """One job that is over."""

    id: str
    model: str
    member: str
    label: str
    priority: int
    band: str
    state: Literal["ended"]
    outcome: str
    waited_s: float  #: from its arrival until it was sent to its model, or ended without that
    run_s: float | None  #: how long it occupied its model's server; None when it was never sent there


def queue_json(runtime: Runtime, now: float, *, limit: int) -> QueueJson:
    """All lanes at `now` (seconds of the dispatcher's clock), each with its first `limit` waiting jobs."""
    dispatcher = runtime.dispatcher
    views = (lane_view(dispatcher, lane, now, limit=limit) for lane in dispatcher.lanes.values())
    return {"lanes": [_lane_json(view, runtime) for view in views]}


def _lane_json(view: LaneView, runtime: Runtime) -> LaneJson:
    return {
        "name": view.name,
        "size": view.size,
        "paused": view.paused,
        "resident": list(view.resident),
        "running": [job_json(job, runtime.ticket(job.job.id)) for job in view.running],
        "waiting": [job_json(job, None) for job in view.waiting],
        "waiting_total": view.waiting_total,
    }


def job_json(view: JobView, ticket: Ticket | None) -> JobJson:
    """One job that waits, loads or runs; what its server says of it is on its ticket.

    The score shown is the sum of the terms shown.
    """
    job, score = view.job, view.score
    progress = None if ticket is None else ticket.progress
    done = "" if progress is None else f", {progress:.0f} % done"
    news = "" if ticket is None or not ticket.news else f" ({ticket.news})"
    affinity, aging = round(score.affinity, _DECIMALS), round(score.aging, _DECIMALS)
    return {
        "id": job.id,
        "model": job.model,
        "member": job.member,
        "label": job.label,
        "priority": job.priority,
        "band": view.band,
        "base": score.base,
        "tier_bonus": score.tier_bonus,
        "affinity": affinity,
        "aging": aging,
        "score": round(score.base + score.tier_bonus + affinity + aging, _DECIMALS),
        "waited_s": round(view.waited_s, _DECIMALS),
        "aging_s": round(view.aging_s, _DECIMALS),
        "position": view.position,
        "state": cast("JobState", view.state),
        "reason": view.reason + done + news,
        "progress": progress,
    }


def ended_json(ended: Ended) -> EndedJobJson:
    """One job that is over."""
    job = ended.job
    return {
        "id": job.id,
        "model": job.model,
        "member": job.member,
        "label": job.label,
        "priority": job.priority,
        "band": ended.band,
        "state": "ended",
        "outcome": str(ended.outcome),
        "waited_s": round(ended.waited_s, _DECIMALS),
        "run_s": None if ended.run_s is None else round(ended.run_s, _DECIMALS),
    }
