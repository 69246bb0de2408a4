"""One HTTP/1.1 connection to a model server: the rules of a single exchange.

Decides where an answer ends, whether it came whole, and whether the connection can be used again. It never
looks into a body and knows neither clients nor jobs. Made by `upstream.UpstreamPool`, whose users find all of
the names here in `upstream` too.

An answer passes through these steps: interim answers (1xx) are swallowed; the head is checked and handed
over; the body is handed over piece by piece, without its chunk framing; the end is the return of `exchange`.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncIterator
from typing import ClassVar, Literal, Protocol, cast

import httptools

RawHeaders = list[tuple[bytes, bytes]]
Framing = Literal["length", "chunked", "close", "none"]  # how the end of a body is known; "none": there is no body

IDLE_S = 2.0  # common servers close after 5 s: a request sent at that moment would be lost
IDLE_MARGIN_S = 0.5  # how much earlier than announced by the server a connection is given up
MAX_HEAD_BYTES = 1024 * 1024  # of an answer
PROBE_AFTER_S, PROBE_EVERY_S, PROBES = 30, 10, 3  # TCP keep-alive: a vanished machine is noticed in a minute

_READ_HEADERS = frozenset({len(b"keep-alive"), len(b"content-length"), len(b"transfer-encoding")})


class UpstreamError(Exception):
    """The model server gave no whole answer; its text may name the server's address."""

    discreet: ClassVar[str] = "the model server gave no whole answer"  #: the same for who may not know the address

    def told(self, *, operator: bool) -> str:
        """The sentence for an operator, or for everybody."""
        return str(self) if operator else self.discreet


class UpstreamUnreachable(UpstreamError):  # noqa: N818 (reads as what happened)
    """No connection to the model server; nothing was sent."""

    discreet = "the model server cannot be reached"


class UpstreamBroken(UpstreamError):  # noqa: N818
    """The connection failed, or the answer made no sense, after the request may have arrived."""

    def __init__(self, message: str, *, head_seen: bool) -> None:
        super().__init__(message)
        self.head_seen = head_seen  #: whether the answer's head had been handed over


class BodySource(Protocol):
    """A request body that is already here, in memory or on disk."""

    @property
    def length(self) -> int:
        """Bytes in total."""

    def pieces(self) -> AsyncIterator[bytes]:
        """All bytes in order; called once per request."""


class Exchange(Protocol):
    """What a sink may do to the answer on its way in."""

    def pause(self) -> None:
        """Read no more until `resume`; what has been read still arrives."""

    def resume(self) -> None:
        """Read on."""


class Sink(Protocol):
    """Takes an answer as it comes in. Called from the event loop; must not block or raise."""

    def on_head(self, *, status: int, reason: bytes, headers: RawHeaders, framing: Framing, exchange: Exchange) -> None:
        """The final answer's head, once. Header names and values are as sent."""

    def on_data(self, data: bytes) -> None:
        """A piece of the body."""

    def on_read_end(self) -> None:
        """All that one read from the socket brought has been handed over: the moment to write it on."""


