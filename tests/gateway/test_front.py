from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest

from swaplane.gateway.front import MAX_HEAD_BYTES, Wire
from tests.support.data_path import RawClient, Receive, Scope, Send, WireApp, serving, soon

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HOST = b"Host: gw\r\n"


async def say_ok(wire: Wire, body: bytes) -> None:
    wire.start(status=200, reason=b"OK", headers=[(b"Content-Length", b"2")], framing="length")
    wire.write(b"ok")
    wire.finish()


async def never(wire: Wire, body: bytes) -> None:
    """Wait like a job does, until the client leaves."""
    left = asyncio.Event()
    wire.on_departure(left.set)
    await left.wait()


# The request, as it was sent


async def test_target_and_headers_arrive_byte_for_byte() -> None:
    app = WireApp(say_ok)
    async with serving(app) as served, RawClient.to(served.port) as client:
        answer = await client.ask(
            b"POST /a%2Fb//c?x=%41&y=1,2 HTTP/1.1\r\nhOsT: gw\r\nX-B: 1\r\nACCESS-SIGN: z\r\nx-b: 2\r\nX-Empty:\r\n"
            b"X-Odd: caf\xe9 \xe4\xb8\xad\r\nContent-Length: 3\r\n\r\nabc"
        )
    (wire,) = app.wires
    assert answer.status == 200
    assert wire.method == b"POST"
    assert wire.target == b"/a%2Fb//c?x=%41&y=1,2"
    assert wire.raw_headers == [
        (b"hOsT", b"gw"),
        (b"X-B", b"1"),
        (b"ACCESS-SIGN", b"z"),
        (b"x-b", b"2"),
        (b"X-Empty", b""),
        (b"X-Odd", b"caf\xe9 \xe4\xb8\xad"),
        (b"Content-Length", b"3"),
    ]
    assert wire.http_version == "1.1"
    assert wire.client is not None
    assert wire.client[0] == "127.0.0.1"
    assert app.bodies == [b"abc"]


@pytest.mark.parametrize(
    ("sent", "target"),
    [
        (b"http://gw/upstream/m/x?y=http://z/", b"/upstream/m/x?y=http://z/"),
        (b"HTTPS://me:pw@gw:1/x", b"/x"),
        (b"http://gw//x", b"//x"),
        (b"http://gw", b"/"),
        (b"http://gw?x", b"/?x"),
    ],
)
async def test_of_an_absolute_target_the_path_counts(sent: bytes, target: bytes) -> None:
    app = WireApp(say_ok)
    async with serving(app) as served, RawClient.to(served.port) as client:
        assert (await client.ask(b"GET " + sent + b" HTTP/1.1\r\n" + HOST + b"\r\n")).status == 200
    assert app.wires[0].target == target


async def test_chunked_body_is_decoded_and_trailers_are_dropped() -> None:
    app = WireApp(say_ok)
    async with serving(app) as served, RawClient.to(served.port) as client:
        await client.ask(
            b"POST / HTTP/1.1\r\n"
            + HOST
            + b"Transfer-Encoding: Chunked\r\nTrailer: X-Late\r\n\r\n3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nX-Late: 1\r\n\r\n"
        )
    assert app.bodies == [b"abcde"]
    assert [name for name, _ in app.wires[0].raw_headers] == [b"Host", b"Transfer-Encoding", b"Trailer"]


async def test_upload_in_small_chunks_is_intact_while_a_departure_is_watched_for() -> None:
    pieces = [bytes([number % 251]) * 4096 for number in range(2048)]
    app = WireApp(say_ok)
    async with serving(app) as served, RawClient.to(served.port) as client:
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
        await soon(lambda: app.wires, "the request")
        app.wires[0].on_departure(lambda: None)
        for piece in pieces:
            client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await client.writer.drain()
        client.send(b"0\r\n\r\n")
        assert (await client.answer()).status == 200
    (body,) = app.bodies
    assert body is not None
    assert hashlib.sha256(body).digest() == hashlib.sha256(b"".join(pieces)).digest()


