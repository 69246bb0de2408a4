from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import httpx2
import openai
import pytest

from tests.support.async_servers import models, stub_model, video_model
from tests.support.gateway import GatewayProcess
from tests.support.gpu_journal import overlaps
from tests.support.renders import LONG_S, VIDEOS, Renders, message
from tests.support.scene import in_time
from tests.support.stub_client import eventually, leftovers

PRESET = "completion: openai-videos"
FEW_S = 10.0  #: much longer than it takes, and shorter than the patience that must not be used up


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    config = models(
        video_model("plain", flavour="openai", extra=PRESET),
        video_model("omni", flavour="vllm", extra=PRESET),
        video_model("sglang", flavour="sglang", extra=PRESET),
        video_model("hasty", flavour="vllm", extra="completion: {preset: openai-videos, deadline: 1}"),
        video_model("nervous", flavour="vllm", extra="completion: {preset: openai-videos, patience: 1}"),
        video_model("twin", flavour="sglang", extra=PRESET),
        stub_model("beside-twin"),
        stub_model("mA"),
    )
    groups = "groups:\n  pair:\n    swap: false\n    members: [twin, beside-twin]\n"
    with GatewayProcess(tmp_path_factory.mktemp("faults"), config + groups) as gateway:
        yield gateway


def told_failure(renders: Renders, path: str) -> str:
    answer = renders.ask("GET", path)
    assert (answer.status_code, answer.json()["status"]) == (200, "failed")
    return str(answer.json()["error"]["message"])


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
@pytest.mark.parametrize("model", ["plain", "omni", "sglang"])
def test_a_render_that_fails_is_told_to_openais_client_and_after_its_server_is_gone(
    renders: Renders, model: str
) -> None:
    failed = renders.gateway.metric("swaplane_jobs_total", outcome="upstream_error")
    fields = {"seconds": "0.4", "fault": "fail"}
    with openai.OpenAI(base_url=f"{renders.gateway.url}/v1", api_key="unused", max_retries=0) as client:
        video = client.videos.create_and_poll(prompt="a train", model=model, extra_body=fields, poll_interval_ms=50)
        renders.chat(f"after-{model}")
        assert (video.status, video.error and video.error.message) == ("failed", "CUDA error")
        assert renders.chatted(f"after-{model}") > renders.freed(video.id)
        assert client.videos.retrieve(video.id).status == "failed"
    assert told_failure(renders, f"{VIDEOS}/{video.id}") == "CUDA error"
    assert renders.ask("GET", f"{VIDEOS}/{video.id}/content").status_code == 404
    assert renders.gateway.metric("swaplane_jobs_total", outcome="upstream_error") == failed + 1


@pytest.mark.parametrize(("model", "fault"), [("omni", "forget"), ("omni", "restart"), ("sglang", "restart")])
def test_a_render_that_its_server_forgets_is_lost(renders: Renders, model: str, fault: str) -> None:
    render = renders.submit(model, seconds="0.8", fault=fault)
    renders.chat(f"after-{render.id}")
    in_time(lambda: renders.told(render)["status"] == "failed", "each look at it is answered with status 200")
    assert renders.outcome(render.job) == "upstream_lost"
    assert renders.chatted(f"after-{render.id}") > renders.freed(render.id)
    assert told_failure(renders, render.path) == "its server does not know the job any more"


def test_a_server_that_may_render_what_it_forgot_is_ended_before_another_model_works(renders: Renders) -> None:
    renders.swap("beside-twin")
    render = renders.submit("twin", seconds=LONG_S)
    renders.until_rendering(render.id)
    assert set(renders.gateway.states()) == {"twin", "beside-twin"}
    renders.chat("beside", "beside-twin")
    in_time(lambda: renders.gateway.queue()["waiting_total"] == 1, "the chat waits")
    (proxy,) = [each["proxy"] for each in renders.gateway.get("/running").json()["running"] if each["model"] == "twin"]
    assert httpx2.delete(proxy + render.path, trust_env=False).status_code == 200, "somebody goes past the gateway"
    assert renders.outcome(render.job) == "upstream_lost"
    assert renders.chatted("beside") > renders.freed(render.id)
    assert renders.how(render.id) == "killed"


