"""One job by its id, for whoever may see it: as it is stored, as it waits or runs, or as it ended.

Decides that a job of somebody else is as unknown as one that never was, in the same words. Changes nothing. Called by
the endpoints below `/api/jobs/`.
"""

from __future__ import annotations

import time

from swaplane.core.explain import job_view
from swaplane.gateway.access import Caller
from swaplane.gateway.detached import DetachedJobs
from swaplane.gateway.queue_view import POSITIONS_COUNTED, detached_json, ended_json, job_json, seen_by
from swaplane.gateway.replies import Unknown
from swaplane.runtime import Runtime
from swaplane.store import StoredJob
from swaplane.ticket import Ended, Ticket


async def find_job(caller: Caller, job_id: str, runtime: Runtime, detached: DetachedJobs) -> StoredJob | Ticket | Ended:
    """A job that the caller may see: as it is stored, else as it waits or runs, else as it ended.

    Raises Unknown, in the same words where there is no such job and where it is somebody else's.
    """
    found = await detached.get(job_id) or runtime.ticket(job_id) or runtime.recent.get(job_id)
    if isinstance(found, StoredJob):
        member, key = found.member, found.key_name
    elif found is not None:
        member, key = found.job.member, found.job.key
    if found is None or not caller.owns(member=member, key=key):
        raise unknown_job(job_id)
    return found


async def shown_job(caller: Caller, job_id: str, runtime: Runtime, detached: DetachedJobs) -> dict[str, object]:
    """A job as `GET /api/jobs/{id}` shows it to this caller. Raises Unknown."""
    found, sight = await find_job(caller, job_id, runtime, detached), seen_by(caller)
    if isinstance(found, StoredJob):
        return detached_json(runtime, found, sight)
    if isinstance(found, Ended):
        return dict(ended_json(found))
    view = job_view(runtime.dispatcher, job_id, time.monotonic(), limit=POSITIONS_COUNTED, sight=sight)
    if view is None:
        raise unknown_job(job_id)
    return dict(job_json(view, found))


def unknown_job(job_id: str) -> Unknown:
    """What is told of an id that stands for no job."""
    return Unknown(f"no job `{job_id[:100]}` is known: it never arrived here, was deleted, or ended long ago")
