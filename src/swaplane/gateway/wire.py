"""One request's line to its client: the request as it was sent, and an answer written byte for byte.

Decides how an answer is framed for this client and how a broken one is made visible. It does not route, wait or
know models. Made by `front` for each request, which also tells it when its client leaves; used by whatever
answers a model's request.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string

from swaplane.gateway.connection import Framing, RawHeaders

if TYPE_CHECKING:
    from swaplane.gateway.front import FrontProtocol

_LAST_WORDS_S = 0.2  # between the last bytes and a reset, so that they arrive
_COPY_BYTES = 16 * 1024  # longer pieces are written without being copied into their chunk framing
_GATHER_BYTES = 64 * 1024  # what is gathered at most; more would only be copied once more


class Wire:
    """One request, and the way back to its client."""

    def __init__(self, front: FrontProtocol, method: bytes, http_version: str) -> None:
        self.method = method
        self.target: bytes = front.url  #: path and query as sent
        self.raw_headers: RawHeaders = front.raw_headers  #: in order, in their case; trailers are not among them
        self.http_version = http_version  #: "1.1" or "1.0"
        self.client: tuple[str, int] | None = front.client
        self.departed = False  #: the connection was lost before the answer was complete
        self.cycle: RequestResponseCycle  # uvicorn's state of this request; set by the front
        self._front = front
        self._transport = front.transport
        self._on_departure: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._gathered: list[bytes] = []  # written by the next `flush`
        self._gathered_bytes = 0
        self._chunked = False
        self._left: int | None = None  # bytes of body still to come; None: unknown

    def __repr__(self) -> str:
        return f"Wire({self.method.decode()} {self.target.decode('latin-1')} from {self.client})"

    def header(self, name: bytes) -> bytes:
        """The value of the request's first header of this (lower-case) name; empty when there is none."""
        return next((value for key, value in self.raw_headers if key.lower() == name), b"")

    @property
    def writable(self) -> bool:
        """Whether the client's buffer takes more; `write` works regardless."""
        return self.departed or not self._front.flow.write_paused

    @property
    def unsent_bytes(self) -> int:
        """What was written and the client has not taken yet: in our buffer, and in the kernel's.

        The kernel asks for more only once a good part of its own is gone, which takes a slow client minutes.
        """
        fd = self._transport.get_extra_info("socket").fileno()
        (in_kernel,) = struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)))
        return self._transport.get_write_buffer_size() + int(in_kernel)

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        """Call once when the buffer has drained."""
        self._on_writable = callback

    def on_departure(self, callback: Callable[[], None] | None) -> None:
        """Call once when the client leaves before its answer is complete; at once if it has left already."""
        if callback is not None and self.departed:
            callback()
        else:
            self._on_departure = callback

    def start(self, *, status: int, reason: bytes, headers: RawHeaders, framing: Framing) -> None:
        """Write the head: `headers` as they are, plus what framing and keep-alive need.

        With framing "length" `headers` hold the Content-Length. ValueError for line breaks in them.
        """
        cycle = self.cycle
        cycle.response_started, cycle.waiting_for_100_continue = True, False
        if self.departed:
            return
        self._chunked, self._left = False, None
        lines = [b"HTTP/1.1 %d %b" % (status, reason), *map(b": ".join, headers)]
        if self.method == b"HEAD" or status in (204, 304):
            self._left = 0
        elif framing == "length":
            self._left = next(int(value) for name, value in headers if name.lower() == b"content-length")
        elif framing == "none":
            self._left = 0
            lines.append(b"Content-Length: 0")
        elif self.http_version == "1.1":
            self._chunked = True
            lines.append(b"Transfer-Encoding: chunked")
        else:
            cycle.keep_alive = False
        cycle.chunked_encoding = self._chunked
        if not cycle.keep_alive:
            lines.append(b"Connection: close")
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        if head.count(b"\n") != len(lines) + 1 or head.count(b"\r") != len(lines) + 1:
            raise ValueError("a line break inside the reason phrase or a response header")
        if cycle.access_log:
            cycle.access_logger.info(
                '%s - "%s %s HTTP/%s" %d',
                get_client_addr(cycle.scope),
                cycle.scope["method"],
                get_path_with_query_string(cycle.scope),
                cycle.scope["http_version"],
                status,
            )
        self._gathered.append(head)
        self._front.loop.call_soon(self.flush)  # unless a body comes with it

    def write(self, data: bytes) -> None:
        """Write a piece of the body; nothing where there is none (HEAD, 204, 304) or nobody."""
        self.gather(data)
        self.flush()

    def gather(self, data: bytes) -> None:
        """Like `write`, but small pieces wait for `flush`, so that they go out in one system call."""
        if self.departed or not data:
            return
        if self._chunked:
            if len(data) < _COPY_BYTES:
                self._gathered.append(b"%x\r\n%b\r\n" % (len(data), data))
            else:
                self._gathered += (b"%x\r\n" % len(data), data, b"\r\n")
        elif self._left is None:
            self._gathered.append(data)
        elif self._left:
            self._left -= len(data)
            if self._left < 0:
                raise RuntimeError(f"a body {-self._left} bytes longer than its Content-Length")
            self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes > _GATHER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered."""
        gathered = self._gathered
        if gathered and not self.departed:
            self._transport.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))
        gathered.clear()
        self._gathered_bytes = 0

    def finish(self) -> None:
        """End the answer cleanly."""
        if self.departed:
            return
        if self._left:
            self.abort()
            raise RuntimeError(f"a body {self._left} bytes shorter than its Content-Length")
        if self._chunked:
            self._gathered.append(b"0\r\n\r\n")
        self.flush()
        cycle = self.cycle
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive and not cycle.more_body:
            self._transport.close()
        cycle.on_response()

    def abort(self, last: bytes = b"") -> None:
        """End the answer visibly broken, after `last` where the framing has room for it."""
        started, self.cycle.response_started, self.cycle.response_complete = self.cycle.response_started, True, True
        if self.departed:
            return
        self._front.ignore_input()
        if not started:
            self._transport.abort()
        elif self._chunked or self._left is not None:
            # The terminal chunk or the rest of the announced bytes is missing: closing is telling.
            if self._chunked:
                self.gather(last)
            self.flush()
            self._transport.close()
        else:
            # To a client that takes the end of the connection for the end of the body only a reset is telling.
            self.write(last)
            self._front.loop.call_later(_LAST_WORDS_S if last else 0, _reset, self._transport)

    def depart(self) -> None:
        """The connection is lost (called by the front)."""
        if self.cycle.response_complete:
            return
        self.departed = self.cycle.disconnected = True
        self.cycle.message_event.set()
        self._on_writable = None
        callback, self._on_departure = self._on_departure, None
        if callback is not None:
            callback()

    def drained(self) -> None:
        """The client's buffer has room again (called by the front)."""
        callback, self._on_writable = self._on_writable, None
        if callback is not None:
            callback()


def _reset(transport: asyncio.Transport) -> None:
    """Close with a reset in place of an orderly end."""
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.close()
