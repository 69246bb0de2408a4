from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.cli.support import swaplane

GOOD = """\
models:
  gemma:
    cmd: llama-server --port ${PORT} --model "/models/gemma 3.gguf"
    aliases: [chat, gpt-4o-mini]
    ttl: 600
    env: ["TOKEN=not-to-be-shown"]
    slots: 4
  flux:
    cmd: flux --port ${PORT}
    checkEndpoint: none
    sendLoadingState: true
groups:
  small: {swap: false, exclusive: false, members: [gemma]}
scheduling:
  bands: {batch: -40, normal: 0, interactive: 40}
  weights: {alice: 2}
  lanes: {cpu: {size: 2, reserve: {interactive: 1}}}
  max_running_per_member: 1
  max_wait: {batch: 90}
  interactive_budget: 7.5
  limits: {waiting: 500, bands: {batch: {waiting_bytes: 1500}}, member: {waiting_bytes: 512MB}}
apiKeys: [sk-not-to-be-shown, sk-two]
keys:
- {key: sk-not-to-be-shown, member: alice, tier: pro, max_priority: normal, models: [chat], limits: {waiting: 3}}
- {key: sk-three, name: bot, trust_member_header: true, limits: {running: 2}}
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD)
    return path


def test_the_report_says_what_will_run(good: Path) -> None:
    done = swaplane("check", str(good), COLUMNS="40")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    for line in (
        "command llama-server --port 5801 --model '/models/gemma 3.gguf'",
        "aliases chat, gpt-4o-mini",
        "lane gpu, 4 jobs at a time",
        "proxy http://localhost:5801",
        "ready /health answers 200 within 120 s",
        "ttl unloaded after 600 s idle",
        "env TOKEN (values not shown)",
        "ready taken to be ready once it runs",
        "ttl stays loaded when idle",
        "small gemma: resident together, other groups may stay",
        "gpu 1 place: flux, gemma",
        "cpu 2 places, 1 reserved for interactive: no models",
        "interactive 40 40 to 1000",
        "normal 0 0 to 39",
        "batch -40 -1000 to -1",
        "while it waits a streamed chat is told so in its text",
        "waiting 500 jobs, 4 GiB",
        "waiting in batch 1500 bytes",
        "waiting of a member 512 MB",
        "running of a member 1 job",
        "longest wait batch 90 s",
        "budget of a member 7.5 minutes an hour from interactive up",
        "alice member alice; tier pro +1; priorities up to 0 (1 with its tier); models gemma; waiting 3 jobs",
        "bot member named by each request, else anonymous; running 2 jobs",
        "apiKeys[1] member anonymous; admin",
    ):
        assert line in lines
    assert "smallest distance 40 (batch to normal) exceeds 12" in done.stdout
    assert "fairness turns; weights alice 2, others 1" in done.stdout
    assert done.stdout.count("\nwarning: ") == 1
    assert "not-to-be-shown" not in done.stdout


def test_json_is_one_document_with_the_same_facts(good: Path) -> None:
    done = swaplane("check", "--json", str(good))
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    flux, gemma = document["models"]
    assert gemma["argv"] == ["llama-server", "--port", "5801", "--model", "/models/gemma 3.gguf"]
    assert (gemma["slots"], gemma["ttl_s"], gemma["env"]) == (4, 600, ["TOKEN"])
    assert (flux["check_endpoint"], flux["ttl_s"], flux["stop_argv"]) == ("none", None, None)
    assert document["scheduling"]["bands"][0] == {"name": "interactive", "value": 40, "from": 40, "to": 1000}
    assert document["scheduling"]["distance"]["must_exceed"] == 12
    assert len(document["warnings"]) == 1
    assert (flux["send_loading_state"], gemma["send_loading_state"]) == (True, False)
    assert document["lanes"][1]["reserve"] == {"interactive": 1}
    assert document["scheduling"]["weights"] == {"alice": 2}
    assert document["limits"] == {
        "waiting": 500,
        "waiting_bytes": 4 << 30,
        "bands": {"batch": {"waiting": None, "waiting_bytes": 1500}},
        "member": {"waiting": None, "waiting_bytes": 512_000_000},
        "max_running_per_member": 1,
        "max_wait_s": {"batch": 90},
        "interactive_budget": {"band": "interactive", "gpu_s_per_hour": 450},
    }
    alice, bot, other = document["keys"]
    assert alice == {
        "name": "alice",
        "member": "alice",
        "tier_bonus": 1,
        "max_priority": 0,
        "trust_member_header": False,
        "admin": False,
        "models": ["gemma"],
        "limits": {"waiting": 3, "waiting_bytes": None, "running": None},
    }
    assert (bot["name"], bot["trust_member_header"], bot["limits"]["running"]) == ("bot", True, 2)
    assert (other["name"], other["admin"], other["models"]) == ("apiKeys[1]", True, None)


def test_without_keys_and_limits_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("models: {m: {cmd: 'm --port ${PORT}'}}\nscheduling: {limits: {waiting_bytes: none}}\n")
    report = [" ".join(line.split()) for line in swaplane("check", str(path)).stdout.splitlines()]
    assert "none: whoever reaches the gateway may do everything" in report
    assert "waiting 20000 jobs" in report
    assert "waiting of a member no limit" in report


def test_no_key_and_no_hash_of_one_is_told_whether_the_file_is_good_or_not(good: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(f"{GOOD}- {{key: sk-not-to-be-shown}}\n- sk-not-to-be-shown\n- {{key: 5, sk-not-to-be-shown: 1}}\n")
    hashed = hashlib.sha256(b"sk-not-to-be-shown").hexdigest()
    for path, code in ((good, 0), (bad, 1)):
        for words in (("check",), ("check", "--json")):
            done = swaplane(*words, str(path))
            assert done.returncode == code
            told = done.stdout + done.stderr
            assert "not-to-be-shown" not in told
            assert hashed[:12] not in told.lower()
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == ["keys[2].key", "keys[3]", "keys[4]"]


def test_a_band_outside_the_limits_holds_no_priority(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("models: {m: {cmd: 'm --port ${PORT}'}}\nscheduling: {priority_limits: [-200, 50]}\n")
    report = swaplane("check", str(path)).stdout
    rows = [line.split() for line in report.splitlines() if line.startswith(("  interactive", "  normal", "  batch"))]
    assert rows == [
        ["interactive", "100", "none"],
        ["normal", "0", "0", "to", "50"],
        ["batch", "-100", "-200", "to", "-1"],
    ]


def test_one_band_has_nothing_to_cross(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("models: {m: {cmd: 'm --port ${PORT}'}}\nscheduling: {bands: {all: 0}}\n")
    assert "one band: nothing to cross" in swaplane("check", str(path)).stdout
    assert json.loads(swaplane("check", "--json", str(path)).stdout)["scheduling"]["distance"] is None


def test_every_problem_of_a_bad_file_is_told_on_stderr(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("modles: {}\nmodels:\n  m:\n    cmd: m --port ${PORT}\n    ttl: -7\n")
    for words in (("check",), ("check", "--json")):
        done = swaplane(*words, str(path))
        assert (done.returncode, done.stdout) == (1, "")
        problems = done.stderr.splitlines()
        assert [line.split(": ")[0] for line in problems] == [f"{path}:1:1", f"{path}:5:10"]
        assert "did you mean `models`?" in problems[0]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = swaplane("check", str(tmp_path / "none.yaml"))
    assert done.returncode == 1
    assert done.stderr == f"{tmp_path / 'none.yaml'}: the file cannot be read: No such file or directory\n"
