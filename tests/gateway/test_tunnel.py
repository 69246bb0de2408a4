from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.typing import Subprotocol

from swaplane.gateway.forward import tunnel_head
from swaplane.gateway.tunnel import MAX_HELD_BYTES, NotSwitched, RelayResult, Tunnel
from swaplane.gateway.upstream import UpstreamUnreachable
from tests.support.data_path import Caller, RawClient, Receive, Scope, Send, raw_upstream, serving, soon
from tests.support.stub_client import free_port

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


UPGRADE = (
    b"GET /upstream/m/ws?a=%20 HTTP/1.1\r\nhOsT: gw\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
AGREED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


class TunnelApp:
    """An app that relays every tunnel to one port, when it is allowed to."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.may_relay = asyncio.Event()
        self.may_relay.set()
        self.tunnels: list[Tunnel] = []
        self.departures: list[str] = []
        self.results: list[RelayResult] = []
        self.switched_only = False
        self.allowed: Callable[[], bool] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("a tunnel is no request")

    async def tunnel(self, tunnel: Tunnel) -> None:
        self.tunnels.append(tunnel)
        tunnel.switched_only, tunnel.allowed = self.switched_only, self.allowed
        tunnel.on_departure(self._left)
        await self.may_relay.wait()
        target = tunnel.target.removeprefix(b"/upstream/m")
        head = tunnel_head(tunnel.raw_headers, target=target, client_host="10.0.0.9")
        try:
            self.results.append(await tunnel.connect_and_relay("127.0.0.1", self.port, None, head))
        except (UpstreamUnreachable, NotSwitched) as error:
            body = str(error).encode()
            await tunnel.refuse(502, b"Bad Gateway", [(b"Content-Length", b"%d" % len(body))], body)

    def _left(self) -> None:
        self.departures.append("left")
        self.may_relay.set()

    async def result(self) -> RelayResult:
        await soon(lambda: self.results, "the end of the relay")
        return self.results.pop()


@contextlib.asynccontextmanager
async def tunnelling_to(port: int) -> AsyncIterator[tuple[TunnelApp, int]]:
    app = TunnelApp(port)
    async with serving(app) as served:
        yield app, served.port


@contextlib.asynccontextmanager
async def between(play: Callable[[Caller], Awaitable[None]]) -> AsyncIterator[tuple[RawClient, TunnelApp]]:
    async with (
        raw_upstream(play) as upstream,
        tunnelling_to(upstream.port) as (app, port),
        RawClient.to(port) as client,
    ):
        yield client, app


async def echo(connection: ServerConnection) -> None:
    with contextlib.suppress(ConnectionClosedError):
        async for message in connection:
            await connection.send(message)
            if message == "bye":
                await connection.close(4001, "as asked")


async def test_a_real_websocket_passes_with_compression_and_subprotocol() -> None:
    async with serve(echo, "127.0.0.1", 0, subprotocols=[Subprotocol("chat")]) as server:
        upstream_port = server.sockets[0].getsockname()[1]
        async with tunnelling_to(upstream_port) as (app, port):
            url = f"ws://127.0.0.1:{port}/upstream/m/ws"
            async with connect(url, subprotocols=[Subprotocol("chat")], proxy=None) as socket:
                assert socket.subprotocol == "chat"
                assert [extension.name for extension in socket.protocol.extensions] == ["permessage-deflate"]
                binary = bytes(range(256)) * 4000
                for message in ("hello", "", "é中", binary):
                    await socket.send(message)
                    assert await socket.recv() == message
                await (await socket.ping())
                await socket.send("bye")
                assert await socket.recv() == "bye"
                with pytest.raises(ConnectionClosedError) as closed:
                    await socket.recv()
                assert closed.value.rcvd is not None
                assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "as asked")
            result = await app.result()
            assert (result.status, result.ended_by) == (101, "upstream")
            assert result.bytes_up > 0
            assert result.bytes_down > 0

            with pytest.raises(InvalidStatus, match="400"):  # the server's own refusal
                await connect(url, proxy=None)
            assert (await app.result()).status == 400

            async with connect(url, subprotocols=[Subprotocol("chat")], proxy=None) as socket:
                await socket.close(4002)
            assert (await app.result()).status == 101
            await soon(lambda: not server.connections, "the end at the server")


async def test_bytes_are_not_touched_either_way() -> None:
    seen: list[bytes] = []

    async def play(caller: Caller) -> None:
        seen.append(await caller.head())
        caller.send(AGREED + b"\x00first")
        seen.append(await caller.reader.readexactly(9))
        caller.send(b"last")

    async with between(play) as (client, app):
        client.send(UPGRADE + b"ear")
        await soon(lambda: app.tunnels, "the tunnel")
        client.send(b"ly\xff\xfe\xfd\xfc")
        assert await client.rest() == AGREED + b"\x00firstlast"
        client.writer.close()
        result = await app.result()
    assert seen == [
        b"GET /ws?a=%20 HTTP/1.1\r\nhOsT: gw\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nX-Forwarded-For: 10.0.0.9\r\n"
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"early\xff\xfe\xfd\xfc",
    ]
    assert result == RelayResult(status=101, bytes_up=9, bytes_down=len(AGREED) + 10, ended_by="upstream")


async def test_a_half_close_is_passed_on() -> None:
    async def play(caller: Caller) -> None:
        await caller.head()
        caller.send(AGREED)
        data = await caller.reader.read()  # until the client's end
        caller.send(b"got " + data)

    async with between(play) as (client, app):
        client.send(UPGRADE)
        await client.reader.readuntil(b"\r\n\r\n")
        client.send(b"all of it")
        client.writer.write_eof()
        assert await client.rest() == b"got all of it"
        assert (await app.result()).ended_by == "client"


async def test_a_server_that_declines_answers_once_and_gets_nothing_else() -> None:
    answer = b"HTTP/1.1 403 No Way \xe9\r\nContent-Length: 2\r\n\r\nno"
    more: list[bytes] = []

    async def play(caller: Caller) -> None:
        await caller.head()
        caller.send(answer)
        more.append(await caller.reader.read())

    async with between(play) as (client, app):
        client.send(UPGRADE + b"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\n\r\n")
        assert await client.rest() == answer
        result = await app.result()
        assert result == RelayResult(status=403, bytes_up=0, bytes_down=len(answer), ended_by="upstream")
        await soon(lambda: more, "the end at the server")
    assert more == [b""]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret", "answered 200"),
        (b"HTTP/1.1 103 Early\r\nX: secret\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsecret", "answered 200"),
        (b"HTTP/1.1 404 Not Found\r\n\r\nsecret without an end", "answered 404"),
        (b"HTTP/1.1 200 OK\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nsecret", "answered 200"),
        (b"secret\r\n\r\n", "nothing in HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nX: secret" + bytes(MAX_HELD_BYTES), "nothing in HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\n" + b"X: secret\r\n" * MAX_HELD_BYTES, "nothing in HTTP"),
    ],
)
async def test_what_is_no_websocket_is_kept_back_where_nothing_else_is_due(answer: bytes, said: str) -> None:
    async def play(caller: Caller) -> None:
        await caller.head()
        caller.send(answer)
        with contextlib.suppress(ConnectionError):
            await caller.reader.read()

    async with between(play) as (client, app):
        app.switched_only = True
        client.send(UPGRADE)
        told = await client.answer()
        assert told.status == 502
        assert said in told.body.decode()
        assert b"secret" not in told.body
        assert await client.rest() == b""


async def test_what_is_a_websocket_passes_where_nothing_else_is_due() -> None:
    async def play(caller: Caller) -> None:
        await caller.head()
        for piece in (AGREED[:20], AGREED[20:] + b"at once"):
            caller.send(piece)
            await caller.writer.drain()
        assert await caller.reader.readexactly(4) == b"held"

    async with between(play) as (client, app):
        app.switched_only = True
        client.send(UPGRADE + b"held")
        assert await client.rest() == AGREED + b"at once"
        assert (await app.result()).bytes_up == 4


@pytest.mark.parametrize("speaker", ["client", "server"])
async def test_nothing_passes_once_it_is_not_allowed(speaker: str) -> None:
    go_on = asyncio.Event()
    got: list[bytes] = []

    async def play(caller: Caller) -> None:
        await caller.head()
        caller.send(AGREED)
        await go_on.wait()
        if speaker == "server":
            caller.send(b"secret")
        got.append(await caller.reader.read())

    async with between(play) as (client, app):
        app.allowed = lambda: not go_on.is_set()
        client.send(UPGRADE)
        assert await client.reader.readexactly(len(AGREED)) == AGREED
        go_on.set()
        if speaker == "client":
            client.send(b"secret")
        assert (await app.result()).ended_by == "cut"
        with contextlib.suppress(ConnectionError):
            assert await client.rest() == b""
        await soon(lambda: got, "the end at the server")
    assert got == [b""]


async def test_websocket_clients_see_a_refusal_and_a_missing_server() -> None:
    async with tunnelling_to(free_port()) as (app, port):
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{port}/upstream/m/ws", proxy=None)
        assert refused.value.response.status_code == 502
        assert b"cannot be reached" in refused.value.response.body
    assert app.departures == []


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_a_client_that_leaves_while_it_waits_is_told_of(how: str) -> None:
    async def play(caller: Caller) -> None:
        await caller.head()

    async with between(play) as (client, app):
        app.may_relay.clear()
        client.send(UPGRADE + b"early")
        await soon(lambda: app.tunnels, "the tunnel")
        client.leave(how)
        await soon(lambda: app.departures, "the departure")
        assert app.tunnels[0].departed
        assert (await app.result()).bytes_down == 0


async def test_a_client_that_leaves_while_relayed_takes_the_servers_end_along() -> None:
    async def play(caller: Caller) -> None:
        await caller.head()
        caller.send(AGREED)
        await caller.gone()
        gone.set()

    gone = asyncio.Event()
    async with between(play) as (client, app):
        client.send(UPGRADE)
        await client.reader.readuntil(b"\r\n\r\n")
        client.leave("rst")
        async with asyncio.timeout(20):
            await gone.wait()
        assert (await app.result()).ended_by == "client"
        assert app.departures == ["left"]


async def test_cut_ends_both_sides_at_once() -> None:
    async def play(caller: Caller) -> None:
        await caller.head()
        caller.send(AGREED)
        await caller.gone()
        gone.set()

    gone = asyncio.Event()
    async with between(play) as (client, app):
        client.send(UPGRADE)
        await client.reader.readuntil(b"\r\n\r\n")
        app.tunnels[0].cut()
        assert (await app.result()).ended_by == "cut"
        async with asyncio.timeout(20):
            await gone.wait()
        with contextlib.suppress(ConnectionError):
            assert await client.rest() == b""
    assert app.departures == []


async def test_a_server_that_says_nothing_sensible_ends_the_tunnel() -> None:
    async def play(caller: Caller) -> None:
        await caller.head()
        caller.send(b"SSH-2.0-OpenSSH_9.2\r\n")
        await caller.gone()

    async with between(play) as (client, app):
        client.send(UPGRADE)
        await client.rest()
        result = await app.result()
        assert (result.status, result.ended_by) == (None, "upstream")


@pytest.mark.parametrize("reader", ["client", "server"])
async def test_a_side_that_does_not_read_holds_the_other_back(reader: str) -> None:
    piece, count = bytes(1 << 20), 64
    sent: list[int] = []

    async def pour(writer: asyncio.StreamWriter) -> None:
        for _ in range(count):
            writer.write(piece)
            await writer.drain()
            sent.append(1)

    async def play(caller: Caller) -> None:
        await caller.head()
        caller.send(AGREED)
        if reader == "client":
            await pour(caller.writer)
        else:
            await reading.wait()
            assert len(await caller.reader.readexactly(count << 20)) == count << 20
            caller.send(b"done")

    reading = asyncio.Event()
    async with between(play) as (client, app):
        client.send(UPGRADE)
        await client.reader.readuntil(b"\r\n\r\n")
        pouring = asyncio.create_task(pour(client.writer)) if reader == "server" else None
        before = -1
        while len(sent) != before or not sent:  # until the sender is stuck
            before = len(sent)
            await asyncio.sleep(0.05)
        assert len(sent) < count
        reading.set()
        if pouring is not None:
            await pouring
            assert await client.rest() == b"done"
        else:
            assert len(await client.rest()) == count << 20
        client.writer.close()
        result = await app.result()
        assert max(result.bytes_up, result.bytes_down) >= count << 20


async def test_an_app_that_fails_closes_the_tunnel(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(TunnelApp):
        async def tunnel(self, tunnel: Tunnel) -> None:
            raise RuntimeError("a fault")

    async with serving(Failing(1)) as served, RawClient.to(served.port) as client:
        client.send(UPGRADE)
        with contextlib.suppress(ConnectionError):
            assert await client.rest() == b""
    assert "a tunnel failed" in caplog.text
