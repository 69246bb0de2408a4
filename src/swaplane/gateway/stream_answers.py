"""Answers as server-sent events, where a stream was promised before the answer was known.

Decides how an error, or an answer that is no stream, is told inside a stream that has begun, in the words of the
route it was asked of. Knows no clients, jobs or models. Called by `shown_wait`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from swaplane.gateway.errors import error_json, go_json

Dialect = Literal["openai", "responses", "anthropic"]

#: path at the model's server -> how its stream tells an error; streamed answers of other paths are no events
DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        "/v1/chat/completions": "openai",
        "/chat/completions": "openai",
        "/v1/completions": "openai",
        "/completions": "openai",
        "/completion": "openai",
        "/infill": "openai",
        "/v1/images/generations": "openai",
        "/v1/images/edits": "openai",
        "/v1/audio/transcriptions": "openai",
        "/v1/responses": "responses",
        "/responses": "responses",
        "/v1/messages": "anthropic",
        "/messages": "anthropic",
    }
)

_SHOWN_CHARS = 2000  # of an answer that is not understood
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}  # others: api_error


def error_event(dialect: Dialect, status: int, body: bytes, *, retry_after_s: int | None = None) -> bytes:
    """One event that tells an error answer, its blank line included.

    `body` is that of the answer, usually JSON: its own words, type and code are kept. The status cannot be the
    response's any more, so it is told inside, and so is when trying again makes sense.
    """
    said = _read(body)
    error = _error_of(said, status, body)
    if dialect == "anthropic":
        own = said.get("type") == "error" and isinstance(error["type"], str)
        kind = error["type"] if own else _ANTHROPIC_TYPES.get(status, "api_error")
        told: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": error["message"]}}
        return _event(told, name="error")
    error["status"] = status
    if retry_after_s is not None:
        error["retry_after_s"] = retry_after_s
    if dialect == "responses":
        # Clients look for the words in either of two places: beside the type, and in `error`.
        flat = {"type": "error", "code": error["code"], "message": error["message"], "param": error["param"]}
        return _event({**flat, "sequence_number": 0, "error": error}, name="error")
    return _event({"error": error})


def whole_answer(dialect: Dialect, body: bytes) -> bytes:
    """An answer that is no stream as one event with the same text, and the end that the dialect's readers expect.

    Raises UnicodeDecodeError for what is no text.
    """
    body.decode("utf-8")
    lines = [b"data: %b\n" % line for line in body.strip().splitlines()]
    return b"".join(lines) + b"\n" + (b"data: [DONE]\n\n" if dialect == "openai" else b"")


def _event(data: Mapping[str, Any], *, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {go_json(data)}\n\n".encode("utf-8", "replace")


def _read(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _error_of(said: Mapping[str, Any], status: int, body: bytes) -> dict[str, Any]:
    """The error object of an answer; where it has none, one with the answer's own text."""
    found = said.get("error")
    own: Mapping[str, Any] = found if isinstance(found, dict) else {}
    places = (own.get("message"), found, said.get("message"), said.get("detail"))
    words = [each for each in places if isinstance(each, str) and each]
    text = body.decode("utf-8", "replace").strip()[:_SHOWN_CHARS]
    message = words[0] if words else text or f"the model's server answered {status} without a word"
    default: dict[str, Any] = json.loads(error_json(status, message))["error"]
    return {**default, **own, "message": message}
