"""Responses in the background: `POST /v1/responses` with `"background": true`, and what its client asks later.

Decides how such a request is kept as a detached job, and how the job looks as an OpenAI response. The model's
server never hears of it: it is sent `"background": false`. It starts and orders nothing. `app` calls
`find_background` and `Background.accept`; `api` holds the endpoints.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import Request, Response

from swaplane.gateway.access import ApiRoute, Right, caller_of
from swaplane.gateway.body import Body
from swaplane.gateway.detached import DetachedJobs
from swaplane.gateway.errors import RawHeaders, RequestRefused, go_json
from swaplane.gateway.job_answers import CANCELLED, failure_words, parsed, succeeded
from swaplane.gateway.json_scan import View, scan_object
from swaplane.gateway.model_field import ModelField
from swaplane.gateway.passage import Errand
from swaplane.gateway.replies import Unknown, json_reply
from swaplane.store import Store, StoredJob

KIND = "background"  #: of a detached job
PATH = "/v1/responses"  #: of the requests that may ask for it

_IN_THREAD = 128 << 10  # bytes; longer bodies are searched in a thread
_WINDOW = 1 << 20  # bytes searched in one step
_PREFIX = "resp_"
_NAME = b"background"
_TRUE = (b"true", b'"true"', b"1")  # the spellings that tolerant servers take for true

Span = tuple[int, int]  # of a value in a body: the offset of its first byte and the one after its last


class Streamed(RequestRefused):
    """`stream` and `background` are asked for together."""

    def __init__(self) -> None:
        super().__init__("`stream` cannot be combined with `background`; leave one of them out")


class TwiceGiven(RequestRefused):
    """The request says twice whether it is one for the background."""

    def __init__(self) -> None:
        super().__init__("the top-level key `background` is given more than once; give it once")


async def find_background(body: Body) -> Span | None:
    """Where a JSON body says that it is for the background; None where it does not.

    Costs next to nothing for a body without the word. Raises TwiceGiven.
    """
    if body.length > _IN_THREAD:
        return await asyncio.to_thread(background_in, body.view())
    return background_in(body.view())


def background_in(view: View) -> Span | None:
    """The same for the bytes of a body."""
    if not any(_NAME in view[at : at + _WINDOW + len(_NAME)] for at in range(0, len(view), _WINDOW)):
        return None
    members, _ = scan_object(view, frozenset({_NAME}))
    spans = [(start, end) for _, start, end in members if view[start : min(end, start + 8)] in _TRUE]
    if spans and len(members) > 1:
        raise TwiceGiven
    return spans[0] if spans else None


class Background:
    """Detached jobs as OpenAI responses."""

    def __init__(self, detached: DetachedJobs, store: Store) -> None:
        self._detached = detached
        self._jobs = store.jobs

    def routes(self) -> list[ApiRoute]:
        """The endpoints; each is for whoever has the response."""
        return [
            ApiRoute("GET", PATH + "/{response_id}", self.retrieve, Right.MEMBER),
            ApiRoute("DELETE", PATH + "/{response_id}", self.delete, Right.MEMBER),
            ApiRoute("POST", PATH + "/{response_id}/cancel", self.cancel, Right.MEMBER),
        ]

    async def accept(
        self, errand: Errand, field: ModelField, span: Span, *, key: str | None = None, webhook: str | None = None
    ) -> tuple[int, RawHeaders, bytes]:
        """Keep a request whose body says at `span` that it is for the background; what its client is told.

        The body is the one received: the model's name in it is not yet replaced. Raises RequestRefused, also what
        `DetachedJobs.accept` raises.
        """
        if field.stream:
            raise Streamed
        await asyncio.to_thread(_prepare, errand.body, field, span, errand.model.use_model_name)
        # The answer is read here, so it has to come as it is.
        headers = [header for header in errand.headers if header[0].lower() != b"accept-encoding"]
        headers.append((b"Accept-Encoding", b"identity"))
        job = await self._detached.accept(replace(errand, headers=headers), kind=KIND, key=key, webhook=webhook)
        body = await self._view(job)
        return 200, [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))], body

    async def retrieve(self, request: Request, response_id: str, stream: bool = False) -> Response:
        """The response as far as it has come."""
        if stream:
            raise Streamed
        return await self._reply(await self._found(request, response_id))

    async def cancel(self, request: Request, response_id: str) -> Response:
        """End the job, if it has not ended; the response as it is after that."""
        job = await self._found(request, response_id)
        return await self._reply(await self._end(job))

    async def delete(self, request: Request, response_id: str) -> Response:
        """End the job, if it has not ended, and forget the response."""
        job = await self._end(await self._found(request, response_id))
        await self._detached.delete(job.id)
        return json_reply({"id": response_id, "object": "response", "deleted": True})

    async def _found(self, request: Request, response_id: str) -> StoredJob:
        job_id = response_id.removeprefix(_PREFIX)
        job = await self._detached.get(job_id) if job_id != response_id else None
        owns = caller_of(request.scope).owns
        if job is None or job.kind != KIND or not owns(member=job.member, key=job.key_name):
            why = "it was not made in the background, was deleted or has expired"
            raise Unknown(f"no response `{response_id[:100]}` is known: {why}")
        return job

    async def _end(self, job: StoredJob) -> StoredJob:
        """Cancel a job that has not ended; the job as it is then."""
        if job.state != "ended":
            await self._detached.cancel(job.id)
        return await self._detached.get(job.id) or job

    async def _reply(self, job: StoredJob) -> Response:
        return Response(await self._view(job), media_type="application/json")

    async def _view(self, job: StoredJob) -> bytes:
        if job.state != "ended":
            return _json(job, status="queued" if job.state == "waiting" else "in_progress")
        if job.outcome in CANCELLED:
            return _json(job, status="cancelled")
        return await asyncio.to_thread(_ended_json, job, self._jobs.answer_path(job.id))


def _prepare(body: Body, field: ModelField, span: Span, new_name: str) -> None:
    """Have the body sent with `background` false, and with the model's other name if it has one."""
    edits = [(span, b"false")]
    if new_name and field.span is not None:
        edits.append((field.span, json.dumps(new_name).encode()))
    (first, replacement), (last, other) = min(edits), max(edits)
    if first != last:  # one splice over both
        replacement += body.view()[first[1] : last[0]] + other
    body.splice(first[0], last[1], replacement)


def _ended_json(job: StoredJob, answer: Path) -> bytes:
    """An ended job as a response: the model's own, or why there is none. Reads the disk."""
    message = ""
    if succeeded(job):
        try:
            value = parsed(answer.read_bytes())
            if not isinstance(value, dict):
                raise TypeError("it is not an object")
        except (ValueError, TypeError) as error:
            message = f"the model's answer is not a response: {error}"
        except OSError as error:
            message = f"the model's answer cannot be read: {error.strerror or error}"
        else:
            status = value.get("status")
            status = status if status in ("incomplete", "failed") else "completed"
            return _json(job, **{**value, "status": status})
    return _json(job, status="failed", error={"code": "server_error", "message": message or failure_words(job, answer)})


def _json(job: StoredJob, /, **values: Any) -> bytes:
    """A response with these values, and with the least that OpenAI's clients need where they say nothing."""
    response = {
        "created_at": int(job.submitted_at),
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": job.model,
        "output": [],
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        **values,
        "id": _PREFIX + job.id,
        "object": "response",
        "background": True,
    }
    return go_json(response).encode("utf-8", "replace")
