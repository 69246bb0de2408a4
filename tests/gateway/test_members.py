"""`/api/members`: what each member has and has used, and who is shown it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import GatewayProcess, stub_models
from tests.support.people import KEYS, Person
from tests.support.stub_client import eventually

FAIR = """
scheduling:
  fairness: gpu_time
  weights: {alice: 2}
  interactive_budget: 30
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("members"), stub_models("mA") + KEYS + FAIR) as process:
        yield process


def rows(person: Person) -> dict[str, dict[str, Any]]:
    answer = person.get("/api/members")
    assert answer.status_code == 200
    document = answer.json()
    assert set(document) == {"members", "since_s"}
    return {row["member"]: row for row in document["members"]}


def test_each_member_sees_its_own_row_and_an_admin_all(alice: Person, bob: Person, bot: Person, root: Person) -> None:
    alice.job("a1", stub={"dur": 60})
    eventually(lambda: alice.lane()["running"], "hers has the place")
    bob.job("b1")
    bob.job("b2")
    bot.job("x1", member="carol")
    bot.job("x2")

    seen = rows(root)
    assert next(iter(seen)) == "alice"
    assert {name: (row["running"], row["waiting"]) for name, row in seen.items()} == {
        "alice": (1, 0),
        "bob": (0, 2),
        "carol": (0, 1),
        "anonymous": (0, 1),
    }
    assert {name: row["weight"] for name, row in seen.items()} == {"alice": 2, "bob": 1, "carol": 1, "anonymous": 1}
    assert seen["bob"] == {
        "member": "bob",
        "weight": 1,
        "running": 0,
        "waiting": 2,
        "gpu_s": 0,
        "share": 0,
        "hour_gpu_s": 0,
        "budget_left_s": 1800,
    }
    assert list(rows(alice)) == ["alice"]
    assert list(rows(bob)) == ["bob"]
    assert list(rows(bot)) == ["anonymous"]


def test_what_was_used_adds_up_to_one(alice: Person, bob: Person, root: Person) -> None:
    for person in (alice, bob):
        answer = person.request(
            "POST",
            "/v1/chat/completions",
            json={"model": "mA", "rid": "m", "stub": {"dur": 0.2}},
            headers={"X-LlamaSwap-Priority": "interactive"},
        )
        assert answer.status_code == 200
    eventually(lambda: not root.lane()["running"], "both are over")
    seen = rows(root)
    assert sum(row["share"] for row in seen.values()) == pytest.approx(1, abs=0.001)
    for name in ("alice", "bob"):
        assert seen[name]["gpu_s"] > 0
        assert 0 < seen[name]["share"] < 1
        assert 0 < seen[name]["hour_gpu_s"] <= seen[name]["gpu_s"]
        assert 0 < seen[name]["budget_left_s"] < 1800


def test_without_keys_everybody_is_shown(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, stub_models("mA")) as gateway:
        assert gateway.get("/api/members").json()["members"] == []
        chat = {"json": {"model": "mA", "rid": "m"}, "headers": {"X-LlamaSwap-Member": "dora"}}
        assert gateway.request("POST", "/v1/chat/completions", **chat).status_code == 200
        (row,) = gateway.get("/api/members").json()["members"]
        assert (row["member"], row["share"], row["budget_left_s"]) == ("dora", 1, None)
