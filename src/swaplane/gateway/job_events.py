"""`/api/events`: what becomes of jobs, told as it happens, in the frames that llama-swap's clients read.

Decides who is still listened to: a reader that does not keep up is dropped, for the gateway waits for none. The
runtime reports every change to `JobEvents.changed`; `api` serves `follow`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse

from swaplane.core.outcomes import Outcome
from swaplane.gateway.errors import go_json
from swaplane.runtime import Runtime
from swaplane.ticket import Ticket

HELD = 1024  #: events that a reader may be behind
HEARTBEAT_S = 15.0  #: between two signs of life where nothing happens, so that proxies keep the connection

_HEADERS = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", "X-Accel-Buffering": "no"}


class JobEvents:
    """The readers of the stream."""

    def __init__(self, runtime: Runtime) -> None:
        self._stopped = runtime.stopped
        self._readers: set[asyncio.Queue[bytes | None]] = set()
        runtime.watchers.append(self.changed)

    def routes(self) -> list[tuple[str, str, object]]:
        """(method, path, endpoint)."""
        return [("GET", "/api/events", self.follow)]

    def changed(self, ticket: Ticket, outcome: Outcome | None) -> None:
        """A job has come, was sent to its model, has got on there, or (with an outcome) has ended."""
        if not self._readers:
            return
        frame = _frame(ticket, outcome)
        for reader in list(self._readers):
            try:
                reader.put_nowait(frame)
            except asyncio.QueueFull:
                self._readers.discard(reader)
                reader.get_nowait()
                reader.put_nowait(None)

    async def follow(self) -> Response:
        """All that becomes of jobs from now on: `{"type": "job", "data": "<JSON>"}`, one event each."""
        return StreamingResponse(self._events(), media_type="text/event-stream", headers=_HEADERS)

    async def _events(self) -> AsyncIterator[bytes]:
        reader: asyncio.Queue[bytes | None] = asyncio.Queue(HELD)
        self._readers.add(reader)
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            yield b": jobs\n\n"
            while not stopped.done():
                frame = asyncio.create_task(reader.get())
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
            self._readers.discard(reader)


def _frame(ticket: Ticket, outcome: Outcome | None) -> bytes:
    job = ticket.job
    state = "ended" if outcome is not None else "waiting" if ticket.sent_at is None else "running"
    data = {
        "id": job.id,
        "model": job.model,
        "member": job.member,
        "label": job.label,
        "band": ticket.band,
        "state": state,
        "progress": ticket.progress,
        "news": ticket.news,
        "outcome": None if outcome is None else str(outcome),
    }
    event = go_json({"type": "job", "data": go_json(data)})
    return f"event:message\ndata:{event}\n\n".encode("utf-8", "replace")
