"""The load generator: a number of clients, each of which sends its next request when its last is answered.

Runs in its own process, so that it never shares an interpreter with what it measures:
`python support_load.py '{"port": 8080, "path": "/...", "body": {...}, "clients": 16, "seconds": 1.0}'` prints one
line of JSON, a `Measured`. The time begins when every client has had its first answer: those bring connections
with them, and count in `sent` only.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import sys
import time
from typing import Any, TypedDict

import httptools
import uvloop

_MOMENT = re.compile(rb'"t":(\d+)')


class Measured(TypedDict):
    """What one run of the load generator found. Times in seconds."""

    sent: int  #: requests answered in all, the clients' first included
    chunks: int  #: events of event streams in all, the same
    per_second: float  #: requests answered in the measured time
    p50_s: float  #: of a request, from sending it to the end of its answer
    p99_s: float
    chunk_p50_s: float  #: of an event, from being written by the model server to its arrival; 0 when there was none
    chunk_p99_s: float


class Client(asyncio.Protocol):
    """One client on one connection."""

    def __init__(self, request: bytes, load: Load) -> None:
        self._request = request
        self._load = load
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Connected."""
        self._transport = transport
        self.send()

    def send(self) -> None:
        """One more request."""
        self._sent_at = time.monotonic()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closed it, which it must not."""
        self._load.fail(f"the connection was lost: {exc}")

    def on_body(self, body: bytes) -> None:
        """A piece of an answer: note how long its events were under way."""
        if body.startswith(b"data: "):
            now = time.monotonic_ns()
            self._load.delays_ns += [now - int(moment) for moment in _MOMENT.findall(body)]

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._parser.get_status_code() != 200:
            self._load.fail(f"answered {self._parser.get_status_code()}")
        else:
            self._load.answered(self, self._sent_at, time.monotonic())


class Load:
    """All clients of one run, and what they found."""

    def __init__(self, clients: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.delays_ns: list[int] = []
        self.over: asyncio.Future[None] = loop.create_future()
        self._waiting: list[Client] = []  # at the start and at the end, until all are there
        self._clients = clients
        self._seconds = seconds
        self._end = 0.0  # of the time; 0: it has not begun
        self._latencies_s: list[float] = []
        self._sent = 0

    def answered(self, client: Client, sent_at: float, now: float) -> None:
        """Take in one answer, and have the client go on."""
        self._sent += 1
        if now <= self._end:
            self._latencies_s.append(now - sent_at)
            client.send()
            return
        self._waiting.append(client)
        if len(self._waiting) < self._clients or self.over.done():
            return
        if self._end:
            self.over.set_result(None)
            return
        self._end = now + self._seconds
        clients, self._waiting = self._waiting, []
        for each in clients:
            each.send()

    def fail(self, what: str) -> None:
        """End the run."""
        if not self.over.done():
            self.over.set_exception(RuntimeError(what))

    def measured(self) -> Measured:
        """The result."""
        p50_s, p99_s = _percentiles(self._latencies_s)
        chunk_p50_s, chunk_p99_s = _percentiles([delay / 1e9 for delay in self.delays_ns])
        return Measured(
            sent=self._sent,
            chunks=len(self.delays_ns),
            per_second=len(self._latencies_s) / self._seconds,
            p50_s=p50_s,
            p99_s=p99_s,
            chunk_p50_s=chunk_p50_s,
            chunk_p99_s=chunk_p99_s,
        )


def _percentiles(values: list[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    if len(values) < 2:
        return (values[0], values[0]) if values else (0.0, 0.0)
    return statistics.median(values), statistics.quantiles(values, n=100)[98]


def post(path: str, body: dict[str, Any], headers: bytes = b"") -> bytes:
    """A POST of this JSON body as bytes, with the headers that a client library sends; `headers` end in CR LF."""
    content = json.dumps(body).encode()
    return (
        b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench/1\r\nAccept: application/json\r\n"
        b"Accept-Encoding: gzip, deflate\r\nAuthorization: Bearer none\r\nContent-Type: application/json\r\n"
        b"%bContent-Length: %d\r\n\r\n%b" % (path.encode(), headers, len(content), content)
    )


async def run(port: int, path: str, body: dict[str, Any], clients: int, seconds: float) -> Measured:
    """Load the server on this port of the loopback. RuntimeError for any answer but 200 and for lost connections."""
    loop = asyncio.get_running_loop()
    load = Load(clients, seconds)
    request = post(path, body)
    for _ in range(clients):
        await loop.create_connection(lambda: Client(request, load), "127.0.0.1", port)
    await asyncio.wait_for(load.over, seconds + 30)
    return load.measured()


if __name__ == "__main__":
    print(json.dumps(uvloop.run(run(**json.loads(sys.argv[1])))))
