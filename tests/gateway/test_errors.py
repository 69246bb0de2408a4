from __future__ import annotations

import json

import pytest

from swaplane.gateway.errors import (
    BodyNotStored,
    DuplicateModel,
    NoModel,
    RequestRefused,
    UnknownModel,
    error_response,
)


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, "invalid_request_error", "bad_request"),
        (401, "authentication_error", "unauthorized"),
        (403, "authentication_error", "forbidden"),
        (404, "invalid_request_error", "not_found"),
        (409, "invalid_request_error", "conflict"),
        (418, "invalid_request_error", "invalid_request"),
        (429, "rate_limit_error", "rate_limit_exceeded"),
        (500, "server_error", "internal_error"),
        (502, "server_error", "bad_gateway"),
        (503, "server_error", "service_unavailable"),
        (504, "server_error", "gateway_timeout"),
        (507, "server_error", "internal_error"),
    ],
)
def test_json_is_the_default_and_the_status_decides_type_and_code(status: int, kind: str, code: str) -> None:
    headers, body = error_response(status, "went wrong")
    expected = f'{{"src":"llama-swap","error":{{"message":"went wrong","type":"{kind}","param":null,"code":"{code}"}}}}'
    assert body == expected.encode()
    assert headers == [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))]


def test_own_code_and_extra_headers() -> None:
    headers, body = error_response(429, "full", code="concurrency_limit", extra=[(b"Retry-After", b"1")])
    assert json.loads(body)["error"]["code"] == "concurrency_limit"
    assert headers[-1] == (b"Retry-After", b"1")


def test_json_escapes_as_go_does_and_keeps_other_characters() -> None:
    _, body = error_response(400, '<a> & "ü"\n\u2028')
    assert b'"message":"\\u003ca\\u003e \\u0026 \\"\xc3\xbc\\"\\n\\u2028"' in body
    assert json.loads(body)["error"]["message"] == '<a> & "ü"\n\u2028'


@pytest.mark.parametrize(
    ("accept", "content_type", "body"),
    [
        (b"text/plain", b"text/plain", "llama-swap: a<b & 'ü'"),
        (b"text/html, text/plain;q=0.5", b"text/plain", "llama-swap: a<b & 'ü'"),
        (
            b"text/html,application/xhtml+xml",
            b"text/html",
            "<html><body><h1>llama-swap</h1><p>a&lt;b &amp; &#39;ü&#39;</p></body></html>",
        ),
    ],
)
def test_accept_chooses_text_or_html(accept: bytes, content_type: bytes, body: str) -> None:
    headers, got = error_response(404, "a<b & 'ü'", accept=accept)
    assert got == body.encode()
    assert dict(headers) == {b"Content-Type": content_type, b"Content-Length": b"%d" % len(got)}


def test_text_that_cannot_be_encoded_is_still_sent() -> None:
    _, body = error_response(400, "half a pair: \ud800")
    assert json.loads(body)["error"]["message"] == "half a pair: ?"


def test_refusals_know_their_answer() -> None:
    headers, body = NoModel().response()
    assert (b"Content-Type", b"application/json") in headers
    assert json.loads(body)["error"] == {
        "message": "no model id could be identified",
        "type": "invalid_request_error",
        "param": None,
        "code": "not_found",
    }
    _, body = DuplicateModel("twice").response(b"text/plain")
    assert body == b"llama-swap: twice"
    assert json.loads(BodyNotStored("full").response()[1])["error"]["code"] == "insufficient_storage"
    assert issubclass(UnknownModel, RequestRefused)
    assert str(NoModel("say which")) == NoModel("say which").message == "no model id could be identified; say which"


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("smolm2", "; did you mean `smollm2`?"),
        ("SMOLLM2", "; did you mean `smollm2`?"),
        ("llama-3-8b", "; did you mean `Llama-3.1-8B` or `llama-3-70b`?"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_an_unknown_model_is_told_the_nearest_names(name: str, end: str) -> None:
    error = UnknownModel(name, ["smollm2", "Llama-3.1-8B", "llama-3-70b", "minilm"])
    assert error.status == 404
    assert error.message == f"no router for requested model `{name}`{end}"


def test_a_long_unknown_name_is_cut_and_not_compared() -> None:
    error = UnknownModel("x" * 5000, ["x" * 5000])
    assert error.message == f"no router for requested model `{'x' * 100}...`"
    assert error.name == "x" * 5000
