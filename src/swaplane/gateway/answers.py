"""Answers the gateway gives itself on the data path: refusals, redirects, and why a job was not run."""

from __future__ import annotations

import http
import math
from collections.abc import Iterable

from swaplane.core.outcomes import Outcome
from swaplane.gateway.client_side import ClientSide
from swaplane.gateway.errors import RawHeaders, RequestRefused, error_response
from swaplane.ticket import Dropped

_SHUTTING_DOWN = "the gateway is shutting down"


class ShuttingDown(RequestRefused):
    """The gateway ends before the request is whole."""

    status = http.HTTPStatus.SERVICE_UNAVAILABLE

    def __init__(self) -> None:
        super().__init__(_SHUTTING_DOWN)


#: How an outcome of a job that was not run is told: (status, words before the detail, code of the envelope).
#: Failures to start keep llama-swap's 500 and the beginning of its message, because clients look for them.
_TOLD: dict[Outcome, tuple[int, str, str | None]] = {
    Outcome.START_FAILED: (500, "unspecific error: ", None),
    Outcome.UNLOADED_WAITING: (500, "unspecific error: ", None),
    Outcome.MODEL_REMOVED: (404, "no router for requested model: ", None),
    Outcome.CANCELLED_WAITING: (410, "cancelled by request while it waited", "cancelled"),
    Outcome.REFUSED_BACKOFF: (503, "", "model_backoff"),
    Outcome.REFUSED_FULL: (503, "", "queue_full"),
    Outcome.WAITED_TOO_LONG: (503, "", "waited_too_long"),
    Outcome.REFUSED_STOPPING: (503, "", None),
    Outcome.STOPPED_WAITING: (503, "", None),
}


#: Where trying again after some time makes sense the place is there, and others have it: 429, not 503.
_CONTENDED = frozenset((Outcome.REFUSED_FULL, Outcome.WAITED_TOO_LONG))


def dropped_answer(dropped: Dropped, accept: bytes) -> tuple[int, RawHeaders, bytes]:
    """(status, headers, body) that tell a client why its job was not run."""
    status, words, code = _TOLD[dropped.outcome]
    extra: RawHeaders = []
    if dropped.retry_after_s is not None:
        if dropped.outcome in _CONTENDED:
            status = http.HTTPStatus.TOO_MANY_REQUESTS
        extra.append((b"Retry-After", b"%d" % max(math.ceil(dropped.retry_after_s), 1)))
    if status == http.HTTPStatus.GONE:
        # The OpenAI and Anthropic clients repeat many failures by themselves; this header stops them.
        extra.append((b"X-Should-Retry", b"false"))
    headers, body = error_response(status, words + dropped.detail, accept=accept, code=code, extra=extra)
    return status, headers, body


#: What the client of a running job that is ended from outside is told.
CUT_WORDS = {
    Outcome.CANCELLED_RUNNING: "cancelled by request while it ran",
    Outcome.UNLOADED_RUNNING: "model unloaded",
    Outcome.STOPPED_RUNNING: _SHUTTING_DOWN,
    Outcome.LEFT_RUNNING: "the client has left",
    Outcome.UPSTREAM_BROKEN: "the model's server ended before its answer was whole",
}


def method_not_allowed(wire: ClientSide, allow: Iterable[str]) -> None:
    """Say which methods a path has, as llama-swap's router does."""
    body = b"Method Not Allowed\n"
    headers = [
        (b"Allow", ", ".join(allow).encode("ascii")),
        (b"Content-Type", b"text/plain; charset=utf-8"),
        (b"X-Content-Type-Options", b"nosniff"),
        (b"Content-Length", b"%d" % len(body)),
    ]
    send_answer(wire, 405, headers, body)


def send_answer(wire: ClientSide, status: int, headers: RawHeaders, body: bytes) -> None:
    """Answer whole; `headers` hold the Content-Length. A client that has left gets nothing."""
    if wire.departed:
        return
    wire.start(status=status, reason=reason_of(status), headers=headers, framing="length")
    wire.write(body)
    wire.finish()


def reason_of(status: int) -> bytes:
    """The standard phrase of one of our own statuses."""
    return http.HTTPStatus(status).phrase.encode("ascii")


def redirect(wire: ClientSide, location: bytes) -> None:
    """Send a client to the right spelling of a path: 301 for GET and HEAD, else 308, which keeps the method."""
    status = 301 if wire.method in (b"GET", b"HEAD") else 308
    send_answer(wire, status, [(b"Location", location), (b"Content-Length", b"0")], b"")
