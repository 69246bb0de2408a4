"""The gateway's own questions to a model server: a request with a short answer, or one whose answer goes to a file.

Decides nothing about what is asked or what an answer means. Used by `following` for jobs that go on after their
answer. Requests of clients go through `forward`.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from swaplane.gateway.connection import BodySource, Exchange, Framing, RawHeaders, UpstreamBroken
from swaplane.gateway.upstream import UpstreamPool
from swaplane.store.disk import private

MAX_ANSWER_BYTES = 256 << 20  #: of an answer that is kept in memory: some servers put the video into their JSON
_PORTION = 1 << 20  # bytes written to disk at once


@dataclass(slots=True, kw_only=True)
class Fetched:
    """A server's whole answer."""

    status: int = 0
    reason: bytes = b""
    headers: RawHeaders = field(default_factory=list)
    body: bytes = b""  #: empty where it went to a file
    length: int = 0  #: bytes of the body


class _InMemory:
    """The sink of a short answer."""

    def __init__(self) -> None:
        self.answer = Fetched()
        self._pieces: list[bytes] = []

    def on_head(self, *, status: int, reason: bytes, headers: RawHeaders, framing: Framing, exchange: Exchange) -> None:
        """Take the head."""
        self.answer = Fetched(status=status, reason=reason, headers=headers)

    def on_data(self, data: bytes) -> None:
        """Take a piece. Raises UpstreamBroken when it becomes too much."""
        self.answer.length += len(data)
        if self.answer.length > MAX_ANSWER_BYTES:
            raise UpstreamBroken(
                f"the model server's answer is longer than the {MAX_ANSWER_BYTES} bytes one may have here",
                head_seen=True,
            )
        self._pieces.append(data)

    def on_read_end(self) -> None:
        """Nothing to pass on."""

    def whole(self) -> Fetched:
        self.answer.body = b"".join(self._pieces)
        return self.answer


class _IntoFile:
    """The sink of a long answer; it is read no faster than the disk takes it."""

    def __init__(self, file: BinaryIO) -> None:
        self.answer = Fetched()
        self._file = file
        self._held = bytearray()
        self._writing: asyncio.Task[None] | None = None
        self._failed: BaseException | None = None
        self._exchange: Exchange

    def on_head(self, *, status: int, reason: bytes, headers: RawHeaders, framing: Framing, exchange: Exchange) -> None:
        """Take the head."""
        self.answer = Fetched(status=status, reason=reason, headers=headers)
        self._exchange = exchange

    def on_data(self, data: bytes) -> None:
        """Take a piece. Raises OSError when the disk has not taken the ones before."""
        if self._failed is not None:
            raise self._failed
        self.answer.length += len(data)
        self._held += data

    def on_read_end(self) -> None:
        """Write what came; read no more until it is written."""
        if len(self._held) >= _PORTION and self._writing is None:
            self._exchange.pause()
            self._writing = asyncio.get_running_loop().create_task(self._write())
            self._writing.add_done_callback(self._written)

    def _written(self, writing: asyncio.Task[None]) -> None:
        self._writing = None
        self._failed = None if writing.cancelled() else writing.exception()
        self._exchange.resume()

    async def _write(self) -> None:
        held, self._held = self._held, bytearray()
        await asyncio.to_thread(self._file.write, held)

    async def whole(self) -> Fetched:
        """The answer, when all of it is on disk. Raises OSError."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._failed is not None:
            raise self._failed
        await self._write()
        await asyncio.to_thread(_synced, self._file)
        return self.answer


def _new_file(path: Path) -> BinaryIO:
    return open(path, "xb", opener=private)


def _synced(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


async def fetch(
    pool: UpstreamPool, method: str, target: bytes, *, headers: RawHeaders | None = None, body: BodySource | None = None
) -> Fetched:
    """One request and its answer in memory. Raises UpstreamUnreachable and UpstreamBroken."""
    sink = _InMemory()
    await pool.request(method=method.encode(), target=target, headers=headers or [], body=body, sink=sink)
    return sink.whole()


async def fetch_into(pool: UpstreamPool, target: bytes, path: Path) -> Fetched:
    """GET with the answer's body in a new file at `path`, on disk when this returns.

    Raises UpstreamUnreachable, UpstreamBroken and OSError; then there is no such file.
    """
    file = await asyncio.to_thread(_new_file, path)
    try:
        sink = _IntoFile(file)
        try:
            await pool.request(method=b"GET", target=target, headers=[], body=None, sink=sink)
        finally:
            answer = await sink.whole()
    except BaseException:
        await asyncio.to_thread(path.unlink, missing_ok=True)
        raise
    finally:
        file.close()
    return answer
