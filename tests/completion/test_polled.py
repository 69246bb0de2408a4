from __future__ import annotations

import json

import pytest

from swaplane.completion.paths import Route
from swaplane.completion.polled import Polled
from swaplane.completion.presets import PRESETS
from swaplane.completion.rule import Answer, Call, Completion, Report, Stage

VIDEOS = PRESETS["openai-videos"](7200, 300)
OMNI = "video_gen_0123456789abcdef0123456789abcdef"
SGLANG = "0b6c7c1e-5b1c-4f0e-9d8e-0d4c5a1e2f3a"

LIGHTX2V: Completion = Polled(
    name="custom",
    submit=(Route("POST", "/v1/tasks/video/"), Route("POST", "/v1/tasks/video/form")),
    id_at="task_id",
    poll=Route("GET", "/v1/tasks/{id}/status"),
    done=("completed",),
    failed=("failed", "cancelled"),
    cancel=Route("DELETE", "/v1/tasks/{id}"),
    result=Route("GET", "/v1/tasks/{id}/result"),
)
SDCPP: Completion = Polled(
    name="custom",
    submit=(Route("POST", "/sdcpp/v1/vid_gen"),),
    id_at="id",
    poll=Route("GET", "/sdcpp/v1/jobs/{id}"),
    done=("completed",),
    failed=("failed", "cancelled"),
    cancel=Route("POST", "/sdcpp/v1/jobs/{id}/cancel"),
)
NESTED: Completion = Polled(
    name="custom",
    submit=(Route("POST", "/start"),),
    id_at="data.tasks.0.id",
    poll=Route("GET", "/state?task={id}&verbose=1"),
    status_at="data.state",
    done=("2",),
    failed=("3",),
    progress_at="data.per_cent",
    result=Route("GET", "/files/{id}.mp4"),
)


def answer(tree: object, status: int = 200) -> Answer:
    return Answer(status=status, body=json.dumps(tree).encode())


def report(completion: Completion, server_id: str, said: Answer) -> Report:
    found = completion.read(server_id, [said])
    assert found is not None
    return found


def omni(status: str, **more: object) -> dict[str, object]:
    job = {"model": "wan", "prompt": "a cat", "id": OMNI, "object": "video", "status": status, "progress": 0}
    return {**job, "seconds": "4", "quality": "default", "error": None, "media_type": "video/mp4", **more}


def sglang(status: str, **more: object) -> dict[str, object]:
    job = {"id": SGLANG, "object": "video", "model": "sora-2", "status": status, "progress": 0, "seconds": "4"}
    return {**job, "quality": "standard", "url": None, "error": None, "file_path": None, **more}


def sdcpp(status: str, **more: object) -> dict[str, object]:
    job = {"id": "job_1", "kind": "vid_gen", "status": status, "created": 1, "started": None, "completed": None}
    return {**job, "queue_position": 0, "result": None, "error": None, **more}


@pytest.mark.parametrize(
    "path", ["/v1/videos", "/v1/videos/", "/v1/videos/abc/remix", "/v1/videos/edits", "/v1/videos/extensions"]
)
def test_what_starts_a_video_is_a_submit_and_no_bystander(path: str) -> None:
    assert VIDEOS.submits("POST", path)
    assert not VIDEOS.is_bystander("POST", path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/videos/sync"),
        ("POST", "/v1/videos/characters"),
        ("POST", "/v1/videos/abc"),
        ("POST", "/v1/videos/abc/def/remix"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/"),
        ("GET", "/"),
        ("GET", "/v1"),
        ("GET", "/v1/videosx"),
        ("GET", "/v1/models"),
        ("DELETE", "/v1/videos"),
        ("DELETE", "/v1/videos/abc/content"),
    ],
)
def test_other_requests_are_jobs_whose_end_is_their_response(method: str, path: str) -> None:
    assert not VIDEOS.submits(method, path)
    assert not VIDEOS.is_bystander(method, path)


