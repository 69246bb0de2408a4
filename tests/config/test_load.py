from __future__ import annotations

from pathlib import Path

import pytest

from swaplane.config.load import ConfigError, load
from swaplane.core.plan import LanePlan
from swaplane.core.score import ScoreRules
from tests.config.reading import model, problems, settings

RUN = "cmd: run ${PORT}"


def test_defaults() -> None:
    read = settings("models: {m: {cmd: 'run --port ${PORT}'}}")
    m = read.models["m"]
    assert (m.id, m.name, m.description, m.aliases, m.env, m.use_model_name) == ("m", "", "", (), (), "")
    assert (m.argv, m.cmd, m.stop_argv) == (("run", "--port", "5800"), "run --port 5800", None)
    assert (m.proxy, m.check_endpoint, m.health_timeout_s) == ("http://localhost:5800", "/health", 120)
    assert (m.ttl_s, m.unload_timeout_s, m.unlisted, m.metadata, m.lane, m.slots) == (None, 10, False, {}, "gpu", 1)
    assert (read.groups, read.log_level, read.include_aliases_in_list, read.warnings) == ((), "info", False, ())
    assert (read.rules, read.lanes) == (ScoreRules(), {"gpu": LanePlan(name="gpu", size=1)})
    (ignored,) = read.ignore_paths
    assert ignored.search("/assets/app.js")
    assert not ignored.search("/v1/chat/completions")


def test_an_empty_file_is_no_error_but_is_told() -> None:
    read = settings("# nothing\n")
    assert read.models == {}
    assert read.warnings == ("models: there is none in this file",)


@pytest.mark.parametrize(
    ("keys", "ttl_s"),
    [("", 600), ("ttl: -1", 600), ("ttl: 0", None), ("ttl: 5", 5), ("ttl:", 600)],
)
def test_ttl_falls_back_to_the_global_one(keys: str, ttl_s: float | None) -> None:
    assert model(f"globalTTL: 600\nmodels:\n  m:\n    {RUN}\n    {keys}").ttl_s == ttl_s


@pytest.mark.parametrize(("top", "own", "seconds"), [(0, 0, 10), (7, 0, 7), (7, 3, 3), (0, 3, 3)])
def test_unload_timeout_falls_back_to_the_global_one(top: int, own: int, seconds: float) -> None:
    text = f"unloadTimeout: {top}\nmodels:\n  m:\n    {RUN}\n    unloadTimeout: {own}"
    assert model(text).unload_timeout_s == seconds


def test_the_global_health_check_timeout_has_a_least_value_and_a_models_own_has_none() -> None:
    read = settings(f"healthCheckTimeout: 5\nmodels:\n  m:\n    {RUN}\n  n:\n    {RUN}\n    healthCheckTimeout: 0.5")
    assert read.models["m"].health_timeout_s == 15
    assert read.models["n"].health_timeout_s == 0.5
    assert read.warnings == (
        "healthCheckTimeout: 5 is raised to 15 seconds, the least for all models;"
        " a model's own healthCheckTimeout may be shorter",
    )


@pytest.mark.parametrize(
    ("keys", "slots"),
    [
        ("", 1),
        ("concurrencyLimit: 4", 4),
        ("concurrencyLimit: 4, slots: 2", 2),
        ("concurrencyLimit: 0", 1),
        ("concurrencyLimit: -3", 1),
    ],
)
def test_slots_come_from_the_concurrency_limit_when_absent(keys: str, slots: int) -> None:
    assert model(f"models: {{m: {{cmd: 'run ${{PORT}}', {keys}}}}}").slots == slots


@pytest.mark.parametrize(
    ("written", "endpoint"), [("/ready", "/ready"), ("' none '", "none"), ("ready", "/ready"), ("''", "/")]
)
def test_check_endpoint(written: str, endpoint: str) -> None:
    assert model(f"models: {{m: {{cmd: 'run ${{PORT}}', checkEndpoint: {written}}}}}").check_endpoint == endpoint


@pytest.mark.parametrize(
    ("written", "level"), [("DEBUG", "debug"), ("warn", "warn"), ("Error", "error"), ("loud", "info")]
)
def test_log_level(written: str, level: str) -> None:
    read = settings(f"logLevel: {written}")
    assert read.log_level == level
    assert any("logLevel" in warning for warning in read.warnings) == (written == "loud")


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "{}",
        "{cmd: }",
        "{cmd: ''}",
        "{cmd: '  '}",
        "{cmd: '\"\" x'}",
        '{cmd: "# nothing"}',
        '{cmd: "\\n # a\\n\\t# b"}',
        "{ttl: 3}",
    ],
)
def test_a_model_with_nothing_to_run_is_refused_by_name(entry: str) -> None:
    (found,) = problems(f"models:\n  good: {{cmd: 'run ${{PORT}}'}}\n  bad: {entry}")
    assert found.startswith("c.yaml:3:")
    assert found.endswith("models.bad.cmd: model bad: empty command: `cmd` must name the program to run")


