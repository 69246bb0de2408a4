from __future__ import annotations

import pytest

from swaplane.config.macros import Macro, Scalar, declare, expand, left_over, scope, spelled
from swaplane.config.problems import ConfigError, Problems
from tests.config.reading import model, problems, settings


def macros(**values: Scalar) -> list[Macro]:
    return [Macro(name=name, value=value) for name, value in values.items()]


@pytest.mark.parametrize(
    ("value", "expanded"),
    [
        ("${n}", 5),
        ("${f}", 0.7),
        ("${b}", True),
        ("n=${n} f=${f} b=${b}", "n=5 f=0.7 b=true"),
        ("${s}", "text 5"),
        ("${alias}", 5),
        (["${n}", {"${n}": "${n}"}], [5, {"${n}": 5}]),
        ("${a.b} $n ${}", "${a.b} $n ${}"),
        ("${forward}", "${late}"),
        (3, 3),
        (None, None),
    ],
)
def test_macros_are_put_in_last_declared_first(value: object, expanded: object) -> None:
    known = macros(n=5, f=0.70, b=True, s="text ${n}", alias="${n}", forward="${late}", late="x")
    # `forward` stands before `late`, so what it brings in comes too late for `late`.
    assert expand(value, known) == expanded
    assert type(expand(value, known)) is type(expanded)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (7, "7"),
        (0.70, "0.7"),
        (1.0, "1"),
        (-2.0, "-2"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1e-7, "1e-07"),
        ("x", "x"),
    ],
)
def test_scalars_inside_text_are_spelled_as_llama_swap_does(value: Scalar, text: str) -> None:
    assert spelled(value) == text


def test_an_own_macro_takes_the_position_of_the_shared_one_it_replaces() -> None:
    shared = macros(port_flag="--port", server="serve ${port_flag}")
    known = scope("m", shared, macros(port_flag="-p", extra="${server} -x"))
    assert [macro.name for macro in known] == ["MODEL_ID", "port_flag", "server", "extra"]
    assert expand("${extra}", known) == "serve -p -x"


def test_left_over_macros_are_found_with_their_paths() -> None:
    tree = {"a": ["${x}", 1], "b": {"c": "${y} ${z}"}, "d": "${a.b}"}
    assert list(left_over(tree)) == [(("a", 0), "x"), (("b", "c"), "y"), (("b", "c"), "z")]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PORT", 1, "macro name 'PORT' is reserved"),
        ("PID", 1, "macro name 'PID' is reserved"),
        ("MODEL_ID", 1, "macro name 'MODEL_ID' is reserved"),
        ("a b", 1, "macro name 'a b' contains invalid characters, must match pattern"),
        ("x" * 64, 1, f"macro name '{'x' * 64}' exceeds maximum length of 63 characters"),
        ("s", [1], "macro 's' has invalid type list, must be a scalar type (string, int, float, or bool)"),
        ("s", None, "macro 's' has invalid type null, must be a scalar type"),
        ("s", "a ${s}", "macro 's' contains self-reference"),
    ],
)
def test_a_bad_declaration_is_refused(name: str, value: object, message: str) -> None:
    found = Problems("c.yaml")
    declared = declare({"good": 1, name: value}, ("macros",), found)
    with pytest.raises(ConfigError) as caught:
        found.raise_any()
    assert f"c.yaml:1:1: macros.{name}: {message}" in str(caught.value)
    assert [macro.name for macro in declared.macros] == ["good"]
    assert declared.broken == {name}


def test_the_longest_macro_name_is_accepted() -> None:
    name = "x" * 63
    assert model(f"macros: {{{name}: y}}\nmodels: {{m: {{cmd: 'a ${{{name}}} ${{PORT}}'}}}}").argv == ("a", "y", "5800")


def test_ports_go_to_commands_that_use_them_in_the_order_of_ids() -> None:
    read = settings("""
startPort: ${first}
macros: {first: 9000, server: "serve --port ${PORT} --name ${MODEL_ID}"}
models:
  c: {cmd: "${server}", metadata: {port: "${PORT}", url: "p${PORT}"}}
  b: {cmd: serve, proxy: "http://localhost:1234/"}
  a: {cmd: "x ${PORT}", cmdStop: "stop ${PORT} ${PID}", env: ["P=${PORT}"]}
  B: {cmd: "x ${PORT}"}
""")
    assert list(read.models) == ["B", "a", "b", "c"]
    assert read.models["B"].proxy == "http://localhost:9000"
    assert read.models["a"].argv == ("x", "9001")
    assert read.models["a"].stop_argv == ("stop", "9001", "${PID}")
    assert read.models["a"].env == ("P=9001",)
    assert read.models["b"].proxy == "http://localhost:1234"
    assert read.models["c"].argv == ("serve", "--port", "9002", "--name", "c")
    assert read.models["c"].cmd == "serve --port 9002 --name c"
    assert read.models["c"].metadata == {"port": 9002, "url": "p9002"}


