"""Members at work behind a gateway: requests that are jobs, what goes wrong with each, and what their clients see.

An `Ask` is one such request, `Day` sends them, each in a thread, the way its member would: a film maker by the real
`openai` client, bots by plain HTTP and polling, chatters by streams. Decides nothing about what is right afterwards,
but for products: those are fetched and decoded. The models are called wan and h3 (`video_jobs.py`), comfy (`comfy.py`),
chat and embed (`stub.py`).
"""

from __future__ import annotations

import itertools
import json
import math
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import httpx2
import openai

from swaplane.demo.frames import count_frames
from tests.support.gateway import GatewayProcess

PATIENCE_S = 380.0
BANDS = {"film": "batch", "chatters": "interactive"}  # of a member; else normal
ENDLESS = {"chunks": 6000, "gap": 0.1}

#: What goes wrong with a request: what its server is told to play, and how the job may end. Those that wait to be
#: cancelled or left may have had their turn by then.
MISHAPS: dict[str, tuple[str, set[str]]] = {
    "": ("", {"completed"}),
    "deaf": ("deaf:1", {"completed"}),
    "fail": ("fail", {"upstream_error"}),
    "forget": ("forget", {"upstream_lost"}),
    "crash": ("crash", {"upstream_broken"}),
    "unload": ("never", {"unloaded_running"}),
    "delete": ("never", {"cancelled_running"}),
    "cancel running": ("never", {"cancelled_running"}),
    "cancel waiting": ("never", {"cancelled_waiting", "cancelled_running"}),
    "delete waiting": ("never", {"cancelled_waiting", "cancelled_running"}),
    "leave waiting": ("", {"left_waiting", "left_running", "completed"}),
    "leave running": ("slow_submit:1.5", {"left_running", "completed"}),
}


@dataclass(slots=True, kw_only=True, eq=False)
class Ask:
    """One request that is a job, and what its client learns of it."""

    label: str  #: its name everywhere: the queue's label, the prompt, the stub's rid
    member: str
    model: str
    mishap: str = ""
    seconds: float = 0.0
    frames: int = 1
    detached: bool = False
    job: str = ""  #: what the gateway calls it
    server_id: str = ""  #: what its server calls it
    saw: str = ""  #: how it ended, as its client sees it
    waited_s: float = math.nan
    is_over: threading.Event = field(default_factory=threading.Event)

    @property
    def band(self) -> str:
        return BANDS.get(self.member, "normal")

    @property
    def headers(self) -> dict[str, str]:
        named = {"X-LlamaSwap-Priority": self.band, "X-LlamaSwap-Member": self.member}
        return {**named, "X-LlamaSwap-Label": self.label, **({"Prefer": "respond-async"} if self.detached else {})}

    @property
    def path(self) -> str:
        paths = {"chat": "/v1/chat/completions", "embed": "/v1/embeddings", "comfy": "/upstream/comfy/prompt"}
        return paths.get(self.model, "/v1/videos")

    @property
    def body(self) -> dict[str, Any]:
        fault = MISHAPS[self.mishap][0]
        if self.model == "chat":
            stub = {"": {"chunks": 3, "gap": self.seconds / 3}, "crash": {"die_at": 1, "gap": 0.05}}.get(self.mishap)
            return {"model": "chat", "rid": self.label, "stream": True, "stub": stub or ENDLESS}
        if self.model == "embed":
            return {"model": "embed", "rid": self.label, "input": self.label, "stub": {"dur": self.seconds}}
        if self.model == "comfy":
            node = "SaveImage" if self.frames == 1 else "SaveVideo"
            inputs = {"text": self.label, "seconds": self.seconds, "fault": fault}
            return {"prompt": {"9": {"class_type": node, "inputs": inputs}}}
        return {"model": self.model, "prompt": self.label, **self.extra_body}

    @property
    def extra_body(self) -> dict[str, Any]:
        fault = MISHAPS[self.mishap][0]
        return {"seconds": f"{self.seconds:.2f}", "num_frames": str(self.frames), **({"fault": fault} if fault else {})}


