"""Lanes and jobs as JSON: the answers of `/api/queue` and `/api/jobs/{id}`, for jobs that are live, over or stored.

The order and the reasons come from `core.explain`; here they get their shape, and of jobs that a caller may not see
what tells whose they are is left out, and the names of models it may not use. Called by `api` and `jobs_api`.
"""

from __future__ import annotations

import time
from typing import Literal, TypedDict, cast

from swaplane.core.events import Job
from swaplane.core.explain import JobView, LaneView, Sight, job_view, lane_view
from swaplane.gateway.access import Caller, caller_with
from swaplane.runtime import Runtime
from swaplane.store import StoredJob
from swaplane.ticket import Ended, Ticket
from swaplane.wire import JobJson, JobState, LaneJson, QueueJson

OTHER = "other"  #: what stands in place of members and models that may not be named

POSITIONS_COUNTED = 100  #: a job further back is told no position: each one costs a comparison of all who wait

_DECIMALS = 3  # of seconds and points


class EndedJobJson(TypedDict):
    """One job that is over."""

    id: str
    model: str
    member: str
    label: str
    key: str  #: name of the API key it came with; empty without one
    priority: int
    band: str
    state: Literal["ended"]
    outcome: str
    waited_s: float  #: from its arrival until it was sent to its model, or ended without that
    run_s: float | None  #: how long it occupied its model's server; None when it was never sent there


def seen_by(caller: Caller) -> Sight:
    """Which jobs a caller may see in full, and which models may be named to it."""

    def sees(job: Job) -> bool:
        return caller.owns(member=job.member, key=job.key)

    return Sight(job=sees, model=caller.may_use)


def queue_json(runtime: Runtime, now: float, caller: Caller, *, limit: int) -> QueueJson:
    """All lanes at `now` (seconds of the dispatcher's clock), each with its first `limit` waiting jobs.

    Of jobs that the caller may not see, it is told that they are there and how they score.
    """
    dispatcher, sight = runtime.dispatcher, seen_by(caller)
    views = (lane_view(dispatcher, lane, now, limit=limit, sight=sight) for lane in dispatcher.lanes.values())
    return {"lanes": [_lane_json(view, runtime, sight) for view in views]}


def _lane_json(view: LaneView, runtime: Runtime, sight: Sight) -> LaneJson:
    def shown(job: JobView) -> JobJson:
        ticket = runtime.ticket(job.job.id)
        return job_json(job, ticket) if sight.job(job.job) else _of_another(job, ticket, sight)

    return {
        "name": view.name,
        "size": view.size,
        "paused": view.paused,
        "resident": [model if sight.model(model) else OTHER for model in view.resident],
        "running": [shown(job) for job in view.running],
        "waiting": [shown(job) for job in view.waiting],
        "waiting_total": view.waiting_total,
    }


def _of_another(view: JobView, ticket: Ticket | None, sight: Sight) -> JobJson:
    """A job that its viewer may not see: what its server says of it may quote the request, so that is left out."""
    shown = job_json(view, ticket, news=False)
    model = shown["model"] if sight.model(shown["model"]) else OTHER
    return {**shown, "id": "", "model": model, "member": OTHER, "label": "", "key": ""}


def job_json(view: JobView, ticket: Ticket | None, *, news: bool = True) -> JobJson:
    """One job that waits, loads or runs; what its server says of it is on its ticket, and told with `news`.

    The score shown is the sum of the terms shown.
    """
    job, score = view.job, view.score
    progress = None if ticket is None else ticket.progress
    done = "" if progress is None else f", {progress:.0f} % done"
    said = f" ({ticket.news})" if news and ticket is not None and ticket.news else ""
    affinity, aging = round(score.affinity, _DECIMALS), round(score.aging, _DECIMALS)
    return {
        "id": job.id,
        "model": job.model,
        "member": job.member,
        "label": job.label,
        "key": job.key,
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
        "ahead": None if view.ahead is None else dict(view.ahead),
        "expected_wait_s": _rounded(view.expected_wait_s),
        "state": cast("JobState", view.state),
        "reason": view.reason + done + said,
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
        "key": job.key,
        "priority": job.priority,
        "band": ended.band,
        "state": "ended",
        "outcome": str(ended.outcome),
        "waited_s": round(ended.waited_s, _DECIMALS),
        "run_s": _rounded(ended.run_s),
    }


def detached_json(runtime: Runtime, stored: StoredJob, sight: Sight | None = None) -> dict[str, object]:
    """A detached job as `/api/jobs/{id}` shows it: like any other job, and what the store knows of it.

    It is told why it waits in terms of what its reader may see; by default that is what its own key shows.
    """
    shown: dict[str, object] = {
        "id": stored.id,
        "model": stored.model,
        "member": stored.member,
        "label": stored.label,
        "key": stored.key_name,
        "priority": stored.priority,
        "band": stored.band,
        "state": stored.state,
        "outcome": stored.outcome,
        "waited_s": _rounded(stored.waited_s),
        "run_s": _rounded(stored.run_s),
    }
    if stored.state != "ended":
        sight = sight or _seen_with_key_of(stored, runtime)
        view = job_view(runtime.dispatcher, stored.id, time.monotonic(), limit=POSITIONS_COUNTED, sight=sight)
        if view is not None:
            shown.update(job_json(view, runtime.ticket(stored.id)))
    return {
        **shown,
        "detached": True,
        "submitted_at": _rounded(stored.submitted_at),
        "attempts": stored.attempts,
        "status": stored.status,
        "result": f"{job_path(stored)}/result",
        "expires_at": _rounded(stored.expires_at),
    }


def _seen_with_key_of(stored: StoredJob, runtime: Runtime) -> Sight:
    """What whoever sent a job may see; of a key that is gone, nothing but the job."""
    keys = runtime.settings.keys
    caller = caller_with(stored.key_name, keys) if stored.key_name or not keys else None
    if caller is None:
        return Sight(job=lambda job: job.id == stored.id, model=lambda _: False)
    return seen_by(caller)


def job_path(stored: StoredJob) -> str:
    """Where a detached job can be asked for."""
    return f"/api/jobs/{stored.id}"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, _DECIMALS)
