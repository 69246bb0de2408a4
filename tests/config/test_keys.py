from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swaplane.config.settings import Key
from swaplane.core.limits import Allowance
from tests.config.reading import problems, settings

NAMELESS = (
    "keys[{}] has neither `name` nor `member`: it is called by its place in the file, and when that changes another "
    "key owns its jobs; give it a `name`"
)
MODELS = "models: {a: {cmd: 'a ${PORT}', aliases: [x]}, b: {cmd: 'b ${PORT}'}}"
NO_ADMIN = "keys: none has `admin: true`: nobody may unload a model, pause a lane or read the logs"


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def keys(text: str) -> tuple[Key, ...]:
    return settings(f"{text}\n{MODELS}").keys


def test_without_keys_there_are_none() -> None:
    for text in ("", "apiKeys: []", "keys: []", "apiKeys: []\nkeys: []"):
        read = settings(f"{text}\n{MODELS}")
        assert (read.keys, read.warnings) == ((), ())


@pytest.mark.parametrize("section", ["apiKeys", "keys"])
def test_a_section_without_a_value_is_told_because_everything_is_open(section: str) -> None:
    sentence = f"{section}: nothing is written there: whoever reaches the gateway may do everything"
    assert settings(f"{section}:\n{MODELS}").warnings == (sentence,)
    assert settings(f"{section}: ${{env.K}}\n{MODELS}", {"K": ""}).warnings == (sentence,)


def test_llama_swaps_keys_may_do_everything() -> None:
    read = settings(f"apiKeys: [sk-1, 'sk-2']\n{MODELS}")
    assert read.keys == (
        Key(name="apiKeys[0]", digest=digest("sk-1"), admin=True),
        Key(name="apiKeys[1]", digest=digest("sk-2"), admin=True),
    )
    assert read.warnings == ()


@pytest.mark.parametrize("written", ["007", "1.50", "0x1F", "1_000", "1e3", "2024-01-01", "true", "-5", "~x", "ключ"])
def test_a_key_is_the_text_as_it_is_written(written: str) -> None:
    assert [key.digest for key in keys(f"apiKeys: [{written}]")] == [digest(written)]
    assert [key.digest for key in keys(f"keys: [{{key: {written}}}]")] == [digest(written)]


def test_keys_may_come_from_the_environment_and_from_macros() -> None:
    text = 'macros: {k: sk-m}\napiKeys: ["${k}"]\nkeys: [{key: "${env.K}", admin: true}]'
    assert [key.digest for key in settings(text, {"K": "0123"}).keys] == [digest("0123"), digest("sk-m")]


def test_everything_about_a_key_arrives() -> None:
    read = settings(f"""
keys:
- key: sk-1
  name: the first
  member: alice
  tier: max
  max_priority: 50
  trust_member_header: yes
  admin: yes
  models: [x, b, a]
  limits: {{waiting: 5, waiting_bytes: 1MB, running: 2}}
- key: sk-2
  member: bob
- key: sk-3
- key: sk-4
  limits: {{waiting: none}}
  models:
{MODELS}
""")
    assert read.keys == (
        Key(
            name="the first",
            digest=digest("sk-1"),
            member="alice",
            tier_bonus=2,
            max_priority=50,
            trust_member_header=True,
            admin=True,
            models=frozenset({"a", "b"}),
        ),
        Key(name="bob", digest=digest("sk-2"), member="bob"),
        Key(name="keys[2]", digest=digest("sk-3")),
        Key(name="keys[3]", digest=digest("sk-4")),
    )
    assert read.limits.keys == {"the first": Allowance(jobs=5, bytes=1_000_000)}
    assert read.limits.running_of_keys == {"the first": 2}
    assert read.warnings == (NAMELESS.format(2), NAMELESS.format(3))


@pytest.mark.parametrize("case", [str.lower, str.upper])
def test_a_key_may_be_given_as_its_hash(case: object) -> None:
    assert callable(case)
    text = case(digest("sk-1").hex())
    (key,) = keys(f"keys: [{{key: 'sha256:{text}'}}]")
    assert key.digest == digest("sk-1")
    # A key of `apiKeys` is a text in any case, as in llama-swap.
    (simple,) = keys(f"apiKeys: ['sha256:{text}']")
    assert simple.digest == digest(f"sha256:{text}")


