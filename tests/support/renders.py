"""Jobs at rendering servers behind a gateway, as tests start, watch and judge them.

`Renders` speaks to one `GatewayProcess` in front of `video_jobs.py`, `comfy.py` and stubs. It decides nothing; what
happened is read from the journal and from the gateway's own answers.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from typing import Any

import httpx2

from swaplane.demo.frames import count_frames
from tests.support.gateway import GatewayProcess
from tests.support.gpu_journal import overlaps
from tests.support.scene import Answer, Call, in_time

LONG_S = "600"  #: of rendering: it does not end by itself in a test
VIDEOS = "/v1/videos"


@dataclass(frozen=True, slots=True, kw_only=True)
class Render:
    """One job that a server has taken."""

    id: str  #: what the server calls it
    job: str  #: what the gateway calls it
    path: str  #: where it is asked for


class Renders:
    """One gateway's renders."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self._began = time.monotonic()
        self._calls: list[Call] = []

    def submit(self, model: str, *, base: str = VIDEOS, **fields: Any) -> Render:
        """A video, on a connection that is closed once its submit is answered."""
        with self.gateway.client() as client:
            answer = client.post(base, json={"model": model, "prompt": "a night train", **fields})
        assert answer.status_code == 200, answer.text
        video = answer.json()["id"]
        return Render(id=video, job=answer.headers["X-LlamaSwap-Job"], path=f"{base}/{video}")

    def send(self, path: str, body: dict[str, Any]) -> Call:
        """A POST whose answer is not waited for."""
        content = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: gateway", "Content-Type: application/json"]
        head = "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""])
        call = Call(self.gateway.port, head.encode() + content, "")
        self._calls.append(call)
        call.send()
        return call

    def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """A request that is answered whatever the GPU does."""
        with self.gateway.client() as client:
            return client.request(method, path, **options)

    def told(self, render: Render) -> Any:
        """What its client is told of it now."""
        answer = self.ask("GET", render.path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def outcome(self, job: str) -> str:
        """How it ended, once it has."""
        shown: dict[str, Any] = {}

        def ended() -> bool:
            shown.update(self.gateway.get(f"/api/jobs/{job}").json())
            return bool(shown.get("state") == "ended")

        in_time(ended, f"{job} ends")
        return str(shown["outcome"])

    def until_rendering(self, server_id: str = "") -> str:
        """Return when this render, or any since this object was made, uses the GPU; its id."""

        def open_renders() -> list[str]:
            over = [entry["id"] for entry in self.gateway.journal("gpu_end")]
            begun = [entry["id"] for entry in self.gateway.journal("gpu_start") if entry["t"] > self._began]
            return [each for each in begun if each not in over and server_id in ("", each)]

        in_time(open_renders, f"{server_id or 'something'} renders")
        return open_renders()[-1]

    def running(self) -> dict[str, Any]:
        """The one job that holds the lane."""
        (job,) = self.gateway.queue()["running"]
        return dict(job)

    def chat(self, rid: str, model: str = "mA") -> socket.socket:
        """A chat that is not waited for."""
        return self.gateway.raw_chat(model, rid)

    def swap(self, model: str = "mA") -> None:
        """Have another model loaded."""
        assert self.gateway.chat(model).status_code == 200

    def chatted(self, rid: str) -> float:
        """When this chat reached its model, once it has."""

        def moments() -> list[float]:
            return [entry["t"] for entry in self.gateway.journal("req_start") if entry["rid"] == rid]

        in_time(moments, f"{rid} is sent")
        return moments()[0]

    def freed(self, server_id: str) -> float:
        """When the GPU was free of this render: it ended, or its server did."""
        (start,) = [entry for entry in self.gateway.journal("gpu_start") if entry["id"] == server_id]
        ends = [
            entry["t"]
            for entry in self.gateway.journal("gpu_end", "exit")
            if entry["pid"] == start["pid"] and entry.get("id", server_id) == server_id and entry["t"] > start["t"]
        ]
        assert ends, f"{server_id} still renders"
        return float(min(ends))

    def how(self, server_id: str) -> str:
        """How the render ended at its server."""
        return next(str(entry["how"]) for entry in self.gateway.journal("gpu_end") if entry["id"] == server_id)

    def process(self, server_id: str) -> int:
        """The process that rendered it."""
        return next(int(entry["pid"]) for entry in self.gateway.journal("gpu_start") if entry["id"] == server_id)

    def frames(self, path: str) -> int:
        """How many frames the mp4 at this path has."""
        answer = self.ask("GET", path)
        assert answer.status_code == 200, answer.text
        return count_frames([answer.content])

    def assert_at_rest(self) -> None:
        """Nothing is left to do, and nothing ever used the GPU beside something else."""
        for call in self._calls:
            call.close()
        in_time(lambda: not self.gateway.queue()["running"], "nothing runs")
        assert self.gateway.queue()["waiting_total"] == 0
        assert overlaps(self.gateway.journal()) == []


def message(answer: httpx2.Response | Answer) -> str:
    """The one sentence of an error."""
    body = answer.body if isinstance(answer, Answer) else answer.content
    return str(json.loads(body)["error"]["message"])
