"""A real gateway in its own process, in front of stub models, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from tests.support.stub_client import eventually, free_port, leftovers, read_journal, stub_cmd

DEADLINE_S = 60.0


def stub_models(*names: str, flags: str = "", extra: str = "") -> str:
    """A `models:` block of stubs; `flags` go to each command, `extra` lines into each entry."""
    lines = ["models:"]
    for name in names:
        lines += [f"  {name}:", f"    cmd: {stub_cmd('${PORT}', name)} {flags}"]
        lines += [f"    {line}" for line in extra.splitlines()]
    return "\n".join(lines) + "\n"


class GatewayProcess:
    """`swaplane serve` on a free loopback port, with a journal of what reached its stub models.

    `key` is the API key of an admin, where the file has keys.
    """

    def __init__(self, folder: Path, config: str, *, key: str = "") -> None:
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = folder / "config.yaml"
        self.log = folder / "gateway.log"
        self.stub_id = uuid.uuid4().hex
        self._journal = folder / "journal.jsonl"
        self.write_config(config)
        self._process: subprocess.Popen[bytes] | None = None
        self._connections: list[socket.socket] = []
        self._kept = self.client()  # management paths are polled over one connection

    def write_config(self, config: str) -> None:
        """Replace the configuration file; stub ports of parallel test runs are kept apart."""
        first_port = "" if "startPort" in config else f"startPort: {free_port()}\n"
        self.config.write_text(first_port + config)

    @contextlib.contextmanager
    def unguarded(self) -> Iterator[None]:
        """Start it for a test that ends it in its own way: nothing is checked at the end."""
        self.__enter__()
        try:
            yield
        finally:
            self._close_connections()
            if self.process.poll() is None:
                self.stop()

    def __enter__(self) -> Self:
        environ = {**os.environ, "STUB_LOG": str(self._journal), "STUB_ID": self.stub_id}
        environ["XDG_STATE_HOME"] = str(self.config.parent / "state")
        command = [sys.executable, "-m", "swaplane", "serve", "-config", str(self.config)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "-listen", f"127.0.0.1:{self.port}"], env=environ, stdout=log, stderr=log
            )
        eventually(self._answers, "the gateway answers", DEADLINE_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._close_connections()
        code = self.stop()
        assert code == 0, f"exit code {code}\n{self.log.read_text()}"
        left = leftovers(self.stub_id)
        assert not left, f"processes left behind: {left}"
        text = self.log.read_text()
        assert "Traceback" not in text, text

    def _close_connections(self) -> None:
        for connection in self._connections:
            connection.close()
        self._kept.close()

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return bool(self.get("/health").status_code == 200)
        except httpx2.TransportError:
            return False

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running gateway."""
        assert self._process is not None
        return self._process

    def stop(self) -> int:
        """SIGTERM, and wait; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def client(self) -> httpx2.Client:
        """An HTTP client that waits as long as a queue takes."""
        return httpx2.Client(base_url=self.url, headers=self._headers, timeout=None, trust_env=False)

    def get(self, path: str) -> httpx2.Response:
        """GET a management path."""
        return self._kept.get(path)

    def request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Any other request that is answered at once."""
        return self._kept.request(method, path, **options)

    def lanes(self) -> dict[str, dict[str, Any]]:
        """The lanes of /api/queue by name."""
        return {lane["name"]: lane for lane in self.get("/api/queue").json()["lanes"]}

    def states(self) -> dict[str, str]:
        """The state of each model that is not stopped."""
        return {model["model"]: model["state"] for model in self.get("/running").json()["running"]}

    def unload(self, model: str = "") -> httpx2.Response:
        """Stop one model, or all; returns when the gateway says that they are gone."""
        with self.client() as client:
            return client.post("/api/models/unload" + (f"/{model}" if model else ""))

    def chat(self, model: str, *, stub: dict[str, Any] | None = None, **body: Any) -> httpx2.Response:
        """One chat request, waited for."""
        with self.client() as client:
            return client.post("/v1/chat/completions", json={"model": model, "stub": stub or {}, **body})

    def queue(self) -> dict[str, Any]:
        """The lane `gpu` of /api/queue."""
        return self.lanes()["gpu"]

    def journal(self, *events: str) -> list[dict[str, Any]]:
        """What the stubs wrote down."""
        return read_journal(self._journal, *events)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels."""
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            sample, _, value = line.rpartition(" ")
            if sample.split("{")[0] == name and all(f'{key}="{label}"' in sample for key, label in labels.items()):
                total += float(value)
        return total

    def raw_chat(
        self, model: str, rid: str, *, headers: bytes = b"", stub: dict[str, Any] | None = None, **body: Any
    ) -> socket.socket:
        """Send a chat request over a bare socket and return without reading the answer."""
        content = json.dumps({"model": model, "rid": rid, "stub": stub or {}, **body}).encode()
        connection = self.connection()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
        connection.sendall(head + headers + b"Content-Length: %d\r\n\r\n" % len(content) + content)
        return connection

    def connection(self) -> socket.socket:
        """A bare connection; it is closed with the gateway at the latest."""
        connection = socket.create_connection(("127.0.0.1", self.port))
        self._connections.append(connection)
        return connection
