from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from swaplane.demo.frames import count_frames
from swaplane.demo.video_server import Renderer, Server

SMALL = {"model": "video", "prompt": "a train", "fps": 12, "width": 64, "height": 48}


def serve(seconds_per_frame: float) -> Iterator[Server]:
    server = Server(0, Renderer(seconds_per_frame))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def fast() -> Iterator[Server]:
    yield from serve(0.0)


@pytest.fixture
def slow() -> Iterator[Server]:
    yield from serve(0.02)


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    with httpx2.Client(trust_env=False, timeout=30) as client:
        yield client


def url(server: Server, path: str) -> str:
    return f"http://127.0.0.1:{server.server_port}{path}"


def eventually(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def start_of_a_long_video(server: Server) -> socket.socket:
    """A client on whose video the server has begun to work."""
    body = json.dumps({**SMALL, "frames": 1000}).encode()
    connection = socket.create_connection(("127.0.0.1", server.server_port))
    connection.sendall(b"POST /v1/videos/sync HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    eventually(lambda: server.renderer.progress()["rendering"] is not None)
    return connection


def test_the_answer_is_an_mp4_of_the_frames_asked_for(fast: Server, client: httpx2.Client) -> None:
    response = client.post(url(fast, "/v1/videos/sync"), json={**SMALL, "frames": 7})
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "video/mp4"
    assert response.headers["X-Frames"] == "7"
    assert count_frames([response.content]) == 7
    assert client.get(url(fast, "/progress")).json() == {"rendering": None, "finished": 1, "given_up": 0}


def test_progress_names_the_frame_being_rendered(slow: Server, client: httpx2.Client) -> None:
    with start_of_a_long_video(slow):
        rendering = client.get(url(slow, "/progress")).json()["rendering"]
        assert rendering["prompt"] == "a train"
        assert 1 <= rendering["frame"] <= rendering["frames"] == 1000
    eventually(lambda: slow.renderer.given_up == 1)


def test_a_client_that_leaves_stops_its_video_and_frees_the_renderer(slow: Server, client: httpx2.Client) -> None:
    start_of_a_long_video(slow).close()
    assert client.post(url(slow, "/v1/videos/sync"), json={**SMALL, "frames": 1}).status_code == 200
    assert client.get(url(slow, "/progress")).json() == {"rendering": None, "finished": 1, "given_up": 1}


def test_a_client_that_leaves_while_it_waits_its_turn_costs_no_frame(slow: Server) -> None:
    first = start_of_a_long_video(slow)
    start_of_a_long_video(slow).close()
    first.close()
    eventually(lambda: slow.renderer.given_up == 2)
    assert slow.renderer.progress() == {"rendering": None, "finished": 0, "given_up": 2}


def test_videos_are_rendered_one_after_the_other(
    slow: Server, client: httpx2.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    def render(shot: int) -> int:
        return client.post(url(slow, "/v1/videos/sync"), json={**SMALL, "frames": 5, "shot": shot}).status_code

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(render, [1, 2, 3])) == [200, 200, 200]
    shots = re.findall(r"shot (\d): frame", capsys.readouterr().out)
    runs = [shots[start : start + 5] for start in range(0, len(shots), 5)]
    assert sorted(runs) == [["1"] * 5, ["2"] * 5, ["3"] * 5]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"prompt": None}, "prompt"),
        ({"frames": 0}, "frames"),
        ({"frames": "12"}, "frames"),
        ({"frames": True}, "frames"),
        ({"width": 65}, "width"),
        ({"height": 10_000}, "height"),
        ({"seed": -1}, "seed"),
        ({"fps": 1.5}, "fps"),
    ],
)
def test_a_bad_field_is_refused_by_name(
    fast: Server, client: httpx2.Client, changes: dict[str, Any], named: str
) -> None:
    response = client.post(url(fast, "/v1/videos/sync"), json={**SMALL, **changes})
    assert response.status_code == 400
    assert named in response.json()["error"]


def test_what_is_not_json_is_refused_and_the_connection_goes_on(fast: Server, client: httpx2.Client) -> None:
    assert client.post(url(fast, "/v1/videos/sync"), content=b"{").status_code == 400
    assert client.post(url(fast, "/v1/videos/sync"), content=b"[]").status_code == 400
    assert client.post(url(fast, "/elsewhere"), content=b"{}").status_code == 404
    assert client.get(url(fast, "/elsewhere")).status_code == 404
    assert client.get(url(fast, "/health")).status_code == 200


def test_a_body_without_a_length_is_refused(fast: Server, client: httpx2.Client) -> None:
    assert client.post(url(fast, "/v1/videos/sync"), content=iter([b"{}"])).status_code == 411


def test_as_a_process_it_tells_its_address_and_ends_at_sigterm(client: httpx2.Client) -> None:
    command = [sys.executable, "-m", "swaplane.demo.video_server", "--port", "0", "--seconds-per-frame", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            assert client.get(f"{address}/health").status_code == 200
        finally:
            process.terminate()
    assert process.returncode == -signal.SIGTERM
