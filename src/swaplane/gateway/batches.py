"""OpenAI's batches: make one, look at it, list them, cancel it; and all batches that are not over.

Decides who may make which batch, and at which priority its lines run: at the band `batch`, or lower where the
request asks for it. What becomes of a batch is up to its `BatchRun`. Its endpoints are put into the API by `api`;
`server` restores and closes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Query, Request, Response
from starlette.requests import ClientDisconnect

from swaplane.core.score import ScoreRules
from swaplane.gateway.answers import ShuttingDown
from swaplane.gateway.batch_record import BadBatch, Batch, Sender, read_new_batch, stored_batch
from swaplane.gateway.batch_run import BatchRun
from swaplane.gateway.detached import DetachedJobs
from swaplane.gateway.headers import OwnHeaders, read_own_headers
from swaplane.gateway.openai_files import KEPT_S, page_json, unknown_file
from swaplane.gateway.replies import NotNow, Unknown, json_reply
from swaplane.runtime import Runtime
from swaplane.store import Store, StoredJob

_REQUEST_BYTES = 1 << 20  # of a request for a batch


class Batches:
    """All batches of one gateway; the endpoints under /v1/batches are its methods."""

    def __init__(self, runtime: Runtime, store: Store, detached: DetachedJobs) -> None:
        self._runtime = runtime
        self._store = store
        self._detached = detached
        self._runs: dict[str, BatchRun] = {}  # those that are not over
        self._tasks: set[asyncio.Task[None]] = set()
        detached.on_ended.append(self._job_ended)

    def __repr__(self) -> str:
        return f"<Batches {len(self._runs)} not over>"

    def routes(self) -> list[tuple[str, str, Callable[..., Any]]]:
        """(method, path, endpoint)."""
        return [
            ("POST", "/v1/batches", self.create),
            ("GET", "/v1/batches", self.list),
            ("GET", "/v1/batches/{batch_id}", self.batch),
            ("POST", "/v1/batches/{batch_id}/cancel", self.cancel),
        ]

    async def restore(self) -> None:
        """Go on with what an earlier gateway left; after the detached jobs are restored. Raises StoreError."""
        for row in await self._store.batches.open():
            self._begin(Batch.model_validate_json(row.data))

    async def close(self) -> None:
        """Leave all batches as they are, for the next gateway to go on with."""
        for run in self._runs.values():
            run.give_up()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # The endpoints.

    async def create(self, request: Request) -> Response:
        """Make a batch of an uploaded file; it is checked after the answer."""
        if self._runtime.dispatcher.shutting_down:
            raise ShuttingDown
        try:
            new = read_new_batch(await _short_body(request))
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        file = await self._store.files.get(new.input_file_id)
        if file is None:
            raise unknown_file(new.input_file_id)
        if file.purpose != "batch":
            raise BadBatch(f"the file `{file.id}` was uploaded for `{file.purpose}`; a batch needs one for `batch`")
        now = int(time.time())
        rules = self._runtime.dispatcher.rules
        own = read_own_headers(request.headers.raw, rules)
        kept = new.output_expires_after
        batch = Batch(
            endpoint=new.endpoint,
            input_file_id=file.id,
            completion_window=new.completion_window,
            created_at=now,
            expires_at=now + new.window_s,
            metadata=new.metadata,
            sender=Sender(
                member=own.member,
                label=own.label,
                priority=_priority(own, rules),
                client=request.client.host if request.client else "",
                authorization=request.headers.get("authorization"),
            ),
            output_kept_s=KEPT_S if kept is None else kept.seconds,
        )
        batch.sender.label = batch.sender.label or f"batch={batch.id}"
        await self._store.batches.add(stored_batch(batch, is_open=True))
        self._begin(batch)
        return json_reply(batch.told())

    async def list(self, after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20) -> Response:
        """The batches, newest first; `after` is the last id of the page before."""
        rows, more = await self._store.batches.list(limit=limit, after=after)
        return json_reply(page_json([await self._told(row.id, row.data) for row in rows], more))

    async def batch(self, batch_id: str) -> Response:
        """One batch as it is now."""
        return json_reply(await self._found(batch_id))

    async def cancel(self, batch_id: str) -> Response:
        """End what of a batch has not ended; it has the output of what ran."""
        told = await self._found(batch_id)
        run = self._runs.get(batch_id)
        status = told["status"] if run is None else run.batch.status
        if run is not None and status in ("validating", "in_progress"):
            await run.cancel()
        elif status not in ("cancelling", "cancelled"):
            raise NotNow(f"batch `{batch_id}` cannot be cancelled: it is {status}")
        return json_reply(await self._found(batch_id))

    async def _found(self, batch_id: str) -> dict[str, Any]:
        row = await self._store.batches.get(batch_id)
        if row is None:
            raise Unknown(f"no batch `{batch_id[:100]}` is known: it was never made here, or it ended long ago")
        return await self._told(batch_id, row.data)

    async def _told(self, batch_id: str, stored: str) -> dict[str, Any]:
        run = self._runs.get(batch_id)
        if run is None:
            return Batch.model_validate_json(stored).told()
        counts = await run.counts()
        return {**run.batch.told(), "request_counts": counts.model_dump()}

    # What is not over.

    def _begin(self, batch: Batch) -> None:
        run = BatchRun(batch, runtime=self._runtime, store=self._store, detached=self._detached)
        self._runs[batch.id] = run
        task = asyncio.get_running_loop().create_task(self._run(run), name=batch.id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, run: BatchRun) -> None:
        try:
            await run.run()
        finally:
            del self._runs[run.batch.id]

    def _job_ended(self, job: StoredJob) -> None:
        run = self._runs.get(job.batch) if job.batch is not None else None
        if run is not None:
            run.line_ended()


def _priority(own: OwnHeaders, rules: ScoreRules) -> int:
    """The band `batch`, else the lowest one; or what the request asks for, where that is lower."""
    band = next((band for band in rules.bands if band.name.lower() == "batch"), rules.bands[0])
    value = min(max(band.value, rules.priority_min), rules.priority_max)
    return value if own.priority.requested is None else min(own.priority.applied, value)


async def _short_body(request: Request) -> bytes:
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > _REQUEST_BYTES:
            raise BadBatch(f"the request for a batch is longer than {_REQUEST_BYTES} bytes")
    return data
