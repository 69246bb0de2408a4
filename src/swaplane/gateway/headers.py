"""Reads our own request headers and writes our own response headers.

Decides what they mean for this caller, and which priority is applied. Whatever a client sends as priority, member or
label, the request goes on; one that says in an unreadable way how long it may wait, or what it wants to be shown, is
refused. Called once per request, and `response_headers` once per answer.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from swaplane.config.settings import Key
from swaplane.core.score import ScoreRules
from swaplane.gateway.access import Caller
from swaplane.gateway.errors import RequestRefused
from swaplane.wire import (
    ANONYMOUS,
    JOB_HEADER,
    LABEL_HEADER,
    MAX_WAIT_HEADER,
    MEMBER_HEADER,
    PRIORITY_HEADER,
    PRIORITY_REASON_HEADER,
    SHOW_WAIT_HEADER,
    WAIT_HEADER,
    WEBHOOK_HEADER,
)

AdjustKind = Literal["invalid", "repeated", "clamped_low", "clamped_high", "above_key"]

MEMBER_CHARS = 100  #: longest name of a member
LABEL_CHARS = 200  #: longest label
MAX_WAIT_S = 1e9  #: the longest wait that can be asked for, seconds

# No part of a pattern may match what the next one matches too: a header is up to 256 KiB long, and trying all the
# places where one part could end and the next begin takes minutes then.
_NUMBER = re.compile(rb"([+-]?)([0-9]+)")
_SECONDS = re.compile(rb"([0-9]+)(\.[0-9]+)?")
_LONGEST_NUMBER = 18  # digits; every longer number is outside all limits
_CLEANED_BYTES = 4096  # of a text header; what comes later is cut off unread
_SHOWN_BYTES = 60  # of a header's value in a message

_PRIORITY, _MEMBER, _LABEL, _MAX_WAIT, _SHOW_WAIT = (
    name.lower().encode() for name in (PRIORITY_HEADER, MEMBER_HEADER, LABEL_HEADER, MAX_WAIT_HEADER, SHOW_WAIT_HEADER)
)
#: Read by `keyed`, `jobs_api` and `webhook`, for the few requests that have one.
_MORE = frozenset((b"prefer", b"idempotency-key", WEBHOOK_HEADER.lower().encode()))
_LENGTHS = frozenset(map(len, (_PRIORITY, _MEMBER, _LABEL, _MAX_WAIT, _SHOW_WAIT, *_MORE)))
_YES_NO = {b"true": True, b"1": True, b"false": False, b"0": False}
_JOB, _WAIT, _REASON = (name.encode() for name in (JOB_HEADER, WAIT_HEADER, PRIORITY_REASON_HEADER))
_PRIORITY_ANSWER = PRIORITY_HEADER.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Priority:
    """What became of the priority header."""

    applied: int  #: within the configured limits
    requested: int | None  #: the number sent or named; None: none was sent, or none of at most 18 digits
    reason: str = ""  #: ASCII text for people; only where `applied` is not what was sent
    adjust_kind: AdjustKind | None = None  #: the same in one word, for the metric


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnHeaders:
    """Our headers of one request."""

    priority: Priority
    member: str  #: never empty
    label: str  #: empty when there is none
    key: str = ""  #: name of the API key; empty when there is none
    max_wait_s: float | None = None  #: the longest it wants to wait, seconds; None: as long as its band may
    show_wait: bool = False  #: whether a stream is to be told, in comments, how it gets on in the queue
    more: bool = False  #: whether a header is there that asks for more than to be run: see `_MORE`


class BadHeader(RequestRefused):
    """A header of ours holds something that cannot be acted on."""


def read_own_headers(raw_headers: Iterable[tuple[bytes, bytes]], rules: ScoreRules, caller: Caller) -> OwnHeaders:
    """Our headers out of a raw header list, whatever the case of the names, as they count for this caller.

    Raises BadHeader.
    """
    found: dict[bytes, list[bytes]] = {}
    for name, value in raw_headers:
        if len(name) in _LENGTHS:
            found.setdefault(name.lower(), []).append(value)
    return OwnHeaders(
        priority=parse_priority(found.get(_PRIORITY, ()), rules, caller.key),
        member=member_of(found.get(_MEMBER, ()), caller.key),
        label=label_of(found.get(_LABEL, ())),
        key=caller.key_name,
        max_wait_s=_seconds(found[_MAX_WAIT]) if _MAX_WAIT in found else None,
        show_wait=_SHOW_WAIT in found and _yes(found[_SHOW_WAIT]),
        more=not _MORE.isdisjoint(found),
    )


def parse_priority(values: Sequence[bytes], rules: ScoreRules, key: Key | None = None) -> Priority:
    """The priority that these header values (one per header sent) stand for; never raises.

    A number is clamped to what the key may have and to the limits, a band's name is its value, and everything else
    counts as 0. What is exactly a band's value then gets the bonus of the key's tier.
    """
    if not values:
        if key is None or key.max_priority is None or key.max_priority >= 0:
            return Priority(applied=granted(0, rules, key), requested=None)
        return replace(_asked(0, rules, key), requested=None)
    if len(values) > 1:
        times = "twice" if len(values) == 2 else f"{len(values)} times"
        return _not_read(f"header sent {times}", "repeated", rules, key)
    text = values[0].strip(b" \t")
    number = _NUMBER.fullmatch(text)
    if number is not None:
        sign, digits = number[1], number[2].lstrip(b"0")
        if len(digits) <= _LONGEST_NUMBER:
            requested = int(sign + (digits or b"0"))
            return _asked(requested, rules, key)
        # int() refuses long numbers, and their sign and length say enough.
        far = -(10**_LONGEST_NUMBER) if sign == b"-" else 10**_LONGEST_NUMBER
        return _asked(far, rules, key, shown=f"a number of {len(digits)} digits")
    name = text.lower()
    # One comparison for bytes that are ASCII on one side, so other scripts never match.
    values_by_name = (band.value for band in rules.bands if band.name.lower().encode() == name and name.isascii())
    named = next(values_by_name, None)
    if named is None:
        return _not_read("not a number or band name", "invalid", rules, key)
    return _asked(named, rules, key)


def granted(number: int, rules: ScoreRules, key: Key | None) -> int:
    """The applied priority of who wants this number: within what the key may have, and with its tier's bonus."""
    return _with_tier(_within_limits(_within_right(number, key), rules), rules, key)


