"""Clients that go away: while queued, while their model loads, while running. Ten of each."""

from __future__ import annotations

import json
import socket
import statistics
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import GatewayProcess, stub_models
from tests.support.stub_client import eventually

CLIENTS = 10
LINGER_ZERO = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def rids(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["rid"] for entry in entries]


def test_who_leaves_the_queue_is_never_run(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, stub_models("mA")) as gateway:
        gateway.raw_chat("mA", "running", stub={"dur": 3})
        eventually(lambda: gateway.journal("req_start"), "a job runs")
        leaving = [gateway.raw_chat("mA", f"leaves-{n}") for n in range(CLIENTS)]
        gateway.raw_chat("mA", "stays")
        eventually(lambda: len(gateway.queue()["waiting"]) == CLIENTS + 1, "all wait")

        for connection in leaving:
            connection.close()
        eventually(lambda: len(gateway.queue()["waiting"]) == 1, "those who left are out of the line")
        assert rids(gateway.journal("req_end")) == [], "they left it while the first job was running"
        eventually(lambda: len(gateway.journal("req_end")) == 2, "the others are served")

        assert rids(gateway.journal("req_start")) == ["running", "stays"]
        assert gateway.metric("swaplane_jobs_total", outcome="left_waiting") == CLIENTS
        assert gateway.metric("swaplane_queue_depth") == 0


def test_a_load_is_not_lost_with_the_client_that_caused_it(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, stub_models("mA", flags="--boot 3")) as gateway:
        leaving = [gateway.raw_chat("mA", f"leaves-{n}") for n in range(CLIENTS)]
        eventually(lambda: gateway.queue()["running"], "the model loads for the first")
        gateway.raw_chat("mA", "stays")
        eventually(lambda: len(gateway.queue()["waiting"]) == CLIENTS, "the others wait")
        for connection in leaving:
            connection.close()
        eventually(lambda: not gateway.queue()["waiting"], "the one who stays has the load")
        assert gateway.journal("ready") == []

        eventually(lambda: gateway.journal("req_end"), "the one who stays is served")
        assert rids(gateway.journal("req_start")) == ["stays"]
        assert len(gateway.journal("boot")) == 1
        assert gateway.metric("swaplane_jobs_total", outcome="left_waiting") == CLIENTS


def test_a_load_nobody_wants_gives_way(tmp_path: Path) -> None:
    config = stub_models("slow", flags="--boot 600") + stub_models("quick").removeprefix("models:\n")
    with GatewayProcess(tmp_path, config) as gateway:
        unwanted = gateway.raw_chat("slow", "unwanted")
        eventually(lambda: gateway.journal("boot"), "the slow model loads")
        unwanted.close()
        assert gateway.chat("quick").status_code == 200
        assert [entry["name"] for entry in gateway.journal("boot")] == ["slow", "quick"]
        assert gateway.journal("ready")[0]["name"] == "quick"


@pytest.mark.parametrize("reset", [False, True], ids=["closes", "resets"])
def test_who_leaves_while_running_frees_the_place_at_once(tmp_path: Path, *, reset: bool) -> None:
    with GatewayProcess(tmp_path, stub_models("mA")) as gateway:
        for number in range(CLIENTS):
            leaving = gateway.raw_chat("mA", f"leaves-{number}", stub={"dur": 600})
            eventually(lambda n=number: len(gateway.journal("req_start")) == 2 * n + 1, "it runs")  # type: ignore[misc]
            gateway.raw_chat("mA", f"next-{number}")
            eventually(lambda: gateway.queue()["waiting"], "the next waits")
            if reset:
                leaving.setsockopt(*LINGER_ZERO)
            leaving.close()
            eventually(lambda n=number: len(gateway.journal("req_end")) == n + 1, "the next has run")  # type: ignore[misc]

        gone = {entry["rid"]: entry["t"] for entry in gateway.journal("client_gone")}
        started = {entry["rid"]: entry["t"] for entry in gateway.journal("req_start")}
        idle_s = [started[f"next-{n}"] - gone[f"leaves-{n}"] for n in range(CLIENTS)]
        assert statistics.median(idle_s) < 0.2, idle_s
        assert gateway.metric("swaplane_jobs_total", outcome="left_running") == CLIENTS
        assert gateway.metric("swaplane_jobs_total", outcome="completed") == CLIENTS


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_who_sent_a_long_body_is_noticed_when_leaving_too(tmp_path: Path, pieces: int) -> None:
    """A long body makes the gateway stop reading for a while; a departure must be seen all the same."""
    content = json.dumps({"model": "mA", "rid": "long", "stub": {"dur": 600}, "pad": "x" * 300_000}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
    with GatewayProcess(tmp_path, stub_models("mA")) as gateway:
        callers = []
        for wanted in ("running", "waiting"):
            caller = socket.create_connection(("127.0.0.1", gateway.port))
            callers.append(caller)
            caller.sendall(head + b"Content-Length: %d\r\n\r\n" % len(content))
            step = len(content) // pieces + 1
            for start in range(0, len(content), step):
                caller.sendall(content[start : start + step])
            eventually(lambda state=wanted: gateway.queue()[state], f"a job is {wanted}")  # type: ignore[misc]
        eventually(lambda: gateway.journal("req_start"), "the first one's request is at the server")
        callers[1].close()
        eventually(lambda: not gateway.queue()["waiting"], "the one who waited is out of the line")
        callers[0].close()
        eventually(lambda: not gateway.queue()["running"], "the one who ran gave its place back")
        eventually(lambda: gateway.journal("client_gone"), "the model's server knows it too")
        assert len(gateway.journal("req_start")) == 1