@pytest.mark.parametrize("entry", ["[1]", "text", "3"])
def test_a_model_is_a_mapping(entry: str) -> None:
    assert problems(f"models:\n  bad: {entry}") == (
        "c.yaml:2:8: models.bad: a model must be a mapping of its settings",
    )


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    text = """\
lissen: 8080
modles: {}
startPort: 0
globalTTL: -1
unloadTimeout: -1
upstream: {ignorePaths: ["(", 'fine'], ignorePath: x}
models:
  m:
    cmd: [run, "${PORT}"]
    ttl_s: 3
    env: [FOO, A=b]
    slots: 0
    lane: gpuu
  n:
    cmd: run
    proxy: localhost:8080
    unloadTimeout: -1
    healthCheckTimeout: 0
    filters: {stripParam: x, setParams: {anything: 1}}
    timeouts: {conect: 3}
  "": {cmd: run, proxy: "http://h:99999"}
groups:
  g: {members: [m, m, nn, x], swapp: yes}
  h: {members: [m], swap: 3}
peers: {p: {proxi: x}}
routing: {router: {use: grup}}
"""
    assert problems(text) == (
        "c.yaml:1:1: lissen: unknown key `lissen`",
        "c.yaml:2:1: modles: unknown key `modles` (did you mean `models`?)",
        "c.yaml:3:12: startPort: startPort must be greater than 1",
        "c.yaml:4:12: globalTTL: globalTTL must be >= 0",
        "c.yaml:5:16: unloadTimeout: unloadTimeout must be >= 0",
        'c.yaml:6:26: upstream.ignorePaths[0]: invalid regular expression "(": missing ), unterminated subpattern at'
        " position 0",
        "c.yaml:6:40: upstream.ignorePath: unknown key `ignorePath` (did you mean `ignorePaths`?)",
        "c.yaml:9:10: models.m.cmd: must be text, not a list",
        "c.yaml:10:5: models.m.ttl_s: unknown key `ttl_s` (did you mean `ttl`?)",
        'c.yaml:11:11: models.m.env[0]: must be NAME=VALUE, not "FOO"',
        "c.yaml:12:12: models.m.slots: must be at least 1, not 0",
        "c.yaml:13:11: models.m.lane: model m: there is no lane `gpuu` under scheduling.lanes (did you mean `gpu`?)",
        'c.yaml:16:12: models.n.proxy: invalid proxy URL "localhost:8080": an address such as http://localhost:8080'
        " is needed",
        "c.yaml:17:20: models.n.unloadTimeout: must be at least 0, not -1",
        "c.yaml:18:25: models.n.healthCheckTimeout: must be greater than 0, not 0",
        "c.yaml:19:15: models.n.filters.stripParam: unknown key `stripParam` (did you mean `stripParams`?)",
        "c.yaml:20:16: models.n.timeouts.conect: unknown key `conect` (did you mean `connect`?)",
        "c.yaml:21:3: models.: a model needs a name",
        'c.yaml:21:25: models..proxy: invalid proxy URL "http://h:99999": Port out of range 0-65535',
        "c.yaml:22:1: groups: config uses both the legacy top-level 'matrix'/'groups' keys and the new"
        " 'routing.router' block; keep one of them",
        "c.yaml:23:20: groups.g.members[1]: duplicate model member m found in group: g",
        'c.yaml:23:23: groups.g.members[2]: no model config for "nn" (did you mean `n`?)',
        'c.yaml:23:27: groups.g.members[3]: no model config for "x"',
        "c.yaml:23:31: groups.g.swapp: unknown key `swapp` (did you mean `swap`?)",
        "c.yaml:24:17: groups.h.members[0]: model member m is used in multiple groups: g and h",
        "c.yaml:24:27: groups.h.swap: must be true or false, not 3",
        "c.yaml:25:13: peers.p.proxi: unknown key `proxi` (did you mean `proxy`?)",
        'c.yaml:26:25: routing.router.use: unknown router "grup" (valid: group, matrix) (did you mean `group`?)',
    )


def test_a_misspelt_key_is_refused_also_without_a_value() -> None:
    assert problems("modles:\nlogLevel:\nmodels:\n  m: {cmd: 'run ${PORT}', tll: , ttl: }") == (
        "c.yaml:1:1: modles: unknown key `modles` (did you mean `models`?)",
        "c.yaml:4:27: models.m.tll: unknown key `tll` (did you mean `ttl`?)",
    )


