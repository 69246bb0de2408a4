"""The demo from end to end: the gateway as a process, the real models, a short film."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import httpx2
import psutil
import pytest

MARK = "SWAPLANE_TEST_MARK"


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of one demo, by which every process that comes of it is found again."""
    mark = uuid.uuid4().hex
    yield {**os.environ, "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "COLUMNS": "100", MARK: mark}
    left = marked(mark)
    for process in left:
        process.kill()
    assert left == []


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def demo_command(arguments: str) -> list[str]:
    return [sys.executable, "-c", f"import sys, swaplane.demo; sys.exit(swaplane.demo.run({arguments}))"]


def eventually(condition: Callable[[], bool], process: subprocess.Popen[bytes], output: Callable[[], str]) -> None:
    give_up_at = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, output()
        assert time.monotonic() < give_up_at, output()
        time.sleep(0.02)


def test_a_film_and_its_chat_end_in_a_comparison(environ: dict[str, str]) -> None:
    ended = subprocess.run(
        demo_command("shots=3, json_output=True"), env=environ, capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert result["failed"] == 0
    with av.open(result["film"]["path"], "r") as film:
        assert sum(1 for _ in film.decode(video=0)) == result["film"]["frames"] == 36
    assert result["chat"]["answer"]
    waits = result["waits"]
    assert {band: waits[band]["jobs"] for band in waits} == {"interactive": 3, "normal": 1, "batch": 3}
    # A chat waits for the shot that is being rendered, not for the film.
    assert waits["interactive"]["here"]["max_s"] < waits["interactive"]["first_come"]["max_s"]
    assert result["swaps"]["here"] >= len({job["model"] for job in result["jobs"]}) == 3
    assert all(job["job"] for job in result["jobs"])


def test_ctrl_c_in_the_middle_stops_everything(environ: dict[str, str]) -> None:
    terminal, inside = pty.openpty()
    seen = bytearray()

    def read() -> None:
        try:
            while part := os.read(terminal, 65536):
                seen.extend(part)
        except OSError:
            pass  # the other side is closed

    with subprocess.Popen(demo_command("shots=12"), env=environ, stdin=inside, stdout=inside, stderr=inside) as process:
        os.close(inside)
        reader = threading.Thread(target=read)
        reader.start()
        try:
            # The live queue, with a shot that has begun.
            eventually(lambda: re.search(rb"shot=\d+/12.*running", seen) is not None, process, seen.decode)
            assert b"lane gpu" in seen
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130, seen.decode()
        finally:
            process.kill()
    reader.join()
    os.close(terminal)
    assert marked(environ[MARK]) == []


def test_kept_it_stays_up_until_it_is_told_to_end(environ: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "output"
    with (
        log.open("wb") as output,
        subprocess.Popen(demo_command("shots=1, keep=True"), env=environ, stdout=output, stderr=output) as process,
    ):
        try:
            eventually(lambda: "stays up" in log.read_text(), process, log.read_text)
            address = re.search(r"stays up on (\S+)", log.read_text())
            assert address is not None
            assert httpx2.get(f"{address[1]}/health", trust_env=False).status_code == 200
            process.terminate()
            assert process.wait(60) == 0, log.read_text()
        finally:
            process.kill()
    assert marked(environ[MARK]) == []


def test_killed_it_leaves_no_gateway_and_no_model_behind(environ: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "output"
    with (
        log.open("wb") as output,
        subprocess.Popen(demo_command("shots=12"), env=environ, stdout=output, stderr=output) as process,
    ):
        eventually(lambda: "shot=1/12" in log.read_text(), process, log.read_text)
        process.kill()
    deadline = time.monotonic() + 60
    while left := marked(environ[MARK]):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
