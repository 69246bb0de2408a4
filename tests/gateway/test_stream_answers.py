from __future__ import annotations

import json
from typing import Any

import pytest

from swaplane.gateway.errors import error_json
from swaplane.gateway.stream_answers import DIALECTS, Dialect, error_event, whole_answer

ENVELOPE = error_json(410, "cancelled", code="cancelled").encode()


def data_of(event: bytes, name: str = "") -> dict[str, Any]:
    assert event.endswith(b"\n\n")
    lines = event.decode().removesuffix("\n\n").split("\n")
    if name:
        assert lines.pop(0) == f"event: {name}"
    (line,) = lines
    data: dict[str, Any] = json.loads(line.removeprefix("data: "))
    return data


def test_each_route_has_the_dialect_of_its_clients() -> None:
    assert DIALECTS["/v1/chat/completions"] == DIALECTS["/chat/completions"] == "openai"
    assert DIALECTS["/v1/responses"] == "responses"
    assert DIALECTS["/v1/messages"] == "anthropic"
    assert "/v1/embeddings" not in DIALECTS
    assert "/v1/audio/speech" not in DIALECTS, "what it streams is sound"


def test_an_error_for_chats_keeps_its_words_and_tells_its_status() -> None:
    assert data_of(error_event("openai", 410, ENVELOPE)) == {
        "error": {
            "message": "cancelled",
            "type": "invalid_request_error",
            "param": None,
            "code": "cancelled",
            "status": 410,
        }
    }


def test_when_to_come_again_is_told_inside() -> None:
    error = data_of(error_event("openai", 429, error_json(429, "full").encode(), retry_after_s=7))["error"]
    assert (error["status"], error["retry_after_s"], error["type"]) == (429, 7, "rate_limit_error")


def test_an_error_for_responses_stands_where_either_kind_of_client_looks() -> None:
    data = data_of(error_event("responses", 410, ENVELOPE), "error")
    assert (data["type"], data["code"], data["message"], data["param"]) == ("error", "cancelled", "cancelled", None)
    assert data["sequence_number"] == 0
    assert data["error"]["message"] == "cancelled"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (404, "not_found_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_an_error_for_messages_has_the_kind_of_its_status(status: int, kind: str) -> None:
    event = error_event("anthropic", status, error_json(status, "no").encode())
    assert data_of(event, "error") == {"type": "error", "error": {"type": kind, "message": "no"}}


def test_an_error_that_is_in_their_form_already_keeps_its_kind() -> None:
    body = b'{"type":"error","error":{"type":"billing_error","message":"no"}}'
    assert data_of(error_event("anthropic", 400, body), "error")["error"]["type"] == "billing_error"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"m","code":7}}', "m"),
        (b'{"error":"m"}', "m"),
        (b'{"message":"m"}', "m"),
        (b'{"detail":"m"}', "m"),
        (b'{"detail":[{"loc":"x"}]}', '{"detail":[{"loc":"x"}]}'),
        (b'{"error":{"message":5}}', '{"error":{"message":5}}'),
        (b'{"error":{"message":""}}', '{"error":{"message":""}}'),
        (b"[1]", "[1]"),
        (b"plain\nwords\xff", "plain\nwords�"),
        (b"{" * 100_000, "{" * 2000),
        (b"[" * 100_000, "[" * 2000),
        (b"", "the model's server answered 500 without a word"),
        (b" \n", "the model's server answered 500 without a word"),
    ],
)
@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic"])
def test_whatever_an_error_looks_like_it_is_one_event(dialect: Dialect, body: bytes, message: str) -> None:
    event = error_event(dialect, 500, body)
    error = data_of(event, "" if dialect == "openai" else "error")["error"]
    assert error["message"] == message


def test_an_answer_that_is_no_stream_is_one_event_line_by_line() -> None:
    body = b'{\n "a": 1,\r\n "b": 2\r}\n'
    assert whole_answer("anthropic", body) == b'data: {\ndata:  "a": 1,\ndata:  "b": 2\ndata: }\n\n'
    assert whole_answer("openai", b"{}") == b"data: {}\n\ndata: [DONE]\n\n"
    with pytest.raises(UnicodeDecodeError):
        whole_answer("openai", b"\xff\xd8")