def test_what_no_program_can_be_given_is_refused() -> None:
    text = 'models: {m: {cmd: "run\\0 ${PORT}", cmdStop: "x\\0", env: ["A=\\0"]}}'
    assert [found.split(": ")[1] for found in problems(text)] == ["models.m.cmd", "models.m.cmdStop", "models.m.env[0]"]


def test_free_form_keys_are_not_checked() -> None:
    read = settings("""
x-anything: {a: "${unknown}"}
models:
  m:
    cmd: run ${PORT}
    metadata: {any: [1, 2.50, {thing: null}], on: true}
    macros: {whatever: 1}
    filters: {setParams: {any: {thing: 1}}, setParamsByID: {"${MODEL_ID}:x": {any: 1}}}
""")
    assert read.models["m"].metadata == {"any": [1, 2.5, {"thing": None}], "on": True}
    assert read.models["m"].metadata["any"] == [1, 2.5, {"thing": None}]


@pytest.mark.parametrize(
    ("top", "own", "told"),
    [
        ("", "", False),
        ("sendLoadingState: true", "", True),
        ("sendLoadingState: yes", "sendLoadingState: no", False),
        ("", "sendLoadingState: on", True),
        ("sendLoadingState: true", "sendLoadingState:", True),
    ],
)
def test_the_loading_state_is_sent_as_the_model_says_or_else_the_top_level(top: str, own: str, told: bool) -> None:
    assert model(f"{top}\nmodels:\n  m:\n    {RUN}\n    {own}").send_loading_state is told


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("matrix: {sets: {a: m}}", "1:1: matrix: "),
        ("routing: {router: {use: matrix}}", "1:25: routing.router.use: "),
    ],
)
def test_a_file_with_a_matrix_is_refused(text: str, where: str) -> None:
    (found,) = problems(text)
    assert (
        found
        == f"c.yaml:{where}the matrix router is not supported yet: models would be loaded together that must not be"
    )


def test_keys_not_honoured_are_told_once_each_and_only_when_they_say_something() -> None:
    read = settings("""
hooks: {on_startup: {preload: [m]}}
captureBuffer: 0
logRequests: true
profiles: {}
routing: {scheduler: {use: fifo, settings: {fifo: {priority: {m: 3}}}}}
models:
  m: {cmd: "run ${PORT}", filters: {stripParams: x}, compat: {}}
  n: {cmd: "run ${PORT}", filters: {strip_params: x}, compat: {ignoreWebsockets: true}}
""")
    assert read.warnings == (
        "hooks is not honoured yet: no model is loaded at start",
        "routing.scheduler is not honoured yet: models have no priority of their own, requests have",
        "models.m,n.filters is not honoured yet: request bodies pass unchanged",
        "models.n.compat is not honoured yet: websockets take a place like any job",
    )


def test_an_alias_belongs_to_one_model() -> None:
    text = f"models:\n  a:\n    {RUN}\n    aliases: [x, a, y]\n  b:\n    {RUN}\n    aliases: [z, x]"
    assert problems(text) == (
        "c.yaml:7:18: models.b.aliases[1]: duplicate alias x found in model: b; a has it already",
    )


def test_an_id_wins_over_an_alias_and_that_is_told() -> None:
    read = settings(f"models:\n  a:\n    {RUN}\n    aliases: [b, a]\n  b:\n    {RUN}")
    found = read.resolve("b")
    assert found is not None
    assert found.id == "b"
    assert read.warnings == ("models.a.aliases: `b` leads to the model of that id, not here",)


def test_ignore_paths() -> None:
    read = settings("upstream: {ignorePaths: ['^/a', 'b$']}")
    assert [pattern.pattern for pattern in read.ignore_paths] == ["^/a", "b$"]
    assert settings("upstream: {ignorePaths: []}").ignore_paths == settings("").ignore_paths


def test_a_file_is_read_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"\ufeffmodels:\n  m:\n    {RUN}\n".replace("\n", "\r\n"), encoding="utf-8")
    read = load(path, {})
    assert read.path == str(path)
    assert read.models["m"].argv == ("run", "5800")


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    with pytest.raises(ConfigError) as caught:
        load(missing, {})
    assert caught.value.problems == (f"{missing}: the file cannot be read: No such file or directory",)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(str(tmp_path), {})
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"models:\n  \xff: 1\n")
    with pytest.raises(ConfigError) as caught:
        load(binary, {})
    assert caught.value.problems == (f"{binary}:2:3: the file is not UTF-8 text",)
