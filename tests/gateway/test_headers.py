from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swaplane.config.settings import Key
from swaplane.core.score import Band, ScoreRules
from swaplane.gateway.access import EVERYBODY, Caller
from swaplane.gateway.headers import (
    BadHeader,
    OwnHeaders,
    Priority,
    granted,
    label_of,
    member_of,
    parse_priority,
    read_own_headers,
    response_headers,
)

RULES = ScoreRules()


def key(**rights: Any) -> Key:
    return Key(name="k", digest=b"", **rights)


def own(raw: list[tuple[bytes, bytes]], **rights: Any) -> OwnHeaders:
    return read_own_headers(raw, RULES, Caller(key=key(**rights)))


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
    assert read_own_headers(raw, RULES, EVERYBODY) == OwnHeaders(
        priority=Priority(applied=-98, requested=-98), member="ada", label="film=x"
    )
    assert read_own_headers([], RULES, EVERYBODY) == OwnHeaders(
        priority=Priority(applied=0, requested=None), member="anonymous", label=""
    )


@pytest.mark.parametrize("value", [b"0" * 250_000 + b"x", b"+" + b"1" * 250_000 + b" 1", b"1" * 250_000 + b"."])
@pytest.mark.parametrize("name", [b"X-LlamaSwap-Priority", b"X-LlamaSwap-Max-Wait"])
def test_a_value_that_is_nearly_a_number_is_read_about_as_fast_as_one_that_is(name: bytes, value: bytes) -> None:
    def cost_s(value: bytes) -> float:
        began = time.process_time()
        with contextlib.suppress(BadHeader):
            read_own_headers([(name, value)], RULES, EVERYBODY)
        return time.process_time() - began

    right_s = max(cost_s(b"0" * 250_000), 0.001)
    assert cost_s(value) < 1000 * right_s  # trying all the ways to split it would take 100,000 times as long


# What a key may ask for.


@pytest.mark.parametrize(
    ("value", "rights", "applied", "reason", "kind"),
    [
        (b"100", {"max_priority": 100}, 100, "", None),
        (b"101", {"max_priority": 100}, 100, "clamped from 101 to 100, the highest for this key", "above_key"),
        (b"interactive", {"max_priority": 0}, 0, "clamped from 100 to 0, the highest for this key", "above_key"),
        (b"-5000", {"max_priority": 0}, -1000, "clamped from -5000 to -1000", "clamped_low"),
        (b"5000", {"max_priority": 3000}, 1000, "clamped from 5000 to 1000", "clamped_high"),
        (b"5000", {}, 1000, "clamped from 5000 to 1000", "clamped_high"),
        (
            b"9" * 30,
            {"max_priority": 7},
            7,
            "clamped from a number of 30 digits to 7, the highest for this key",
            "above_key",
        ),
        (b"-" + b"9" * 30, {"max_priority": 7}, -1000, "clamped from a number of 30 digits to -1000", "clamped_low"),
        # A tier's bonus goes on top of a band's exact value, and of no other number.
        (b"0", {"tier_bonus": 2}, 2, "", None),
        (b"batch", {"tier_bonus": 2}, -98, "", None),
        (b"1", {"tier_bonus": 2}, 1, "", None),
        (b"-98", {"tier_bonus": 2}, -98, "", None),
        (b"-300", {"tier_bonus": 2}, -300, "", None),
        (b"500", {"tier_bonus": 2, "max_priority": 100}, 102, "clamped from 500 to 100, the highest for this key",
         "above_key"),
        (b"102", {"tier_bonus": 2, "max_priority": 100}, 102, "", None),
        (b"500", {"tier_bonus": 2, "max_priority": 50}, 50, "clamped from 500 to 50, the highest for this key",
         "above_key"),
        (b"urgent", {"tier_bonus": 2}, 2, "not a number or band name; used 2", "invalid"),
        (b"urgent", {"max_priority": -100}, -100, "not a number or band name; used -100", "invalid"),
    ],
)  # fmt: skip
def test_a_key_limits_and_lifts_priorities(
    value: bytes, rights: dict[str, int], applied: int, reason: str, kind: str | None
) -> None:
    got = parse_priority([value], RULES, key(**rights))
    assert (got.applied, got.reason, got.adjust_kind) == (applied, reason, kind)


