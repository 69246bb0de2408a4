"""What the benchmarks share: processes to measure, and how their numbers are shown.

Everything runs on the loopback in processes of its own, which end with the `with` block that started them.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from support_load import Measured
from swaplane.demo.config import free_ports

HERE = Path(__file__).parent
CHAT = "/v1/chat/completions"
DEADLINE_S = 60.0

_given_ports: set[int] = set()


class Process:
    """A server in a process of its own."""

    def __init__(self, pid: int, port: int, started_s: float) -> None:
        self.pid = pid
        self.port = port
        self.started_s = started_s  #: from its start to the first answer; 0: not measured
        self._psutil = psutil.Process(pid)

    def __repr__(self) -> str:
        return f"<process {self.pid} on port {self.port}>"

    def cpu_s(self) -> float:
        """CPU seconds used so far, its children's not included."""
        times = self._psutil.cpu_times()
        return times.user + times.system

    def rss_bytes(self) -> int:
        """Resident memory."""
        return int(self._psutil.memory_info().rss)

    def get(self, path: str) -> bytes:
        """The body of the answer to a GET. RuntimeError when it is not 200."""
        return _request(self.port, "GET", path)

    def get_json(self, path: str) -> Any:
        """The same, decoded."""
        return json.loads(self.get(path))


def _request(port: int, method: str, path: str, body: bytes | None = None) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{method} {path} was answered {answer.status}: {content.decode(errors='replace')}")
    return content


def post(port: int, path: str, body: dict[str, Any]) -> bytes:
    """The body of the answer to a POST. RuntimeError when it is not 200."""
    return _request(port, "POST", path, json.dumps(body).encode())


def free_port() -> int:
    """A port of the loopback that nobody listens on, never the same one twice."""
    while (port := free_ports(1)) in _given_ports:
        pass
    _given_ports.add(port)
    return port


@contextlib.contextmanager
def running(arguments: Sequence[str], port: int, log: Path) -> Iterator[Process]:
    """Python with these arguments as a server on `port`, from its first answer on until the block ends."""
    began = time.monotonic()
    with log.open("wb") as output:
        popen = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=output)
    try:
        while not _answers(port):
            if popen.poll() is not None or time.monotonic() - began > DEADLINE_S:
                raise RuntimeError(f"{arguments} did not come up:\n{log.read_text()}")
            time.sleep(0.001)
        yield Process(popen.pid, port, time.monotonic() - began)
    finally:
        popen.send_signal(signal.SIGTERM)
        try:
            popen.wait(DEADLINE_S)
        finally:
            popen.kill()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException, RuntimeError):
        _request(port, "GET", "/health")
        return True
    return False


@contextlib.contextmanager
def uvicorn_alone() -> Iterator[Process]:
    """The yardstick `support_uvicorn`."""
    port = free_port()
    arguments = [str(HERE / "support_uvicorn.py"), "--port", str(port)]
    with tempfile.TemporaryDirectory() as folder, running(arguments, port, Path(folder, "log")) as process:
        yield process


@contextlib.contextmanager
def gateway(*models: ModelServer, launcher: Sequence[str] = ("-m", "swaplane")) -> Iterator[Process]:
    """A gateway as in production, in front of these models, its log in a file; `launcher` are Python's arguments."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        jobs = f"jobs: {{path: {Path(folder, 'state')}}}\n"
        entries = "".join(model.entry() for model in models)
        config.write_text(jobs + (f"models:\n{entries}" if models else "models: {}\n"))
        arguments = [*launcher, "serve", "-config", str(config), "-listen", f"127.0.0.1:{port}"]
        with running(arguments, port, Path(folder, "log")) as process:
            yield process


class ModelServer:
    """A `support_server` that a gateway starts, and that is reached directly too."""

    def __init__(self, name: str, *, slots: int) -> None:
        self.name = name
        self.port = free_port()
        self._slots = slots

    def __repr__(self) -> str:
        return f"<model server {self.name} with {self._slots} slots on port {self.port}>"

    def entry(self) -> str:
        """Its lines in the configuration."""
        command = f"{sys.executable} {HERE / 'support_server.py'} --port {self.port}"
        return (
            f"  {self.name}:\n    cmd: {command}\n    proxy: http://127.0.0.1:{self.port}\n    slots: {self._slots}\n"
        )

    def process(self) -> Process:
        """It, once the gateway has started it."""
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (self.port,)
            if listening and connection.pid is not None:
                return Process(connection.pid, self.port, 0.0)
        raise RuntimeError(f"{self!r} does not run")


def load(port: int, *, clients: int, seconds: float, model: str, bench: dict[str, Any] | None = None) -> Measured:
    """One run of the load generator against a server on this port."""
    asked = {
        "port": port,
        "path": CHAT,
        "body": chat(model, bench),
        "clients": clients,
        "seconds": seconds,
    }
    command = [sys.executable, str(HERE / "support_load.py"), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + DEADLINE_S, check=False)
    if done.returncode:
        raise RuntimeError(f"the load generator failed:\n{done.stderr}")
    measured: Measured = json.loads(done.stdout)
    return measured


def chat(model: str, bench: dict[str, Any] | None = None) -> dict[str, Any]:
    """A chat request of about 300 bytes; `bench` is for the model server, see `support_server`."""
    messages = [
        {"role": "system", "content": "You are the narrator of a short film; answer in one sentence."},
        {"role": "user", "content": "Describe shot 12: a night train crosses the bridge, seen from the river bank."},
    ]
    body = {"model": model, "messages": messages, "temperature": 0.7, "max_tokens": 128}
    return body if bench is None else {**body, "stream": "chunks" in bench, "bench": bench}


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns for the terminal and for Markdown: the first to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        [cell.ljust(w) if at == 0 else cell.rjust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True))]
        for row in (head, *rows)
    ]
    rule = ["-" * w if at == 0 else "-" * (w - 1) + ":" for at, w in enumerate(widths)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], rule, *lines[1:]))


def machine() -> str:
    """The machine and what runs on it, in one line."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        cpu = found[1] if found else cpu
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{cpu}, {usable} cores, load average {os.getloadavg()[0]:.1f} at the start; {platform.system()} "
        f"{platform.release()}, Python {platform.python_version()}, uvloop {version('uvloop')}"
    )
