"""A log as an endless HTTP answer: its history, then every piece as it is written.

It ends when the gateway has stopped its models, so that a reader sees them go, and where its reader has lost the
right to read on; Starlette ends it when the client leaves. Called by the log routes of `api`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.responses import StreamingResponse

from swaplane.observe.logs import LogStream, RingLog

#: Browsers must not guess a type, and nginx must not hold the pieces back.
_HEADERS = {"X-Content-Type-Options": "nosniff", "X-Accel-Buffering": "no"}


def log_answer(
    log: RingLog, *, history: bool, allowed: Callable[[], bool], stopped: asyncio.Event
) -> StreamingResponse:
    """The answer that follows `log` until `stopped` is set; it begins with what is kept if `history` is true.

    `allowed` is asked before each piece: a reload may have taken the reader's key away.
    """
    return StreamingResponse(_follow(log, history, allowed, stopped), media_type="text/plain", headers=_HEADERS)


async def _follow(
    log: RingLog, history: bool, allowed: Callable[[], bool], stopped: asyncio.Event
) -> AsyncIterator[bytes]:
    kept = log.history() if history else b""
    stream = log.subscribe()
    closing = asyncio.create_task(_close_at(stopped, stream))
    try:
        if kept:
            yield kept
        async for piece in stream:
            if not allowed():
                return
            yield piece
    finally:
        closing.cancel()
        stream.close()


async def _close_at(stopped: asyncio.Event, stream: LogStream) -> None:
    await stopped.wait()
    stream.close()