def test_without_a_header_a_key_gets_zero_with_its_tier_or_the_highest_it_may_have() -> None:
    assert parse_priority([], RULES, key(tier_bonus=1)) == Priority(applied=1, requested=None)
    assert parse_priority([], RULES, key(tier_bonus=1, max_priority=-100)) == Priority(
        applied=-99,
        requested=None,
        reason="clamped from 0 to -100, the highest for this key",
        adjust_kind="above_key",
    )
    assert parse_priority([b"1", b"2"], RULES, key(tier_bonus=1)).reason == "header sent twice; used 1"


def test_a_tier_does_not_lift_without_a_key() -> None:
    assert parse_priority([b"-100"], RULES).applied == -100


KEYS = st.builds(
    Key,
    name=st.just("k"),
    digest=st.just(b""),
    tier_bonus=st.sampled_from([0, 1, 2]),
    max_priority=st.none() | st.integers(-1000, 1000),
)


@given(st.lists(st.binary(max_size=40) | st.from_regex(rb"[+-]?[0-9]{1,25}", fullmatch=True), max_size=3), KEYS)
def test_no_header_gets_more_than_its_key_may_have(values: list[bytes], holder: Key) -> None:
    got = parse_priority(values, RULES, holder)
    highest = 1000 if holder.max_priority is None else holder.max_priority
    assert -1000 <= got.applied <= highest + holder.tier_bonus
    assert RULES.band_of(got.applied) == RULES.band_of(min(got.applied, max(highest, -1000))), "in no higher band"
    if got.applied > highest:
        assert got.applied - holder.tier_bonus in {band.value for band in RULES.bands}
    assert bool(got.reason) == (got.adjust_kind is not None)
    assert got.reason.isascii()


@given(st.integers(-(10**20), 10**20), KEYS)
def test_asking_for_less_is_free_and_a_tier_is_never_counted_twice(number: int, holder: Key) -> None:
    got = parse_priority([b"%d" % number], RULES, holder)
    assert got.applied == granted(number, RULES, holder)
    highest = 1000 if holder.max_priority is None else holder.max_priority
    if -1000 <= number <= highest:
        is_band = number in {band.value for band in RULES.bands}
        assert got.applied == number + (holder.tier_bonus if is_band else 0)
        assert got.reason == ""
    if number not in {band.value for band in RULES.bands}:
        assert got.applied <= max(number, -1000) or got.applied <= highest


# On whose behalf.


@pytest.mark.parametrize(
    ("sent", "rights", "member"),
    [
        ([b"ada"], {}, "anonymous"),
        ([b"ada"], {"member": "ben"}, "ben"),
        ([], {"member": "ben"}, "ben"),
        ([b"ada"], {"member": "ben", "trust_member_header": True}, "ada"),
        ([], {"member": "ben", "trust_member_header": True}, "ben"),
        ([b" "], {"member": "ben", "trust_member_header": True}, "ben"),
        ([b"anonymous"], {"member": "ben", "trust_member_header": True}, "anonymous"),
        ([], {"trust_member_header": True}, "anonymous"),
    ],
)
def test_a_member_header_counts_where_the_key_is_trusted(
    sent: list[bytes], rights: dict[str, Any], member: str
) -> None:
    got = own([(b"X-LlamaSwap-Member", value) for value in sent], **rights)
    assert (got.member, got.key) == (member, "k")


def test_without_keys_the_member_header_is_believed_and_the_key_has_no_name() -> None:
    got = read_own_headers([(b"x-llamaswap-member", b"ada")], RULES, EVERYBODY)
    assert (got.member, got.key) == ("ada", "")


