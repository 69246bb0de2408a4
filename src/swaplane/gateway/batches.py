"""OpenAI's batches: make one, look at it, list them, cancel it; and all batches that are not over.

Decides who may make which batch, and at which priority its lines run: at the band `batch`, or lower where the
request asks for it. What becomes of a batch is up to its `BatchRun`. Its endpoints are put into the API by `api`;
`server` restores and closes.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import Query, Request, Response

from swaplane.config.settings import Key
from swaplane.core.score import ScoreRules
from swaplane.gateway.access import ApiRoute, Right, caller_of
from swaplane.gateway.answers import ShuttingDown
from swaplane.gateway.batch_record import BadBatch, Batch, Sender, read_new_batch, stored_batch
from swaplane.gateway.batch_run import BatchRun
from swaplane.gateway.detached import DetachedJobs
from swaplane.gateway.headers import granted, read_own_headers
from swaplane.gateway.openai_files import KEPT_S, OpenAIFiles, page_json
from swaplane.gateway.owned import owner_of
from swaplane.gateway.replies import NotNow, Unknown, json_reply, short_body
from swaplane.runtime import Runtime
from swaplane.store import Store, StoredJob

_REQUEST_BYTES = 1 << 20  # of a request for a batch


class Batches:
    """All batches of one gateway; the endpoints under /v1/batches are its methods."""

    def __init__(self, runtime: Runtime, store: Store, detached: DetachedJobs, files: OpenAIFiles) -> None:
        self._runtime = runtime
        self._store = store
        self._detached = detached
        self._files = files
        self._runs: dict[str, BatchRun] = {}  # those that are not over
        self._tasks: set[asyncio.Task[None]] = set()
        detached.on_ended.append(self._job_ended)

    def __repr__(self) -> str:
        return f"<Batches {len(self._runs)} not over>"

    def routes(self) -> list[ApiRoute]:
        """The endpoints; each is for whoever has the batch."""
        return [
            ApiRoute("POST", "/v1/batches", self.create, Right.MEMBER),
            ApiRoute("GET", "/v1/batches", self.list, Right.MEMBER),
            ApiRoute("GET", "/v1/batches/{batch_id}", self.batch, Right.MEMBER),
            ApiRoute("POST", "/v1/batches/{batch_id}/cancel", self.cancel, Right.MEMBER),
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
        new = read_new_batch(await short_body(request, _REQUEST_BYTES))
        file = await self._files.found(request, new.input_file_id)
        if file.purpose != "batch":
            raise BadBatch(f"the file `{file.id}` was uploaded for `{file.purpose}`; a batch needs one for `batch`")
        now = int(time.time())
        rules, key = self._runtime.dispatcher.rules, caller_of(request.scope).key
        own = read_own_headers(request.headers.raw, rules, caller_of(request.scope))
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
                key=own.key,
                label=own.label,
                priority=_priority(own.priority.requested, rules, key),
                client=request.client.host if request.client else "",
                authorization=request.headers.get("authorization") if key is None else None,
            ),
            output_kept_s=KEPT_S if kept is None else kept.seconds,
        )
        batch.sender.label = batch.sender.label or f"batch={batch.id}"
        await self._store.batches.add(stored_batch(batch, is_open=True))
        self._begin(batch)
        return json_reply(batch.told())

    async def list(
        self, request: Request, after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20
    ) -> Response:
        """The caller's batches, newest first; `after` is the last id of the page before."""
        owner = owner_of(caller_of(request.scope))
        rows, more = await self._store.batches.list(limit=limit, after=after, owner=owner)
        return json_reply(page_json([await self._told(row.id, row.data) for row in rows], more))

    async def batch(self, request: Request, batch_id: str) -> Response:
        """One batch as it is now."""
        return json_reply(await self._found(request, batch_id))

    async def cancel(self, request: Request, batch_id: str) -> Response:
        """End what of a batch has not ended; it has the output of what ran."""
        told = await self._found(request, batch_id)
        run = self._runs.get(batch_id)
        status = told["status"] if run is None else run.batch.status
        if run is not None and status in ("validating", "in_progress"):
            await run.cancel()
        elif status not in ("cancelling", "cancelled"):
            raise NotNow(f"batch `{batch_id}` cannot be cancelled: it is {status}")
        return json_reply(await self._found(request, batch_id))

    async def _found(self, request: Request, batch_id: str) -> dict[str, Any]:
        row = await self._store.batches.get(batch_id)
        if row is None or not caller_of(request.scope).owns(member=row.member, key=row.key_name):
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


def _priority(requested: int | None, rules: ScoreRules, key: Key | None) -> int:
    """The band `batch`, else the lowest one; or what the request asks for, where that is lower or has a tier on it."""
    value = next((band for band in rules.bands if band.name.lower() == "batch"), rules.bands[0]).value
    keeps = requested is not None and (requested < value or rules.split(requested)[0] == value)
    return granted(requested if requested is not None and keeps else value, rules, key)