async def test_100_continue_is_sent_when_the_body_is_read() -> None:
    app = WireApp(say_ok)
    async with serving(app) as served, RawClient.to(served.port) as client:
        head = b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n"
        assert (await client.ask(head)).status == 100
        assert (await client.ask(b"abc")).body == b"ok"
    assert app.bodies == [b"abc"]


async def test_an_offer_of_another_protocol_is_declined_and_its_body_kept() -> None:
    app = WireApp(say_ok)
    async with serving(app) as served, RawClient.to(served.port) as client:
        smuggled = b"GET /2 HTTP/1.1\r\nHost: other\r\n\r\n"
        head = (
            b"POST /1 HTTP/1.1\r\n" + HOST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            b"HTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: %d\r\n\r\n" % len(smuggled)
        )
        assert (await client.ask(head + smuggled)).body == b"ok"
        client.send(head)
        await soon(lambda: len(app.wires) == 2, "the head")
        assert (await client.ask(smuggled)).body == b"ok"
        assert (await client.ask(b"GET /3 HTTP/1.1\r\n" + HOST + b"\r\n")).body == b"ok"
    assert [wire.target for wire in app.wires] == [b"/1", b"/1", b"/3"]
    assert app.bodies == [smuggled, smuggled, b""]


# The answer, as it is told


async def test_head_is_written_as_given() -> None:
    async def answer(wire: Wire, body: bytes) -> None:
        headers = [(b"sEt-Cookie", b"a=1, b"), (b"X", b"caf\xe9"), (b"Set-Cookie", b"c"), (b"content-LENGTH", b"2")]
        wire.start(status=299, reason=b"Quite Fine \xe9", headers=headers, framing="length")
        wire.write(b"o")
        wire.write(b"k")
        wire.finish()

    async with serving(WireApp(answer)) as served, RawClient.to(served.port) as client:
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        assert await client.rest() == (
            b"HTTP/1.1 299 Quite Fine \xe9\r\nsEt-Cookie: a=1, b\r\nX: caf\xe9\r\nSet-Cookie: c\r\n"
            b"content-LENGTH: 2\r\nConnection: close\r\n\r\nok"
        )


CHUNKED_OK = b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "status", "framing", "sent"),
    [
        (b"GET", 200, "chunked", CHUNKED_OK),
        (b"GET", 200, "close", CHUNKED_OK),
        (b"GET", 200, "none", b"Content-Length: 0\r\n\r\n"),
        (b"HEAD", 200, "chunked", b"\r\n"),
        (b"GET", 204, "none", b"\r\n"),
        (b"GET", 304, "close", b"\r\n"),
    ],
)
async def test_framing(method: bytes, status: int, framing: Any, sent: bytes) -> None:
    async def answer(wire: Wire, body: bytes) -> None:
        wire.start(status=status, reason=b"R", headers=[], framing=framing)
        if framing != "none":
            wire.write(b"ok")
        wire.write(b"")
        wire.finish()

    request = method + b" / HTTP/1.1\r\n" + HOST + b"\r\n"
    whole = b"HTTP/1.1 %d R\r\n" % status + sent
    async with serving(WireApp(answer)) as served, RawClient.to(served.port) as client:
        client.send(request + request)
        assert await client.reader.readexactly(2 * len(whole)) == whole * 2


@pytest.mark.parametrize("framing", ["chunked", "close"])
async def test_http_1_0_gets_the_end_of_the_connection_for_an_end(framing: Any) -> None:
    async def answer(wire: Wire, body: bytes) -> None:
        wire.start(status=200, reason=b"OK", headers=[], framing=framing)
        wire.write(b"ok")
        wire.finish()

    async with serving(WireApp(answer)) as served, RawClient.to(served.port) as client:
        client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert await client.rest() == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok"


