"""Scenes in front of a real gateway: requests as sockets, and what has to be true when all is quiet again.

A `Scene` sends jobs and counts them. When it ends, it asserts from the stubs' journal and the gateway's counters
that never more jobs ran at once than there are places, that exclusive models never lived side by side, that no
request reached a model twice, that every job ended exactly once, and that nothing is left: no job, no gauge above
zero, no descriptor, no process, no trace of an error in the log.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.support.gateway import GatewayProcess
from tests.support.stub_client import eventually, leftovers, zombies_of

PATIENCE_S = 60.0  # far longer than anything takes; only a hang reaches it
GONE_SEEN_S = 0.5  # a stub on a busy machine writes down that its caller has gone this much later at most
SPARE_FILES = 5


@dataclass
class Answer:
    """One answer as it came off the wire."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    whole: bool  #: whether it ended as its framing announced

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def get(self, name: str) -> str:
        return next(iter(self.all(name)), "")

    @property
    def message(self) -> str:
        """Of an error in the envelope."""
        return str(json.loads(self.body)["error"]["message"])

    @property
    def arrival(self) -> int:
        """The job's number in the order of arrival."""
        return int(self.get("X-LlamaSwap-Job").rpartition("-")[2])


class Call:
    """One request on a connection of its own."""

    def __init__(self, port: int, data: bytes, rid: str, method: str = "POST") -> None:
        self.rid = rid
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data = data
        self._response = http.client.HTTPResponse(self.socket, method=method)

    def send(self) -> None:
        self.socket.sendall(self.data)

    def head(self) -> int:
        """Read the head; the status."""
        self._response.begin()
        return self._response.status

    def piece(self) -> bytes:
        """The next bytes of the body; none at its end."""
        return self._response.read1(65536)

    def rest(self) -> Answer:
        """The answer from where it was read to, to its end or break."""
        whole, body = True, b""
        try:
            body = self._response.read()
        except http.client.IncompleteRead as error:
            whole, body = False, error.partial
        except ConnectionError:
            whole = False
        answer = Answer(self._response.status, self._response.getheaders(), body, whole)
        self.close()
        return answer

    def answer(self) -> Answer:
        """The whole answer."""
        self.head()
        return self.rest()

    def leave(self, *, reset: bool = False) -> None:
        """Go away: in order, or with a reset."""
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self._response.close()
        self.socket.close()


def ask_raw(
    gateway: GatewayProcess, method: str, target: str, body: bytes = b"", headers: Iterable[tuple[str, str]] = ()
) -> Answer:
    """One request in exact bytes, waited for."""
    lines = [
        f"{method} {target} HTTP/1.1",
        "Host: gateway.example:99",
        *(f"{name}: {value}" for name, value in headers),
    ]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    call = Call(gateway.port, "\r\n".join([*lines, "", ""]).encode() + body, "", method)
    call.send()
    return call.answer()


