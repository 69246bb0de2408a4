"""Which variables of the environment are kept from model servers because an API key is in them."""

from __future__ import annotations

import hashlib

import pytest

from tests.config.reading import settings

KEY = "sk-abcdefghijkl"
HASH = "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()


@pytest.mark.parametrize(
    ("keys", "environ", "secret"),
    [
        ("keys: [{key: '${env.K}'}]", {"K": KEY, "OTHER": "x", "HOME": "/root"}, {"K"}),
        ("keys: [{key: 'pre-${env.K}'}]", {"K": KEY, "COPY": f"pre-{KEY}"}, {"K", "COPY"}),
        ("keys: [{key: '${env.A}${env.B}'}]", {"A": "abcd", "B": "efgh"}, {"A", "B"}),
        (
            "apiKeys: ['${env.K}']",
            {"K": KEY, "AUTH": f"Bearer {KEY}", "URL": f"http://me:{KEY}@h/"},
            {"K", "AUTH", "URL"},
        ),
        ("macros: {k: '${env.K}'}\nkeys: [{key: '${k}-post'}]", {"K": KEY}, {"K"}),
        (f"keys: [{{key: {KEY}}}]", {"COPY": KEY, "PART": KEY[:-1]}, {"COPY"}),
        (f"keys: [{{key: '{HASH}'}}]", {"COPY": KEY, "AUTH": f"Bearer {KEY}"}, {"COPY"}),
        ("keys: [{key: '${env.K}'}]", {"K": 'back\\slash"quote'}, {"K"}),
        ('keys: [{key: "x${env.K}"}]', {"K": 'back\\slash"quote'}, {"K"}),
        ("keys: [{key: 12345678}]", {"COPY": "12345678"}, {"COPY"}),
        # A short key, or what stands in one by chance, does not take the servers' PATH or USER.
        ("keys: [{key: usr}]", {"PATH": "/usr/bin", "COPY": "usr"}, {"COPY"}),
        ("keys: [{key: root-key-1}]", {"USER": "root"}, set()),
        ("keys: [{key: 'a${env.K}bcdefgh'}]", {"K": "abc"}, set()),
        ("models: {}", {"K": KEY}, set()),
    ],
)
def test_which_variables_hold_keys(keys: str, environ: dict[str, str], secret: set[str]) -> None:
    assert settings(keys, environ).secret_env == secret


def test_no_key_is_in_the_settings() -> None:
    read = settings("apiKeys: ['${env.K}']\nkeys: [{key: 'pre-${env.K}'}]", {"K": KEY})
    assert KEY not in repr(read) + repr(read.keys) + repr(read.secret_env)


@pytest.mark.parametrize("section", ["apiKeys: ['{}']", "keys: [{{key: '{}', name: n, admin: true}}]"])
@pytest.mark.parametrize("written", ["${env.MY-KEY}", "${env.}", "x${env.MY_KEY"])
def test_a_reference_that_was_not_put_in_is_told(section: str, written: str) -> None:
    warnings = settings(f"models: {{m: {{cmd: m, proxy: 'http://h'}}}}\n{section.format(written)}").warnings
    (warning,) = warnings
    assert "holds `${env.` as it is written" in warning
    assert "MY" not in warning
