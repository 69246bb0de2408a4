from __future__ import annotations

from collections.abc import Iterator

import pytest

from swaplane.demo.frames import count_frames
from tests.support.async_servers import models, stub_model, video_model
from tests.support.gateway import GatewayProcess
from tests.support.renders import LONG_S, VIDEOS, Renders, message
from tests.support.scene import in_time

PRESET = "completion: openai-videos"
MAPPING = """\
completion:
  submit: [/v1/videos, "/v1/videos/{id}/remix"]
  id: id
  poll: /v1/videos/{id}
  done: completed
  failed: failed
  progress: progress
  cancel: DELETE /v1/videos/{id}
  result: /v1/videos/{id}/content
"""
OWN = "/upstream/own" + VIDEOS
BASES = [("plain", VIDEOS), ("omni", VIDEOS), ("sglang", "/upstream/sglang" + VIDEOS), ("own", OWN)]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    config = models(
        video_model("plain", flavour="openai", extra=PRESET),
        video_model("omni", flavour="vllm", extra=PRESET),
        video_model("sglang", flavour="sglang", extra=PRESET),
        video_model("own", flavour="vllm", extra=MAPPING),
        stub_model("mA"),
    )
    with GatewayProcess(tmp_path_factory.mktemp("following"), config) as gateway:
        yield gateway


@pytest.mark.parametrize(("model", "base"), BASES, ids=[model for model, _ in BASES])
def test_the_lane_is_held_to_the_renders_end_and_what_it_made_outlives_its_server(
    renders: Renders, model: str, base: str
) -> None:
    render = renders.submit(model, base=base, seconds="0.5")
    renders.until_rendering(render.id)
    assert renders.running()["id"] == render.job
    renders.chat(f"after-{model}")
    in_time(lambda: renders.gateway.queue()["waiting_total"] == 1, "the chat waits")

    assert renders.chatted(f"after-{model}") > renders.freed(render.id)
    assert renders.outcome(render.job) == "completed"
    assert renders.how(render.id) == "done"
    assert model not in renders.gateway.states()
    assert renders.told(render)["status"] == "completed"
    assert renders.frames(f"{render.path}/content") == 5
    assert model not in renders.gateway.states()


def test_what_is_kept_of_a_model_that_is_gone(renders: Renders) -> None:
    render = renders.submit("omni", seconds="0.1")
    assert renders.outcome(render.job) == "completed"
    fresh = renders.ask("GET", f"{render.path}/content")
    renders.swap()
    boots, jobs = len(renders.gateway.journal("boot")), renders.gateway.metric("swaplane_jobs_total")

    for base in (VIDEOS, "/upstream/omni" + VIDEOS):
        content = renders.ask("GET", f"{base}/{render.id}/content")
        assert content.content == fresh.content
        assert content.headers["Content-Type"] == "video/mp4"
        assert content.headers["Content-Disposition"] == f'attachment; filename="{render.id}.mp4"'
        assert content.headers["Content-Length"] == str(len(fresh.content))
        assert content.headers["Accept-Ranges"] == "bytes"
        assert "X-LlamaSwap-Job" not in content.headers
    head = renders.ask("HEAD", f"{render.path}/content")
    assert (head.status_code, head.headers["Content-Length"]) == (200, str(len(fresh.content)))
    part = renders.ask("GET", f"{render.path}/content", headers={"Range": "bytes=4-11"})
    assert (part.status_code, part.content) == (206, fresh.content[4:12])
    assert part.headers["Content-Range"] == f"bytes 4-11/{len(fresh.content)}"
    rest = {"Range": "bytes=8-", "If-Range": head.headers["ETag"]}
    assert renders.ask("GET", f"{render.path}/content", headers=rest).content == fresh.content[8:]
    beyond = renders.ask("GET", f"{render.path}/content", headers={"Range": "bytes=9999999-"})
    assert beyond.status_code == 416

    assert renders.told(render)["status"] == "completed"
    assert render.id in [video["id"] for video in renders.ask("GET", VIDEOS).json()["data"]]
    other = renders.ask("GET", f"{render.path}/thumbnail")
    assert (other.status_code, "nothing is kept at /v1/videos/" in message(other)) == (404, True)
    unknown = renders.ask("GET", f"{VIDEOS}/video_gen_unknown")
    assert unknown.status_code == 404
    assert message(unknown) == (
        "no video `video_gen_unknown` is known: it was never made here, was deleted, or has expired"
    )
    for path in (f"{VIDEOS}/unknown", VIDEOS):
        beside = renders.ask("GET", f"/upstream/omni{path}")
        assert beside.status_code == 409
        assert message(beside) == "model omni is not loaded; requests about its jobs do not load it"

    gone = renders.ask("DELETE", render.path)
    assert gone.json() == {"id": render.id, "object": "video.deleted", "deleted": True}
    for path in (render.path, f"{render.path}/content"):
        assert renders.ask("GET", path).status_code == 404
    assert renders.ask("DELETE", render.path).status_code == 404
    assert render.id not in [video["id"] for video in renders.ask("GET", VIDEOS).json()["data"]]
    assert len(renders.gateway.journal("boot")) == boots, "none of this loads a model"
    assert renders.gateway.metric("swaplane_jobs_total") == jobs, "none of this is a job"