def _within_right(number: int, key: Key | None) -> int:
    return number if key is None or key.max_priority is None else min(number, key.max_priority)


def _within_limits(number: int, rules: ScoreRules) -> int:
    return min(max(number, rules.priority_min), rules.priority_max)


def _with_tier(number: int, rules: ScoreRules, key: Key | None) -> int:
    """A number that is not exactly a band's value has its bonus in it already, or wants none."""
    is_band = key is not None and rules.band_of(number).value == number
    return number + key.tier_bonus if key is not None and is_band else number


def _not_read(why: str, kind: AdjustKind, rules: ScoreRules, key: Key | None) -> Priority:
    applied = granted(0, rules, key)
    return Priority(applied=applied, requested=None, reason=f"{why}; used {applied}", adjust_kind=kind)


def _asked(number: int, rules: ScoreRules, key: Key | None, *, shown: str = "") -> Priority:
    """What becomes of this number; `shown` stands for one that is too long to be a number at all."""
    capped = _within_right(number, key)
    clamped = _within_limits(capped, rules)
    applied = _with_tier(clamped, rules, key)
    requested = None if shown else number
    if requested in (clamped, applied):
        return Priority(applied=applied, requested=requested)
    reason = f"clamped from {shown or number} to {clamped}"
    kind: AdjustKind = "clamped_low" if clamped > number else "clamped_high"
    if clamped == capped:
        reason, kind = f"{reason}, the highest for this key", "above_key"
    return Priority(applied=applied, requested=requested, reason=reason, adjust_kind=kind)


def _seconds(values: Sequence[bytes]) -> float:
    """What a header asks for as the longest wait. Raises BadHeader."""
    right = f"seconds, such as `30` or `2.5`, at most {MAX_WAIT_S:.0f}"
    text = _only(values, MAX_WAIT_HEADER, right)
    number = _SECONDS.fullmatch(text)
    if number is not None:
        whole = number[1].lstrip(b"0")[:_LONGEST_NUMBER]
        seconds = float((whole or b"0") + (number[2] or b"")[:_LONGEST_NUMBER])
        if seconds <= MAX_WAIT_S:
            return seconds
    raise _not_readable(MAX_WAIT_HEADER, text, right)


def _yes(values: Sequence[bytes]) -> bool:
    right = "`true` or `false`"
    text = _only(values, SHOW_WAIT_HEADER, right)
    said = _YES_NO.get(text.lower())
    if said is None:
        raise _not_readable(SHOW_WAIT_HEADER, text, right)
    return said


def _only(values: Sequence[bytes], header: str, right: str) -> bytes:
    if len(values) > 1:
        raise BadHeader(f"the header {header} was sent {len(values)} times; send it once, with {right}")
    return values[0].strip(b" \t")


def _not_readable(header: str, text: bytes, right: str) -> BadHeader:
    shown = _clean(text[:_SHOWN_BYTES], _SHOWN_BYTES) + ("..." if len(text) > _SHOWN_BYTES else "")
    return BadHeader(f"the header {header} must be {right}, and is `{shown}`")


def member_of(values: Sequence[bytes], key: Key | None = None) -> str:
    """On whose behalf a request is, at most 100 characters.

    What its headers say, where that is believed: the first that is not empty counts. Else what its key says.
    """
    believed = key is None or key.trust_member_header
    said = _first_text(values, MEMBER_CHARS) if believed and values else ""
    return said or (key.member if key is not None else None) or ANONYMOUS


def label_of(values: Sequence[bytes]) -> str:
    """The label these header values hold, at most 200 characters; the first that is not empty counts."""
    return _first_text(values, LABEL_CHARS)


def _first_text(values: Sequence[bytes], limit: int) -> str:
    return next(filter(None, (_clean(value, limit) for value in values)), "")


def _clean(value: bytes, limit: int) -> str:
    """A header's text, fit for a terminal and a table: without control characters and line separators."""
    text = value[:_CLEANED_BYTES].decode("utf-8", "replace")
    if not text.isprintable():
        text = "".join(char for char in text if unicodedata.category(char) not in _NOT_SHOWN)
    return text.strip()[:limit].rstrip()


# Controls, text directions and other invisible signs, line and paragraph separators: with them one member
# could pass for another, and one line of a log for two.
_NOT_SHOWN = frozenset({"Cc", "Cf", "Zl", "Zp"})


def response_headers(job_id: str, applied: int, waited_s: float, reason: str) -> list[tuple[bytes, bytes]]:
    """Our headers of a job's answer; the reason only when there is one."""
    headers = [
        (_JOB, job_id.encode()),
        (_PRIORITY_ANSWER, b"%d" % applied),
        (_WAIT, b"%.3f" % waited_s),
    ]
    if reason:
        headers.append((_REASON, reason.encode("ascii", "replace")))
    return headers
