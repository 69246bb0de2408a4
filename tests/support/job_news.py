"""A reader of /api/events, as a test holds it while it does something else."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any

import httpx2

from tests.support.gateway import GatewayProcess


class JobNews:
    """Reads /api/events in a thread; `jobs` is what came, `over` is set when the stream has ended."""

    def __init__(self, gateway: GatewayProcess, headers: dict[str, str] | None = None) -> None:
        self.jobs: list[dict[str, Any]] = []
        self.over = threading.Event()
        self._client = gateway.client()
        request = self._client.build_request("GET", "/api/events", headers=headers)
        self._response = self._client.send(request, stream=True)
        assert self._response.headers["content-type"].startswith("text/event-stream")
        self._lines = self._response.iter_lines()
        assert next(self._lines) == ": jobs"
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            for line in self._lines:
                if line.startswith("data:"):
                    event = json.loads(line[len("data:") :])
                    assert event["type"] == "job"
                    self.jobs.append(json.loads(event["data"]))
        except httpx2.HTTPError:
            pass
        self.over.set()

    def of(self, job_id: str) -> list[dict[str, Any]]:
        """What was told of one job."""
        return [job for job in self.jobs if job["id"] == job_id]

    def told(self) -> set[str]:
        """The jobs of which anything was told."""
        return {job["id"] for job in self.jobs}

    def close(self) -> None:
        """Leave."""
        connection = self._response.extensions["network_stream"].get_extra_info("socket")
        with contextlib.suppress(OSError):  # the gateway was first
            connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._response.close()
        self._client.close()
