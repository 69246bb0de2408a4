from __future__ import annotations

import json
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from websockets.sync.client import connect

from swaplane.demo.frames import count_frames
from tests.support.async_servers import LoneServer
from tests.support.gpu_journal import overlaps

LONG = {"prompt": "a train", "seconds": "600"}
SHORT = {"prompt": "a train", "seconds": "0.1"}


@pytest.fixture(params=["openai", "vllm", "sglang"])
def flavoured(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, LoneServer]]:
    with LoneServer(tmp_path, "video_jobs.py", flags=f"--flavour {request.param}") as server:
        yield request.param, server


@pytest.fixture
def vllm(tmp_path: Path) -> Iterator[LoneServer]:
    with LoneServer(tmp_path, "video_jobs.py", flags="--flavour vllm") as server:
        yield server


@pytest.fixture
def comfy(tmp_path: Path) -> Iterator[LoneServer]:
    with LoneServer(tmp_path, "comfy.py") as server:
        yield server


def submit(server: LoneServer, **fields: Any) -> str:
    answer = server.request("POST", "/v1/videos", json=fields)
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "queued"
    return str(answer.json()["id"])


def until_over(server: LoneServer, job: str, how: str) -> None:
    server.until(lambda: (job, how) in server.gpu(), f"{job} is {how}")


def until_rendering(server: LoneServer, job: str) -> None:
    server.until(lambda: job in [entry["id"] for entry in server.journal("gpu_start")], f"{job} renders")


def until_it_goes_on(server: LoneServer, job: str) -> None:
    now_s = time.monotonic()
    server.until(
        lambda: any(beat["id"] == job and beat["t"] > now_s for beat in server.journal("gpu_beat")), f"{job} goes on"
    )


def graph(class_type: str = "SaveImage", **inputs: Any) -> dict[str, Any]:
    return {"7": {"class_type": "CLIPTextEncode", "inputs": {}}, "9": {"class_type": class_type, "inputs": inputs}}


def queue_graph(server: LoneServer, *, front: bool = False, **inputs: Any) -> str:
    prompt_id = str(uuid.uuid4())
    body = {"prompt": graph(**inputs), "prompt_id": prompt_id, "front": front}
    answer = server.request("POST", "/prompt", json=body)
    assert answer.json()["prompt_id"] == prompt_id
    return prompt_id


def history(server: LoneServer, prompt_id: str) -> Any:
    return server.get(f"/history/{prompt_id}").get(prompt_id)


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
def test_a_video_is_answered_queued_and_rendered_afterwards(flavoured: tuple[str, LoneServer]) -> None:
    flavour, server = flavoured
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0) as client:
        job = client.videos.create(prompt="a train", extra_body={"seconds": "0.5", "num_frames": 22})
        assert job.status == "queued"
        assert job.id.startswith({"openai": "video_", "vllm": "video_gen_", "sglang": ""}[flavour])
        assert server.request("GET", f"/v1/videos/{job.id}/content").status_code == 404
        done = client.videos.poll(job.id, poll_interval_ms=20)
        assert (done.status, done.progress) == ("completed", 100)
        assert count_frames([client.videos.download_content(job.id).read()]) == 22
        assert [video.id for video in client.videos.list()] == [job.id]
    assert server.gpu() == [(job.id, "done")]


def test_videos_are_rendered_one_at_a_time_in_their_order(flavoured: tuple[str, LoneServer]) -> None:
    _, server = flavoured
    jobs = [submit(server, **SHORT) for _ in range(3)]
    until_over(server, jobs[-1], "done")
    assert server.gpu() == [(job, "done") for job in jobs]
    assert overlaps(server.journal()) == []
    newest = server.get("/v1/videos?limit=1")["data"]
    assert [job["id"] for job in newest] == [jobs[-1]]
    after = server.get(f"/v1/videos?after={jobs[-1]}")["data"]
    assert [job["id"] for job in after] == jobs[1::-1]


def test_a_failed_video_answers_as_its_flavour_does(flavoured: tuple[str, LoneServer]) -> None:
    flavour, server = flavoured
    job = submit(server, **SHORT, fault="fail")
    until_over(server, job, "failed")
    answer = server.request("GET", f"/v1/videos/{job}")
    assert answer.status_code == (500 if flavour == "vllm" else 200)
    assert answer.json()["status"] == "failed"
    assert answer.json()["error"]["message"]
    assert server.request("GET", f"/v1/videos/{job}/content").status_code == (422 if flavour == "vllm" else 404)


