"""What reaches a model server through the model routes, and what comes back: byte for byte."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from swaplane.gateway.routes import ROUTES
from tests.support.gateway import GatewayProcess, stub_models
from tests.support.scene import Answer, Call, Scene, ask_raw, assert_clean
from tests.support.stub_client import stub_cmd

OURS = ("X-LlamaSwap-Priority", "X-LlamaSwap-Member", "X-LlamaSwap-Max-Wait", "X-LlamaSwap-Label")
MODELS = ["mA", "renamed", "hidden"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    config = stub_models("mA", extra='aliases: [gpt-4o, "org/mA:q4"]')
    config += f"""\
  renamed:
    cmd: {stub_cmd("${PORT}", "renamed")}
    useModelName: 'org/"real" name/ü'
    aliases: [renamed-too]
  hidden:
    cmd: {stub_cmd("${PORT}", "hidden")}
    unlisted: true
    aliases: [hidden-too]
groups:
  side-by-side: {{swap: false, members: [{", ".join(MODELS)}]}}
"""
    with GatewayProcess(tmp_path_factory.mktemp("routes"), config) as gateway:
        yield gateway
        assert_clean(gateway.log.read_text())


def as_json(body: dict[str, Any] | bytes) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return content, (("Content-Type", "application/json"),)


def arrived(gateway: GatewayProcess) -> dict[str, Any]:
    """The last request that reached a model."""
    return gateway.journal("req_start")[-1]


def routes(*kinds: str) -> list[Any]:
    found = [
        pytest.param(method, path, route.upstream_path, id=f"{method} {path}")
        for path, by_method in ROUTES.items()
        for method, route in by_method.items()
        if route.kind in kinds
    ]
    assert found
    return found


# Every route.

ODD_JSON = (
    b'\n {"a" : [1.0, 1e2, "\\u00e9\\/"],\t"model" :\r\n"mA", "a": {"model": "other"}, "priority": -5, "big": %s }\n '
)


@pytest.mark.parametrize(("method", "path", "upstream_path"), routes("json"))
def test_json_reaches_the_server_as_it_was_sent(
    gateway: GatewayProcess, method: str, path: str, upstream_path: str
) -> None:
    body = ODD_JSON % (b"9" * 400)
    answer = ask_raw(gateway, method, f"{path}?b=%2F&a=1", *as_json(body))
    assert answer.status == 200
    request = arrived(gateway)
    assert request["line"] == f"{method} {upstream_path}?b=%2F&a=1 HTTP/1.1"
    assert request["sha256"] == hashlib.sha256(body).hexdigest()
    assert_ours(answer, priority="0")


BOUNDARY = "--=_ odd 'boundary'+,./:?"


def form(model: str) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """A form with its file first, which looks like a field and nearly like a boundary, and its model last."""
    lines: list[bytes] = [
        f"--{BOUNDARY}".encode(),
        b'content-disposition: form-data; filename="a;\\"b.wav"; name="file"',
        b"Content-Type: audio/x-odd",
        b"",
        b'\x00\xff\r\nContent-Disposition: form-data; name="model"\r\n\r\nno\r\n' + f"--{BOUNDARY[:-1]}".encode(),
        f"--{BOUNDARY}".encode(),
        b'Content-Disposition: form-data; name="prompt"',
        b"",
        b"",
        f"--{BOUNDARY}".encode(),
        b"Content-Disposition:form-data;name=model",
        b"",
        model.encode(),
        f"--{BOUNDARY}--".encode(),
        b"after the form",
    ]
    return b"\r\n".join(lines), (("Content-Type", f'multipart/form-data; charset=utf-8; boundary="{BOUNDARY}"'),)


@pytest.mark.parametrize(("method", "path", "upstream_path"), routes("multipart"))
def test_forms_reach_the_server_as_they_were_sent(
    gateway: GatewayProcess, method: str, path: str, upstream_path: str
) -> None:
    body, headers = form("mA")
    answer = ask_raw(gateway, method, path, body, headers)
    assert answer.status == 200
    request = arrived(gateway)
    assert request["line"] == f"{method} {upstream_path} HTTP/1.1"
    assert request["sha256"] == hashlib.sha256(body).hexdigest()
    assert f"{headers[0][0]}: {headers[0][1]}" in request["headers"]
    assert_ours(answer, priority="0")


@pytest.mark.parametrize(("method", "path", "upstream_path"), routes("query"))
def test_queries_reach_the_server_as_they_were_sent(
    gateway: GatewayProcess, method: str, path: str, upstream_path: str
) -> None:
    query = "x=%2f+&mode%6c=org%2FmA%3Aq4&y"
    answer = ask_raw(gateway, method, f"{path}?{query}")
    assert answer.status == 200
    assert (answer.body == b"") == (method == "HEAD")
    assert arrived(gateway)["line"] == f"{method} {upstream_path}?{query} HTTP/1.1"
    assert not [line for line in arrived(gateway)["headers"] if line.lower().startswith("content-length")]
    assert_ours(answer, priority="0")


def assert_ours(answer: Answer, *, priority: str, reason: str = "") -> None:
    assert re.fullmatch(r"[0-9a-f]{4}-[0-9]+", answer.get("X-LlamaSwap-Job"))
    assert answer.all("X-LlamaSwap-Priority") == [priority]
    assert re.fullmatch(r"[0-9]+\.[0-9]{3}", answer.get("X-LlamaSwap-Wait"))
    assert answer.get("X-LlamaSwap-Priority-Reason") == reason


def test_other_methods_are_told_the_right_ones(gateway: GatewayProcess) -> None:
    before = len(gateway.journal("req_start"))
    answer = ask_raw(gateway, "GET", "/v1/chat/completions?model=mA")
    assert (answer.status, answer.get("Allow"), answer.body) == (405, "POST", b"Method Not Allowed\n")
    assert ask_raw(gateway, "PUT", "/v1/audio/voices?model=mA").get("Allow") == "GET, HEAD, POST"
    assert len(gateway.journal("req_start")) == before


# Names.


@pytest.mark.parametrize("name", ["gpt-4o", "org/mA:q4", "mA"])
def test_aliases_pass_unchanged(gateway: GatewayProcess, name: str) -> None:
    content, headers = as_json({"stub": {"echo_body": True}, "model": name})
    answer = ask_raw(gateway, "POST", "/v1/completions", content, headers)
    assert answer.body == content
    assert arrived(gateway)["name"] == "mA"


def test_an_unlisted_model_serves_and_is_not_listed(gateway: GatewayProcess) -> None:
    assert ask_raw(gateway, "POST", "/v1/completions", *as_json({"model": "hidden-too"})).status == 200
    assert arrived(gateway)["name"] == "hidden"
    assert [model["id"] for model in gateway.get("/v1/models").json()["data"]] == ["mA", "renamed"]
    assert "hidden" in gateway.states()
    missed = ask_raw(gateway, "POST", "/v1/completions", *as_json({"model": "hiden"}))
    assert missed.status == 404
    assert "hidden" not in missed.message


@pytest.mark.parametrize("written", [b'"renamed"', b'"renamed-too"', b'"\\u0072enamed"'])
def test_another_name_is_put_into_json_and_nothing_else_changes(gateway: GatewayProcess, written: bytes) -> None:
    before = b'{"n": {"model": "renamed"}, "stub": {"echo_body": true},"t": "\\"model\\":1" ,"model" : '
    after = b' , "x":[1.0, {"model": "renamed"}], "u": "\xc3\xa9\\u00e9"}\r\n'
    answer = ask_raw(gateway, "POST", "/v1/chat/completions", *as_json(before + written + after))
    assert answer.body == before + json.dumps('org/"real" name/ü').encode() + after
    assert arrived(gateway)["name"] == "renamed"


def test_another_name_is_put_into_a_form_and_nothing_else_changes(gateway: GatewayProcess) -> None:
    target = "/v1/images/edits?stub=" + quote('{"echo_body":true}')
    body, headers = form("renamed")
    expected, _ = form('org/"real" name/ü')
    answer = ask_raw(gateway, "POST", target, body, headers)
    assert answer.body == expected
    assert answer.get("Content-Type") == headers[0][1]


def test_a_body_on_disk_is_renamed_too(gateway: GatewayProcess) -> None:
    image = b"A" * 3_000_000
    body = b'{"image": "%b", "model": "renamed"}' % image
    answer = ask_raw(gateway, "POST", "/v1/images/generations", *as_json(body))
    assert answer.status == 200
    expected = b'{"image": "%b", "model": %b}' % (image, json.dumps('org/"real" name/ü').encode())
    request = arrived(gateway)
    assert (request["sha256"], request["framing"]) == (hashlib.sha256(expected).hexdigest(), "length")


# Headers and bytes, both ways.


def test_request_headers_keep_case_order_and_number(gateway: GatewayProcess) -> None:
    content, _ = as_json({"model": "mA"})
    sent = (
        ("x-ODD-case", "1"),
        ("content-TYPE", "application/json; charset=utf-8"),
        ("X-Twice", "b"),
        ("Authorization", "Bearer sk-123"),
        ("x-twice", "a"),
        ("Accept-Encoding", "br;q=0.5, gzip"),
        ("Priority", "u=1, i"),
        ("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        *((name, "7") for name in OURS),
        ("x-llamaswap-unheard-of", "1"),
        ("Cookie", "a=1; b=2"),
    )
    answer = ask_raw(gateway, "POST", "/v1/completions", content, sent)
    assert_ours(answer, priority="7")
    lines = ["Host: gateway.example:99", *(f"{name}: {value}" for name, value in sent)]
    expected = [line for line in lines if "llamaswap" not in line.lower()]
    assert arrived(gateway)["headers"] == [*expected, f"Content-Length: {len(content)}", "X-Forwarded-For: 127.0.0.1"]


def test_response_status_and_headers_keep_case_order_and_number(gateway: GatewayProcess) -> None:
    head = (
        "HTTP/1.1 418 I Am\tOdd\r\nset-cookie: a=1\r\nX-ODD: é\r\nContent-Type: text/x-odd\r\nSet-Cookie: b=2\r\n"
        "Server: stub\r\nDate: never\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
        "content-LENGTH: 4\r\n\r\n"
    )
    content, headers = as_json({"model": "mA", "stub": {"raw": [head, "a\r\nb"]}})
    call = Call(gateway.port, b"", "")
    lines = ["POST /v1/completions HTTP/1.1", "Host: g", f"Content-Length: {len(content)}", "Connection: close"]
    call.socket.sendall("\r\n".join([*lines, ": ".join(headers[0]), "", ""]).encode() + content)
    received = b""
    while piece := call.socket.recv(65536):
        received += piece
    call.close()
    first, _, rest = received.partition(b"\r\n")
    assert first == b"HTTP/1.1 418 I Am\tOdd"
    names = [line.split(b": ")[0] for line in rest.split(b"\r\n\r\n")[0].split(b"\r\n")]
    theirs = [b"set-cookie", b"X-ODD", b"Content-Type", b"Set-Cookie", b"Server", b"Date", b"content-LENGTH"]
    assert names[:7] == theirs
    assert names[7:10] == [b"X-LlamaSwap-Job", b"X-LlamaSwap-Priority", b"X-LlamaSwap-Wait"]
    assert [name.lower() for name in names[10:]] in ([], [b"connection"])
    assert b"X-ODD: \xe9\r\n" in received
    assert received.endswith(b"\r\n\r\na\r\nb")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_compressed_answers_are_not_opened(gateway: GatewayProcess, *, stream: bool) -> None:
    content, headers = as_json({"model": "mA", "stream": stream, "stub": {"gzip": True}})
    answer = ask_raw(gateway, "POST", "/v1/chat/completions", content, headers)
    assert answer.get("Content-Encoding") == "gzip"
    text = gzip.decompress(answer.body)
    assert text.endswith(b"data: [DONE]\n\n") if stream else json.loads(text)["served_by"] == "mA"


@pytest.mark.parametrize(
    ("sent", "applied", "reason"),
    [
        ((), "0", ""),
        (("-98",), "-98", ""),
        (("Interactive",), "100", ""),
        (("-0",), "0", ""),
        (("",), "0", "not a number or band name; used 0"),
        (("u=1",), "0", "not a number or band name; used 0"),
        (("5000",), "1000", "clamped from 5000 to 1000"),
        (("5", "6"), "0", "header sent twice; used 0"),
    ],
)
def test_the_applied_priority_is_told(
    gateway: GatewayProcess, sent: tuple[str, ...], applied: str, reason: str
) -> None:
    content, headers = as_json({"model": "mA", "priority": -1000})
    headers += tuple(("X-LlamaSwap-Priority", value) for value in sent)
    answer = ask_raw(gateway, "POST", "/v1/completions", content, (*headers, ("Priority", "u=0, i")))
    assert_ours(answer, priority=applied, reason=reason)


def test_neither_the_standard_priority_header_nor_the_bodys_changes_the_order(gateway: GatewayProcess) -> None:
    with Scene(gateway, together=True) as scene:
        running = scene.send("mA", "running", stub={"dur": 1})
        scene.until_running("running")
        calls = [
            scene.send("mA", "0 batch", headers={"Priority": "u=0, i", "X-LlamaSwap-Priority": "-100"}, priority=9),
            scene.send("mA", "1 plain"),
        ]
        scene.until_waiting(2)
        calls.append(scene.send("mA", "2 u=0", headers={"Priority": "u=0, i"}, priority=1000))
        scene.until_waiting(3)
        calls.append(scene.send("mA", "3 u=7", headers={"Priority": "u=7"}, priority=-1000))
        assert {call.answer().status for call in [running, *calls]} == {200}
        assert scene.ran() == ["running", "1 plain", "2 u=0", "3 u=7", "0 batch"]


def test_an_error_of_the_servers_is_passed_on_as_it_is(gateway: GatewayProcess) -> None:
    content, headers = as_json({"model": "mA", "stub": {"status": 503, "set_headers": [["Retry-After", "7"]]}})
    answer = ask_raw(gateway, "POST", "/v1/completions", content, headers)
    assert (answer.status, answer.get("Retry-After")) == (503, "7")
    assert json.loads(answer.body)["served_by"] == "mA"
    assert_ours(answer, priority="0")


def test_errors_of_the_gateways_own_look_as_the_client_likes(gateway: GatewayProcess) -> None:
    for accept, kind, begins in (
        ("application/json", "application/json", b'{"src":"llama-swap","error":{"message":"no router'),
        ("text/plain", "text/plain", b"llama-swap: no router for requested model"),
        ("text/html,*/*", "text/html", b"<html><body><h1>llama-swap</h1><p>no router"),
    ):
        content, headers = as_json({"model": "<b>none</b>"})
        answer = ask_raw(gateway, "POST", "/v1/completions", content, (*headers, ("Accept", accept)))
        assert (answer.status, answer.get("Content-Type")) == (404, kind)
        assert answer.body.startswith(begins)
        assert b"<b>" not in answer.body or kind == "text/plain"
        assert answer.get("X-LlamaSwap-Job") == "", "it became no job"