def test_a_video_of_an_earlier_process_is_deleted_while_the_model_runs_again(renders: Renders) -> None:
    render = renders.submit("omni", seconds="0.1")
    assert renders.outcome(render.job) == "completed"
    renders.swap()
    later = renders.submit("omni", seconds="0.1")
    assert renders.outcome(later.job) == "completed"
    assert renders.frames(f"{render.path}/content") == 5
    for video in (render, later):
        assert renders.ask("DELETE", video.path).json()["deleted"] is True
        assert renders.ask("GET", video.path).status_code == 404


def test_news_is_answered_at_once_while_others_wait(renders: Renders) -> None:
    done = renders.submit("omni", seconds="0.1")
    assert renders.outcome(done.job) == "completed"
    render = renders.submit("omni", seconds=LONG_S)
    for number in range(20):
        renders.chat(f"crowd-{number}")
    in_time(lambda: renders.gateway.queue()["waiting_total"] == 20, "20 wait")

    for base in (VIDEOS, "/upstream/omni" + VIDEOS):
        assert renders.ask("GET", f"{base}/{render.id}").json()["status"] in ("queued", "in_progress")
        assert renders.ask("GET", f"{base}/{render.id}/content").status_code == 404
        assert renders.frames(f"{base}/{done.id}/content") == 5
        assert {render.id, done.id} <= {video["id"] for video in renders.ask("GET", base).json()["data"]}
    queue = renders.gateway.queue()
    assert ([job["id"] for job in queue["running"]], queue["waiting_total"]) == ([render.job], 20)
    assert renders.ask("DELETE", render.path).status_code == 200
    first = min(renders.chatted(f"crowd-{number}") for number in range(20))
    assert first > renders.freed(render.id)


def test_progress_shows_in_the_queue(renders: Renders) -> None:
    render = renders.submit("plain", seconds="20")
    in_time(lambda: (renders.running()["progress"] or 0) >= 1, "there is progress")
    shown = renders.running()
    assert f", {shown['progress']:.0f} % done (in_progress)" in shown["reason"]
    assert renders.ask("GET", f"/api/jobs/{render.job}").json()["progress"] >= shown["progress"]
    assert renders.ask("DELETE", f"/api/jobs/{render.job}").status_code == 200
    assert renders.outcome(render.job) == "cancelled_running"


def test_a_submit_that_is_refused_is_over_with_its_answer(renders: Renders) -> None:
    answer = renders.ask("POST", VIDEOS, json={"model": "omni", "prompt": ""})
    assert (answer.status_code, answer.json()["detail"][0]["msg"]) == (422, "Field required")
    assert renders.outcome(answer.headers["X-LlamaSwap-Job"]) == "completed"


CANCELS = {
    "by job": "/api/jobs/{job}",
    "by video": VIDEOS + "/{id}",
    "at its server": "/upstream/{model}" + VIDEOS + "/{id}",
    "in other words": "/upstream/{model}" + VIDEOS + "/{id}/?now=1",
}


@pytest.mark.parametrize("way", CANCELS)
@pytest.mark.parametrize("model", ["omni", "sglang"])
def test_a_cancelled_render_is_stopped_in_place_where_its_server_can(renders: Renders, model: str, way: str) -> None:
    render = renders.submit(model, seconds=LONG_S)
    renders.until_rendering(render.id)
    if way == "by job":
        renders.chat(f"after-{render.id}")
    path = CANCELS[way].format(job=render.job, id=render.id, model=model)
    answer = renders.ask("DELETE", path)
    assert answer.status_code == 200, answer.text
    assert renders.outcome(render.job) == "cancelled_running"
    assert renders.how(render.id) == ("cancelled" if model == "omni" else "killed")
    if way == "by job":
        assert renders.chatted(f"after-{render.id}") > renders.freed(render.id)
        told = renders.told(render)
        assert (told["status"], told["error"]["message"]) == ("failed", "cancelled by request while it ran")
    else:
        assert renders.ask("GET", render.path).status_code == 404


