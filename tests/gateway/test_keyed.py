from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx2
import openai
import pytest

from swaplane.config.settings import ModelSettings
from swaplane.core.outcomes import Outcome
from swaplane.gateway import keyed as module
from swaplane.gateway import recording
from swaplane.gateway.answers import send_answer
from swaplane.gateway.body import Body, read_body
from swaplane.gateway.client_side import ClientSide
from swaplane.gateway.errors import RequestRefused
from swaplane.gateway.front import Wire
from swaplane.gateway.headers import OwnHeaders, Priority
from swaplane.gateway.keyed import GRACE_S, KeyedRequests, fingerprint, idempotency_key
from swaplane.gateway.passage import Errand, Passage
from tests.support.data_path import RawClient, WireApp, serving, soon
from tests.support.gateway import GatewayProcess, stub_models
from tests.support.stub_client import eventually

pytestmark = pytest.mark.anyio

MIB = 1 << 20
REPLAYED = b"x-llamaswap-replayed"


# The header


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([], None),
        ([(b"X-Idempotency-Key", b"a")], None),
        ([(b"Idempotency-Key", b"a")], "a"),
        ([(b"iDEMPOTENCY-kEY", b" \t a-1 \t")], "a-1"),
        ([(b"Idempotency-Key", b'"8e03978e"')], '"8e03978e"'),
        ([(b"Idempotency-Key", b"a"), (b"X", b"b"), (b"idempotency-key", b" a")], "a"),
        ([(b"Idempotency-Key", b"!" + b"k" * 253 + b"~")], "!" + "k" * 253 + "~"),
    ],
)
def test_the_key_is_read(headers: list[tuple[bytes, bytes]], key: str | None) -> None:
    assert idempotency_key(headers) == key


@pytest.mark.parametrize(
    "headers",
    [
        [(b"Idempotency-Key", b"")],
        [(b"Idempotency-Key", b" ")],
        [(b"Idempotency-Key", b"k" * 256)],
        [(b"Idempotency-Key", b"a b")],
        [(b"Idempotency-Key", b"caf\xe9")],
        [(b"Idempotency-Key", b"a\x7f")],
        [(b"Idempotency-Key", b"a\n")],
        [(b"Idempotency-Key", b"a"), (b"idempotency-key", b"b")],
        [(b"Idempotency-Key", b"a"), (b"idempotency-key", b"")],
    ],
)
def test_a_key_that_makes_no_sense_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(RequestRefused, match="Idempotency-Key") as refused:
        idempotency_key(headers)
    assert refused.value.status == 400


# The comparison


async def mark(method: bytes = b"POST", target: bytes = b"/v1/x?y", kind: bytes = b"a/b", body: bytes = b"body") -> str:
    return await fingerprint(method, target, kind, Body(body, len(body)))


async def test_every_part_of_a_request_counts() -> None:
    marks = [
        await mark(),
        await mark(method=b"PUT"),
        await mark(target=b"/v1/x"),
        await mark(kind=b"a/c"),
        await mark(body=b"bodY"),
        await mark(body=b""),
    ]
    assert len(set(marks)) == len(marks)
    assert await mark() == marks[0]


async def test_a_form_is_the_same_with_another_boundary() -> None:
    def form(boundary: bytes, value: bytes) -> dict[str, bytes]:
        part = b'--%b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n%b\r\n--%b--\r\n'
        kind = b"multipart/form-data; boundary=" + boundary
        return {"kind": kind, "body": part % (boundary, value, boundary)}

    first = await mark(**form(b"1234", b"a dog"))
    assert await mark(**form(b"abcdefgh", b"a dog")) == first
    assert await mark(**form(b"1234", b"a cat")) != first
    assert await mark(**{**form(b"1234", b"a dog"), "kind": b"multipart/mixed; boundary=1234"}) != first


