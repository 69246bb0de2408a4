from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from swaplane.config.settings import Key
from swaplane.gateway.access import Caller, identify, without_credentials
from swaplane.gateway.errors import Unauthorized

Header = tuple[bytes, bytes]


def key(text: str, name: str = "k", **rights: Any) -> Key:
    return Key(name=name, digest=hashlib.sha256(text.encode()).digest(), **rights)


def basic(secret: bytes, user: bytes = b"me") -> bytes:
    return b"Basic " + base64.b64encode(user + b":" + secret)


KEYS = (key("sk-first", "first"), key("sk:with:colons", "colons"), key("schlüssel-鍵", "unicode"))
WRONG = b"sk-wrong"


def name_of(*headers: Header, keys: tuple[Key, ...] = KEYS) -> str | None:
    """The name of the key that is found; None when the request is refused."""
    try:
        return identify(headers, keys).key_name
    except Unauthorized:
        return None


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ((b"Authorization", b"Bearer sk-first"), "first"),
        ((b"authorization", b"bearer sk-first"), "first"),
        ((b"AUTHORIZATION", b"BEARER  sk-first\t"), "first"),
        ((b"authorization", basic(b"sk-first")), "first"),
        ((b"authorization", basic(b"sk-first", b"")), "first"),
        ((b"authorization", b"bASIC " + base64.b64encode(b":sk-first")), "first"),
        ((b"authorization", basic(b"sk:with:colons")), "colons"),
        ((b"x-api-key", b"sk-first"), "first"),
        ((b"X-Api-Key", b" sk-first "), "first"),
        ((b"authorization", b"Bearer " + "schlüssel-鍵".encode()), "unicode"),
        ((b"authorization", basic("schlüssel-鍵".encode())), "unicode"),
        ((b"x-api-key", "schlüssel-鍵".encode()), "unicode"),
    ],
)
def test_a_key_is_known_in_each_form(header: Header, name: str) -> None:
    assert name_of(header) == name


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Bearer sk-firs")],
        [(b"authorization", b"Bearer sk-first2")],
        [(b"authorization", b"Bearer SK-FIRST")],
        [(b"authorization", b"Bearer sk-first sk-first")],
        [(b"authorization", b"Bearer\tsk-first")],
        [(b"authorization", b"sk-first")],
        [(b"authorization", b"Token sk-first")],
        [(b"authorization", b"Digest sk-first")],
        [(b"authorization", b"Basic")],
        [(b"authorization", b"Basic sk-first")],
        [(b"authorization", b"Basic !!!!")],
        [(b"authorization", b"Basic " + base64.b64encode(b"me:sk-first").rstrip(b"="))],
        [(b"authorization", b"Basic " + base64.b64encode(b"sk-first"))],
        [(b"authorization", basic(b""))],
        [(b"authorization", basic(b"\xff\xfe"))],
        [(b"authorization", b"Basic \xff\xfe")],
        [(b"authorization", b"Bearer \xff\xfe\x00")],
        [(b"authorization", "Bearer schlüssel-鍵".encode("utf-16"))],
        [(b"authorization", b"Bearer " + "schl\u00fcssel".encode("latin-1"))],
        [(b"x-api-key", b"")],
        [(b"x-api-key", WRONG)],
        [(b"x-api-key", b"Bearer sk-first")],
        [(b"api-key", b"sk-first")],
        [(b"x-api-keys", b"sk-first")],
        [(b"proxy-authorization", b"Bearer sk-first")],
        [(b"cookie", b"authorization=sk-first")],
        [(b"authorization", b"Bearer " + b"x" * 250_000)],
        [(b"authorization", b"Basic " + b"QUFB" * 60_000)],
    ],
)
def test_whatever_holds_no_known_key_is_refused(headers: list[Header]) -> None:
    assert name_of(*headers) is None


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        # The first that presents a key counts, right or wrong.
        ([(b"authorization", b"Bearer sk-wrong"), (b"x-api-key", b"sk-first")], None),
        ([(b"x-api-key", b"sk-first"), (b"authorization", b"Bearer sk-wrong")], None),
        ([(b"x-api-key", WRONG), (b"authorization", b"Bearer sk-first")], "first"),
        ([(b"authorization", basic(b"sk-wrong")), (b"x-api-key", b"sk-first")], None),
        ([(b"x-api-key", WRONG), (b"authorization", basic(b"sk-first"))], "first"),
        # What presents none is passed over.
        ([(b"authorization", b"Bearer "), (b"x-api-key", b"sk-first")], "first"),
        ([(b"authorization", b"Digest x"), (b"x-api-key", b"sk-first")], "first"),
        ([(b"authorization", b"Basic !"), (b"x-api-key", b"sk-first")], "first"),
        # Of one name, two that differ present nothing; two that are equal are one.
        ([(b"authorization", b"Bearer sk-first"), (b"Authorization", b"Bearer sk-first")], "first"),
        ([(b"authorization", b"Bearer sk-first"), (b"Authorization", b"Bearer sk-wrong")], None),
        ([(b"authorization", basic(b"sk-first")), (b"authorization", b"Bearer sk-first")], None),
        ([(b"authorization", b"Bearer sk-first"), (b"authorization", b"Digest x"), (b"x-api-key", b"sk-first")], None),
        ([(b"x-api-key", b"sk-first"), (b"x-api-key", b"sk-first")], "first"),
        ([(b"x-api-key", b"sk-first"), (b"X-API-Key", WRONG)], None),
        ([(b"x-api-key", b"sk-first"), (b"X-API-Key", WRONG), (b"authorization", b"Bearer sk-first")], "first"),
    ],
)
def test_several_headers(headers: list[Header], name: str | None) -> None:
    assert name_of(*headers) == name


