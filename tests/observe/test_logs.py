"""Logs keep the newest bytes, tell what a slow reader lost, and never make a writer wait."""

from __future__ import annotations

import asyncio
import threading

import pytest

from swaplane.observe.logs import LogHub, RingLog

pytestmark = pytest.mark.anyio


def test_the_newest_bytes_are_kept() -> None:
    log = RingLog(limit_bytes=10)
    for piece in (b"abc", b"", b"defgh", b"ijklm"):
        log.write(piece)
    assert log.history() == b"defghijklm"[-10:]
    assert log.written_bytes == 13
    log.write(b"x" * 1000 + b"0123456789")
    assert log.history() == b"0123456789"
    assert repr(log) == "<RingLog 10 of 10 bytes, 0 streams>"


def test_text_of_bytes_that_are_not_text() -> None:
    log = RingLog()
    log.write(b"a\xff\xfeb \xc3\xa9\n")
    assert log.text() == "a\ufffd\ufffdb é\n"


def test_the_last_lines() -> None:
    log = RingLog(limit_bytes=40)
    log.write(b"one\n")
    since = log.written_bytes
    assert log.tail_lines(5, since=since) == []
    log.write(b"two\r\n\n   \nthree\rfour\nfive")
    assert log.tail_lines(3) == ["three", "four", "five"]
    assert log.tail_lines(9, since=since) == ["two", "three", "four", "five"]
    log.write(b"x" * 100)
    assert log.tail_lines(9, since=since) == ["x" * 40]


async def test_a_stream_has_what_is_written_from_now_on() -> None:
    log = RingLog()
    log.write(b"before")
    stream = log.subscribe()
    log.write(b"one")
    log.write(b"two")
    assert [await anext(stream), await anext(stream)] == [b"one", b"two"]
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert not waiting.done()
    log.write(b"three")
    assert await waiting == b"three"
    log.write(b"last")
    stream.close()
    log.write(b"after")
    assert [piece async for piece in stream] == [b"last"]
    stream.close()


async def test_a_slow_reader_is_told_what_it_lost_and_where() -> None:
    log = RingLog()
    stream = log.subscribe(limit_bytes=100)
    log.write(b"a" * 90)
    log.write(b"b" * 90)
    log.write(b"c" * 11)
    log.write(b"d" * 10)
    assert await anext(stream) == b"a" * 90
    assert await anext(stream) == "\n— 101 bytes dropped —\n".encode()
    assert await anext(stream) == b"d" * 10
    log.write(b"e" * 200)
    assert await anext(stream) == "\n— 200 bytes dropped —\n".encode()
    log.write(b"f")
    assert await anext(stream) == b"f"


async def test_writers_may_be_in_other_threads() -> None:
    log = RingLog()
    stream = log.subscribe()
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    thread = threading.Thread(target=log.write, args=(b"from afar",))
    thread.start()
    assert await asyncio.wait_for(waiting, 10) == b"from afar"
    thread.join()


def test_the_lines_of_models_do_not_mix_in_the_shared_log() -> None:
    hub = LogHub()
    a, b = hub.model("mA"), hub.model("mB")
    a.write(b"a begins ")
    b.write(b"b begins ")
    a.write(b"and ends\na again")
    b.write(b"and ends\n")
    assert hub.upstream.history() == b"a begins and ends\nb begins and ends\n"
    assert a.history() == b"a begins and ends\na again"
    a.end_line()
    a.end_line()
    assert hub.upstream.history().endswith(b"a again\n")


def test_a_line_without_end_is_shown_all_the_same() -> None:
    hub = LogHub()
    for _ in range(20):
        hub.model("mA").write(b"x" * 1000)
    assert 10_000 < len(hub.upstream.history()) <= 20_000


def test_logs_have_names() -> None:
    hub = LogHub()
    hub.proxy.write(b"p")
    assert hub.get("proxy") is hub.proxy
    assert hub.get("upstream") is hub.upstream
    assert hub.get("mA") is None
    assert hub.model("mA") is hub.model("mA") is hub.get("mA")
    assert repr(hub) == "<LogHub proxy, upstream and 1 models>"