async def test_a_long_body_on_disk_is_compared_as_it_was_received() -> None:
    content = os.urandom(3 * MIB)

    async def on_disk(data: bytes) -> Body:
        messages = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> dict[str, Any]:
            return messages.pop()

        return await read_body(receive)

    with await on_disk(content) as body, await on_disk(content[:-1] + b"\0") as other:
        body.splice(0, 10, b"another name")
        first = await fingerprint(b"POST", b"/", b"", body)
        assert first == await mark(target=b"/", kind=b"", body=content)
        assert first != await fingerprint(b"POST", b"/", b"", other)


# The jobs, with a passage that does as it is told


class Job:
    """One job of the passage below: the test writes its answer and says how it ends."""

    def __init__(self, errand: Errand) -> None:
        self.errand = errand
        self.end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.client: ClientSide
        self.left = False

    def leave(self) -> None:
        self.left = True
        if not self.end.done():
            self.end.set_result(Outcome.LEFT_RUNNING)

    def begin(self, status: int = 200) -> None:
        self.client.start(status=status, reason=b"Said", headers=[(b"X-Job", b"1")], framing="chunked")

    def answer(self, data: bytes, outcome: Outcome = Outcome.COMPLETED, *, status: int = 200) -> None:
        self.begin(status)
        self.client.write(data)
        self.client.finish()
        self.end.set_result(outcome)

    @property
    def closed(self) -> bool:
        return self.errand.body.view() == b""


