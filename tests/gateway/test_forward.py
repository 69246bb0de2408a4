from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from uvicorn.server import ServerState

from swaplane.core.outcomes import Outcome
from swaplane.gateway import forward
from swaplane.gateway.forward import Forwarded, Forwarding, tunnel_head, upstream_headers
from swaplane.gateway.front import Wire
from swaplane.gateway.upstream import UpstreamPool
from tests.support.data_path import (
    Caller,
    RawClient,
    RawUpstream,
    WireApp,
    answering,
    raw_upstream,
    serving,
    soon,
)
from tests.support.stub_client import free_port, read_journal, stub_argv

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


HOST = b"Host: gw\r\n"
GET = b"GET /t HTTP/1.1\r\n" + HOST + b"\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Held:
    """A request body in memory."""

    def __init__(self, data: bytes) -> None:
        self.data, self.length = data, len(data)

    async def pieces(self) -> AsyncIterator[bytes]:
        for start in range(0, self.length, 65536):
            yield self.data[start : start + 65536]


class Gateway:
    """An app that does nothing but forward, and remembers each passage and how it ended."""

    def __init__(self, url: str) -> None:
        self.pool = UpstreamPool(url)
        self.forwardings: list[Forwarding] = []
        self.ended: list[Forwarded] = []
        self.before_run: Callable[[Wire, Forwarding], Awaitable[None]] | None = None
        self.app = WireApp(self.forward)
        self.port = 0
        self.state = ServerState()

    async def forward(self, wire: Wire, body: bytes) -> None:
        forwarding = Forwarding(
            wire,
            self.pool,
            target=wire.target,
            headers=upstream_headers(wire.raw_headers, client_host="10.0.0.9", body_length=len(body) or None),
            body=Held(body) if body else None,
            extra_headers=[(b"X-LlamaSwap-Job", b"j1")],
            operator=True,
        )
        self.forwardings.append(forwarding)
        if self.before_run is not None:
            await self.before_run(wire, forwarding)
        self.ended.append(await forwarding.run())

    async def outcome(self) -> Forwarded:
        await soon(lambda: self.ended, "the end of the passage")
        return self.ended.pop()


@contextlib.asynccontextmanager
async def gateway_to(url: str) -> AsyncIterator[Gateway]:
    gateway = Gateway(url)
    async with serving(gateway.app) as served:
        gateway.port, gateway.state = served.port, served.state
        yield gateway
    gateway.pool.close()


@contextlib.asynccontextmanager
async def between(play: Callable[[Caller], Awaitable[None]]) -> AsyncIterator[tuple[RawClient, Gateway, RawUpstream]]:
    """A raw client, a forwarding gateway and a raw model server."""
    async with (
        raw_upstream(play) as upstream,
        gateway_to(upstream.url) as gateway,
        RawClient.to(gateway.port) as client,
    ):
        yield client, gateway, upstream


