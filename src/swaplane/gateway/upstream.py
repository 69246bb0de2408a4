"""Our own pooled HTTP/1.1 connections to one model server.

Decides when a connection is opened, kept and used again. It never sends a request twice once a byte of it may
have arrived, and does not limit how many requests run side by side: that is the dispatcher's business.
`forward` sends requests with it and takes the answers as callbacks, straight from the socket.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

from swaplane.gateway.connection import (
    IDLE_S,
    BodySource,
    Connection,
    Exchange,
    Framing,
    RawHeaders,
    Sink,
    UpstreamBroken,
    UpstreamError,
    UpstreamUnreachable,
)

__all__ = [
    "BodySource",
    "Exchange",
    "Framing",
    "RawHeaders",
    "Sink",
    "UpstreamBroken",
    "UpstreamError",
    "UpstreamPool",
    "UpstreamUnreachable",
    "connect",
]

CONNECT_TIMEOUT_S = 30.0

_AnyProtocol = TypeVar("_AnyProtocol", bound=asyncio.Protocol)


class UpstreamPool:
    """Connections to one model server; as many as there are requests at a time.

    `base_url` is http(s)://host[:port][/base/path]; ValueError when it is not. Proxy settings of the
    environment are not followed.
    """

    def __init__(self, base_url: str) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"the address of a model server must be http://host:port or https://..., not {base_url!r}")
        self.base_url = base_url
        self.host = url.hostname
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self.tls = ssl.create_default_context() if url.scheme == "https" else None  #: how to verify it; None: plain
        self.base_path = url.path.rstrip("/").encode()  #: what every target is appended to
        self._default_host = url.netloc.rpartition("@")[2].encode()
        self._idle: list[tuple[Connection, float]] = []  # the most recently used last, with its time of expiry
        self._busy = 0
        self._sweep: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"UpstreamPool({self.base_url!r}, {self._busy} busy, {len(self._idle)} idle)"

    async def request(
        self, *, method: bytes, target: bytes, headers: RawHeaders, body: BodySource | None, sink: Sink
    ) -> None:
        """Send one request, hand its answer to `sink`, and return when the answer is whole.

        `target` is appended to the base path; `headers` are sent as they are (plus Host, should it be
        missing). Raises UpstreamUnreachable and UpstreamBroken; errors of `body` and `sink` pass through.
        Cancelling closes the connection at once, which is how the server learns of it.
        """
        lines = [b"%b %b%b HTTP/1.1" % (method, self.base_path, target), *map(b": ".join, headers)]
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        if head.count(b"\n") != len(lines) + 1:
            raise ValueError("a line break inside the request line or a header")
        if b"\r\nhost:" not in head.lower():
            head = head[:-2] + b"Host: %b\r\n\r\n" % self._default_host
        self._busy += 1
        try:
            connection = self._take_idle() or await self._connect()
            await connection.exchange(head, body, sink, is_head=method == b"HEAD")
        finally:
            self._busy -= 1
        if connection.reusable_s > 0:
            self._keep(connection)
        else:
            connection.abort()

    def close(self) -> None:
        """Drop idle connections; running requests go on."""
        for connection, _ in self._idle:
            connection.abort()
        self._idle.clear()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def _take_idle(self) -> Connection | None:
        if not self._idle:
            return None
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection, expiry = self._idle.pop()
            if now < expiry and connection.is_silent():
                return connection
            connection.abort()
        return None

    def _keep(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        self._idle.append((connection, loop.time() + connection.reusable_s))
        if self._sweep is None:
            self._sweep = loop.call_later(IDLE_S, self._drop_expired, loop)

    def _drop_expired(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        expired = [connection for connection, expiry in self._idle if expiry <= now]
        self._idle = [(connection, expiry) for connection, expiry in self._idle if expiry > now]
        for connection in expired:
            connection.abort()
        self._sweep = loop.call_later(IDLE_S, self._drop_expired, loop) if self._idle else None

    async def _connect(self) -> Connection:
        server = server_name(self.host, self.port)
        return await connect(lambda: Connection(server), self.host, self.port, self.tls)


def server_name(host: str, port: int) -> str:
    """How messages call a model server."""
    return f"the model server at {host}:{port}"


async def connect(
    make: Callable[[], _AnyProtocol], host: str, port: int, context: ssl.SSLContext | None
) -> _AnyProtocol:
    """A new connection to a model server; all addresses of `host` are tried. Raises UpstreamUnreachable."""
    server = server_name(host, port)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, protocol = await loop.create_connection(make, host, port, ssl=context)
    except TimeoutError:
        raise UpstreamUnreachable(f"{server} did not accept a connection in {CONNECT_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise UpstreamUnreachable(f"{server} cannot be reached: {error.strerror or error}") from error
    return protocol