@pytest.mark.parametrize("written", ["sk-2", f"sha256:{digest('sk-2').hex()}"])
def test_an_entry_replaces_the_same_key_of_llama_swap(written: str) -> None:
    found = keys(f"apiKeys: [sk-1, sk-2]\nkeys: [{{key: '{written}', member: alice}}]")
    assert [(key.name, key.admin, key.digest) for key in found] == [
        ("alice", False, digest("sk-2")),
        ("apiKeys[0]", True, digest("sk-1")),
    ]


@pytest.mark.parametrize(
    ("entry", "greatest"),
    [
        ("max_priority: 50", 50),
        ("max_priority: -100", -100),
        ("max_priority: interactive", 100),
        ("max_priority: normal, tier: max", 0),
        # A consumer that is trusted writes its members' tiers into the number.
        ("max_priority: normal, trust_member_header: true", 2),
        ("max_priority: 0, trust_member_header: true", 0),
    ],
)
def test_the_greatest_priority_is_a_number_or_a_band(entry: str, greatest: int) -> None:
    assert keys(f"keys: [{{key: k, {entry}}}]")[0].max_priority == greatest


def test_a_band_with_its_tiers_does_not_exceed_the_limits() -> None:
    limits = "scheduling: {priority_limits: [-100, 101]}"
    found = keys(f"{limits}\nkeys: [{{key: k, max_priority: interactive, trust_member_header: on}}]")
    assert found[0].max_priority == 101


def test_a_file_in_which_nobody_is_an_admin_is_told_so() -> None:
    assert settings(f"keys: [{{key: k, name: n}}]\n{MODELS}").warnings == (NO_ADMIN,)
    assert settings(f"keys: [{{key: k, name: n}}, {{key: l, name: o, admin: true}}]\n{MODELS}").warnings == ()
    assert settings(f"apiKeys: [k]\nkeys: [{{key: k, name: n}}]\n{MODELS}").warnings == (NO_ADMIN,)