class Passing:
    """In place of `Passage`."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.refusal: RequestRefused | None = None

    def submit(self, errand: Errand) -> Job:
        if self.refusal is not None:
            raise self.refusal
        self.jobs.append(Job(errand))
        return self.jobs[-1]

    async def run(self, client: ClientSide, errand: Errand, job: Job) -> Outcome:
        job.client = client
        client.on_departure(job.leave)
        try:
            return await job.end
        finally:
            client.on_departure(None)


class Scene:
    """A front, an app that knows nothing but keys, and a passage."""

    def __init__(self, *, grace_s: float, replay_s: float) -> None:
        self.passing = Passing()
        self.keyed = KeyedRequests(lambda: replay_s, grace_s=grace_s)
        self.app = WireApp(self.serve)
        self.bodies: list[Body] = []
        self.waiting = 0  # clients
        self.port = 0

    async def serve(self, wire: Wire, content: bytes) -> None:
        body = Body(content, len(content))
        self.bodies.append(body)
        member = wire.header(b"x-llamaswap-member").decode()
        errand = Errand(
            model=cast("ModelSettings", None),
            method=wire.method,
            target=wire.target,
            headers=wire.raw_headers,
            client_host="h",
            body=body,
            own=OwnHeaders(priority=Priority(applied=0, requested=None), member=member, label=""),
        )
        self.waiting += 1
        try:
            key = idempotency_key(wire.raw_headers)
            assert key is not None
            await self.keyed.run(wire, errand, cast("Passage", self.passing), key)
        except RequestRefused as refused:
            send_answer(wire, refused.status, *refused.response())
        finally:
            self.waiting -= 1

    @contextlib.asynccontextmanager
    async def asking(self, key: bytes = b"k", body: bytes = b"body", member: bytes = b"m") -> AsyncIterator[RawClient]:
        """A client whose request has arrived."""
        before = len(self.bodies)
        async with RawClient.to(self.port) as client:
            head = b"POST /t HTTP/1.1\r\nHost: gw\r\nX-LlamaSwap-Member: %b\r\nIdempotency-Key: %b\r\n" % (member, key)
            client.send(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            await soon(lambda: len(self.bodies) > before, "the request has arrived")
            yield client

    async def job(self, number: int = 0) -> Job:
        """The job with this number once it is under way."""
        await soon(lambda: len(self.passing.jobs) > number, "the job")
        job = self.passing.jobs[number]
        await soon(lambda: hasattr(job, "client"), "the passage of the job")
        return job

    async def nobody(self) -> None:
        await soon(lambda: not self.waiting, "all clients have been let go")


@contextlib.asynccontextmanager
async def scene(*, grace_s: float = 600, replay_s: float = 600) -> AsyncIterator[Scene]:
    stage = Scene(grace_s=grace_s, replay_s=replay_s)
    async with serving(stage.app) as served:
        stage.port = served.port
        try:
            yield stage
        finally:
            await stage.keyed.close()
    assert repr(stage.keyed) == "<KeyedRequests: 0 jobs, 0 answers of 0 bytes>"


async def test_a_repetition_gets_the_first_answer_at_any_time() -> None:
    async with scene() as stage, stage.asking() as first, stage.asking() as waiting:
        job = await stage.job()
        job.begin()
        async with stage.asking() as begun:
            job.client.write(b"half")
            for client in (first, waiting, begun):
                await client.reader.readuntil(b"half\r\n")
            async with stage.asking() as in_the_middle:
                await in_the_middle.reader.readuntil(b"half\r\n")
                job.client.write(b"full")
                job.client.finish()
                job.end.set_result(Outcome.COMPLETED)
                for client in (first, waiting, begun, in_the_middle):
                    assert await client.reader.readuntil(b"0\r\n\r\n") == b"4\r\nfull\r\n0\r\n\r\n"
        async with stage.asking() as late:
            answer = await late.answer()
        assert (answer.status, answer.reason, answer.body) == (200, b"Said", b"halffull")
        assert answer.get(b"x-job") == b"1"
        assert len(stage.passing.jobs) == 1


async def test_only_repetitions_are_marked() -> None:
    async with scene() as stage, stage.asking() as first, stage.asking() as second:
        (await stage.job()).answer(b"a")
        assert (await first.answer()).get(REPLAYED) is None
        assert (await second.answer()).get(REPLAYED) == b"true"
        async with stage.asking() as third:
            assert (await third.answer()).get(REPLAYED) == b"true"


async def test_a_key_of_another_request_is_refused() -> None:
    async with scene() as stage, stage.asking(b"some-key") as first:
        job = await stage.job()
        for _ in ("while it runs", "afterwards"):
            async with stage.asking(b"some-key", b"other") as second:
                answer = await second.answer()
            assert answer.status == 422
            assert b"`some-key` belongs to an earlier request" in answer.body
            assert b'"code":"idempotency_key_reused"' in answer.body
            assert stage.bodies[-1].view() == b""
            if not job.end.done():
                job.answer(b"a")
                assert (await first.answer()).body == b"a"
        assert len(stage.passing.jobs) == 1


async def test_a_key_belongs_to_its_member() -> None:
    async with scene() as stage, stage.asking(member=b"ada") as ada, stage.asking(member=b"bob") as bob:
        (await stage.job(0)).answer(b"for ada")
        (await stage.job(1)).answer(b"for bob")
        assert {(await ada.answer()).body, (await bob.answer()).body} == {b"for ada", b"for bob"}


async def test_a_body_is_held_as_long_as_its_job_and_no_longer() -> None:
    async with scene() as stage, stage.asking() as first, stage.asking():
        job = await stage.job()
        await soon(lambda: stage.bodies[1].view() == b"", "the body of the repetition is closed")
        first.leave("fin")
        await soon(lambda: stage.waiting == 1, "the first has left")
        assert stage.bodies[0].view() == b"body"
        job.answer(b"a")
        await soon(lambda: job.closed, "the body is closed")


async def test_a_job_goes_on_until_its_client_comes_back() -> None:
    async with scene() as stage:
        async with stage.asking() as first:
            job = await stage.job()
            job.begin()
            job.client.write(b"half")
            await first.reader.readuntil(b"half\r\n")
        await stage.nobody()
        assert not job.left
        job.client.write(b"full")
        async with stage.asking() as second:
            assert b"X-LlamaSwap-Replayed: true" in await second.reader.readuntil(b"half")
            job.client.finish()
            job.end.set_result(Outcome.COMPLETED)
            await second.reader.readuntil(b"full\r\n0\r\n\r\n")
        assert len(stage.passing.jobs) == 1


async def test_an_answer_that_ends_while_nobody_listens_is_there_later() -> None:
    async with scene() as stage:
        async with stage.asking():
            job = await stage.job()
        await stage.nobody()
        job.answer(b"a")
        async with stage.asking() as second:
            assert (await second.answer()).body == b"a"


async def test_a_job_to_which_nobody_comes_back_ends_and_its_key_is_free() -> None:
    async with scene(grace_s=0) as stage:
        async with stage.asking() as first, stage.asking() as second:
            job = await stage.job()
            first.leave("rst")
            await soon(lambda: stage.waiting == 1, "the first has left")
            assert not job.left
            second.leave("fin")
            await soon(lambda: job.left and job.closed, "the end of the job")
        async with stage.asking() as third:
            (await stage.job(1)).answer(b"anew")
            answer = await third.answer()
            assert (answer.body, answer.get(REPLAYED)) == (b"anew", None)


async def test_who_comes_back_stops_the_clock() -> None:
    async with scene(grace_s=1) as stage:
        async with stage.asking(b"returns"):
            kept = await stage.job(0)
        await stage.nobody()
        async with stage.asking(b"returns"):
            async with stage.asking(b"answered"):
                answered = await stage.job(1)
            await soon(lambda: stage.waiting == 1, "one is there")
            answered.begin()
            answered.client.finish()  # and goes on
            async with stage.asking(b"lost"):
                lost = await stage.job(2)
            await soon(lambda: lost.left, "the latest clock has run out")
            assert not kept.left
            async with stage.asking(b"answered") as again:
                assert (await again.answer()).get(REPLAYED) == b"true"
    assert GRACE_S > 8, "the longest pause of the SDKs"


async def test_a_job_that_outlives_its_answer_does_not_need_listeners() -> None:
    async with scene(grace_s=0) as stage:
        async with stage.asking() as first:
            job = await stage.job()
            job.begin()
            job.client.write(b"accepted")
            job.client.finish()
            assert (await first.answer()).body == b"accepted"
        for _ in range(2):
            async with stage.asking() as again:
                assert (await again.answer()).body == b"accepted"
        assert not job.left
        assert not job.end.done()
        job.end.set_result(Outcome.COMPLETED)
        async with stage.asking() as last:
            assert (await last.answer()).body == b"accepted"
        assert len(stage.passing.jobs) == 1


@pytest.mark.parametrize("outcome", list(Outcome))
async def test_only_a_models_answer_is_kept(outcome: Outcome) -> None:
    async with scene() as stage, stage.asking() as first, stage.asking() as second:
        job = await stage.job()
        job.answer(b"a", outcome, status=500)
        assert (await first.answer()).body == (await second.answer()).body == b"a"
        await soon(lambda: job.closed, "the end of the job")
        async with stage.asking() as later:
            if outcome in (Outcome.COMPLETED, Outcome.UPSTREAM_ERROR):
                assert (await later.answer()).body == b"a"
            else:
                (await stage.job(1)).answer(b"b")
                assert (await later.answer()).body == b"b"


@pytest.mark.parametrize(("status", "outcome"), [(429, Outcome.COMPLETED), (503, Outcome.UPSTREAM_ERROR)])
async def test_a_server_that_says_not_now_is_asked_again(status: int, outcome: Outcome) -> None:
    async with scene() as stage, stage.asking() as first:
        (await stage.job()).answer(b"later", outcome, status=status)
        assert (await first.answer()).status == status
        await soon(lambda: "0 jobs" in repr(stage.keyed), "the end of the job")
        async with stage.asking() as second:
            (await stage.job(1)).answer(b"now")
            assert (await second.answer()).body == b"now"


async def ask(stage: Scene, key: bytes, answer: bytes) -> bytes | None:
    """A request with this key; a new job answers so. Its mark."""
    jobs = len(stage.passing.jobs)
    async with stage.asking(key) as client:
        reading = asyncio.ensure_future(client.answer())
        await soon(lambda: reading.done() or len(stage.passing.jobs) > jobs, "an answer or a job")
        if not reading.done():
            (await stage.job(jobs)).answer(answer)
            await soon(lambda: "<KeyedRequests: 0 jobs" in repr(stage.keyed), "the end of the job")
        return (await reading).get(REPLAYED)


async def test_an_answer_is_kept_for_its_time() -> None:
    async with scene(replay_s=0) as stage:
        assert await ask(stage, b"k", b"a") is None
        await soon(lambda: "0 answers" in repr(stage.keyed), "its time is over")
        assert await ask(stage, b"k", b"a") is None


async def test_the_oldest_answers_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_ANSWERS", 2)
    async with scene() as stage:
        for key in (b"1", b"2", b"3"):
            assert await ask(stage, key, b"a") is None
        assert [await ask(stage, key, b"a") for key in (b"3", b"2", b"1")] == [b"true", b"true", None]


async def test_an_answer_that_made_room_is_forgotten_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "KEPT_ANSWERS", 1)
    async with scene(replay_s=1) as stage:
        assert [await ask(stage, b"1", b"a") for _ in range(2)] == [None, b"true"]
        assert await ask(stage, b"2", b"a") is None
        await soon(lambda: "0 answers" in repr(stage.keyed), "the time of the second, and of the first, is over")
    assert not [record for record in caplog.records if record.name == "asyncio"], caplog.text


async def test_an_answer_that_the_disk_spoiled_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(file: object, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recording, "_write", write)
    async with scene() as stage:
        for _ in range(2):
            assert await ask(stage, b"k", b"x" * 2 * MIB) is None


async def test_kept_answers_have_a_limit_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 3 * MIB)
    async with scene() as stage:
        for key in (b"1", b"2", b"3"):
            assert await ask(stage, key, b"x" * (MIB + MIB // 2)) is None
        assert [await ask(stage, key, b"a") for key in (b"3", b"2", b"1")] == [b"true", b"true", None]
        assert await ask(stage, b"huge", b"x" * 4 * MIB) is None
        assert "0 answers of 0 bytes" in repr(stage.keyed)


async def test_a_refused_submit_takes_no_key() -> None:
    async with scene() as stage:
        stage.passing.refusal = RequestRefused("no")
        async with stage.asking() as first:
            assert (await first.answer()).status == 400
        assert stage.bodies[0].view() == b""
        stage.passing.refusal = None
        assert await ask(stage, b"k", b"a") is None


async def test_a_fault_breaks_the_answer_and_frees_the_key(caplog: pytest.LogCaptureFixture) -> None:
    async with scene() as stage:
        async with stage.asking() as first, stage.asking() as second:
            job = await stage.job()
            job.begin()
            job.client.write(b"half")
            job.end.set_exception(ZeroDivisionError("a fault"))
            for client in (first, second):
                answer = await client.answer()
                assert (b"".join(answer.chunks), answer.whole) == (b"half", False)
        assert "ZeroDivisionError" in caplog.text
        assert await ask(stage, b"k", b"a") is None


async def test_closing_ends_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.1)
    async with scene() as stage, stage.asking(b"1") as early, stage.asking(b"2") as begun:
        await stage.job(0)
        job = await stage.job(1)
        job.begin()
        job.client.write(b"half")
        await begun.reader.readuntil(b"half\r\n")
        await asyncio.wait_for(stage.keyed.close(), 20)
        assert all(job.end.cancelled() and job.closed for job in stage.passing.jobs)
        assert await begun.rest() == b""
        with contextlib.suppress(ConnectionError):
            assert await early.rest() == b""


# The same with a real gateway and a stub model


class Retrier:
    """A gateway's clients that all use one key."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self.threads = ThreadPoolExecutor(8)

    def ask(self, rid: str, key: str = "one", **stub: Any) -> httpx2.Response:
        """One request, waited for."""
        content = {"model": "mA", "rid": rid, "stub": stub}
        with self.gateway.client() as client:
            return client.post("/v1/chat/completions", json=content, headers={"Idempotency-Key": key})

    def begin(self, rid: str, key: str = "one", **stub: Any) -> Future[httpx2.Response]:
        """One request, sent."""
        return self.threads.submit(self.ask, rid, key, **stub)

    def raw(self, rid: str, key: bytes = b"one", **stub: Any) -> socket.socket:
        """The same bytes as `ask` sends, over a bare socket that the test may close."""
        content = json.dumps({"model": "mA", "rid": rid, "stub": stub}, separators=(",", ":")).encode()
        connection = socket.create_connection(("127.0.0.1", self.gateway.port))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
        head += b"Idempotency-Key: %b\r\nContent-Length: %d\r\n\r\n" % (key, len(content))
        connection.sendall(head + content)
        return connection

    def seen_by_model(self) -> list[str]:
        return [entry["rid"] for entry in self.gateway.journal("req_start")]


