"""A new configuration while jobs wait and run: what changed changes in its turn, and nobody loses anything."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.gateway import GatewayProcess
from tests.support.scene import Scene, in_time
from tests.support.stub_client import free_port, stub_cmd


def entry(name: str, flags: str = "", **settings: object) -> str:
    lines = [f"  {name}:", f"    cmd: {stub_cmd('${PORT}', name)} {flags}"]
    return "\n".join([*lines, *(f"    {key}: {value}" for key, value in settings.items())]) + "\n"


@pytest.fixture
def gateway(tmp_path: Path) -> GatewayProcess:
    return GatewayProcess(tmp_path, f"startPort: {free_port()}\nmodels:\n" + entry("mA") + entry("mB"))


def reload(gateway: GatewayProcess, *entries: str, more: str = "") -> None:
    """Put another configuration in force."""
    before = gateway.log.read_text().count("configuration reloaded")
    start_port = gateway.config.read_text().splitlines()[0]
    gateway.config.write_text(f"{start_port}\nmodels:\n" + "".join(entries) + more)
    gateway.process.send_signal(signal.SIGHUP)
    in_time(lambda: gateway.log.read_text().count("configuration reloaded") > before, "the new file is in force")


def test_a_changed_model_is_replaced_when_its_job_is_over(gateway: GatewayProcess) -> None:
    with gateway, Scene(gateway) as scene:
        running = scene.send("mA", "runs", stub={"chunks": 20, "gap": 0.05}, stream=True)
        scene.until_running("runs")
        waiting = [scene.send("mA", f"waits-{n}") for n in range(3)]
        scene.until_waiting(3)
        reload(gateway, entry("mA", "--boot 0.3"), entry("mB"))
        assert gateway.queue()["waiting_total"] == 3, "who waits goes on waiting"
        answer = running.answer()
        assert answer.whole
        assert answer.body.endswith(b"data: [DONE]\n\n"), "the running job ends undisturbed"
        assert {call.answer().status for call in waiting} == {200}

        old, new = scene.journal("boot")
        (exited,) = scene.journal("exit")
        assert (exited["pid"], exited["pid"] != new["pid"]) == (old["pid"], True)
        assert scene.moment("req_end", "runs") < exited["t"] < new["t"], "one after the other"
        assert {e["pid"] for e in scene.journal("req_start") if e["rid"] != "runs"} == {new["pid"]}
        assert "model stopped model=mA reason=reload" in gateway.log.read_text()


def test_an_idle_changed_model_is_stopped_and_not_started_until_asked_for(gateway: GatewayProcess) -> None:
    with gateway, Scene(gateway) as scene:
        assert scene.ask("mA", "1").status == 200
        reload(gateway, entry("mA", "--boot 0.3"), entry("mB"))
        in_time(lambda: gateway.states() == {}, "the old one is gone")
        assert len(scene.journal("boot")) == 1
        assert scene.ask("mA", "2").status == 200


def test_a_model_that_changes_while_it_loads(gateway: GatewayProcess) -> None:
    with gateway, Scene(gateway) as scene:
        reload(gateway, entry("mA", "--boot 600"), entry("mB"))
        calls = [scene.send("mA", f"{n}") for n in range(3)]
        in_time(lambda: scene.journal("boot"), "it loads")
        scene.until_waiting(2)
        reload(gateway, entry("mA", "--boot 0.1"), entry("mB"))
        # The job it loads for keeps it loading; once nobody holds it, the new one takes over.
        in_time(lambda: gateway.unload("mA").status_code == 200, "an operator gives up on it")
        statuses = sorted(call.answer().status for call in calls)
        assert statuses == [200, 200, 500]
        assert [boot["pid"] for boot in scene.journal("boot")] == [
            scene.journal("exit")[0]["pid"],
            scene.journal("req_start")[0]["pid"],
        ]


def test_a_removed_models_jobs_are_told_and_the_running_one_ends(gateway: GatewayProcess) -> None:
    with gateway, Scene(gateway) as scene:
        running = scene.send("mA", "runs", stub={"dur": 1.5})
        scene.until_running("runs")
        waiting = [scene.send("mA", f"waits-{n}") for n in range(2)]
        other = scene.send("mB", "other")
        scene.until_waiting(3)
        reload(gateway, entry("mB"))
        for call in waiting:
            answer = call.answer()
            assert answer.status == 404
            assert answer.message.startswith("no router for requested model: model mA is no longer configured")
        assert scene.journal("req_end") == [], "they are told at once"
        late = scene.prepare("mA", "late")
        scene.jobs -= 1  # a model that is not configured makes no job
        late.send()
        assert late.answer().status == 404
        assert running.answer().status == 200
        assert other.answer().status == 200
        assert scene.ran() == ["runs", "other"]
        assert [model["id"] for model in gateway.get("/v1/models").json()["data"]] == ["mB"]


def test_more_slots_need_no_restart(gateway: GatewayProcess) -> None:
    with gateway, Scene(gateway, places=2) as scene:
        first = scene.send("mA", "first", stub={"dur": 600})
        scene.until_running("first")
        second = scene.send("mA", "second")
        scene.until_waiting(1)
        reload(gateway, entry("mA", slots=2), entry("mB"))
        assert second.answer().status == 200
        assert scene.journal("req_end")[-1]["rid"] == "second"
        first.leave()
        scene.until_waiting(0)
        assert len(scene.journal("boot")) == 1


def test_a_model_moves_to_another_lane_with_its_waiting_jobs(gateway: GatewayProcess) -> None:
    with gateway, Scene(gateway, places=2, together=True) as scene:
        running = scene.send("mB", "runs", stub={"dur": 600})
        scene.until_running("runs")
        waiting = [scene.send("mA", f"waits-{n}") for n in range(2)]
        scene.until_waiting(2)
        reload(gateway, entry("mA", lane="cpu"), entry("mB"), more="scheduling:\n  lanes: {cpu: 1}\n")
        assert {call.answer().status for call in waiting} == {200}
        assert scene.journal("req_end")[-1]["rid"] != "runs"
        running.leave()


def test_another_folder_for_jobs_is_told_to_wait_for_the_next_start(gateway: GatewayProcess, tmp_path: Path) -> None:
    def warnings() -> int:
        return gateway.log.read_text().count("`jobs.path` has changed: it takes effect at the next start")

    with gateway:
        reload(gateway, entry("mA"))
        assert warnings() == 0
        for times in (1, 2):  # it is not in force after the first
            reload(gateway, entry("mA"), more=f"jobs: {{path: {tmp_path / 'other'}}}\n")
            assert warnings() == times
        reload(gateway, entry("mA"))
        assert warnings() == 2, "it is as it was at the start"
    assert not (tmp_path / "other").exists()


def test_many_reloads_under_load_lose_nothing(gateway: GatewayProcess) -> None:
    with gateway, Scene(gateway) as scene:
        calls = [scene.send(("mA", "mB")[n % 2], f"{n}", stub={"dur": 0.05}) for n in range(30)]
        for number in range(6):
            reload(gateway, entry("mA", f"--boot 0.{number}"), entry("mB"))
        assert {call.answer().status for call in calls} == {200}