def test_deleting_a_video_that_renders_aborts_forgets_or_is_refused(flavoured: tuple[str, LoneServer]) -> None:
    flavour, server = flavoured
    job = submit(server, **LONG)
    until_rendering(server, job)
    answer = server.request("DELETE", f"/v1/videos/{job}")
    assert answer.status_code == (409 if flavour == "openai" else 200)
    assert server.request("GET", f"/v1/videos/{job}").status_code == (200 if flavour == "openai" else 404)
    if flavour == "vllm":
        assert server.gpu() == [(job, "cancelled")]
    else:
        until_it_goes_on(server, job)


def test_a_cancel_that_takes_long_is_409_while_the_render_holds_the_gpu(vllm: LoneServer) -> None:
    job = submit(vllm, **LONG, fault="slow_cancel:2")
    until_rendering(vllm, job)
    assert vllm.request("DELETE", f"/v1/videos/{job}").status_code == 409
    vllm.until(lambda: vllm.request("DELETE", f"/v1/videos/{job}").status_code == 200, "it is cancelled")
    assert vllm.gpu() == [(job, "cancelled")]
    assert vllm.lasted_s(job) >= 2


def test_a_remix_is_a_job_of_its_own(vllm: LoneServer) -> None:
    origin = submit(vllm, **SHORT)
    answer = vllm.request("POST", f"/v1/videos/{origin}/remix", json={"prompt": "a boat"})
    assert answer.json()["remixed_from_video_id"] == origin
    until_over(vllm, answer.json()["id"], "done")
    assert vllm.request("POST", "/v1/videos/other/remix", json={"prompt": "a boat"}).status_code == 404


def test_a_synchronous_video_goes_on_when_its_caller_leaves(vllm: LoneServer) -> None:
    answer = vllm.request("POST", "/v1/videos/sync", files={"prompt": (None, "a train")})
    assert answer.headers["content-type"] == "video/mp4"
    assert count_frames([answer.content]) == 5
    with httpx2.Client(trust_env=False, timeout=0.3) as client, pytest.raises(httpx2.ReadTimeout):
        client.post(f"http://127.0.0.1:{vllm.port}/v1/videos/sync", json={"prompt": "a boat", "seconds": 1})
    vllm.until(lambda: [how for _, how in vllm.gpu()] == ["done", "done"], "both are rendered")
    assert vllm.get("/v1/videos")["data"] == []


def test_a_video_without_a_prompt_or_with_an_unknown_fault_is_refused(flavoured: tuple[str, LoneServer]) -> None:
    flavour, server = flavoured
    status = 422 if flavour == "vllm" else 400
    assert server.request("POST", "/v1/videos", json={"model": "wan"}).status_code == status
    answer = server.request("POST", "/v1/videos", json={"prompt": "a train", "fault": "smoke"})
    assert answer.status_code == 400
    assert "smoke" in answer.text


def test_a_forgotten_video_is_unknown_while_it_still_renders(vllm: LoneServer) -> None:
    job = submit(vllm, prompt="a train", seconds="2", fault="forget")
    vllm.until(lambda: vllm.request("GET", f"/v1/videos/{job}").status_code == 404, "it is forgotten")
    until_over(vllm, job, "done")
    assert vllm.lasted_s(job) >= 2


def test_a_restart_inside_forgets_all_videos_and_frees_the_gpu(vllm: LoneServer) -> None:
    running, waiting = submit(vllm, prompt="a train", seconds=2, fault="restart"), submit(vllm, **SHORT)
    vllm.until(lambda: vllm.request("GET", f"/v1/videos/{waiting}").status_code == 404, "it is forgotten")
    assert vllm.gpu() == [(running, "killed")]
    again = submit(vllm, **SHORT)
    until_over(vllm, again, "done")


def test_a_crash_ends_the_process_in_mid_render(vllm: LoneServer) -> None:
    job = submit(vllm, **SHORT, fault="crash")
    assert vllm.process.wait(30) == 1
    assert vllm.gpu() == [(job, "killed")]
    assert [entry["why"] for entry in vllm.journal("exit")] == ["crash"]