@pytest.mark.parametrize(
    ("method", "path", "server_id"),
    [
        ("GET", "/v1/videos", None),
        ("HEAD", "/v1/videos/", None),
        ("GET", "/v1/videos/abc", "abc"),
        ("GET", "/v1/videos/abc/", "abc"),
        ("HEAD", "/v1/videos/abc/content", "abc"),
        ("GET", "/v1/videos/a%20b/anything/below", "a b"),
        ("GET", "/%761/videos/abc/content", "abc"),
        ("DELETE", "/v1/videos/abc", "abc"),
    ],
)
def test_who_reads_or_cancels_a_video_is_a_bystander_and_names_it(
    method: str, path: str, server_id: str | None
) -> None:
    assert VIDEOS.is_bystander(method, path)
    assert not VIDEOS.submits(method, path)
    assert VIDEOS.id_in(method, path) == server_id


def test_a_remix_names_the_video_that_it_goes_on_from() -> None:
    assert VIDEOS.id_in("POST", "/v1/videos/abc/remix") == "abc"
    assert VIDEOS.id_in("POST", "/v1/videos/edits") is None
    assert VIDEOS.id_in("POST", "/v1/videos/sync") is None


def test_an_escaped_path_cannot_pass_as_something_else() -> None:
    assert VIDEOS.submits("POST", "/v1/%76ideos")
    assert VIDEOS.submits("POST", "/v1%2Fvideos")


@pytest.mark.parametrize(
    ("said", "server_id"),
    [
        (answer(omni("queued")), OMNI),
        (answer(sglang("queued"), 201), SGLANG),
        (answer({"id": 17}, 202), "17"),
        (answer({"detail": "Model mismatch: x"}, 400), None),
        (answer(omni("failed"), 503), None),
        (answer({"id": None}), None),
        (answer({"id": ""}), None),
        (answer({"id": True}), None),
        (answer({"id": ["a"]}), None),
        (answer({"id": ".."}), None),
        (answer({"id": "a\nb"}), None),
        (answer({"id": "\ud800"}), None),
        (answer({"id": "x" * 513}), None),
        (answer({"status": "queued"}), None),
        (answer([]), None),
        (Answer(status=200, body=b"\x00\x00\x00\x18ftypmp42"), None),
        (Answer(status=204, body=b""), None),
    ],
)
def test_the_id_is_read_from_an_accepted_submit_only(said: Answer, server_id: str | None) -> None:
    assert VIDEOS.id_of(said) == server_id


@pytest.mark.parametrize(
    ("said", "stage", "detail"),
    [
        (answer(omni("queued")), Stage.RUNNING, "queued"),
        (answer(omni("in_progress")), Stage.RUNNING, "in_progress"),
        (answer(omni("completed")), Stage.DONE, "completed"),
        (answer(omni("failed", error={"code": 500, "message": "no VRAM"}), 500), Stage.FAILED, "no VRAM"),
        (answer(omni("failed", error={"code": 400, "message": "bad lora"}), 400), Stage.FAILED, "bad lora"),
        (answer(omni("failed")), Stage.FAILED, "failed"),
        (answer({"detail": "Video not found"}, 404), Stage.GONE, "Video not found"),
        (Answer(status=404, body=b"<html>"), Stage.GONE, ""),
        (Answer(status=410, body=b""), Stage.GONE, ""),
        (answer(omni("in_progress"), 404), Stage.GONE, ""),
        (answer(omni("in_progress"), 500), Stage.UNCLEAR, "answered 500: no status at `status`"),
        (answer({"status": "failed", "detail": "no worker"}, 503), Stage.UNCLEAR, "answered 503: no worker"),
        (answer({"id": "another", "status": "failed"}, 404), Stage.GONE, ""),
        (Answer(status=502, body=b"Bad Gateway"), Stage.UNCLEAR, "answered 502: no status at `status`"),
        (Answer(status=200, body=b"<html>"), Stage.UNCLEAR, "answered 200: no status at `status`"),
        (Answer(status=200, body=b""), Stage.UNCLEAR, "answered 200: no status at `status`"),
        (answer({"id": OMNI, "status": None}), Stage.UNCLEAR, "answered 200: no status at `status`"),
        (Answer(status=307, body=b""), Stage.UNCLEAR, "answered 307: no status at `status`"),
        (answer({"detail": "slow down"}, 429), Stage.UNCLEAR, "answered 429: slow down"),
    ],
)  # fmt: skip
def test_a_poll_of_vllm_omni_is_understood(said: Answer, stage: Stage, detail: str) -> None:
    found = report(VIDEOS, OMNI, said)
    assert (found.stage, found.detail) == (stage, detail)


