from __future__ import annotations

import dataclasses

import pytest

from swaplane.config.problems import nearest
from swaplane.config.settings import Settings
from tests.config.reading import model, settings

TEXT = """
models:
  llama-70b: {cmd: "run ${PORT}", aliases: [gpt-4, Claude], ttl: 60, slots: 3}
  llama-8b: {cmd: "run ${PORT}", aliases: [gpt-4-mini], lane: cpu}
  hidden-llama: {cmd: "run ${PORT}", unlisted: true}
groups:
  g: {members: [llama-70b], persistent: yes}
scheduling:
  lanes: {cpu: 2}
"""


@pytest.fixture(scope="module")
def read() -> Settings:
    return settings(TEXT)


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("llama-70b", "llama-70b"),
        ("gpt-4", "llama-70b"),
        ("gpt-4-mini", "llama-8b"),
        ("hidden-llama", "hidden-llama"),
        ("LLAMA-70b", None),
        ("claude", None),
        ("llama", None),
        ("", None),
    ],
)
def test_names_are_looked_up_exactly(read: Settings, name: str, model_id: str | None) -> None:
    found = read.resolve(name)
    assert (found.id if found else None) == model_id


def test_the_nearest_names_are_offered_without_unlisted_models(read: Settings) -> None:
    names = read.listed_names()
    assert nearest("LLAMA-70", names) == ["llama-70b", "llama-8b"]
    assert nearest("claud", names) == ["Claude"]
    assert nearest("gpt-4-min", names, n=1) == ["gpt-4-mini"]
    assert nearest("hidden-llama", names) == []
    assert nearest("whisper", names) == []


def test_the_plan_holds_what_the_dispatcher_decides_by(read: Settings) -> None:
    plan = read.plan()
    assert plan.models.keys() == read.models.keys()
    big = plan.models["llama-70b"]
    assert (big.lane, big.slots, big.ttl_s) == ("gpu", 3, 60)
    assert big.fingerprint == read.models["llama-70b"].fingerprint
    assert plan.models["llama-8b"].lane == "cpu"
    assert plan.lanes == read.lanes
    assert plan.lanes["cpu"].size == 2
    assert plan.rules == read.rules
    assert plan.residency.must_leave("hidden-llama", ["llama-70b"]) == ()
    assert plan.residency.must_leave("llama-70b", ["hidden-llama"]) == ("hidden-llama",)


def test_settings_read_as_one_line_and_do_not_change(read: Settings) -> None:
    assert repr(read) == "<settings of c.yaml: 3 models in 2 lanes>"
    assert repr(read.models["llama-8b"]) == "<model llama-8b in lane cpu with 1 slots at http://localhost:5802>"
    with pytest.raises(dataclasses.FrozenInstanceError):
        read.models["llama-8b"].lane = "gpu"  # type: ignore[misc]
    with pytest.raises(TypeError):
        read.models["x"] = read.models["llama-8b"]  # type: ignore[index]
    with pytest.raises(TypeError):
        read.models["llama-8b"].metadata["x"] = 1  # type: ignore[index]


def test_reading_twice_gives_equal_settings(read: Settings) -> None:
    assert settings(TEXT) == read


BASE = "cmd: 'run ${PORT}'"


@pytest.mark.parametrize(
    "changed",
    [
        "cmd: 'run ${PORT} -x'",
        f"{BASE}, cmdStop: 'kill ${{PID}}'",
        f"{BASE}, env: ['A=b']",
        f"{BASE}, proxy: 'http://localhost:9'",
        f"{BASE}, checkEndpoint: /ready",
        f"{BASE}, lane: cpu",
    ],
)
def test_the_fingerprint_changes_with_what_a_running_server_cannot_take_over(changed: str) -> None:
    lanes = "scheduling: {lanes: {cpu: 1}}\n"
    before = model(f"{lanes}models: {{m: {{{BASE}}}}}")
    assert model(f"{lanes}models: {{m: {{{changed}}}}}").fingerprint != before.fingerprint


@pytest.mark.parametrize(
    "changed",
    [
        'cmd: "run  \\\\\\n ${PORT}\\n# a comment"',
        f"{BASE}, ttl: 5",
        f"{BASE}, unloadTimeout: 5",
        f"{BASE}, healthCheckTimeout: 5",
        f"{BASE}, aliases: [x]",
        f"{BASE}, name: x, description: y, metadata: {{a: 1}}",
        f"{BASE}, unlisted: true",
        f"{BASE}, useModelName: x",
        f"{BASE}, slots: 4",
        f"{BASE}, macros: {{unused: 1}}",
        f"{BASE}, proxy: 'http://localhost:5800/'",
        f"{BASE}, sendLoadingState: true",
    ],
)
def test_the_fingerprint_stays_with_everything_else(changed: str) -> None:
    before = model(f"models: {{m: {{{BASE}}}}}")
    assert model(f"models: {{m: {{{changed}}}}}").fingerprint == before.fingerprint


@pytest.mark.parametrize(
    "top",
    [
        "apiKeys: [a-key]",
        "keys: [{key: a-key, member: alice, admin: true}]",
        "scheduling: {limits: {waiting: 3}, max_wait: 5, interactive_budget: 10, max_running_per_member: 1}",
        "scheduling: {fairness: gpu_time, weights: {alice: 2}}",
        "scheduling: {lanes: {gpu: {size: 2, reserve: {interactive: 1}}}}",
        "sendLoadingState: true",
    ],
)
def test_keys_and_limits_restart_no_model(top: str) -> None:
    models = f"models: {{m: {{{BASE}}}}}"
    assert model(f"{top}\n{models}").fingerprint == model(models).fingerprint


def test_the_plan_holds_the_limits() -> None:
    read = settings("scheduling: {limits: {waiting: 3}}")
    assert read.plan().limits == read.limits
    assert read.plan().limits.total.jobs == 3
