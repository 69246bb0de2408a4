from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest

from swaplane.demo.film import Arrival, Ended, ask, plan

CHAT = next(arrival for arrival in plan(12) if arrival.model == "smollm2")
SHOT = plan(1)[0]
LOOK_UP = next(arrival for arrival in plan(12) if arrival.model == "minilm")


@contextlib.contextmanager
def answering(status: int, body: bytes, headers: dict[str, str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that gives every request the same answer, and what reached it."""
    seen: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append({"path": self.path, "body": sent, **self.headers})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def asked(url: str, arrival: Arrival) -> Ended:
    async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        return await ask(client, arrival)


def sse(*events: str) -> bytes:
    return "".join(f"data: {event}\n\n" for event in events).encode()


def word(text: str | None) -> str:
    return json.dumps({"choices": [{"delta": {"content": text}}]})


def test_the_film_comes_first_and_all_else_while_it_is_rendered() -> None:
    arrivals = plan(12)
    assert [arrival.label for arrival in arrivals[:12]] == [f"film=night-train; shot={n}/12" for n in range(1, 13)]
    assert {arrival.band for arrival in arrivals[:12]} == {"batch"}
    assert {arrival.band for arrival in arrivals[12:]} == {"interactive", "normal"}
    assert len({arrival.member for arrival in arrivals if arrival.band == "interactive"}) == 3
    times = [arrival.at_s for arrival in arrivals]
    assert times == sorted(times)
    assert arrivals == plan(12)


def test_a_longer_film_meets_more_of_the_others() -> None:
    def others(shots: int) -> int:
        return sum(arrival.band != "batch" for arrival in plan(shots))

    assert others(1) >= 1
    assert others(3) < others(12) < others(24)


@pytest.mark.anyio
async def test_priority_member_and_label_go_into_the_headers() -> None:
    headers = {"X-LlamaSwap-Job": "j7", "X-LlamaSwap-Wait": "1.250", "X-Frames": "12"}
    with answering(200, b"mp4", headers) as (url, seen):
        ended = await asked(url, SHOT)
    assert seen[0]["path"] == "/upstream/video/v1/videos/sync"
    assert seen[0]["body"] == SHOT.body
    sent = {name.lower(): value for name, value in seen[0].items()}
    assert sent["x-llamaswap-priority"] == "batch"
    assert sent["x-llamaswap-member"] == "filmmaker"
    assert sent["x-llamaswap-label"] == "film=night-train; shot=1/1"
    assert (ended.job, ended.wait_s, ended.video, ended.error) == ("j7", 1.25, b"mp4", "")


@pytest.mark.anyio
async def test_a_streamed_answer_is_put_together() -> None:
    with answering(200, sse(word("Mid"), word(None), word("night\nblue"), "[DONE]"), {}) as (url, _):
        ended = await asked(url, CHAT)
    assert (ended.says, ended.error) == ("Midnight blue", "")


@pytest.mark.anyio
async def test_embeddings_are_compared() -> None:
    answer = {"data": [{"embedding": [1.0, 0.0]}, {"embedding": [3.0, 4.0]}, {"embedding": [0.0, 1.0]}]}
    with answering(200, json.dumps(answer).encode(), {}) as (url, _):
        ended = await asked(url, LOOK_UP)
    assert ended.error == ""
    assert "0.60 like" in ended.says
    assert "0.00 like" in ended.says


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("arrival", "status", "body", "error"),
    [
        (CHAT, 429, b'{"error":"full"}', "HTTP 429: "),
        (SHOT, 502, b"model died", "HTTP 502: model died"),
        (CHAT, 200, sse(word("Mid")), "without [DONE]"),
        (CHAT, 200, sse(word("Mid"), '{"error":{"message":"it died"}}'), "it died"),
        (CHAT, 200, sse("{"), ""),
        (LOOK_UP, 200, b"[]", ""),
        (LOOK_UP, 200, b'{"data":[]}', ""),
    ],
)
async def test_what_is_no_whole_answer_is_a_failure(arrival: Arrival, status: int, body: bytes, error: str) -> None:
    with answering(status, body, {}) as (url, _):
        ended = await asked(url, arrival)
    assert ended.error
    assert error in ended.error


@pytest.mark.anyio
async def test_a_gateway_that_is_gone_is_a_failure() -> None:
    with answering(200, b"", {}) as (url, _):
        pass
    assert (await asked(url, CHAT)).error