@pytest.mark.parametrize(
    ("said", "stage", "detail"),
    [
        (answer(sglang("queued")), Stage.RUNNING, "queued"),
        (answer(sglang("completed", progress=100)), Stage.DONE, "completed"),
        (answer(sglang("failed", error={"message": "boom"})), Stage.FAILED, "boom"),
        (answer(sglang("deleted")), Stage.RUNNING, "deleted"),
        (answer({"detail": "Video not found"}, 404), Stage.GONE, "Video not found"),
    ],
)
def test_a_poll_of_sglang_is_understood(said: Answer, stage: Stage, detail: str) -> None:
    found = report(VIDEOS, SGLANG, said)
    assert (found.stage, found.detail) == (stage, detail)


@pytest.mark.parametrize(
    ("written", "progress"),
    [
        (42, 42),
        (0.5, 0.5),
        (-1, 0),
        (1e9, 100),
        (10**400, 100),
        (float("inf"), 100),
        (float("nan"), None),
        ("42", None),
        (True, None),
        (None, None),
    ],
    ids=lambda value: str(value)[:9],
)
def test_progress_is_per_cent_or_unknown(written: object, progress: float | None) -> None:
    assert report(VIDEOS, SGLANG, answer(sglang("in_progress", progress=written))).progress == progress


def test_nothing_is_reported_before_anything_was_asked() -> None:
    assert VIDEOS.read(OMNI, []) is None


def test_a_video_is_asked_for_cancelled_and_fetched_by_its_id() -> None:
    assert VIDEOS.polls("a b/c") == (Call(method="GET", path="/v1/videos/a%20b%2Fc"),)
    assert VIDEOS.cancels("a") == (Call(method="DELETE", path="/v1/videos/a"),)
    assert VIDEOS.keeps("a", [answer({})]) == ("/v1/videos/a", "/v1/videos/a/content")


def test_only_vllm_omni_frees_the_gpu_when_asked_to_cancel() -> None:
    assert VIDEOS.frees_on_cancel(OMNI)
    assert not VIDEOS.frees_on_cancel(SGLANG)
    assert LIGHTX2V.frees_on_cancel("any")
    assert not NESTED.frees_on_cancel("any")
    assert NESTED.cancels("any") == ()


