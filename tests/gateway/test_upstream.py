from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from swaplane.gateway.upstream import Exchange, UpstreamBroken, UpstreamPool, UpstreamUnreachable
from tests.support.data_path import Caller, answering, raw_upstream, soon
from tests.support.stub_client import free_port

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Headers = list[tuple[bytes, bytes]]


class Taken:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.heads: list[tuple[int, bytes, Headers, str]] = []
        self.data: list[bytes] = []
        self.exchange: Exchange | None = None

    @property
    def body(self) -> bytes:
        return b"".join(self.data)

    def on_head(self, *, status: int, reason: bytes, headers: Headers, framing: str, exchange: Exchange) -> None:
        self.heads.append((status, reason, headers, framing))
        self.exchange = exchange

    def on_data(self, data: bytes) -> None:
        self.data.append(data)

    def on_read_end(self) -> None:
        assert self.heads


class Pieces:
    """A body of given pieces that counts what was taken of it."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces
        self.length = sum(map(len, pieces))
        self.taken = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            self.taken += 1
            await asyncio.sleep(0)
            yield piece


async def ask(pool: UpstreamPool, method: bytes = b"GET", body: Pieces | None = None, **more: Any) -> Taken:
    taken = Taken()
    headers: Headers = [(b"Host", b"h")]
    if body is not None:
        headers.append((b"Content-Length", b"%d" % body.length))
    await pool.request(method=method, target=b"/t", headers=more.get("headers", headers), body=body, sink=taken)
    return taken


@contextlib.asynccontextmanager
async def pool_to(url: str) -> AsyncIterator[UpstreamPool]:
    pool = UpstreamPool(url)
    yield pool
    pool.close()


# The request and its answer


async def test_request_is_sent_byte_for_byte_below_the_base_path() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def play(caller: Caller) -> None:
        seen.append(await caller.request())
        caller.send(OK)
        await caller.gone()

    async with raw_upstream(play) as upstream, pool_to(upstream.url + "/base/") as pool:
        headers = [(b"hOST", b"gw"), (b"X", b"caf\xe9"), (b"x", b""), (b"Content-Length", b"5")]
        taken = Taken()
        await pool.request(
            method=b"POST", target=b"/a%20b?c=d", headers=headers, body=Pieces(b"he", b"llo"), sink=taken
        )
        assert repr(pool) == f"UpstreamPool('{upstream.url}/base/', 0 busy, 1 idle)"
    head = b"POST /base/a%20b?c=d HTTP/1.1\r\nhOST: gw\r\nX: caf\xe9\r\nx: \r\nContent-Length: 5\r\n\r\n"
    assert seen == [(head, b"hello")]
    assert taken.heads == [(200, b"OK", [(b"Content-Length", b"2")], "length")]


async def test_a_missing_host_is_the_servers_own() -> None:
    async def play(caller: Caller) -> None:
        head, _ = await caller.request()
        caller.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))
        await caller.gone()

    async with raw_upstream(play) as upstream, pool_to(upstream.url) as pool:
        taken = await ask(pool, headers=[])
    assert taken.body == b"GET /t HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % upstream.port


async def test_a_line_break_in_a_header_is_not_sent() -> None:
    async with raw_upstream(answering(OK)) as upstream, pool_to(upstream.url) as pool:
        with pytest.raises(ValueError, match="line break"):
            await ask(pool, headers=[(b"X", b"a\r\nEvil: 1")])
        assert upstream.callers == []


@pytest.mark.parametrize(
    ("answer", "head", "body"),
    [
        (
            b"HTTP/1.1 299 Quite Fine \xe9\r\nx-A: 1\r\nX-a: caf\xe9\r\ncontent-length: 2\r\n\r\nok",
            (299, b"Quite Fine \xe9", [(b"x-A", b"1"), (b"X-a", b"caf\xe9"), (b"content-length", b"2")], "length"),
            b"ok",
        ),
        (
            b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\no\r\n1\r\nk\r\n0\r\nX-Late: 1\r\n\r\n",
            (200, b"", [(b"Transfer-Encoding", b"chunked")], "chunked"),
            b"ok",
        ),
        (b"HTTP/1.1 204 None\r\n\r\n", (204, b"None", [], "none"), b""),
        (b"HTTP/1.1 304 Same\r\nContent-Length: 9\r\n\r\n", (304, b"Same", [(b"Content-Length", b"9")], "none"), b""),
        (
            b"HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 103 Hints\r\nLink: a\r\n\r\n" + OK,
            (200, b"OK", [(b"Content-Length", b"2")], "length"),
            b"ok",
        ),
        (
            b"HTTP/1.1 200 OK\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nok",
            (200, b"OK", [(b"Connection", b"upgrade"), (b"Upgrade", b"h2c"), (b"Content-Length", b"2")], "length"),
            b"ok",
        ),
    ],
)
async def test_a_connection_is_used_again_after_an_answer_of_known_length(
    answer: bytes, head: Any, body: bytes
) -> None:
    async with raw_upstream(answering(answer)) as upstream, pool_to(upstream.url) as pool:
        for _ in range(2):
            taken = await ask(pool)
            assert taken.heads == [head]
            assert taken.body == body
        assert len(upstream.callers) == (2 if head[3] == "chunked" else 1)


async def test_the_answer_to_head_has_no_body_whatever_it_announces() -> None:
    async with raw_upstream(answering(OK[:-2])) as upstream, pool_to(upstream.url) as pool:
        for _ in range(2):
            assert (await ask(pool, b"HEAD")).heads == [(200, b"OK", [(b"Content-Length", b"2")], "none")]
        assert len(upstream.callers) == 1


async def test_the_end_of_the_connection_ends_an_answer_without_another_end() -> None:
    async def play(caller: Caller) -> None:
        await caller.request()
        caller.send(b"HTTP/1.1 200 OK\r\n\r\nok")

    async with raw_upstream(play) as upstream, pool_to(upstream.url) as pool:
        taken = await ask(pool)
        assert (taken.heads[0][3], taken.body) == ("close", b"ok")
        assert (await ask(pool)).body == b"ok"
        assert len(upstream.callers) == 2


async def test_a_sink_that_fails_fails_the_request() -> None:
    class Failing(Taken):
        def on_data(self, data: bytes) -> None:
            raise RuntimeError("full")

    async with raw_upstream(answering(OK)) as upstream, pool_to(upstream.url) as pool:
        with pytest.raises(RuntimeError, match="full"):
            await pool.request(method=b"GET", target=b"/", headers=[], body=None, sink=Failing())
        assert (await ask(pool)).body == b"ok"


# Connections that are used again, and those that must not be


@pytest.mark.parametrize("noticed", [True, False])
async def test_a_connection_closed_by_the_server_is_not_used_again(noticed: bool) -> None:
    async with raw_upstream(answering(OK)) as upstream, pool_to(upstream.url) as pool:
        await ask(pool)
        with socket.socket(fileno=os.dup(upstream.callers[0].writer.get_extra_info("socket").fileno())) as sock:
            sock.shutdown(socket.SHUT_WR)
        if noticed:  # otherwise the event loop has had no chance to see the end before the next request
            await asyncio.sleep(0.02)
        assert (await ask(pool)).body == b"ok"
        assert len(upstream.callers) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=0, max=100\r\nContent-Length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        OK + b"more than announced",
    ],
)
async def test_a_connection_is_given_up_when_the_answer_says_so_or_more_came(answer: bytes) -> None:
    async with raw_upstream(answering(answer)) as upstream, pool_to(upstream.url) as pool:
        for _ in range(2):
            taken = await ask(pool)
            assert (len(taken.heads), taken.body) == (1, b"ok")
        assert len(upstream.callers) == 2


async def test_bytes_that_nobody_asked_for_make_a_connection_unusable() -> None:
    async def play(caller: Caller) -> None:
        await caller.request()
        caller.send(OK)
        if caller.number == 0:
            await asyncio.sleep(0.01)
            caller.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
            sent.set()
        await caller.gone()

    sent = asyncio.Event()
    async with raw_upstream(play) as upstream, pool_to(upstream.url) as pool:
        await ask(pool)
        await sent.wait()
        assert (await ask(pool)).body == b"ok"


async def test_idle_connections_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(caller: Caller) -> None:
        await caller.request()
        caller.send(OK)
        await caller.gone()
        gone.set()

    monkeypatch.setattr("swaplane.gateway.upstream.IDLE_S", 0.01)
    monkeypatch.setattr("swaplane.gateway.connection.IDLE_S", 0.01)
    gone = asyncio.Event()
    async with raw_upstream(play) as upstream, pool_to(upstream.url) as pool:
        await ask(pool)
        async with asyncio.timeout(20):
            await gone.wait()
        assert "0 idle" in repr(pool)
        gone.clear()
        await ask(pool)
        pool.close()
        async with asyncio.timeout(20):
            await gone.wait()


async def test_a_request_that_may_have_arrived_is_never_sent_again() -> None:
    async def play(caller: Caller) -> None:
        requests.append(await caller.request())
        if len(requests) == 1:
            caller.send(OK)
            requests.append(await caller.request())

    requests: list[Any] = []
    async with raw_upstream(play) as upstream, pool_to(upstream.url) as pool:
        await ask(pool)
        with pytest.raises(UpstreamBroken, match="closed the connection without an answer") as broken:
            await ask(pool)
        assert not broken.value.head_seen
        assert (len(requests), len(upstream.callers)) == (2, 1)


# What breaks


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nhello",
        b"HTTP/1.1 101 Switching\r\n\r\nhello",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 2_000_000,
    ],
)
async def test_an_answer_that_makes_no_sense_hands_nothing_over(answer: bytes) -> None:
    async with raw_upstream(answering(answer)) as upstream, pool_to(upstream.url) as pool:
        taken = Taken()
        with pytest.raises(UpstreamBroken, match=rf"^the model server at 127.0.0.1:{upstream.port} \w+") as broken:
            await pool.request(method=b"GET", target=b"/", headers=[], body=None, sink=taken)
        assert not broken.value.head_seen
        assert taken.heads == []


@pytest.mark.parametrize(
    "part",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\noops\r\n",
    ],
)
async def test_an_answer_that_ends_early_is_broken(part: bytes) -> None:
    async def play(caller: Caller) -> None:
        await caller.request()
        caller.send(part)

    async with raw_upstream(play) as upstream, pool_to(upstream.url) as pool:
        taken = Taken()
        with pytest.raises(UpstreamBroken) as broken:
            await pool.request(method=b"GET", target=b"/", headers=[], body=None, sink=taken)
        assert broken.value.head_seen
        assert taken.body == b"ok"


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    port = free_port()
    pool = UpstreamPool(f"http://localhost:{port}")
    with pytest.raises(UpstreamUnreachable, match=rf"^the model server at localhost:{port} cannot be reached: "):
        await ask(pool)
    with pytest.raises(ValueError, match="not 'localhost:8000'"):
        UpstreamPool("localhost:8000")


async def test_every_address_of_a_name_is_tried() -> None:
    async with raw_upstream(answering(OK)) as upstream, pool_to(f"http://localhost:{upstream.port}") as pool:
        assert (await ask(pool)).body == b"ok"


async def test_proxy_settings_of_the_environment_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with raw_upstream(answering(OK)) as upstream, pool_to(upstream.url) as pool:
        assert (await ask(pool)).body == b"ok"


# Bodies


async def test_an_early_answer_ends_the_sending() -> None:
    async def play(caller: Caller) -> None:
        await caller.head()
        caller.send(b"HTTP/1.1 413 Too Big\r\nContent-Length: 2\r\n\r\nno")
        await caller.gone()

    body = Pieces(*[bytes(256 * 1024)] * 400)
    async with raw_upstream(play) as upstream, pool_to(upstream.url) as pool:
        taken = await ask(pool, b"POST", body)
        assert (taken.heads[0][0], taken.body) == (413, b"no")
        assert body.taken < 400
        assert "0 idle" in repr(pool)


async def test_a_body_waits_for_the_server_to_take_it() -> None:
    async def play(caller: Caller) -> None:
        await caller.head()
        await reading.wait()
        received.append(len(await caller.reader.readexactly(body.length)))
        caller.send(OK)
        await caller.gone()

    reading = asyncio.Event()
    received: list[int] = []
    body = Pieces(*[bytes(256 * 1024)] * 200)
    async with raw_upstream(play) as upstream, pool_to(upstream.url) as pool:
        asked = asyncio.create_task(ask(pool, b"POST", body))
        before = -1
        while body.taken != before:  # until no more is taken
            before = body.taken
            await asyncio.sleep(0.05)
        assert 0 < body.taken < 100
        reading.set()
        assert (await asked).body == b"ok"
    assert received == [body.length]


async def test_a_body_that_fails_closes_the_connection() -> None:
    class Failing(Pieces):
        async def pieces(self) -> AsyncIterator[bytes]:
            yield b"a"
            raise OSError("the disk is gone")

    async def play(caller: Caller) -> None:
        await caller.head()
        await caller.gone()
        gone.set()

    gone = asyncio.Event()
    async with raw_upstream(play) as upstream, pool_to(upstream.url) as pool:
        with pytest.raises(OSError, match="the disk is gone"):
            await ask(pool, b"POST", Failing(b"ab"))
        async with asyncio.timeout(20):
            await gone.wait()


# Flow and departure


async def test_cancelling_closes_the_connection_at_once() -> None:
    async def play(caller: Caller) -> None:
        await caller.request()
        caller.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
        await caller.gone()
        gone.set()

    gone = asyncio.Event()
    async with raw_upstream(play) as upstream, pool_to(upstream.url) as pool:
        taken = Taken()
        asked = asyncio.create_task(pool.request(method=b"GET", target=b"/", headers=[], body=None, sink=taken))
        await soon(lambda: taken.data, "the first piece")
        asked.cancel()
        async with asyncio.timeout(20):
            await gone.wait()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert repr(pool).endswith("0 busy, 0 idle)")


async def test_a_paused_answer_waits_and_loses_nothing() -> None:
    count = 400

    async def play(caller: Caller) -> None:
        await caller.request()
        caller.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (count * 65536))
        for number in range(count):
            caller.send(bytes([number % 251]) * 65536)
            await caller.writer.drain()
            sent.append(number)
        await caller.gone()

    class Pausing(Taken):
        def on_data(self, data: bytes) -> None:
            super().on_data(data)
            if len(self.data) == 1:
                assert self.exchange is not None
                self.exchange.pause()

    sent: list[int] = []
    taken = Pausing()
    async with raw_upstream(play) as upstream, pool_to(upstream.url) as pool:
        asked = asyncio.create_task(pool.request(method=b"GET", target=b"/", headers=[], body=None, sink=taken))
        before = -1
        while len(sent) != before or not sent:  # until the server is stuck
            before = len(sent)
            await asyncio.sleep(0.05)
        assert len(taken.body) < 1024 * 1024
        assert len(sent) < count
        assert taken.exchange is not None
        taken.exchange.resume()
        await asked
        assert "1 idle" in repr(pool)
    assert taken.body == b"".join(bytes([number % 251]) * 65536 for number in range(count))
