"""`/upstream/MODEL/...`: a model's own server through the gateway, with its pages, assets and websockets."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.support.gateway import GatewayProcess, stub_models
from tests.support.scene import Call, Scene, ask_raw, in_time
from tests.support.stub_client import stub_cmd


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    config = (
        stub_models("mA", extra="aliases: [alias]")
        + f"""\
  org/mB:
    cmd: {stub_cmd("${PORT}", "org/mB")}
  org:
    cmd: {stub_cmd("${PORT}", "org")}
  based:
    cmd: {stub_cmd("${PORT}", "based")}
    proxy: http://127.0.0.1:${{PORT}}/base/
  slow:
    cmd: {stub_cmd("${PORT}", "slow")} --boot 600
groups:
  side-by-side: {{swap: false, members: [mA, org/mB, org, based]}}
"""
    )
    with GatewayProcess(tmp_path_factory.mktemp("upstream"), config) as gateway:
        yield gateway


# Paths.


@pytest.mark.parametrize(
    ("target", "model", "line"),
    [
        ("/upstream/mA/v1/x?y=%2F&y=+", "mA", "/v1/x?y=%2F&y=+"),
        ("/upstream/alias/x%2Fy%20z/", "mA", "/x%2Fy%20z/"),
        ("/upstream/m%41/", "mA", "/"),
        ("http://gateway.example:99/upstream/mA/x?y", "mA", "/x?y"),
        ("/upstream/mA//double/../dots", "mA", "//double/../dots"),
        ("/upstream/org/mB/v1/x", "org/mB", "/v1/x"),
        ("/upstream/org%2FmB/v1/x", "org/mB", "/v1/x"),
        ("/upstream/org%2fmB/?a", "org/mB", "/?a"),
        ("/upstream/org/other", "org", "/other"),
        ("/upstream/based/v1/x?y", "based", "/base/v1/x?y"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "PATCH"])
def test_the_rest_of_the_path_reaches_the_server(
    gateway: GatewayProcess, method: str, target: str, model: str, line: str
) -> None:
    answer = ask_raw(gateway, method, target)
    assert answer.status == 200
    assert (answer.body == b"") == (method == "HEAD")
    arrived = gateway.journal("req_start")[-1]
    assert (arrived["name"], arrived["line"]) == (model, f"{method} {line} HTTP/1.1")
    assert answer.get("X-LlamaSwap-Job")


@pytest.mark.parametrize(
    ("method", "status"), [("GET", 301), ("HEAD", 301), ("POST", 308), ("PUT", 308), ("DELETE", 308)]
)
def test_a_missing_slash_is_a_redirect_that_starts_nothing(gateway: GatewayProcess, method: str, status: int) -> None:
    with Scene(gateway, together=True) as scene:
        for path in ("/upstream/mA", "/upstream/org%2FmB"):
            answer = gateway.request(method, f"{path}?a=%2F", follow_redirects=False)
            assert (answer.status_code, answer.headers["Location"]) == (status, f"{path}/?a=%2F")
        assert scene.journal("boot") == []


@pytest.mark.parametrize("path", ["/upstream/none/x", "/upstream//x", "/upstream/", "/upstream/none"])
def test_an_unknown_model_is_told(gateway: GatewayProcess, path: str) -> None:
    answer = gateway.get(path)
    assert answer.status_code == 404
    assert "no router for requested model" in answer.json()["error"]["message"]


# Page assets.


def test_a_pages_assets_start_no_model_and_take_no_place(gateway: GatewayProcess) -> None:
    assets = ["app.js", "a/b.css?v=1", "x.png", "robots.txt", "i.ico"]
    with Scene(gateway, places=100, together=True) as scene:
        for asset in assets:
            answer = gateway.get(f"/upstream/mA/{asset}")
            assert answer.status_code == 409
            assert answer.json()["error"]["message"].startswith("model mA is not loaded; path matches")
        assert scene.journal("boot") == []

        running = scene.send("mA", "runs", stub={"dur": 600})
        scene.until_running("runs")
        waiting = scene.send("mA", "waits")
        scene.until_waiting(1)
        with ThreadPoolExecutor(20) as pool, gateway.client() as client:
            urls = [f"/upstream/mA/{assets[n % 5]}{'&' if '?' in assets[n % 5] else '?'}rid={n}" for n in range(20)]
            answers = list(pool.map(client.get, urls))
        assert {answer.status_code for answer in answers} == {200}
        assert not any("X-LlamaSwap-Job" in answer.headers for answer in answers), "they are no jobs"
        assert [job["state"] for job in gateway.queue()["running"]] == ["running"]
        assert "waits" not in scene.ran()
        running.leave()
        assert waiting.answer().status == 200


def test_what_is_posted_is_a_job_whatever_its_path_is_called(gateway: GatewayProcess) -> None:
    with Scene(gateway, together=True) as scene:
        assert ask_raw(gateway, "GET", "/upstream/mA/v1/chat/completions.json").status == 409
        answer = ask_raw(gateway, "POST", "/upstream/mA/v1/chat/completions.json?rid=posted", b"{}")
        assert answer.get("X-LlamaSwap-Job")
        scene.jobs += 1


def test_assets_of_a_model_that_loads_are_refused(gateway: GatewayProcess) -> None:
    with Scene(gateway, together=True) as scene:
        loading = scene.send("slow", "loads")
        in_time(lambda: gateway.states() == {"slow": "starting"}, "it loads")
        assert gateway.get("/upstream/slow/app.js").status_code == 409
        loading.leave()


# Websockets.


def websocket(gateway: GatewayProcess, path: str) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{gateway.port}{path}", proxy=None, open_timeout=60)


def test_a_websocket_is_a_job_as_long_as_it_is_open(gateway: GatewayProcess) -> None:
    with Scene(gateway, together=True) as scene:
        scene.jobs += 1
        with websocket(gateway, "/upstream/alias/deep/ws?rid=socket") as echo:
            for message in ("hello", "ü" * 40_000, b"\x00\xff" * 200_000):
                echo.send(message)
                assert echo.recv() == message
            assert scene.journal("req_start")[-1]["line"].startswith("GET /deep/ws?rid=socket ")
            (job,) = gateway.queue()["running"]
            assert (job["model"], job["state"]) == ("mA", "running")
            waiting = scene.send("mA", "waits")
            scene.until_waiting(1)
            echo.send("still here")
            assert echo.recv() == "still here"
        assert waiting.answer().status == 200
        assert scene.ran() == ["socket", "waits"]
        assert gateway.get(f"/api/jobs/{job['id']}").json()["outcome"] == "completed"


def test_our_headers_of_a_websocket_count_and_are_not_passed_on(gateway: GatewayProcess) -> None:
    with Scene(gateway, together=True) as scene:
        scene.jobs += 1
        headers = {"X-LlamaSwap-Priority": "-98", "X-LlamaSwap-Member": "alice", "X-Other": "1"}
        url = f"ws://127.0.0.1:{gateway.port}/upstream/mA/ws?rid=socket"
        with connect(url, proxy=None, additional_headers=headers):
            (job,) = gateway.queue()["running"]
            assert (job["priority"], job["member"]) == (-98, "alice")
        (arrived,) = scene.journal("req_start")
        assert "X-Other: 1" in arrived["headers"]
        assert "llamaswap" not in json.dumps(arrived["headers"]).lower()


def test_a_websocket_that_leaves_the_queue_is_never_opened(gateway: GatewayProcess) -> None:
    with Scene(gateway, together=True) as scene:
        running = scene.send("mA", "runs", stub={"dur": 600})
        scene.until_running("runs")
        scene.jobs += 1
        head = b"GET /upstream/mA/ws HTTP/1.1\r\nHost: g\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        socket = Call(gateway.port, head + b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n", "socket")
        socket.send()
        scene.until_waiting(1)
        socket.leave()
        scene.until_waiting(0)
        running.leave()
        assert scene.ask("mA", "next").status == 200
        assert scene.journal("ws_open") == []


@pytest.mark.parametrize("how", ["cancel", "unload", "kill"])
def test_a_websocket_ends_with_its_job(gateway: GatewayProcess, how: str) -> None:
    with Scene(gateway, together=True) as scene:
        scene.jobs += 1
        with websocket(gateway, "/upstream/mA/ws?rid=socket") as echo:
            (job,) = gateway.queue()["running"]
            if how == "cancel":
                assert gateway.request("DELETE", f"/api/jobs/{job['id']}").status_code == 200
            elif how == "unload":
                gateway.unload("mA")
            else:
                mine = [entry["pid"] for entry in gateway.journal("boot") if entry["name"] == "mA"]
                os.kill(mine[-1], signal.SIGKILL)
            with pytest.raises(ConnectionClosed):
                echo.recv(timeout=60)
        outcome = {"cancel": "cancelled_running", "unload": "unloaded_running", "kill": "upstream_broken"}[how]
        in_time(lambda: gateway.get(f"/api/jobs/{job['id']}").json().get("outcome") == outcome, outcome)


@pytest.mark.parametrize(
    ("path", "status"), [("/upstream/none/ws", 404), ("/upstream/", 404), ("/v1/chat/completions", 501)]
)
def test_a_websocket_to_nowhere_is_refused(gateway: GatewayProcess, path: str, status: int) -> None:
    with pytest.raises(InvalidStatus) as refused, websocket(gateway, path):
        pass
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body or b"")["error"]["message"]


def test_a_server_that_declines_a_websocket_is_heard(gateway: GatewayProcess) -> None:
    with Scene(gateway, together=True) as scene:
        scene.jobs += 1
        declined = "/upstream/mA/no-socket?rid=declined&stub=%7B%22status%22:426%7D"
        with pytest.raises(InvalidStatus) as refused, websocket(gateway, declined):
            pass
        assert refused.value.response.status_code == 426
        assert scene.ask("mA", "next").status == 200


# Preflights.


@pytest.mark.parametrize("path", ["/upstream/mA/v1/x", "/v1/chat/completions", "/v1/models", "/nowhere"])
def test_a_preflight_starts_nothing(gateway: GatewayProcess, path: str) -> None:
    with Scene(gateway, together=True) as scene:
        asked = {
            "Origin": "http://page",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type, x-llamaswap-priority, b d",
        }
        answer = gateway.request("OPTIONS", path, headers=asked)
        assert answer.status_code == 204
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert answer.headers["Access-Control-Allow-Headers"] == "content-type, x-llamaswap-priority"
        assert scene.journal("boot") == []
