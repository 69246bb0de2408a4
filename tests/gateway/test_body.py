from __future__ import annotations

import asyncio
import errno
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swaplane.gateway.body import IN_MEMORY, PIECE, Body, ClientLeft, Receive, read_body
from swaplane.gateway.errors import BodyNotStored

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def spool_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A TMPDIR of the test's own, in which nothing may be left, and no open descriptor either."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path
    assert list(tmp_path.iterdir()) == []
    assert open_files(tmp_path) == []


def open_files(directory: Path) -> list[str]:
    links = (os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
    return [os.readlink(link) for link in links if os.path.lexists(link) and str(directory) in os.readlink(link)]


def uploading(*parts: bytes, then: str = "end", idle: asyncio.Event | None = None) -> Receive:
    """An ASGI receive that gives the parts, and then the end, the client's departure, or nothing for ever.

    `idle` is set when it has nothing more to give.
    """
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if then == "end":
        messages[-1]["more_body"] = False
    elif then == "leave":
        messages.append({"type": "http.disconnect"})

    async def receive() -> dict[str, Any]:
        if not messages:
            if idle is not None:
                idle.set()
            await asyncio.Event().wait()
        return messages.pop(0)

    return receive


async def sent(body: Body) -> bytes:
    return b"".join([piece async for piece in body.pieces()])


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [b"{}"],
        [b"", b"", b""],
        [b"a", b"bc", b""],
        [b"x" * IN_MEMORY],
        [b"x" * (IN_MEMORY + 1)],
        [b"abc" * 100_000] * 7,
        [b"x" * IN_MEMORY, b"y"],
        [b"x" * (3 * IN_MEMORY), b"y" * 5, b"z" * IN_MEMORY, b""],
    ],
)
async def test_the_bytes_come_out_as_they_went_in(parts: list[bytes]) -> None:
    whole = b"".join(parts)
    with await read_body(uploading(*parts)) as body:
        assert body.length == len(whole)
        assert bytes(body.view()[:]) == whole
        pieces = [piece async for piece in body.pieces()]
        assert b"".join(pieces) == whole
        assert all(0 < len(piece) <= PIECE for piece in pieces)
        assert await sent(body) == whole, "a second attempt sends the same"


async def test_a_message_may_leave_out_its_keys() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    assert (await read_body(receive)).length == 0


async def test_only_a_long_body_goes_to_disk_and_its_file_has_no_name(spool_dir: Path) -> None:
    short = await read_body(uploading(b"x" * IN_MEMORY))
    assert repr(short) == "<Body of 1048576 bytes in memory>"
    assert open_files(spool_dir) == []
    long = await read_body(uploading(b"x" * IN_MEMORY, b"x"))
    assert repr(long) == "<Body of 1048577 bytes on disk>"
    assert len(open_files(spool_dir)) == 1
    assert os.listdir(spool_dir) == []
    long.close()
    assert open_files(spool_dir) == []


async def test_close_may_be_repeated_and_a_view_outlives_it() -> None:
    body = await read_body(uploading(b"ab" * IN_MEMORY))
    view = body.view()
    for _ in range(3):
        body.close()
    assert view[-2:] == b"ab"
    del view
    short = await read_body(uploading(b"ab"))
    short.close()
    short.close()


@pytest.mark.parametrize("size", [10, PIECE + 10, 2 * IN_MEMORY])
async def test_splice_replaces_a_range_and_nothing_else(size: int) -> None:
    whole = os.urandom(size)
    with await read_body(uploading(whole)) as body:
        for start, end, new in [
            (3, 5, b"LONGER" * 100),
            (0, 0, b"first"),
            (size, size, b"last"),
            (0, size, b""),
            (2, 9, b""),
        ]:
            body.splice(start, end, new)
            expected = whole[:start] + new + whole[end:]
            assert body.length == len(expected)
            assert await sent(body) == await sent(body) == expected
            assert bytes(body.view()[:]) == whole, "offsets always count in what was received"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(st.binary(max_size=60), st.integers(0, 60), st.integers(0, 60), st.binary(max_size=20))
async def test_splice_of_any_range(whole: bytes, a: int, b: int, new: bytes) -> None:
    start, end = sorted((min(a, len(whole)), min(b, len(whole))))
    in_memory = await read_body(uploading(whole))
    # The same bytes behind a padding that sends them to disk.
    on_disk = await read_body(uploading(whole, b"." * (IN_MEMORY + 1)))
    with in_memory, on_disk:
        in_memory.splice(start, end, new)
        on_disk.splice(start, end, new)
        expected = whole[:start] + new + whole[end:]
        assert await sent(in_memory) == expected
        assert await sent(on_disk) == expected + b"." * (IN_MEMORY + 1)
        assert on_disk.length == len(expected) + IN_MEMORY + 1


