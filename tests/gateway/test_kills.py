"""`kill -9` of the gateway and of a model's server."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.gateway import GatewayProcess, stub_models
from tests.support.stub_client import eventually, leftovers


def test_a_killed_gateway_leaves_no_model_behind(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path, stub_models("mA", "mB", extra="unloadTimeout: 1"))
    with gateway.unguarded():
        gateway.chat("mA")
        gateway.raw_chat("mB", "running", stub={"dur": 600})
        eventually(lambda: len(gateway.journal("req_start")) == 2, "a job runs on the second model")
        assert leftovers(gateway.stub_id)

        gateway.process.kill()
        gateway.process.wait()
        eventually(lambda: not leftovers(gateway.stub_id), "no model process is left")


def test_a_killed_model_fails_its_running_job_only(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, stub_models("mA")) as gateway:
        running = gateway.raw_chat("mA", "running", stub={"dur": 600})
        eventually(lambda: gateway.journal("req_start"), "a job runs")
        waiting = [gateway.raw_chat("mA", f"waiting-{n}") for n in range(3)]
        eventually(lambda: len(gateway.queue()["waiting"]) == 3, "three wait")

        os.kill(gateway.journal("boot")[0]["pid"], signal.SIGKILL)
        assert running.recv(65536).startswith(b"HTTP/1.1 502 ")
        for connection in waiting:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert len(gateway.journal("boot")) == 2
        assert gateway.metric("swaplane_jobs_total", outcome="upstream_broken") == 1
        assert gateway.metric("swaplane_jobs_total", outcome="completed") == 3


def test_a_model_that_dies_in_mid_stream_gives_no_clean_end(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, stub_models("mA")) as gateway:
        connection = gateway.raw_chat("mA", "dies", stub={"die_at": 3, "chunks": 9, "gap": 0.05}, stream=True)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b'data: {"error":' in answer.replace(b'data: {"src":"llama-swap","error":', b'data: {"error":')
        assert b"[DONE]" not in answer
        assert not answer.endswith(b"0\r\n\r\n")
        assert gateway.chat("mA").status_code == 200


def test_a_client_that_does_not_read_loses_its_place_with_its_dead_model(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, stub_models("mA", "mB")) as gateway:
        gateway.raw_chat("mA", "stands still", stub={"size": 50_000_000})
        eventually(lambda: gateway.journal("req_start"), "a job runs")
        gateway.raw_chat("mB", "waits")
        eventually(lambda: gateway.queue()["waiting"], "another waits")
        os.kill(gateway.journal("boot")[0]["pid"], signal.SIGKILL)
        eventually(lambda: gateway.journal("req_end"), "the other is served while the first still holds its connection")
        assert gateway.journal("req_end")[0]["rid"] == "waits"
        assert gateway.metric("swaplane_jobs_total", outcome="upstream_broken") == 1
