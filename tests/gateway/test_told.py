"""What the holder of a key that is no admin's is not told: other models' names, commands, addresses and output."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.support.gateway import GatewayProcess, stub_models
from tests.support.keys import bearer
from tests.support.stub_client import eventually, stub_cmd

ROOT, ANN, NARROW = "sk-root-1", "sk-ann-1", "sk-narrow-1"
KEYS = f"""
keys:
  - {{key: {ROOT}, name: root, admin: true}}
  - {{key: {ANN}, member: ann}}
  - {{key: {NARROW}, name: narrow, models: [mA]}}
"""
MEMBERS = "".join(line for line in KEYS.splitlines(keepends=True) if "narrow" not in line)
LONG: dict[str, Any] = {"dur": 60}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    models = stub_models("mA", "secretmodel").replace("  secretmodel:\n", "  secretmodel:\n    aliases: [pet]\n")
    with GatewayProcess(tmp_path_factory.mktemp("told"), models + KEYS, key=ROOT) as process:
        yield process


def get(gateway: GatewayProcess, path: str, key: str) -> str:
    answer = gateway.request("GET", path, headers=bearer(key))
    assert answer.status_code == 200, answer.text
    return answer.text


def chat(gateway: GatewayProcess, model: str, key: str, **headers: str) -> tuple[int, str]:
    answer = gateway.request("POST", "/v1/chat/completions", json={"model": model}, headers={**bearer(key), **headers})
    return answer.status_code, answer.json().get("error", {}).get("message") or answer.text


def test_models_that_a_key_is_not_for_are_not_named_in_the_queue(gateway: GatewayProcess) -> None:
    auth = f"Authorization: Bearer {ANN}\r\n".encode()
    gateway.raw_chat("secretmodel", "runs", headers=auth, stub=LONG)
    eventually(lambda: gateway.queue()["resident"] == ["secretmodel"], "it runs")
    gateway.raw_chat("secretmodel", "waits", headers=auth, stub=LONG)
    eventually(lambda: gateway.queue()["waiting_total"] == 1, "another waits")
    accepted = gateway.request(
        "POST",
        "/v1/chat/completions",
        json={"model": "mA"},
        headers={**bearer(NARROW), "Prefer": "respond-async", "X-LlamaSwap-Priority": "interactive"},
    )
    assert accepted.status_code == 202
    own = accepted.json()["id"]
    told = [
        accepted.text,
        *(get(gateway, path, NARROW) for path in ("/api/queue", f"/api/jobs/{own}", f"/api/jobs/{own}/why")),
    ]
    assert not [each for each in told if "secretmodel" in each or "pet" in each]
    assert accepted.json()["reason"] == "next, when somebody else's job ends (another model runs), then mA loads"
    (lane,) = json.loads(told[1])["lanes"]
    assert lane["resident"] == ["other"]
    assert [job["model"] for job in (*lane["running"], *lane["waiting"])] == ["other", "mA", "other"]
    # Whoever may use it is told of it.
    for key in (ANN, ROOT):
        (lane,) = json.loads(get(gateway, "/api/queue", key))["lanes"]
        assert lane["resident"] == ["secretmodel"]
        assert [job["model"] for job in lane["waiting"]] == ["mA", "secretmodel"]
    for job in (*gateway.queue()["waiting"], *gateway.queue()["running"]):
        gateway.request("DELETE", f"/api/jobs/{job['id']}")
    eventually(lambda: not gateway.queue()["running"], "all are gone")


def test_a_model_that_is_not_allowed_is_called_as_it_was_asked_for(gateway: GatewayProcess) -> None:
    words = "the key `narrow` may not use the model `pet`: its `models` do not name it"
    assert chat(gateway, "pet", NARROW) == (403, words)
    answer = gateway.request("GET", "/upstream/pet/x", headers=bearer(NARROW))
    assert (answer.status_code, answer.json()["error"]["message"]) == (403, words)
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{gateway.port}/upstream/pet/ws", additional_headers=bearer(NARROW), proxy=None)
    assert json.loads(refused.value.response.body)["error"]["message"] == words
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "pet"}}
    file = gateway.request(
        "POST",
        "/v1/files",
        files={"file": ("a.jsonl", json.dumps(line).encode())},
        data={"purpose": "batch"},
        headers=bearer(NARROW),
    ).json()["id"]
    batch = gateway.request(
        "POST",
        "/v1/batches",
        json={"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"},
        headers=bearer(NARROW),
    ).json()["id"]

    def status() -> object:
        return json.loads(get(gateway, f"/v1/batches/{batch}", NARROW))["status"]

    eventually(lambda: status() == "failed", "the batch has failed")
    told = get(gateway, f"/v1/batches/{batch}", NARROW)
    assert words in json.loads(told)["errors"]["data"][0]["message"]
    assert "secretmodel" not in told


# Failures.

BROKEN = f"""\
models:
  exits:
    cmd: sh -c 'echo OUTPUT-CANARY >&2; exit 3' ${{PORT}}
  missing:
    cmd: /CANARY/no-such-server --port ${{PORT}}
  never:
    cmd: {stub_cmd("${PORT}", "never")} --boot 600
    healthCheckTimeout: 1
  dead:
    cmd: sleep 1000
    checkEndpoint: none
    proxy: http://127.0.0.1:1
  taken:
    cmd: sleep 1000
    proxy: http://127.0.0.1:PORT-OF-ANOTHER
