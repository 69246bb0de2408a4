"""What a key makes of a request: its member, its priority; and that the key itself gets nowhere."""

from __future__ import annotations

import hashlib
import io
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.sync.client import connect

from tests.support.gateway import GatewayProcess, stub_models
from tests.support.keys import ADA, BEN, BOT, CONFIG, NARROW, OPERATOR, PLAIN, POOL, basic, bearer
from tests.support.scene import Answer, Scene, in_time
from tests.support.stub_client import stub_cmd

SECRETS = (ADA, BEN, BOT, NARROW, OPERATOR, PLAIN, POOL)
FORMS: list[Callable[[str], dict[str, str]]] = [bearer, basic, lambda key: {"x-api-key": key}]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    config = stub_models("mA") + "logLevel: debug\n" + CONFIG
    with GatewayProcess(tmp_path_factory.mktemp("keys"), config, key=OPERATOR) as gateway:
        yield gateway


def applied(answer: Answer) -> tuple[int, str]:
    return int(answer.get("X-LlamaSwap-Priority")), answer.get("X-LlamaSwap-Priority-Reason")


def shown(gateway: GatewayProcess, rid: str, key: str, **headers: str) -> dict[str, Any]:
    """A job as the queue shows it while it runs."""
    with Scene(gateway) as scene:
        names = {f"X-LlamaSwap-{name}": value for name, value in headers.items()}
        call = scene.send("mA", rid, headers={**bearer(key), **names}, stub={"dur": 600})
        scene.until_running(rid)
        (job,) = gateway.queue()["running"]
        call.leave()
        return dict(job)


# On whose behalf.


@pytest.mark.parametrize(
    ("key", "sent", "member"),
    [
        (ADA, "", "ada"),
        (ADA, "ben", "ada"),
        (BOT, "carol", "carol"),
        (BOT, "", "anonymous"),
        (POOL, "ben", "anonymous"),
        (PLAIN, "ben", "anonymous"),
    ],
)
def test_the_key_says_whose_job_it_is_unless_it_is_trusted_to_pass_that_on(
    gateway: GatewayProcess, key: str, sent: str, member: str
) -> None:
    headers = {"Member": sent, "Label": "shot=1"} if sent else {"Label": "shot=1"}
    job = shown(gateway, f"for-{member}", key, **headers)
    assert (job["member"], job["label"]) == (member, "shot=1")


