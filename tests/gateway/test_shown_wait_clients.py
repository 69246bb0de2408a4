"""What the real `openai` client makes of a stream that tells its wait, and a client that does not read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionUserMessageParam

from swaplane.core.events import Job
from swaplane.gateway.client_side import ClientSide
from swaplane.gateway.connection import Framing, RawHeaders
from swaplane.gateway.shown_wait import Comments, LoadingText, ShownWait
from swaplane.gateway.waits import Outlook, Tell, Waits
from swaplane.ticket import Dropped, Run, Ticket
from tests.support.gateway import GatewayProcess, stub_models
from tests.support.stub_client import eventually

SHOW = {"X-LlamaSwap-Show-Wait": "true"}
MESSAGES: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("clients"), "sendLoadingState: true\n" + stub_models("mA")) as gateway:
        yield gateway


@pytest.fixture
def end_holder(gateway: GatewayProcess) -> Iterator[Callable[[], None]]:
    """A job runs until this is called."""
    connection = gateway.raw_chat("mA", "holds", stub={"dur": 600})
    eventually(lambda: any(job["state"] == "running" for job in gateway.queue()["running"]), "a job runs")
    yield connection.close
    connection.close()
    eventually(lambda: not gateway.queue()["running"], "nothing is left")


def test_a_chat_reads_its_answer_as_if_nothing_had_been_told(
    client: openai.OpenAI, end_holder: Callable[[], None]
) -> None:
    stream = client.chat.completions.create(model="mA", messages=MESSAGES, stream=True, extra_headers=SHOW)
    chunks: list[ChatCompletionChunk] = []
    for chunk in stream:
        if not chunks:
            end_holder()
        chunks.append(chunk)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "w0 w1 w2 "
    thoughts = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert "Queue position: #1" in thoughts
    assert "Done!" in thoughts


def test_a_cancelled_chat_raises_with_the_reason(
    client: openai.OpenAI, gateway: GatewayProcess, end_holder: Callable[[], None]
) -> None:
    stream = client.chat.completions.create(model="mA", messages=MESSAGES, stream=True, extra_headers=SHOW)
    gateway.request("DELETE", f"/api/jobs/{stream.response.headers['X-LlamaSwap-Job']}")
    with pytest.raises(openai.APIError, match="cancelled by request while it waited") as caught:
        list(stream)
    assert caught.value.code == "cancelled"
    end_holder()


def test_a_cancelled_response_raises_with_the_reason(
    client: openai.OpenAI, gateway: GatewayProcess, end_holder: Callable[[], None]
) -> None:
    stream = client.responses.create(model="mA", input="Hello", stream=True, extra_headers=SHOW)
    gateway.request("DELETE", f"/api/jobs/{stream.response.headers['X-LlamaSwap-Job']}")
    with pytest.raises(openai.APIError, match="cancelled by request while it waited"):
        list(stream)
    end_holder()


def test_comments_alone_are_skipped(client: openai.OpenAI, end_holder: Callable[[], None]) -> None:
    stream = client.completions.create(model="mA", prompt="Hello", stream=True, extra_headers=SHOW)
    end_holder()
    assert [chunk.object for chunk in stream] == ["chat.completion.chunk"] * 4


# A client that does not read


class Unread:
    """A client whose buffer is full until somebody says otherwise."""

    method, target, raw_headers, client = b"POST", b"/t", [(b"Accept", b"text/html"), (b"X-A", b"1")], None
    departed = False

    def __init__(self) -> None:
        self.writable = False
        self.unsent_bytes = 0
        self.written = b""
        self.started: list[tuple[int, RawHeaders, Framing]] = []
        self.finished = 0

    def header(self, name: bytes) -> bytes:
        return next((value for key, value in self.raw_headers if key.lower() == name), b"")

    def on_writable(self, callback: Callable[[], None] | None) -> None: ...

    def on_departure(self, callback: Callable[[], None] | None) -> None: ...

    def start(self, *, status: int, reason: bytes, headers: RawHeaders, framing: Framing) -> None:
        self.started.append((status, headers, framing))

    def write(self, data: bytes) -> None:
        self.written += data

    gather = write

    def flush(self) -> None: ...

    def finish(self) -> None:
        self.finished += 1

    def abort(self, last: bytes = b"") -> None:
        raise AssertionError("it ends cleanly")


class OneWait:
    """The one that is told, at the test's hand."""

    def __init__(self) -> None:
        self.tell: Tell | None = None

    def add(self, job_id: str, tell: Tell) -> None:
        self.tell = tell

    def remove(self, job_id: str) -> None:
        self.tell = None


