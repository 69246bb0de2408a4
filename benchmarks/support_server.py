"""A model server that costs next to nothing: what the benchmarks put behind the gateway and beside it.

One `asyncio` protocol on httptools, in its own process (`python support_server.py --port N`). It answers every
POST at once with about 475 bytes of JSON, unless the body's member `bench` asks for something else:

    {"chunks": 64}                     an event stream of so many chunks, each written in its own turn of the loop
    {"chunks": 64, "every_s": 0.005}   ... and so many seconds apart, as a model makes its tokens
    {"work_s": 0.002}                  the answer after so many seconds
    {"hold": true}                     no answer, ever

`GET /gaps` gives the seconds for which it had nothing to do between two requests, since the last such question.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

import httptools
import uvloop

_CONTENT = json.dumps(
    {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 1764000000,
        "model": "bench",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 40}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 42, "completion_tokens": 40, "total_tokens": 82},
    }
).encode()
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_ANSWER = _HEAD % len(_CONTENT) + _CONTENT
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_STREAM_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
# `t` is the moment of writing in nanoseconds, on the clock that all processes of a machine share.
_EVENT = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1764000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}],"t":%d}\n\n'
)


class Work:
    """What all connections of the server share."""

    def __init__(self) -> None:
        self.gaps_s: list[float] = []
        self._busy = 0
        self._idle_since: float | None = None

    def begin(self) -> None:
        """A request is here as a whole."""
        if self._busy == 0 and self._idle_since is not None:
            self.gaps_s.append(time.monotonic() - self._idle_since)
        self._busy += 1

    def end(self) -> None:
        """An answer is written."""
        self._busy -= 1
        self._idle_since = time.monotonic()


class ModelProtocol(asyncio.Protocol):
    """One connection; requests are not pipelined."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._url = self._body = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Connected."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url = self._body = b""

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._url += url

    def on_body(self, body: bytes) -> None:
        """A piece of a request."""
        self._body += body

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._parser.get_method() == b"GET":
            gaps, self._work.gaps_s = self._work.gaps_s, []
            content = json.dumps(gaps).encode() if self._url == b"/gaps" else b"{}"
            self._transport.write(_HEAD % len(content) + content)
        else:
            self._work.begin()
            self._serve(json.loads(self._body)["bench"] if b'"bench"' in self._body else {})

    def _serve(self, asked: dict[str, float]) -> None:
        if "chunks" in asked:
            self._transport.write(_STREAM_HEAD)
            self._next_chunk(int(asked["chunks"]), asked.get("every_s", 0.0))
        elif "work_s" in asked:
            self._loop.call_later(asked["work_s"], self._answer)
        elif "hold" not in asked:
            self._answer()

    def _answer(self) -> None:
        self._work.end()
        self._transport.write(_ANSWER)

    def _next_chunk(self, left: int, every_s: float) -> None:
        if self._transport.is_closing():
            self._work.end()
        elif left == 0:
            self._work.end()
            self._transport.write(_STREAM_END)
        else:
            event = _EVENT % time.monotonic_ns()
            self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
            if every_s:
                self._loop.call_later(every_s, self._next_chunk, left - 1, every_s)
            else:
                self._loop.call_soon(self._next_chunk, left - 1, every_s)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    work = Work()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ModelProtocol(work), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