@pytest.mark.parametrize(
    ("model", "base", "processes"), [("plain", VIDEOS, 2), ("omni", VIDEOS, 1), ("sglang", VIDEOS, 2), ("own", OWN, 1)]
)
def test_a_server_that_cannot_stop_a_render_is_ended_and_started_anew(
    renders: Renders, model: str, base: str, processes: int
) -> None:
    unwanted = renders.submit(model, base=base, seconds=LONG_S)
    renders.until_rendering(unwanted.id)
    assert renders.ask("DELETE", f"/api/jobs/{unwanted.job}").status_code == 200
    assert renders.outcome(unwanted.job) == "cancelled_running"
    wanted = renders.submit(model, base=base, seconds="0.1")
    assert renders.outcome(wanted.job) == "completed"
    assert len({renders.process(render.id) for render in (unwanted, wanted)}) == processes


def test_a_server_that_lets_go_slowly_keeps_the_place_until_it_has(renders: Renders) -> None:
    render = renders.submit("omni", seconds=LONG_S, fault="slow_cancel:1.2")
    renders.until_rendering(render.id)
    renders.chat("after-slow")
    assert renders.ask("DELETE", f"/api/jobs/{render.job}").status_code == 200
    assert renders.chatted("after-slow") > renders.freed(render.id)
    assert renders.how(render.id) == "cancelled"
    assert renders.outcome(render.job) == "cancelled_running"


@pytest.mark.parametrize("model", ["omni", "sglang"])
def test_a_cancel_while_the_submit_is_not_answered_ends_what_it_began(renders: Renders, model: str) -> None:
    fields = {"model": model, "prompt": "a", "seconds": LONG_S, "fault": "slow_submit:0.7"}
    call = renders.send(VIDEOS, fields)
    video = renders.until_rendering()
    job = renders.running()["id"]
    assert renders.ask("DELETE", f"/api/jobs/{job}").status_code == 200
    answer = call.answer()
    assert (answer.status, video.encode() in answer.body) == (200, True)
    assert renders.outcome(job) == "cancelled_running"
    assert renders.how(video) == ("cancelled" if model == "omni" else "killed")
    assert renders.ask("GET", f"{VIDEOS}/{video}").json()["status"] == "failed"


def test_a_client_that_leaves_before_it_knows_the_id_wants_no_render(renders: Renders) -> None:
    fields = {"model": "omni", "prompt": "a", "seconds": LONG_S, "fault": "slow_submit:0.7"}
    call = renders.send(VIDEOS, fields)
    video = renders.until_rendering()
    job = renders.running()["id"]
    call.leave()
    assert renders.outcome(job) == "left_running"
    assert renders.how(video) == "cancelled"


def test_the_sync_route_is_over_with_its_answer(renders: Renders) -> None:
    answer = renders.ask("POST", f"{VIDEOS}/sync", json={"model": "omni", "prompt": "a", "seconds": "0.1"})
    assert (answer.status_code, count_frames([answer.content])) == (200, 5)
    assert renders.outcome(answer.headers["X-LlamaSwap-Job"]) == "completed"


@pytest.mark.parametrize("how", ["leaves", "cancels"])
def test_the_sync_route_works_on_when_nobody_waits_so_its_server_is_ended(renders: Renders, how: str) -> None:
    call = renders.send(f"{VIDEOS}/sync", {"model": "omni", "prompt": "a", "seconds": LONG_S})
    video = renders.until_rendering()
    job = renders.running()["id"]
    renders.chat(f"after-{how}")
    if how == "leaves":
        call.leave()
    else:
        renders.ask("DELETE", f"/api/jobs/{job}")
        assert message(call.answer()) == "cancelled by request while it ran"
    assert renders.outcome(job) == {"leaves": "left_running", "cancels": "cancelled_running"}[how]
    assert renders.chatted(f"after-{how}") > renders.freed(video)
    assert renders.how(video) == "killed"