class Scene:
    """What happens between two moments of rest.

    `places`: how many jobs may run at once. `aside`: models outside the one lane, which count for nothing.
    `together`: whether models may be resident side by side. `last`: the gateway itself ends in this scene.
    """

    def __init__(
        self,
        gateway: GatewayProcess,
        *,
        places: int = 1,
        aside: Iterable[str] = (),
        together: bool = False,
        last: bool = False,
    ) -> None:
        self.gateway = gateway
        self.jobs = 0  #: sent so far
        self._places = places
        self._aside = frozenset(aside)
        self._together = together
        self._last = last
        self._calls: list[Call] = []

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._ended_before = self.gateway.metric("swaplane_jobs_total")
        self._files_before = open_files(self.gateway.process.pid)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for call in self._calls:
            call.close()
        if error is not None:
            if not self._last:
                self.gateway.unload()  # whoever shares the gateway begins at rest all the same
            return
        if not self._last:
            self._assert_rest()
        entries = [entry for entry in self.journal() if entry["name"] not in self._aside]
        assert_places_kept(entries, self._places)
        assert_ran_once(entries)
        if not self._together:
            assert_one_resident(entries)

    def prepare(
        self,
        model: str,
        rid: str,
        *,
        headers: Mapping[str, str] | None = None,
        stub: dict[str, Any] | None = None,
        path: str = "/v1/chat/completions",
        **body: Any,
    ) -> Call:
        """A job that is sent by its `send`."""
        content = json.dumps({"model": model, "rid": rid, "stub": stub or {}, **body}).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: gateway", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines += [f"Content-Length: {len(content)}", "", ""]
        self.jobs += 1
        call = Call(self.gateway.port, "\r\n".join(lines).encode() + content, rid)
        self._calls.append(call)
        return call

    def send(self, model: str, rid: str, **options: Any) -> Call:
        """A job, sent; see `prepare`."""
        call = self.prepare(model, rid, **options)
        call.send()
        return call

    def ask(self, model: str, rid: str, **options: Any) -> Answer:
        """A job, waited for."""
        return self.send(model, rid, **options).answer()

    def journal(self, *events: str) -> list[dict[str, Any]]:
        """What the stubs wrote down in this scene."""
        return [entry for entry in self.gateway.journal(*events) if entry["t"] >= self._began]

    def ran(self) -> list[str]:
        """The requests that reached a model, in order."""
        return [entry["rid"] for entry in self.journal("req_start")]

    def moment(self, event: str, rid: str) -> float:
        """When it was written down of this request."""
        return next(float(entry["t"]) for entry in self.journal(event) if entry.get("rid") == rid)

    def until_waiting(self, count: int) -> None:
        """Return when exactly so many jobs wait in the lane `gpu`."""
        eventually(lambda: self.gateway.queue()["waiting_total"] == count, f"{count} wait", PATIENCE_S)

    def until_running(self, rid: str) -> None:
        """Return when the request has reached its model."""
        eventually(lambda: rid in self.ran(), f"{rid} runs", PATIENCE_S)

    def job_ids(self, state: str = "waiting", lane: str = "gpu") -> dict[str, str]:
        """The ids of the jobs that wait ("waiting") or hold a place ("running"), by their labels."""
        return {job["label"]: job["id"] for job in self.gateway.lanes()[lane][state]}

    def _assert_rest(self) -> None:
        gateway = self.gateway

        def idle() -> bool:
            return not any(lane["running"] or lane["waiting"] for lane in gateway.lanes().values())

        eventually(idle, "no job waits or runs", PATIENCE_S)
        gauges = ("swaplane_queue_depth", "swaplane_queue_oldest_wait_seconds", "swaplane_running")
        assert {name: gateway.metric(name) for name in gauges} == dict.fromkeys(gauges, 0.0)
        assert gateway.metric("swaplane_jobs_total") - self._ended_before == self.jobs, "each job ends exactly once"
        gateway.unload()
        assert gateway.states() == {}
        assert leftovers(gateway.stub_id) == [gateway.process.pid], "a model process is left"
        files = self._files_before + SPARE_FILES
        eventually(lambda: open_files(gateway.process.pid) <= files, "descriptors are given back")
        eventually(lambda: not zombies_of(gateway.process.pid), "no zombie")
        assert_clean(gateway.log.read_text())


def open_files(pid: int) -> int:
    """How many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def assert_clean(log: str) -> None:
    """The gateway's log tells of no fault of its own."""
    for words in ("Traceback", "never retrieved", "was destroyed", "was never awaited", "[error]"):
        assert words not in log, log


@dataclass
class _Span:
    """A stretch of time that began and ended by what the models wrote down."""

    what: str
    start: float
    end: float


def _last_words(entries: list[dict[str, Any]]) -> dict[int, float]:
    """When each process wrote its last line: a killed one says no more than that."""
    return {entry["pid"]: entry["t"] for entry in entries}


def _runs(entries: list[dict[str, Any]]) -> list[_Span]:
    """When each request occupied its model."""
    last, runs, open_runs = _last_words(entries), [], {}
    for entry in entries:
        key = entry["pid"], entry.get("rid")
        if entry["ev"] == "req_start":
            open_runs[key] = _Span(entry["rid"], entry["t"], last[entry["pid"]])
            runs.append(open_runs[key])
        elif entry["ev"] in ("req_end", "client_gone") and key in open_runs:
            run = open_runs.pop(key)
            run.end = entry["t"] if entry["ev"] == "req_end" else max(run.start, entry["t"] - GONE_SEEN_S)
    return runs


def assert_places_kept(entries: list[dict[str, Any]], places: int) -> None:
    """Never more requests at the models than there are places."""
    running: list[_Span] = []
    for run in _runs(entries):
        running = [other for other in running if other.end > run.start]
        assert len(running) < places, f"{run.what} was sent while {[other.what for other in running]} ran"
        running.append(run)


def assert_one_resident(entries: list[dict[str, Any]]) -> None:
    """A model is started only after the one before it has ended."""
    last = _last_words(entries)
    alive = [_Span(entry["name"], entry["t"], last[entry["pid"]]) for entry in entries if entry["ev"] == "boot"]
    for before, after in itertools.pairwise(alive):
        assert before.end <= after.start, f"{after.what} was started while {before.what} lived"


def assert_ran_once(entries: list[dict[str, Any]]) -> None:
    """No request reaches a model twice."""
    rids = [entry["rid"] for entry in entries if entry["ev"] == "req_start"]
    assert len(rids) == len(set(rids)), sorted(rids)


def in_time(condition: Callable[[], object], what: str) -> None:
    """Poll until `condition()` is true, with all patience."""
    eventually(condition, what, PATIENCE_S)