@pytest.fixture
def retrier(tmp_path: Path) -> Iterator[Retrier]:
    with GatewayProcess(tmp_path, stub_models("mA")) as gateway:
        retrier = Retrier(gateway)
        yield retrier
        retrier.threads.shutdown()


def is_replay(answer: httpx2.Response) -> bool:
    return answer.headers.get("X-LlamaSwap-Replayed") == "true"


def test_a_retry_that_waits_takes_no_second_place(retrier: Retrier) -> None:
    running = retrier.begin("before", "other", dur=2)
    eventually(lambda: retrier.gateway.journal("req_start"), "a job runs")
    first = retrier.begin("waits")
    eventually(lambda: retrier.gateway.queue()["waiting"], "the next waits")
    second = retrier.begin("waits")
    assert second.result().content == first.result().content
    assert [is_replay(first.result()), is_replay(second.result())] == [False, True]
    for name in ("X-LlamaSwap-Job", "X-LlamaSwap-Wait", "Content-Length"):
        assert first.result().headers[name] == second.result().headers[name]
    assert running.result().status_code == 200
    assert retrier.seen_by_model() == ["before", "waits"]
    assert retrier.gateway.metric("swaplane_jobs_total") == 2


def test_a_retry_while_the_first_runs_and_one_afterwards(retrier: Retrier) -> None:
    first = retrier.begin("once", dur=1)
    eventually(lambda: retrier.gateway.journal("req_start"), "the first runs")
    second = retrier.begin("once", dur=1)
    third = retrier.ask("once", dur=1)
    assert first.result().content == second.result().content == third.content
    again = retrier.ask("once", dur=1)
    assert (again.content, is_replay(again)) == (third.content, True)
    assert retrier.seen_by_model() == ["once"]


