"""The end of a gateway: who waits is told, who runs may finish, nothing is left."""

from __future__ import annotations

import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.gateway import GatewayProcess, stub_models
from tests.support.scene import PATIENCE_S, Call, Scene, assert_clean, in_time
from tests.support.stub_client import leftovers


@pytest.fixture
def gateway(tmp_path: Path) -> GatewayProcess:
    return GatewayProcess(
        tmp_path, stub_models("mA", "mB") + stub_models("slow", flags="--boot 600").partition("\n")[2]
    )


def assert_ended_well(gateway: GatewayProcess) -> None:
    assert gateway.process.wait(PATIENCE_S) == 0, gateway.log.read_text()
    assert leftovers(gateway.stub_id) == []
    assert_clean(gateway.log.read_text())
    assert "shutdown complete" in gateway.log.read_text()


def refuses_connections(gateway: GatewayProcess) -> bool:
    try:
        socket.create_connection(("127.0.0.1", gateway.port)).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_a_running_job_finishes_and_waiting_ones_are_told(gateway: GatewayProcess, number: signal.Signals) -> None:
    with gateway.unguarded(), Scene(gateway, last=True) as scene:
        running = scene.send("mA", "runs", stub={"chunks": 30, "gap": 0.05}, stream=True)
        scene.until_running("runs")
        waiting = [scene.send(model, f"waits-{model}") for model in ("mA", "mB")]
        scene.until_waiting(2)
        gateway.process.send_signal(number)
        for call in waiting:
            answer = call.answer()
            assert (answer.status, answer.message) == (503, "the gateway is shutting down")
            assert answer.get("X-LlamaSwap-Job")
        assert scene.journal("req_end") == [], "they are told at once"
        in_time(lambda: refuses_connections(gateway), "new connections are refused")
        answer = running.answer()
        assert answer.whole
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert_ended_well(gateway)
        assert scene.ran() == ["runs"]


def test_a_second_signal_ends_running_jobs_at_once(gateway: GatewayProcess) -> None:
    with gateway.unguarded(), Scene(gateway, last=True) as scene:
        running = scene.send("mA", "runs", stub={"dur": 600})
        scene.until_running("runs")
        gateway.process.send_signal(signal.SIGTERM)
        in_time(lambda: refuses_connections(gateway), "it is shutting down")
        gateway.process.send_signal(signal.SIGTERM)
        answer = running.answer()
        assert (answer.status, answer.message) == (503, "the gateway is shutting down")
        assert_ended_well(gateway)


def test_two_signals_in_one_moment_count_as_two(gateway: GatewayProcess) -> None:
    with gateway.unguarded(), Scene(gateway, last=True) as scene:
        running = scene.send("mA", "runs", stub={"dur": 20})
        scene.until_running("runs")
        gateway.process.send_signal(signal.SIGTERM)
        gateway.process.send_signal(signal.SIGINT)
        assert running.answer().status == 503
        assert_ended_well(gateway)
        assert scene.journal("req_end") == [], "it was not waited for"


def test_a_request_on_a_kept_connection_is_refused_while_the_last_job_ends(gateway: GatewayProcess) -> None:
    with gateway.unguarded(), ThreadPoolExecutor(1) as pool, Scene(gateway, last=True) as scene:
        running = pool.submit(scene.ask, "mA", "runs", stub={"dur": 1.5})
        scene.until_running("runs")
        gateway.get("/health")
        gateway.process.send_signal(signal.SIGTERM)
        in_time(lambda: refuses_connections(gateway), "it is shutting down")
        assert gateway.get("/health").status_code == 200
        late = gateway.request("POST", "/v1/chat/completions", json={"model": "mA", "rid": "late"})
        assert late.status_code == 503
        assert late.json()["error"]["message"] == "the gateway is shutting down"
        assert running.result().status == 200
        assert_ended_well(gateway)
        assert scene.ran() == ["runs"]


def test_a_load_is_given_up(gateway: GatewayProcess) -> None:
    with gateway.unguarded(), Scene(gateway, last=True) as scene:
        loading = scene.send("slow", "loads")
        in_time(lambda: scene.journal("boot"), "it loads")
        gateway.process.send_signal(signal.SIGTERM)
        answer = loading.answer()
        assert (answer.status, answer.message) == (503, "the gateway is shutting down")
        assert_ended_well(gateway)
        assert scene.journal("ready") == []


def test_streams_without_an_end_and_idle_connections_hold_nothing_up(gateway: GatewayProcess) -> None:
    with (
        gateway.unguarded(),
        gateway.client() as client,
        client.stream("GET", "/logs/stream") as log,
        socket.create_connection(("127.0.0.1", gateway.port)),
    ):
        assert log.status_code == 200
        assert next(log.iter_bytes())
        gateway.process.send_signal(signal.SIGTERM)
        assert_ended_well(gateway)


def test_a_request_that_is_still_being_sent_is_told(gateway: GatewayProcess) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 100\r\n\r\nhalf a body"
    with gateway.unguarded():
        half = Call(gateway.port, head, "half")
        half.send()
        gateway.get("/health")
        gateway.process.send_signal(signal.SIGTERM)
        answer = half.answer()
        assert (answer.status, answer.message) == (503, "the gateway is shutting down")
        assert gateway.process.wait(PATIENCE_S) == 0
        assert "Traceback" not in gateway.log.read_text()
