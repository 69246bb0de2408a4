"""Stored jobs on a gateway with keys and limits: whose they are, which are taken, and what the next gateway knows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from swaplane.config.load import load
from swaplane.gateway.access import EVERYBODY, caller_with
from tests.support.gateway import GatewayProcess, stub_models
from tests.support.people import KEYS, Person
from tests.support.scene import in_time
from tests.support.stub_client import read_journal

CHAT = "/v1/chat/completions"
ASYNC = {"Prefer": "respond-async"}
POOLS = """\
  - {key: sk-pool-1-CANARY, name: pool-1}
  - {key: sk-pool-2-CANARY, name: pool-2}
"""
LIMITS = "scheduling: {limits: {member: {waiting: 3}}}\n"


def with_keys(folder: Path, extra: str = "") -> GatewayProcess:
    return GatewayProcess(folder, stub_models("mA", "mB") + KEYS + POOLS + extra, key="sk-root-CANARY")


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    with with_keys(tmp_path, LIMITS) as gateway:
        yield gateway


def send(person: Person, rid: str, *, idempotent: str = "", **headers: str) -> httpx2.Response:
    own = {"Idempotency-Key": idempotent} if idempotent else {}
    return person.request("POST", CHAT, json={"model": "mA", "rid": rid}, headers={**own, **headers})


def ended(person: Person, job_id: str) -> dict[str, Any]:
    """A job of this person's, once it is over."""
    told: dict[str, Any] = {}

    def is_over() -> bool:
        told.update(person.get(f"/api/jobs/{job_id}").json())
        return bool(told["state"] == "ended")

    in_time(is_over, f"{job_id} is over")
    return told


def kept(gateway: GatewayProcess, sql: str) -> list[Any]:
    """Rows of the gateway's database."""
    (file,) = gateway.config.parent.rglob("jobs.db")
    with contextlib.closing(sqlite3.connect(file)) as database:
        rows = database.execute(sql).fetchall()
        database.commit()
        return rows


# Idempotency keys.


@pytest.mark.parametrize("headers", [{}, ASYNC])
def test_two_keys_of_the_pool_do_not_read_each_others_answers(gateway: GatewayProcess, headers: dict[str, str]) -> None:
    first, second = Person(gateway, "pool-1"), Person(gateway, "pool-2")
    answers = [send(person, "same", idempotent="k", **headers) for person in (first, second, first)]
    assert {answer.status_code for answer in answers} == {202 if headers else 200}
    told = [answer.headers["X-LlamaSwap-Job"] for answer in answers]
    assert told[0] == told[2]
    assert told[0] != told[1]
    assert send(first, "another", idempotent="k", **headers).status_code == 422


# Limits.


def test_what_there_is_no_room_for_is_refused_before_it_is_stored(gateway: GatewayProcess) -> None:
    alice, bob, root = Person(gateway, "alice"), Person(gateway, "bob"), Person(gateway, "root")
    root.request("POST", "/api/lanes/gpu/pause")
    taken = [send(alice, f"a{n}", idempotent=f"k{n}", **ASYNC) for n in range(3)]
    assert [answer.status_code for answer in taken] == [202] * 3
    body = {"model": "mA", "input": "hi", "background": True}
    for refused in (
        send(alice, "a3", **ASYNC),
        send(Person(gateway, "phone"), "a3", idempotent="k3", **ASYNC),
        alice.request("POST", "/v1/responses", json=body),
        send(alice, "a3"),
    ):
        assert refused.status_code in (429, 503), refused.text
        assert refused.json()["error"]["code"] == "queue_full"
        assert ("Retry-After" in refused.headers) is (refused.status_code == 429)
    assert kept(gateway, "SELECT count(*) FROM jobs") == [(3,)]
    metrics = root.get("/metrics").text
    assert 'swaplane_jobs_total{band="normal",lane="gpu",outcome="refused_full"} 4.0' in metrics, "stored or not"
    again = send(alice, "a0", idempotent="k0", **ASYNC)
    assert (again.status_code, again.json()["id"]) == (202, taken[0].json()["id"]), "what was promised stays so"
    assert send(bob, "b0", **ASYNC).status_code == 202, "a member over its limit does not slow another"
    root.request("POST", "/api/lanes/gpu/resume")
    ended(alice, taken[2].json()["id"])
    assert send(alice, "a3", idempotent="k3", **ASYNC).status_code == 202, "a refusal is no answer to keep"