@pytest.mark.parametrize("how", ["crash", "kill"])
def test_a_server_that_dies_breaks_its_job_and_no_other(renders: Renders, how: str) -> None:
    render = renders.submit(
        "omni", seconds="0.6" if how == "crash" else LONG_S, fault="crash" if how == "crash" else ""
    )
    renders.until_rendering(render.id)
    renders.chat(f"after-{how}")
    waiting = renders.send(VIDEOS, {"model": "omni", "prompt": "a", "seconds": "0.1"})
    if how == "kill":
        os.kill(renders.process(render.id), signal.SIGKILL)
    in_time(lambda: renders.told(render)["status"] == "failed", "each look at it is answered with status 200")
    assert renders.outcome(render.job) == "upstream_broken"
    assert told_failure(renders, render.path) == "the model's server ended while it ran"
    renders.chatted(f"after-{how}")
    answer = waiting.answer()
    assert answer.status == 200
    assert renders.outcome(answer.get("X-LlamaSwap-Job")) == "completed"


def test_a_server_that_is_deaf_for_a_while_is_waited_for(renders: Renders) -> None:
    render = renders.submit("omni", seconds="0.2", fault="deaf:1")
    renders.chat("after-deaf")
    in_time(lambda: renders.told(render)["status"] == "completed", "each look at it is answered with status 200")
    assert renders.outcome(render.job) == "completed"
    asked = [each["t"] for each in renders.gateway.journal("http") if each["path"] == render.path]
    assert len([moment for moment in asked if moment > renders.freed(render.id)]) > 2, "the first answers were none"
    assert renders.chatted("after-deaf") > renders.freed(render.id)
    assert renders.frames(f"{render.path}/content") == 5


def test_a_server_that_is_deaf_for_longer_than_its_patience_is_ended(renders: Renders) -> None:
    render = renders.submit("nervous", seconds=LONG_S, fault="deaf:600")
    renders.chat("after-nervous")
    assert renders.outcome(render.job) == "upstream_lost"
    assert renders.how(render.id) == "killed"
    assert renders.chatted("after-nervous") > renders.freed(render.id)
    assert told_failure(renders, render.path).startswith("its server said nothing of the job for 1 s (no news: ")


def test_a_render_that_never_ends_is_overdue_and_ended_with_its_server(renders: Renders) -> None:
    render = renders.submit("hasty", seconds="0.1", fault="never")
    renders.chat("after-hasty")
    assert renders.outcome(render.job) == "overdue"
    assert renders.how(render.id) == "killed"
    assert renders.chatted("after-hasty") > renders.freed(render.id)
    assert told_failure(renders, render.path) == "it was not over by its model's deadline of 1 s"


def test_a_submit_that_is_not_answered_by_the_deadline_is_overdue(renders: Renders) -> None:
    call = renders.send(VIDEOS, {"model": "hasty", "prompt": "a", "seconds": LONG_S, "fault": "slow_submit:600"})
    video = renders.until_rendering()
    renders.chat("after-silence")
    answer = call.answer()
    assert answer.status == 504
    assert message(answer) == "the model's server has not answered the request that submits the job"
    assert renders.outcome(answer.get("X-LlamaSwap-Job")) == "overdue"
    assert renders.chatted("after-silence") > renders.freed(video)


def test_a_server_that_dies_before_it_answers_the_submit_breaks_the_job(renders: Renders) -> None:
    call = renders.send(VIDEOS, {"model": "omni", "prompt": "a", "seconds": LONG_S, "fault": "slow_submit:600"})
    os.kill(renders.process(renders.until_rendering()), signal.SIGKILL)
    answer = call.answer()
    assert answer.status == 502
    assert renders.outcome(answer.get("X-LlamaSwap-Job")) == "upstream_broken"


@pytest.mark.parametrize("when", ["it renders", "it is cancelled", "its submit is not answered"])
def test_an_unload_ends_a_render_with_its_server(renders: Renders, when: str) -> None:
    fault = "slow_submit:600" if when == "its submit is not answered" else "slow_cancel:600"
    call = renders.send(VIDEOS, {"model": "omni", "prompt": "a", "seconds": LONG_S, "fault": fault})
    video = renders.until_rendering()
    job = renders.running()["id"]
    if when == "it is cancelled":
        call.answer()
        assert renders.ask("DELETE", f"/api/jobs/{job}").status_code == 200
        in_time(lambda: any(each["method"] == "DELETE" for each in renders.gateway.journal("http")), "it is asked to")
    renders.chat(f"after {when}")
    assert renders.gateway.unload("omni").status_code == 200
    assert "omni" not in renders.gateway.states()
    eventually(lambda: renders.gateway.journal("gpu_end")[-1]["id"] == video, "it ends with its server")
    ended = f"/api/jobs/{job}"
    eventually(lambda: renders.gateway.get(ended).json()["state"] == "ended", "the job ends too", FEW_S)
    assert renders.outcome(job) == ("cancelled_running" if when == "it is cancelled" else "unloaded_running")
    assert renders.chatted(f"after {when}") > renders.freed(video)
    if when == "it renders":
        assert told_failure(renders, f"{VIDEOS}/{video}") == "the model was unloaded while it ran"
    if when == "its submit is not answered":
        assert message(call.answer()) == "model unloaded"