async def test_a_line_break_in_a_header_is_not_sent() -> None:
    errors: list[str] = []

    async def answer(wire: Wire, body: bytes) -> None:
        for headers, reason in (([(b"X", b"a\r\nEvil: 1")], b"OK"), ([], b"OK\nEvil: 1"), ([(b"X", b"a\rb")], b"OK")):
            try:
                wire.start(status=200, reason=reason, headers=headers, framing="chunked")
            except ValueError as error:
                errors.append(str(error))
        await say_ok(wire, body)

    async with serving(WireApp(answer)) as served, RawClient.to(served.port) as client:
        answered = await client.ask(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
    assert (answered.headers, answered.body) == ([(b"Content-Length", b"2")], b"ok")
    assert len(errors) == 3


async def test_a_body_of_another_length_than_announced_is_an_error_and_broken() -> None:
    errors: list[str] = []

    async def answer(wire: Wire, body: bytes) -> None:
        wire.start(status=200, reason=b"OK", headers=[(b"Content-Length", b"5")], framing="length")
        wire.write(b"abc")
        try:
            wire.finish()
        except RuntimeError as error:
            errors.append(str(error))

    async with serving(WireApp(answer)) as served, RawClient.to(served.port) as client:
        answered = await client.ask(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
    assert errors == ["a body 2 bytes shorter than its Content-Length"]
    assert not answered.whole


@pytest.mark.parametrize("started", [True, False])
async def test_abort_is_visible(started: bool) -> None:
    async def answer(wire: Wire, body: bytes) -> None:
        if started:
            wire.start(status=200, reason=b"OK", headers=[], framing="chunked")
            wire.write(b"ok")
        wire.abort(b"last words")

    request = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(WireApp(answer)) as served, RawClient.to(served.port) as client:
        client.send(request + request)
        assert await client.rest() == (head + b"2\r\nok\r\na\r\nlast words\r\n" if started else b"")


async def test_abort_resets_where_the_end_of_the_connection_would_look_like_an_end() -> None:
    async def answer(wire: Wire, body: bytes) -> None:
        wire.start(status=200, reason=b"OK", headers=[], framing="close")
        wire.write(b"ok")
        wire.abort(b" last words")

    async with serving(WireApp(answer)) as served, RawClient.to(served.port) as client:
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
        assert await client.reader.readexactly(len(head) + 13) == head + b"ok last words"
        with pytest.raises(ConnectionResetError):
            await client.rest()


async def test_writable_follows_the_clients_buffer() -> None:
    drained = asyncio.Event()
    states: list[bool] = []

    async def answer(wire: Wire, body: bytes) -> None:
        wire.start(status=200, reason=b"OK", headers=[], framing="chunked")
        states.append(wire.writable)
        while wire.writable:
            wire.write(bytes(64 * 1024))
            await asyncio.sleep(0)
        states.append(wire.writable)
        wire.on_writable(drained.set)
        await drained.wait()
        states.append(wire.writable)
        wire.finish()

    async with serving(WireApp(answer)) as served, RawClient.to(served.port) as client:
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await soon(lambda: len(states) == 2, "a full buffer")
        assert not drained.is_set()
        assert (await client.answer()).whole
    assert states == [True, False, True]


async def test_a_head_and_each_piece_are_sent_without_waiting_for_more() -> None:
    heard = asyncio.Event()

    async def answer(wire: Wire, body: bytes) -> None:
        wire.start(status=200, reason=b"OK", headers=[], framing="chunked")
        await heard.wait()
        wire.write(b"ok")
        heard.clear()
        await heard.wait()
        wire.finish()

    async with serving(WireApp(answer)) as served, RawClient.to(served.port) as client:
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        async with asyncio.timeout(20):
            await client.reader.readuntil(b"\r\n\r\n")
            heard.set()
            await client.reader.readuntil(b"ok\r\n")
            heard.set()
            assert await client.reader.readexactly(5) == b"0\r\n\r\n"


# Several requests on one connection


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def answer(wire: Wire, body: bytes) -> None:
        if wire.target == b"/1":
            await release.wait()
        wire.start(status=200, reason=b"OK", headers=[], framing="close")
        wire.write(wire.target + body)
        wire.finish()

    release = asyncio.Event()
    async with serving(WireApp(answer)) as served, RawClient.to(served.port) as client:
        for number in (b"1", b"2", b"3"):
            client.send(b"POST /" + number + b" HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\n\r\n" + number)
        asyncio.get_running_loop().call_later(0.02, release.set)
        assert [(await client.answer()).body for _ in range(3)] == [b"/11", b"/22", b"/33"]


async def test_nothing_is_served_after_connection_close() -> None:
    app = WireApp(say_ok)
    async with serving(app) as served, RawClient.to(served.port) as client:
        first = b"GET /1 HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
        client.send(first + b"GET /2 HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await client.rest()).count(b"HTTP/1.1") == 1
    assert [wire.target for wire in app.wires] == [b"/1"]


async def test_garbage_after_a_request_does_not_touch_its_answer() -> None:
    async def answer(wire: Wire, body: bytes) -> None:
        await asyncio.sleep(0.02)
        await say_ok(wire, body)

    async with serving(WireApp(answer)) as served, RawClient.to(served.port) as client:
        client.send(b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\n\x00\x01\x02garbage\r\n\r\n")
        assert await client.rest() == OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


async def test_apps_that_know_no_wire_work_beside_it() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async with serving(app) as served, RawClient.to(served.port) as client:
        for _ in range(3):
            assert (await client.ask(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")).body == b"ok"
        assert served.state.total_requests == 3


# Refusals


def bad(headers: bytes, body: bytes = b"") -> bytes:
    return b"POST / HTTP/1.1\r\n" + HOST + headers + b"\r\n" + body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (bad(b"Content-Length: +5\r\n", b"hello"), 400),
        (bad(b"Content-Length: 5_0\r\n", b"hello"), 400),
        (bad(b"Content-Length: 0x5\r\n", b"hello"), 400),
        (bad(b"Content-Length: 5, 5\r\n", b"hello"), 400),
        (bad(b"Content-Length: 5\r\nContent-Length: 6\r\n", b"hello!"), 400),
        (bad(b"Content-Length: 5\r\nContent-Length: 5\r\n", b"hello"), 400),
        (bad(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"), 400),
        (bad(b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n"), 400),
        (bad(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"), 400),
        (bad(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"), 400),
        (bad(b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n"), 400),
        (bad(b"X: a\r\n b\r\n"), 400),
        (bad(b"X: a\rb\r\n"), 400),
        (bad(b"X: a\x00b\r\n"), 400),
        (bad(b"Host: other\r\n"), 400),
        (b"GET / HTTP/1.1\nHost: gw\n\n", 400),
        (b"GET /upstream/m/queue#.json HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /?a#b HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /upstream/m/ws# HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 400),
        *(
            (b"GET /a%bb HTTP/1.1\r\n" % each + HOST + b"\r\n", 400)
            for each in (b"\x00", b"\t", b"\x0b", b"\x7f", b"\xa0")
        ),
        (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
        (b"POST / HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"CONNECT gw:80 HTTP/1.1\r\n" + HOST + b"\r\n", 501),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
)
async def test_what_two_readers_could_read_in_two_ways_is_refused(request_bytes: bytes, status: int) -> None:
    app = WireApp(say_ok)
    async with serving(app) as served, RawClient.to(served.port) as client:
        answer = await client.ask(request_bytes)
        assert answer.status == status
        assert answer.get(b"connection") == b"close"
        assert json.loads(answer.body)["error"]["message"]
        assert await client.rest() == b""
    assert app.wires == []


async def test_a_chunk_that_is_none_ends_the_request() -> None:
    app = WireApp(say_ok)
    async with serving(app) as served, RawClient.to(served.port) as client:
        client.send(bad(b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n"))
        await soon(lambda: app.wires, "the request")
        answer = await client.ask(b"oops\r\n")
        assert answer.status == 400
        assert await client.rest() == b""
    assert app.bodies == [None]


@pytest.mark.parametrize(
    "headers",
    [
        b"X: " + b"a" * (MAX_HEAD_BYTES + 1) + b"\r\n",
        b"".join(b"X-%d: %b\r\n" % (number, b"a" * 8192) for number in range(40)),
    ],
)
async def test_headers_beyond_the_limit_are_refused(headers: bytes) -> None:
    app = WireApp(say_ok)
    async with serving(app) as served, RawClient.to(served.port) as client:
        answer = await client.ask(bad(headers))
        assert (answer.status, answer.whole) == (431, True)
        assert "256 KiB" in json.loads(answer.body)["error"]["message"]
    assert app.wires == []


async def test_a_head_without_end_is_refused() -> None:
    async with serving(WireApp(say_ok)) as served, RawClient.to(served.port) as client:
        client.send(b"GET / HTTP/1.1\r\nX: ")
        answering = asyncio.create_task(client.answer())
        while not answering.done():
            client.send(b"a" * 32768)
            await asyncio.sleep(0)
        assert answering.result().status == 431


async def test_a_header_of_64_kib_passes() -> None:
    app = WireApp(say_ok)
    long = b"a" * 65536
    async with serving(app) as served, RawClient.to(served.port) as client:
        assert (await client.ask(bad(b"X-Long: " + long + b"\r\n"))).status == 200
    assert (b"X-Long", long) in app.wires[0].raw_headers


async def test_a_final_answer_reaches_a_client_that_still_sends() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        wire: Wire = scope["extensions"]["swaplane.wire"]
        wire.start(status=413, reason=b"Too Big", headers=[(b"Content-Length", b"2")], framing="length")
        wire.write(b"no")
        wire.finish()

    async with serving(app) as served, RawClient.to(served.port) as client:
        client.send(bad(b"Content-Length: 33554432\r\n") + bytes(16 * 1024 * 1024))
        answer = await client.answer()
        assert (answer.status, answer.body) == (413, b"no")
        assert await client.rest() == b""


# Departures


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_a_waiting_clients_departure_is_told_once(how: str) -> None:
    told: list[str] = []
    app = WireApp(never)
    async with serving(app) as served, RawClient.to(served.port) as client:
        client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc")
        await soon(lambda: app.bodies, "the request")
        (wire,) = app.wires
        client.leave(how)
        await soon(lambda: wire.departed, "the departure")
        wire.on_departure(lambda: told.append("at once"))
        assert told == ["at once"]
        await soon(lambda: not served.state.tasks, "the end of the request")
        await say_ok(wire, b"")  # nobody is there, and nothing happens
    assert told == ["at once"]


async def test_a_pipelining_clients_departure_is_told() -> None:
    app = WireApp(never)
    async with serving(app) as served, RawClient.to(served.port) as client:
        client.send((b"GET / HTTP/1.1\r\n" + HOST + b"\r\n") * 5)
        await soon(lambda: app.bodies, "the first request")
        client.leave("fin")
        await soon(lambda: app.wires[0].departed, "the departure")
    assert len(app.wires) == 1


async def test_leaving_after_the_answer_is_no_departure() -> None:
    app = WireApp(say_ok)
    async with serving(app) as served, RawClient.to(served.port) as client:
        await client.ask(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        client.leave("rst")
        await soon(lambda: not served.state.connections, "the end of the connection")
    assert not app.wires[0].departed


async def test_a_websocket_elsewhere_is_refused() -> None:
    app = WireApp(say_ok)
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: a\r\n\r\n"
    async with serving(app) as served:
        for path in (b"/v1/realtime", b"/upstream/m/ws"):  # this app takes no tunnels at all
            async with RawClient.to(served.port) as client:
                answer = await client.ask(b"GET " + path + b" HTTP/1.1\r\n" + HOST + upgrade)
                assert answer.status == 501
                assert "/upstream/" in json.loads(answer.body)["error"]["message"]
    assert app.wires == []
