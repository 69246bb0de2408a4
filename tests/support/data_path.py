"""Both ends of the gateway's data path for tests: raw clients in front, raw model servers behind.

`serving` puts an ASGI app behind the real front protocol, `RawClient` speaks to it in exact bytes, and
`raw_upstream` is a model's end whose every byte the test writes itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from swaplane.gateway.front import WIRE, FrontProtocol, Wire

WITHIN_S = 20.0  # far longer than anything takes; only a hang reaches it

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


async def soon(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition()` is true."""
    deadline = asyncio.get_running_loop().time() + WITHIN_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"never: {what}"
        await asyncio.sleep(0.002)


async def read_body(receive: Receive) -> bytes | None:
    """A request's whole body; None when the client left first."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message["body"]
        if not message["more_body"]:
            return bytes(body)


class WireApp:
    """An app that answers with a coroutine given the wire and the body; a client that leaves early is noted."""

    def __init__(self, answer: Callable[[Wire, bytes], Awaitable[None]]) -> None:
        self.answer = answer
        self.wires: list[Wire] = []
        self.bodies: list[bytes | None] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wire: Wire = scope["extensions"][WIRE]
        self.wires.append(wire)
        body = await read_body(receive)
        self.bodies.append(body)
        if body is not None:
            await self.answer(wire, body)


@dataclass
class Served:
    port: int
    state: ServerState


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[Served]:
    """Serve `app` on this loop. At the end every request's task must have ended by itself."""
    config = uvicorn.Config(app, http=FrontProtocol, lifespan="off", proxy_headers=False, log_config=None)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: FrontProtocol(config, state, {}), "127.0.0.1", 0)
    try:
        yield Served(server.sockets[0].getsockname()[1], state)
        await soon(lambda: not state.tasks, f"the end of {state.tasks}")
    finally:
        server.close()
        for connection in list(state.connections):
            connection.shutdown()
        for task in list(state.tasks):
            task.cancel()
        await soon(lambda: not state.connections and not state.tasks, "all connections closed")


@dataclass
class Answer:
    status: int
    reason: bytes
    headers: Headers
    body: bytes = b""
    whole: bool = True  #: whether the end of the body came as announced
    chunks: list[bytes] = field(default_factory=list)

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]

    def get(self, name: bytes) -> bytes | None:
        return next(iter(self.all(name)), None)


class RawClient:
    """A client that sends exactly the bytes it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, port: int, *, read_limit: int = 2**16) -> AsyncIterator[RawClient]:
        client = cls(*await asyncio.open_connection("127.0.0.1", port, limit=read_limit))
        try:
            yield client
        finally:
            client.writer.transport.abort()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def ask(self, data: bytes, *, is_head: bool = False) -> Answer:
        self.send(data)
        return await self.answer(is_head=is_head)

    async def answer(self, *, is_head: bool = False) -> Answer:
        """Read one final answer by its framing."""
        async with asyncio.timeout(WITHIN_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            first, *lines = head[:-4].split(b"\r\n")
            version, status, reason = first.split(b" ", 2)
            assert version == b"HTTP/1.1"
            pairs = [line.split(b": ", 1) for line in lines]
            answer = Answer(int(status), reason, [(name, value) for name, value in pairs])
            if is_head or answer.status in (204, 304) or answer.status < 200:
                return answer
            try:
                await self._read_body(answer)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                answer.body += error.partial if isinstance(error, asyncio.IncompleteReadError) else b""
                answer.whole = False
            return answer

    async def _read_body(self, answer: Answer) -> None:
        if (length := answer.get(b"content-length")) is not None:
            answer.body = await self.reader.readexactly(int(length))
        elif answer.get(b"transfer-encoding") == b"chunked":
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                answer.chunks.append(await self.reader.readexactly(size))
                answer.body += answer.chunks[-1]
                assert await self.reader.readexactly(2) == b"\r\n"
            assert await self.reader.readexactly(2) == b"\r\n"
        else:
            while data := await self.reader.read(2**16):
                answer.body += data

    async def rest(self) -> bytes:
        """Everything until the connection ends."""
        async with asyncio.timeout(WITHIN_S):
            return await self.reader.read()

    def leave(self, how: str) -> None:
        """Close: "fin" in order, "rst" with a reset."""
        if how == "rst":
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.close()


class Caller:
    """One connection as a raw model server sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader, self.writer, self.number = reader, writer, number

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def request(self) -> tuple[bytes, bytes]:
        """One request: its head and its body (by Content-Length)."""
        head = await self.head()
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                return head, await self.reader.readexactly(int(line.split(b":")[1]))
        return head, b""

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def gone(self) -> None:
        """Wait for the other side's end."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(2**16):
                pass


class RawUpstream:
    """A model's end: `play` is run for each connection, which is closed when it returns."""

    def __init__(self, play: Callable[[Caller], Awaitable[None]]) -> None:
        self.play = play
        self.port = 0
        self.callers: list[Caller] = []
        self.failures: list[BaseException] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = Caller(reader, writer, len(self.callers))
        self.callers.append(caller)
        try:
            await self.play(caller)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception as error:
            self.failures.append(error)
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def raw_upstream(play: Callable[[Caller], Awaitable[None]]) -> AsyncIterator[RawUpstream]:
    """A model server made of `play`; errors in it fail the test."""
    upstream = RawUpstream(play)
    server = await asyncio.start_server(upstream.accept, "127.0.0.1", 0)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        for caller in upstream.callers:
            caller.writer.transport.abort()
    assert not upstream.failures, upstream.failures


def answering(data: bytes) -> Callable[[Caller], Awaitable[None]]:
    """A server that gives the same bytes to every request on every connection."""

    async def play(caller: Caller) -> None:
        while True:
            await caller.request()
            caller.send(data)

    return play