class Told:
    def __init__(self) -> None:
        self.client = Unread()
        self.waits = OneWait()
        self.turn: asyncio.Future[Run | Dropped] = asyncio.get_running_loop().create_future()
        job = Job(id="j-1", seq=1, model="mA", member="m", priority=5, submitted_at=0.0)
        ticket = SimpleNamespace(job=job, turn=self.turn, priority_reason="")
        self.shown = ShownWait(
            cast("ClientSide", self.client),
            cast("Ticket", ticket),
            cast("Waits", self.waits),
            dialect="openai",
            voices=[Comments(), LoadingText("mA")],
            reason="",
        )

    def tell(self, position: int, now: float) -> None:
        assert self.waits.tell is not None
        self.waits.tell(Outlook(state="waiting", position=position, ahead={}), now)


@pytest.mark.anyio
async def test_who_does_not_read_is_told_nothing_and_later_the_newest() -> None:
    told = Told()
    for position in range(1000, 2, -1):
        told.tell(position, 2000.0 - position)
    assert told.client.written == b""
    told.client.writable = True
    told.tell(2, 2000.0)
    assert told.client.written.count(b": queue ") == 1
    assert b'"position": 2,' in told.client.written
    assert b"Queue position: #2" in told.client.written


@pytest.mark.anyio
async def test_who_was_cancelled_from_outside_is_told_no_more() -> None:
    told = Told()
    told.turn.cancel()
    await asyncio.sleep(0)
    assert told.waits.tell is None
    assert told.client.written == b""


@pytest.mark.anyio
async def test_the_head_goes_out_once_and_the_turn_is_told_even_to_who_does_not_read() -> None:
    told = Told()
    ((status, headers, framing),) = told.client.started
    assert (status, framing) == (200, "chunked")
    assert headers[-2:] == [(b"X-LlamaSwap-Job", b"j-1"), (b"X-LlamaSwap-Priority", b"5")]
    told.turn.set_result(Run(proxy="", waited_s=2.0))
    await asyncio.sleep(0)
    assert told.waits.tell is None
    assert b'"waited_s": 2.0' in told.client.written
    assert b"Done! (2.00s)" in told.client.written
    stream = [(b"content-type", b"Text/Event-Stream; charset=utf-8")]
    told.shown.start(status=200, reason=b"", headers=stream, framing="close")
    told.shown.write(b"data: 1\n\n")
    told.shown.finish()
    assert len(told.client.started) == 1
    assert told.client.written.endswith(b"\n\ndata: 1\n\n")
    assert told.client.finished == 1


@pytest.mark.anyio
async def test_an_answer_that_is_no_stream_is_held_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swaplane.gateway.shown_wait._WHOLE_BYTES", 1000)
    for size, fits in ((1000, True), (1001, False), (100_000, False)):
        told = Told()
        told.shown.start(status=200, reason=b"", headers=[(b"Content-Type", b"text/plain")], framing="chunked")
        for start in range(0, size, 100):
            told.shown.write(b"x" * min(100, size - start))
        told.shown.finish()
        assert told.client.finished == 1
        event = told.client.written.removeprefix(b"data: ").partition(b"\n\n")[0]
        if fits:
            assert event == b"x" * size
        else:
            assert "longer than the 1000 bytes" in json.loads(event)["error"]["message"]


@pytest.mark.anyio
async def test_a_stream_that_breaks_inside_an_event_has_its_error_in_one_of_its_own() -> None:
    told = Told()
    headers = [(b"Content-Type", b"text/event-stream")]
    told.shown.start(status=200, reason=b"", headers=headers, framing="chunked")
    told.shown.gather(b'data: {"choi')
    told.shown.abort()
    half, error, rest = told.client.written.split(b"\n\n")
    assert (half, rest) == (b'data: {"choi', b"")
    assert "broke off" in json.loads(error.removeprefix(b"data: "))["error"]["message"]
    assert told.client.finished == 1


@pytest.mark.anyio
async def test_errors_are_asked_for_as_json_and_other_headers_are_the_clients() -> None:
    told = Told()
    assert told.shown.header(b"accept") == b""
    assert told.shown.header(b"x-a") == b"1"
