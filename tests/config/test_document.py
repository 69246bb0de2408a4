from __future__ import annotations

import pytest

from tests.config.reading import model, problems, settings


def test_the_environment_is_put_in_before_anything_is_read() -> None:
    text = """
models:
  ${env.NAME}:  # ${env.UNSET_IN_A_COMMENT}
    cmd: run "${env.QUOTED}" ${PORT}
    description: "${env.QUOTED}"
    ttl: ${env.SECONDS}
"""
    read = model(text, "chat", {"NAME": "chat", "QUOTED": 'a "b" \\ c', "SECONDS": "90"})
    assert read.argv == ("run", 'a "b" \\ c', "5800")
    assert read.description == 'a "b" \\ c'
    assert read.ttl_s == 90


def test_an_empty_variable_is_set() -> None:
    assert model("models: {m: {cmd: 'run ${PORT}', name: '${env.E}'}}", environ={"E": ""}).name == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("logLevel: ${env.A}", "1:11: logLevel: environment variable 'A' is not set"),
        (
            "x-a: ['${env.LONG}', '${env.A}']",
            "1:23: x-a[1]: environment variable 'A' is not set",
        ),
        ("a${env.A}b: 1", "1:2: a${env.A}b: environment variable 'A' is not set"),
        (
            "logLevel: ${env.LINES}",
            "1:11: logLevel: environment variable 'LINES' contains a line break or a NUL character",
        ),
    ],
)
def test_an_unusable_variable_is_told_at_its_place(text: str, message: str) -> None:
    (found,) = problems(text, {"LONG": "0123456789" * 3, "LINES": "a\nb"})
    assert found.startswith(f"c.yaml:{message}")


def test_columns_are_those_of_the_file_and_not_of_the_text_after_the_environment() -> None:
    found = problems("upstream: {ignorePaths: ['${env.LONG}', '('], nope: 1}", {"LONG": "x" * 50})
    assert [text.partition(": ")[0] for text in found] == ["c.yaml:1:41", "c.yaml:1:47"]


@pytest.mark.parametrize(
    "model_id", ["1", "1.10", "0x1F", "1_000", "on", "yes", "true", "null", "~", "2024-01-01", "1e3"]
)
def test_ids_stay_as_written(model_id: str) -> None:
    read = settings(f"models:\n  {model_id}:\n    cmd: run ${{PORT}} ${{MODEL_ID}}")
    assert read.models[model_id].argv == ("run", "5800", model_id)
    found = read.resolve(model_id)
    assert found is not None
    assert found.id == model_id


def test_names_written_as_numbers_stay_as_written() -> None:
    read = model("models: {m: {cmd: 'run ${PORT}', aliases: [1.10, 070, x], useModelName: 4, description: true}}")
    assert read.aliases == ("1.10", "070", "x")
    assert read.use_model_name == "4"
    assert read.description == "true"


@pytest.mark.parametrize(("written", "seconds"), [("300", 300), ("1_000", 1000), ("1.5", 1.5), ("0", None)])
def test_seconds_are_numbers(written: str, seconds: float | None) -> None:
    assert model(f"models: {{m: {{cmd: 'run ${{PORT}}', ttl: {written}}}}}").ttl_s == seconds


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ('"300"', 'must be a number, not the text "300": write it without quotes'),
        ("5m", 'must be a number, not the text "5m"'),
        ("12:30", 'must be a number, not the text "12:30"'),
        ("true", "must be a number, not true"),
        ("[1]", "must be a number, not a list"),
        (".inf", "must be a finite number, not .inf"),
        ("-2", "model m: invalid TTL value -2"),
        ("-0.5", "model m: invalid TTL value -0.5"),
    ],
)
def test_anything_else_is_no_number_of_seconds(written: str, sentence: str) -> None:
    assert problems(f"models:\n  m:\n    cmd: run ${{PORT}}\n    ttl: {written}") == (
        f"c.yaml:4:10: models.m.ttl: {sentence}",
    )


@pytest.mark.parametrize("word", ["yes", "on", "Yes", "ON", "true", "True"])
def test_switches_take_the_old_spellings(word: str) -> None:
    assert model(f"models: {{m: {{cmd: 'run ${{PORT}}', unlisted: {word}}}}}").unlisted
    opposite = {"yes": "no", "on": "off", "Yes": "No", "ON": "OFF", "true": "false", "True": "False"}[word]
    assert not model(f"models: {{m: {{cmd: 'run ${{PORT}}', unlisted: {opposite}}}}}").unlisted


