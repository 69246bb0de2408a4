"""The life of models in front of a real gateway: loading, unloading, dying, being stuck; and cancelled jobs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.gateway import GatewayProcess, stub_models
from tests.support.scene import Scene, in_time
from tests.support.stub_client import stub_cmd

LABELLED = {"X-LlamaSwap-Label": "it"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    config = stub_models("mA", "mB", flags="--boot 0.2")
    config += f"""\
  slow:
    cmd: {stub_cmd("${PORT}", "slow")} --boot 2
  stubborn:
    cmd: {stub_cmd("${PORT}", "stubborn")} --term ignore
    unloadTimeout: 2
  lingers:
    cmd: {stub_cmd("${PORT}", "lingers")} --linger 1
  brief:
    cmd: {stub_cmd("${PORT}", "brief")} --boot 1.2
    ttl: 1
"""
    with GatewayProcess(tmp_path_factory.mktemp("lifecycle"), config) as gateway:
        yield gateway


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    """Runs calls that take their time beside the test."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


# Stopping.


def test_a_server_that_ignores_the_signal_is_killed_and_comes_back(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        assert scene.ask("stubborn", "1").status == 200
        assert scene.ask("mB", "2").status == 200
        told, replaced = scene.journal("sigterm")[0]["t"], scene.journal("boot")[1]["t"]
        assert replaced - told > 1.9, "it had its two seconds"
        assert scene.ask("stubborn", "3").status == 200
        assert [entry["name"] for entry in scene.journal("boot")] == ["stubborn", "mB", "stubborn"]


def test_a_stuck_model_is_unloaded_and_blocks_nobody(gateway: GatewayProcess, aside: ThreadPoolExecutor) -> None:
    with Scene(gateway) as scene:
        stuck = scene.send("stubborn", "stuck", stub={"dur": 600})
        scene.until_running("stuck")
        waiting = scene.send("mB", "waits")
        scene.until_waiting(1)
        unloading = aside.submit(gateway.unload, "stubborn")
        answer = stuck.answer()
        assert (answer.status, answer.message) == (502, "model unloaded")
        assert gateway.states()["stubborn"] == "stopping"
        for path in ("/health", "/api/queue", "/metrics", "/v1/models"):
            assert gateway.get(path).status_code == 200
        assert not unloading.done(), "all of these answered meanwhile"
        assert unloading.result().text == "OK"
        assert waiting.answer().status == 200


def test_unloading_in_mid_stream_breaks_it_and_returns_when_nothing_is_left(
    gateway: GatewayProcess, aside: ThreadPoolExecutor
) -> None:
    with Scene(gateway) as scene:
        stream = scene.send("lingers", "streams", stub={"chunks": 1000, "gap": 0.02}, stream=True)
        assert stream.head() == 200
        waiting = scene.send("lingers", "waits")
        scene.until_waiting(1)
        gateway.unload("lingers")
        assert [entry["name"] for entry in scene.journal("exit")] == ["lingers"], "it has ended by then"
        answer = stream.rest()
        assert not answer.whole
        assert b'"error":{"message":"model unloaded"' in answer.body
        assert b"[DONE]" not in answer.body
        assert waiting.answer().status == 200, "a new start serves who still waits"
        assert len(scene.journal("boot")) == 2


def test_unloading_in_every_other_state(gateway: GatewayProcess, aside: ThreadPoolExecutor) -> None:
    with Scene(gateway) as scene:
        assert gateway.unload("mA").status_code == 200, "it does not run"

        loads = scene.send("slow", "loads")
        waits = scene.send("slow", "waits")
        in_time(lambda: scene.journal("boot"), "it loads")
        scene.until_waiting(1)
        assert gateway.unload("slow").status_code == 200
        answer = loads.answer()
        assert (answer.status, answer.message) == (500, "unspecific error: model unloaded")
        waits.leave()
        scene.until_waiting(0)

        assert scene.ask("lingers", "runs").status == 200
        first = aside.submit(gateway.unload, "lingers")
        in_time(lambda: gateway.states().get("lingers") == "stopping", "it is being stopped")
        second = aside.submit(gateway.unload)
        assert (first.result().text, second.result().json()) == ("OK", {"msg": "ok"})
        assert gateway.states() == {}
        assert scene.ran() == ["runs"]


def test_an_idle_model_is_unloaded_after_its_ttl_and_not_before(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        for number in range(2):
            assert scene.ask("brief", f"{number}", stub={"dur": 1.5 * number}).status == 200
            in_time(lambda n=number: len(scene.journal("exit")) == n + 1, "it is unloaded")  # type: ignore[misc]
        ends = [entry["t"] for entry in scene.journal("req_end")]
        told = [entry["t"] for entry in scene.journal("sigterm")]
        assert len(ends) == len(told) == len(scene.journal("ready")) == 2, (
            "its load outlasts the ttl, and so does a job"
        )
        for end, stop in zip(ends, told, strict=True):
            assert stop - end >= 0.95
        in_time(lambda: gateway.log.read_text().count("model stopped model=brief reason=ttl") == 2, "the log says why")


# Loading.


def test_nobody_is_answered_by_a_model_that_still_loads(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        calls = [scene.send("slow", f"{n}") for n in range(5)]
        in_time(lambda: scene.journal("boot"), "it loads")
        assert gateway.states() == {"slow": "starting"}
        assert {call.answer().status for call in calls} == {200}
        (ready,) = scene.journal("ready")
        assert min(entry["t"] for entry in scene.journal("req_start")) > ready["t"]


# Dying.


def test_a_crash_in_mid_stream_is_noticed_at_once(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        stream = scene.send("mA", "dies", stub={"chunks": 9, "gap": 0.02, "die_at": 5}, stream=True)
        answer = stream.answer()
        assert not answer.whole
        assert [f'"w{n} "'.encode() in answer.body for n in (0, 4, 5)] == [True, True, False]
        assert b'"error":' in answer.body
        in_time(lambda: gateway.states() == {}, "it is known to be gone, before anybody asks for it")
        told = [line for line in gateway.log.read_text().splitlines() if "model exited" in line and "mA" in line]
        assert "exit code 1" in told[-1]
        assert scene.ask("mA", "next").status == 200
        assert len(scene.journal("boot")) == 2


def test_a_model_that_dies_idle_costs_the_next_request_a_load_and_no_error(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        for number in range(3):
            assert scene.ask("mA", f"{number}").status == 200
            os.kill(scene.journal("boot")[-1]["pid"], signal.SIGKILL)
            in_time(lambda: gateway.states() == {}, "it is known to be gone")
        assert len(scene.journal("boot")) == 3


# Cancelling.


def cancel(gateway: GatewayProcess, job: str) -> tuple[int, str]:
    answer = gateway.request("DELETE", f"/api/jobs/{job}")
    content = answer.json()
    return answer.status_code, content.get("msg") or content["error"]["message"]


def test_cancelling_a_waiting_job(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        running = scene.send("mA", "runs", stub={"dur": 1})
        scene.until_running("runs")
        waiting = scene.send("mA", "waits", headers=LABELLED)
        scene.until_waiting(1)
        job = scene.job_ids()["it"]
        assert cancel(gateway, job) == (200, "ok")
        answer = waiting.answer()
        assert (answer.status, answer.get("X-Should-Retry"), answer.get("X-LlamaSwap-Job")) == (410, "false", job)
        assert running.answer().status == 200
        assert scene.ran() == ["runs"]
        status, message = cancel(gateway, job)
        assert status == 409
        assert "cancelled_waiting" in message
        assert gateway.get(f"/api/jobs/{job}").json()["outcome"] == "cancelled_waiting"


def test_cancelling_the_job_a_model_loads_for(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        loading = scene.send("slow", "loads", headers=LABELLED)
        in_time(lambda: scene.journal("boot"), "its model loads")
        other = scene.send("mB", "other")
        scene.until_waiting(1)
        assert cancel(gateway, scene.job_ids("running")["it"]) == (200, "ok")
        assert loading.answer().status == 410
        assert other.answer().status == 200
        assert scene.ran() == ["other"]
        assert [entry["name"] for entry in scene.journal("ready")] == ["mB"], "a load that nobody wants gives way"


@pytest.mark.parametrize("streamed", [False, True], ids=["before its answer", "in mid-stream"])
def test_cancelling_a_running_job(gateway: GatewayProcess, *, streamed: bool) -> None:
    with Scene(gateway) as scene:
        running = scene.send("mA", "runs", headers=LABELLED, stub={"dur": 600, "chunks": 30000}, stream=streamed)
        scene.until_running("runs")
        if streamed:
            assert running.head() == 200
        waiting = scene.send("mA", "waits")
        scene.until_waiting(1)
        job = scene.job_ids("running")["it"]
        assert cancel(gateway, job) == (200, "ok")
        if streamed:
            answer = running.rest()
            assert not answer.whole
            assert b"cancelled by request" in answer.body
        else:
            answer = running.answer()
            assert (answer.status, answer.get("X-Should-Retry")) == (502, "false")
            assert answer.message == "cancelled by request while it ran"
        assert waiting.answer().status == 200
        assert [entry["rid"] for entry in scene.journal("client_gone")] == ["runs"]
        assert cancel(gateway, job)[0] == 409
        assert len(scene.journal("boot")) == 1, "its model stays"


def test_cancelling_what_was_never_there(gateway: GatewayProcess) -> None:
    status, message = cancel(gateway, "ffff-99")
    assert status == 404
    assert "`ffff-99`" in message
