"""`serve` with a real gateway and a real process as its model; `queue` and `cancel` against it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.cli.support import environment, swaplane
from tests.support.stub_client import eventually, free_port, leftovers, stub_cmd

STUB_ID = "cli-serve"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(
        f"""\
startPort: {free_port()}
models:
  m:
    cmd: {stub_cmd("${PORT}", "m")}
    proxy: "http://127.0.0.1:${{PORT}}"
    env: ["STUB_ID={STUB_ID}"]
"""
    )
    return path


@contextmanager
def gateway(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "swaplane", "serve", *words],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()
    eventually(lambda: not leftovers(STUB_ID), "no model is left behind")


def ready(url: str) -> None:
    with httpx2.Client(trust_env=False) as client:

        def answers() -> bool:
            try:
                return client.get(f"{url}/health").status_code == 200
            except httpx2.TransportError:
                return False

        eventually(answers, f"{url} answers")


def test_a_gateway_from_start_to_end(config: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with gateway("-config", str(config), f"-listen={port}") as process, ThreadPoolExecutor(2) as pool:
        ready(url)
        with httpx2.Client(trust_env=False, timeout=60) as client:

            def ask(member: str, seconds: float) -> httpx2.Response:
                headers = {"X-LlamaSwap-Priority": "-98", "X-LlamaSwap-Member": member}
                body = {"model": "m", "stub": {"dur": seconds}}
                return client.post(f"{url}/v1/completions", json=body, headers=headers)

            def queue() -> dict[str, list[str]]:
                (lane,) = client.get(f"{url}/api/queue").json()["lanes"]
                return {state: [job["id"] for job in lane[state]] for state in ("running", "waiting")}

            first = pool.submit(ask, "alice", 60)
            eventually(lambda: queue()["running"], "the first job has its place")
            second = pool.submit(ask, "bob", 0)
            eventually(lambda: queue()["waiting"], "the second job waits")

            assert [lane["name"] for lane in json.loads(swaplane("queue", "--json", "--url", url).stdout)["lanes"]] == [
                "gpu"
            ]
            table = swaplane("queue", "--url", url)
            assert (table.returncode, table.stderr) == (0, "")
            assert "alice" in table.stdout
            (bobs,) = (line for line in table.stdout.splitlines() if " bob " in line)
            assert {"-100", "+2"} <= set(bobs.split())

            (running,), (waiting,) = queue().values()
            done = swaplane("cancel", waiting, running, "nobody", "--url", url)
            assert done.returncode == 1
            assert done.stdout == f"{waiting}: cancelled\n{running}: cancelled\n"
            assert done.stderr.startswith("nobody: not cancelled: ")
            assert second.result(timeout=30).headers["X-LlamaSwap-Job"] == waiting
            assert not first.result(timeout=30).is_success
            eventually(lambda: not any(queue().values()), "the queue is empty")

        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def test_every_problem_of_a_bad_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("modles: {}\nttl: 3\n")
    done = swaplane("serve", "-config", str(path))
    assert (done.returncode, done.stdout) == (1, "")
    problems = done.stderr.splitlines()
    assert [problem.split(":")[0] for problem in problems] == [str(path)] * 2


def test_a_taken_port_is_one_sentence(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = swaplane("serve", "--config", str(config), "--listen", address)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert address in done.stderr
    assert "Address already in use" in done.stderr
    assert "--listen" in done.stderr


def test_whoever_serves_others_without_keys_is_warned(config: Path) -> None:
    nowhere = "192.0.2.1:8080"  # an address that no machine has, so that nothing is listened on
    done = swaplane("serve", "--config", str(config), "--listen", nowhere)
    note, error = done.stderr.splitlines()
    assert note.startswith(f"Everybody who can reach {nowhere} may use, unload and cancel everything: ")
    assert "cannot listen" in error
    config.write_text(config.read_text() + "keys: [{key: sk-x, admin: true}]\n")
    done = swaplane("serve", "--config", str(config), "--listen", nowhere)
    assert done.stderr.splitlines() == [error]


def test_keys_that_were_made_here_work_here(config: Path) -> None:
    words = (("--name", "root", "--admin"), ("--member", "ann"))
    root, ann = (json.loads(swaplane("key", "new", "--json", *each).stdout) for each in words)
    config.write_text(config.read_text() + f"keys: {json.dumps([root['entry'], ann['entry']])}\n")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with gateway("-config", str(config), f"-listen={port}") as process:
        ready(url)
        assert "asks for an API key" in swaplane("queue", "--url", url).stderr

        def by(key: str, *command: str) -> tuple[int, str]:
            done = swaplane(*command, "--url", url, SWAPLANE_KEY=key)
            return done.returncode, done.stdout + done.stderr

        assert by(root["key"], "pause")[0] == 0
        code, text = by(ann["key"], "resume")
        assert (code, text) == (1, f"{url} does not allow this: this needs a key with `admin: true`.\n")
        body = {"model": "m", "stub": {"dur": 0}}
        with ThreadPoolExecutor(1) as pool, httpx2.Client(trust_env=False, timeout=60) as client:
            headers = {"Authorization": f"Bearer {ann['key']}"}
            asked = pool.submit(client.post, f"{url}/v1/completions", json=body, headers=headers)
            eventually(lambda: "ann" in by(ann["key"], "members")[1], "hers waits")
            assert "paused" in by(root["key"], "queue")[1]
            assert by(root["key"], "resume") == (0, "lane gpu takes jobs\n")
            assert asked.result(timeout=60).status_code == 200
        assert "ann" in by(root["key"], "members")[1]
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        assert root["key"] not in output
        assert ann["key"] not in output


def test_no_configuration_is_refused_in_llama_swaps_words() -> None:
    done = swaplane("serve")
    assert done.returncode == 1
    assert done.stderr.startswith("at least one of -config or -config-dir must be provided")
