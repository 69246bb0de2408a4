"""`PATCH /api/jobs/{id}`: a waiting job gets another priority.

Decides who may ask for which: the owner of a job for the one it has or a lower one, an admin for any within the
limits. Where it goes from there is up to the dispatcher. `assembly` puts it into the API.
"""

from __future__ import annotations

import json
from dataclasses import replace

from fastapi import Request, Response

from swaplane.core.score import ScoreRules
from swaplane.gateway.access import ApiRoute, Right, caller_of
from swaplane.gateway.detached import DetachedJobs
from swaplane.gateway.errors import Forbidden, RequestRefused
from swaplane.gateway.headers import parse_priority
from swaplane.gateway.job_lookup import find_job, shown_job
from swaplane.gateway.replies import NotNow, json_reply, short_body
from swaplane.runtime import Runtime
from swaplane.store import StoredJob
from swaplane.ticket import Ended, Ticket

_LONGEST_REQUEST = 1 << 16  # bytes


class JobPriority:
    """The endpoint."""

    def __init__(self, runtime: Runtime, detached: DetachedJobs) -> None:
        self._runtime = runtime
        self._detached = detached

    def routes(self) -> list[ApiRoute]:
        """What is served."""
        return [ApiRoute("PATCH", "/api/jobs/{job_id}", self.change, Right.MEMBER)]

    async def change(self, request: Request, job_id: str) -> Response:
        """Give a job that waits another priority, a number or a band's name; answers with the job."""
        caller, runtime, rules = caller_of(request.scope), self._runtime, self._runtime.dispatcher.rules
        wanted = _wanted(await short_body(request, _LONGEST_REQUEST), rules)
        found = await find_job(caller, job_id, runtime, self._detached)
        ticket = runtime.ticket(job_id)
        if ticket is None or job_id not in runtime.dispatcher.queue:
            raise NotNow(f"the priority of job `{job_id}` cannot be changed: {_not_waiting(found, ticket)}")
        key = next((key for key in runtime.settings.keys if key.name == ticket.job.key), None)
        # The job keeps its key's tier; how high it may go is a matter of who asks now.
        priority = parse_priority([wanted], rules, key and replace(key, max_priority=None))
        if priority.applied > ticket.job.priority and not caller.admin:
            raise Forbidden(
                f"job `{job_id}` has the priority {ticket.job.priority}, which your key may lower only: raising it to "
                f"{priority.applied} needs a key with `admin: true`"
            )
        runtime.set_priority(job_id, priority.applied)
        await self._detached.priority_kept(job_id)
        shown = await shown_job(caller, job_id, runtime, self._detached)
        if priority.adjust_kind is not None:
            runtime.metrics.priority_adjusted(priority.adjust_kind)
            shown["reason"] = f"{shown.get('reason', '')}; priority {priority.reason}".removeprefix("; ")
        return json_reply(shown)


class BadChange(RequestRefused):
    """What a job is to be changed to cannot be read."""


def _wanted(body: bytes, rules: ScoreRules) -> bytes:
    """What the body of a PATCH wants as the priority, as a priority header would say it. Raises BadChange."""
    names = [band.name for band in rules.bands]
    right = f'such as {{"priority": {rules.bands[0].value}}} or {{"priority": "{names[0]}"}}'
    try:
        # Pairs show what is given twice, and numbers stay as they are written.
        document = json.loads(body, object_pairs_hook=tuple, parse_int=str)
        written = body.decode(json.detect_encoding(body))
    except (ValueError, RecursionError):
        raise BadChange(f"the request body is not JSON; send JSON {right}") from None
    if not isinstance(document, tuple) or [name for name, _ in document] != ["priority"]:
        raise BadChange(f"the request body must be a JSON object with the field `priority` and no other, {right}")
    value = document[0][1]
    text = value.encode("utf-8", "replace") if isinstance(value, str) else b""
    if parse_priority([text], rules).adjust_kind == "invalid":
        shown = written.partition(":")[2].rpartition("}")[0].strip()[:100]  # there is but one name in front of it
        raise BadChange(f"`priority` must be a whole number or one of {', '.join(names)}, and is `{shown}`")
    return text


def _not_waiting(found: StoredJob | Ticket | Ended, ticket: Ticket | None) -> str:
    """What a job does that is not in the queue."""
    if ticket is not None:
        return "it runs, or its model loads for it"
    if isinstance(found, Ended) or (isinstance(found, StoredJob) and found.state == "ended"):
        return f"it has ended as {found.outcome}"
    return "it is stored and not in the queue yet: it waits behind others of its batch, or for the disk"
