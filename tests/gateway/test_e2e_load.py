"""Much at once, and peers that do not keep up: large bodies through swaps, readers and log readers that stand still."""

from __future__ import annotations

import hashlib
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import GatewayProcess, stub_models
from tests.support.scene import Scene, in_time


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("load"), stub_models("mA", "mB")) as gateway:
        yield gateway


def resident_kib(gateway: GatewayProcess) -> int:
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def test_bodies_survive_the_wait_for_a_swap(gateway: GatewayProcess) -> None:
    chance = random.Random(20)
    sizes = [[chance.choice([100, 3_000, 70_000, 512_000, 1_500_000]) for _ in range(12)] for _ in range(3)]
    digests: dict[str, str] = {}
    statuses: list[int] = []
    with Scene(gateway) as scene:

        def caller(number: int) -> None:
            for step, size in enumerate(sizes[number]):
                rid = f"{number}-{step}"
                call = scene.prepare(("mA", "mB")[(number + step) % 2], rid, text="é\\" * (size // 8))
                digests[rid] = hashlib.sha256(call.data.partition(b"\r\n\r\n")[2]).hexdigest()
                call.send()
                statuses.append(call.answer().status)

        callers = [threading.Thread(target=caller, args=[number]) for number in range(3)]
        for each in callers:
            each.start()
        for each in callers:
            each.join()
        assert statuses == [200] * 36
        assert {entry["rid"]: entry["sha256"] for entry in scene.journal("req_start")} == digests


def test_a_reader_that_stands_still_costs_little_and_gives_its_place_back(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        assert scene.ask("mA", "warms").status == 200
        before = resident_kib(gateway)
        stub: dict[str, Any] = {"chunks": 200_000, "gap": 0}
        call = scene.send("mA", "unread", stub=stub, stream=True)
        in_time(lambda: scene.journal("send"), "it is answered")
        sent = -1
        while (now := len(scene.journal("send"))) != sent:  # until it is held back
            sent = now
            time.sleep(0.3)
        assert sent < 200_000
        assert resident_kib(gateway) - before < 16 * 1024
        waiting = scene.send("mA", "waits")
        scene.until_waiting(1)
        call.leave(reset=True)
        assert waiting.answer().status == 200
        assert [entry["rid"] for entry in scene.journal("client_gone")] == ["unread"]


def test_a_slow_reader_gets_every_byte(gateway: GatewayProcess) -> None:
    size = 24 * 1024 * 1024
    with Scene(gateway) as scene:
        call = scene.send("mA", "slowly", stub={"size": size})
        assert call.head() == 200
        received = 0
        while piece := call.piece():
            received += len(piece)
            assert piece.strip(b"\xa5") == b""
            if received < 2_000_000:
                time.sleep(0.01)
        assert received == size


def test_a_log_that_nobody_reads_holds_no_job_up(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene, socket.create_connection(("127.0.0.1", gateway.port)) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.sendall(b"GET /logs/stream/upstream HTTP/1.1\r\nHost: g\r\n\r\n")
        assert reader.recv(1000).startswith(b"HTTP/1.1 200 ")
        for number in range(20):
            assert scene.ask("mA", f"{number}", stub={"spam": 1_000_000}).status == 200


def test_right_and_wrong_requests_in_turn_on_one_connection(gateway: GatewayProcess) -> None:
    """All sent before the first is answered: each has its answer, in order, and each right one ran once."""
    with Scene(gateway) as scene:
        with socket.create_connection(("127.0.0.1", gateway.port)) as client:
            client.settimeout(60)
            for number in range(10):
                good = json.dumps({"model": "mA", "rid": f"kept-{number}"}).encode()
                bad = b'{"model": "none"}'
                scene.jobs += 1
                for body in (good, bad):
                    head = b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
                    client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            received = b""
            while received.count(b"HTTP/1.1 ") < 20 or not received.endswith(b"}"):
                piece = client.recv(65536)
                assert piece, received
                received += piece
        statuses = [part.split(b" ")[0] for part in received.split(b"HTTP/1.1 ")[1:]]
        assert statuses == [b"200", b"404"] * 10
        assert scene.ran() == [f"kept-{number}" for number in range(10)]
