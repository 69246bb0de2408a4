"""Streamed requests that wait, as their clients see it."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swaplane.gateway.stream_answers import DIALECTS
from swaplane.gateway.waits import LEAST_COUNTED
from tests.support.event_stream import SHOW, EventStream, ask
from tests.support.gateway import GatewayProcess, stub_models
from tests.support.stub_client import eventually, stub_cmd

CHAT = "/v1/chat/completions"
BROKEN_MODEL = "  broken:\n    cmd: /nonexistent/server --port ${PORT}\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    slow = f"  slow:\n    cmd: {stub_cmd('${PORT}', 'slow')} --boot 1.5\n"
    told = f"  told:\n    cmd: {stub_cmd('${PORT}', 'told')}\n    sendLoadingState: true\n"
    config = stub_models("mA", "mB") + slow + told + BROKEN_MODEL
    with GatewayProcess(tmp_path_factory.mktemp("shown"), config) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def at_rest(gateway: GatewayProcess) -> Iterator[None]:
    yield
    for job in gateway.queue()["waiting"] + gateway.queue()["running"]:
        gateway.request("DELETE", f"/api/jobs/{job['id']}")
    eventually(lambda: not gateway.queue()["running"] and not gateway.queue()["waiting"], "nothing is left")


class Holder:
    """A job that holds the place until it is told to end."""

    def __init__(self, gateway: GatewayProcess, model: str = "mA") -> None:
        self._gateway = gateway
        self._connection = gateway.raw_chat(model, "holds", stub={"dur": 600})
        eventually(lambda: any(job["state"] == "running" for job in gateway.queue()["running"]), "a job runs")

    def end(self) -> None:
        self._connection.close()


def streamed(model: str = "mA", **body: Any) -> dict[str, Any]:
    return {"model": model, "stream": True, "messages": [], **body}


def test_a_wait_is_told_and_then_the_answer_comes(gateway: GatewayProcess) -> None:
    holder = Holder(gateway)
    stream = EventStream(ask(gateway, CHAT, streamed(), headers=SHOW + b"X-LlamaSwap-Priority: 2000\r\n"))
    assert stream.status == 200
    assert stream.headers["Content-Type"] == "text/event-stream"
    assert stream.headers["X-LlamaSwap-Priority"] == "1000"
    assert stream.headers["X-LlamaSwap-Priority-Reason"] == "clamped from 2000 to 1000"
    assert stream.headers["X-LlamaSwap-Wait"] is None
    assert gateway.get(f"/api/jobs/{stream.job}").json()["state"] == "waiting"
    news = stream.news()
    assert (news["state"], news["position"], news["ahead"]) == ("waiting", 1, {})
    holder.end()
    last = stream.until(state="running")
    assert last["waited_s"] > 0
    assert last["priority"] == 1000
    *chunks, done = stream.rest()
    assert done == "data: [DONE]"
    assert [json.loads(chunk.removeprefix("data: "))["object"] for chunk in chunks] == ["chat.completion.chunk"] * 4
    job = gateway.get(f"/api/jobs/{stream.job}").json()
    assert (job["outcome"], job["waited_s"]) == ("completed", last["waited_s"])


def test_what_is_sent_at_once_is_answered_as_ever(gateway: GatewayProcess) -> None:
    gateway.chat("mA")
    stream = EventStream(ask(gateway, CHAT, streamed()))
    assert stream.headers["X-LlamaSwap-Wait"] is not None
    assert not any(block.startswith(":") for block in stream.rest())


def test_who_is_ahead_is_told_anew_when_it_changes(gateway: GatewayProcess) -> None:
    holder = Holder(gateway)
    film = EventStream(ask(gateway, CHAT, streamed(), headers=SHOW + b"X-LlamaSwap-Priority: batch\r\n"))
    assert film.news()["position"] == 1
    asks = ask(gateway, CHAT, streamed(), headers=SHOW + b"X-LlamaSwap-Priority: interactive\r\n")
    assert film.until(position=2)["ahead"] == {"interactive": 1}
    ask(gateway, CHAT, streamed(), headers=b"X-LlamaSwap-Member: other\r\n")
    assert film.until(position=3)["ahead"] == {"interactive": 1, "normal": 1}
    asks.close()
    assert film.until(position=2)["ahead"] == {"normal": 1}
    holder.end()
    assert film.until(state="running")


def test_a_load_is_told_as_such(gateway: GatewayProcess) -> None:
    gateway.unload()
    stream = EventStream(ask(gateway, CHAT, streamed("slow")))
    assert stream.news()["state"] == "loading"
    assert stream.until(state="running")
    assert stream.rest()[-1] == "data: [DONE]"


def test_an_estimate_is_given_once_jobs_were_measured_and_grows_with_the_place(gateway: GatewayProcess) -> None:
    for model in ("mA", "mB", "mA"):  # each has run and was loaded
        gateway.chat(model, stub={"dur": 0.2})
    holder = Holder(gateway)
    first, second = (EventStream(ask(gateway, CHAT, streamed("mB"))) for _ in range(2))
    waits = [stream.news()["expected_wait_s"] for stream in (first, second)]
    assert 0 <= waits[0] < waits[1]
    holder.end()
    assert first.until(state="running")
    assert second.until(state="running")


def test_the_model_is_asked_for_plain_text(gateway: GatewayProcess) -> None:
    holder = Holder(gateway)
    headers = SHOW + b"Accept-Encoding: gzip\r\nX-Mine: kept\r\n"
    stream = EventStream(ask(gateway, CHAT, streamed(rid="plain"), headers=headers))
    holder.end()
    stream.rest()
    (start,) = [entry for entry in gateway.journal("req_start") if entry["rid"] == "plain"]
    names = [header.partition(":")[0].lower() for header in start["headers"]]
    assert "x-mine" in names
    assert "accept-encoding" not in names
    assert not any(name.startswith("x-llamaswap") for name in names)


@pytest.mark.parametrize(
    ("path", "dialect"),
    [(path, dialect) for path, dialect in DIALECTS.items() if path.startswith("/v1/") and "audio" not in path]
    + [("/v/chat/completions", "openai"), ("/v/messages", "anthropic"), ("/v/responses", "responses")],
)
def test_a_cancel_is_told_in_the_words_of_the_route(gateway: GatewayProcess, path: str, dialect: str) -> None:
    holder = Holder(gateway)
    if path == "/v1/images/edits":  # it is for forms
        form = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        content = form % (b"model", b"mA") + form % (b"stream", b"true") + b"--b--\r\n"
        head = b"POST /v1/images/edits HTTP/1.1\r\nHost: g\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        connection = gateway.connection()
        connection.sendall(head + SHOW + b"Content-Length: %d\r\n\r\n" % len(content) + content)
    else:
        connection = ask(gateway, path, streamed())
    stream = EventStream(connection)
    assert stream.news()["state"] == "waiting"
    assert gateway.request("DELETE", f"/api/jobs/{stream.job}").status_code == 200
    events = stream.events()
    assert len(events) == 1
    words = "cancelled by request while it waited"
    name, _, data = events[0].rpartition("data: ")
    error = json.loads(data)
    match dialect:
        case "openai":
            assert name == ""
            assert (error["error"]["message"], error["error"]["status"]) == (words, 410)
        case "responses":
            assert name == "event: error\n"
            assert (error["type"], error["message"], error["code"]) == ("error", words, "cancelled")
        case _:
            assert name == "event: error\n"
            assert (error["type"], error["error"]["message"]) == ("error", words)
    holder.end()


def test_a_failed_start_ends_the_stream_with_its_words_whatever_the_client_accepts(gateway: GatewayProcess) -> None:
    stream = EventStream(ask(gateway, CHAT, streamed("broken"), headers=SHOW + b"Accept: text/html\r\n"))
    error = stream.error()["error"]
    assert error["status"] == 500
    assert error["message"].startswith("unspecific error: failed to start command")
    assert gateway.get(f"/api/jobs/{stream.job}").json()["outcome"] == "start_failed"


def test_a_wait_that_gets_too_long_ends_the_stream_with_when_to_come_again(gateway: GatewayProcess) -> None:
    holder = Holder(gateway)
    stream = EventStream(ask(gateway, CHAT, streamed(), headers=SHOW + b"X-LlamaSwap-Max-Wait: 0.3\r\n"))
    error = stream.error()["error"]
    assert (error["status"], error["code"]) == (429, "waited_too_long")
    assert error["retry_after_s"] >= 1
    holder.end()


@pytest.mark.parametrize("die_at", [0, 2])
def test_a_server_that_dies_ends_the_stream_with_an_error_and_the_connection_goes_on(
    gateway: GatewayProcess, die_at: int
) -> None:
    holder = Holder(gateway)
    connection = ask(gateway, CHAT, streamed(stub={"die_at": die_at}))
    stream = EventStream(connection)
    holder.end()
    events = stream.events()
    assert len(events) == die_at + 1
    assert "closed the connection" in json.loads(events[-1].removeprefix("data: "))["error"]["message"]
    assert gateway.get(f"/api/jobs/{stream.job}").json()["outcome"] == "upstream_broken"
    again = EventStream(ask(gateway, CHAT, streamed(), connection=connection))
    assert again.rest()[-1] == "data: [DONE]"


def test_a_break_in_the_middle_is_told_in_the_words_of_the_route(gateway: GatewayProcess) -> None:
    holder = Holder(gateway)
    stream = EventStream(ask(gateway, "/v1/messages", streamed(stub={"die_at": 1})))
    holder.end()
    _, error = stream.events()
    assert error.startswith('event: error\ndata: {"type":"error","error":{"type":"api_error"')


RAW = "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s\r\n%s"


def raw(status: str, kind: str, body: str, extra: str = "") -> dict[str, Any]:
    return {"raw": [RAW % (status, kind, len(body.encode("latin-1")), extra, body)], "close": True}


@pytest.mark.parametrize(
    ("answer", "events"),
    [
        (
            raw("400 Bad", "application/json", '{"error":{"message":"too long","type":"t","code":400}}'),
            ['data: {"error":{"message":"too long","type":"t","param":null,"code":400,"status":400}}'],
        ),
        (
            raw("429 Busy", "text/plain", "come again", "Retry-After: 3\r\n"),
            [
                'data: {"error":{"message":"come again","type":"rate_limit_error","param":null,'
                '"code":"rate_limit_exceeded","status":429,"retry_after_s":3}}'
            ],
        ),
        (
            raw("500 Oh", "text/event-stream", "data: no\n\n"),
            [
                'data: {"error":{"message":"data: no","type":"server_error","param":null,'
                '"code":"internal_error","status":500}}'
            ],
        ),
        (raw("200 OK", "application/json", '{"a":\n1}'), ['data: {"a":\ndata: 1}', "data: [DONE]"]),
        (raw("200 OK", "text/event-stream", "data: 1\n\ndata: 2\n\n"), ["data: 1", "data: 2"]),
    ],
    ids=["an error", "an error in plain words", "a stream that is an error", "no stream", "a stream of known length"],
)
def test_other_answers_are_events_too(gateway: GatewayProcess, answer: dict[str, Any], events: list[str]) -> None:
    holder = Holder(gateway)
    stream = EventStream(ask(gateway, CHAT, streamed(stub=answer)))
    holder.end()
    assert stream.events() == events


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (raw("200 OK", "image/png", "\x89PNG\xff"), "is neither a stream of events nor text"),
        (raw("200 OK", "text/event-stream", "\x1f\x8b", "Content-Encoding: gzip\r\n"), "is compressed"),
        (raw("200 OK", "text/plain", ""), "is empty"),
        ({"raw": ["HTTP/1.1 204 No\r\n\r\n"], "close": True}, "is empty"),
        (raw("302 Found", "text/plain", "", "Location: /x\r\n"), "answered 302 without a word"),
        ({"raw": ["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"], "close": True}, "broke off"),
        ({"raw": [0.0], "close": True}, "without an answer"),
    ],
)
def test_what_cannot_be_an_event_is_an_error(gateway: GatewayProcess, answer: dict[str, Any], words: str) -> None:
    holder = Holder(gateway)
    stream = EventStream(ask(gateway, CHAT, streamed(stub=answer)))
    holder.end()
    assert words in stream.error()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        (CHAT, {"model": "mA"}, SHOW),
        (CHAT, {"model": "mA", "stream": False}, SHOW),
        (CHAT, streamed(), b""),
        (CHAT, streamed(), b"X-LlamaSwap-Show-Wait: false\r\n"),
        (CHAT, streamed(), SHOW + b"Idempotency-Key: ignored\r\n"),
        ("/v1/embeddings", streamed(), SHOW),
        ("/v1/audio/speech", streamed(), SHOW),
        ("/upstream/mA/v1/chat/completions", streamed(), SHOW),
    ],
)
def test_where_nothing_can_be_shown_the_answer_is_as_ever(
    gateway: GatewayProcess, path: str, body: dict[str, Any], headers: bytes
) -> None:
    holder = Holder(gateway)
    connection = ask(gateway, path, body, headers=headers)
    eventually(lambda: gateway.queue()["waiting"], "it waits")
    holder.end()
    answer = EventStream(connection)
    assert answer.headers["X-LlamaSwap-Wait"] is not None
    assert not any(block.startswith(":") for block in ([] if "stream" not in body else answer.blocks))


def test_who_wants_it_later_is_told_so_at_once(gateway: GatewayProcess) -> None:
    holder = Holder(gateway)
    answer = EventStream(ask(gateway, CHAT, streamed(), headers=SHOW + b"Prefer: respond-async\r\n"))
    assert answer.status == 202
    holder.end()
    eventually(lambda: gateway.get(f"/api/jobs/{answer.job}").json()["state"] == "ended", "it has run")
    assert b": queue" not in gateway.get(f"/api/jobs/{answer.job}/result").content


def test_another_preference_changes_nothing(gateway: GatewayProcess) -> None:
    holder = Holder(gateway)
    stream = EventStream(ask(gateway, CHAT, streamed(), headers=SHOW + b"Prefer: wait=5\r\n"))
    assert stream.news()["state"] == "waiting"
    holder.end()
    assert stream.rest()[-1] == "data: [DONE]"


def test_an_old_client_is_told_too_and_its_answer_ends_with_the_connection(gateway: GatewayProcess) -> None:
    holder = Holder(gateway)
    stream = EventStream(ask(gateway, CHAT, streamed(), version=b"1.0"))
    assert stream.headers["Transfer-Encoding"] is None
    assert stream.headers["Connection"] == "close"
    assert stream.news()["state"] == "waiting"
    holder.end()
    assert stream.rest()[-1] == "data: [DONE]"


def test_a_head_is_no_stream(gateway: GatewayProcess) -> None:
    holder = Holder(gateway)
    connection = ask(gateway, "/v1/audio/voices?model=mA&stream=true", {}, method=b"HEAD")
    eventually(lambda: gateway.queue()["waiting"], "it waits")
    holder.end()
    answer = http.client.HTTPResponse(connection, method="HEAD")
    answer.begin()
    assert answer.headers["X-LlamaSwap-Wait"] is not None


def test_two_requests_on_one_connection_are_told_one_after_the_other(gateway: GatewayProcess) -> None:
    holder = Holder(gateway)
    connection = ask(gateway, CHAT, streamed(rid="one"))
    ask(gateway, CHAT, streamed(rid="two"), connection=connection)
    eventually(lambda: gateway.queue()["waiting"], "the first waits")
    holder.end()
    data = b""
    while data.count(b"\r\n0\r\n\r\n") < 2:
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    first, second, rest = data.split(b"\r\n0\r\n\r\n")
    assert rest == b""
    assert (first.count(b"HTTP/1.1 200 OK"), first.count(b"[DONE]")) == (1, 1)
    assert (second.count(b"HTTP/1.1 200 "), second.count(b"[DONE]")) == (1, 1)
    assert b'"rid": "two"' not in first
    assert b'"rid": "two"' in second
    connection.close()


@pytest.mark.parametrize("state", ["waiting", "loading"])
def test_who_leaves_while_being_told_is_out_of_the_line_at_once(gateway: GatewayProcess, state: str) -> None:
    gateway.unload()
    holder = Holder(gateway) if state == "waiting" else None
    connection = ask(gateway, CHAT, streamed("slow", rid=f"leaves-{state}"))
    stream = EventStream(connection)
    assert stream.news()["state"] == state
    connection.close()
    stream.close()
    eventually(lambda: gateway.get(f"/api/jobs/{stream.job}").json().get("outcome") == "left_waiting", "it has left")
    assert not any(entry["rid"] == f"leaves-{state}" for entry in gateway.journal("req_start"))
    if holder is not None:
        holder.end()


def test_two_hundred_are_told_at_once(gateway: GatewayProcess) -> None:
    holder = Holder(gateway)
    streams = [EventStream(ask(gateway, CHAT, streamed(stub={"chunks": 1}))) for _ in range(200)]
    positions = [stream.news()["position"] for stream in streams]
    counted = positions.index(None) if None in positions else 200  # on a slow machine it is not counted to the end
    assert counted >= LEAST_COUNTED
    assert positions == [*range(1, counted + 1), *[None] * (200 - counted)]
    holder.end()
    assert all(stream.rest()[-1] == "data: [DONE]" for stream in streams)


# The text of `sendLoadingState`


def thoughts(stream: EventStream) -> str:
    chunks = [
        json.loads(event.removeprefix("data: ")) for event in stream.blocks if event.startswith('data: {"choices"')
    ]
    assert all(list(chunk) == ["choices"] for chunk in chunks)
    return "".join(chunk["choices"][0]["delta"]["reasoning_content"] for chunk in chunks)


def test_a_chat_is_told_in_its_own_text(gateway: GatewayProcess) -> None:
    holder = Holder(gateway)
    stream = EventStream(ask(gateway, CHAT, streamed("told"), headers=b""))
    assert stream.next() == (
        r'data: {"choices":[{"delta":{"reasoning_content":"━━━━━\nswaplane: told\nQueue position: #1 "}}]}'
    )
    holder.end()
    assert stream.rest()[-1] == "data: [DONE]"
    text = thoughts(stream)
    assert "\nDone! (" in text
    assert text.endswith("s)\n━━━━━\n \n")
    assert not any(block.startswith(":") for block in stream.blocks)


def test_text_and_comments_go_together(gateway: GatewayProcess) -> None:
    holder = Holder(gateway)
    stream = EventStream(ask(gateway, CHAT, streamed("told")))
    assert stream.news()["position"] == 1
    assert "Queue position: #1" in (stream.next() or "")
    holder.end()
    stream.rest()
    assert "Done!" in thoughts(stream)
    assert any('"state": "running"' in block for block in stream.blocks)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/v1/responses", "/v/chat/completions"])
def test_only_chats_have_the_text(gateway: GatewayProcess, path: str) -> None:
    holder = Holder(gateway)
    connection = ask(gateway, path, streamed("told"), headers=b"")
    eventually(lambda: gateway.queue()["waiting"], "it waits")
    holder.end()
    answer = EventStream(connection)
    assert answer.headers["X-LlamaSwap-Wait"] is not None
    answer.rest()
    assert "reasoning_content" not in "".join(answer.blocks)


def test_a_wait_that_fails_is_not_told_as_done(gateway: GatewayProcess) -> None:
    holder = Holder(gateway)
    stream = EventStream(ask(gateway, CHAT, streamed("told"), headers=b""))
    stream.next()
    gateway.request("DELETE", f"/api/jobs/{stream.job}")
    assert json.loads(stream.rest()[-1].removeprefix("data: "))["error"]["status"] == 410
    assert "Done" not in "".join(stream.blocks)
    holder.end()


# The gateway's own ends


def test_a_model_that_a_reload_removes_is_told_as_an_error(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, stub_models("mA", "mB")) as gateway:
        holder = Holder(gateway)
        stream = EventStream(ask(gateway, CHAT, streamed("mB")))
        stays = EventStream(ask(gateway, CHAT, streamed("mA")))
        assert stream.news()["state"] == stays.news()["state"] == "waiting"
        gateway.write_config(stub_models("mA"))
        gateway.process.send_signal(signal.SIGHUP)
        assert stream.error()["error"]["status"] == 404
        holder.end()
        assert stays.rest()[-1] == "data: [DONE]"


def test_a_shutdown_is_told_as_an_error(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, stub_models("mA")) as gateway:
        gateway.raw_chat("mA", "runs", stub={"dur": 1})
        eventually(lambda: gateway.journal("req_start"), "it runs")
        streams = [EventStream(ask(gateway, path, streamed("mA"))) for path in (CHAT, "/v1/messages")]
        assert [stream.news()["state"] for stream in streams] == ["waiting", "waiting"]
        gateway.process.send_signal(signal.SIGTERM)
        openai, anthropic = (stream.error() for stream in streams)
        assert (openai["error"]["status"], openai["error"]["message"]) == (503, "the gateway is shutting down")
        assert anthropic["error"] == {"type": "overloaded_error", "message": "the gateway is shutting down"}