def test_a_server_that_dies_while_it_lets_go_is_not_waited_for(renders: Renders) -> None:
    render = renders.submit("omni", seconds=LONG_S, fault="slow_cancel:600")
    renders.until_rendering(render.id)
    assert renders.ask("DELETE", f"/api/jobs/{render.job}").status_code == 200
    os.kill(renders.process(render.id), signal.SIGKILL)
    ended = f"/api/jobs/{render.job}"
    eventually(lambda: renders.gateway.get(ended).json()["state"] == "ended", "the job ends too", FEW_S)
    assert renders.outcome(render.job) == "cancelled_running"


def test_a_render_that_the_store_does_not_take_is_followed_all_the_same(tmp_path: Path) -> None:
    config = models(video_model("omni", flavour="vllm", extra=PRESET), stub_model("mA"))
    with GatewayProcess(tmp_path, config + f"jobs: {{path: {tmp_path / 'jobs'}}}\n") as gateway:
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs" / "jobs.db")) as other:
            other.execute("ALTER TABLE remembered RENAME TO mislaid")
        renders = Renders(gateway)
        render = renders.submit("omni", seconds="0.5")
        renders.chat("after-mislaid")
        assert renders.outcome(render.job) == "upstream_lost", "what it made is not kept"
        assert renders.how(render.id) == "done"
        assert renders.chatted("after-mislaid") > renders.freed(render.id)
        assert "a job is remembered in memory only" in gateway.log.read_text()
        renders.assert_at_rest()


def test_a_render_is_kept_when_the_store_works_again_before_its_end(tmp_path: Path) -> None:
    config = models(video_model("omni", flavour="vllm", extra=PRESET), stub_model("mA"))
    with GatewayProcess(tmp_path, config + f"jobs: {{path: {tmp_path / 'jobs'}}}\n") as gateway:
        renders = Renders(gateway)
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs" / "jobs.db")) as other:
            other.execute("ALTER TABLE remembered RENAME TO mislaid")
            made = renders.submit("omni", seconds="2")
            in_time(lambda: "remembered in memory only" in gateway.log.read_text(), "it is not stored")
            other.execute("ALTER TABLE mislaid RENAME TO remembered")
        assert renders.outcome(made.job) == "completed"
        renders.swap()
        assert renders.told(made)["status"] == "completed"
        assert renders.frames(f"{made.path}/content") == 5
        renders.assert_at_rest()


def test_what_a_later_gateway_tells_of_the_renders_of_earlier_ones(tmp_path: Path) -> None:
    config = models(video_model("omni", flavour="vllm", extra=PRESET), stub_model("mA"))

    first = GatewayProcess(tmp_path, config)
    with first.unguarded():
        drained = Renders(first).submit("omni", seconds="0.6")
        assert first.stop() == 0
        assert Renders(first).how(drained.id) == "done"

    second = GatewayProcess(tmp_path, config)
    with second.unguarded():
        renders = Renders(second)
        assert renders.told(drained)["status"] == "completed"
        assert renders.frames(f"{drained.path}/content") == 5
        stopped = renders.submit("omni", seconds=LONG_S)
        renders.until_rendering(stopped.id)
        second.process.send_signal(signal.SIGTERM)
        in_time(lambda: "stopping" in second.log.read_text(), "it drains")
        assert second.stop() == 0
        assert renders.how(stopped.id) == "killed"

    third = GatewayProcess(tmp_path, config)
    with third.unguarded():
        renders = Renders(third)
        assert told_failure(renders, stopped.path) == "the gateway shut down while it ran"
        killed = renders.submit("omni", seconds=LONG_S)
        renders.until_rendering(killed.id)
        third.process.kill()
        third.process.wait()
        eventually(lambda: not leftovers(third.stub_id), "its server ends with it")

    with GatewayProcess(tmp_path, config) as fourth:
        renders = Renders(fourth)
        assert told_failure(renders, killed.path) == "the gateway ended while it ran"
        assert renders.ask("GET", f"{killed.path}/content").status_code == 404
        listed = {video["id"]: video["status"] for video in renders.ask("GET", VIDEOS).json()["data"]}
        assert listed == {drained.id: "completed", stopped.id: "failed", killed.id: "failed"}
        assert renders.frames(f"{drained.path}/content") == 5
        assert fourth.states() == {}
        renders.swap()
        assert overlaps(fourth.journal()) == []
