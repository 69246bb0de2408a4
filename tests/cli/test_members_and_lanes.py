"""`swaplane members`, `pause` and `resume` against a gateway with fixed answers."""

from __future__ import annotations

import json

import pytest

from tests.cli.fake_gateway import MEMBERS
from tests.cli.support import swaplane


def test_the_table_shows_each_member(url: str) -> None:
    done = swaplane("members", "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    title, heading, alice, bob = done.stdout.splitlines()
    assert title.strip() == "2m01s of GPU time in 2h01m"
    assert heading.split() == ["member", "running", "waiting", "GPU", "share", "last", "hour"]
    assert alice.split() == ["alice", "1", "12", "1m31s", "75", "%", "1m01s"]
    assert bob.split()[0] == "bob"


def test_json_is_the_gateways_own_document(url: str) -> None:
    done = swaplane("members", "--json", "--url", url)
    assert (done.returncode, json.loads(done.stdout)) == (0, MEMBERS)


def test_another_server_is_told_apart(url: str) -> None:
    assert "as a Swaplane gateway does" in swaplane("members", "--url", f"{url}/elsewhere").stderr


@pytest.mark.parametrize("lane", [(), ("gpu",)])
def test_the_only_lane_need_not_be_named(url: str, lane: tuple[str, ...]) -> None:
    paused = swaplane("pause", *lane, "--url", url)
    assert (paused.returncode, paused.stderr) == (0, "")
    assert paused.stdout.startswith("lane gpu is paused: what runs ends normally, nothing new starts until ")
    assert "`swaplane resume gpu`" in paused.stdout
    resumed = swaplane("resume", *lane, "--url", url)
    assert (resumed.returncode, resumed.stdout, resumed.stderr) == (0, "lane gpu takes jobs\n", "")


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_of_several_lanes_one_has_to_be_named(url: str, command: str) -> None:
    done = swaplane(command, "--url", f"{url}/two")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Say which lane: {url}/two has gpu and cpu.\n"
    assert "lane cpu " in swaplane(command, "cpu", "--url", f"{url}/two").stdout


def test_an_unknown_lane_is_told_in_the_gateways_words(url: str) -> None:
    done = swaplane("pause", "../gpus", "--url", url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "lane ../gpus: not paused: no lane in /api/lanes/..%2Fgpus/pause; there is `gpu`\n"
