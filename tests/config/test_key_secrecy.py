from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swaplane.cli_check import described, print_report
from swaplane.config.problems import ConfigError
from tests.config.reading import settings

CANARY = "zqxCANARYzqx"
#: Each puts a key where it belongs or where it ends up by a slip; `@` is the key.
PLACES = [
    "apiKeys: [@]",
    "apiKeys: ['@', '@']",
    "apiKeys: ['@ x']",
    "apiKeys: @",
    "apiKeys: {@: 1}",
    "apiKeys: {@, @}",
    "apiKeys: [{@: x}]",
    "apiKeys:\n- @: x\n  @: y",
    "apiKeys:\n  @: [${env.UNSET}]",
    "keys: @",
    "keys: [@]",
    "keys: [[@]]",
    "keys: {@: {member: alice}}",
    "keys: {@, @}",
    "keys: [{@: {member: alice}}]",
    "keys:\n- @:\n    member: alice",
    "keys:\n- @: x\n  @: y",
    "keys:\n- @: ${env.UNSET}",
    "keys:\n- @: &a [*a]",
    "keys:\n- @: !tag x",
    "keys:\n- @: ${unknown}",
    "keys: [{key: @}]",
    "keys: [{key: '@'}, {key: '@'}]",
    "keys: [{key: '@', kye: '@'}]",
    "keys: [{key: '@ @'}]",
    'keys: [{key: "@\\n"}]',
    "keys: [{key: [@]}]",
    "keys: [{key: {@: x}}]",
    "keys: [{key: {@, @}}]",
    "keys: [{key: 'sha256:@'}]",
    "keys: [{key: '${env.KEY}'}, {key: '${env.KEY}'}]",
    "keys: [{key: ${env.KEY} x}]",
    "keys: [{key: '${@}'}]",
    "apiKeys: ['${@}']",
    "macros: {k: '@'}\nkeys: [{key: '${k}'}, {key: '${k}'}, {key: '${kk}'}]",
    "apiKeys: [*@]",
    "apiKeys: [!@]",
    "keys:\n- key: *@",
    "keys:\n- key: !@\n",
    "keys:\n- key: !@!x y",
    "keys:\n- key: |@\n",
    "keys:\n- key: '@",
    'keys:\n- key: "@',
    "keys:\n- key: [@\n",
    "apiKeys:\n- @: - x",
    "apiKeys: ['@']\nkeys: [{key: '@', member: alice, limits: {waiting: 1}}]",
]


def everything_told(text: str, environ: dict[str, str]) -> str:
    try:
        read = settings(text, environ)
    except ConfigError as error:
        return f"{error!r}\n{error}\n{error.problems}"
    return f"{read!r}\n{read.keys!r}\n{read.warnings}\n{read.limits!r}\n{json.dumps(described(read))}"


def assert_not_told(key: str, text: str, capsys: pytest.CaptureFixture[str] | None = None) -> None:
    environ = {"KEY": key}
    told = everything_told(text.replace("@", key), environ)
    if capsys is not None and not told.startswith("ConfigError"):
        print_report(settings(text.replace("@", key), environ))
        told += capsys.readouterr().out
    hashes = {hashlib.sha256(form.encode("utf-8", "surrogatepass")) for form in (key, f"{key}\n")}
    for secret in (CANARY, *(form for hashed in hashes for form in (hashed.hexdigest(), repr(hashed.digest())))):
        assert secret.lower() not in told.lower()


@pytest.mark.parametrize("place", PLACES)
def test_nothing_that_is_told_holds_a_key_or_its_hash(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_not_told(CANARY, place, capsys)


#: On one line, as a key is; only where it stands in a section of keys from its first sign to its last.
AROUND = st.text(
    st.characters(exclude_categories=["Cc", "Zl", "Zp"]) | st.sampled_from("*&!|>%@`'\"{}[],:#-?~${}\\ \t"), max_size=5
)


@given(st.sampled_from([place for place in PLACES if "macros" not in place]), AROUND, AROUND)
def test_nothing_that_is_told_holds_a_key_whatever_signs_are_around_it(place: str, before: str, after: str) -> None:
    assert_not_told(f"{before}{CANARY}{after}", place)