def test_ports_end_at_the_last_one() -> None:
    text = "startPort: 65535\nmodels:\n  a: {cmd: 'x ${PORT}'}\n  b: {cmd: 'x ${PORT}'}"
    assert "c.yaml:4:3: models.b: no port is left for this model, 65536 is above 65535" in problems(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "macros: {a: '${b1}', b1: x}\nmodels: {m: {cmd: 'run ${a}'}}",
            "2:19: models.m.cmd: unknown macro '${b1}' found in m.cmd;"
            " a macro may use only macros that are declared before it",
        ),
        (
            "macros: {model_dir: x}\nmodels:\n  m:\n    cmd: run ${modeldir}",
            "4:10: models.m.cmd: unknown macro '${modeldir}' found in m.cmd (did you mean `model_dir`?)",
        ),
        (
            "models: {m: {cmd: 'kill ${PID}'}}",
            "1:19: models.m.cmd: unknown macro '${PID}' found in m.cmd; it is known only in cmdStop",
        ),
        (
            "models: {m: {cmd: run, proxy: 'http://x', cmdStop: 'stop ${x}'}}",
            "1:52: models.m.cmdStop: unknown macro '${x}' found in m.cmdStop",
        ),
        (
            "models: {m: {cmd: run, proxy: 'http://x', filters: {stripParams: '${x}'}}}",
            "1:66: models.m.filters.stripParams: unknown macro '${x}' found in m.filters.stripParams",
        ),
        (
            "models: {m: {cmd: run, proxy: 'http://x', metadata: {a: ['${x}']}}}",
            "1:58: models.m.metadata.a[0]: model m metadata: unknown macro '${x}'",
        ),
        (
            "models: {m: {cmd: run, proxy: 'http://x', env: ['A=${x}']}}",
            "1:49: models.m.env[0]: model m env: unknown macro '${x}'",
        ),
        ("logLevel: ${x}", "1:11: logLevel: unknown macro '${x}'"),
        ("logLevel: ${MODEL_ID}", "1:11: logLevel: unknown macro '${MODEL_ID}'; it is known only to models"),
        (
            "models: {m: {cmd: run, proxy: 'http://x', env: ['A=${PORT}']}}",
            "1:49: models.m.env[0]: model m env: unknown macro '${PORT}';"
            " it is known only to models whose cmd contains it",
        ),
        (
            "models:\n  m: {cmd: run}",
            "2:3: models.m.proxy: model m: proxy uses ${PORT} but cmd does not - ${PORT} is only available when used"
            " in cmd; put it there, or give the address the command listens on",
        ),
        (
            "models:\n  m: {cmd: run, proxy: 'http://h:${PORT}'}",
            "2:17: models.m.proxy: model m: proxy uses ${PORT} but cmd does not - ${PORT} is only available when used"
            " in cmd; put it there, or give the address the command listens on",
        ),
        (
            "models:\n  m:\n    cmd: run ${PORT}\n    macros: {PID: 1}",
            "4:14: models.m.macros.PID: model m: macro name 'PID' is reserved",
        ),
    ],
)
def test_what_is_left_over_is_told_once_with_its_place(text: str, message: str) -> None:
    assert problems(text) == (f"c.yaml:{message}",)


def test_uses_of_a_macro_whose_declaration_is_faulty_are_not_reported_too() -> None:
    text = "macros: {l: [1]}\nmodels: {m: {cmd: 'run ${l}', ttl: '${l}'}}"
    assert len(problems(text)) == 1


def test_macros_of_a_model_are_unknown_to_others() -> None:
    text = """
models:
  a: {cmd: "run ${mine} ${PORT}", macros: {mine: x}}
  b: {cmd: "run ${mine} ${PORT}"}
"""
    assert problems(text)[0].startswith("c.yaml:4:12: models.b.cmd: unknown macro '${mine}' found in b.cmd")


def test_comment_lines_of_a_command_may_name_unknown_macros() -> None:
    text = "models:\n  m:\n    cmd: |\n      # ${nope}\n      run ${PORT}\n"
    assert model(text).argv == ("run", "5800")
    assert model(text).cmd == "run 5800\n"
