"""What goes wrong at the edges: each gets a clear answer, and nobody else loses anything."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest

from tests.support.gateway import GatewayProcess, stub_models
from tests.support.stub_client import eventually, stub_cmd


@pytest.fixture
def gateway(tmp_path: Path) -> GatewayProcess:
    return GatewayProcess(tmp_path, stub_models("smollm2", "mA"))


def post(gateway: GatewayProcess, body: bytes, content_type: str = "application/json") -> tuple[int, str]:
    with gateway.client() as client:
        answer = client.post("/v1/chat/completions", content=body, headers={"content-type": content_type})
    message = answer.json()["error"]["message"] if answer.status_code != 200 else ""
    return answer.status_code, message


def test_bodies_that_name_no_model(gateway: GatewayProcess) -> None:
    with gateway:
        status, message = post(gateway, b"{not json")
        assert status == 400
        assert "JSON" in message
        status, message = post(gateway, b'{"messages": []}')
        assert (status, message.split(";")[0]) == (404, "no model id could be identified")
        status, message = post(gateway, b'{"model": "mA", "model": "smollm2"}')
        assert status == 400
        assert "model" in message
        status, message = post(gateway, b'{"model": "smolm2"}')
        assert status == 404
        assert "`smollm2`" in message
        status, message = post(gateway, b'{"model": "mA"}', "application/x-www-form-urlencoded")
        assert status == 404
        assert gateway.journal("boot") == [], "none of these starts a model"
        assert post(gateway, b'{"model": "mA"}')[0] == 200


def test_a_body_of_200_mb_passes_whole(gateway: GatewayProcess) -> None:
    size = 200 * 1024 * 1024
    with gateway:
        gateway.chat("mA")
        before = resident_kib(gateway)
        head = b'{"model": "mA", "image": "'
        tail = b'"}'
        with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
            total = len(head) + size + len(tail)
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % total + head
            )
            block = b"A" * (1024 * 1024)
            for _ in range(200):
                connection.sendall(block)
            connection.sendall(tail)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert gateway.journal("req_start")[-1]["length"] == total
        assert resident_kib(gateway) - before < 100 * 1024


def resident_kib(gateway: GatewayProcess) -> int:
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def test_a_header_of_64_kib_passes_and_an_endless_one_is_refused(gateway: GatewayProcess) -> None:
    with gateway:
        with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
            connection.sendall(b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: g\r\n\r\n")
            answer = connection.recv(65536)
            assert answer.split(b" ")[1] == b"414"
            assert b"longer than 65535 bytes" in answer
        for bytes_sent, status in ((64 * 1024, b"200"), (2 * 1024 * 1024, b"431")):
            with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
                body = b'{"model": "mA"}'
                connection.sendall(
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
                    b"X-LlamaSwap-Priority: " + b"9" * bytes_sent + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )
                answer = connection.recv(65536)
                assert answer.split(b" ")[1] == status, answer
        assert b"X-LlamaSwap" not in b"".join(str(entry).encode() for entry in gateway.journal("req_start"))


def test_models_that_cannot_start(tmp_path: Path) -> None:
    config = f"""\
models:
  missing:
    cmd: /nonexistent/llama-server --port ${{PORT}}
  exits:
    cmd: sh -c 'echo out of memory >&2; exit 3' ${{PORT}}
  never:
    cmd: {stub_cmd("${PORT}", "never")} --boot 600
    healthCheckTimeout: 1
  fine:
    cmd: {stub_cmd("${PORT}", "fine")}
