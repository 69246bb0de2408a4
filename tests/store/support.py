"""Jobs, bodies and what is on disk."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from swaplane.store import Store, StoredJob
from swaplane.store.jobs import INLINE_BYTES

LONG = INLINE_BYTES + 1  #: bytes of the shortest body that is a file


async def open_and_close(folder: Path) -> None:
    """For where it must not open: a store that stays open would keep the test's process from ending."""
    await (await Store.open(folder)).close()


def job(job_id: str, **fields: Any) -> StoredJob:
    """A job like any other."""
    common: dict[str, Any] = {
        "kind": "async",
        "model": "mA",
        "member": "alice",
        "priority": 0,
        "band": "normal",
        "label": "",
        "method": "POST",
        "target": "/v1/chat/completions",
        "headers": [(b"Content-Type", b"application/json")],
        "client": "127.0.0.1",
        "submitted_at": 1000.5,
    }
    return StoredJob(**common | {"id": job_id} | fields)


def body_of(job_id: str, length: int) -> bytes:
    """Bytes that no other job has."""
    seed = hashlib.sha256(job_id.encode()).digest()
    return (seed * (length // len(seed) + 1))[:length]


async def pieces(data: bytes, size: int = 300_000) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def add(store: Store, job_id: str, length: int = 5, **fields: Any) -> StoredJob:
    return await store.jobs.add(job(job_id, **fields), pieces(body_of(job_id, length)), length)


async def end(store: Store, job_id: str, **fields: Any) -> None:
    common: dict[str, Any] = {
        "outcome": "completed",
        "lane": "gpu",
        "ran": True,
        "waited_s": 1.5,
        "run_s": 2.5,
        "ended_at": 2000.0,
        "expires_at": None,
        "status": 200,
        "reason": "OK",
        "answer_headers": None,
        "answer_bytes": None,
    }
    await store.jobs.ended(job_id, **common | fields)


async def stored_body(store: Store, job_id: str) -> bytes:
    content = await store.jobs.body(job_id)
    return content if isinstance(content, bytes) else content.read_bytes()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def differences(a: StoredJob, b: StoredJob) -> set[str]:
    """Names of the fields that differ."""
    return {f.name for f in dataclasses.fields(a) if getattr(a, f.name) != getattr(b, f.name)}