class Connection(asyncio.Protocol):
    """One connection: one request at a time, then perhaps another."""

    def __init__(self, server: str) -> None:
        self._server = server  # in messages: "the model server at host:port"
        self._transport: asyncio.Transport
        self._readable = select.poll()
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[Exception | None] | None = None  # None: no request under way
        self._drained: asyncio.Future[None] | None = None
        self._write_paused = self._read_paused = False
        self.reusable_s = 0.0  #: after an exchange: how long the connection may be kept

    # One exchange

    async def exchange(self, head: bytes, body: BodySource | None, sink: Sink, *, is_head: bool) -> None:
        """Send, receive, return when the answer is whole; every failure closes the connection."""
        self._sink, self._is_head = sink, is_head
        self._head_seen = self._answered = self._extra = False
        self._head_bytes = 0
        self.reusable_s = 0.0
        self._body_sent = body is None
        done = self._done = asyncio.get_running_loop().create_future()
        try:
            if body is None:
                self._transport.write(head)
            else:
                await self._send(head, body, done)
            error = await done
            if error is not None:
                raise error
        except BaseException:
            self._done = None
            self._transport.abort()
            raise
        self._done = None
        # llama.cpp's server announces keep-alive and closes all the same after each streamed answer: a request
        # sent in that moment would be lost, so a connection is used again only after an answer of known length.
        known_length = self._framing in ("length", "none")
        usable = self._keep_alive and self._body_sent and not self._extra and not self._transport.is_closing()
        if known_length and usable:
            self.reusable_s = self._keep_s
            self.resume()
            if is_head:  # the parser still waits for the body that a HEAD's answer announces
                self._parser = httptools.HttpResponseParser(self)

    async def _send(self, head: bytes, body: BodySource, done: asyncio.Future[Exception | None]) -> None:
        async for piece in body.pieces():
            if done.done():  # answered or broken before the whole body was taken
                return
            self._transport.write(head + piece)  # a small request is one system call, and one packet
            head = b""
            if self._write_paused:
                self._drained = asyncio.get_running_loop().create_future()
                await self._drained
        if head:
            self._transport.write(head)
        self._body_sent = not done.done()

    def _finish(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._answered = error is None
            self._done.set_result(error)
            self.resume_writing()

    def _break(self, what: str) -> None:
        if self._done is not None and not self._done.done():
            self._finish(UpstreamBroken(f"{self._server} {what}", head_seen=self._head_seen))

    def pause(self) -> None:
        """See Exchange."""
        if not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """See Exchange."""
        if self._read_paused:
            self._read_paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once, unsent bytes included."""
        self._transport.abort()

    def is_silent(self) -> bool:
        """Whether nothing has arrived since the last answer: bytes, and the end too, mean that it is unusable."""
        return not self._transport.is_closing() and not self._readable.poll(0)

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._readable.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        probe_when_silent(self._transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer; at any other time they make the connection useless."""
        if self._done is None or self._done.done():
            self._transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._break("switched protocols although it was not asked to")
        except httptools.HttpParserCallbackError as error:
            self._finish(error.__context__ if isinstance(error.__context__, Exception) else error)
        except httptools.HttpParserError as error:
            self._keep_alive = False
            self._break(f"sent an answer that is not valid HTTP ({error})")
        if self._head_seen:
            self._sink.on_read_end()
        else:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._break(f"sent more than {MAX_HEAD_BYTES} bytes of headers")

    def eof_received(self) -> None:
        """The server will send no more: the end of an answer that has no other, else a broken one."""
        if self._done is not None and self._head_seen and self._framing == "close":
            self._finish(None)
        self._die()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._die()
        self.resume_writing()

    def _die(self) -> None:
        if self._done is not None:
            self._break("closed the connection " + ("in mid-answer" if self._head_seen else "without an answer"))

    def pause_writing(self) -> None:
        """The server takes no more of the request for now."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """The server takes more, or the request is over."""
        self._write_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # The parser

    def on_message_begin(self) -> None:
        """The first byte of an answer, or of bytes after it that nobody asked for."""
        self._extra = self._answered
        self._reason = b""
        self._headers: RawHeaders = []

    def on_status(self, reason: bytes) -> None:
        """The reason phrase, perhaps in parts; absent when it is empty."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which is dropped."""
        if not self._head_seen:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete: hand it over, unless it is an interim answer's."""
        status = self._parser.get_status_code()
        if self._answered or 100 <= status < 200:
            return
        self._keep_alive = self._parser.should_keep_alive()
        framing = self._read_framing()
        self._framing = "none" if self._is_head or status in (204, 304) else framing
        self._head_seen = True
        self._sink.on_head(
            status=status, reason=self._reason, headers=self._headers, framing=self._framing, exchange=self
        )
        if self._is_head:
            self._finish(None)

    def _read_framing(self) -> Framing:
        """How the body ends; notes how long the server keeps the connection. Raises UpstreamBroken."""
        self._keep_s = IDLE_S
        framing: Framing = "close"
        for name, value in self._headers:
            if len(name) not in _READ_HEADERS:
                continue
            match name.lower():
                case b"content-length":  # the parser sees to it that there is one, and no Transfer-Encoding
                    framing = "length"
                case b"transfer-encoding":
                    framing = "chunked"
                    if value.strip().lower() != b"chunked":
                        what = f"sent Transfer-Encoding {value.decode('latin-1')!r} where only chunked is understood"
                        raise UpstreamBroken(f"{self._server} {what}", head_seen=False)
                case b"keep-alive":
                    self._keep_s = _kept_s(value)
        return framing

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if not self._answered:
            self._sink.on_data(body)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._head_seen:
            self._finish(None)


def _kept_s(keep_alive: bytes) -> float:
    """How long to keep a connection whose server said `Keep-Alive: <this>`."""
    for part in keep_alive.split(b","):
        name, _, value = part.strip().partition(b"=")
        if name.lower() == b"timeout" and value.strip().isdigit():
            return min(IDLE_S, int(value) - IDLE_MARGIN_S)
    return IDLE_S


def probe_when_silent(transport: asyncio.BaseTransport) -> None:
    """Have the kernel find out, while nothing is sent, that the other machine is gone without a word."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