def test_a_stream_goes_on_for_a_client_that_lost_it(retrier: Retrier) -> None:
    content = json.dumps({"model": "mA", "rid": "stream", "stream": True, "stub": {"chunks": 4, "gap": 0.5}})
    path, headers = "/v1/chat/completions", {"Idempotency-Key": "one", "Content-Type": "application/json"}
    with retrier.gateway.client() as client:
        with client.stream("POST", path, content=content, headers=headers) as lost:
            begun = next(lost.iter_bytes())
        assert b"w0" in begun
        assert b"[DONE]" not in begun
        again = client.post(path, content=content, headers=headers)
    assert is_replay(again)
    assert again.headers["Content-Type"] == "text/event-stream"
    assert [f"w{number}" in again.text for number in range(5)] == [True] * 4 + [False]
    assert again.text.endswith("data: [DONE]\n\n")
    assert again.content.startswith(begun)
    assert retrier.seen_by_model() == ["stream"]
    assert not retrier.gateway.journal("client_gone")


@pytest.mark.parametrize("when", ["waits", "runs"])
def test_a_client_that_is_gone_and_comes_back_finds_its_job(retrier: Retrier, when: str) -> None:
    gateway = retrier.gateway
    if when == "waits":
        retrier.begin("before", "other", dur=2)
        eventually(lambda: gateway.journal("req_start"), "a job runs")
    lost = retrier.raw("mine", dur=1)
    if when == "waits":
        eventually(lambda: gateway.queue()["waiting"], "it waits")
    else:
        eventually(lambda: "mine" in retrier.seen_by_model(), "it runs")
    lost.close()
    answer = retrier.ask("mine", dur=1)
    assert answer.json()["rid"] == "mine"
    assert is_replay(answer)
    assert retrier.seen_by_model().count("mine") == 1
    assert gateway.metric("swaplane_jobs_total", outcome="completed") == len(retrier.seen_by_model())