# How long to wait, and whether to tell of it.


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"0", 0.0), (b"30", 30.0), (b"2.5", 2.5), (b" \t7 ", 7.0), (b"007.250", 7.25), (b"1000000000", 1e9),
        (b"0" * 5000 + b"1", 1.0), (b"0." + b"3" * 5000, 0.3333333333333333),
    ],
)  # fmt: skip
def test_the_longest_wait_is_seconds(value: bytes, seconds: float) -> None:
    got = read_own_headers([(b"X-LlamaSwap-Max-Wait", value)], RULES, EVERYBODY)
    assert got.max_wait_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    [
        b"", b" ", b"-1", b"+1", b"5m", b"1e3", b".5", b"5.", b"1.2.3", b"1,5", b"1_0", b"inf", b"nan", b"1000000001",
        b"1000000000.5", b"9" * 5000, b"0x10", "٣".encode(), b"\xb2", b"1\x00", b"1 2", b"30, 30",
    ],
)  # fmt: skip
def test_any_other_wait_is_refused_with_what_is_right(value: bytes) -> None:
    with pytest.raises(BadHeader) as refused:
        read_own_headers([(b"X-LlamaSwap-Max-Wait", value)], RULES, EVERYBODY)
    assert refused.value.status == 400
    assert refused.value.message.startswith(
        "the header X-LlamaSwap-Max-Wait must be seconds, such as `30` or `2.5`, at most 1000000000, and is `"
    )
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    ("value", "shown"),
    [(b"true", True), (b"1", True), (b" True ", True), (b"false", False), (b"0", False), (b"FALSE", False)],
)
def test_the_wait_is_shown_on_demand(value: bytes, shown: bool) -> None:
    assert read_own_headers([(b"x-llamaswap-show-wait", value)], RULES, EVERYBODY).show_wait is shown


@pytest.mark.parametrize("value", [b"", b"yes", b"on", b"2", b"true, true", b"tru\xc3\xa9", b"\xff"])
def test_anything_else_about_showing_it_is_refused(value: bytes) -> None:
    with pytest.raises(BadHeader, match="X-LlamaSwap-Show-Wait must be `true` or `false`, and is `"):
        read_own_headers([(b"x-llamaswap-show-wait", value)], RULES, EVERYBODY)


@pytest.mark.parametrize("name", ["X-LlamaSwap-Max-Wait", "X-LlamaSwap-Show-Wait"])
def test_either_sent_twice_is_refused(name: str) -> None:
    raw = [(name.encode(), b"1"), (name.lower().encode(), b"1")]
    with pytest.raises(BadHeader, match=f"the header {name} was sent 2 times; send it once, with "):
        read_own_headers(raw, RULES, EVERYBODY)


OURS = [b"Priority", b"Member", b"Label", b"Max-Wait", b"Show-Wait", b"Webhook"]
VALUES = st.binary(max_size=60) | st.from_regex(rb"[ \t]*[0-9]{0,12}[.]?[0-9]{0,3}[ \t]*", fullmatch=True)


@given(st.lists(st.tuples(st.sampled_from(OURS), VALUES), max_size=5), KEYS | st.none())
def test_whatever_is_sent_is_read_or_refused_in_words(sent: list[tuple[bytes, bytes]], holder: Key | None) -> None:
    raw = [(b"X-LlamaSwap-" + name, value) for name, value in sent]
    waits = [value for name, value in sent if name == b"Max-Wait"]
    try:
        got = read_own_headers(raw, RULES, Caller(key=holder))
    except BadHeader as refused:
        message = refused.message
    else:
        assert (got.max_wait_s is not None) == (len(waits) == 1)
        assert got.max_wait_s is None or 0 <= got.max_wait_s <= 1e9
        assert got.key == ("" if holder is None else "k")
        assert got.member == "anonymous" or holder is None
        return
    assert message.startswith("the header X-LlamaSwap-")
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in message)
    assert any(name in (b"Max-Wait", b"Show-Wait") for name, _ in sent)


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