def test_llama_swaps_keys_may_stand_twice() -> None:
    read = settings(f"apiKeys: [k, l, k]\n{MODELS}")
    assert [key.name for key in read.keys] == ["apiKeys[0]", "apiKeys[1]"]
    assert read.warnings == ("apiKeys[2] is the same key as apiKeys[0]: one of them can go",)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("apiKeys: [k, '']", "1:14: apiKeys[1]: empty api key found in apiKeys"),
        ("apiKeys: [~]", "1:11: apiKeys[0]: empty api key found in apiKeys"),
        ("apiKeys: [k, 'a b']", "1:14: apiKeys[1]: api key cannot contain spaces"),
        (
            'apiKeys: ["a\\tb"]',
            "1:11: apiKeys[0]: api key cannot contain line breaks, tabs or other signs that are not seen",
        ),
        ("apiKeys: [{a: b}]", "1:11: apiKeys[0]: must be text, not a mapping"),
        ("apiKeys: {a: b}", "1:1: apiKeys: must be a list, not a mapping"),
        ("apiKeys: abc", "1:1: apiKeys: must be a list, not a text"),
        ("apiKeys: 5", "1:1: apiKeys: must be a list, not a single value"),
        ("keys: [abc]", "1:8: keys[0]: must be a mapping with a `key`, such as `{key: ..., member: ...}`"),
        (
            "keys: [{}]",
            "1:8: keys[0].key: empty api key found in keys: give the key, or `sha256:` and its hash",
        ),
        (
            "keys: [{key: ''}]",
            "1:14: keys[0].key: empty api key found in keys: give the key, or `sha256:` and its hash",
        ),
        ("keys: [{key: a b}]", "1:14: keys[0].key: api key cannot contain spaces"),
        ("keys: [{key: [a]}]", "1:14: keys[0].key: must be text, not a list"),
        ("keys: [{key: 'sha256:12'}]", "1:14: keys[0].key: must have 64 hexadecimal digits after `sha256:`"),
        ("keys: [{key: 'SHA256:12'}]", "1:14: keys[0].key: must have 64 hexadecimal digits after `sha256:`"),
        (
            f"keys: [{{key: 'sha256:{digest('').hex()}'}}]",
            "1:14: keys[0].key: empty api key found in keys: this is the hash of an empty text",
        ),
        (
            "keys: [{key: k}, {key: l}, {key: k, name: n}]",
            "1:34: keys[2].key: this is the key of keys[0] too: each needs a key of its own",
        ),
        (
            f"keys: [{{key: k}}, {{key: 'sha256:{digest('k').hex()}'}}]",
            "1:24: keys[1].key: this is the key of keys[0] too: each needs a key of its own",
        ),
        (
            "keys: [{key: k, membr: alice}]",
            "1:17: keys[0]: unknown key; valid: key, name, member, tier, max_priority, trust_member_header, admin,"
            " models, limits (did you mean `member`?)",
        ),
        (
            "keys: [{key: k, name: n}, {key: l, name: n}]",
            "1:42: keys[1].name: keys[0] is called `n` too: give this key a `name` of its own",
        ),
        (
            "keys: [{key: k, member: alice}, {key: l, member: alice}]",
            "1:50: keys[1].member: keys[0] is called `alice` too: give this key a `name` of its own",
        ),
        (
            f"keys: [{{key: k, name: {'n' * 101}}}]",
            "1:23: keys[0].name: must be at most 100 signs that can be seen, without spaces around them",
        ),
        (
            'keys: [{key: k, member: "a\\nb"}]',
            "1:25: keys[0].member: must be at most 100 signs that can be seen, without spaces around them",
        ),
        (
            "keys: [{key: k, member: ' a'}]",
            "1:25: keys[0].member: must be at most 100 signs that can be seen, without spaces around them",
        ),
        (
            "keys: [{key: k, member: anonymous}]",
            "1:25: keys[0].member: `anonymous` is the member of all who name none; leave `member` out, "
            "or choose another name",
        ),
        (
            "keys: [{key: k, tier: pr}]",
            "1:23: keys[0].tier: there is no tier `pr` under scheduling.tiers (did you mean `pro`?)",
        ),
        (
            "keys: [{key: k, max_priority: 1001}]",
            "1:31: keys[0].max_priority: 1001 lies outside scheduling.priority_limits [-1000, 1000]: it would never"
            " take effect",
        ),
        ("keys: [{key: k, max_priority: -1001}]", "1:31: keys[0].max_priority: -1001 lies outside"),
        (
            "keys: [{key: k, max_priority: norml}]",
            "1:31: keys[0].max_priority: there is no band `norml` under scheduling.bands (did you mean `normal`?)",
        ),
        (
            "keys: [{key: k, max_priority: '100'}]",
            '1:31: keys[0].max_priority: must be a whole number or the name of a band, not the text "100": write it'
            " without quotes",
        ),
        (
            "keys: [{key: k, max_priority: 1.5}]",
            "1:31: keys[0].max_priority: must be a whole number or the name of a band, not 1.5",
        ),
        ("keys: [{key: k, admin: 1}]", "1:24: keys[0].admin: must be true or false, not 1"),
        (
            "keys: [{key: k, models: []}]",
            "1:25: keys[0].models: at least one model is needed; without `models` all are allowed",
        ),
        ("keys: [{key: k, models: [a, lama]}]", '1:29: keys[0].models[1]: no model config for "lama"'),
        ("keys: [{key: k, models: x}]", '1:25: keys[0].models: must be a list, not the text "x"'),
        (
            "keys: [{key: k, limits: {runing: 1}}]",
            "1:26: keys[0].limits: unknown key `runing` (did you mean `running`?)",
        ),
        (
            "keys: [{key: k, limits: {running: 0}}]",
            "1:35: keys[0].limits.running: must be a whole number of at least 1, or `none`, not 0",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(line: str, message: str) -> None:
    (found,) = problems(f"{line}\n{MODELS}")
    assert found.startswith(f"c.yaml:{message}")


def test_the_nearest_model_is_offered() -> None:
    text = "keys: [{key: k, models: [lama]}]\nmodels: {llama: {cmd: 'a ${PORT}'}}"
    (found,) = problems(text)
    assert found == 'c.yaml:1:26: keys[0].models[0]: no model config for "lama" (did you mean `llama`?)'


def test_a_wrong_tier_is_told_once_and_not_again_where_it_is_used() -> None:
    text = "scheduling: {tiers: {gold: x}}\nkeys: [{key: k, tier: gold}]"
    assert [found.split(": ")[1] for found in problems(text)] == ["scheduling.tiers.gold"]


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1))
def test_a_key_in_quotes_is_taken_as_it_is_or_refused_for_its_spaces(key: str) -> None:
    text = f"apiKeys: [{json.dumps(key, ensure_ascii=False)}]"
    if key.isprintable() and " " not in key and "${" not in key:
        assert [found.digest for found in keys(text)] == [digest(key)]
    else:
        assert len(problems(text)) == 1
