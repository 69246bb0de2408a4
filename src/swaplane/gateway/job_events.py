"""`/api/events`: what becomes of jobs, told as it happens, in the frames that llama-swap's clients read.

Decides who is told what: each reader hears of the jobs that it may see, by the keys that count now, and one that
does not keep up, or whose key is gone, is dropped. The gateway waits for none. The runtime reports every change to
`JobEvents.changed`; `api` serves `follow`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from swaplane.config.settings import Settings
from swaplane.core.outcomes import Outcome
from swaplane.gateway.access import ApiRoute, Caller, Right, caller_of
from swaplane.gateway.errors import go_json
from swaplane.runtime import Runtime
from swaplane.ticket import Ticket

HELD = 1024  #: events that a reader may be behind
HEARTBEAT_S = 15.0  #: between two signs of life where nothing happens, so that proxies keep the connection

_HEADERS = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", "X-Accel-Buffering": "no"}


class _Reader:
    """One reader of the stream."""

    def __init__(self, caller: Caller, settings: Settings) -> None:
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue(HELD)
        self._caller: Caller | None = caller  # None: its key is gone
        self._settings = settings

    def caller(self, settings: Settings) -> Caller | None:
        """Who reads, by the keys that count now; None: somebody who may not read any more."""
        if settings is not self._settings:
            self._settings = settings
            self._caller = None if self._caller is None else self._caller.renewed(settings)
        return self._caller

    def drop(self) -> None:
        """End its stream with what it has not read yet."""
        if self.frames.full():
            self.frames.get_nowait()
        self.frames.put_nowait(None)


class JobEvents:
    """The readers of the stream."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._readers: set[_Reader] = set()
        runtime.watchers.append(self.changed)

    def routes(self) -> list[ApiRoute]:
        """What is served."""
        return [ApiRoute("GET", "/api/events", self.follow, Right.MEMBER)]

    def changed(self, ticket: Ticket, outcome: Outcome | None) -> None:
        """A job has come, has another priority, was sent to its model, has got on there, or (with an outcome) ended."""
        if not self._readers:
            return
        frame = _frame(ticket, outcome)
        job, settings = ticket.job, self._runtime.settings
        for reader in list(self._readers):
            caller = reader.caller(settings)
            if caller is not None and not caller.owns(member=job.member, key=job.key):
                continue
            if caller is None or reader.frames.full():
                self._readers.discard(reader)
                reader.drop()
            else:
                reader.frames.put_nowait(frame)

    async def follow(self, request: Request) -> Response:
        """What becomes of the caller's jobs from now on: `{"type": "job", "data": "<JSON>"}`, one event each."""
        reader = _Reader(caller_of(request.scope), self._runtime.settings)
        return StreamingResponse(self._events(reader), media_type="text/event-stream", headers=_HEADERS)

    async def _events(self, reader: _Reader) -> AsyncIterator[bytes]:
        self._readers.add(reader)
        stopped = asyncio.create_task(self._runtime.stopped.wait())
        frame: asyncio.Task[bytes | None] | None = None
        try:
            yield b": jobs\n\n"
            while not stopped.done():
                frame = asyncio.create_task(reader.frames.get())
                await asyncio.wait([frame, stopped], timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
                if not frame.done():
                    frame.cancel()
                    yield b": nothing new\n\n"
                elif (told := frame.result()) is None:
                    return
                else:
                    yield told
        finally:
            stopped.cancel()
            if frame is not None:
                frame.cancel()
            self._readers.discard(reader)


def _frame(ticket: Ticket, outcome: Outcome | None) -> bytes:
    job = ticket.job
    state = "ended" if outcome is not None else "waiting" if ticket.sent_at is None else "running"
    data = {
        "id": job.id,
        "model": job.model,
        "member": job.member,
        "label": job.label,
        "priority": job.priority,
        "band": ticket.band,
        "state": state,
        "progress": ticket.progress,
        "news": ticket.news,
        "outcome": None if outcome is None else str(outcome),
    }
    event = go_json({"type": "job", "data": go_json(data)})
    return f"event:message\ndata:{event}\n\n".encode("utf-8", "replace")