def test_two_hundred_invented_names_are_one_member(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        first = scene.send("mA", "first", headers=bearer(POOL), stub={"dur": 600})
        scene.until_running("first")
        calls = []
        for number in range(200):
            headers = {**bearer(POOL), "X-LlamaSwap-Member": f"invented-{number}"}
            calls.append(scene.send("mA", f"crowd-{number}", headers=headers))
        scene.until_waiting(200)
        calls += [scene.send("mA", f"ada-{number}", headers=bearer(ADA)) for number in range(3)]
        scene.until_waiting(203)
        (lane,) = gateway.get("/api/queue?limit=1000").json()["lanes"]
        assert {job["member"] for job in lane["waiting"]} == {"anonymous", "ada"}
        first.leave()
        assert {call.answer().status for call in calls} == {200}
        places = [place for place, rid in enumerate(scene.ran()) if rid.startswith("ada-")]
        assert places[-1] <= 7, "a crowd of names takes one turn, as one member"


# Priorities.


@pytest.mark.parametrize(
    ("key", "asked", "priority", "reason"),
    [
        (ADA, "", 1, ""),
        (ADA, "batch", -99, ""),
        (ADA, "-500", -500, ""),
        (ADA, "interactive", 1, "clamped from 100 to 0, the highest for this key"),
        (ADA, "1", 1, ""),
        (ADA, "urgent", 1, "not a number or band name; used 1"),
        (BOT, "102", 102, ""),
        (BOT, "103", 102, "clamped from 103 to 102, the highest for this key"),
        (BEN, "interactive", 100, ""),
        (BEN, "5000", 1000, "clamped from 5000 to 1000"),
    ],
)
def test_a_key_gets_what_it_may_have(gateway: GatewayProcess, key: str, asked: str, priority: int, reason: str) -> None:
    with Scene(gateway) as scene:
        before = gateway.metric("swaplane_priority_adjusted_total", reason="above_key")
        headers = {"X-LlamaSwap-Priority": asked} if asked else {}
        answer = scene.ask("mA", "asks", headers={**bearer(key), **headers})
        assert applied(answer) == (priority, reason)
        counted = gateway.metric("swaplane_priority_adjusted_total", reason="above_key") - before
        assert counted == reason.endswith("the highest for this key")


@pytest.mark.parametrize("name", ["X-LlamaSwap-Max-Wait", "X-LlamaSwap-Show-Wait"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/upstream/mA/v1/x"])
def test_a_header_that_cannot_be_read_is_refused_with_its_name(gateway: GatewayProcess, name: str, path: str) -> None:
    with Scene(gateway) as scene:
        answer = scene.ask("mA", "asks", path=path, headers={**bearer(ADA), name: "5m"})
        scene.jobs = 0
        assert answer.status == 400
        assert answer.message.startswith(f"the header {name} must be ")
        assert answer.message.endswith(", and is `5m`")
        assert scene.ran() == []


# Where a key gets to.


def test_a_key_reaches_no_model_no_disk_no_log_and_no_answer(gateway: GatewayProcess) -> None:
    told = io.BytesIO()
    with gateway.client() as client, client.stream("GET", "/api/events", timeout=60) as events, Scene(gateway) as scene:
        pieces = events.iter_raw()
        told.write(next(pieces))
        for number, form in enumerate(FORMS):
            headers = {
                **form(ADA),
                "Cookie": "theirs=1",
                "x-goog-api-key": "theirs-too",
                "Proxy-Authorization": f"Bearer {ADA}",
            }
            for name, more in _ways(number).items():
                answer = scene.ask("mA", f"{name}-{number}", headers={**headers, **more}, stream=name == "streamed")
                assert answer.status in (200, 202), answer
                assert ADA not in str(answer)
            beside = scene.ask("mA", f"beside-{number}", path="/upstream/mA/v1/x?model=mA", headers=headers)
            assert beside.status == 200
            background = scene.ask("mA", f"bg-{number}", path="/v1/responses", headers=headers, background=True)
            assert background.status == 200
            scene.jobs += 1
            url = f"ws://127.0.0.1:{gateway.port}/upstream/mA/ws?rid=ws-{number}"
            with connect(url, additional_headers=form(ADA), proxy=None) as ws:
                ws.send("hello")
                assert ws.recv() == "hello"
            _batch(gateway, f"line-{number}", form(ADA), scene)
        in_time(lambda: not any(gateway.queue()[state] for state in ("running", "waiting")), "all have run")
        in_time(lambda: all(batch["status"] == "completed" for batch in _batches(gateway)), "the batches are over")

        starts = scene.journal("req_start")
        assert len(starts) >= 5 * len(FORMS)
        for entry in (entry for entry in starts if entry["rid"].startswith("plain-")):
            names = {line.partition(":")[0].lower() for line in entry["headers"]}
            assert {"cookie", "x-goog-api-key"} <= names, "what is not ours passes"
        told.write(next(pieces))

        looked_at = {
            "the journal": json.dumps(gateway.journal()).encode(),
            "the events": told.getvalue(),
            "the log": gateway.log.read_bytes(),
        }
        for path in ("/api/queue", "/logs", "/metrics", "/running", "/api/members", "/openapi.json", "/v1/models", "/"):
            looked_at[path] = gateway.get(path).content
        stored = [path for path in (gateway.config.parent / "state").rglob("*") if path.is_file()]
        assert stored
        looked_at |= {str(path): path.read_bytes() for path in stored}
    _assert_none(looked_at)


def test_a_key_from_the_environment_stays_with_the_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPERATORS_KEY", OPERATOR)
    monkeypatch.setenv("SOMETHING_ELSE", "kept")
    seen = tmp_path / "environment"
    cmd = f"sh -c 'env > {seen}; exec {stub_cmd('$0', 'mA')}' ${{PORT}}"
    config = f"models: {{mA: {{cmd: {json.dumps(cmd)}}}}}\nkeys: [{{key: '${{env.OPERATORS_KEY}}', admin: true}}]\n"
    with GatewayProcess(tmp_path, config, key=OPERATOR) as gateway, Scene(gateway) as scene:
        assert scene.ask("mA", "one", headers=bearer(OPERATOR)).status == 200
    environment = seen.read_text()
    assert "SOMETHING_ELSE=kept" in environment
    assert OPERATOR not in environment


def _ways(number: int) -> dict[str, dict[str, str]]:
    return {
        "plain": {},
        "streamed": {},
        "repeated": {"Idempotency-Key": f"again-{number}"},
        "detached": {"Prefer": "respond-async"},
    }


def _batch(gateway: GatewayProcess, rid: str, headers: dict[str, str], scene: Scene) -> None:
    body = {"model": "mA", "messages": [], "rid": rid}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    with httpx2.Client(base_url=gateway.url, headers=headers, trust_env=False, timeout=60) as client:
        file = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("b.jsonl", json.dumps(line))})
        assert file.status_code == 200, file.text
        wanted = {"input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        made = client.post("/v1/batches", json=wanted)
        assert made.status_code == 200, made.text
    scene.jobs += 1


def _batches(gateway: GatewayProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gateway.get("/v1/batches").json()["data"]
    return found


def _assert_none(looked_at: dict[str, bytes]) -> None:
    for secret in SECRETS:
        shapes = {
            secret.encode(),
            hashlib.sha256(secret.encode()).hexdigest().encode(),
            hashlib.sha256(secret.encode()).digest(),
            basic(secret)["Authorization"].removeprefix("Basic ").rstrip("=").encode()[4:-4],
        }
        for where, content in looked_at.items():
            assert not [shape for shape in shapes if shape in content], (secret, where)


@pytest.mark.parametrize("headers", [bearer("theirs"), basic("theirs"), {"X-Api-Key": "theirs"}])
def test_without_keys_credentials_are_the_models_business(tmp_path: Path, headers: dict[str, str]) -> None:
    with GatewayProcess(tmp_path, stub_models("mA")) as gateway, Scene(gateway) as scene:
        assert scene.ask("mA", "passes", headers=headers).status == 200
        (entry,) = scene.journal("req_start")
        ((name, value),) = headers.items()
        assert f"{name}: {value}" in entry["headers"]
        with connect(f"ws://127.0.0.1:{gateway.port}/upstream/mA/ws", additional_headers=headers, proxy=None):
            pass
        scene.jobs += 1
        in_time(lambda: len(scene.journal("ws_end")) == 1, "the socket is closed")
        assert f"{name}: {value}" in scene.journal("req_start")[1]["headers"]


# A changed file.


def reload(gateway: GatewayProcess, config: str) -> None:
    """Put another configuration in force, or have it refused."""
    said = ("configuration reloaded", "the configuration stays as it was")
    before = sum(gateway.log.read_text().count(words) for words in said)
    gateway.write_config(gateway.config.read_text().splitlines()[0] + "\n" + config)
    gateway.process.send_signal(signal.SIGHUP)
    in_time(lambda: sum(gateway.log.read_text().count(words) for words in said) > before, "the file has been read")


def test_other_keys_count_at_once_and_disturb_nothing_that_runs(tmp_path: Path) -> None:
    models = stub_models("mA")
    new = "sk-canary-new"
    before = models + f"keys: [{{key: {OPERATOR}, admin: true}}, {{key: {ADA}, member: ada}}]\n"
    after = models + f"keys: [{{key: {OPERATOR}, admin: true}}, {{key: {new}, member: ada, max_priority: batch}}]\n"
    with GatewayProcess(tmp_path, before, key=OPERATOR) as gateway, Scene(gateway) as scene:
        running = scene.send("mA", "runs", headers=bearer(ADA), stub={"chunks": 30, "gap": 0.1}, stream=True)
        scene.until_running("runs")
        waiting = scene.send("mA", "waits", headers=bearer(ADA))
        scene.until_waiting(1)
        reload(gateway, after)
        late = scene.ask("mA", "late", headers=bearer(ADA))
        scene.jobs -= 1
        assert late.status == 401
        fresh = scene.send("mA", "fresh", headers={**bearer(new), "X-LlamaSwap-Priority": "interactive"})
        assert running.answer().whole
        assert waiting.answer().status == 200, "it was taken in when its key was good"
        assert applied(fresh.answer())[0] == -100
        assert len(scene.journal("boot")) == 1, "no model is started anew"


def test_a_reader_of_the_log_hears_nothing_more_once_its_key_is_gone(tmp_path: Path) -> None:
    models = stub_models("mA")
    before = models + f"keys: [{{key: {OPERATOR}, admin: true}}, {{key: {BOT}, name: bot, admin: true}}]\n"
    with (
        GatewayProcess(tmp_path, before, key=OPERATOR) as gateway,
        gateway.client() as client,
        client.stream("GET", "/logs/stream", headers=bearer(BOT), timeout=60) as log,
    ):
        pieces = log.iter_text()
        assert "listening" in next(pieces)
        reload(gateway, models + f"keys: [{{key: {OPERATOR}, admin: true}}, {{key: {BOT}, name: bot}}]\n")
        assert gateway.request("POST", "/api/models/unload").status_code == 200
        with Scene(gateway) as scene:
            assert scene.ask("mA", "writes to the log", headers=bearer(BOT)).status == 200
        assert "job ended" not in "".join(pieces), "and its stream ends"


def test_a_file_that_has_lost_its_keys_lets_nobody_in(tmp_path: Path) -> None:
    models = stub_models("mA")
    keys = f"keys: [{{key: {OPERATOR}, admin: true}}]\n"
    with GatewayProcess(tmp_path, models + keys, key=OPERATOR) as gateway, gateway.client() as client:
        reload(gateway, models)
        assert client.get("/v1/models", headers={"Authorization": ""}).status_code == 401
        assert client.get("/v1/models").status_code == 200
        assert "it has no keys any more; to let everybody in, start anew" in gateway.log.read_text()


def test_a_gateway_gets_keys_by_a_reload(tmp_path: Path) -> None:
    models = stub_models("mA")
    with GatewayProcess(tmp_path, models, key=OPERATOR) as gateway, gateway.client() as client:
        assert client.get("/v1/models", headers={"Authorization": ""}).status_code == 200
        reload(gateway, models + f"apiKeys: [{OPERATOR}]\n")
        assert client.get("/v1/models", headers={"Authorization": ""}).status_code == 401
        assert client.get("/logs").status_code == 200
        assert client.get("/unload").status_code == 200
