from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swaplane.core.score import Band, ScoreRules
from swaplane.gateway.headers import (
    OwnHeaders,
    Priority,
    label_of,
    member_of,
    parse_priority,
    read_own_headers,
    response_headers,
)

RULES = ScoreRules()


@pytest.mark.parametrize(
    ("value", "applied"),
    [
        (b"0", 0),
        (b"-0", 0),
        (b"+0", 0),
        (b"-98", -98),
        (b"+100", 100),
        (b"100", 100),
        (b"007", 7),
        (b"-" + b"0" * 60_000 + b"5", -5),
        (b"0" * 65_536, 0),
        (b" \t 12\t ", 12),
        (b"1000", 1000),
        (b"-1000", -1000),
        (b"interactive", 100),
        (b"Interactive", 100),
        (b" BATCH ", -100),
        (b"normal", 0),
    ],
)
def test_numbers_and_band_names_are_taken_as_they_are(value: bytes, applied: int) -> None:
    assert parse_priority([value], RULES) == Priority(applied=applied, requested=applied)


@pytest.mark.parametrize(
    "value",
    [
        b"", b" ", b"+", b"-", b"+-1", b"--1", b"- 1", b"1 0", b"1_0", b"1e2", b"10.0", b"1,2", b"100, 100", b"0x10",
        b"x", b"urgent", b"interactiv", b"interactive,batch", "٣".encode(), "１０".encode(), "²".encode(), b"\xb2",
        b"1\x00", b"\x0b1", b"1\n", b"\xa01", b"NaN", b"inf", b"true", "ınteractive".encode(),
    ],
)  # fmt: skip
def test_everything_else_is_zero_with_a_reason(value: bytes) -> None:
    assert parse_priority([value], RULES) == Priority(
        applied=0, requested=None, reason="not a number or band name; used 0", adjust_kind="invalid"
    )


@pytest.mark.parametrize(
    ("value", "requested", "applied", "reason", "kind"),
    [
        (b"5000", 5000, 1000, "clamped from 5000 to 1000", "clamped_high"),
        (b"1001", 1001, 1000, "clamped from 1001 to 1000", "clamped_high"),
        (b"-1001", -1001, -1000, "clamped from -1001 to -1000", "clamped_low"),
        (b"9" * 18, 10**18 - 1, 1000, f"clamped from {10**18 - 1} to 1000", "clamped_high"),
        (b"9" * 65_536, None, 1000, "clamped from a number of 65536 digits to 1000", "clamped_high"),
        (b"+00" + b"9" * 5000, None, 1000, "clamped from a number of 5000 digits to 1000", "clamped_high"),
        (b"-" + b"1" * 19, None, -1000, "clamped from a number of 19 digits to -1000", "clamped_low"),
    ],
)
def test_numbers_outside_the_limits_are_clamped(
    value: bytes, requested: int | None, applied: int, reason: str, kind: str
) -> None:
    got = parse_priority([value], RULES)
    assert (got.requested, got.applied, got.reason, got.adjust_kind) == (requested, applied, reason, kind)


def test_no_header_is_zero_without_a_reason() -> None:
    assert parse_priority([], RULES) == Priority(applied=0, requested=None)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([b"1", b"1"], "header sent twice; used 0"),
        ([b"5", b"x"], "header sent twice; used 0"),
        ([b"1", b"2", b"3"], "header sent 3 times; used 0"),
    ],
)
def test_a_repeated_header_is_zero(values: list[bytes], reason: str) -> None:
    assert parse_priority(values, RULES) == Priority(applied=0, requested=None, reason=reason, adjust_kind="repeated")


def test_a_band_name_is_clamped_too() -> None:
    rules = ScoreRules(priority_max=50)
    assert parse_priority([b"interactive"], rules).applied == 50
    assert parse_priority([b"interactive"], rules).adjust_kind == "clamped_high"


def test_zero_outside_the_limits_gives_the_nearest_limit() -> None:
    rules = ScoreRules(priority_min=-200, priority_max=-10)
    assert parse_priority([], rules).applied == -10
    assert parse_priority([b"x"], rules).reason == "not a number or band name; used -10"


