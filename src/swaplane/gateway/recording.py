"""An answer that is kept while it comes, and played to whoever asks for it, as often as it is asked for.

A `Recording` stands at the client's end of a job whose client may be away: it takes the answer into memory, and
into a file once it is long or when it is to outlive the process. It decides where the bytes are and when the job
has to wait for the disk. It does not know who listens and why: its owner ends it with `depart` when nobody does,
and gives memory and file back with `close`. Made by `keyed` and `detached`; written to by `forward` and `answers`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path

from swaplane.gateway.body import IN_MEMORY, PIECE
from swaplane.gateway.client_side import ClientSide
from swaplane.gateway.connection import Framing, RawHeaders
from swaplane.gateway.forward import STALLED_S
from swaplane.store.disk import private

_log = logging.getLogger(__name__)


class Recording:
    """One answer, as `ClientSide` takes it. With `path` all of its body goes there; see `saved`.

    Without one, a body longer than 1 MiB goes to a temporary file that has no name.
    """

    def __init__(
        self,
        *,
        method: bytes,
        target: bytes,
        raw_headers: RawHeaders,
        client: tuple[str, int] | None,
        path: Path | None = None,
    ) -> None:
        self.method = method
        self.target = target
        self.raw_headers = raw_headers
        self.client = client
        self.departed = False  #: nobody wanted the answer any more before it was over
        self.status: int | None = None  #: None: not answered yet
        self.reason = b""
        self.headers: RawHeaders = []  #: as given to `start`, without those that only frame the answer
        self.framing: Framing = "none"
        self.length = 0  #: bytes of body so far
        self.complete = False  #: it ended cleanly
        self.broken = False  #: it ended otherwise: broken off, departed from, or not kept by the disk
        self.trouble = ""  #: what the disk said, for people; empty when nothing
        self._last_words = b""  # of a broken answer; no part of its body
        self._bodiless = False
        self._tail = bytearray()  # the body from byte `_stored` on
        self._stored = 0  # bytes of body in the file
        self._path = path
        self._file: FileIO | None = None
        self._storing: asyncio.Task[None] | None = None
        self._unsynced = path is not None
        self._on_departure: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._listening: set[asyncio.Event] = set()  # of players, and of who awaits `saved`: there is news
        self._closed = False

    def __repr__(self) -> str:
        state = "complete" if self.complete else "broken" if self.broken else "growing"
        return f"<Recording of {self.method!r} {self.target!r}: {self.status}, {self.length} bytes, {state}>"

    def header(self, name: bytes) -> bytes:
        """The value of the request's first header of this (lower-case) name; empty when there is none."""
        return next((value for key, value in self.raw_headers if key.lower() == name), b"")

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.complete or self.broken

    # As `ClientSide`

    @property
    def writable(self) -> bool:
        """False while more than 1 MiB waits for the disk."""
        return self.over or not self._is_long or len(self._tail) <= IN_MEMORY

    @property
    def unsent_bytes(self) -> int:
        """What waits for the disk, or stays in memory."""
        return len(self._tail)

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        """Call once when the disk has caught up."""
        self._on_writable = callback

    def on_departure(self, callback: Callable[[], None] | None) -> None:
        """Call once when the recording is departed from, or cannot go on; at once if that is so already."""
        if callback is not None and self.departed:
            callback()
        else:
            self._on_departure = callback

    def start(self, *, status: int, reason: bytes, headers: RawHeaders, framing: Framing) -> None:
        """Take the head."""
        if self.over:
            return
        self.status, self.reason, self.headers, self.framing = status, reason, list(headers), framing
        self._bodiless = self.method == b"HEAD" or status in (204, 304)
        self._tell()

    def write(self, data: bytes) -> None:
        """Take a piece of the body; nothing where there is none (HEAD, 204, 304) or nobody."""
        self.gather(data)
        self.flush()

    def gather(self, data: bytes) -> None:
        """Like `write`, but players and the disk hear of it at the next `flush`."""
        if not self.over and not self._bodiless:
            self._tail += data
            self.length += len(data)

    def flush(self) -> None:
        """Pass on what was gathered."""
        self._tell()
        if self._storing is None and self._must_store:
            self._storing = asyncio.get_running_loop().create_task(self._store())

    def finish(self) -> None:
        """The answer has ended cleanly."""
        if self.over:
            return
        if self.framing == "length" and not self._bodiless:
            announced = next(int(value) for name, value in self.headers if name.lower() == b"content-length")
            if self.length != announced:
                self.abort()
                raise RuntimeError(f"a body of {self.length} bytes with a Content-Length of {announced}")
        self.complete = True
        self.flush()

    def abort(self, last: bytes = b"") -> None:
        """The answer has ended broken, after `last` where the framing has room for it."""
        if self.over:
            return
        self.broken, self._last_words = True, last
        self.flush()

    # For its owner

    def depart(self) -> None:
        """Nobody wants the answer any more: what is under way for it ends. Nothing where it is over already."""
        if self.over:
            return
        self.broken = self.departed = True
        callback, self._on_departure = self._on_departure, None
        if callback is not None:
            callback()
        self.flush()
        self._go_on()

    async def saved(self) -> None:
        """Return when the recording is over and on disk, file and folder synced, or `trouble` says why it is not.

        A broken recording leaves what came in its file; one without a status leaves no file.
        """
        news = asyncio.Event()
        self._listening.add(news)
        try:
            while not self.over or self._storing is not None:
                news.clear()
                await news.wait()
        finally:
            self._listening.discard(news)
            self._give_back()

    def close(self) -> None:
        """Give memory and file back as soon as no player needs them; departs where it is not over.

        A named file stays on disk. It cannot be played from now on.
        """
        self.depart()
        self._closed = True
        self._give_back()

    async def play(self, wire: ClientSide, extra: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Answer `wire` with the recording from its beginning, following it to its end while it grows.

        `extra` headers are appended to the recorded ones. Returns early when the client leaves; one that takes
        nothing for 60 s is cut off.
        """
        news, room = asyncio.Event(), asyncio.Event()

        def wake() -> None:
            news.set()
            room.set()

        self._listening.add(news)
        wire.on_departure(wake)
        try:
            await self._play(wire, extra, news, room)
        except OSError as error:
            _log.error("a recorded answer cannot be read back: %r: %s", self, error)
            wire.abort()
        finally:
            wire.on_departure(None)
            wire.on_writable(None)
            self._listening.discard(news)
            self._give_back()

    # Playing

    async def _play(
        self, wire: ClientSide, extra: Sequence[tuple[bytes, bytes]], news: asyncio.Event, room: asyncio.Event
    ) -> None:
        started, played = False, 0
        while not wire.departed:
            news.clear()
            if not started and self.status is not None:
                headers = [*self.headers, *extra]
                wire.start(status=self.status, reason=self.reason, headers=headers, framing=self.framing)
                started = True
            if played < self.length:
                if not wire.writable and not await _has_room(wire, room):
                    wire.abort()
                    return
                piece = await self._piece(played)
                wire.write(piece)
                played += len(piece)
            elif self.complete:
                wire.finish()
                return
            elif self.broken:
                wire.abort(self._last_words)
                return
            else:
                await news.wait()

    async def _piece(self, start: int) -> bytes:
        """Some bytes of the body from `start` on; there are some."""
        if start >= self._stored:
            at = start - self._stored
            piece = bytes(self._tail[at : at + PIECE])
        else:
            piece = await asyncio.to_thread(_read, self._file, min(PIECE, self._stored - start), start)
        if not piece:
            raise OSError(f"nothing is left of it from byte {start} on")
        return piece

    def _tell(self) -> None:
        for news in self._listening:
            news.set()

    # Storing

    @property
    def _is_long(self) -> bool:
        """Whether the body belongs on disk."""
        return self._path is not None or self.length > IN_MEMORY

    @property
    def _must_store(self) -> bool:
        if self.trouble or self.status is None or not self._is_long:
            return False
        return len(self._tail) >= PIECE or (self.over and (self._unsynced or bool(self._tail)))

    async def _store(self) -> None:
        """Write to the disk until it has caught up."""
        try:
            if self._file is None:
                self._file = await asyncio.to_thread(_open, self._path)
            while self._must_store:
                data = bytes(self._tail)
                await asyncio.to_thread(_write, self._file, data)
                # Not before: a player must find every byte in one of the two places.
                del self._tail[: len(data)]
                self._stored += len(data)
                self._go_on()
                if self.over and not self._tail and self._path is not None:
                    await asyncio.to_thread(_sync, self._file, self._path.parent)
                    self._unsynced = False
        except OSError as error:
            self._fail(error)
        finally:
            self._storing = None
            self._tell()
        self._give_back()

    def _fail(self, error: OSError) -> None:
        where = "in a temporary file" if self._path is None else f"in {self._path}"
        self.trouble = f"the answer could not be kept {where}: {error.strerror or error}"
        _log.error("%s", self.trouble)
        self.depart()  # the job would run on for an answer that nobody can have whole
        self.complete, self.broken = False, True

    def _go_on(self) -> None:
        """Let the answer come on if it had to wait."""
        if self.writable:
            callback, self._on_writable = self._on_writable, None
            if callback is not None:
                callback()

    def _give_back(self) -> None:
        if self._closed and not self._listening and self._storing is None:
            self._tail.clear()
            if self._file is not None:
                self._file.close()


async def _has_room(wire: ClientSide, room: asyncio.Event) -> bool:
    """Wait until a client that is behind takes more or leaves; False when it takes nothing for `STALLED_S`."""
    while not wire.writable and not wire.departed:
        room.clear()
        wire.on_writable(room.set)
        unsent_bytes = wire.unsent_bytes
        try:
            async with asyncio.timeout(STALLED_S):
                await room.wait()
        except TimeoutError:
            if not wire.departed and wire.unsent_bytes >= unsent_bytes:
                return False
    return True


def _open(path: Path | None) -> FileIO:
    # Unbuffered, so the object is the bare descriptor.
    if path is None:
        return tempfile.TemporaryFile(buffering=0)
    return open(path, "w+b", buffering=0, opener=private)


def _write(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _read(file: FileIO | None, size: int, start: int) -> bytes:
    if file is None or file.closed:
        raise OSError("the recording is closed")
    return os.pread(file.fileno(), size, start)


def _sync(file: FileIO, folder: Path) -> None:
    os.fsync(file.fileno())
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
