"""What faces the clients: uvicorn's HTTP protocol, taught to leave bytes as they are.

Decides whether a request is well-formed enough to be served, frames answers, and tells at once when a client
leaves. It does not route, wait or know models. uvicorn makes one `FrontProtocol` per connection
(`http=FrontProtocol`); an ASGI app that wants exact bytes finds its `Wire` in `scope["extensions"][WIRE]`,
reads the body with `receive()` as usual and answers through the wire. Every other app answers with `send()`.

Three things uvicorn's own class does are undone here: header names are kept in their case, the reason phrase
is passed on, and websockets are not terminated but handed over as a `Tunnel` to the app's method `tunnel`.
"""

from __future__ import annotations

import asyncio
import http
import logging
import re
from collections import deque
from typing import Any, Protocol, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from swaplane.gateway.connection import RawHeaders, probe_when_silent
from swaplane.gateway.errors import error_response
from swaplane.gateway.tunnel import Tunnel
from swaplane.gateway.wire import Wire

__all__ = ["MAX_HEAD_BYTES", "TUNNELLED", "WIRE", "FrontProtocol", "Tunnel", "TunnelApp", "Wire"]

WIRE = "swaplane.wire"
MAX_TARGET_BYTES = 65_535  # of a path with its query: what the parser of URLs takes
MAX_HEAD_BYTES = 256 * 1024  # of a request: its target and its headers
TUNNELLED = b"/upstream/"  # websockets are passed on below this path only

#: What stands before the path of a request as it is sent to a proxy; the slash may be missing.
_ABSOLUTE = re.compile(rb"\A[A-Za-z][A-Za-z0-9+.-]*://[^/?]*/?")

_READ_HEADERS = frozenset((b"host", b"expect", b"transfer-encoding"))
_READ_BYTES = 256 * 1024  # the most one read from a socket brings
_MAX_PIPELINED = 16  # requests read ahead on one connection; reading on is what makes a departure visible
_LINGER_S = 1.0  # how long a client may go on sending after a final answer, so that it can read it first

_log = logging.getLogger(__name__)


class TunnelApp(Protocol):
    """The part of the ASGI app object that decides where websockets go."""

    async def tunnel(self, tunnel: Tunnel) -> None:
        """Refuse the tunnel or relay it; it is closed when this returns."""