def test_a_task_of_lightx2v_is_followed() -> None:
    assert LIGHTX2V.submits("POST", "/v1/tasks/video")
    assert LIGHTX2V.submits("POST", "/v1/tasks/video/form")
    assert not LIGHTX2V.submits("POST", "/v1/tasks/image")
    accepted = answer({"task_id": "t1", "task_status": "pending", "save_result_path": "x.mp4"})
    assert LIGHTX2V.id_of(accepted) == "t1"
    assert LIGHTX2V.polls("t1") == (Call(method="GET", path="/v1/tasks/t1/status"),)
    task = {"task_id": "t1", "start_time": "2026-11-30T10:00:00", "error": None}
    assert report(LIGHTX2V, "t1", answer({**task, "status": "pending"})).stage is Stage.RUNNING
    assert report(LIGHTX2V, "t1", answer({**task, "status": "processing"})).stage is Stage.RUNNING
    assert report(LIGHTX2V, "t1", answer({**task, "status": "completed"})).stage is Stage.DONE
    cancelled = report(LIGHTX2V, "t1", answer({**task, "status": "cancelled", "error": "Task cancelled by user"}))
    assert (cancelled.stage, cancelled.detail) == (Stage.FAILED, "Task cancelled by user")
    assert report(LIGHTX2V, "t1", answer({"detail": "Task not found"}, 404)).stage is Stage.GONE
    assert LIGHTX2V.cancels("t1") == (Call(method="DELETE", path="/v1/tasks/t1"),)
    assert LIGHTX2V.keeps("t1", []) == ("/v1/tasks/t1/status", "/v1/tasks/t1/result")
    for path in ("/v1/tasks", "/v1/tasks/t1", "/v1/tasks/t1/status", "/v1/tasks/t1/result", "/v1/tasks/queue/status"):
        assert LIGHTX2V.is_bystander("GET", path)
    assert LIGHTX2V.is_bystander("DELETE", "/v1/tasks/t1")
    assert not LIGHTX2V.is_bystander("GET", "/v1/files/t1")
    assert LIGHTX2V.id_in("GET", "/v1/tasks/t1/result") == LIGHTX2V.id_in("DELETE", "/v1/tasks/t1") == "t1"


def test_a_job_of_stable_diffusion_cpp_is_followed() -> None:
    assert SDCPP.id_of(answer({"id": "job_1", "status": "queued", "poll_url": "/sdcpp/v1/jobs/job_1"}, 202)) == "job_1"
    assert SDCPP.id_of(answer({"error": "job queue is full"}, 429)) is None
    assert report(SDCPP, "job_1", answer(sdcpp("queued"))).stage is Stage.RUNNING
    assert report(SDCPP, "job_1", answer(sdcpp("generating"))).stage is Stage.RUNNING
    assert report(SDCPP, "job_1", answer(sdcpp("completed", result={"b64_json": "AAAA"}))).stage is Stage.DONE
    wrong = {"code": "generation_failed", "message": "out of memory"}
    failed = report(SDCPP, "job_1", answer(sdcpp("failed", error=wrong)))
    assert (failed.stage, failed.detail) == (Stage.FAILED, "out of memory")
    expired = report(SDCPP, "job_1", answer({"error": "job expired"}, 410))
    assert (expired.stage, expired.detail) == (Stage.GONE, "job expired")
    assert SDCPP.cancels("job_1") == (Call(method="POST", path="/sdcpp/v1/jobs/job_1/cancel"),)
    assert SDCPP.keeps("job_1", []) == ("/sdcpp/v1/jobs/job_1",)
    assert SDCPP.is_bystander("POST", "/sdcpp/v1/jobs/job_1/cancel")
    assert SDCPP.id_in("POST", "/sdcpp/v1/jobs/job_1/cancel") == "job_1"


def test_values_are_found_inside_lists_and_compared_as_text() -> None:
    assert NESTED.id_of(answer({"data": {"tasks": [{"id": "a"}]}})) == "a"
    assert NESTED.id_of(answer({"data": {"tasks": []}})) is None
    assert NESTED.id_of(answer({"data": {"tasks": {"0": {"id": "a"}}}})) == "a"
    assert report(NESTED, "a", answer({"data": {"state": 1, "per_cent": 7}})) == Report(
        stage=Stage.RUNNING, progress=7, detail="1"
    )
    assert report(NESTED, "a", answer({"data": {"state": 2}})).stage is Stage.DONE
    assert report(NESTED, "a", answer({"data": {"state": "3"}})).stage is Stage.FAILED


def test_an_id_may_stand_in_the_query_or_within_a_segment() -> None:
    assert NESTED.polls("a&b") == (Call(method="GET", path="/state?task=a%26b&verbose=1"),)
    assert NESTED.is_bystander("GET", "/state")
    assert NESTED.id_in("GET", "/state") is None
    assert NESTED.is_bystander("GET", "/files/a.mp4")
    assert NESTED.id_in("GET", "/files/a.mp4") == "a"
    assert not NESTED.is_bystander("GET", "/files/a.png")
    assert not NESTED.is_bystander("GET", "/")
    assert NESTED.keeps("a", []) == ("/state?task=a&verbose=1", "/files/a.mp4")


