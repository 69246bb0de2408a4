"""What a render made is fetched before its place is given on, and what is known of it outlives its model's entry."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.async_servers import models, stub_model, video_model
from tests.support.gateway import GatewayProcess
from tests.support.gpu_journal import overlaps
from tests.support.renders import LONG_S, VIDEOS, Render, Renders, message
from tests.support.scene import in_time
from tests.support.stub_client import eventually

PRESET = "completion: openai-videos"
FEW_S = 10.0  #: much longer than it takes, and shorter than the patience that must not be used up


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    config = models(
        video_model("omni", flavour="vllm", extra=PRESET),
        video_model("sglang", flavour="sglang", extra=PRESET),
        video_model("nervous", flavour="vllm", extra="completion: {preset: openai-videos, patience: 1}"),
        video_model("twin", flavour="sglang", extra=PRESET),
        stub_model("beside-twin"),
        stub_model("mA"),
    )
    groups = "groups:\n  pair:\n    swap: false\n    members: [twin, beside-twin]\n"
    with GatewayProcess(tmp_path_factory.mktemp("fetching"), config + groups) as gateway:
        yield gateway


def told_failure(renders: Renders, path: str) -> str:
    answer = renders.ask("GET", path)
    assert (answer.status_code, answer.json()["status"]) == (200, "failed")
    return str(answer.json()["error"]["message"])


def until_fetched(renders: Renders, path: str, *, times: int = 1) -> None:
    """Return when what it made has been asked for so often."""

    def asked() -> int:
        return [entry["path"] for entry in renders.gateway.journal("http")].count(f"{path}/content")

    in_time(lambda: asked() >= times, "its result is asked for")


def until_ended(renders: Renders, job: str) -> None:
    """As `Renders.outcome` does, but in a time in which patience does not end."""
    eventually(lambda: renders.gateway.get(f"/api/jobs/{job}").json()["state"] == "ended", "the job ends", FEW_S)


@pytest.mark.parametrize(("model", "beside"), [("omni", "mA"), ("sglang", "mA"), ("twin", "beside-twin")])
def test_a_submit_that_is_answered_without_an_id_is_lost_and_its_server_ended(
    renders: Renders, model: str, beside: str
) -> None:
    if model == "twin":
        renders.swap(beside)
    began = time.monotonic()
    call = renders.send(VIDEOS, {"model": model, "prompt": "a", "seconds": LONG_S, "fault": "no_id"})
    answer = call.answer()
    renders.chat(f"after-{model}", beside)
    assert answer.status == 502
    assert message(answer) == (
        "the model's server answered 200 to a request that starts a job, but told no id of the job"
    )
    assert renders.outcome(answer.get("X-LlamaSwap-Job")) == "upstream_lost"
    moment = renders.chatted(f"after-{model}")
    assert model not in renders.gateway.states()
    (video,) = [each["id"] for each in renders.gateway.journal("gpu_start") if each["t"] > began]
    assert (moment > renders.freed(video), renders.how(video)) == (True, "killed")
    assert overlaps(renders.gateway.journal()) == []


def test_a_submit_that_is_refused_frees_the_place_and_keeps_the_server(renders: Renders) -> None:
    first = renders.submit("omni", seconds="0.1")
    assert renders.outcome(first.job) == "completed"
    refused = renders.ask("POST", VIDEOS, json={"model": "omni", "prompt": ""})
    assert (refused.status_code, refused.json()["detail"][0]["msg"]) == (422, "Field required")
    until_ended(renders, refused.headers["X-LlamaSwap-Job"])
    second = renders.submit("omni", seconds="0.1")
    assert renders.outcome(second.job) == "completed"
    assert renders.process(first.id) == renders.process(second.id)


def test_a_result_that_its_server_is_too_busy_to_give_is_asked_for_again(renders: Renders) -> None:
    render = renders.submit("omni", seconds="0.1", fault="content_503:2")
    renders.chat("after-busy")
    assert renders.outcome(render.job) == "completed"
    asked = [entry["t"] for entry in renders.gateway.journal("http") if entry["path"] == f"{render.path}/content"]
    assert len(asked) == 3
    assert renders.chatted("after-busy") > asked[-1]
    assert "omni" not in renders.gateway.states()
    assert renders.told(render)["status"] == "completed"
    assert renders.frames(f"{render.path}/content") == 5


def hanging(renders: Renders, model: str = "omni") -> Render:
    """A render that is done, and whose result is asked for in vain."""
    render = renders.submit(model, seconds="0.1", fault="content_hang")
    until_fetched(renders, render.path)
    return render


@pytest.mark.parametrize("model", ["omni", "sglang"])
@pytest.mark.parametrize("way", ["job", "video", "unload"])
def test_the_fetch_of_a_result_that_never_comes_is_ended(renders: Renders, model: str, way: str) -> None:
    render = hanging(renders, model)
    chat = f"after-{model}-{way}"
    renders.chat(chat)
    for _ in range(3):
        assert renders.told(render)["status"] == "completed", "to look at it ends nothing"
    shown = renders.running()
    assert (shown["id"], "its result is fetched" in shown["reason"]) == (render.job, True)
    if way == "unload":
        assert renders.gateway.unload(model).status_code == 200
    else:
        path = render.path if way == "video" else f"/api/jobs/{render.job}"
        assert renders.ask("DELETE", path).status_code == 200
    until_ended(renders, render.job)
    assert renders.outcome(render.job) == ("unloaded_running" if way == "unload" else "cancelled_running")
    renders.chatted(chat)
    if way == "video":
        assert renders.ask("GET", render.path).status_code == 404
    else:
        words = {"job": "cancelled by request while it ran", "unload": "the model was unloaded while it ran"}[way]
        assert told_failure(renders, render.path) == words


def test_the_fetch_of_a_result_that_never_comes_ends_with_patience(renders: Renders) -> None:
    render = hanging(renders, "nervous")
    renders.chat("after-patience")
    assert renders.outcome(render.job) == "upstream_lost"
    renders.chatted("after-patience")
    assert told_failure(renders, render.path) == "it was done, but its result could not be fetched in 1 s"


def test_a_result_that_is_always_refused_ends_with_patience_and_says_why(renders: Renders) -> None:
    render = renders.submit("nervous", seconds="0.1", fault="content_503:600")
    assert renders.outcome(render.job) == "upstream_lost"
    assert told_failure(renders, render.path) == (
        f"it was done, but its result could not be fetched in 1 s: GET {render.path}/content was answered with 503"
    )


def test_a_server_that_dies_while_its_result_is_fetched_breaks_the_job(renders: Renders) -> None:
    render = hanging(renders)
    os.kill(renders.process(render.id), signal.SIGKILL)
    until_ended(renders, render.job)
    assert renders.outcome(render.job) == "upstream_broken"
    assert told_failure(renders, render.path) == "the model's server ended while it ran"


def test_a_shutdown_does_not_wait_for_a_result_that_never_comes(tmp_path: Path) -> None:
    config = models(video_model("omni", flavour="vllm", extra=PRESET))
    first = GatewayProcess(tmp_path, config)
    with first.unguarded():
        render = hanging(Renders(first))
        first.process.send_signal(signal.SIGTERM)
        in_time(lambda: "stopping" in first.log.read_text(), "it drains")
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(FEW_S) == 0
    with GatewayProcess(tmp_path, config) as second:
        assert told_failure(Renders(second), render.path) == "the gateway shut down while it ran"


OTHERS = {
    "renamed": video_model("wan-2", flavour="vllm", extra=PRESET),
    "renamed, and known by its old name too": video_model("wan-2", flavour="vllm", extra=f"{PRESET}\naliases: [wan]"),
    "removed": "",
    "of another completion": video_model("wan", flavour="vllm", extra="completion: comfyui"),
    "of no completion": video_model("wan", flavour="vllm"),
}


def reload(gateway: GatewayProcess, *entries: str) -> None:
    """Put another configuration in force."""
    before = gateway.log.read_text().count("configuration reloaded")
    gateway.config.write_text(gateway.config.read_text().splitlines()[0] + "\n" + models(*entries))
    gateway.process.send_signal(signal.SIGHUP)
    in_time(lambda: gateway.log.read_text().count("configuration reloaded") > before, "the new file is in force")


def listed(renders: Renders) -> dict[str, str]:
    return {video["id"]: video["status"] for video in renders.ask("GET", VIDEOS).json()["data"]}


@pytest.mark.parametrize("change", OTHERS)
def test_videos_are_known_by_their_ids_whatever_becomes_of_their_model(tmp_path: Path, change: str) -> None:
    config = models(video_model("wan", flavour="vllm", extra=PRESET), stub_model("mA"))
    with GatewayProcess(tmp_path, config) as gateway:
        renders = Renders(gateway)
        done = renders.submit("wan", seconds="0.1")
        assert renders.outcome(done.job) == "completed"
        runs = renders.submit("wan", seconds="2")
        renders.until_rendering(runs.id)
        reload(gateway, OTHERS[change], stub_model("mA"))

        assert renders.told(runs)["status"] in ("queued", "in_progress")
        assert renders.frames(f"{done.path}/content") == 5
        assert listed(renders) == {runs.id: renders.told(runs)["status"], done.id: "completed"}
        assert renders.outcome(runs.job) == "completed"
        renders.swap()
        for render in (done, runs):
            assert renders.told(render)["status"] == "completed"
            assert renders.frames(f"{render.path}/content") == 5
        assert listed(renders) == {runs.id: "completed", done.id: "completed"}
        remix = renders.ask("POST", f"{done.path}/remix", json={"prompt": "by day"})
        assert 400 <= remix.status_code < 500, remix.text
        if change == "removed":
            later = renders.ask("POST", f"{done.path}/remix", json={}, headers={"Prefer": "respond-async"}).json()["id"]
            in_time(lambda: renders.ask("GET", f"{VIDEOS}/{later}").json()["status"] == "failed", "it is refused")
            words = "no router for requested model: model wan is no longer configured"
            assert told_failure(renders, f"{VIDEOS}/{later}") == words
        assert renders.ask("DELETE", done.path).json()["deleted"] is True
        assert renders.ask("GET", done.path).status_code == 404
        assert listed(renders) == {runs.id: "completed"}
        renders.assert_at_rest()


@pytest.mark.parametrize("change", ["removed", "of another completion"])
def test_a_running_video_can_be_deleted_whatever_becomes_of_its_model(tmp_path: Path, change: str) -> None:
    config = models(video_model("wan", flavour="vllm", extra=PRESET), stub_model("mA"))
    with GatewayProcess(tmp_path, config) as gateway:
        renders = Renders(gateway)
        runs = renders.submit("wan", seconds=LONG_S)
        renders.until_rendering(runs.id)
        reload(gateway, OTHERS[change], stub_model("mA"))
        assert renders.ask("DELETE", runs.path).status_code == 200
        assert renders.outcome(runs.job) == "cancelled_running"
        assert renders.how(runs.id) == "cancelled"
        assert renders.ask("GET", runs.path).status_code == 404
        assert listed(renders) == {}
        renders.assert_at_rest()


@pytest.mark.parametrize("way", ["/", "?now=1", "/?now=1", "?variant=video"])
def test_what_is_kept_is_found_in_other_words(renders: Renders, way: str) -> None:
    render = renders.submit("omni", seconds="0.1")
    assert renders.outcome(render.job) == "completed"
    renders.swap()
    assert renders.frames(f"{render.path}/content{way}") == 5
    assert renders.ask("GET", f"{render.path}{way}").json()["status"] == "completed"
    thumbnail = renders.ask("GET", f"{render.path}/content?variant=thumbnail")
    assert (thumbnail.status_code, "nothing is kept at" in message(thumbnail)) == (404, True)
