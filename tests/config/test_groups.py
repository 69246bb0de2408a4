from __future__ import annotations

import pytest

from swaplane.config.groups import address
from swaplane.core.residency import Group
from tests.config.reading import problems, settings

MODELS = """
models:
  a: {cmd: "run ${PORT}", aliases: [aa]}
  b: {cmd: "run ${PORT}"}
  c: {cmd: "run ${PORT}", lane: cpu}
scheduling: {lanes: {cpu: 1}}
"""


@pytest.mark.parametrize(
    "text",
    [
        "groups:\n  g: {swap: no, exclusive: false, persistent: on, members: [a, b]}\n  h:",
        "routing: {router: {settings: {groups:"
        " {g: {swap: no, exclusive: no, persistent: on, members: [a, b]}, h: {}}}}}",
    ],
)
def test_both_spellings_of_groups(text: str) -> None:
    assert settings(MODELS + text).groups == (
        Group(name="g", members=frozenset({"a", "b"}), swap=False, exclusive=False, persistent=True),
        Group(name="h", members=frozenset()),
    )


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("g: {members: [a, a]}", "members[1]: duplicate model member a found in group: g"),
        ("f: {members: [a]}, g: {members: [a]}", "members[0]: model member a is used in multiple groups: f and g"),
        ("g: {members: [zz]}", 'members[0]: no model config for "zz"'),
        ("g: {members: [B]}", 'members[0]: no model config for "B" (did you mean `b`?)'),
        ("g: {members: [aa]}", 'members[0]: "aa" is an alias: name the model itself, "a"'),
    ],
)
def test_a_bad_member_is_refused(groups: str, message: str) -> None:
    (found,) = problems(f"{MODELS}groups: {{{groups}}}")
    assert found.partition(": groups.g.")[2] == message


def test_a_bad_member_of_the_newer_spelling_is_told_where_it_stands() -> None:
    (found,) = problems(f"{MODELS}routing: {{router: {{settings: {{groups: {{g: {{members: [zz]}}}}}}}}}}")
    assert found == 'c.yaml:7:54: routing.router.settings.groups.g.members[0]: no model config for "zz"'


def test_the_built_in_group_cannot_be_redefined() -> None:
    read = settings(f"{MODELS}groups: {{(default): {{swap: false, members: [a, b]}}}}")
    assert read.groups == ()
    assert any("(default)" in warning for warning in read.warnings)
    assert read.plan().residency.must_leave("a", ["b"]) == ("b",)


def test_a_group_that_swaps_lies_in_one_lane() -> None:
    (found,) = problems(f"{MODELS}groups:\n  g: {{members: [a, b, c]}}")
    assert found == (
        "c.yaml:8:3: groups.g: the members of a group with `swap: true` must be in one lane,"
        " but it has `a` in gpu and `c` in cpu"
    )
    settings(f"{MODELS}groups:\n  g: {{swap: false, members: [a, b, c]}}")


def together(keys: str = "", other: str = "") -> str:
    one = "cmd: run, proxy: 'http://localhost:9000'"
    two = f"cmd: run, proxy: 'http://127.0.0.1:9000/v1'{other}"
    return f"models:\n  a: {{{one}}}\n  b: {{{two}}}\nscheduling: {{lanes: {{cpu: 1}}}}\n{keys}"


@pytest.mark.parametrize(
    "keys",
    [
        "",
        "groups: {g: {members: [a, b]}}",
        "groups: {g: {members: [a]}}",
        "groups: {g: {members: [a]}, h: {members: [b]}}",
    ],
)
def test_models_that_make_each_other_leave_may_share_an_address(keys: str) -> None:
    assert set(settings(together(keys)).models) == {"a", "b"}


@pytest.mark.parametrize(
    ("keys", "other"),
    [
        ("groups: {g: {swap: false, members: [a, b]}}", ""),
        ("groups: {g: {exclusive: false, members: [a]}}", ""),
        ("groups: {g: {persistent: true, members: [b]}}", ""),
        ("", ", lane: cpu"),
    ],
)
def test_models_that_may_be_loaded_together_may_not(keys: str, other: str) -> None:
    assert problems(together(keys, other)) == (
        "c.yaml:3:17: models.b.proxy: `a` and `b` share the address localhost:9000, but may be loaded at the same time",
    )


@pytest.mark.parametrize(
    ("proxy", "where"),
    [
        ("http://h", ("h", 80)),
        ("https://H/v1", ("h", 443)),
        ("http://127.0.0.1:5", ("localhost", 5)),
        ("http://[::1]:5/", ("localhost", 5)),
    ],
)
def test_addresses(proxy: str, where: tuple[str, int]) -> None:
    assert address(proxy) == where


@pytest.mark.parametrize(
    "proxy",
    ["", "h:80", "ftp://h", "http://", "http://h:0", "http://h:70000", "http://h:x", "http://h/?a", "http://h/#a"],
)
def test_anything_else_is_no_address(proxy: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        address(proxy)