def test_a_submit_is_no_bystander_even_where_a_poll_would_fit() -> None:
    reading = Polled(
        name="custom",
        submit=(Route("GET", "/jobs/new"),),
        id_at="id",
        poll=Route("GET", "/jobs/{id}"),
        done=("done",),
        failed=("failed",),
    )
    assert reading.submits("GET", "/jobs/new")
    assert not reading.is_bystander("GET", "/jobs/new")
    assert reading.id_in("GET", "/jobs/new") is None
    assert reading.is_bystander("GET", "/jobs/1")


def test_a_long_or_wild_reason_is_made_fit_to_be_shown() -> None:
    wild = report(SDCPP, "job_1", answer(sdcpp("failed", error="a\x1b[31m\n\n b\ud800" + "x" * 9999)))
    assert wild.detail.startswith("a [31m b x")
    assert len(wild.detail) <= 500
    assert wild.detail.isprintable()


def test_what_is_told_of_a_job_that_cannot_be_asked_for_any_more_reads_as_failed() -> None:
    told = VIDEOS.epitaph(SGLANG, json.dumps(sglang("queued", progress=3)).encode(), "the server ended")
    assert told is not None
    error = {"code": "not_finished", "message": "the server ended"}
    assert json.loads(told) == sglang("failed", progress=3, error=error)
    again = report(VIDEOS, SGLANG, Answer(status=200, body=told))
    assert (again.stage, again.detail) == (Stage.FAILED, "the server ended")


@pytest.mark.parametrize("last", [{"data": {"state": 1, "tasks": []}}, {"data": [7]}, {}, {"data": None, "id": "a"}])
def test_the_failed_status_is_put_where_it_is_read(last: object) -> None:
    told = NESTED.epitaph("a", json.dumps(last).encode(), "gone")
    assert told is not None
    again = report(NESTED, "a", Answer(status=200, body=told))
    assert (again.stage, again.detail) == (Stage.FAILED, "gone")


def test_a_status_inside_a_list_is_put_there() -> None:
    listed = Polled(
        name="custom",
        submit=(Route("POST", "/a"),),
        id_at="id",
        poll=Route("GET", "/a/{id}"),
        status_at="tasks.1.status",
        done=("done",),
        failed=("failed", "cancelled"),
    )
    told = listed.epitaph("a", b'{"tasks": [{"status": 1}, {"status": 2, "x": 3}, 4]}', "gone")
    assert told is not None
    assert json.loads(told)["tasks"] == [{"status": 1}, {"status": "failed", "x": 3}, 4]


def test_nothing_is_told_from_what_is_no_job() -> None:
    assert VIDEOS.epitaph("a", b"<html>", "gone") is None
    assert VIDEOS.epitaph("a", b"[]", "gone") is None


def test_only_the_synchronous_video_goes_on_without_its_client() -> None:
    assert VIDEOS.abandons("POST", "/v1/videos/sync")
    assert not VIDEOS.abandons("GET", "/v1/videos/sync")
    assert not VIDEOS.abandons("POST", "/v1/videos")
    assert not LIGHTX2V.abandons("POST", "/v1/videos/sync")


def test_a_kept_answer_is_found_under_the_spellings_that_mean_the_same() -> None:
    rule = PRESETS["openai-videos"](60, 60)
    for same in ("", "/", "?", "?variant=video", "/?x=1"):
        assert rule.kept_under(f"/v1/videos/v-1/content{same}") == "/v1/videos/v-1/content"
    assert rule.kept_under("/v1/videos/v-1/content?variant=thumbnail") == "/v1/videos/v-1/content?variant=thumbnail"