def test_every_key_of_the_file_is_compared_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def watched(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return one == other

    monkeypatch.setattr("hmac.compare_digest", watched)
    for text in ("sk-first", "sk:with:colons", "sk-wrong"):
        compared.clear()
        name_of((b"x-api-key", text.encode()))
        assert compared == [each.digest for each in KEYS]


def test_the_headers_without_credentials_are_all_others_as_they_came() -> None:
    raw = [
        (b"Host", b"h"),
        (b"AUTHORIZATION", b"Bearer sk-first"),
        (b"X-Api-Key", b"sk-first"),
        (b"Cookie", b"a=b"),
        (b"x-goog-api-key", b"theirs"),
        (b"x-api-key", b"again"),
        (b"Proxy-Authorization", b"Bearer sk-first"),
    ]
    assert without_credentials(raw) == [raw[0], raw[3], raw[4]]


def test_nothing_that_is_shown_of_a_caller_holds_its_key() -> None:
    caller = Caller(key=KEYS[0])
    assert "sk-first" not in repr(caller)
    assert repr(KEYS[0].digest) not in repr(caller)
    assert KEYS[0].digest.hex() not in repr(caller)


# What is whose.


@pytest.mark.parametrize(
    ("rights", "member", "key_name", "owns"),
    [
        ({}, "anonymous", "k", True),
        ({}, "anonymous", "other", False),
        ({}, "anonymous", "", False),
        ({"member": "ada"}, "ada", "k", True),
        ({"member": "ada"}, "ada", "other", True),
        ({"member": "ada"}, "ben", "other", False),
        ({"member": "ada", "trust_member_header": True}, "ben", "k", True),
        ({"admin": True}, "ben", "other", True),
        ({"admin": True}, "ben", "", True),
    ],
)
def test_own_is_what_came_with_the_key_or_runs_for_its_member(
    rights: dict[str, Any], member: str, key_name: str, owns: bool
) -> None:
    assert Caller(key=key("x", **rights)).owns(member=member, key=key_name) is owns


def test_without_keys_everything_is_everybodys() -> None:
    assert Caller().owns(member="ben", key="")
    assert Caller().admin
    assert Caller().may_use("any")


# Anything else.

TOKENS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=40)
CASES = st.sampled_from([str.lower, str.upper, str.title])


def in_form(form: str, secret: bytes, user: bytes, cased: Any) -> Header:
    match form:
        case "basic":
            return cased("authorization").encode(), cased("basic").encode() + basic(secret, user)[5:]
        case "bearer":
            return cased("authorization").encode(), cased("bearer").encode() + b" " + secret
        case _:
            return cased("x-api-key").encode(), secret


FORMS = st.sampled_from(["basic", "bearer", "plain"])
USERS = st.binary(max_size=10).filter(lambda user: b":" not in user)


@given(TOKENS, FORMS, USERS, CASES)
def test_a_right_key_is_always_known(text: str, form: str, user: bytes, cased: Any) -> None:
    header = in_form(form, text.encode(), user, cased)
    assert name_of((b"host", b"h"), header, (b"accept", b"*/*"), keys=(*KEYS, key(text, "mine"))) is not None


@given(TOKENS, TOKENS, FORMS, USERS, CASES)
def test_a_key_that_differs_in_anything_is_not(text: str, sent: str, form: str, user: bytes, cased: Any) -> None:
    assume(sent != text)
    assert name_of(in_form(form, sent.encode(), user, cased), keys=(key(text, "mine"),)) is None


@given(TOKENS, st.integers(0, 500), st.integers(1, 255))
def test_one_changed_byte_makes_it_another_key(text: str, at: int, change: int) -> None:
    secret = bytearray(text.encode())
    secret[at % len(secret)] ^= change
    changed = bytes(secret)
    assume(changed.strip(b" \t") != text.encode())
    for form in ("basic", "bearer", "plain"):
        assert name_of(in_form(form, changed, b"me", str.lower), keys=(key(text),)) is None


NAMES = st.sampled_from([b"authorization", b"Authorization", b"x-api-key", b"cookie"])
SCHEMES = st.sampled_from([b"Bearer ", b"Basic ", b"basic\t", b"Digest ", b""])


@given(st.lists(st.tuples(NAMES, SCHEMES, st.binary(max_size=80)), max_size=4))
def test_nonsense_is_refused_and_nothing_else(sent: list[tuple[bytes, bytes, bytes]]) -> None:
    assert name_of(*((name, scheme + value) for name, scheme, value in sent)) is None
