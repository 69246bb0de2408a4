"""The logs people read: a bounded history per source, and live streams of what is written.

Decides how much is kept and what a slow reader loses. It must never make a writer wait, and it knows neither
processes nor HTTP. Model processes write their output here; the gateway's log routes and event feed read it.
Writing is safe from any thread; subscribing belongs to an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections import deque
from collections.abc import Callable

HISTORY_BYTES = 100 * 1024
STREAM_BYTES = 256 * 1024  # held for one subscriber that does not read
LONGEST_LINE_BYTES = 8 * 1024  # of a model's output, before it is shown in the shared log unfinished

_LINE_END = re.compile(r"\r\n|\n|\r")


class LogStream:
    """What is written to one log from now on, as an async iterator of bytes; ends after `close()`.

    At most `limit_bytes` wait for the reader. What does not fit is dropped and replaced, in its place, by
    a line `— N bytes dropped —`.
    """

    def __init__(self, log: RingLog, limit_bytes: int) -> None:
        self._log = log
        self._limit_bytes = limit_bytes
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._news = asyncio.Event()
        self._pieces: deque[bytes] = deque()
        self._held_bytes = 0
        self._dropped_bytes = 0  # after the last piece held
        self._closed = False

    def __repr__(self) -> str:
        return f"<LogStream {self._held_bytes} bytes waiting, {self._dropped_bytes} dropped>"

    def __aiter__(self) -> LogStream:
        return self

    async def __anext__(self) -> bytes:
        while True:
            self._news.clear()
            with self._log.lock:
                if self._pieces:
                    piece = self._pieces.popleft()
                    self._held_bytes -= len(piece)
                    return piece
                if self._dropped_bytes:
                    return self._gap()
            if self._closed:
                raise StopAsyncIteration
            await self._news.wait()

    def close(self) -> None:
        """End the stream; the reader still gets what is held."""
        self._closed = True
        self._log.forget(self)
        self._news.set()

    def offer(self, data: bytes) -> None:
        """Take a piece, or count it as dropped. Called by the log, under its lock, from any thread."""
        if self._held_bytes + len(data) > self._limit_bytes:
            self._dropped_bytes += len(data)
        else:
            if self._dropped_bytes:
                self._hold(self._gap())
            self._hold(data)
        if threading.get_ident() == self._thread:
            self._news.set()
        else:
            with contextlib.suppress(RuntimeError):  # the reader's loop is closed: nobody is left to wake
                self._loop.call_soon_threadsafe(self._news.set)

    def _hold(self, data: bytes) -> None:
        self._pieces.append(data)
        self._held_bytes += len(data)

    def _gap(self) -> bytes:
        count, self._dropped_bytes = self._dropped_bytes, 0
        return f"\n— {count} bytes dropped —\n".encode()


class RingLog:
    """The last `limit_bytes` bytes written, and streams of what comes next."""

    def __init__(self, limit_bytes: int = HISTORY_BYTES, *, also: Callable[[bytes], None] | None = None) -> None:
        self.lock = threading.Lock()  #: guards the history and what its streams hold
        self._limit_bytes = limit_bytes
        self._also = also
        self._kept = bytearray()
        self._written_bytes = 0
        self._streams: list[LogStream] = []

    def __repr__(self) -> str:
        return f"<RingLog {len(self._kept)} of {self._limit_bytes} bytes, {len(self._streams)} streams>"

    @property
    def written_bytes(self) -> int:
        """How many bytes were ever written: a position for `tail_lines`."""
        return self._written_bytes

    def write(self, data: bytes) -> None:
        """Append; the oldest bytes beyond the limit are forgotten."""
        if not data:
            return
        with self.lock:
            self._kept += data[-self._limit_bytes :]
            del self._kept[: -self._limit_bytes]
            self._written_bytes += len(data)
            for stream in self._streams:
                stream.offer(data)
        if self._also is not None:
            self._also(data)

    def end_line(self) -> None:
        """End an unfinished last line, so that another writer's output begins on its own."""
        if self._kept and not self._kept.endswith(b"\n"):
            self.write(b"\n")

    def history(self) -> bytes:
        """The bytes kept, oldest first."""
        with self.lock:
            return bytes(self._kept)

    def text(self) -> str:
        """The history as text; bytes that are not UTF-8 become U+FFFD."""
        return self.history().decode(errors="replace")

    def tail_lines(self, count: int, *, since: int = 0) -> list[str]:
        """The last `count` lines that are not blank, of what was written after position `since`."""
        with self.lock:
            fresh = min(self._written_bytes - since, len(self._kept))
            data = bytes(self._kept[len(self._kept) - fresh :])
        lines = [line for line in _LINE_END.split(data.decode(errors="replace")) if line.strip()]
        return lines[-count:]

    def subscribe(self, limit_bytes: int = STREAM_BYTES) -> LogStream:
        """A stream of everything written from now on. Close it when the reader leaves.

        Called right after `history()` on the event loop, nothing is lost or doubled between the two as long
        as writers are on the same loop.
        """
        stream = LogStream(self, limit_bytes)
        with self.lock:
            self._streams.append(stream)
        return stream

    def forget(self, stream: LogStream) -> None:
        """Stop feeding the stream; its `close()` calls this."""
        with self.lock, contextlib.suppress(ValueError):
            self._streams.remove(stream)


class _WholeLines:
    """Passes on whole lines only, so that the lines of several models do not mix in a shared log."""

    def __init__(self, target: RingLog) -> None:
        self._target = target
        self._rest = b""

    def __call__(self, data: bytes) -> None:
        data = self._rest + data
        end = len(data) if len(data) > LONGEST_LINE_BYTES and b"\n" not in data else data.rfind(b"\n") + 1
        self._rest = data[end:]
        self._target.write(data[:end])


class LogHub:
    """All logs of a gateway: its own, each model's, and all models' lines together as they come."""

    def __init__(self, limit_bytes: int = HISTORY_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.proxy = RingLog(limit_bytes)  #: the gateway's own lines
        self.upstream = RingLog(limit_bytes)  #: the lines of all models
        self._models: dict[str, RingLog] = {}

    def __repr__(self) -> str:
        return f"<LogHub proxy, upstream and {len(self._models)} models>"

    def model(self, model_id: str) -> RingLog:
        """The log of one model, made at first use; it lives as long as the hub, across restarts of the model."""
        if model_id not in self._models:
            self._models[model_id] = RingLog(self._limit_bytes, also=_WholeLines(self.upstream))
        return self._models[model_id]

    def get(self, name: str) -> RingLog | None:
        """The log called "proxy" or "upstream" or that of a model that has one; None for any other name."""
        return {"proxy": self.proxy, "upstream": self.upstream}.get(name) or self._models.get(name)
