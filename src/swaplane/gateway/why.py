"""`/api/jobs/{id}/why`: what a job waits for, or how far it is, in a sentence.

Decides the words. What it waits for is decided by `core.explain`, its progress is what its model's server tells, and
who may ask is decided by `job_lookup.find_job`. Called by `api`.
"""

from __future__ import annotations

import time

from fastapi import Request, Response

from swaplane.core.explain import job_view
from swaplane.gateway.access import ApiRoute, Caller, Right, caller_of
from swaplane.gateway.detached import DetachedJobs
from swaplane.gateway.job_lookup import find_job, unknown_job
from swaplane.gateway.queue_view import POSITIONS_COUNTED, EndedJobJson, ended_json, job_json, seen_by
from swaplane.gateway.replies import json_reply
from swaplane.runtime import Runtime
from swaplane.store import StoredJob
from swaplane.wire import JobJson


class Why:
    """The endpoint."""

    def __init__(self, runtime: Runtime, detached: DetachedJobs) -> None:
        self._runtime = runtime
        self._detached = detached

    def routes(self) -> list[ApiRoute]:
        """What is served."""
        return [ApiRoute("GET", "/api/jobs/{job_id}/why", self.why, Right.MEMBER)]

    async def why(self, request: Request, job_id: str) -> Response:
        """JSON, or plain text for who asks for it: `text` is the answer, the rest is what it is made of."""
        told = await self._told(caller_of(request.scope), job_id)
        if "text/plain" in request.headers.get("accept", ""):
            return Response(f"{told['text']}\n", media_type="text/plain; charset=utf-8")
        return json_reply(told)

    async def _told(self, caller: Caller, job_id: str) -> dict[str, object]:
        found = await find_job(caller, job_id, self._runtime, self._detached)
        now, sight = time.monotonic(), seen_by(caller)
        view = job_view(self._runtime.dispatcher, job_id, now, limit=POSITIONS_COUNTED, sight=sight)
        if view is not None:
            job = job_json(view, self._runtime.ticket(job_id))
            keys = ("id", "state", "position", "ahead", "expected_wait_s", "waited_s", "progress", "reason")
            return {**{key: dict(job)[key] for key in keys}, "text": _live_text(job)}
        if ended := self._runtime.recent.get(job_id):
            shown = ended_json(ended)
            return {"id": job_id, "state": "ended", "outcome": shown["outcome"], "text": _ended_text(shown)}
        if isinstance(found, StoredJob):
            return {"id": job_id, "state": found.state, "outcome": found.outcome, "text": _stored_text(found)}
        raise unknown_job(job_id)


def _live_text(job: JobJson) -> str:
    if job["state"] == "waiting":
        place = "" if job["position"] is None else f" in place {job['position']}"
        return f"Job {job['id']} has waited for {job['waited_s']:.1f} s{place}: {job['reason']}."
    return f"Job {job['id']} waited for {job['waited_s']:.1f} s: {job['reason']}."


def _ended_text(job: EndedJobJson) -> str:
    run = "" if job["run_s"] is None else f" and then ran for {job['run_s']:.1f} s"
    return f"Job {job['id']} waited for {job['waited_s']:.1f} s{run}; it ended as {job['outcome']}."


def _stored_text(stored: StoredJob) -> str:
    if stored.state != "ended":
        return f"Job {stored.id} is stored and not in the queue: it waits behind others of its batch, or for the disk."
    waited = "" if stored.waited_s is None else f" waited for {stored.waited_s:.1f} s and"
    return f"Job {stored.id}{waited} ended as {stored.outcome}."
