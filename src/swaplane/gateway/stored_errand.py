"""A request as a stored job, and back: its request anew, its body, and where its answer goes.

Decides nothing about jobs. Called by `detached`, and by the answers that speak of a stored job.
"""

from __future__ import annotations

import asyncio
import os
import time
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
from swaplane.gateway.headers import OwnHeaders, Priority
from swaplane.gateway.passage import Errand
from swaplane.gateway.recording import Recording
from swaplane.store import StoredJob
from swaplane.store.jobs import JobTable
from swaplane.ticket import Dropped, Ticket
from swaplane.wire import JOB_HEADER, PRIORITY_HEADER, PRIORITY_REASON_HEADER

INTERRUPTED_WORDS = "the gateway ended while this job ran, and it is not run again; it may have had effects"


def new_job(errand: Errand, job_id: str, rules: ScoreRules) -> StoredJob:
    """A request as a job that has just been submitted without its client; its body is apart."""
    own = errand.own
    return StoredJob(
        id=job_id,
        kind="async",
        model=errand.model.id,
        member=own.member,
        key_name=own.key,
        priority=own.priority.applied,
        priority_reason=own.priority.reason,
        band=rules.band_of(own.priority.applied).name,
        label=own.label,
        method=errand.method.decode("latin-1"),
        target=errand.target.decode("latin-1"),
        headers=errand.headers,
        client=errand.client_host,
        submitted_at=time.time(),
        max_wait_s=own.max_wait_s,
    )


async def opened_body(jobs: JobTable, job_id: str) -> Body:
    """The stored body of a job. Raises StoreError, and OSError when its file is gone."""
    content = await jobs.body(job_id)
    if isinstance(content, bytes):
        return Body(content, len(content))
    file = await asyncio.to_thread(FileIO, content)
    return Body(file, os.fstat(file.fileno()).st_size)


def restored_errand(job: StoredJob, model: ModelSettings, body: Body) -> Errand:
    """The request of a stored job, for this model."""
    return Errand(
        model=model,
        method=job.method.encode("latin-1"),
        target=job.target.encode("latin-1"),
        headers=job.headers,
        client_host=job.client,
        body=body,
        own=_own_headers(job),
    )


def _own_headers(job: StoredJob) -> OwnHeaders:
    """As they counted when the job was accepted, whatever the rules are now."""
    return OwnHeaders(
        priority=Priority(applied=job.priority, requested=None, reason=job.priority_reason),
        member=job.member,
        label=job.label,
        key=job.key_name,
        max_wait_s=job.max_wait_s,
    )


def with_priority_of(ticket: Ticket, job: StoredJob) -> StoredJob:
    """The job with the priority that it has in the queue, which may have been changed there."""
    if ticket.job.priority == job.priority:
        return job
    return replace(job, priority=ticket.job.priority, priority_reason=ticket.priority_reason, band=ticket.band)


def job_headers(job: StoredJob) -> RawHeaders:
    """Our headers of an answer about a stored job that was not sent to its model."""
    headers = [(JOB_HEADER.encode(), job.id.encode()), (PRIORITY_HEADER.encode(), b"%d" % job.priority)]
    if job.priority_reason:
        headers.append((PRIORITY_REASON_HEADER.encode(), job.priority_reason.encode("ascii", "replace")))
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


def tell_not_run(recording: Recording, job: StoredJob, dropped: Dropped) -> None:
    """Answer a job that the gateway itself ended, without its model."""
    accept = recording.header(b"accept")
    if dropped.outcome is Outcome.INTERRUPTED:
        status = 500
        headers, body = error_response(status, INTERRUPTED_WORDS, accept=accept, code="interrupted")
    else:
        status, headers, body = dropped_answer(dropped, accept)
    send_answer(recording, status, headers + job_headers(job), body)
