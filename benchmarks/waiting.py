"""What thousands of waiting connections cost the gateway: memory, CPU time, and how it answers meanwhile.

One job runs for as long as the benchmark wants; all others, of 100 members in three bands, wait for it on a
connection each. Then all their clients leave at once. Beside it, in the same run: the same number of connections
that wait in uvicorn without an application, and in the model server itself.

`python benchmarks/waiting.py [--quick] [--connections N]`
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import uvloop

from support import CHAT, ModelServer, Process, chat, gateway, machine, median, post, table, uvicorn_alone
from support_load import post as post_bytes

MEMBERS = 100
BANDS = ("batch", "normal", "interactive")
AT_ONCE = 200  # connections being opened at a time
ASKED = 5  # times each page is asked for


class Waiting(asyncio.Protocol):
    """One client that sent its request and waits."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.transport: asyncio.Transport
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Connected."""
        self.transport = transport
        transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed, by whichever side."""
        self.closed.set_result(None)


def requests(count: int, model: str) -> Iterator[bytes]:
    """Chat requests that a model server holds, of all members and bands."""
    body = chat(model, {"hold": True})
    for number in range(count):
        headers = (
            f"X-LlamaSwap-Member: member-{number % MEMBERS:02}\r\n"
            f"X-LlamaSwap-Priority: {BANDS[number % len(BANDS)]}\r\n"
        )
        yield post_bytes(CHAT, body, headers.encode())


@contextlib.asynccontextmanager
async def waiting(port: int, count: int, model: str) -> AsyncIterator[list[Waiting]]:
    """So many clients that have sent a request to this port, until the block ends."""
    loop = asyncio.get_running_loop()
    clients: list[Waiting] = []
    todo = requests(count, model)

    async def connect() -> None:
        for request in todo:
            _, client = await loop.create_connection(partial(Waiting, request), "127.0.0.1", port)
            clients.append(client)

    try:
        await asyncio.gather(*(connect() for _ in range(min(AT_ONCE, count))))
        yield clients
    finally:
        for client in clients:
            client.transport.abort()
        await asyncio.gather(*(client.closed for client in clients))


async def until(reached: Callable[[], bool], what: str) -> float:
    """Ask again and again; the moment at which it was so. RuntimeError after a minute."""
    began = time.monotonic()
    while not await asyncio.to_thread(reached):
        if time.monotonic() - began > 60:
            raise RuntimeError(f"still waiting after a minute for {what}")
        await asyncio.sleep(0.01)
    return time.monotonic()


def waiting_total(through: Process) -> int:
    """How many jobs wait."""
    return sum(lane["waiting_total"] for lane in through.get_json("/api/queue?limit=1")["lanes"])


async def asked_ms(through: Process, path: str) -> float:
    """How long a page takes, in milliseconds; the median of a few."""
    times = []
    for _ in range(ASKED):
        began = time.monotonic()
        await asyncio.to_thread(through.get, path)
        times.append((time.monotonic() - began) * 1e3)
    return median(times)


async def beside(process: Process, count: int, model: str) -> float:
    """KiB of memory per connection that waits in a process that knows no queue."""
    before = process.rss_bytes()
    async with waiting(process.port, count, model):
        await until(partial(_no_longer_grows, process), "its memory to settle")
        return (process.rss_bytes() - before) / 1024 / count


def _no_longer_grows(process: Process) -> bool:
    seen = process.rss_bytes()
    time.sleep(0.2)
    return process.rss_bytes() <= seen


async def measure(model: ModelServer, through: Process, count: int, seconds: float) -> list[list[str]]:
    """The rows about the gateway."""
    pages = ("/api/queue", "/api/queue?limit=1000", "/metrics")
    empty_ms = [await asked_ms(through, page) for page in pages]
    before, cpu_s, began = through.rss_bytes(), through.cpu_s(), time.monotonic()
    async with waiting(through.port, count, model.name) as clients:
        queued = await until(lambda: waiting_total(through) == count, "all to be queued")
        rows = [
            ["all queued after", f"{queued - began:.2f} s", f"{count / (queued - began):,.0f} a second"],
            [
                "CPU of the gateway until then",
                f"{through.cpu_s() - cpu_s:.2f} s",
                _each(through.cpu_s() - cpu_s, count),
            ],
        ]
        each_kib = (through.rss_bytes() - before) / 1024 / count
        cpu_s = through.cpu_s()
        await asyncio.sleep(seconds)
        rows += [
            ["memory per waiting connection", f"{each_kib:.1f} KiB", ""],
            [f"CPU in {seconds:g} s of waiting", f"{(through.cpu_s() - cpu_s) * 1e3:.0f} ms", ""],
        ]
        for page, empty in zip(pages, empty_ms, strict=True):
            full = await asked_ms(through, page)
            rows.append([f"GET {page}", f"{full:.1f} ms", f"{full / empty:.1f}x an empty queue's {empty:.1f} ms"])
        cpu_s, began = through.cpu_s(), time.monotonic()
        for client in clients:
            client.transport.abort()
        gone = await until(lambda: waiting_total(through) == 0, "the queue to be empty")
        used_s = through.cpu_s() - cpu_s
    rows.append(["all left: queue empty after", f"{gone - began:.2f} s", f"{count / (gone - began):,.0f} a second"])
    rows.append(["CPU of the gateway for that", f"{used_s:.2f} s", _each(used_s, count)])
    return rows


def _each(seconds: float, count: int) -> str:
    return f"{seconds * 1e6 / count:.0f} us each"


async def run(count: int, seconds: float) -> None:
    with uvicorn_alone() as bare:
        bare_kib = await beside(bare, count, "one")
    one = ModelServer("one", slots=1)
    with gateway(one) as through:
        post(through.port, CHAT, chat(one.name))  # starts the model
        direct_kib = await beside(one.process(), count, one.name)
        async with waiting(through.port, 1, one.name):
            await until(lambda: bool(through.get_json("/api/queue")["lanes"][0]["running"]), "the long job to run")
            rows = await measure(one, through, count, seconds)
    rows.append(["beside it: uvicorn without an application", f"{bare_kib:.1f} KiB", "per waiting connection"])
    rows.append(["beside it: the model server", f"{direct_kib:.1f} KiB", "per waiting connection"])
    print(table([f"{count:,} waiting connections", "", ""], rows))


def allow_files(count: int) -> None:
    """Raise the limit of open files to what is needed. ValueError when that is not allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + AT_ONCE + 200
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(f"{count} connections need {needed} open files; the hard limit (ulimit -Hn) is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="1,000 connections, two seconds of waiting")
    parser.add_argument("--connections", type=int, help="how many wait")
    parser.add_argument("--seconds", type=float, help="how long they merely wait")
    asked = parser.parse_args()
    count = asked.connections or (1000 if asked.quick else 10_000)
    try:
        allow_files(count)
    except ValueError as error:
        sys.exit(str(error))
    print(f"{machine()}\n")
    uvloop.run(run(count, asked.seconds or (2.0 if asked.quick else 5.0)))


if __name__ == "__main__":
    main()
