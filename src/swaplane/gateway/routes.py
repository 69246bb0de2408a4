"""The routes that lead to a model, as data, and the split of `/upstream/...` paths.

Decides from method and path alone. Does not find the model in a request and does not know the management
routes. Called by the app for every request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeVar
from urllib.parse import unquote_to_bytes

Kind = Literal["json", "multipart", "query"]

UPSTREAM = b"/upstream/"  #: what the paths begin with that name their model themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A path whose requests run as jobs of the model they name."""

    kind: Kind  #: what its clients send; how the model is found depends on the request's own Content-Type
    upstream_path: str  #: the path at the model server


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodNotAllowed:
    """The path exists, for other methods."""

    allow: tuple[str, ...]  #: those methods, in alphabetical order


_POST_JSON = (
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/reranking",
    "/rerank",
    "/v1/rerank",
    "/v1/reranking",
    "/infill",
    "/completion",
    "/v1/audio/speech",
    "/v1/audio/voices",
    "/v1/images/generations",
    "/v1/videos",
    "/v1/videos/sync",
    "/v1/videos/edits",
    "/v1/videos/extensions",
    "/sdapi/v1/txt2img",
    "/sdapi/v1/img2img",
    "/audioapi/v1/tasks/run",
    "/v/chat/completions",
    "/v/responses",
    "/v/completions",
    "/v/messages",
    "/v/messages/count_tokens",
    "/v/embeddings",
    "/v/rerank",
    "/v/reranking",
)
_POST_MULTIPART = ("/v1/audio/transcriptions", "/v1/images/edits")
_GET_QUERY = ("/v1/audio/voices", "/sdapi/v1/loras", "/props")

# Prefixes that only tell routes apart here; model servers do not know them.
_STRIPPED = ("/v/", "/audioapi/")


def _route(kind: Kind, path: str) -> Route:
    for prefix in _STRIPPED:
        if path.startswith(prefix):
            return Route(kind=kind, upstream_path=path[len(prefix) - 1 :])
    return Route(kind=kind, upstream_path=path)


def _table() -> dict[str, dict[str, Route]]:
    by_path: dict[str, dict[str, Route]] = {}
    rows: tuple[tuple[tuple[str, ...], Kind, tuple[str, ...]], ...] = (
        (("POST",), "json", _POST_JSON),
        (("POST",), "multipart", _POST_MULTIPART),
        (("GET", "HEAD"), "query", _GET_QUERY),
    )
    for methods, kind, paths in rows:
        for path in paths:
            by_path.setdefault(path, {}).update(dict.fromkeys(methods, _route(kind, path)))
    return by_path


ROUTES = MappingProxyType(_table())  #: path -> method -> route
_REFUSALS = {path: MethodNotAllowed(allow=tuple(sorted(by_method))) for path, by_method in ROUTES.items()}


def match(method: str, path: str) -> Route | MethodNotAllowed | None:
    """The route of a decoded path (without query); None when no such path leads to a model."""
    by_method = ROUTES.get(path)
    if by_method is None:
        return None
    return by_method.get(method) or _REFUSALS[path]


Target = TypeVar("Target")

_LONGEST_NAME = 1024  # bytes; bounds the work for a path of thousands of slashes


def split_upstream(raw_path: bytes, resolve: Callable[[str], Target | None]) -> tuple[Target, bytes, str] | None:
    """`/upstream/{model}/{rest}` as (what `resolve` gives for the model, rest, name as written but decoded).

    Names may contain slashes, plain or as `%2F`: the longest name that resolves wins. `rest` keeps its
    escapes byte for byte; it begins with a slash, or is empty when nothing follows the name. None when the
    path is not of this form or no name resolves.
    """
    if not raw_path.startswith(UPSTREAM):
        return None
    path = raw_path[len(UPSTREAM) :]
    end = len(path) if len(path) <= 3 * _LONGEST_NAME else path.rfind(b"/", 0, 3 * _LONGEST_NAME)
    while end > 0:
        # A name of at most a kilobyte can take three times that in escapes.
        name = unquote_to_bytes(path[:end])
        if len(name) <= _LONGEST_NAME:
            text = name.decode("utf-8", "replace")
            target = resolve(text)
            if target is not None:
                return target, path[end:], text
        end = path.rfind(b"/", 0, end)
    return None
