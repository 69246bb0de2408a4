"""Who may use which route of a gateway with keys."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from swaplane.gateway.routes import ROUTES
from tests.support.gateway import GatewayProcess, stub_models
from tests.support.keys import ADA, BEN, CONFIG, NARROW, OPERATOR, PLAIN, basic, bearer
from tests.support.scene import Scene, ask_raw, in_time

ANYBODY = {"/", "/health", "/wol-health"}
MEMBERS = {
    ("GET", "/v1/models"),
    ("GET", "/models"),
    ("GET", "/running"),
    ("GET", "/api/version"),
    ("GET", "/api/queue"),
    ("GET", "/api/members"),
    ("GET", "/api/events"),
    ("GET", "/api/jobs/{job_id}"),
    ("PATCH", "/api/jobs/{job_id}"),
    ("DELETE", "/api/jobs/{job_id}"),
    ("GET", "/api/jobs/{job_id}/result"),
    ("GET", "/api/jobs/{job_id}/why"),
    ("GET", "/v1/files"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files/{file_id}"),
    ("GET", "/v1/files/{file_id}/content"),
    ("DELETE", "/v1/files/{file_id}"),
    ("GET", "/v1/batches"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches/{batch_id}"),
    ("POST", "/v1/batches/{batch_id}/cancel"),
    ("GET", "/v1/responses/{response_id}"),
    ("DELETE", "/v1/responses/{response_id}"),
    ("POST", "/v1/responses/{response_id}/cancel"),
}
ADMINS = {
    ("GET", "/unload"),
    ("POST", "/api/models/unload"),
    ("POST", "/api/models/unload/{model}"),
    ("GET", "/logs"),
    ("GET", "/logs/stream"),
    ("GET", "/logs/stream/{name}"),
    ("POST", "/api/lanes/{lane}/pause"),
    ("POST", "/api/lanes/{lane}/resume"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
}
ELSEWHERE = {
    ("GET", "/v1/videos"),
    ("GET", "/v1/videos/x"),
    ("DELETE", "/v1/videos/x"),
    ("GET", "/v1/videos/x/content"),
    ("POST", "/v1/videos/x/remix"),
    ("GET", "/upstream/mA/"),
    ("POST", "/upstream/mA/v1/x"),
    ("GET", "/upstream/unknown/"),
    ("GET", "/nothing"),
    ("GET", "/docs"),
    ("POST", "/health"),
    ("GET", "/v1/chat/completions"),
    ("DELETE", "/api/lanes/gpu"),
}

GATEWAY_SAYS = "unauthorized: invalid or missing API key"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    models = (stub_models(name, extra=f"aliases: [{name}-alias]") for name in ("mA", "mB"))
    config = "models:\n" + "".join(block.removeprefix("models:\n") for block in models) + CONFIG
    with GatewayProcess(tmp_path_factory.mktemp("access"), config, key=OPERATOR) as gateway:
        yield gateway


def declared(gateway: GatewayProcess) -> set[tuple[str, str]]:
    """Every route of the management API, as the gateway that runs declares them."""
    paths = gateway.get("/openapi.json").json()["paths"]
    return {(method.upper(), path) for path, methods in paths.items() for method in methods}


def filled(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "x", path)


@dataclass
class Reply:
    """The head of an answer, and the body of a refusal; other bodies may have no end."""

    status: int
    headers: Message
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return dict(json.loads(self.body)["error"])


def ask(gateway: GatewayProcess, method: str, path: str, headers: dict[str, str]) -> Reply:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return Reply(answer.status, answer.headers, answer.read() if answer.status in (401, 403) else b"")


def test_every_route_of_the_api_is_for_somebody(gateway: GatewayProcess) -> None:
    everything = MEMBERS | ADMINS | {("GET", path) for path in ANYBODY}
    assert declared(gateway) | {("GET", "/openapi.json")} == everything


@pytest.mark.parametrize("headers", [{}, bearer("sk-wrong"), basic("sk-wrong"), {"x-api-key": "sk-wrong"}])
def test_without_a_known_key_there_is_nothing_but_the_signs_of_life(
    gateway: GatewayProcess, headers: dict[str, str]
) -> None:
    models = {(method, path) for path, methods in ROUTES.items() for method in methods}
    walked = declared(gateway) | models | ELSEWHERE | {("GET", "/openapi.json")}
    walked |= {("HEAD", path) for method, path in walked if method == "GET"}
    for method, path in sorted(walked):
        answer = ask(gateway, method, filled(path), headers)
        if method in ("GET", "HEAD") and path in ANYBODY:
            assert answer.status == 200, (method, path)
            continue
        assert answer.status == 401, (method, path)
        assert answer.headers["www-authenticate"] == 'Basic realm="llama-swap"'
        if method != "HEAD":
            assert answer.error == {
                "message": GATEWAY_SAYS,
                "type": "authentication_error",
                "param": None,
                "code": "unauthorized",
            }


@pytest.mark.parametrize("key", [BEN, NARROW])
def test_a_member_gets_what_is_for_members(gateway: GatewayProcess, key: str) -> None:
    routes = declared(gateway) | {("GET", "/openapi.json")}
    routes |= {("HEAD", path) for method, path in routes if method == "GET" and path != "/api/events"}
    for method, path in sorted(routes):
        answer = ask(gateway, method, filled(path), bearer(key))
        like = ("GET", path) if method == "HEAD" else (method, path)
        if like in ADMINS:
            assert answer.status == 403, (method, path)
            if method != "HEAD":
                assert answer.error["message"] == "this needs a key with `admin: true`"
        else:
            assert answer.status not in (401, 403, 500), (method, path)


def test_nothing_came_of_what_was_refused(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        assert scene.ask("mA", "runs", headers=bearer(BEN)).status == 200
        for method, path in (("GET", "/unload"), ("POST", "/api/models/unload"), ("POST", "/api/models/unload/mA")):
            assert ask(gateway, method, path, bearer(BEN)).status == 403
            assert ask(gateway, method, path, {}).status == 401
        assert ask(gateway, "POST", "/api/lanes/gpu/pause", bearer(BEN)).status == 403
        assert gateway.states() == {"mA": "ready"}
        assert not gateway.queue()["paused"]


@pytest.mark.parametrize("key", [OPERATOR, PLAIN])
def test_an_admin_may_do_everything(gateway: GatewayProcess, key: str) -> None:
    for method, path in sorted(declared(gateway) | {("GET", "/openapi.json")}):
        assert ask(gateway, method, filled(path), basic(key)).status not in (401, 403, 500), (method, path)
    with Scene(gateway) as scene:
        assert scene.ask("mA", "loads", headers=bearer(key)).status == 200
        assert ask(gateway, "GET", "/unload", {"x-api-key": key}).status == 200
        assert gateway.states() == {}


@pytest.mark.parametrize("path", ["/", "/health", "/wol-health"])
def test_what_is_for_anybody_names_nobody(gateway: GatewayProcess, path: str) -> None:
    with Scene(gateway) as scene:
        scene.send("mA", "running", headers=bearer(ADA), stub={"chunks": 2, "gap": 0.2}, stream=True)
        scene.until_running("running")
        answer = ask_raw(gateway, "GET", path)
        assert answer.status == 200
        for name in ("mA", "mB", "ada", "ben", "operator", "canary"):
            assert name not in answer.body.decode().split(), (path, name)


@pytest.mark.parametrize("path", ["/favicon.ico", "/upstream"])
def test_what_browsers_ask_for_by_themselves_needs_no_key(gateway: GatewayProcess, path: str) -> None:
    answer = ask(gateway, "GET", path, {})
    assert answer.status == 404
    assert "www-authenticate" not in answer.headers


def test_a_wrong_method_and_an_unknown_path_are_told_to_whoever_has_a_key(gateway: GatewayProcess) -> None:
    assert ask(gateway, "POST", "/health", bearer(BEN)).status == 405
    assert ask(gateway, "GET", "/v1/chat/completions", bearer(BEN)).status == 405
    assert ask(gateway, "GET", "/nothing", bearer(BEN)).status == 404


@pytest.mark.parametrize("accept", ["text/plain", "text/html", "application/json"])
def test_a_refusal_comes_in_the_form_that_is_asked_for(gateway: GatewayProcess, accept: str) -> None:
    for path in ("/v1/models", "/metrics"):
        answer = ask(gateway, "GET", path, {"Accept": accept})
        assert (answer.status, answer.headers["content-type"]) == (401, accept)
    assert ask(gateway, "GET", "/metrics", {"Accept": accept, **bearer(BEN)}).headers["content-type"] == accept


# Before anything is read.


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/upstream/mA/v1/x", "/v1/files", "/v1/videos", "/x"])
@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
def test_a_body_without_a_key_is_refused_unread(gateway: GatewayProcess, path: str, expect: bytes) -> None:
    with Scene(gateway):
        calls = []
        for _ in range(20):
            call = socket.create_connection(("127.0.0.1", gateway.port), timeout=60)
            head = b"POST %b HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n%b" % (path.encode(), expect)
            call.sendall(head + b"Content-Length: 104857600\r\n\r\n" + b'{"model": "mA", ')
            calls.append(call)
        for call in calls:
            with call:
                answer = call.makefile("rb").read()  # to the end: the connection is closed
                assert answer.startswith(b"HTTP/1.1 401 Unauthorized\r\n"), "no 100 comes before it"
                assert GATEWAY_SAYS.encode() in answer
        assert gateway.queue()["waiting_total"] == 0


def test_a_connection_lives_on_after_a_refusal(gateway: GatewayProcess) -> None:
    with gateway.client() as client:
        del client.headers["Authorization"]
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers=bearer(BEN)).status_code == 200
        assert client.get("/v1/models").status_code == 401, "each request brings its own key"
        assert client.post("/v1/models", json={}).status_code == 401


# Browsers.


def test_a_preflight_needs_no_key_and_promises_nothing(gateway: GatewayProcess) -> None:
    for path in ("/v1/chat/completions", "/unload", "/nothing"):
        headers = {
            "Origin": "https://evil.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }
        answer = ask(gateway, "OPTIONS", path, headers)
        assert answer.status == 204
        assert "access-control-allow-credentials" not in answer.headers
        assert answer.headers["access-control-allow-origin"] == "*"


def test_a_foreign_page_without_a_key_runs_nothing(gateway: GatewayProcess) -> None:
    with Scene(gateway):
        body = json.dumps({"model": "mA"}).encode()
        headers = [("Origin", "https://evil.example"), ("Content-Type", "text/plain")]
        assert ask_raw(gateway, "POST", "/v1/chat/completions?model=mA", body, headers).status == 401
        assert ask_raw(gateway, "GET", "/unload", headers=headers).status == 401


def test_of_all_gets_only_one_changes_something(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        assert scene.ask("mA", "loads", headers=bearer(BEN)).status == 200
        for method, path in sorted(declared(gateway)):
            if method == "GET" and path != "/unload":
                ask(gateway, method, path.replace("{lane}", "gpu").replace("{model}", "mA"), bearer(OPERATOR))
        assert gateway.states() == {"mA": "ready"}
        assert not gateway.queue()["paused"]


# Websockets.


@pytest.mark.parametrize("headers", [{}, bearer("sk-wrong"), basic("sk-wrong"), {"x-api-key": "sk-wrong"}])
@pytest.mark.parametrize("model", ["mA", "unknown"])
def test_a_websocket_without_a_known_key_is_refused(
    gateway: GatewayProcess, headers: dict[str, str], model: str
) -> None:
    with (
        Scene(gateway),
        pytest.raises(InvalidStatus) as refused,
        connect(f"ws://127.0.0.1:{gateway.port}/upstream/{model}/ws", additional_headers=headers, proxy=None),
    ):
        pass
    answer = refused.value.response
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, 'Basic realm="llama-swap"')
    assert gateway.states() == {}


@pytest.mark.parametrize(
    ("key", "model", "extra", "status", "words"),
    [
        (NARROW, "mB", {}, 403, "the key `narrow` may not use the model `mB`"),
        (NARROW, "mBB", {}, 404, "no router for requested model `mBB`"),
        (BEN, "mA", {"X-LlamaSwap-Max-Wait": "soon"}, 400, "the header X-LlamaSwap-Max-Wait must be seconds"),
    ],
)
def test_a_websocket_is_told_what_a_request_is_told(
    gateway: GatewayProcess, key: str, model: str, extra: dict[str, str], status: int, words: str
) -> None:
    with (
        Scene(gateway),
        pytest.raises(InvalidStatus) as refused,
        connect(
            f"ws://127.0.0.1:{gateway.port}/upstream/{model}/ws",
            additional_headers={**bearer(key), **extra},
            proxy=None,
        ),
    ):
        pass
    assert refused.value.response.status_code == status
    message = json.loads(refused.value.response.body)["error"]["message"]
    assert message.startswith(words)
    assert "`mB`" not in message or status == 403


def test_a_websocket_with_a_key_is_a_job_of_its_member(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        scene.jobs = 1
        with connect(f"ws://127.0.0.1:{gateway.port}/upstream/mA/ws", additional_headers=basic(ADA), proxy=None) as ws:
            ws.send("hello")
            assert ws.recv() == "hello"
            (job,) = gateway.queue()["running"]
            assert (job["member"], job["priority"]) == ("ada", 1)
        in_time(lambda: not gateway.queue()["running"], "it is over")


# Models.


def test_a_key_for_some_models_uses_and_sees_no_others(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        assert scene.ask("mA", "allowed", headers=bearer(NARROW)).status == 200
        assert scene.ask("mA-alias", "alias", headers=bearer(NARROW)).status == 200
        scene.jobs += 1
        assert ask_raw(gateway, "GET", "/upstream/mA/x", headers=[*bearer(NARROW).items()]).status == 200
        for path in ("/upstream/mB/x", "/upstream/mB-alias/x", "/props?model=mB"):
            assert ask_raw(gateway, "GET", path, headers=[*bearer(NARROW).items()]).status == 403
        refused = scene.ask("mB", "not allowed", headers=bearer(NARROW))
        scene.jobs -= 1
        assert (refused.status, refused.message) == (
            403,
            "the key `narrow` may not use the model `mB`: its `models` do not name it",
        )
        assert gateway.states() == {"mA": "ready"}

        listed = ask_raw(gateway, "GET", "/v1/models", headers=[*bearer(NARROW).items()])
        assert [model["id"] for model in json.loads(listed.body)["data"]] == ["mA"]
        everything = ask_raw(gateway, "GET", "/v1/models", headers=[*bearer(BEN).items()])
        assert [model["id"] for model in json.loads(everything.body)["data"]] == ["mA", "mB"]


def test_what_runs_is_shown_without_commands_and_only_where_it_may_be_used(gateway: GatewayProcess) -> None:
    def running(key: str) -> list[dict[str, object]]:
        shown: list[dict[str, object]] = json.loads(
            ask_raw(gateway, "GET", "/running", headers=[*bearer(key).items()]).body
        )["running"]
        return shown

    with Scene(gateway) as scene:
        assert scene.ask("mB", "loads", headers=bearer(BEN)).status == 200
        assert running(NARROW) == []
        (shown,) = running(BEN)
        assert (shown["model"], shown["state"], shown["cmd"], shown["proxy"]) == ("mB", "ready", "", "")
        (whole,) = running(OPERATOR)
        assert "stub.py" in str(whole["cmd"])
        assert str(whole["proxy"]).startswith("http://")


def test_an_unknown_model_is_unknown_and_no_other_is_suggested_that_may_not_be_used(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        answers = [scene.ask("mB-alia", key, headers=bearer(key)) for key in (NARROW, BEN)]
        scene.jobs = 0
        assert [answer.status for answer in answers] == [404, 404]
        assert "mB" not in answers[0].message.replace("`mB-alia`", "")
        assert "did you mean `mB-alias`" in answers[1].message