"""
    with GatewayProcess(tmp_path, config) as gateway:
        for model, words in (
            ("missing", ["failed to start command", "no such file"]),
            ("exits", ["upstream command exited prematurely", "3", "out of memory"]),
            ("never", ["health check timed out after 1s"]),
        ):
            answer = gateway.chat(model)
            message = answer.json()["error"]["message"]
            assert answer.status_code == 500
            assert message.startswith("unspecific error: ")
            assert all(word in message for word in words), message
        assert gateway.chat("fine").status_code == 200


def test_a_model_that_keeps_failing_is_left_alone(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, "models:\n  bad:\n    cmd: sh -c 'exit 1' ${PORT}\n") as gateway:
        statuses = [gateway.chat("bad").status_code for _ in range(3)]
        assert statuses == [500, 500, 503]
        refused = gateway.chat("bad")
        assert int(refused.headers["retry-after"]) >= 1
        assert "2 times in a row" in refused.json()["error"]["message"]


def test_fifty_requests_for_a_broken_model_do_not_hold_up_others(tmp_path: Path) -> None:
    config = (
        f"models:\n  bad:\n    cmd: sh -c 'sleep 0.5; exit 1' ${{PORT}}\n  mA:\n    cmd: {stub_cmd('${PORT}', 'mA')}\n"
    )
    with GatewayProcess(tmp_path, config) as gateway:
        connections = [gateway.raw_chat("bad", f"bad-{n}") for n in range(50)]
        eventually(lambda: len(gateway.queue()["waiting"]) + len(gateway.queue()["running"]) == 50, "all wait")
        assert gateway.chat("mA").status_code == 200
        for connection in connections:
            assert connection.recv(65536).split(b" ")[1] in (b"500", b"503")
        assert gateway.metric("swaplane_swaps_total", model="bad") <= 3


def test_a_stranger_on_the_port_is_not_taken_for_the_model(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        config = f"models:\n  mA:\n    cmd: {stub_cmd(port, 'mA')}\n    proxy: http://127.0.0.1:{port}\n"
        with GatewayProcess(tmp_path, config) as gateway:
            answer = gateway.chat("mA")
            assert answer.status_code == 500
            assert str(port) in answer.json()["error"]["message"]
            assert gateway.journal("boot") == []


def test_two_models_on_one_port_take_turns(tmp_path: Path) -> None:
    config = f"models:\n  mA:\n    cmd: {stub_cmd(6123, 'mA')}\n    proxy: http://127.0.0.1:6123\n"
    config += f"  mB:\n    cmd: {stub_cmd(6123, 'mB')}\n    proxy: http://127.0.0.1:6123\n"
    with GatewayProcess(tmp_path, config) as gateway:
        for model in ("mA", "mB", "mA"):
            assert gateway.chat(model).status_code == 200
        assert [entry["name"] for entry in gateway.journal("req_start")] == ["mA", "mB", "mA"]


def test_a_file_that_stops_parsing_changes_nothing(gateway: GatewayProcess) -> None:
    with gateway:
        assert gateway.chat("mA").status_code == 200
        good = gateway.config.read_text()
        gateway.config.write_text(good + "modles: {}\n")
        gateway.process.send_signal(signal.SIGHUP)
        eventually(lambda: "the configuration stays as it was" in gateway.log.read_text(), "the fault is told")
        assert "models" in gateway.log.read_text().split("stays as it was")[1]
        assert gateway.chat("mA").status_code == 200
        assert len(gateway.journal("boot")) == 1

        gateway.config.write_text("")  # as an editor does before it writes
        gateway.process.send_signal(signal.SIGHUP)
        eventually(lambda: "it has no models" in gateway.log.read_text(), "an emptied file is told")
        assert gateway.chat("mA").status_code == 200
        assert len(gateway.journal("boot")) == 1

        gateway.config.write_text(good + stub_models("mC").removeprefix("models:\n"))
        gateway.process.send_signal(signal.SIGHUP)
        eventually(lambda: "configuration reloaded" in gateway.log.read_text(), "the new file is in force")
        assert gateway.chat("mA").status_code == 200
        assert len(gateway.journal("boot")) == 1, "an unchanged model is not restarted"
        assert gateway.chat("mC").status_code == 200
        assert json.loads(gateway.get("/v1/models").text)["data"][-1]["id"] == "smollm2"


def test_signals_that_mean_nothing_here_are_ignored(gateway: GatewayProcess) -> None:
    with gateway:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGWINCH):
            gateway.process.send_signal(number)
        assert gateway.chat("mA").status_code == 200
