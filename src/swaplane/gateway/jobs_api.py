"""`/api/jobs/...`: one job, live or stored; its answer; its cancelling and deleting. And the 202 of a detached job.

Decides how a job is shown, to whom, and when its answer can be had. It runs nothing: it asks the runtime about jobs
that wait or run, and `detached` about stored ones. `api` puts the endpoints in; the app asks `wants_async` and sends
`accepted`. Whose jobs a caller may ask for is up to `job_lookup`.

What may be detached: any request that would become a job of its own, whatever its method, except HEAD, whose answer
has nothing to keep. Where `Prefer: respond-async` cannot be followed (HEAD, websockets, the assets of a page,
requests about a job that a model's server has already, which take no place) it is ignored, as RFC 7240 asks for: the
answer has no `Preference-Applied` then. `wait=N` beside it is ignored too.

An answer whose time is over is deleted with its job, so both are as unknown (404) as a job that never was.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from http import HTTPStatus
from itertools import islice

from fastapi import Request, Response

from swaplane.core.forecast import forecast, lane_grants, run_s
from swaplane.core.state import Grant
from swaplane.gateway.access import ApiRoute, Caller, Right, caller_of
from swaplane.gateway.answers import send_answer
from swaplane.gateway.client_side import ClientSide
from swaplane.gateway.detached import DetachedJobs
from swaplane.gateway.errors import RawHeaders, error_response, go_json
from swaplane.gateway.job_lookup import find_job, shown_job, unknown_job
from swaplane.gateway.queue_view import POSITIONS_COUNTED, detached_json, job_path
from swaplane.gateway.replies import NotNow, Unknown, accept_of, json_reply, raw_reply, recorded
from swaplane.gateway.stored_errand import job_headers
from swaplane.gateway.videos import is_video, waiting_video
from swaplane.runtime import Runtime
from swaplane.store import Store, StoredJob
from swaplane.ticket import Ended, Ticket

LONGEST_RETRY_S = 60  #: what `Retry-After` says at most

_PREFERENCE = re.compile(rb'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')  # up to a comma that is not inside quotes
_ASYNC = re.compile(rb'respond-async[ \t]*(?:=[ \t]*(?:""[ \t]*)?)?', re.IGNORECASE)


def wants_async(raw_headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether one of the request's `Prefer` headers holds `respond-async` (RFC 7240); its parameters say nothing."""
    return any(
        _ASYNC.fullmatch(preference.partition(b";")[0].strip(b" \t"))
        for name, value in raw_headers
        if name.lower() == b"prefer"
        for preference in _PREFERENCE.findall(value)
    )


def accepted(wire: ClientSide, stored: StoredJob, runtime: Runtime) -> None:
    """Tell a client that its job is stored and will be run: 202 with the job's address, also for an earlier one.

    Of a video the answer is one of OpenAI's API besides, so that its clients can go on with it.
    """
    shown = detached_json(runtime, stored) | (waiting_video(stored) if is_video(stored, runtime) else {})
    body = go_json(shown).encode("utf-8", "replace")
    headers: RawHeaders = [
        (b"Content-Type", b"application/json"),
        (b"Content-Length", b"%d" % len(body)),
        (b"Location", job_path(stored).encode("latin-1")),
        (b"Retry-After", b"%d" % retry_after_s(runtime, stored)),
        (b"Preference-Applied", b"respond-async"),
        *job_headers(stored),
    ]
    send_answer(wire, HTTPStatus.ACCEPTED, headers, body)


def retry_after_s(runtime: Runtime, stored: StoredJob) -> int:
    """Seconds after which asking for a stored job again makes sense, between 1 and 60.

    The jobs that would be dispatched before it, each as long as its model's jobs have taken so far; one that runs
    already for longer than that, as long as it has run.
    """
    board, now = runtime.dispatcher, time.monotonic()
    if stored.state == "ended":
        return 1

    def place_s(grant: Grant) -> float:
        return max(run_s(board, grant.job.model), 0.0 if grant.sent_at is None else now - grant.sent_at)

    own = board.grant(stored.id)
    total_s = run_s(board, stored.model) if own is None else place_s(own)
    if stored.id in board.queue:
        lane = board.lanes[board.queue.lane_of(stored.id)]
        total_s += sum(map(place_s, lane_grants(board, lane)))
        for expected in islice(forecast(board, lane, now), POSITIONS_COUNTED):
            if expected.job.id == stored.id or total_s >= LONGEST_RETRY_S:
                break
            total_s += run_s(board, expected.job.model)
        else:  # it stands further back
            return LONGEST_RETRY_S
    return min(max(math.ceil(total_s), 1), LONGEST_RETRY_S)