@pytest.mark.parametrize("before", [[], [b"x"], [b"x" * IN_MEMORY], [b"x" * IN_MEMORY] * 3])
async def test_a_client_that_leaves_while_uploading(before: list[bytes]) -> None:
    with pytest.raises(ClientLeft):
        await read_body(uploading(*before, then="leave"))


async def test_a_full_disk_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    writes = 0

    def write(self: FileIO, data: memoryview) -> int:
        nonlocal writes
        writes += 1
        if writes == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(self.fileno(), data)

    failing_file(monkeypatch, write)
    with pytest.raises(BodyNotStored) as caught:
        await read_body(uploading(*[b"x" * IN_MEMORY] * 5, then="wait"))
    assert caught.value.status == 507
    assert caught.value.message == (
        "the request body is longer than 1048576 bytes and could not be kept on disk: No space left on device"
    )


async def test_short_writes_are_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    failing_file(monkeypatch, lambda self, data: os.write(self.fileno(), data[:100_001]))
    whole = os.urandom(2 * IN_MEMORY)
    with await read_body(uploading(whole)) as body:
        assert await sent(body) == whole


def failing_file(monkeypatch: pytest.MonkeyPatch, write: Callable[[Any, memoryview], int]) -> None:
    """Have the spool write with this function."""

    class File(FileIO):
        def write(self, data: Any) -> int:
            return write(self, data)

    def temporary_file(**_: object) -> FileIO:
        return File(os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR), "r+")

    monkeypatch.setattr(tempfile, "TemporaryFile", temporary_file)


async def test_a_directory_that_is_not_there_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent/spool")
    with pytest.raises(BodyNotStored, match="could not be kept on disk: No such file or directory"):
        await read_body(uploading(b"x" * (IN_MEMORY + 1)))


async def test_cancelled_while_writing_closes_the_file_only_after_the_write(
    monkeypatch: pytest.MonkeyPatch, spool_dir: Path
) -> None:
    began, proceed = threading.Event(), threading.Event()
    closed_early: list[bool] = []

    def write(self: FileIO, data: memoryview) -> int:
        began.set()
        proceed.wait(20)
        closed_early.append(self.closed)
        return len(data)

    failing_file(monkeypatch, write)
    reading = asyncio.ensure_future(read_body(uploading(b"x" * (IN_MEMORY + 1), then="wait")))
    await asyncio.to_thread(began.wait)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert len(open_files(spool_dir)) == 1
    proceed.set()
    async with asyncio.timeout(20):
        while open_files(spool_dir):  # noqa: ASYNC110 (a descriptor has no event)
            await asyncio.sleep(0.005)
    assert closed_early == [False]


async def test_cancelled_between_two_writes_leaves_no_file(spool_dir: Path) -> None:
    idle = asyncio.Event()
    reading = asyncio.ensure_future(read_body(uploading(b"x" * (IN_MEMORY + 1), then="wait", idle=idle)))
    await idle.wait()
    assert len(open_files(spool_dir)) == 1
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_the_loop_goes_on_while_the_disk_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    began, proceed = threading.Event(), threading.Event()

    def write(self: FileIO, data: memoryview) -> int:
        began.set()
        proceed.wait(20)
        return os.write(self.fileno(), data)

    failing_file(monkeypatch, write)
    reading = asyncio.ensure_future(read_body(uploading(b"x" * (IN_MEMORY + 1))))
    await asyncio.to_thread(began.wait)  # only a loop that goes on gets here
    proceed.set()
    (await reading).close()


async def test_200_mb_stay_on_disk() -> None:
    length = 200 * 1_000_000
    part = os.urandom(1_000_000)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(length // len(part)):
            yield part

    source = pieces()
    left = length

    async def receive() -> dict[str, Any]:
        nonlocal left
        data = await anext(source)
        left -= len(data)
        return {"type": "http.request", "body": data, "more_body": left > 0}

    process = psutil.Process()
    before = process.memory_info().rss
    peak = 0
    with await read_body(receive) as body:
        assert body.length == length
        count = 0
        async for piece in body.pieces():
            count += len(piece)
            peak = max(peak, process.memory_info().rss)
        assert count == length
    assert peak - before < 30_000_000
