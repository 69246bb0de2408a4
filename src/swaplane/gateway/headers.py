"""Reads our own request headers and writes our own response headers.

Decides what a priority, member or label header means; whatever a client sends there, the request goes on.
Does not decide whether a member header is trusted. Called by the app once per request and once per answer.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from swaplane.core.score import ScoreRules
from swaplane.wire import (
    JOB_HEADER,
    LABEL_HEADER,
    MEMBER_HEADER,
    PRIORITY_HEADER,
    PRIORITY_REASON_HEADER,
    WAIT_HEADER,
    WEBHOOK_HEADER,
)

AdjustKind = Literal["invalid", "repeated", "clamped_low", "clamped_high"]

ANONYMOUS = "anonymous"  #: the one member behind all requests that name none
MEMBER_CHARS = 100  #: longest name of a member
LABEL_CHARS = 200  #: longest label

_NUMBER = re.compile(rb"([+-]?)0*([0-9]*)")
_LONGEST_NUMBER = 18  # digits; every longer number is outside all limits
_CLEANED_BYTES = 4096  # of a text header; what comes later is cut off unread

_PRIORITY, _MEMBER, _LABEL = (name.lower().encode() for name in (PRIORITY_HEADER, MEMBER_HEADER, LABEL_HEADER))
#: Read by `keyed`, `jobs_api` and `webhook`, for the few requests that have one.
_MORE = frozenset((b"prefer", b"idempotency-key", WEBHOOK_HEADER.lower().encode()))
_LENGTHS = frozenset(map(len, (_PRIORITY, _MEMBER, _LABEL, *_MORE)))
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
    more: bool = False  #: whether a header is there that asks for more than to be run: see `_MORE`


def read_own_headers(raw_headers: Iterable[tuple[bytes, bytes]], rules: ScoreRules) -> OwnHeaders:
    """Our headers out of a raw header list, whatever the case of the names; never raises."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in raw_headers:
        if len(name) in _LENGTHS:
            found.setdefault(name.lower(), []).append(value)
    return OwnHeaders(
        priority=parse_priority(found.get(_PRIORITY, ()), rules),
        member=member_of(found.get(_MEMBER, ())),
        label=label_of(found.get(_LABEL, ())),
        more=not _MORE.isdisjoint(found),
    )


def parse_priority(values: Sequence[bytes], rules: ScoreRules) -> Priority:
    """The priority that these header values (one per header sent) stand for; never raises.

    A number is clamped to the limits, a band's name is its value, and everything else is 0, or the limit
    that is nearest to 0.
    """
    fallback = min(max(0, rules.priority_min), rules.priority_max)
    if not values:
        return Priority(applied=fallback, requested=None)
    if len(values) > 1:
        reason = f"header sent {'twice' if len(values) == 2 else f'{len(values)} times'}; used {fallback}"
        return Priority(applied=fallback, requested=None, reason=reason, adjust_kind="repeated")
    text = values[0].strip(b" \t")
    number = _NUMBER.fullmatch(text)
    if number is not None and text[-1:].isdigit():
        sign, digits = number.groups()
        # int() refuses long numbers, and their sign and length say enough.
        if len(digits) > _LONGEST_NUMBER:
            applied = rules.priority_min if sign == b"-" else rules.priority_max
            return _clamped(None, applied, f"a number of {len(digits)} digits", low=sign == b"-")
        requested = int(sign + (digits or b"0"))
    else:
        name = text.lower()
        # One comparison for bytes that are ASCII on one side, so other scripts never match.
        values_by_name = (band.value for band in rules.bands if band.name.lower().encode() == name and name.isascii())
        named = next(values_by_name, None)
        if named is None:
            reason = f"not a number or band name; used {fallback}"
            return Priority(applied=fallback, requested=None, reason=reason, adjust_kind="invalid")
        requested = named
    applied = min(max(requested, rules.priority_min), rules.priority_max)
    if applied == requested:
        return Priority(applied=applied, requested=requested)
    return _clamped(requested, applied, str(requested), low=requested < applied)


def _clamped(requested: int | None, applied: int, shown: str, *, low: bool) -> Priority:
    kind: AdjustKind = "clamped_low" if low else "clamped_high"
    return Priority(applied=applied, requested=requested, reason=f"clamped from {shown} to {applied}", adjust_kind=kind)


def member_of(values: Sequence[bytes]) -> str:
    """The member these header values name, at most 100 characters; the first that is not empty counts."""
    return _first_text(values, MEMBER_CHARS) or ANONYMOUS


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