def test_of_many_that_come_at_once_no_more_are_taken_than_there_is_room_for(gateway: GatewayProcess) -> None:
    root = Person(gateway, "root")
    root.request("POST", "/api/lanes/gpu/pause")

    def one(n: int) -> int:
        with gateway.client() as client:
            headers = {"Authorization": "Bearer sk-alice-CANARY", **ASYNC}
            return client.post(CHAT, json={"model": "mA", "rid": f"a{n}"}, headers=headers).status_code

    with ThreadPoolExecutor(24) as pool:
        statuses = sorted(pool.map(one, range(48)))
    assert statuses[:3] == [202] * 3
    assert set(statuses[3:]) <= {429, 503}
    assert len(gateway.queue()["waiting"]) == 3
    assert kept(gateway, "SELECT count(*) FROM jobs") == [(3,)]
    root.request("POST", "/api/lanes/gpu/resume")


def test_the_lines_of_a_batch_are_promised(gateway: GatewayProcess) -> None:
    alice = Person(gateway, "alice")
    lines = [
        json.dumps({"custom_id": str(n), "method": "POST", "url": CHAT, "body": {"model": "mA"}}) for n in range(10)
    ]
    files = {"file": ("in.jsonl", "\n".join(lines).encode())}
    file = alice.request("POST", "/v1/files", data={"purpose": "batch"}, files=files).json()["id"]
    wanted = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    batch = alice.request("POST", "/v1/batches", json=wanted).json()["id"]
    in_time(lambda: alice.get(f"/v1/batches/{batch}").json()["status"] == "completed", "all of it has run")
    assert alice.get(f"/v1/batches/{batch}").json()["request_counts"] == {"total": 10, "completed": 10, "failed": 0}


# The next gateway.


def test_a_changed_priority_and_the_owner_of_a_job_outlive_the_gateway(tmp_path: Path) -> None:
    gateway = with_keys(tmp_path)
    with gateway.unguarded():
        root, alice = Person(gateway, "root"), Person(gateway, "alice")
        root.request("POST", "/api/lanes/gpu/pause")
        lowered, left = (send(alice, rid, **ASYNC).json()["id"] for rid in ("lowered", "left"))
        changed = alice.request("PATCH", f"/api/jobs/{lowered}", json={"priority": "batch"})
        assert (changed.status_code, changed.json()["priority"]) == (200, -98)
        assert kept(gateway, "SELECT priority, band FROM jobs ORDER BY seq") == [(-98, "batch"), (2, "normal")]
        os.kill(gateway.process.pid, signal.SIGKILL)
        gateway.process.wait()
    with with_keys(tmp_path) as gateway:
        alice, bob = Person(gateway, "alice"), Person(gateway, "bob")
        shown = {job_id: alice.get(f"/api/jobs/{job_id}").json() for job_id in (lowered, left)}
        assert [(job["member"], job["priority"]) for job in shown.values()] == [("alice", -98), ("alice", 2)]
        told = ended(alice, lowered)
        assert [entry["rid"] for entry in gateway.journal("req_start")] == ["left", "lowered"]
        assert (told["priority"], told["band"], told["outcome"]) == (-98, "batch", "completed")
        result = alice.get(f"/api/jobs/{lowered}/result")
        assert result.headers["X-LlamaSwap-Priority"] == "-98"
        assert bob.get(f"/api/jobs/{lowered}").status_code == bob.get(f"/api/jobs/{lowered}/result").status_code == 404
        assert Person(gateway, "phone").get(f"/api/jobs/{lowered}").status_code == 200


