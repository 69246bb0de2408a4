"""A stored job as what runs it needs it: its request anew, its body, and where its answer goes.

Decides nothing about jobs. Called by `detached`, and by the answers that speak of a stored job.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from io import FileIO
from pathlib import Path

from swaplane.config.settings import ModelSettings
from swaplane.core.outcomes import Outcome
from swaplane.core.score import ScoreRules
from swaplane.gateway.answers import dropped_answer, send_answer
from swaplane.gateway.body import Body
from swaplane.gateway.connection import RawHeaders
from swaplane.gateway.errors import error_response
from swaplane.gateway.headers import OwnHeaders, Priority, read_own_headers
from swaplane.gateway.passage import Errand
from swaplane.gateway.recording import Recording
from swaplane.store import StoredJob
from swaplane.store.jobs import JobTable
from swaplane.ticket import Dropped
from swaplane.wire import JOB_HEADER, PRIORITY_HEADER, PRIORITY_REASON_HEADER

INTERRUPTED_WORDS = "the gateway ended while this job ran, and it is not run again; it may have had effects"


async def opened_body(jobs: JobTable, job_id: str) -> Body:
    """The stored body of a job. Raises StoreError, and OSError when its file is gone."""
    content = await jobs.body(job_id)
    if isinstance(content, bytes):
        return Body(content, len(content))
    file = await asyncio.to_thread(FileIO, content)
    return Body(file, os.fstat(file.fileno()).st_size)


def restored_errand(job: StoredJob, model: ModelSettings, rules: ScoreRules, body: Body) -> Errand:
    """The request of a stored job, for this model."""
    return Errand(
        model=model,
        method=job.method.encode("latin-1"),
        target=job.target.encode("latin-1"),
        headers=job.headers,
        client_host=job.client,
        body=body,
        own=_own_headers(job, rules),
    )


def _own_headers(job: StoredJob, rules: ScoreRules) -> OwnHeaders:
    own = read_own_headers(job.headers, rules)
    # The rules may have changed since; what was accepted stays.
    unchanged = own.priority.applied == job.priority
    priority = own.priority if unchanged else Priority(applied=job.priority, requested=None)
    return replace(own, priority=priority, member=job.member, label=job.label)


def job_headers(job: StoredJob, rules: ScoreRules) -> RawHeaders:
    """Our headers of an answer about a stored job that was not sent to its model."""
    priority = _own_headers(job, rules).priority
    headers = [(JOB_HEADER.encode(), job.id.encode()), (PRIORITY_HEADER.encode(), b"%d" % priority.applied)]
    if priority.reason:
        headers.append((PRIORITY_REASON_HEADER.encode(), priority.reason.encode("ascii", "replace")))
    return headers


def recording_for(job: StoredJob, path: Path) -> Recording:
    """What takes a job's answer down, into the file at `path`."""
    return Recording(
        method=job.method.encode("latin-1"),
        target=job.target.encode("latin-1"),
        raw_headers=job.headers,
        client=(job.client, 0),
        path=path,
    )


def tell_not_run(recording: Recording, job: StoredJob, dropped: Dropped, rules: ScoreRules) -> None:
    """Answer a job that the gateway itself ended, without its model."""
    accept = recording.header(b"accept")
    if dropped.outcome is Outcome.INTERRUPTED:
        status = 500
        headers, body = error_response(status, INTERRUPTED_WORDS, accept=accept, code="interrupted")
    else:
        status, headers, body = dropped_answer(dropped, accept)
    send_answer(recording, status, headers + job_headers(job, rules), body)
