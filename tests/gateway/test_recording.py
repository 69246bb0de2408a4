from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from swaplane.core.outcomes import Outcome
from swaplane.gateway import recording as module
from swaplane.gateway.connection import Framing
from swaplane.gateway.forward import Forwarding
from swaplane.gateway.front import Wire
from swaplane.gateway.recording import Recording
from swaplane.gateway.upstream import UpstreamPool
from tests.support.data_path import Caller, RawClient, WireApp, raw_upstream, serving, soon

pytestmark = pytest.mark.anyio

GET = b"GET /t HTTP/1.1\r\nHost: gw\r\n\r\n"
HEAD = b"HEAD /t HTTP/1.1\r\nHost: gw\r\n\r\n"
MIB = 1 << 20
HEADERS = [(b"X-B", b"2"), (b"x-a", b"caf\xe9"), (b"X-B", b"1")]


@pytest.fixture(params=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


class Studio:
    """One recording behind a real front: whoever asks gets it played."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.app = WireApp(self.play)
        self.port = 0
        self.playing = 0
        self.played = 0

    async def play(self, wire: Wire, body: bytes) -> None:
        self.playing += 1
        try:
            await self.recording.play(wire)
        finally:
            self.playing -= 1
            self.played += 1

    @contextlib.asynccontextmanager
    async def client(self, request: bytes = GET, *, read_limit: int = 2**16) -> AsyncIterator[RawClient]:
        """A client that has asked, and is being played to."""
        before = self.playing + self.played
        async with RawClient.to(self.port, read_limit=read_limit) as client:
            client.send(request)
            await soon(lambda: self.playing + self.played > before, "the request has arrived")
            yield client


@contextlib.asynccontextmanager
async def studio(*, method: bytes = b"GET", path: Path | None = None) -> AsyncIterator[Studio]:
    recording = Recording(method=method, target=b"/t", raw_headers=[(b"X-One", b"1")], client=("h", 1), path=path)
    held = Studio(recording)
    async with serving(held.app) as served:
        held.port = served.port
        try:
            yield held
        finally:
            recording.close()
            await recording.saved()


def begin(recording: Recording, framing: Framing = "chunked", length: int | None = None) -> None:
    headers = HEADERS if length is None else [*HEADERS, (b"Content-Length", b"%d" % length)]
    recording.start(status=206, reason=b"As It Was", headers=headers, framing=framing)


async def rest_of(client: RawClient, length: int) -> bytes:
    """The body of an answer, for a client whose reader buffers nothing."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await client.reader.readexactly(1)
    return await client.reader.readexactly(length)


async def test_every_client_gets_the_same_answer_before_and_after_its_end() -> None:
    async with studio() as held, held.client() as early:
        begin(held.recording, "length", 6)
        held.recording.write(b"abc")
        held.recording.write(b"def")
        held.recording.finish()
        first = await early.answer()
        async with held.client() as late:
            second = await late.answer()
    assert first == second
    assert (first.status, first.reason, first.body, first.whole) == (206, b"As It Was", b"abcdef", True)
    assert first.headers == [*HEADERS, (b"Content-Length", b"6")]
    assert (held.recording.complete, held.recording.broken, held.recording.length) == (True, False, 6)
    assert held.recording.header(b"x-one") == b"1"


async def test_a_client_follows_an_answer_that_grows() -> None:
    async with studio() as held, held.client() as early:
        begin(held.recording)
        held.recording.write(b"one")
        assert (await early.reader.readuntil(b"one\r\n")).startswith(b"HTTP/1.1 206 As It Was\r\n")
        async with held.client() as late:
            await late.reader.readuntil(b"one\r\n")
            held.recording.gather(b"two")
            held.recording.gather(b"-")
            held.recording.flush()
            for client in (early, late):
                assert await client.reader.readuntil(b"-\r\n") == b"4\r\ntwo-\r\n"
            held.recording.finish()
            for client in (early, late):
                assert await client.reader.readuntil(b"0\r\n\r\n") == b"0\r\n\r\n"


@pytest.mark.parametrize("framing", ["chunked", "close"])
async def test_an_answer_of_unknown_length_is_chunked_and_keeps_the_connection(framing: Framing) -> None:
    async with studio() as held, held.client() as client:
        begin(held.recording, framing)
        held.recording.write(b"x" * 100)
        held.recording.finish()
        for answer in (await client.answer(), await client.ask(GET)):
            assert (answer.body, answer.whole) == (b"x" * 100, True)
            assert answer.headers == [*HEADERS, (b"Transfer-Encoding", b"chunked")]


async def test_an_answer_without_a_body_stays_without() -> None:
    async with studio() as held, held.client() as client:
        held.recording.start(status=200, reason=b"OK", headers=[], framing="none")
        held.recording.finish()
        assert (await client.answer()).headers == [(b"Content-Length", b"0")]
        assert (await client.ask(GET)).body == b""


@pytest.mark.parametrize(
    ("method", "request_", "status"), [(b"HEAD", HEAD, 200), (b"GET", GET, 204), (b"GET", GET, 304)]
)
async def test_head_204_and_304_have_no_body(method: bytes, request_: bytes, status: int) -> None:
    async with studio(method=method) as held, held.client(request_) as client:
        headers = [(b"Content-Length", b"5")] if status != 204 else []
        held.recording.start(status=status, reason=b"R", headers=headers, framing="length" if headers else "none")
        held.recording.write(b"never")
        held.recording.finish()
        answer = await client.answer(is_head=True)
        assert (answer.status, answer.headers) == (status, headers)
        assert (await client.ask(request_, is_head=True)).status == status, "no byte of a body stands between"
    assert (held.recording.length, held.recording.complete) == (0, True)


async def test_a_broken_answer_is_broken_for_everybody_after_the_same_last_words() -> None:
    async with studio() as held, held.client() as early:
        begin(held.recording)
        held.recording.write(b"begun")
        held.recording.abort(b"alas")
        first = await early.answer()
        async with held.client() as late:
            second = await late.answer()
    for answer in (first, second):
        assert (b"".join(answer.chunks), answer.whole) == (b"begunalas", False)
    assert (held.recording.broken, held.recording.complete, held.recording.length) == (True, False, 5)


async def test_broken_before_it_began_is_a_closed_connection() -> None:
    async with studio() as held, held.client() as client:
        held.recording.abort()
        with contextlib.suppress(ConnectionError):
            assert await client.rest() == b""


async def test_a_body_that_is_not_as_long_as_announced_is_broken() -> None:
    async with studio() as held:
        begin(held.recording, "length", 6)
        held.recording.write(b"abc")
        with pytest.raises(RuntimeError, match="3 bytes with a Content-Length of 6"):
            held.recording.finish()
        async with held.client() as client:
            assert not (await client.answer()).whole
    assert held.recording.broken


async def test_a_long_answer_is_on_disk_and_comes_back_as_it_was() -> None:
    content = os.urandom(5 * MIB)
    async with studio() as held, held.client() as early:
        begin(held.recording, "length", len(content))
        reading = asyncio.ensure_future(early.answer())
        for start in range(0, len(content), 100_000):
            held.recording.write(content[start : start + 100_000])
            await asyncio.sleep(0)
        held.recording.finish()
        await held.recording.saved()
        assert held.recording.unsent_bytes == 0, "nothing of it is in memory any more"
        assert (await reading).body == content
        async with held.client() as late:
            assert (await late.answer()).body == content


async def test_a_short_answer_makes_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_open", None)
    async with studio() as held, held.client() as client:
        begin(held.recording, "length", MIB)
        held.recording.write(b"s" * MIB)
        assert held.recording.writable
        held.recording.finish()
        await held.recording.saved()
        assert (await client.answer()).body == b"s" * MIB
    assert not held.recording.trouble


async def test_a_client_that_does_not_read_holds_nobody_up() -> None:
    content = os.urandom(12 * MIB)
    async with studio() as held, held.client(read_limit=1) as slow, held.client() as quick:
        begin(held.recording, "length", len(content))
        for start in range(0, len(content), MIB):
            held.recording.write(content[start : start + MIB])
        held.recording.finish()
        await held.recording.saved()
        assert (await quick.answer()).body == content
        assert held.playing == 1, "the slow one is still at it"
        assert (await rest_of(slow, len(content))) == content


async def test_a_client_that_takes_nothing_for_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALLED_S", 0.1)
    async with studio() as held, held.client(read_limit=1):
        begin(held.recording, "length", 50 * MIB)
        held.recording.write(b"x" * 12 * MIB)
        await soon(lambda: held.played == 1, "the end of the player")
        assert not held.app.wires[0].departed, "it was cut, it did not leave"
        assert not held.recording.over


async def test_a_client_that_leaves_ends_its_player_only() -> None:
    async with studio() as held, held.client() as leaving, held.client() as staying:
        begin(held.recording)
        held.recording.write(b"a")
        for client in (leaving, staying):
            await client.reader.readuntil(b"a\r\n")
        leaving.leave("rst")
        await soon(lambda: held.played == 1, "the end of the first player")
        assert not held.recording.departed
        held.recording.write(b"b")
        held.recording.finish()
        assert await staying.reader.readuntil(b"0\r\n\r\n") == b"1\r\nb\r\n0\r\n\r\n"


async def test_who_leaves_before_the_answer_begins_is_let_go() -> None:
    async with studio() as held, held.client() as client:
        client.leave("fin")
        await soon(lambda: held.played == 1, "the end of the player")


# The disk


def inode(path: Path) -> int:
    return path.stat().st_ino


class SlowDisk:
    """Lets one write pass per `let_pass`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes = threading.Semaphore(0)
        self.writes: list[int] = []
        really = module._write

        def write(file: Any, data: bytes) -> None:
            self.writes.append(len(data))
            assert self.passes.acquire(timeout=20)
            really(file, data)

        monkeypatch.setattr(module, "_write", write)

    def let_pass(self, count: int = 1) -> None:
        self.passes.release(count)


async def test_an_answer_waits_for_a_slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    drained: list[bool] = []
    async with studio() as held, held.client() as client:
        begin(held.recording, "length", 2 * MIB + 1)
        held.recording.write(b"a" * MIB)
        writable = [held.recording.writable]
        held.recording.write(b"b")
        assert [*writable, held.recording.writable] == [True, False]
        held.recording.on_writable(lambda: drained.append(held.recording.writable))
        await soon(lambda: disk.writes == [MIB + 1], "the writing has begun")
        assert drained == []
        disk.let_pass()
        await soon(lambda: drained, "the disk has caught up")
        assert drained == [True]
        held.recording.write(b"c" * MIB)
        held.recording.finish()
        assert (await client.answer()).body == b"a" * MIB + b"b" + b"c" * MIB, "a player does not wait for the disk"
        assert drained == [True], "it was asked for once"
        disk.let_pass(10)


async def test_a_passage_into_a_recording_holds_its_server_back(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    content = os.urandom(1 << 16) * 256  # 16 MiB

    async def play(caller: Caller) -> None:
        await caller.request()
        caller.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-From: server\r\n\r\n" % len(content) + content)
        await caller.writer.drain()
        await caller.gone()

    async with studio() as held, raw_upstream(play) as upstream:
        pool = UpstreamPool(upstream.url)
        passage = Forwarding(held.recording, pool, target=b"/t", headers=[(b"Host", b"h")], body=None)
        running = asyncio.ensure_future(passage.run())
        most = 0
        while not running.done():
            await asyncio.sleep(0.001)
            most = max(most, held.recording.unsent_bytes)
            disk.let_pass()
        disk.let_pass(1000)
        assert (await running).outcome is Outcome.COMPLETED
        assert MIB < most < 2 * MIB
        async with held.client() as client:
            answer = await client.answer()
        pool.close()
    assert hashlib.sha256(answer.body).digest() == hashlib.sha256(content).digest()
    assert answer.get(b"x-from") == b"server"


async def test_a_named_recording_is_on_disk_when_it_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    go_on = threading.Event()
    really = os.fsync

    def fsync(descriptor: int) -> None:
        assert go_on.wait(20)
        really(descriptor)
        synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    path = tmp_path / "answer"
    path.write_bytes(b"of an earlier try, and longer")
    async with studio(path=path) as held:
        begin(held.recording)
        held.recording.write(b"short")
        saved = asyncio.ensure_future(held.recording.saved())
        held.recording.finish()
        async with held.client() as client:
            assert (await client.answer()).body == b"short", "nobody waits for the disk"
        assert not saved.done()
        go_on.set()
        await asyncio.wait_for(saved, 20)
        assert path.read_bytes() == b"short"
        assert synced == [inode(path), inode(tmp_path)]
        async with held.client() as client:
            assert (await client.answer()).body == b"short"
    assert path.read_bytes() == b"short", "closing leaves it there"


async def test_an_empty_named_answer_has_its_file_and_one_never_begun_has_none(tmp_path: Path) -> None:
    async with studio(path=tmp_path / "empty") as held:
        held.recording.start(status=204, reason=b"No Content", headers=[], framing="none")
        held.recording.finish()
        await asyncio.wait_for(held.recording.saved(), 20)
    async with studio(path=tmp_path / "none") as held:
        held.recording.abort()
        await asyncio.wait_for(held.recording.saved(), 20)
    assert os.listdir(tmp_path) == ["empty"]
    assert (tmp_path / "empty").read_bytes() == b""


async def test_a_broken_named_answer_keeps_what_came(tmp_path: Path) -> None:
    async with studio(path=tmp_path / "answer") as held:
        begin(held.recording)
        held.recording.write(b"x" * 3 * MIB)
        held.recording.depart()
        await asyncio.wait_for(held.recording.saved(), 20)
    assert (tmp_path / "answer").read_bytes() == b"x" * 3 * MIB
    assert not held.recording.trouble


@pytest.mark.parametrize(("place", "reason"), [("missing/answer", "No such file"), ("/dev/full", "No space left")])
async def test_a_disk_that_fails_breaks_the_answer_and_ends_its_job(tmp_path: Path, place: str, reason: str) -> None:
    left: list[str] = []
    async with studio(path=tmp_path / place) as held, held.client() as client:
        recording = held.recording
        recording.on_departure(lambda: left.append("once"))
        begin(recording)
        recording.on_writable(lambda: left.append("writable"))
        recording.write(b"x" * 2 * MIB)
        assert not (await client.answer()).whole
        await asyncio.wait_for(recording.saved(), 20)
        assert recording.writable
        recording.write(b"more")
        recording.finish()
    assert left == ["once", "writable"]
    assert (recording.broken, recording.complete, recording.departed) == (True, False, True)
    assert reason in recording.trouble
    assert str(tmp_path / place) in recording.trouble


async def test_a_disk_that_fails_at_the_very_end_breaks_the_answer_too() -> None:
    async with studio(path=Path("/dev/full")) as held:
        begin(held.recording)
        held.recording.write(b"little")
        held.recording.finish()
        assert held.recording.complete
        await asyncio.wait_for(held.recording.saved(), 20)
        assert (held.recording.complete, held.recording.broken, held.recording.departed) == (False, True, False)
        assert "No space left" in held.recording.trouble
        async with held.client() as client:
            answer = await client.answer()
            assert (b"".join(answer.chunks), answer.whole) == (b"little", False)


# Ends


async def test_a_departure_is_told_once_and_only_while_it_matters() -> None:
    told: list[int] = []
    async with studio() as held, held.client() as client:
        recording = held.recording
        recording.on_departure(lambda: told.append(1))
        begin(recording)
        recording.depart()
        recording.depart()
        assert told == [1]
        recording.on_departure(lambda: told.append(2))
        assert told == [1, 2]
        recording.write(b"too late")
        recording.finish()
        recording.abort(b"too late")
        assert (recording.departed, recording.broken, recording.complete, recording.length) == (True, True, False, 0)
        assert not (await client.answer()).whole
    async with studio() as held:
        held.recording.on_departure(lambda: told.append(3))
        begin(held.recording)
        held.recording.finish()
        held.recording.depart()
        assert (held.recording.departed, held.recording.complete) == (False, True)
    assert told == [1, 2]


async def test_closing_lets_players_come_to_the_end() -> None:
    content = os.urandom(12 * MIB)
    async with studio() as held, held.client(read_limit=1) as slow:
        begin(held.recording, "length", len(content))
        held.recording.write(content)
        held.recording.finish()
        await held.recording.saved()
        file = held.recording._file
        assert file is not None
        held.recording.close()
        assert not file.closed
        assert (await rest_of(slow, len(content))) == content
        await soon(lambda: file.closed, "the file is given back")
        async with held.client() as late:
            answer = await late.answer()
            assert (answer.body, answer.whole) == (b"", False)


async def test_what_is_closed_is_played_to_nobody() -> None:
    async with studio() as held:
        begin(held.recording, "length", 6)
        held.recording.write(b"abcdef")
        held.recording.finish()
        held.recording.close()
        async with held.client() as client:
            answer = await client.answer()
        assert (answer.body, answer.whole) == (b"", False)


async def test_closing_one_that_grows_ends_its_job() -> None:
    told: list[bool] = []
    async with studio() as held, held.client() as client:
        held.recording.on_departure(lambda: told.append(True))
        begin(held.recording)
        held.recording.write(b"a")
        await client.reader.readuntil(b"a\r\n")
        held.recording.close()
        assert told == [True]
        assert await client.rest() == b""
