"""One stored job, and its row. Used by `jobs`, which also gives `StoredJob` to others."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from swaplane.store.rows import RawHeaders, headers_of, headers_text


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """One stored job. Times are unix seconds."""

    id: str
    kind: str  #: "async", "batch" or "background"
    model: str
    member: str
    key_name: str = ""  #: of the API key it came with; empty without one
    priority: int  #: the applied one
    priority_reason: str = ""  #: for people: why it is not the one that was asked for; empty where it is
    band: str
    label: str
    method: str
    target: str  #: path and query at the model's server
    headers: RawHeaders  #: for the server, in order
    client: str  #: host of the client
    submitted_at: float
    max_wait_s: float | None = None  #: since `submitted_at`, as its client wants it; None: as long as it takes
    body_bytes: int = 0  #: of its request; given by the store
    seq: int = 0  #: order of acceptance; given by the store
    key: str | None = None  #: its Idempotency-Key
    fingerprint: str = ""  #: of the request, compared when its key comes again
    webhook: str | None = None  #: URL
    webhook_at: float | None = None  #: when the webhook is to be called; None: not yet, or not any more
    webhook_tries: int = 0  #: how often it was called
    batch: str | None = None
    line: int | None = None
    custom_id: str | None = None
    state: str = "waiting"  #: "waiting", "running" or "ended"
    attempts: int = 0  #: how often it was sent to its model
    server_id: str | None = None  #: at the model's server, of a job that is polled
    outcome: str | None = None
    lane: str = ""
    ran: bool = False
    waited_s: float | None = None
    run_s: float | None = None
    ended_at: float | None = None
    expires_at: float | None = None
    status: int | None = None  #: of the answer
    reason: str = ""
    answer_headers: RawHeaders | None = None
    answer_bytes: int | None = None


_AS_IT_IS = [field.name for field in fields(StoredJob) if field.name not in ("seq", "headers", "answer_headers")]
_COLUMNS = ("seq", "headers", "answer_headers", *_AS_IT_IS)
_values_of = attrgetter(*_AS_IT_IS)

INSERT = f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608 (our names)
INSERT_NEW_KEY = f"{INSERT} ON CONFLICT (key_name, member, key) WHERE key IS NOT NULL DO NOTHING RETURNING seq"


def row_of(job: StoredJob, seq: int | None = None) -> tuple[Any, ...]:
    """What `INSERT` needs; without a `seq` the job is given the next one."""
    return (seq, headers_text(job.headers), headers_text(job.answer_headers), *_values_of(job))


def job_of(row: sqlite3.Row) -> StoredJob:
    """The job in a row."""
    columns = dict(row)
    columns["headers"] = headers_of(columns["headers"])
    columns["answer_headers"] = headers_of(columns["answer_headers"])
    columns["ran"] = bool(columns["ran"])
    return StoredJob(**columns)
