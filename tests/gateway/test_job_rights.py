"""Whose jobs may be seen, ended and moved on a gateway with keys."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import GatewayProcess, stub_models
from tests.support.job_news import JobNews
from tests.support.people import KEYS, Person
from tests.support.stub_client import eventually

LONG: dict[str, Any] = {"dur": 60}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("rights"), stub_models("mA") + KEYS) as process:
        yield process


# What is shown.


def test_of_others_the_queue_tells_the_scores_and_nothing_of_who_they_are(alice: Person, bob: Person) -> None:
    bobs = [bob.job("b1", stub=LONG, label="bobs-film")[0], bob.job("b2")[0], bob.stored("b3", label="bobs-film")]
    own, _ = alice.job("a1", label="alices-film", priority="batch")
    eventually(lambda: alice.lane()["running"][0]["state"] == "running", "the first one runs")

    text = alice.get("/api/queue").text
    assert not [secret for secret in (*bobs, "bob", "bobs-film") if secret in text]
    lane = alice.lane()
    (running,) = lane["running"]
    assert (running["id"], running["member"], running["label"], running["key"]) == ("", "other", "", "")
    assert (running["model"], running["band"], running["state"]) == ("mA", "normal", "running")
    assert [job["id"] for job in lane["waiting"]] == ["", "", own]
    first, _, last = lane["waiting"]
    assert first["position"] == 1
    assert "somebody else's job ends" in first["reason"]
    assert lane["waiting"][1]["reason"] == "behind another job of the same member"
    assert first["score"] == pytest.approx(first["base"] + first["affinity"] + first["aging"])
    assert (last["member"], last["label"], last["key"]) == ("alice", "alices-film", "alices-laptop")
    assert (last["priority"], last["tier_bonus"], last["ahead"]) == (-98, 2, {"normal": 2})


def test_an_admin_sees_everybodys_jobs(alice: Person, bob: Person, root: Person) -> None:
    ids = [bob.job("b1", stub=LONG)[0], alice.job("a1")[0]]
    lane = root.lane()
    assert [job["id"] for job in (*lane["running"], *lane["waiting"])] == ids
    assert [job["member"] for job in (*lane["running"], *lane["waiting"])] == ["bob", "alice"]
    assert [job["key"] for job in (*lane["running"], *lane["waiting"])] == ["bobs", "alices-laptop"]
    assert f"{ids[0]} of bob ends" in lane["waiting"][0]["reason"]
    assert all(root.get(f"/api/jobs/{job_id}").status_code == 200 for job_id in ids)


def test_why_a_job_waits_does_not_name_others(alice: Person, bob: Person) -> None:
    bobs, _ = bob.job("b1", stub=LONG)
    for own in (alice.job("a1")[0], alice.stored("a2")):
        for path in (f"/api/jobs/{own}", f"/api/jobs/{own}/why"):
            answer = alice.get(path)
            assert answer.status_code == 200
            assert "bob" not in answer.text
            assert bobs not in answer.text


def test_limits_that_keep_others_waiting_do_not_name_them(tmp_path: Path) -> None:
    config = stub_models("mA", extra="slots: 2") + KEYS + "scheduling: {max_running_per_member: 1}\n"
    with GatewayProcess(tmp_path, config) as gateway:
        alice, bob = Person(gateway, "alice"), Person(gateway, "bob")
        bob.job("b1", stub=LONG)
        bobs, _ = bob.job("b2")
        eventually(lambda: "until a job of bob ends" in bob.get(f"/api/jobs/{bobs}").json()["reason"], "he is told why")
        (waiting,) = alice.lane()["waiting"]
        assert waiting["reason"] == "until a job of its member ends: it has as many running as it may"
        for job in bob.lane()["running"]:
            bob.request("DELETE", f"/api/jobs/{job['id']}")


def test_two_keys_of_a_member_share_what_they_see(alice: Person, gateway: GatewayProcess) -> None:
    running, _ = alice.job("a1", stub=LONG)
    stored = alice.stored("a2")
    phone = Person(gateway, "phone")
    assert [job["id"] for job in phone.lane()["waiting"]] == [stored]
    assert phone.get(f"/api/jobs/{running}").json()["state"] == "running"
    assert phone.request("DELETE", f"/api/jobs/{stored}").json() == {"msg": "ok", "id": stored}


def test_what_a_trusted_key_asks_for_a_member_is_the_members_too(alice: Person, bob: Person, bot: Person) -> None:
    for_alice, _ = bot.job("x1", stub=LONG, member="alice")
    for_carol, _ = bot.job("x2", member="carol")
    assert {bot.get(f"/api/jobs/{job_id}").status_code for job_id in (for_alice, for_carol)} == {200}
    assert alice.get(f"/api/jobs/{for_alice}").json()["key"] == "bot"
    assert alice.get(f"/api/jobs/{for_carol}").status_code == 404
    assert bob.get(f"/api/jobs/{for_alice}").status_code == 404


# Somebody else's id.


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("GET", "/why"), ("GET", "/result"), ("DELETE", ""), ("PATCH", "")],
)
def test_somebody_elses_job_is_answered_as_one_that_never_was(
    alice: Person, bob: Person, bobs_jobs: list[str], method: str, path: str
) -> None:
    change: dict[str, Any] = {"json": {"priority": "batch"}} if method == "PATCH" else {}
    before = [bob.get(f"/api/jobs/{job_id}").json() for job_id in bobs_jobs]
    unknown = alice.request(method, f"/api/jobs/nobody{path}", **change)
    assert unknown.status_code == 404
    for job_id in bobs_jobs:
        answer = alice.request(method, f"/api/jobs/{job_id}{path}", **change)
        assert answer.status_code == 404
        assert answer.text == unknown.text.replace("nobody", job_id)
        assert sorted(answer.headers) == sorted(unknown.headers)
    after = [bob.get(f"/api/jobs/{job_id}").json() for job_id in bobs_jobs]
    kept = ("id", "state", "outcome", "priority", "attempts")
    assert [{k: job.get(k) for k in kept} for job in after] == [{k: job.get(k) for k in kept} for job in before]


def test_a_member_ends_and_fetches_its_own_jobs(bob: Person, bobs_jobs: list[str]) -> None:
    over, stored_over, *live = bobs_jobs
    assert bob.get(f"/api/jobs/{stored_over}/result").json()["rid"] == "b-stored-over"
    assert bob.request("DELETE", f"/api/jobs/{over}").status_code == 409
    for job_id in (*reversed(live), stored_over):
        assert bob.request("DELETE", f"/api/jobs/{job_id}").json() == {"msg": "ok", "id": job_id}


def test_without_a_key_every_job_is_401(gateway: GatewayProcess, bobs_jobs: list[str]) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("PATCH", ""), ("GET", "/why"), ("GET", "/result")):
        assert gateway.request(method, f"/api/jobs/{bobs_jobs[2]}{path}").status_code == 401
    for path in ("/api/queue", "/api/members", "/api/events"):
        assert gateway.get(path).status_code == 401


# News.


def news_for(gateway: GatewayProcess, person: Person) -> JobNews:
    return JobNews(gateway, {"x-api-key": person.key})


def test_news_are_of_own_jobs_only(gateway: GatewayProcess, alice: Person, bob: Person, root: Person) -> None:
    readers = [news_for(gateway, person) for person in (alice, bob, root)]
    try:
        bobs, alices = bob.stored("b1"), alice.stored("a1")
        last = alice.stored("a2", priority="batch")  # told after all the others
        of_alice, of_bob, of_root = readers
        for reader in (of_alice, of_root):
            eventually(
                lambda reader=reader: [job for job in reader.jobs if job["id"] == last and job["outcome"]],  # type: ignore[misc]
                "all is told",
            )
        eventually(lambda: [job for job in of_bob.jobs if job["outcome"]], "bob is told of his")
        assert of_alice.told() == {alices, last}
        assert of_bob.told() == {bobs}
        assert of_root.told() == {bobs, alices, last}
    finally:
        for reader in readers:
            reader.close()


def test_a_changed_priority_is_news(gateway: GatewayProcess, bob: Person) -> None:
    bob.job("b1", stub=LONG)
    moved, _ = bob.job("b2")
    reader = news_for(gateway, bob)
    try:
        assert bob.request("PATCH", f"/api/jobs/{moved}", json={"priority": -50}).status_code == 200
        eventually(lambda: reader.jobs, "it is told")
        (news,) = reader.jobs
        assert (news["id"], news["priority"], news["band"], news["state"]) == (moved, -50, "batch", "waiting")
    finally:
        reader.close()


def test_a_reader_whose_key_is_taken_away_is_told_nothing_more(tmp_path: Path) -> None:
    models = stub_models("mA")
    with GatewayProcess(tmp_path, models + KEYS) as gateway:
        root, bob = Person(gateway, "root"), Person(gateway, "bob")
        readers = [news_for(gateway, root), news_for(gateway, bob)]
        try:
            before = root.stored("r1")
            eventually(lambda: [job for job in readers[0].jobs if job["outcome"]], "root is told")
            # The admin's key becomes that of a member, and bob's is gone.
            gateway.write_config(
                models + KEYS.replace("name: root, admin: true", "member: rudi").replace("sk-bob", "sk-gone")
            )
            os.kill(gateway.process.pid, signal.SIGHUP)
            eventually(lambda: "configuration reloaded" in gateway.log.read_text(), "the file is read again")
            Person(gateway, "alice").stored("a1")
            own = root.stored("r2")
            eventually(lambda: own in readers[0].told(), "news of its own jobs still come")
            assert readers[1].over.wait(20)
            assert readers[0].told() == {before, own}
            assert readers[1].jobs == []
        finally:
            for reader in readers:
                reader.close()