def test_how_long_a_job_may_wait_counts_from_its_first_submit_and_is_over_when_it_runs(tmp_path: Path) -> None:
    gateway = with_keys(tmp_path)
    with gateway:
        alice = Person(gateway, "alice")
        Person(gateway, "root").request("POST", "/api/lanes/gpu/pause")
        headers = {**ASYNC, "X-LlamaSwap-Max-Wait": "1000"}
        late, begun, early = (send(alice, rid, **headers).json()["id"] for rid in ("late", "begun", "early"))
    kept(gateway, f"UPDATE jobs SET submitted_at = submitted_at - 2000 WHERE id IN ('{late}', '{begun}')")
    kept(gateway, f"UPDATE jobs SET attempts = 1 WHERE id = '{begun}'")
    with with_keys(tmp_path, "scheduling: {max_wait: 1500}\n") as gateway:
        alice = Person(gateway, "alice")
        for job_id, outcome in ((late, "waited_too_long"), (begun, "completed"), (early, "completed")):
            assert ended(alice, job_id)["outcome"] == outcome
        assert alice.get(f"/api/jobs/{late}/result").status_code in (429, 503)


# What the disk holds.


def test_no_key_is_in_any_file_of_the_store(tmp_path: Path) -> None:
    gateway = with_keys(tmp_path)
    with gateway:
        alice = Person(gateway, "alice")
        send(alice, "detached", **ASYNC)
        send(alice, "keyed", idempotent="k")
        alice.request("POST", "/v1/responses", json={"model": "mA", "input": "hi", "background": True})
        line = json.dumps({"custom_id": "l", "method": "POST", "url": CHAT, "body": {"model": "mA", "rid": "line"}})
        files = {"file": ("in.jsonl", line.encode())}
        file = alice.request("POST", "/v1/files", data={"purpose": "batch"}, files=files).json()["id"]
        wanted = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
        batch = alice.request("POST", "/v1/batches", json=wanted).json()["id"]
        in_time(lambda: alice.get(f"/v1/batches/{batch}").json()["status"] == "completed", "the batch is over")
        (state,) = {path.parent for path in tmp_path.rglob("jobs.db")}
        for path in (path for path in state.rglob("*") if path.is_file()):
            assert b"CANARY" not in path.read_bytes(), path
    for path in (path for path in state.rglob("*") if path.is_file()):
        assert b"CANARY" not in path.read_bytes(), path
    assert "CANARY" not in json.dumps(read_journal(tmp_path / "journal.jsonl"))


def test_credentials_of_a_job_that_was_stored_before_there_were_keys_are_not_sent_on(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path, stub_models("mA", "mB"))
    with gateway:
        gateway.request("POST", "/api/lanes/gpu/pause")
        headers = {
            **ASYNC,
            "Authorization": "Bearer sk-before-CANARY",
            "X-Api-Key": "CANARY",
            "X-LlamaSwap-Member": "alice",
        }
        answer = gateway.request("POST", CHAT, json={"model": "mA", "rid": "before"}, headers=headers)
        job_id = answer.json()["id"]
    later = with_keys(tmp_path)
    with later:
        alice, bob = Person(later, "alice"), Person(later, "bob")
        ended(alice, job_id)
        assert bob.get(f"/api/jobs/{job_id}").status_code == 404
        (entry,) = later.journal("req_start")
        assert entry["rid"] == "before"
        assert "CANARY" not in json.dumps(entry)


@pytest.mark.parametrize(("name", "known"), [("", True), ("root", True), ("removed", False)])
def test_the_holder_of_a_key_is_found_by_its_name_while_it_is_there(tmp_path: Path, name: str, known: bool) -> None:
    (tmp_path / "config.yaml").write_text(stub_models("mA") + KEYS)
    keys = load(str(tmp_path / "config.yaml"), {}).keys
    found = caller_with(name, keys)
    assert (found is not None) is known
    assert caller_with(name, ()) is EVERYBODY
    if name and found is not None:
        assert found.key_name == name
