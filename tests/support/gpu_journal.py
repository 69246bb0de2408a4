"""The journal that all model servers of a test share, and what it says about who used the GPU when.

`Journal` is for the servers: JSON lines, each one appended by a single write to $STUB_LOG, so that several processes
may share the file. Every line has `t` (CLOCK_MONOTONIC, seconds), `ev`, `name`, `pid`. The servers that render
(`video_jobs.py`, `comfy.py`) write

    boot, ready              as stub.py does
    http {method, path, headers}      a request has arrived; probes of /health are left out
    gpu_start {id, prompt}   a render begins
    gpu_beat {id}            it goes on; every BEAT_S
    gpu_end {id, how}        it is over, and nobody was told so before: done, failed, cancelled, killed
    sigterm, exit {code, why}

`gpu_intervals` and `overlaps` are for the tests and decide when the GPU was in use, by these lines and by those of
stub.py. They read entries only, no file and no clock.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

BEAT_S = 0.05  #: how often a render says that it goes on
GONE_SEEN_S = 0.5  #: a stub on a busy machine writes down that its caller has gone this much later at most


class Journal:
    """One process's pen for the shared journal."""

    def __init__(self, name: str) -> None:
        self.name = name
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(os.environ["STUB_LOG"], flags, 0o644)

    def note(self, ev: str, **fields: Any) -> None:
        """Append one line, from any thread."""
        entry = {"t": time.monotonic(), "ev": ev, "name": self.name, "pid": os.getpid(), **fields}
        os.write(self._file, json.dumps(entry).encode() + b"\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInterval:
    """A stretch of time in which one server used the GPU for one job. Times are CLOCK_MONOTONIC seconds."""

    name: str  #: the server
    pid: int
    id: str  #: the job: the render's id, or the stub request's rid
    start_s: float
    end_s: float
    how: str  #: done, failed, cancelled, killed; "open": the journal does not tell its end

    def overlaps(self, other: GpuInterval) -> bool:
        """Whether both used the GPU at the same time."""
        return self.start_s < other.end_s and other.start_s < self.end_s


def gpu_intervals(entries: Iterable[dict[str, Any]]) -> list[GpuInterval]:
    """All uses of the GPU, in order of their beginning.

    A render lasts from gpu_start to gpu_end. A stub's request lasts from req_start to req_end, or to client_gone
    less GONE_SEEN_S; requests that only ask (GET, HEAD; a websocket is work) do not count.

    What has no such end is ended by its process's `exit`. A process that was killed writes none. Its render ends with
    its last gpu_beat, which is at most BEAT_S before its death. Its stub request leaves no trace: it ends at the
    first boot of any server after the process's last line, else with the journal.
    """
    ordered = sorted(entries, key=lambda entry: float(entry["t"]))
    begun: dict[tuple[int, str, str], list[dict[str, Any]]] = {}
    beats: dict[tuple[int, str], float] = {}
    found: list[GpuInterval] = []

    def end(start: dict[str, Any], at_s: float, how: str) -> None:
        found.append(
            GpuInterval(
                name=start["name"],
                pid=start["pid"],
                id=_job(start),
                start_s=start["t"],
                end_s=max(at_s, start["t"]),
                how=how,
            )
        )

    for entry in ordered:
        ev, pid, at_s = entry["ev"], entry["pid"], entry["t"]
        render, request = (pid, "render", _job(entry)), (pid, "request", _job(entry))
        if ev == "gpu_start":
            begun.setdefault(render, []).append(entry)
        elif ev == "gpu_beat":
            beats[pid, _job(entry)] = at_s
        elif ev == "gpu_end" and begun.get(render):
            end(begun[render].pop(0), at_s, entry["how"])
        elif ev == "req_start" and _is_work(entry["line"]):
            begun.setdefault(request, []).append(entry)
        elif ev == "req_end" and begun.get(request):
            end(begun[request].pop(0), at_s, "done")
        elif ev == "client_gone" and begun.get(request):
            end(begun[request].pop(0), at_s - GONE_SEEN_S, "cancelled")
        elif ev == "exit":
            for key in [key for key in begun if key[0] == pid]:
                for start in begun.pop(key):
                    end(start, at_s, "killed")
    for (pid, kind, job), starts in begun.items():
        for start in starts:
            end(start, beats.get((pid, job), start["t"]) if kind == "render" else _silent_end(ordered, pid), "open")
    return sorted(found, key=lambda interval: interval.start_s)


def overlaps(entries: Iterable[dict[str, Any]]) -> list[tuple[GpuInterval, GpuInterval]]:
    """The pairs of uses of the GPU that overlap in time, also those of one server; see `gpu_intervals`."""
    return [(one, other) for one, other in combinations(gpu_intervals(entries), 2) if one.overlaps(other)]


def _job(entry: dict[str, Any]) -> str:
    return str(entry["id"] if "id" in entry else entry.get("rid"))


def _is_work(line: str) -> bool:
    method, target, _ = line.split(" ", 2)
    return method not in ("GET", "HEAD") or target.partition("?")[0].endswith("/ws")


def _silent_end(ordered: list[dict[str, Any]], pid: int) -> float:
    last_s = max(entry["t"] for entry in ordered if entry["pid"] == pid)
    boots = [entry["t"] for entry in ordered if entry["ev"] == "boot" and entry["t"] > last_s]
    return float(boots[0] if boots else ordered[-1]["t"])