Bursts = list[list[Ask]]  #: sent one after the other; what is in one is sent at once


class Day:
    """The members at work, each request in a thread."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self.asks: list[Ask] = []
        self.pool = ThreadPoolExecutor(64)
        hooks = {"response": [self._heard]}
        self.client = httpx2.Client(base_url=gateway.url, timeout=PATIENCE_S, trust_env=False, event_hooks=hooks)
        film_makers = openai.DefaultHttpx2Client(timeout=PATIENCE_S, trust_env=False, event_hooks=hooks)
        self.openai = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", http_client=film_makers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()
        self.client.close()
        self.openai.close()

    def _heard(self, answer: httpx2.Response) -> None:
        """What the headers of a job's answer say."""
        if label := answer.request.headers.get("X-LlamaSwap-Label"):
            ask = next(ask for ask in self.asks if ask.label == label)
            ask.job = answer.headers["X-LlamaSwap-Job"]
            ask.waited_s = float(answer.headers.get("X-LlamaSwap-Wait", "nan"))

    def member(self, bursts: Bursts, pauses_s: list[float]) -> Future[None]:
        self.asks += itertools.chain.from_iterable(bursts)

        def live() -> None:
            for burst, pause_s in zip(bursts, pauses_s, strict=True):
                for done in [self.pool.submit(self._serve, ask) for ask in burst]:
                    done.result()
                time.sleep(pause_s)

        return self.pool.submit(live)

    def _serve(self, ask: Ask) -> None:
        meddler = self.pool.submit(self._meddle, ask) if ask.mishap.startswith(("cancel", "unload")) else None
        try:
            if ask.mishap.startswith("leave") and not (ask.model == "chat" and ask.mishap == "leave running"):
                self._leave(ask)
            elif ask.model in ("chat", "embed"):
                self._stream(ask)
            elif ask.member == "film":
                self._shoot(ask)
            else:
                self._order(ask)
        finally:
            ask.is_over.set()
        if meddler is not None:
            meddler.result()

    def _shown(self, ask: Ask) -> dict[str, Any] | None:
        for lane in self.client.get("/api/queue?limit=1000").json()["lanes"]:
            for job in (*lane["running"], *lane["waiting"]):
                if job["label"] == ask.label:
                    ask.job = job["id"]
                    return dict(job)
        return None

    def _once_there(self, ask: Ask, act: Callable[[], object], *, running: bool) -> None:
        """Act when the queue shows it, or shows it running; not at all when it is over before that."""
        while not ask.is_over.is_set():
            job = self._shown(ask)
            if job is not None and (job["state"] == "running" or not running):
                act()
                return
            time.sleep(0.05)

    def _meddle(self, ask: Ask) -> None:
        if ask.mishap == "unload":
            self._once_there(ask, lambda: self.gateway.unload(ask.model), running=True)
        else:
            cancel = lambda: self.client.delete(f"/api/jobs/{ask.job}")  # noqa: E731 - it needs the job's later id
            self._once_there(ask, cancel, running=ask.mishap == "cancel running")

    def _leave(self, ask: Ask) -> None:
        content = json.dumps(ask.body).encode()
        headers = {**ask.headers, "Host": "gateway", "Content-Type": "application/json"}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with socket.create_connection(("127.0.0.1", self.gateway.port)) as connection:
            start = f"POST {ask.path} HTTP/1.1\r\n{head}Content-Length: {len(content)}\r\n\r\n"
            connection.sendall(start.encode() + content)

            def answered() -> None:
                head = b""
                while b"\r\n\r\n" not in head and (piece := connection.recv(4096)):
                    head += piece
                if found := re.search(rb"X-LlamaSwap-Job: (\S+)", head):
                    ask.job = found[1].decode()
                    ask.is_over.set()

            threading.Thread(target=answered, daemon=True).start()
            self._once_there(ask, lambda: connection.shutdown(socket.SHUT_RDWR), running=ask.mishap == "leave running")
        ask.saw = "left"

    def _stream(self, ask: Ask) -> None:
        with self.client.stream("POST", ask.path, json=ask.body, headers=ask.headers) as answer:
            if answer.status_code != 200:
                ask.saw = "refused"
                return
            text = ""
            try:
                for piece in answer.iter_text():
                    text += piece
                    if ask.mishap == "leave running":
                        ask.saw = "left"
                        return
            except httpx2.RemoteProtocolError:
                ask.saw = "broken"
                return
        ask.saw = "completed" if "[DONE]" in text or ask.model == "embed" else "broken"

    def _shoot(self, ask: Ask) -> None:
        """As the film maker does: the client that OpenAI gives out."""
        videos = self.openai.videos
        try:
            video = videos.create_and_poll(
                prompt=ask.label,
                model=ask.model,
                poll_interval_ms=100,
                extra_headers={**ask.headers, "Content-Type": "multipart/form-data"},
                extra_body=ask.extra_body,
            )
        except openai.APIStatusError as error:
            if (error.status_code, ask.mishap) != (410, "cancel waiting"):
                raise
            ask.saw = "refused"
            return
        ask.server_id, ask.saw = video.id, video.status
        if ask.saw == "completed":
            assert count_frames([videos.download_content(video.id).read()]) == ask.frames

    def _order(self, ask: Ask) -> None:
        """As a bot does: submit, ask again and again, fetch."""
        answer = self.client.post(ask.path, json=ask.body, headers=ask.headers)
        if answer.status_code not in (200, 202):
            ask.saw = "refused"
            return
        job = answer.json()
        ask.server_id = job["prompt_id"] if ask.model == "comfy" else job["id"]
        if ask.mishap.startswith("delete"):
            deleted = self.client.delete(f"/v1/videos/{ask.server_id}")
            assert (deleted.status_code, deleted.json()["deleted"]) == (200, True), deleted.text
            ask.saw = "deleted"
            return
        while not ask.saw:
            time.sleep(0.1)
            at = "/upstream/comfy/history/" if ask.model == "comfy" else "/v1/videos/"
            answer = self.client.get(at + ask.server_id)
            if answer.status_code != 200:
                assert (ask.model, answer.status_code) in (("comfy", 502), ("comfy", 503)), (ask, answer.text)
            elif ask.model == "comfy" and ask.server_id in answer.json():
                status = answer.json()[ask.server_id]["status"]["status_str"]
                ask.saw = {"success": "completed", "error": "failed"}[status]
            elif ask.model != "comfy" and answer.json()["status"] in ("completed", "failed"):
                ask.saw = answer.json()["status"]
        if ask.saw == "completed":
            self.check_product(ask)

    def check_product(self, ask: Ask) -> None:
        """What it made can be fetched and decoded, also when its server is long gone."""
        if ask.model == "comfy":
            entry = self.client.get(f"/upstream/comfy/history/{ask.server_id}").json()[ask.server_id]
            answer = self.client.get("/upstream/comfy/view", params=entry["outputs"]["9"]["images"][0])
        else:
            answer = self.client.get(f"/v1/videos/{ask.server_id}/content")
        assert answer.status_code == 200, (ask, answer.text)
        assert count_frames([answer.content]) == ask.frames, ask

    def look_on(self, is_over: threading.Event) -> None:
        """A page that somebody has open: it takes no place and loads nothing."""
        while not is_over.wait(0.3):
            for path in ("/v1/videos?limit=100", "/api/queue", "/metrics"):
                assert self.client.get(path).status_code == 200
            assert self.client.get("/upstream/comfy/queue").status_code in (200, 409, 502, 503)

    def outcome(self, ask: Ask) -> str:
        assert ask.job, ask
        answer = self.client.get(f"/api/jobs/{ask.job}")
        if ask.mishap == "delete waiting":  # of a stored job nothing is left then; the metrics still tell
            assert answer.status_code == 404, answer.text
            return "cancelled_waiting"
        job = answer.json()
        assert (job["state"], job["label"]) == ("ended", ask.label)
        return str(job["outcome"])