def test_a_switch_takes_no_number() -> None:
    assert problems("includeAliasesInList: 1") == ("c.yaml:1:23: includeAliasesInList: must be true or false, not 1",)


def test_anchors_and_merges_work_with_macros() -> None:
    read = settings("""
x-base: &base
  ttl: 60
  env: &env ["A=${MODEL_ID}", 'B="#1"']
  macros: {size: 1}
x-fast: &fast {ttl: 5, slots: 2}
models:
  a:
    <<: *base
    cmd: run ${size} ${PORT}
  b:
    <<: [*fast, *base]
    cmd: >
      run ${size}
      ${PORT}
  c:
    cmd: |
      run
      # dropped
      --grammar 'a # b' --port ${PORT}
    ttl: 7
    env: *env
    <<: *fast
""")
    a, b, c = read.models.values()
    assert (a.ttl_s, a.argv, a.env) == (60, ("run", "1", "5800"), ("A=a", 'B="#1"'))
    assert (b.ttl_s, b.slots, b.argv, b.env) == (5, 2, ("run", "1", "5801"), ("A=b", 'B="#1"'))
    assert (c.ttl_s, c.slots, c.argv) == (7, 2, ("run", "--grammar", "a # b", "--port", "5802"))
    assert c.env == ("A=c", 'B="#1"')


def test_what_comes_from_an_anchor_is_told_where_it_was_written() -> None:
    text = "x-base: &base\n  tll: 60\nmodels:\n  m:\n    <<: *base\n    cmd: run ${PORT}"
    assert problems(text) == ("c.yaml:2:3: models.m.tll: unknown key `tll` (did you mean `ttl`?)",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2", "2:9: this is not valid YAML: while parsing a flow sequence"),
        ("logLevel: info\n logLevel: warn", "2:10: this is not valid YAML: mapping values are not allowed here"),
        ("a:\n\t- 1", "2:1: this is not valid YAML: while scanning for the next token, found character '\\t'"),
        ("a: *nope", "1:4: this is not valid YAML: found undefined alias; a text that begins with"),
        ("logLevel: info\n---\nlogLevel: info", "2:1: this is not valid YAML: expected a single document"),
        ('a: 1\nb: "\x01"', "2:5: this is not valid YAML: the character #x0001 is not allowed"),
        ("- a", "1:1: top-level YAML must be a mapping"),
        ("text", "1:1: top-level YAML must be a mapping"),
        ("logLevel: info\nlogLevel: warn", '2:1: logLevel: mapping key "logLevel" already defined at line 1'),
        ("models:\n  {{name}}:\n    cmd: x", "2:3: models: a key must be text; put it in quotes"),
        ("x-a: &a {b: *a}", "1:6: x-a.b: an anchor contains itself"),
        ("x-a: !env 3", "1:6: x-a: this tag is not known here; a text that begins with"),
        ("x-a: {<<: 3}", "1:11: x-a: `<<` takes a mapping or a list of mappings"),
        (f"x-a: {'[' * 500}", "1:1: this is nested too deeply"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused_with_the_place(text: str, message: str) -> None:
    (found,) = problems(text)
    assert found.startswith(f"c.yaml:{message}")


def test_a_key_written_twice_is_refused_wherever_it_stands() -> None:
    text = "models:\n  m:\n    cmd: a\n    cmd: b\n  n: {cmd: a}\n  n: {cmd: b}"
    assert problems(text) == (
        'c.yaml:4:5: models.m.cmd: mapping key "cmd" already defined at line 3',
        'c.yaml:6:3: models.n: mapping key "n" already defined at line 5',
    )


@pytest.mark.parametrize("written", ["0x_", "._", "+__", "!!bool maybe", "!!int many"])
def test_what_only_looks_like_a_number_is_text(written: str) -> None:
    text = written.rpartition(" ")[2]
    assert model(f"models: {{m: {{cmd: 'run ${{PORT}}', metadata: {{a: {written}}}}}}}").metadata == {"a": text}


def test_an_anchor_may_be_defined_again() -> None:
    assert settings("x-a: &a {b: 1}\nx-b: &a {b: 2}\nx-c: *a").models == {}