def test_a_client_that_never_comes_back_is_not_served_for_ever(retrier: Retrier) -> None:
    lost = retrier.raw("lost", dur=600)
    eventually(lambda: retrier.gateway.journal("req_start"), "it runs")
    lost.close()
    eventually(lambda: retrier.gateway.journal("client_gone"), "the grace is over", GRACE_S + 20)
    assert retrier.gateway.metric("swaplane_jobs_total", outcome="left_running") == 1


def test_an_sdk_that_gives_up_and_retries_has_its_job_done_once(retrier: Retrier) -> None:
    with openai.OpenAI(base_url=f"{retrier.gateway.url}/v1", api_key="unused", max_retries=8, timeout=1) as client:
        answer = client.chat.completions.create(
            model="mA",
            messages=[{"role": "user", "content": "?"}],
            extra_headers={"Idempotency-Key": "one"},
            extra_body={"rid": "sdk", "stub": {"dur": 3}},
        )
    assert answer.choices[0].message.content == "answer of mA to sdk"
    assert retrier.seen_by_model() == ["sdk"]


def test_a_form_that_is_sent_again_is_the_same_request(retrier: Retrier) -> None:
    def send(prompt: str) -> httpx2.Response:
        with retrier.gateway.client() as client:
            return client.post(
                "/v1/audio/transcriptions",
                data={"model": "mA", "prompt": prompt},
                files={"file": ("a.wav", b"RIFF" * 500_000)},
                headers={"Idempotency-Key": "one"},
            )

    first, second = send("x"), send("x")
    assert (first.status_code, second.content, is_replay(second)) == (200, first.content, True)
    assert send("y").status_code == 422
    assert len(retrier.seen_by_model()) == 1


