"""The body of one request: read whole before its job waits, sent on when its turn has come.

Up to 1 MiB stays in memory, more goes to an unnamed temporary file, so that thousands of jobs can wait.
Decides nothing about the content. Nothing here blocks the event loop: the disk is written and read in
threads. Called by the app (read, close), by `model_field` (view, splice) and by the forwarder (pieces).
"""

from __future__ import annotations

import asyncio
import mmap
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from io import FileIO
from types import TracebackType
from typing import Any, Self

from swaplane.gateway.errors import BodyNotStored

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

IN_MEMORY = 1 << 20  #: bytes; a longer body goes to disk, and is written there in portions of about this
PIECE = 256 << 10  #: bytes; the longest piece that `Body.pieces` gives


class ClientLeft(Exception):  # noqa: N818 (an event, not a fault)
    """The client went away before its request was whole."""


class Body:
    """A request body of any length, and at most one splice that changes what is sent of it."""

    __slots__ = ("_content", "_patch", "_received", "length")

    def __init__(self, content: bytes | FileIO, length: int) -> None:
        self._content = content
        self._received = length
        self._patch = (0, 0, b"")  # start, end, replacement; this one changes nothing
        self.length = length  #: bytes that `pieces` sends

    def __repr__(self) -> str:
        place = "in memory" if isinstance(self._content, bytes) else "on disk"
        return f"<Body of {self.length} bytes {place}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give back the memory or the disk space; further calls do nothing."""
        if isinstance(self._content, FileIO):
            self._content.close()
        else:
            self._content = b""

    def view(self) -> bytes | mmap.mmap:
        """The body as it was received, for scanning: indexable, sliceable, of its full length.

        A body on disk is mapped, not read; the map lives as long as the caller holds it, also after `close`.
        """
        if isinstance(self._content, bytes):
            return self._content
        return mmap.mmap(self._content.fileno(), self._received, access=mmap.ACCESS_READ)

    def splice(self, start: int, end: int, replacement: bytes) -> None:
        """Send `replacement` in place of the received bytes [start, end), and all others as they came.

        A later splice takes the place of an earlier one: offsets always count in the body as received.
        """
        self._patch = (start, end, replacement)
        self.length = self._received - (end - start) + len(replacement)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The bytes to send, in pieces of at most 256 KiB; may be called again for another attempt.

        Raises OSError when the disk fails.
        """
        start, end, replacement = self._patch
        content = self._content
        if isinstance(content, bytes):
            for piece in _cut(content[:start] + replacement + content[end:]):
                yield piece
            return
        fd = content.fileno()
        async for piece in _read(fd, 0, start):
            yield piece
        for piece in _cut(replacement):
            yield piece
        async for piece in _read(fd, end, self._received):
            yield piece


async def read_body(receive: Receive) -> Body:
    """The whole body of the request behind an ASGI `receive`.

    Raises ClientLeft when the client goes away first, and BodyNotStored when the disk does not take the
    body; neither leaves a file behind.
    """
    data, more = await _next_part(receive)
    if not more and len(data) <= IN_MEMORY:
        return Body(data, len(data))
    held = bytearray(data)  # one buffer, because a client may send single bytes
    while more and len(held) <= IN_MEMORY:
        data, more = await _next_part(receive)
        held += data
    if len(held) <= IN_MEMORY:
        return Body(bytes(held), len(held))
    return await _spool(receive, held, more)


async def _next_part(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeft
    return message.get("body", b""), message.get("more_body", False)


async def _spool(receive: Receive, held: bytearray, more: bool) -> Body:
    """The body on disk: `held` is its beginning, `receive` has the rest if there is `more`."""
    spool = _Spool()
    try:
        while True:
            await spool.append(held)
            if not more:
                return spool.into_body()
            held = bytearray()
            while more and len(held) < IN_MEMORY:
                data, more = await _next_part(receive)
                held += data
    finally:
        spool.abandon()


class _Spool:
    """A temporary file while it is written. It has no name, so it ends with its descriptor."""

    def __init__(self) -> None:
        try:
            # Unbuffered, so the object is the bare descriptor.
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (closed by `abandon` or the Body)
        except OSError as error:
            raise _not_stored(error) from error
        self._length = 0
        self._writing: asyncio.Future[None] | None = None
        self._handed_over = False

    async def append(self, data: bytearray) -> None:
        """Write the data, which is the spool's from now on, in a thread; raises BodyNotStored."""
        # Cancelling the caller does not stop the thread, and closing the file under it could send the rest
        # of the write to whatever is opened next under the same descriptor: `abandon` waits for its end.
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, data))
        try:
            await asyncio.shield(self._writing)
        except OSError as error:
            raise _not_stored(error) from error

    def _write(self, data: bytearray) -> None:
        rest = memoryview(data)
        self._length += len(rest)
        while rest:
            rest = rest[self._file.write(rest) :]

    def into_body(self) -> Body:
        """What was written, as a body that owns the file from now on."""
        self._handed_over = True
        return Body(self._file, self._length)

    def abandon(self) -> None:
        """Close the file as soon as nothing is being written to it, unless a body owns it."""
        if self._handed_over:
            return
        if self._writing is not None and not self._writing.done():
            self._writing.add_done_callback(self._close)
        else:
            self._file.close()

    def _close(self, written: asyncio.Future[None]) -> None:
        if not written.cancelled():
            written.exception()  # nobody else asks how it went
        self._file.close()


def _not_stored(error: OSError) -> BodyNotStored:
    reason = error.strerror or str(error)
    return BodyNotStored(f"the request body is longer than {IN_MEMORY} bytes and could not be kept on disk: {reason}")


def _cut(data: bytes) -> Iterator[bytes]:
    if len(data) <= PIECE:
        if data:
            yield data
        return
    for at in range(0, len(data), PIECE):
        yield data[at : at + PIECE]


async def _read(fd: int, start: int, end: int) -> AsyncIterator[bytes]:
    while start < end:
        piece = await asyncio.to_thread(os.pread, fd, min(PIECE, end - start), start)
        if not piece:
            raise OSError(f"the stored request body ends at byte {start}, before its length of {end}")
        start += len(piece)
        yield piece
