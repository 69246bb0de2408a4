"""A client's websocket, passed on to a model server byte for byte.

Decides nothing about where it goes: it holds back what the client sends until the gateway's app refuses it or
names a server, and then relays both ways, with backpressure both ways. Nothing is decoded, so extensions and
subprotocols are between client and server. Made by `front`, driven by the gateway's app.

As long as the server has not agreed to switch protocols (101) nothing of the client's is passed on: its bytes
could be further requests, which would reach the model without waiting for their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from ssl import SSLContext
from typing import Literal, cast

import httptools

from swaplane.gateway.connection import RawHeaders, probe_when_silent
from swaplane.gateway.upstream import connect

HALF_CLOSED_S = 5.0  # after one side has closed: how long the other may take to close too
MAX_HELD_BYTES = 64 * 1024  # of the client's, before there is a server to take them

EndedBy = Literal["client", "upstream", "cut"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayResult:
    """How a tunnel's life went."""

    status: int | None  #: of the server's answer; 101 when it agreed, None when there was none
    bytes_up: int  #: from the client to the server, without the head
    bytes_down: int  #: from the server to the client, its head included
    ended_by: EndedBy  #: who closed first


class NotSwitched(Exception):  # noqa: N818 (reads as what happened)
    """The server answered a websocket's upgrade with something else, and none of it was passed on."""

    def __init__(self, status: int | None) -> None:
        answer = "nothing in HTTP" if status is None else str(status)
        super().__init__(f"the model's server opened no websocket here: it answered {answer}")