def test_a_long_answer_is_replayed_whole(retrier: Retrier) -> None:
    first = retrier.ask("long", size=5 << 20)
    second = retrier.ask("long", size=5 << 20)
    assert (len(first.content), second.content == first.content, is_replay(second)) == (5 << 20, True, True)
    assert retrier.seen_by_model() == ["long"]


def test_wrong_keys_are_refused_before_anything_waits(retrier: Retrier) -> None:
    assert retrier.ask("a").status_code == 200
    reused = retrier.ask("b")
    assert (reused.status_code, reused.json()["error"]["code"]) == (422, "idempotency_key_reused")
    wrong = retrier.ask("c", "two words")
    assert wrong.status_code == 400
    assert "Idempotency-Key" in wrong.json()["error"]["message"]
    assert retrier.seen_by_model() == ["a"]


def test_what_was_cancelled_is_a_new_job_the_next_time(retrier: Retrier) -> None:
    first = retrier.begin("mine", dur=600)
    eventually(lambda: retrier.gateway.queue()["running"], "it runs")
    second = retrier.begin("mine", dur=600)
    eventually(lambda: retrier.gateway.journal("req_start"), "the model has it")
    job = retrier.gateway.queue()["running"][0]["id"]
    assert retrier.gateway.request("DELETE", f"/api/jobs/{job}").status_code < 300
    assert [first.result().status_code, second.result().status_code] == [502, 502]
    third = retrier.begin("mine", dur=600)
    eventually(lambda: len(retrier.seen_by_model()) == 2, "it runs anew")
    job = retrier.gateway.queue()["running"][0]["id"]
    retrier.gateway.request("DELETE", f"/api/jobs/{job}")
    assert not is_replay(third.result())


def test_a_gateway_that_ends_tells_all_clients_of_a_key(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, stub_models("mA")) as gateway:
        retrier = Retrier(gateway)
        both = [retrier.begin("mine", dur=600), retrier.begin("mine", dur=600)]
        eventually(lambda: gateway.journal("req_start"), "one runs")
        lost = retrier.raw("lost", b"two", dur=600)
        eventually(lambda: gateway.queue()["waiting"], "one waits")
        lost.close()
        gateway.process.send_signal(signal.SIGTERM)
        eventually(lambda: "stopping" in gateway.log.read_text(), "the first signal is taken")
        assert gateway.stop() == 0
        assert [answer.result().status_code for answer in both] == [503, 503]
        retrier.threads.shutdown()
    assert retrier.seen_by_model() == ["mine"]