def test_a_deaf_server_answers_503_or_hangs_up_and_renders_on(vllm: LoneServer) -> None:
    job = submit(vllm, **SHORT, fault="deaf:2")
    until_rendering(vllm, job)
    seen = []
    while 200 not in seen:
        try:
            seen.append(vllm.request("GET", f"/v1/videos/{job}").status_code)
        except httpx2.RemoteProtocolError:
            seen.append(0)
    assert set(seen) == {503, 0, 200}
    assert vllm.get(f"/v1/videos/{job}")["status"] == "completed"


def test_a_slow_submit_is_answered_while_the_render_goes_on(vllm: LoneServer) -> None:
    job = submit(vllm, **LONG, fault="slow_submit:1")
    (start,) = vllm.journal("gpu_start")
    assert start["id"] == job
    assert time.monotonic() - start["t"] >= 0.9


def test_sigterm_ends_a_render_that_never_ends(vllm: LoneServer) -> None:
    job = submit(vllm, **SHORT, fault="never")
    until_rendering(vllm, job)
    vllm.process.send_signal(signal.SIGTERM)
    assert vllm.process.wait(30) == 0
    events = [entry["ev"] for entry in vllm.journal() if entry["ev"] not in ("http", "gpu_beat")]
    assert events == ["boot", "ready", "gpu_start", "sigterm", "gpu_end", "exit"]
    assert vllm.gpu() == [(job, "killed")]


def test_a_graph_is_queued_run_and_its_file_can_be_seen(comfy: LoneServer) -> None:
    video = queue_graph(comfy, class_type="SaveVideo", seconds=0.1)
    picture = queue_graph(comfy, seconds=1)
    assert comfy.get("/prompt")["exec_info"]["queue_remaining"] > 0
    until_over(comfy, picture, "done")
    comfy.until(lambda: not any(comfy.get("/api/queue").values()), "the queue is empty")
    for prompt_id, start in ((video, b"ftyp"), (picture, b"PNG")):
        entry = comfy.get(f"/api/history/{prompt_id}")[prompt_id]
        assert entry["status"] == {**entry["status"], "status_str": "success", "completed": True}
        (file,) = entry["outputs"]["9"]["images"]
        assert start in comfy.request("GET", "/view", params=file).content[:12]
    assert list(comfy.get("/history")) == [video, picture]