class Tunnel(asyncio.Protocol):
    """The client's side: takes over the connection after the head of its upgrade request."""

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        target: bytes,
        raw_headers: RawHeaders,
        client: tuple[str, int] | None,
        early: bytes = b"",
    ) -> None:
        self.method = b"GET"
        self.target = target  #: path and query as sent
        self.raw_headers = raw_headers  #: in order, in their case
        self.client = client
        self.departed = False  #: the client's connection is lost
        self.switched_only = False  #: whether an answer other than 101 is kept from the client
        self.allowed: Callable[[], bool] | None = None  #: asked before each piece is passed on; False cuts the tunnel
        self.on_close: Callable[[], None] | None = None  #: called when it is lost, whatever the reason
        self._transport = transport
        self._held = bytearray(early)
        self._far: _Far | None = None  # the server's side, once connected
        self._open = True  # neither refused nor relayed to the end nor cut
        self._ended: asyncio.Future[EndedBy] = asyncio.get_running_loop().create_future()
        self._closing: asyncio.TimerHandle | None = None  # one side has closed
        self._on_departure: Callable[[], None] | None = None
        self.bytes_up = 0
        self.bytes_down = 0

    def __repr__(self) -> str:
        return f"Tunnel({self.target.decode('latin-1')} from {self.client}, up {self.bytes_up}, down {self.bytes_down})"

    def on_departure(self, callback: Callable[[], None] | None) -> None:
        """Call once when the client leaves while the tunnel is open; at once if it has left already."""
        if callback is not None and self.departed:
            callback()
        else:
            self._on_departure = callback

    async def refuse(self, status: int, reason: bytes, headers: RawHeaders, body: bytes) -> None:
        """Answer with plain HTTP and close. `headers` hold the Content-Length."""
        if self._open and not self.departed:
            lines = [b"HTTP/1.1 %d %b" % (status, reason)]
            lines += [name + b": " + value for name, value in [*headers, (b"Connection", b"close")]]
            self._transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
            self._transport.close()
        self._open = False

    async def connect_and_relay(self, host: str, port: int, ssl: SSLContext | None, head: bytes) -> RelayResult:
        """Send `head` to the server, relay until one side closes, then close both.

        Raises UpstreamUnreachable while nothing was sent either way: the tunnel can still be refused.
        An answer other than 101 is passed on, and ends the tunnel when it is whole; with `switched_only` none of it
        is, and this raises NotSwitched: the tunnel can still be refused.
        """
        far = await connect(lambda: _Far(self), host, port, ssl)
        refusable = False
        try:
            if self._ended.done():  # cut, or left, while connecting
                return self._result(far)
            self._far = far
            far.send(head)
            await self._ended
            if self.switched_only and not far.switched and self._ended.result() == "upstream":
                self._far, refusable = None, True
                raise NotSwitched(far.status)
            return self._result(far)
        finally:
            if self._closing is not None:
                self._closing.cancel()
            far.abort()  # what the client sent last has had its time to leave
            if not refusable:
                self._open = False
                self._transport.close()

    def cut(self) -> None:
        """End an open tunnel at once, whatever its state."""
        if self._open:
            self._open = False
            self._end("cut")
            self._transport.abort()

    def shutdown(self) -> None:
        """The server goes down (called by uvicorn)."""
        self.cut()

    def _may_pass(self) -> bool:
        if self.allowed is None or self.allowed():
            return True
        self.cut()
        return False

    def _result(self, far: _Far) -> RelayResult:
        ended_by = self._ended.result()
        return RelayResult(status=far.status, bytes_up=self.bytes_up, bytes_down=self.bytes_down, ended_by=ended_by)

    def _end(self, by: EndedBy) -> None:
        if not self._ended.done():
            self._ended.set_result(by)

    def _half_closed(self, by: EndedBy) -> None:
        """One side has closed; when the other has too, or does not in time, the tunnel ends."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().call_later(HALF_CLOSED_S, self._end, by)
            self._closed_first: EndedBy = by
        elif self._closed_first != by:
            self._end(self._closed_first)

    # From the client

    def data_received(self, data: bytes) -> None:
        """The client's bytes: passed on once the server has agreed, held back before."""
        if self._far is not None and self._far.switched:
            if self._may_pass():
                self.bytes_up += len(data)
                self._far.send(data)
            return
        self._held += data
        if len(self._held) > MAX_HELD_BYTES:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The client will send no more."""
        if self._far is None or not self._far.switched:
            return False  # it left before anything came of it
        if not self._far.send_eof():
            return False
        self._half_closed("client")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The client's connection is gone."""
        self.departed = True
        self._end(self._closed_first if self._closing is not None else "client")
        if self.on_close is not None:
            self.on_close()
        callback, self._on_departure = self._on_departure, None
        if callback is not None and self._open:
            callback()

    def pause_writing(self) -> None:
        """The client takes no more for now."""
        if self._far is not None:
            self._far.pause_reading()

    def resume_writing(self) -> None:
        """The client takes more."""
        if self._far is not None:
            self._far.resume_reading()

    # From the server

    def switched(self) -> None:
        """The server agreed: pass on what was held back, and everything from now on."""
        if self._held and self._far is not None and self._may_pass():
            self.bytes_up += len(self._held)
            self._far.send(bytes(self._held))
            self._held.clear()
        self._transport.resume_reading()

    def send(self, data: bytes) -> None:
        """Pass bytes of the server's on to the client."""
        if self._may_pass() and not self._transport.is_closing():
            self.bytes_down += len(data)
            self._transport.write(data)

    def server_closed(self) -> None:
        """The server will send no more."""
        if self._far is not None and self._far.switched and self._transport.can_write_eof():
            if not self._transport.is_closing():
                self._transport.write_eof()
            self._half_closed("upstream")
        else:
            self._end("upstream")

    def server_lost(self) -> None:
        """The connection to the server is gone, or its answer without a switch is whole."""
        self._end(self._closed_first if self._closing is not None else "upstream")

    def pause_reading(self) -> None:
        """The server takes no more for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """The server takes more."""
        self._transport.resume_reading()


class _Far(asyncio.Protocol):
    """The server's side of a tunnel; reads its answer's head to know whether it agreed."""

    def __init__(self, tunnel: Tunnel) -> None:
        self.status: int | None = None
        self.switched = False
        self._tunnel = tunnel
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._withheld = bytearray()  # of its answer, until it is known whether the client may have it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        probe_when_silent(self._transport)

    def send(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def send_eof(self) -> bool:
        """Pass the client's half-close on. False: impossible here (TLS has none)."""
        if self._transport.is_closing() or not self._transport.can_write_eof():
            return False
        self._transport.write_eof()
        return True

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.switched or not self._tunnel.switched_only:
            self._tunnel.send(data)
        else:
            self._withheld += data
        if self.switched:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.switched = True
            if self._withheld:
                self._tunnel.send(bytes(self._withheld))
                self._withheld.clear()
            self._tunnel.switched()
        except httptools.HttpParserError:
            self._tunnel.server_lost()
        if len(self._withheld) > MAX_HELD_BYTES:
            self._tunnel.server_lost()

    def eof_received(self) -> bool:
        self._tunnel.server_closed()
        return self.switched

    def connection_lost(self, exc: Exception | None) -> None:
        self._tunnel.server_lost()
        self._tunnel.resume_reading()

    def pause_writing(self) -> None:
        self._tunnel.pause_reading()

    def resume_writing(self) -> None:
        self._tunnel.resume_reading()

    # The parser, until the server agrees

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self._tunnel.switched_only and self.status >= 200:
            self._tunnel.server_lost()  # its body may have no end

    def on_message_complete(self) -> None:
        if self.status is not None and self.status >= 200:
            self._tunnel.server_lost()
