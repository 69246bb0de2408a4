from __future__ import annotations

from collections.abc import Callable

import pytest

from swaplane.gateway.routes import ROUTES, MethodNotAllowed, Route, match, split_upstream


@pytest.mark.parametrize(
    ("method", "path", "kind", "upstream_path"),
    [
        ("POST", "/v1/chat/completions", "json", "/v1/chat/completions"),
        ("POST", "/v1/messages/count_tokens", "json", "/v1/messages/count_tokens"),
        ("POST", "/infill", "json", "/infill"),
        ("POST", "/v1/videos", "json", "/v1/videos"),
        ("POST", "/v/chat/completions", "json", "/chat/completions"),
        ("POST", "/v/messages/count_tokens", "json", "/messages/count_tokens"),
        ("POST", "/audioapi/v1/tasks/run", "json", "/v1/tasks/run"),
        ("POST", "/v1/audio/transcriptions", "multipart", "/v1/audio/transcriptions"),
        ("POST", "/v1/images/edits", "multipart", "/v1/images/edits"),
        ("POST", "/v1/audio/voices", "json", "/v1/audio/voices"),
        ("GET", "/v1/audio/voices", "query", "/v1/audio/voices"),
        ("HEAD", "/props", "query", "/props"),
        ("GET", "/sdapi/v1/loras", "query", "/sdapi/v1/loras"),
    ],
)
def test_model_routes(method: str, path: str, kind: str, upstream_path: str) -> None:
    route = match(method, path)
    assert isinstance(route, Route)
    assert (route.kind, route.upstream_path) == (kind, upstream_path)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/chat/completions", ("POST",)),
        ("post", "/v1/chat/completions", ("POST",)),
        ("POST", "/props", ("GET", "HEAD")),
        ("DELETE", "/v1/audio/voices", ("GET", "HEAD", "POST")),
    ],
)
def test_other_methods_are_told_which_are_right(method: str, path: str, allow: tuple[str, ...]) -> None:
    assert match(method, path) == MethodNotAllowed(allow=allow)


@pytest.mark.parametrize(
    "path",
    ["", "/", "/v1/models", "/V1/chat/completions", "/v1/chat/completions/", "/v1/videos/x", "/chat/completions"],
)
def test_other_paths_are_no_model_routes(path: str) -> None:
    assert match("POST", path) is None


def test_no_path_at_a_model_server_keeps_a_prefix_of_ours() -> None:
    paths = [route.upstream_path for by_method in ROUTES.values() for route in by_method.values()]
    assert len(ROUTES) == 34
    assert not [path for path in paths if path.startswith(("/v/", "/audioapi/")) or not path.startswith("/")]


def known(*names: str) -> Callable[[str], str | None]:
    return lambda name: f"<{name}>" if name in names else None


@pytest.mark.parametrize(
    ("raw_path", "name", "rest"),
    [
        (b"/upstream/m", "m", b""),
        (b"/upstream/m/", "m", b"/"),
        (b"/upstream/m/a/b", "m", b"/a/b"),
        (b"/upstream/m//a/", "m", b"//a/"),
        (b"/upstream/m/x%2Fy%20z", "m", b"/x%2Fy%20z"),
        (b"/upstream/author/model/a", "author/model", b"/a"),
        (b"/upstream/author%2Fmodel/a%2fb", "author/model", b"/a%2fb"),
        (b"/upstream/author%2fmodel", "author/model", b""),
        (b"/upstream/author/other/a", "author", b"/other/a"),
        (b"/upstream/author/model", "author/model", b""),
        (b"/upstream/caf%C3%A9/x", "café", b"/x"),
        (b"/upstream/caf\xc3\xa9/x", "café", b"/x"),
        (b"/upstream/m/%E9%ZZ", "m", b"/%E9%ZZ"),
        (b"/upstream/m/" + b"/" * 60_000, "m", b"/" + b"/" * 60_000),
        (b"/upstream/m/" + b"x" * 60_000, "m", b"/" + b"x" * 60_000),
    ],
)
def test_upstream_paths(raw_path: bytes, name: str, rest: bytes) -> None:
    assert split_upstream(raw_path, known("m", "author", "author/model", "café")) == (f"<{name}>", rest, name)


@pytest.mark.parametrize(
    "raw_path",
    [
        b"/upstream", b"/upstream/", b"/upstream//", b"/upstream//m", b"/upstream/M", b"/upstream/mm/m", b"/other/m",
        b"/upstream/" + b"x" * 60_000,
    ],
)  # fmt: skip
def test_upstream_paths_without_a_known_model(raw_path: bytes) -> None:
    assert split_upstream(raw_path, known("m")) is None


def test_a_path_of_many_slashes_is_not_looked_up_for_ever() -> None:
    asked: list[str] = []
    split_upstream(b"/upstream" + b"/a" * 100_000, lambda name: asked.append(name))
    assert 0 < len(asked) <= 1024
    assert len(asked[0]) <= 1024
