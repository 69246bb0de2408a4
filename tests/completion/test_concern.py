"""Whose jobs a request is about that takes no place."""

from __future__ import annotations

import json

import pytest

from swaplane.completion.comfyui import ComfyUi
from swaplane.completion.paths import Route
from swaplane.completion.polled import Polled
from swaplane.completion.presets import openai_videos
from swaplane.completion.rule import Concern, Reach

COMFY, VIDEOS = ComfyUi(), openai_videos(60, 60)
NOBODY, RESULT, RUNNING, EVERYBODY = (
    Concern(reach=each) for each in (Reach.NOBODY, Reach.RESULT, Reach.RUNNING, Reach.EVERYBODY)
)


def named(*ids: str, reach: Reach = Reach.NAMED) -> Concern:
    return Concern(reach=reach, ids=ids)


@pytest.mark.parametrize(
    ("method", "target", "concern"),
    [
        ("GET", "/v1/videos/v-1", named("v-1")),
        ("HEAD", "/v1/videos/v-1/content?variant=thumbnail", named("v-1")),
        ("GET", "/v1/videos/v%201/anything/below", named("v 1")),
        ("DELETE", "/v1/videos/v-1/", named("v-1")),
        ("GET", "/v1/videos?limit=3", EVERYBODY),
        ("GET", "/v1/videos/", EVERYBODY),
    ],
)
def test_what_a_request_about_videos_concerns(method: str, target: str, concern: Concern) -> None:
    assert VIDEOS.concern(method, target, b"") == concern


@pytest.mark.parametrize(
    ("target", "concern"),
    [
        ("/status?job=j-1&full=1", named("j-1")),
        ("/status?job=j-1&job=j-2", named("j-1", "j-2")),
        ("/status?full=1", EVERYBODY),
        ("/status", EVERYBODY),
    ],
)
def test_an_id_may_stand_in_the_query(target: str, concern: Concern) -> None:
    polled = Polled(
        name="custom",
        submit=(Route("POST", "/make"),),
        id_at="id",
        poll=Route("GET", "/status?job={id}&full=1"),
        done=("ok",),
        failed=("bad",),
    )
    assert polled.is_bystander("GET", "/status")
    assert polled.concern("GET", target, b"") == concern


@pytest.mark.parametrize("prefix", ["", "/api"])
@pytest.mark.parametrize(
    ("target", "concern"),
    [
        ("/history/p-1", named("p-1")),
        ("/jobs/p-1", named("p-1")),
        ("/history?max_items=64", EVERYBODY),
        ("/history/", EVERYBODY),
        ("/queue", EVERYBODY),
        ("/jobs", EVERYBODY),
        ("/internal/logs/raw", EVERYBODY),
        ("/prompt", NOBODY),
        ("/object_info", NOBODY),
        ("/view?filename=a.png&type=output", RESULT),
        ("/view?filename=a.png&type=temp", RESULT),
        ("/view?filename=a.png", RESULT),
        ("/view?filename=a.png&type=input&subfolder=x", NOBODY),
        ("/view?filename=a.png&type=input&type=output", RESULT),
        ("/view?filename=a.png&filename=b.png&type=input", RESULT),
        ("/view?filename=a.png%20[output]&type=input", RESULT),
        ("/view?type=input", RESULT),
    ],
)
def test_what_a_look_at_comfyui_concerns(prefix: str, target: str, concern: Concern) -> None:
    for method in ("GET", "HEAD"):
        assert COMFY.is_bystander(method, prefix + target.partition("?")[0])
        assert COMFY.concern(method, prefix + target, b"") == concern


@pytest.mark.parametrize(("target", "concern"), [("/api/assets?tags=output", EVERYBODY), ("/assets/index.js", NOBODY)])
def test_the_pages_own_files_are_nobodys(target: str, concern: Concern) -> None:
    assert COMFY.concern("GET", target, b"") == concern


@pytest.mark.parametrize(
    ("path", "body", "concern"),
    [
        ("/interrupt", {"prompt_id": "p-1"}, named("p-1", reach=Reach.RUNNING)),
        ("/interrupt", {"prompt_id": ""}, RUNNING),
        ("/interrupt", {}, RUNNING),
        ("/interrupt", {"delete": ["p-1"]}, RUNNING),
        ("/interrupt", ["p-1"], RUNNING),
        ("/queue", {"delete": ["p-1", "p-2"]}, named("p-1", "p-2")),
        ("/queue", {"delete": ["p-1"], "clear": True}, RUNNING),
        ("/queue", {"delete": ["p-1"], "clear": False}, named("p-1")),
        ("/queue", {"delete": ["p-1", 2]}, RUNNING),
        ("/queue", {"delete": "p-1"}, RUNNING),
        ("/queue", {"delete": []}, RUNNING),
        ("/queue", {"clear": True}, RUNNING),
        ("/history", {"delete": ["p-1"]}, named("p-1")),
        ("/history", {"clear": True}, EVERYBODY),
        ("/history", {}, EVERYBODY),
        ("/free", {"unload_models": True}, RUNNING),
        ("/jobs/cancel", {"delete": ["p-1"]}, RUNNING),
        ("/jobs/p-1/cancel", {}, named("p-1")),
    ],
)
def test_what_a_control_of_comfyui_concerns(path: str, body: object, concern: Concern) -> None:
    for prefix in ("", "/api"):
        assert COMFY.is_bystander("POST", prefix + path)
        assert COMFY.concern("POST", prefix + path, json.dumps(body).encode()) == concern