@contextlib.asynccontextmanager
async def stub(tmp_path: Path) -> AsyncIterator[tuple[str, Path]]:
    """A stub model server in its own process: its address and its journal."""
    port, journal = free_port(), tmp_path / "journal"
    process = await asyncio.create_subprocess_exec(
        *stub_argv(port), env={**os.environ, "STUB_LOG": str(journal)}, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        await soon(lambda: read_journal(journal, "ready"), "the stub")
        yield f"http://127.0.0.1:{port}", journal
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def post(path: bytes, body: bytes, headers: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\n%b%bContent-Length: %d\r\n\r\n%b" % (path, HOST, headers, len(body), body)


# Headers


def test_request_headers_keep_their_order_case_and_bytes() -> None:
    raw = [
        (b"hOST", b"gw"),
        (b"X-B", b"2"),
        (b"ACCESS-SIGN", b"caf\xe9"),
        (b"x-b", b"1"),
        (b"Cookie", b"a"),
        (b"E", b""),
    ]
    passed = upstream_headers(raw, client_host="1.2.3.4", body_length=None)
    assert passed == [*raw, (b"X-Forwarded-For", b"1.2.3.4")]


def test_request_headers_of_one_hop_and_ours_are_left_out() -> None:
    raw = [
        (b"Host", b"gw"),
        (b"Connection", b"close, X-Private"),
        (b"connection", b"host, content-length, x-forwarded-for, Upgrade"),
        (b"X-Private", b"1"),
        (b"Keep-Alive", b"5"),
        (b"TE", b"trailers"),
        (b"Trailer", b"X"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Proxy-Authorization", b"Basic x"),
        (b"Proxy-Connection", b"close"),
        (b"Upgrade", b"h2c"),
        (b"Expect", b"100-continue"),
        (b"X-LlamaSwap-Priority", b"100"),
        (b"x-llamaswap-anything", b"1"),
        (b"Authorization", b"Bearer k"),
    ]
    passed = upstream_headers(raw, client_host="1.2.3.4", body_length=7)
    assert passed == [
        (b"Host", b"gw"),
        (b"Authorization", b"Bearer k"),
        (b"Content-Length", b"7"),
        (b"X-Forwarded-For", b"1.2.3.4"),
    ]


@pytest.mark.parametrize(
    ("body_length", "sent"), [(5, [(b"content-Length", b"5")]), (0, [(b"content-Length", b"0")]), (None, [])]
)
def test_content_length_is_the_bodys_in_its_old_place(body_length: int | None, sent: list[tuple[bytes, bytes]]) -> None:
    raw = [(b"content-Length", b"999"), (b"X", b"1")]
    passed = upstream_headers(raw, client_host="h", body_length=body_length)
    assert passed == [*sent, (b"X", b"1"), (b"X-Forwarded-For", b"h")]


def test_forwarded_for_grows_in_place() -> None:
    raw = [(b"X-Forwarded-For", b"a"), (b"X", b"1"), (b"x-forwarded-for", b"b, c")]
    passed = upstream_headers(raw, client_host="d", body_length=None)
    assert passed == [(b"X-Forwarded-For", b"a, b, c, d"), (b"X", b"1")]


def test_the_head_of_a_tunnel_asks_for_a_websocket() -> None:
    raw = [
        (b"Host", b"gw"),
        (b"Connection", b"keep-alive, Upgrade"),
        (b"Upgrade", b"WebSocket"),
        (b"Sec-WebSocket-Key", b"k"),
    ]
    assert tunnel_head(raw, target=b"/ws?a", client_host="h") == (
        b"GET /ws?a HTTP/1.1\r\nHost: gw\r\nSec-WebSocket-Key: k\r\nX-Forwarded-For: h\r\n"
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    )


# Answers that come whole


async def test_request_and_answer_pass_byte_for_byte() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def play(caller: Caller) -> None:
        for _ in range(2):
            seen.append(await caller.request())
            caller.send(
                b"HTTP/1.1 299 Quite Fine \xe9\r\nsEt-Cookie: a=1; Expires=Wed, 01\r\nX-B: caf\xe9\r\nset-cookie: b\r\n"
                b"Connection: keep-alive, X-Private\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\n"
                b"content-length: 2\r\n\r\nok"
            )

    async with between(play) as (client, gateway, upstream):
        for _ in range(2):
            client.send(post(b"/a%20b?c", b"\x00\xff", b"X-MiXed: 1\r\nx-mixed: 2\r\n"))
            whole = (
                b"HTTP/1.1 299 Quite Fine \xe9\r\nsEt-Cookie: a=1; Expires=Wed, 01\r\nX-B: caf\xe9\r\nset-cookie: b\r\n"
                b"content-length: 2\r\nX-LlamaSwap-Job: j1\r\n\r\nok"
            )
            assert await client.reader.readexactly(len(whole)) == whole
            assert await gateway.outcome() == Forwarded(outcome=Outcome.COMPLETED, status=299, bytes_out=2, detail="")
        assert len(upstream.callers) == 1
    assert seen == 2 * [
        (
            b"POST /a%20b?c HTTP/1.1\r\nHost: gw\r\nX-MiXed: 1\r\nx-mixed: 2\r\nContent-Length: 2\r\n"
            b"X-Forwarded-For: 10.0.0.9\r\n\r\n",
            b"\x00\xff",
        )
    ]


async def test_a_server_that_closes_does_not_close_the_client() -> None:
    answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\n\r\nuntil the end"

    async def play(caller: Caller) -> None:
        await caller.request()
        caller.send(answer)

    async with between(play) as (client, gateway, upstream):
        for number in (1, 2):
            got = await client.ask(GET)
            assert (got.body, got.whole) == (b"until the end", True)
            assert got.headers == [(b"X-LlamaSwap-Job", b"j1"), (b"Transfer-Encoding", b"chunked")]
            assert len(upstream.callers) == number
            assert (await gateway.outcome()).outcome is Outcome.COMPLETED


async def test_compressed_answers_are_not_touched() -> None:
    body = gzip.compress(b"hello" * 1000)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with between(answering(head + body)) as (client, gateway, _):
        answer = await client.ask(GET)
        assert (answer.body, answer.get(b"content-encoding")) == (body, b"gzip")
        assert (await gateway.outcome()).bytes_out == len(body)


@pytest.mark.parametrize(
    ("request_bytes", "answer", "sent"),
    [
        (b"HEAD /t HTTP/1.1\r\n" + HOST + b"\r\n", OK[:-2], b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"),
        (GET, b"HTTP/1.1 204 No\r\n\r\n", b"HTTP/1.1 204 No\r\n"),
        (GET, b"HTTP/1.1 304 Same\r\nETag: a\r\n\r\n", b"HTTP/1.1 304 Same\r\nETag: a\r\n"),
    ],
)
async def test_answers_without_a_body(request_bytes: bytes, answer: bytes, sent: bytes) -> None:
    async with between(answering(answer)) as (client, gateway, _):
        whole = sent + b"X-LlamaSwap-Job: j1\r\n\r\n"
        client.send(request_bytes + request_bytes)
        assert await client.reader.readexactly(2 * len(whole)) == whole * 2
        assert (await gateway.outcome()).outcome is Outcome.COMPLETED


async def test_an_http_1_0_client_gets_no_chunks() -> None:
    async with between(answering(EVENTS + b"\r\n" + chunk(b"data: 1\n\n") + b"0\r\n\r\n")) as (client, _, _):
        client.send(b"GET /t HTTP/1.0\r\n\r\n")
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert b"Transfer-Encoding" not in head
        assert body == b"data: 1\n\n"


async def test_event_streams_are_passed_on_event_by_event_and_unbuffered() -> None:
    events = [b"data: %d\n\n" % number for number in range(5)]

    async def play(caller: Caller) -> None:
        await caller.request()
        caller.send(EVENTS + b"\r\n")
        for event in events:
            caller.send(chunk(event))
            await heard.wait()
            heard.clear()
        caller.send(b"0\r\n\r\n")
        await caller.gone()

    heard = asyncio.Event()
    async with between(play) as (client, gateway, _):
        client.send(GET)
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"\r\nX-Accel-Buffering: no\r\n" in head
        for event in events:
            assert await client.reader.readexactly(len(chunk(event))) == chunk(event)
            heard.set()
        assert await client.reader.readexactly(5) == b"0\r\n\r\n"
        assert (await gateway.outcome()).bytes_out == sum(map(len, events))


@pytest.mark.parametrize(("status", "outcome"), [(499, Outcome.COMPLETED), (500, Outcome.UPSTREAM_ERROR)])
async def test_the_outcome_of_a_whole_answer_is_told_by_its_status(status: int, outcome: Outcome) -> None:
    async with between(answering(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\nno" % status)) as (client, gateway, _):
        answer = await client.ask(GET)
        assert (answer.status, answer.body, answer.whole) == (status, b"no", True)
        assert await gateway.outcome() == Forwarded(outcome=outcome, status=status, bytes_out=2, detail="")


async def test_an_early_answer_reaches_the_client() -> None:
    async def play(caller: Caller) -> None:
        await caller.head()
        caller.send(b"HTTP/1.1 413 Too Big\r\nContent-Length: 2\r\n\r\nno")
        await caller.gone()

    async with between(play) as (client, gateway, _):
        answer = await client.ask(post(b"/t", bytes(20 * 1024 * 1024)))
        assert (answer.status, answer.body, answer.whole) == (413, b"no", True)
        assert (await gateway.outcome()).outcome is Outcome.COMPLETED


async def test_an_upload_of_many_chunks_is_intact(tmp_path: Path) -> None:
    data = bytes(range(256)) * 32768
    async with stub(tmp_path) as (url, journal), gateway_to(url) as gateway, RawClient.to(gateway.port) as client:
        client.send(b"POST /t HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert (await client.answer()).status == 100
        for start in range(0, len(data), 4096):
            client.send(chunk(data[start : start + 4096]))
            await client.writer.drain()
        assert (await client.ask(b"0\r\n\r\n")).status == 200
        (entry,) = read_journal(journal, "req_start")
        assert (entry["framing"], entry["length"]) == ("length", len(data))
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()


async def test_one_very_long_event_passes_in_little_memory() -> None:
    line = b"data: " + bytes(range(32, 127)) * (16 * 1024 * 1024 // 95) + b"\n\n"

    async def play(caller: Caller) -> None:
        await caller.request()
        caller.send(EVENTS + b"\r\n")
        for start in range(0, len(line), 1 << 20):
            caller.send(chunk(line[start : start + (1 << 20)]))
            await caller.writer.drain()
        caller.send(chunk(b"data: 2\n\n") + b"0\r\n\r\n")
        await caller.gone()

    async with between(play) as (client, gateway, _):
        client.send(GET)
        await soon(lambda: gateway.app.wires and not gateway.app.wires[0].writable, "a full buffer")
        (wire,) = gateway.app.wires
        digest, held = hashlib.sha256(), 0
        await client.reader.readuntil(b"\r\n\r\n")
        while size := int(await client.reader.readuntil(b"\r\n"), 16):
            digest.update(await client.reader.readexactly(size))
            await client.reader.readexactly(2)
            held = max(held, wire._transport.get_write_buffer_size())
        assert digest.digest() == hashlib.sha256(line + b"data: 2\n\n").digest()
        assert held < 2 * 1024 * 1024
        assert (await gateway.outcome()).outcome is Outcome.COMPLETED


# Answers that break


async def test_a_server_that_is_not_there_is_a_502() -> None:
    port = free_port()
    async with gateway_to(f"http://127.0.0.1:{port}") as gateway, RawClient.to(gateway.port) as client:
        for _ in range(2):
            answer = await client.ask(GET)
            error = json.loads(answer.body)["error"]
            assert (answer.status, answer.reason, error["code"]) == (502, b"Bad Gateway", "bad_gateway")
            assert error["message"].startswith(f"the model server at 127.0.0.1:{port} cannot be reached: ")
            assert answer.get(b"x-llamaswap-job") == b"j1"
            assert await gateway.outcome() == Forwarded(
                outcome=Outcome.UPSTREAM_BROKEN, status=502, bytes_out=0, detail=error["message"]
            )


async def test_a_server_that_closes_without_an_answer_is_a_502() -> None:
    async def play(caller: Caller) -> None:
        await caller.request()

    async with between(play) as (client, gateway, upstream):
        answer = await client.ask(post(b"/t", b"abc", b"Accept: text/plain\r\n"))
        assert (answer.status, answer.get(b"content-type"), answer.whole) == (502, b"text/plain", True)
        assert b"closed the connection without an answer" in answer.body
        assert len(upstream.callers) == 1
        assert (await gateway.outcome()).outcome is Outcome.UPSTREAM_BROKEN


async def test_a_server_that_dies_in_mid_stream_is_told_in_the_stream(tmp_path: Path) -> None:
    async with stub(tmp_path) as (url, _), gateway_to(url) as gateway, RawClient.to(gateway.port) as client:
        answer = await client.ask(post(b"/v1/chat/completions", b'{"stream":true,"stub":{"chunks":9,"die_at":5}}'))
        assert not answer.whole
        *events, last, nothing = answer.body.split(b"\n\n")
        assert [event for event in events if event][4].startswith(b"data: {")
        error = json.loads(last.removeprefix(b"data: "))["error"]
        assert (error["type"], error["code"]) == ("server_error", "bad_gateway")
        assert "in mid-answer" in error["message"]
        assert nothing == b""
        assert b"[DONE]" not in answer.body
        ended = await gateway.outcome()
        assert (ended.outcome, ended.status) == (Outcome.UPSTREAM_BROKEN, 200)


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Type: text/event-stream\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
    ],
)
async def test_other_bodies_get_no_last_words(headers: bytes) -> None:
    async def play(caller: Caller) -> None:
        await caller.request()
        caller.send(b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n" + chunk(b"part"))

    async with between(play) as (client, gateway, _):
        answer = await client.ask(GET)
        assert (answer.body, answer.whole) == (b"part", False)
        assert (await gateway.outcome()).outcome is Outcome.UPSTREAM_BROKEN


async def test_a_body_of_announced_length_that_breaks_is_short() -> None:
    async def play(caller: Caller) -> None:
        await caller.request()
        caller.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 500\r\n\r\npart")

    async with between(play) as (client, gateway, _):
        answer = await client.ask(GET)
        assert (answer.body, answer.whole) == (b"part", False)
        assert (await gateway.outcome()).outcome is Outcome.UPSTREAM_BROKEN


# Departures


async def streaming_for_ever(caller: Caller) -> None:
    await caller.request()
    caller.send(EVENTS + b"\r\n" + chunk(b"data: 1\n\n"))
    await caller.gone()


async def working_for_ever(caller: Caller) -> None:
    await caller.request()
    await caller.gone()


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("play", [streaming_for_ever, working_for_ever])
async def test_a_client_that_leaves_takes_its_request_along(
    play: Callable[[Caller], Awaitable[None]], how: str
) -> None:
    async def watched(caller: Caller) -> None:
        await play(caller)
        gone.set()

    gone = asyncio.Event()
    async with between(watched) as (client, gateway, upstream):
        client.send(GET)
        await soon(lambda: upstream.callers, "the request at the server")
        if play is streaming_for_ever:
            await client.reader.readuntil(b"data: 1\n\n")
        client.leave(how)
        async with asyncio.timeout(20):
            await gone.wait()
        ended = await gateway.outcome()
        assert ended.outcome is Outcome.LEFT_RUNNING
        assert ended.status == (200 if play is streaming_for_ever else None)


async def test_a_client_that_left_before_the_request_was_sent_costs_nothing() -> None:
    async def before_run(wire: Wire, forwarding: Forwarding) -> None:
        client.leave("rst")
        await soon(lambda: wire.departed, "the departure")

    async with between(answering(OK)) as (client, gateway, upstream):
        gateway.before_run = before_run
        client.send(GET)
        ended = await gateway.outcome()
        assert (ended.outcome, ended.status, upstream.callers) == (Outcome.LEFT_WAITING, None, [])


async def test_a_reader_that_is_slow_and_then_leaves_holds_nothing_up() -> None:
    piece = bytes(1 << 20)

    async def play(caller: Caller) -> None:
        await caller.request()
        caller.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (200 << 20))
        for _ in range(200):
            caller.send(piece)
            await caller.writer.drain()
            sent.append(1)

    sent: list[int] = []
    async with between(play) as (client, gateway, _):
        client.send(GET)
        await soon(lambda: gateway.app.wires and not gateway.app.wires[0].writable, "a full buffer")
        before = -1
        while len(sent) != before:  # until the server is stuck
            before = len(sent)
            await asyncio.sleep(0.05)
        assert len(sent) < 200
        assert gateway.app.wires[0]._transport.get_write_buffer_size() < 2 * 1024 * 1024
        client.leave("rst")
        assert (await gateway.outcome()).outcome is Outcome.LEFT_RUNNING


async def test_a_reader_that_stands_still_is_cut_and_one_that_reads_slowly_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forward, "STALLED_S", 0.2)

    async def play(caller: Caller) -> None:
        await caller.request()
        caller.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (200 << 20))
        while True:
            caller.send(bytes(1 << 20))
            await caller.writer.drain()

    async with between(play) as (client, gateway, _):
        client.send(GET)
        for _ in range(40):  # several times as long as standing still is allowed
            assert await client.reader.read(1 << 20)
            await asyncio.sleep(0.02)
        assert not gateway.app.wires[0].departed
        ended = await gateway.outcome()
        assert ended.outcome is Outcome.LEFT_RUNNING
        assert ended.detail == "the client took nothing of its answer for 0.2 s"


async def test_a_slow_reader_gets_everything() -> None:
    size = 12 << 20
    body = hashlib.shake_128(b"seed").digest(size)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
    async with between(answering(head + body)) as (client, gateway, _):
        client.send(GET)
        await soon(lambda: gateway.app.wires and not gateway.app.wires[0].writable, "a full buffer")
        await client.reader.readuntil(b"\r\n\r\n")
        got = b""
        while len(got) < size:
            got += await client.reader.read(1 << 20)
            await asyncio.sleep(0)
        assert got == body
        assert (await gateway.outcome()).outcome is Outcome.COMPLETED


# Cut from outside


@pytest.mark.parametrize(
    ("outcome", "status", "retry"),
    [
        (Outcome.CANCELLED_RUNNING, 502, b"false"),
        (Outcome.UNLOADED_RUNNING, 502, None),
        (Outcome.STOPPED_RUNNING, 503, None),
    ],
)
async def test_a_cut_before_the_head_is_an_error_answer(outcome: Outcome, status: int, retry: bytes | None) -> None:
    async def play(caller: Caller) -> None:
        await working_for_ever(caller)
        gone.set()

    gone = asyncio.Event()
    async with between(play) as (client, gateway, upstream):
        client.send(GET)
        await soon(lambda: upstream.callers, "the request at the server")
        gateway.forwardings[0].cut(outcome, "because")
        gateway.forwardings[0].cut(Outcome.GATEWAY_ERROR, "too late")
        answer = await client.answer()
        assert (answer.status, json.loads(answer.body)["error"]["message"]) == (status, "because")
        assert answer.get(b"x-should-retry") == retry
        assert await gateway.outcome() == Forwarded(outcome=outcome, status=status, bytes_out=0, detail="because")
        async with asyncio.timeout(20):
            await gone.wait()


async def test_a_cut_in_mid_answer_breaks_it() -> None:
    async with between(streaming_for_ever) as (client, gateway, _):
        client.send(GET)
        await client.reader.readuntil(b"data: 1\n\n\r\n")
        gateway.forwardings[0].cut(Outcome.UNLOADED_RUNNING, "unloaded")
        rest = await client.rest()
        assert b'\n\ndata: {"src":' in rest
        assert b'"message":"unloaded"' in rest
        assert not rest.endswith(b"0\r\n\r\n")
        ended = await gateway.outcome()
        assert (ended.outcome, ended.status) == (Outcome.UNLOADED_RUNNING, 200)


async def test_a_cut_before_the_start_sends_nothing() -> None:
    async def before_run(wire: Wire, forwarding: Forwarding) -> None:
        forwarding.cut(Outcome.STOPPED_RUNNING, "the gateway stops")

    async with between(answering(OK)) as (client, gateway, upstream):
        gateway.before_run = before_run
        assert (await client.ask(GET)).status == 503
        assert (await gateway.outcome()).outcome is Outcome.STOPPED_RUNNING
        assert upstream.callers == []


async def test_a_cut_after_the_end_does_nothing() -> None:
    async with between(answering(OK)) as (client, gateway, _):
        await client.ask(GET)
        await gateway.outcome()
        gateway.forwardings[0].cut(Outcome.CANCELLED_RUNNING, "late")
        assert (await client.ask(GET)).body == b"ok"


async def test_a_cancelled_task_stays_cancelled_and_the_client_is_told() -> None:
    async def play(caller: Caller) -> None:
        await working_for_ever(caller)
        gone.set()

    gone = asyncio.Event()
    async with between(play) as (client, gateway, upstream):
        client.send(GET)
        await soon(lambda: upstream.callers, "the request at the server")
        (task,) = gateway.state.tasks
        task.cancel()
        assert (await client.answer()).status == 503
        async with asyncio.timeout(20):
            await gone.wait()
    assert gateway.ended == []