"""
CASES = [
    ("exits", 500, "unspecific error: upstream command exited prematurely with exit code 3", "\nOUTPUT-CANARY"),
    (
        "missing",
        500,
        "unspecific error: failed to start command",
        " '/CANARY/no-such-server': no such file or directory",
    ),
    ("never", 500, "unspecific error: health check timed out after 1s", ": GET http://localhost:"),
    ("taken", 500, "unspecific error: its address is in use", ": port "),
]
UNREACHABLE = "the model server cannot be reached"


@pytest.fixture
def broken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield BROKEN.replace("PORT-OF-ANOTHER", str(taken.getsockname()[1]))


def test_why_a_start_failed_is_told_in_full_to_admins_only(tmp_path: Path, broken: str) -> None:
    with GatewayProcess(tmp_path, broken + MEMBERS, key=ROOT) as gateway:
        for model, status, words, more in reversed(CASES):
            assert chat(gateway, model, ANN) == (status, words)
            full = chat(gateway, model, ROOT)
            assert full[0] == status
            assert full[1].startswith(words + more)

        def left_alone(key: str, **extra: str) -> str:
            """The refusal; a try that comes after the time is over fails, and makes it longer."""
            while (told := chat(gateway, "exits", key, **extra))[0] != 503:
                pass
            return re.sub(r"\d+ times", "N times", told[1])

        backoff = "model exits failed to start N times in a row and is left alone for a while; the last time: "
        sentence = "upstream command exited prematurely with exit code 3"
        extras: list[dict[str, str]] = [{}, {"Prefer": "respond-async"}]
        for extra in extras:
            assert left_alone(ANN, **extra) == backoff + sentence
            assert left_alone(ROOT, **extra) == f"{backoff}{sentence}\nOUTPUT-CANARY"

        for path in ("/v1/chat/completions", "/upstream/dead/x"):
            answer = gateway.request("POST", path, json={"model": "dead"}, headers=bearer(ANN))
            assert (answer.status_code, answer.json()["error"]["message"]) == (502, UNREACHABLE)
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://127.0.0.1:{gateway.port}/upstream/dead/ws", additional_headers=bearer(ANN), proxy=None)
        assert json.loads(refused.value.response.body)["error"]["message"] == UNREACHABLE
        assert chat(gateway, "dead", ROOT)[1].startswith("the model server at 127.0.0.1:1 cannot be reached: ")


def test_a_stored_answer_holds_what_the_key_of_its_job_may_know(tmp_path: Path, broken: str) -> None:
    with GatewayProcess(tmp_path, broken + MEMBERS, key=ROOT) as gateway:

        def stored(model: str, key: str) -> str:
            sent = gateway.request(
                "POST",
                "/v1/chat/completions",
                json={"model": model},
                headers={**bearer(key), "Prefer": "respond-async", "X-LlamaSwap-Member": "ann"},
            ).json()["id"]
            eventually(lambda: gateway.get(f"/api/jobs/{sent}").json()["state"] == "ended", "it is over")
            answer = gateway.request("GET", f"/api/jobs/{sent}/result", headers=bearer(key))
            message = answer.json()["error"]["message"]
            assert isinstance(message, str)
            return message

        _, _, words, more = CASES[0]
        assert stored("exits", ANN) == words
        assert stored("exits", ROOT) == words + more
        assert stored("dead", ANN) == UNREACHABLE
        assert stored("dead", ROOT).startswith("the model server at ")


def test_without_keys_everybody_is_told(tmp_path: Path, broken: str) -> None:
    with GatewayProcess(tmp_path, broken) as gateway:
        for model, status, words, more in CASES:
            answer = gateway.chat(model)
            assert answer.status_code == status
            assert answer.json()["error"]["message"].startswith(words + more)
        assert gateway.chat("dead").json()["error"]["message"].startswith("the model server at 127.0.0.1:1 ")