@pytest.mark.parametrize("body", [None, b"", b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_cannot_be_read_is_about_all_that_it_could_be_about(body: bytes | None) -> None:
    assert COMFY.concern("POST", "/queue", body) == RUNNING
    assert COMFY.concern("POST", "/interrupt", body) == RUNNING
    assert COMFY.concern("POST", "/history", body) == EVERYBODY


#: What a server that cuts, joins, decodes or resolves may take for a path about the jobs of all.
DISGUISES = [
    "//{0}",
    "/{0}//",
    "/./{0}",
    "/x/../{0}",
    "/{0}/.",
    "/{0}/x/..",
    "/%2e/{0}",
    "/x/%2E%2e/{0}",
    "/x%2f..%2f{0}",
    "/x/..%5c{0}",
    "/%2F{0}",
    "/{0}%2f",
    "\\{0}",
    "/%5C{0}",
    "/{0};x",
    "/{0};a.json",
    "/{0}%3bx",
    "/{0}%3Flimit=3",
    "/{0}%23",
    "/{0}%23.json",
    "/{0}%00",
    "/{0}%0a",
    "/%252e%252e/{0}",
    "/x%252f..%252f{0}",
    "/x/%25252e%25252e/{0}",
    "/x/%2525252e%2525252e/{0}",
    "/{0}%252f",
    "/x/%c0%ae%c0%ae/{0}",
]


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_path_that_servers_read_in_two_ways_is_equivocal(disguise: str) -> None:
    assert VIDEOS.is_equivocal(disguise.format("v1/videos"))
    assert VIDEOS.is_equivocal(disguise.format("v1/videos/v-1"))
    for path in ("queue", "api/history", "interrupt"):
        assert COMFY.is_equivocal(disguise.format(path))


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/videos",
        "/v1/videos/",
        "/v1/videos/v-1/content",
        "/v1/%76ideos",
        "/a%20b",
        "/é",
        "/.index",
        "/a..b/...",
    ],
)
def test_a_path_that_all_read_in_one_way_is_not(path: str) -> None:
    assert not VIDEOS.is_equivocal(path)
    assert not COMFY.is_equivocal(path)


@pytest.mark.parametrize("prefix", ["", "/api"])
@pytest.mark.parametrize(
    ("path", "is_equivocal"),
    [
        ("/userdata/workflows%2FMy%20first.json", False),
        ("/userdata/workflows%2F100%25%20of%20%233%3B%20what%3F.json", False),
        ("/userdata/a%2Fb/move/c%2Fd", False),
        ("/experiment/models/preview/loras/0/sub%2Fa.safetensors", False),
        ("/extensions/My%20Pack/js/a%231.js", False),
        ("/userdata/..%2Fqueue", True),
        ("/userdata/%252e%252e/queue", True),
        ("/userdata/x%5C..%5C..%5Cqueue", True),
        ("/userdata%2F..%2Fqueue", True),
        ("/userdata;x/queue", True),
    ],
)
def test_files_of_comfyui_are_called_as_people_like(prefix: str, path: str, is_equivocal: bool) -> None:
    assert COMFY.is_equivocal(prefix + path) is is_equivocal


def test_a_path_of_endless_escapes_is_read_at_once() -> None:
    assert VIDEOS.is_equivocal("/%" + "25" * 30_000 + "2e")


def test_a_server_that_does_not_care_for_the_case_is_allowed_for() -> None:
    assert VIDEOS.concern("GET", "/V1/Videos/v-A/Content", b"") == named("v-A")
    assert VIDEOS.is_bystander("GET", "/v1/VIDEOS")
    assert VIDEOS.concern("GET", "/v1/VIDEOS", b"") == EVERYBODY
    assert VIDEOS.submits("POST", "/V1/videos/v-A/REMIX")
    assert VIDEOS.id_in("POST", "/V1/videos/v-A/REMIX") == "v-A"


@pytest.mark.parametrize("path", ["/history/p-1/outputs", "/jobs/p-1/x", "/queue/x", "/api/queue/x"])
def test_whatever_is_below_the_lists_is_about_all(path: str) -> None:
    assert COMFY.concern("GET", path, b"") == EVERYBODY
