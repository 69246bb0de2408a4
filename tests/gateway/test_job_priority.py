"""A waiting job gets another priority: who may ask for which."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from swaplane.gateway.lines import LINES_AT_ONCE
from tests.support.gateway import GatewayProcess, stub_models
from tests.support.people import KEYS, Person
from tests.support.stub_client import eventually

LONG: dict[str, Any] = {"dur": 60}
LINES = LINES_AT_ONCE + 20


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("priorities"), stub_models("mA") + KEYS) as process:
        yield process


def error_of(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["message"]


def change(person: Person, job_id: str, priority: object) -> httpx2.Response:
    return person.request("PATCH", f"/api/jobs/{job_id}", json={"priority": priority})


def test_a_member_may_lower_its_jobs_and_not_raise_them(bob: Person) -> None:
    bob.job("b1", stub=LONG)
    job_id, _ = bob.job("b2", priority="50")
    for wanted, applied, band in (
        (50, 50, "normal"),
        ("normal", 0, "normal"),
        ("-7", -7, "batch"),
        ("BATCH", -100, "batch"),
    ):
        shown = change(bob, job_id, wanted).json()
        assert (shown["id"], shown["priority"], shown["band"]) == (job_id, applied, band)
        assert bob.get(f"/api/jobs/{job_id}").json()["priority"] == applied
    status, message = error_of(change(bob, job_id, -99))
    assert status == 403
    assert message == (
        f"job `{job_id}` has the priority -100, which your key may lower only: raising it to -99 needs a key with "
        "`admin: true`"
    )
    assert bob.get(f"/api/jobs/{job_id}").json()["priority"] == -100


def test_an_admin_may_move_any_job_within_the_limits(bob: Person, root: Person) -> None:
    bob.job("b1", stub=LONG)
    first, second = bob.job("b2")[0], bob.job("b3")[0]
    assert [job["id"] for job in root.lane()["waiting"]] == [first, second]
    assert change(root, second, "interactive").json()["position"] == 1
    assert [job["id"] for job in root.lane()["waiting"]] == [second, first]
    shown = change(root, first, 5000).json()
    assert (shown["priority"], shown["position"]) == (1000, 1)
    assert shown["reason"].endswith("; priority clamped from 5000 to 1000")
    assert "clamped" not in root.get(f"/api/jobs/{first}").json()["reason"]


def test_without_keys_everybody_may_move_any_job(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, stub_models("mA")) as open_gateway:
        first = open_gateway.raw_chat("mA", "c1", stub=LONG)
        eventually(lambda: open_gateway.queue()["running"], "it has the place")
        second = open_gateway.raw_chat("mA", "c2", headers=b"X-LlamaSwap-Member: dora\r\n")
        eventually(lambda: open_gateway.queue()["waiting"], "the other waits")
        (job,) = open_gateway.queue()["waiting"]
        path = f"/api/jobs/{job['id']}"
        assert open_gateway.request("PATCH", path, json={"priority": "interactive"}).json()["priority"] == 100
        for connection in (first, second):
            connection.close()


def test_a_band_brings_the_tier_of_the_jobs_key_whoever_asks(alice: Person, root: Person) -> None:
    alice.job("a1", stub=LONG)
    job_id, _ = alice.job("a2", priority="interactive")
    for person, wanted, applied in (
        (alice, "interactive", 102),
        (alice, 100, 102),
        (alice, 99, 99),
        (alice, "normal", 2),
        (root, "batch", -98),
        (root, 0, 2),
        (root, 1, 1),
    ):
        assert change(person, job_id, wanted).json()["priority"] == applied
    assert error_of(change(alice, job_id, 0))[0] == 403  # with the tier it is 2


def test_a_stored_job_that_waits_can_be_moved(bob: Person) -> None:
    bob.job("b1", stub=LONG)
    job_id = bob.stored("b2")
    shown = change(bob, job_id, "batch").json()
    assert (shown["priority"], shown["band"], shown["detached"]) == (-100, "batch", True)


def test_what_does_not_wait_cannot_be_moved(bob: Person, bobs_jobs: list[str]) -> None:
    over, stored_over, running, *_ = bobs_jobs
    for job_id, state in (
        (over, "it has ended as completed"),
        (stored_over, "it has ended as completed"),
        (running, "it runs, or its model loads for it"),
    ):
        status, message = error_of(change(bob, job_id, "batch"))
        assert (status, message) == (409, f"the priority of job `{job_id}` cannot be changed: {state}")


def test_a_line_that_is_not_in_the_queue_yet_cannot_be_moved(bob: Person, root: Person) -> None:
    assert root.request("POST", "/api/lanes/gpu/pause").status_code == 200
    try:
        line = {"method": "POST", "url": "/v1/chat/completions", "body": {"model": "mA"}}
        lines = "".join(json.dumps({"custom_id": str(number), **line}) + "\n" for number in range(LINES))
        file = bob.request("POST", "/v1/files", files={"file": ("b.jsonl", lines)}, data={"purpose": "batch"}).json()
        batch = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch_id = bob.request("POST", "/v1/batches", json=batch).json()["id"]
        eventually(lambda: bob.lane()["waiting"], "lines wait")
        eventually(
            lambda: bob.get(f"/v1/batches/{batch_id}").json()["request_counts"]["total"] == LINES, "all are read"
        )
        (lane,) = bob.get("/api/queue?limit=1000").json()["lanes"]
        epoch, last = max((job["id"].split("-") for job in lane["waiting"]), key=lambda parts: int(parts[1]))
        behind = f"{epoch}-{int(last) + 1}"
        assert bob.get(f"/api/jobs/{behind}").json()["state"] == "waiting"
        status, message = error_of(change(bob, behind, -200))
        assert status == 409
        assert message.endswith(
            "cannot be changed: it is stored and not in the queue yet: it waits behind others of its batch, or for "
            "the disk"
        )
        assert bob.request("POST", f"/v1/batches/{batch_id}/cancel").status_code == 200
        eventually(lambda: bob.get(f"/v1/batches/{batch_id}").json()["status"] == "cancelled", "it is cancelled", 60)
    finally:
        root.request("POST", "/api/lanes/gpu/resume")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the request body is not JSON"),
        (b"{", 'the request body is not JSON; send JSON such as {"priority": -100} or {"priority": "batch"}'),
        (b"\xff", "the request body is not JSON"),
        (b"[" * 60000, "the request body is not JSON"),
        (b"5", "must be a JSON object with the field `priority` and no other"),
        (b'["priority", 5]', "must be a JSON object with the field `priority`"),
        (b'[["priority", 5]]', "must be a JSON object with the field `priority`"),
        (b"{}", "must be a JSON object with the field `priority`"),
        (b'{"prio": 5}', "must be a JSON object with the field `priority`"),
        (b'{"priority": 5, "label": "x"}', "and no other"),
        (b'{"priority": 5, "priority": 6}', "and no other"),
        (b'{"priority": 5.0}', "whole number or one of batch, normal, interactive, and is `5.0`"),
        (b'{"priority": true}', "and is `true`"),
        (b'{"priority": null}', "and is `null`"),
        (b'{"priority": "urgent"}', 'and is `"urgent"`'),
        (b'{"priority": ""}', 'and is `""`'),
        ('{"priority": "٣"}'.encode(), 'and is `"٣"`'),
        (b'{"priority": "1_0"}', 'and is `"1_0"`'),
        (b'{"priority": [1]}', "and is `[1]`"),
        (b' {"priority" : 1e2 }', "and is `1e2`"),
        (b'{"prior\\u0069ty": {"a:b": "}"}}', 'and is `{"a:b": "}"}`'),
        ('{"priority": "hoch"}'.encode("utf-16"), 'and is `"hoch"`'),
        (b'{"priority": "\\ud800"}', "whole number or one of"),
    ],
)
def test_a_body_that_makes_no_sense_is_told_what_would(bob: Person, body: bytes, words: str) -> None:
    status, message = error_of(bob.request("PATCH", "/api/jobs/x", content=body))
    assert status == 400
    assert words in message


def test_a_body_that_is_far_too_long_is_refused(gateway: GatewayProcess, bob: Person) -> None:
    headers = {"Authorization": f"Bearer {bob.key}"}
    with gateway.client() as client:  # its connection is closed, with what is still to come on it
        answer = client.patch("/api/jobs/x", content=b" " * (1 << 20), headers=headers)
    assert error_of(answer) == (413, "the request body is longer than 65536 bytes")


def test_numbers_of_any_length_are_clamped(bob: Person, root: Person) -> None:
    bob.job("b1", stub=LONG)
    job_id, _ = bob.job("b2")
    number = b"-" + b"9" * 5000
    shown = bob.request("PATCH", f"/api/jobs/{job_id}", content=b'{"priority": %s}' % number).json()
    assert shown["priority"] == -1000
    assert shown["reason"].endswith("; priority clamped from a number of 5000 digits to -1000")
