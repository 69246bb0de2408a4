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