class JobsApi:
    """The endpoints, each a method that answers one route. A RequestRefused is for `replies.refused` to answer."""

    def __init__(self, runtime: Runtime, store: Store, detached: DetachedJobs) -> None:
        self._runtime = runtime
        self._detached = detached
        self._jobs = store.jobs

    def routes(self) -> list[ApiRoute]:
        """What is served."""
        return [
            ApiRoute("GET", "/api/jobs/{job_id}", self.job, Right.MEMBER),
            ApiRoute("DELETE", "/api/jobs/{job_id}", self.cancel, Right.MEMBER),
            ApiRoute("GET", "/api/jobs/{job_id}/result", self.result, Right.MEMBER),
        ]

    async def job(self, request: Request, job_id: str) -> Response:
        """One job that waits or runs, or how it ended."""
        return json_reply(await shown_job(caller_of(request.scope), job_id, self._runtime, self._detached))

    async def _find(self, caller: Caller, job_id: str) -> StoredJob | Ticket | Ended:
        return await find_job(caller, job_id, self._runtime, self._detached)

    async def cancel(self, request: Request, job_id: str) -> Response:
        """End a job, whether it waits or runs; of a detached one that has ended, delete the answer."""
        found = await self._find(caller_of(request.scope), job_id)
        if not isinstance(found, StoredJob):
            done = self._runtime.cancel(job_id)
        elif found.state != "ended":
            done = await self._detached.cancel(job_id)
        elif found.batch is None:
            done = await self._detached.delete(job_id)
        else:
            raise NotNow(f"job `{job_id}` has ended and belongs to batch `{found.batch}`: it is deleted with that")
        if done:
            return json_reply({"msg": "ok", "id": job_id})
        if ended := self._runtime.recent.get(job_id):
            raise NotNow(f"job `{job_id}` cannot be cancelled: it has ended as {ended.outcome}")
        raise unknown_job(job_id)

    async def result(self, request: Request, job_id: str) -> Response:
        """The answer to a detached job's request, as its model gave it: status, headers and body."""
        stored = await self._find(caller_of(request.scope), job_id)
        if isinstance(stored, Ticket):
            raise Unknown(f"job `{job_id}` is not a detached one: its answer goes to the client that sent it")
        if isinstance(stored, Ended):
            raise _not_kept(job_id)
        if stored.state != "ended":
            return self._not_yet(request, stored)
        if stored.status is None:
            return raw_reply(*self._no_answer(request, stored))
        headers = stored.answer_headers or []
        if not stored.answer_bytes:
            return _bare(stored.status, headers)
        answer = await recorded(self._jobs.answer_path(job_id), stored.status, headers)
        if answer is None:  # deleted since it was looked up
            raise unknown_job(job_id)
        return answer

    def _not_yet(self, request: Request, stored: StoredJob) -> Response:
        wait_s = retry_after_s(self._runtime, stored)
        extra = [(b"Retry-After", b"%d" % wait_s)]
        state = detached_json(self._runtime, stored)["state"]
        words = f"job `{stored.id}` is not over: it is {state}; ask again in {wait_s} s"
        headers, body = error_response(409, words, accept=accept_of(request), code="not_over", extra=extra)
        return raw_reply(409, headers, body)

    def _no_answer(self, request: Request, stored: StoredJob) -> tuple[int, RawHeaders, bytes]:
        words = f"job `{stored.id}` has ended as {stored.outcome}, and its answer could not be kept"
        headers, body = error_response(500, words, accept=accept_of(request), extra=job_headers(stored))
        return 500, headers, body


def _bare(status: int, headers: RawHeaders) -> Response:
    """A recorded answer without a body; a 304 may name the length of one all the same, which cannot be sent."""
    return raw_reply(status, [each for each in headers if each[0].lower() != b"content-length" or each[1] == b"0"], b"")


def _not_kept(job_id: str) -> Unknown:
    why = "it is not a detached one, its time is over, or it is in the output of its batch"
    return Unknown(f"the answer of job `{job_id[:100]}` is not kept (any more): {why}")