def test_a_graph_that_makes_no_sense_is_refused(comfy: LoneServer) -> None:
    for body, kind in (
        ({}, "no_prompt"),
        ({"prompt": "a train"}, "no_prompt"),
        ({"prompt": {}}, "prompt_no_outputs"),
        ({"prompt": graph(), "prompt_id": "mine"}, "invalid_prompt_id"),
    ):
        answer = comfy.request("POST", "/prompt", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == kind


def test_graphs_are_taken_from_the_queue_interrupted_and_put_in_front(comfy: LoneServer) -> None:
    running = queue_graph(comfy, seconds=600)
    until_rendering(comfy, running)
    later, deleted, first = queue_graph(comfy), queue_graph(comfy), queue_graph(comfy, front=True)
    comfy.request("POST", "/queue", json={"delete": [deleted, running]})
    comfy.request("POST", "/interrupt", json={"prompt_id": later})
    queue = comfy.get("/queue")
    assert [item[1] for item in queue["queue_running"]] == [running]
    assert [item[1] for item in sorted(queue["queue_pending"])] == [first, later]
    comfy.request("POST", "/interrupt")
    until_over(comfy, later, "done")
    assert comfy.gpu() == [(running, "cancelled"), (first, "done"), (later, "done")]
    assert history(comfy, deleted) is None
    assert history(comfy, running)["status"]["messages"][-1][0] == "execution_interrupted"


def test_a_failed_graph_tells_its_error_and_a_forgotten_one_is_nowhere(comfy: LoneServer) -> None:
    failed = queue_graph(comfy, seconds=0.1, fault="fail")
    comfy.until(lambda: history(comfy, failed), "it has failed")
    assert history(comfy, failed)["status"]["status_str"] == "error"
    assert history(comfy, failed)["status"]["messages"][-1][0] == "execution_error"
    forgotten = queue_graph(comfy, seconds=2, fault="forget")
    until_rendering(comfy, forgotten)
    comfy.until(lambda: comfy.get("/queue") == {"queue_running": [], "queue_pending": []}, "it is forgotten")
    until_over(comfy, forgotten, "done")
    assert comfy.lasted_s(forgotten) >= 2
    assert history(comfy, forgotten) is None


def test_a_websocket_is_told_how_its_graph_is_doing(comfy: LoneServer) -> None:
    with connect(f"ws://127.0.0.1:{comfy.port}/ws?clientId=me") as socket:
        assert json.loads(socket.recv())["data"]["sid"] == "me"
        comfy.request("POST", "/prompt", json={"prompt": graph(seconds=0.2), "client_id": "me"})
        kinds = []
        while "execution_success" not in kinds:
            kinds.append(json.loads(socket.recv(timeout=30))["type"])
    order = ["execution_start", "executing", "progress", "executed", "execution_success"]
    assert [kind for kind in dict.fromkeys(kinds) if kind in order] == order
    assert "status" in kinds


def test_a_picture_is_uploaded_and_the_page_is_there(comfy: LoneServer) -> None:
    content = bytes(range(256))
    answer = comfy.request("POST", "/upload/image", files={"image": ("first.png", content)})
    assert comfy.request("GET", "/view", params={"filename": answer.json()["name"], "type": "input"}).content == content
    assert comfy.request("GET", "/").headers["content-type"] == "text/html"
    assert "comfyui_version" in comfy.get("/system_stats")["system"]


def test_two_servers_that_render_at_once_are_an_overlap_also_when_one_is_killed(tmp_path: Path) -> None:
    with LoneServer(tmp_path, "video_jobs.py", "wan") as wan, LoneServer(tmp_path, "comfy.py", "comfy") as comfy:
        lost = submit(wan, **LONG)
        until_rendering(wan, lost)
        until_it_goes_on(wan, lost)
        wan.process.kill()
        wan.process.wait(30)
        after = queue_graph(comfy, seconds=0.1)
        until_over(comfy, after, "done")
        assert overlaps(comfy.journal()) == []
        with LoneServer(tmp_path, "video_jobs.py", "second") as second:
            one, other = submit(second, **LONG), queue_graph(comfy, seconds=600)
            until_rendering(second, one)
            until_rendering(comfy, other)
            until_it_goes_on(second, one)
            second.process.kill()
            second.process.wait(30)
        assert [{each.id for each in pair} for pair in overlaps(comfy.journal())] == [{one, other}]


def stub_says(ev: str, t: float, pid: int, rid: str = "", line: str = "POST /v1/chat/completions HTTP/1.1") -> Any:
    return {"ev": ev, "t": t, "pid": pid, "name": f"m{pid}", "rid": rid, "line": line}


@pytest.mark.parametrize(
    ("entries", "pairs"),
    [
        ([stub_says("req_end", 2, 1, "a"), stub_says("req_start", 2, 2, "b"), stub_says("req_end", 3, 2, "b")], []),
        ([stub_says("req_end", 5, 1, "a"), stub_says("req_start", 2, 2, "b"), stub_says("req_end", 3, 2, "b")], ["ab"]),
        ([stub_says("client_gone", 2.2, 1, "a"), stub_says("req_start", 2, 2, "b"), stub_says("exit", 3, 2)], []),
        ([stub_says("client_gone", 2.9, 1, "a"), stub_says("req_start", 2, 2, "b"), stub_says("exit", 3, 2)], ["ab"]),
        ([stub_says("exit", 2, 1), stub_says("req_start", 3, 2, "b"), stub_says("req_end", 4, 2, "b")], []),
        ([stub_says("boot", 2, 2), stub_says("req_start", 3, 2, "b"), stub_says("req_end", 4, 2, "b")], []),
        ([stub_says("req_start", 3, 2, "b"), stub_says("req_end", 4, 2, "b")], ["ab"]),
        ([stub_says("req_start", 3, 2, "b", "GET /v1/models HTTP/1.1"), stub_says("req_end", 4, 2, "b")], []),
    ],
)
def test_requests_of_stubs_overlap_from_their_start_to_their_end(entries: list[Any], pairs: list[str]) -> None:
    found = overlaps([stub_says("boot", 0, 1), stub_says("req_start", 1, 1, "a"), *entries])
    assert ["".join(sorted(each.id for each in pair)) for pair in found] == pairs