class FrontProtocol(HttpToolsProtocol):
    """One client connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.raw_headers: RawHeaders = []
        self._wires: deque[Wire] = deque()  # requests without a complete answer, in order of arrival
        self._in_head = False
        self._unfinished_bytes = 0  # read since the head began, while it is not complete
        self._deaf = False  # nothing the client sends counts any more

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        probe_when_silent(transport)

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, _Refusal) else _Refusal(400, f"this is not valid HTTP: {error}"))
        else:
            if self._in_head:
                self._unfinished_bytes += len(data)
                if self._unfinished_bytes > MAX_HEAD_BYTES + _READ_BYTES:
                    self._refuse(_head_too_large())

    def eof_received(self) -> None:
        """The client will send no more: it has left, also when its full buffer would keep the socket open."""
        if self._wires:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, and with it every request without a complete answer."""
        super().connection_lost(exc)
        wires, self._wires = self._wires, deque()
        for wire in wires:
            wire.depart()

    def resume_writing(self) -> None:
        """The client's buffer has drained."""
        super().resume_writing()
        if self._wires:
            self._wires[0].drained()

    def on_response_complete(self) -> None:
        """The oldest request is answered, through its wire or by `send`."""
        wire = self._wires.popleft()
        if wire.cycle.more_body:
            self.server_state.total_requests += 1
            self._linger()
        else:
            super().on_response_complete()

    def ignore_input(self) -> None:
        """Whatever the client sends from now on counts for nothing."""
        self._deaf = True

    def _linger(self) -> None:
        """Close after a final answer; closing while the client still sends would destroy what it has not read."""
        self._deaf = True
        self.flow.resume_reading()
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
            self.loop.call_later(_LINGER_S, self.transport.close)
        else:
            self.transport.close()

    def _refuse(self, refusal: _Refusal) -> None:
        """Answer bytes that are no acceptable request, as far as earlier requests leave room; then close."""
        _log.info("refused a request from %s: %s", self.client, refusal.message)
        self._deaf = True
        broken = self._wires[-1] if self._wires and self._wires[-1].cycle.more_body else None
        if broken is not None and (len(self._wires) > 1 or broken.cycle.response_started):
            self.transport.abort()
        elif broken is None and self._wires:
            self._wires[-1].cycle.keep_alive = False
        else:
            headers, body = error_response(refusal.status, refusal.message)
            lines = [b"HTTP/1.1 %d %b" % (refusal.status, http.HTTPStatus(refusal.status).phrase.encode())]
            lines += [name + b": " + value for name, value in [*headers, (b"Connection", b"close")]]
            self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
            if broken is not None:
                self._wires.clear()
                broken.depart()
            self._linger()

    # The parser

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self.raw_headers = []
        self._in_head = True
        self._unfinished_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer: whoever read the head has decided by then, so trailers are dropped."""
        if self._in_head:
            self.raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete: start the request, unless it wants to upgrade (see `_upgrade`)."""
        self._in_head = False
        if self.url[:1] != b"/":
            self.url = _ABSOLUTE.sub(b"/", self.url)
        http_version = self.parser.get_http_version()
        self._read_head(http_version)
        if self.parser.should_upgrade():
            return
        wire = Wire(self, self.parser.get_method(), http_version)
        self.scope["extensions"] = {WIRE: cast("dict[object, object]", wire)}
        super().on_headers_complete()
        wire.cycle = self.cycle
        self._wires.append(wire)
        if self.flow.read_paused and len(self._wires) < _MAX_PIPELINED:
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        """The request is whole."""
        super().on_message_complete()
        if len(self._wires) < _MAX_PIPELINED:
            self.flow.resume_reading()  # paused at a long body; reading on is what makes a departure visible

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        super().on_url(url)
        if b"#" in url:  # some servers read what is before it, others all
            raise _Refusal(400, "the request's path and query hold a `#`: write it as %23")
        if len(self.url) > MAX_TARGET_BYTES:
            raise _Refusal(414, f"the request's path and query are longer than {MAX_TARGET_BYTES} bytes")

    def _read_head(self, http_version: str) -> None:
        """Do what uvicorn does with headers; refuse what two readers could understand in two ways (_Refusal)."""
        head_bytes, hosts = len(self.url), 0
        for name, value in self.raw_headers:
            head_bytes += len(name) + len(value)
            lowered = name.lower()
            self.headers.append((lowered, value))
            if lowered not in _READ_HEADERS:
                continue
            match lowered:
                case b"host":
                    hosts += 1
                case b"expect":
                    self.expect_100_continue = value.lower() == b"100-continue"
                case b"transfer-encoding":
                    if value.strip().lower() != b"chunked" or http_version == "1.0":
                        raise _Refusal(400, "Transfer-Encoding must be `chunked` alone, and the version HTTP/1.1")
        if head_bytes > MAX_HEAD_BYTES:
            raise _head_too_large()
        if http_version not in ("1.1", "1.0"):
            raise _Refusal(505, f"HTTP/{http_version} is not spoken here; HTTP/1.1 is")
        if hosts > 1:
            raise _Refusal(400, "the Host header must be sent once")

    # Upgrades

    def _should_upgrade(self) -> bool:
        # uvicorn's callbacks ask this of every message that wants to upgrade, and leave it alone on True.
        return True

    def _upgrade(self, rest: bytes) -> None:
        """Handle a complete head that asks for another protocol; `rest` came after it."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(_Refusal(501, "CONNECT is not supported: this is no forward proxy"))
        elif method == b"GET" and self._get_upgrade() == b"websocket":
            self.handle_websocket_upgrade(rest)
        else:
            # Any other offer (h2c, mostly) is declined by serving the request as if it had not been made.
            head = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
            head += [name + b": " + value for name, value in self.raw_headers if name.lower() != b"upgrade"]
            self.data_received(b"\r\n".join(head) + b"\r\n\r\n" + rest)

    def handle_websocket_upgrade(self, rest: bytes = b"") -> None:
        """Hand the connection to the app as a tunnel; `rest` came after the head."""
        app: TunnelApp | None = self.app if hasattr(self.app, "tunnel") else None
        if app is None or not self.url.startswith(TUNNELLED) or self._wires:
            path = TUNNELLED.decode()
            self._refuse(_Refusal(501, f"websockets are served below {path}<model>/ only, one per connection"))
            return
        self.connections.discard(self)
        self._unset_keepalive_if_required()
        tunnel = Tunnel(self.transport, target=self.url, raw_headers=self.raw_headers, client=self.client, early=rest)
        self.connections.add(cast("Any", tunnel))
        tunnel.on_close = lambda: self.connections.discard(cast("Any", tunnel))
        self.transport.set_protocol(tunnel)
        task = self.loop.create_task(_serve_tunnel(app, tunnel))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class _Refusal(Exception):  # noqa: N818
    """A request that is answered by the front itself."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def _head_too_large() -> _Refusal:
    return _Refusal(431, f"the request's headers are larger than {MAX_HEAD_BYTES // 1024} KiB")


async def _serve_tunnel(app: TunnelApp, tunnel: Tunnel) -> None:
    try:
        await app.tunnel(tunnel)
    except Exception:
        _log.exception("a tunnel failed: %r", tunnel)
    finally:
        tunnel.cut()