def test_a_band_whose_name_is_not_ascii_is_reached_by_its_number_only() -> None:
    rules = ScoreRules(bands=(Band(name="später", value=-100), Band(name="normal", value=0)))
    assert parse_priority(["später".encode()], rules).adjust_kind == "invalid"


@given(st.lists(st.binary(max_size=40) | st.from_regex(rb"[ \t]*[+-]?[0-9_.,]*[ \t]*", fullmatch=True), max_size=3))
def test_never_raises_and_stays_within_the_limits(values: list[bytes]) -> None:
    got = parse_priority(values, RULES)
    assert RULES.priority_min <= got.applied <= RULES.priority_max
    assert bool(got.reason) == (got.adjust_kind is not None)
    assert got.reason.isascii()
    if got.adjust_kind is None and values:
        assert got.requested == got.applied


@given(st.integers(-(10**30), 10**30))
def test_every_integer_is_taken_or_clamped(number: int) -> None:
    assert parse_priority([b"%d" % number], RULES).applied == min(max(number, -1000), 1000)


@pytest.mark.parametrize(
    ("values", "member"),
    [
        ([], "anonymous"),
        ([b""], "anonymous"),
        ([b" \t"], "anonymous"),
        ([b"\x01\x02"], "anonymous"),
        ([b"ada"], "ada"),
        ([b"  ada lovelace\t"], "ada lovelace"),
        (["Zoë 中".encode()], "Zoë 中"),
        ([b"caf\xe9"], "caf\ufffd"),
        ([b"a\x1b[31mb\x00\x7f"], "a[31mb"),
        (["a\u202eb\u200bc\u2028d\x85e".encode()], "abcde"),
        ([b"", b"second"], "second"),
        ([b"first", b"second"], "first"),
        ([b"x" * 99 + b" tail"], "x" * 99),
        ([b"x" * 65_536], "x" * 100),
        (["ü".encode() * 40_000], "ü" * 100),
    ],
)
def test_member(values: list[bytes], member: str) -> None:
    assert member_of(values) == member


def test_label() -> None:
    assert label_of([]) == ""
    assert label_of([b" film=night-train; shot=12/174 "]) == "film=night-train; shot=12/174"
    assert label_of([b"y" * 300]) == "y" * 200


@given(st.lists(st.binary(max_size=300), max_size=2))
def test_texts_are_short_and_can_be_shown(values: list[bytes]) -> None:
    member, label = member_of(values), label_of(values)
    assert 1 <= len(member) <= 100
    assert len(label) <= 200
    assert not any(ord(char) < 32 or ord(char) == 127 for char in member + label)
    (member + label).encode()


def test_one_pass_finds_all_in_any_case_and_ignores_the_rest() -> None:
    raw = [
        (b"host", b"localhost"),
        (b"X-LlamaSwap-Priority", b"-98"),
        (b"x-llamaswap-member", b"ada"),
        (b"X-LLAMASWAP-LABEL", b"film=x"),
        (b"x-llamaswap-priorities", b"7"),
        (b"priority", b"u=1"),
        (b"x-request-priorityy", b"1"),
    ]
    assert read_own_headers(raw, RULES) == OwnHeaders(
        priority=Priority(applied=-98, requested=-98), member="ada", label="film=x"
    )
    assert read_own_headers([], RULES) == OwnHeaders(
        priority=Priority(applied=0, requested=None), member="anonymous", label=""
    )


def test_the_same_header_in_two_spellings_is_sent_twice() -> None:
    raw = [(b"x-llamaswap-priority", b"1"), (b"X-LlamaSwap-Priority", b"2")]
    assert read_own_headers(raw, RULES).priority.adjust_kind == "repeated"


def test_response_headers() -> None:
    assert response_headers("j7", -98, 1.23456, "") == [
        (b"X-LlamaSwap-Job", b"j7"),
        (b"X-LlamaSwap-Priority", b"-98"),
        (b"X-LlamaSwap-Wait", b"1.235"),
    ]
    assert response_headers("j7", 0, 0.0, "header sent twice; used 0")[2:] == [
        (b"X-LlamaSwap-Wait", b"0.000"),
        (b"X-LlamaSwap-Priority-Reason", b"header sent twice; used 0"),
    ]
