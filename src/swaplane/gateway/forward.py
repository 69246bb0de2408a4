"""One job's passage: a request to its model's server, the answer to its client.

Decides which headers cross the gateway, how a failure looks to the client, and which outcome the job has. It
does not choose the server, wait for turns or read bodies. The gateway's app makes one `Forwarding` per job;
`run` is its whole life. Bytes go from the server's socket to the client's inside one callback, without a task
in between; each side's reading waits for the other side's writing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from swaplane.core.outcomes import Outcome
from swaplane.gateway.client_side import ClientSide
from swaplane.gateway.errors import error_json, error_response
from swaplane.gateway.upstream import BodySource, Exchange, Framing, RawHeaders, UpstreamError, UpstreamPool

_log = logging.getLogger(__name__)

OUR_PREFIX = b"x-llamaswap-"  # of headers between the gateway and its clients alone

STALLED_S = 60.0  # how long a client may take nothing of an answer that waits for it

#: what governs one connection and must not govern the next
_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    )
)
_OURS = {b"prefer", b"idempotency-key"}  # what the gateway itself acts on
_REQUEST_SPECIAL = _HOP_BY_HOP | _OURS | {b"expect", b"content-length", b"x-forwarded-for"}
_RESPONSE_SPECIAL = _HOP_BY_HOP | {b"content-type", b"content-encoding", b"x-accel-buffering"}
#: A Connection header cannot name these away: without them the message, or its sender, would be another one.
_NOT_NAMEABLE = frozenset((b"host", b"content-length", b"x-forwarded-for"))

_ERROR_STATUS = {Outcome.STOPPED_RUNNING: 503, Outcome.GATEWAY_ERROR: 500, Outcome.OVERDUE: 504}  # others: 502


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarded:
    """How a passage ended."""

    outcome: Outcome
    status: int | None  #: what the client was answered with; None: nothing
    bytes_out: int  #: of the body, passed on to the client
    detail: str  #: for people: what went wrong; empty when nothing did


class Forwarding:
    """One job's passage.

    `target` is path and query for the server, `headers` come from `upstream_headers`, `extra_headers` are
    ours, appended to whatever head the client gets. `operator`: whether the client may read the server's address.
    """

    def __init__(
        self,
        wire: ClientSide,
        pool: UpstreamPool,
        *,
        target: bytes,
        headers: RawHeaders,
        body: BodySource | None,
        extra_headers: Sequence[tuple[bytes, bytes]] = (),
        operator: bool = False,
    ) -> None:
        self._operator = operator
        self._wire = wire
        self._pool = pool
        self._target = target
        self._headers = headers
        self._body = body
        self._extra_headers = extra_headers
        self._exchange: Exchange
        self._task: asyncio.Task[object] | None = None  # the one in `run`, while the request is under way
        self._ending: tuple[Outcome, str] | None = None  # decided before the answer was whole
        self._status: int | None = None  # of the head the client got
        self._event_stream = False  # whether one more event can be put into the body
        self._bytes_out = 0
        self._watch: asyncio.TimerHandle | None = None  # over a client that does not read

    def __repr__(self) -> str:
        state = self._ending[0].value if self._ending else "running" if self._task else "not running"
        return f"Forwarding({self._wire!r}, {state}, status {self._status}, {self._bytes_out} bytes out)"

    async def run(self) -> Forwarded:
        """Forward the request, pass the answer on, return when there is nothing left to do.

        Raises nothing for what client or server do. When the calling task is cancelled, the server's
        connection is closed at once and the client gets a broken answer.
        """
        if self._ending is None and self._wire.departed:
            self._ending = (Outcome.LEFT_WAITING, "the client left before its request was sent")
        if self._ending is None:
            await self._forward()
        if self._ending is not None:
            outcome, detail = self._ending
            self._fail(outcome, detail)
        else:
            detail = ""
            whole = Outcome.UPSTREAM_ERROR if (self._status or 0) >= 500 else Outcome.COMPLETED
            outcome = Outcome.LEFT_RUNNING if self._wire.departed else whole
            self._wire.finish()
        return Forwarded(outcome=outcome, status=self._status, bytes_out=self._bytes_out, detail=detail)

    def cut(self, outcome: Outcome, message: str) -> None:
        """End it now, from outside: the server's connection is closed and the client gets `message` as an error.

        The first ending counts; after `run` has returned this does nothing.
        """
        if self._ending is None:
            self._ending = (outcome, message)
            if self._task is not None:
                self._task.cancel()

    async def _forward(self) -> None:
        wire, task = self._wire, asyncio.current_task()
        wire.on_departure(self._client_left)
        self._task = task
        try:
            await self._pool.request(
                method=wire.method, target=self._target, headers=self._headers, body=self._body, sink=self
            )
        except UpstreamError as error:
            self._ending = self._ending or (Outcome.UPSTREAM_BROKEN, error.told(operator=self._operator))
        except asyncio.CancelledError:
            ours = self._ending is not None and task is not None and task.uncancel() == 0
            if not ours:
                self._fail(Outcome.STOPPED_RUNNING, "the gateway ended the request")
                raise
        except Exception as error:
            _log.exception("forwarding failed: %r", self)
            why = f": {error}" if self._operator else ""
            self._ending = (Outcome.GATEWAY_ERROR, f"the gateway failed to forward the request{why}")
        finally:
            self._task = None
            self._stop_watching()
            wire.on_departure(None)
            wire.on_writable(None)

    def _client_left(self) -> None:
        self.cut(Outcome.LEFT_RUNNING, "the client left")

    # The answer, from the upstream connection's callbacks

    def on_head(self, *, status: int, reason: bytes, headers: RawHeaders, framing: Framing, exchange: Exchange) -> None:
        """Pass the head on."""
        self._exchange = exchange
        passed, is_event_stream = downstream_headers(headers)
        self._event_stream = is_event_stream and framing != "length"
        passed += self._extra_headers
        self._wire.start(status=status, reason=reason, headers=passed, framing=framing)
        self._status = status

    def on_data(self, data: bytes) -> None:
        """Take a piece of the body."""
        self._bytes_out += len(data)
        self._wire.gather(data)

    def on_read_end(self) -> None:
        """Pass on what came; read no more while the client is behind."""
        wire = self._wire
        wire.flush()
        if not wire.writable:
            self._exchange.pause()
            wire.on_writable(self._client_reads)
            self._watch_client(wire.unsent_bytes)

    def _client_reads(self) -> None:
        self._stop_watching()
        self._exchange.resume()

    def _watch_client(self, unsent_bytes: int) -> None:
        """A client that stands still keeps a place from everybody else: cut it when it took nothing for long."""
        self._stop_watching()
        self._watch = asyncio.get_running_loop().call_later(STALLED_S, self._look_at_client, unsent_bytes)

    def _look_at_client(self, unsent_before: int) -> None:
        if self._ending is not None:  # it is being ended already, and its connection may be gone
            return
        unsent_bytes = self._wire.unsent_bytes
        if unsent_bytes < unsent_before:
            self._watch_client(unsent_bytes)
        else:
            self.cut(Outcome.LEFT_RUNNING, f"the client took nothing of its answer for {STALLED_S:g} s")

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    # Failures

    def _fail(self, outcome: Outcome, message: str) -> None:
        """Show the client that no whole answer will come."""
        wire = self._wire
        if wire.departed:
            return
        if self._status is None:
            status, headers, body = failure(outcome, message, accept=wire.header(b"accept"), extra=self._extra_headers)
            self._status = status
            wire.start(status=status, reason=HTTPStatus(status).phrase.encode(), headers=headers, framing="length")
            wire.write(body)
            wire.finish()
        elif self._event_stream:
            wire.abort(b"\n\ndata: " + error_json(_status_of(outcome), message).encode() + b"\n\n")
        else:
            wire.abort()


def failure(
    outcome: Outcome, message: str, *, accept: bytes, extra: Sequence[tuple[bytes, bytes]] = ()
) -> tuple[int, RawHeaders, bytes]:
    """(status, headers, body) that tell a client why no answer of the model's server comes."""
    status = _status_of(outcome)
    headers, body = error_response(status, message, accept=accept, extra=extra)
    if outcome is Outcome.CANCELLED_RUNNING:
        # Clients repeat a request after a 5xx: what was cancelled would be back in the queue at once.
        headers.append((b"X-Should-Retry", b"false"))
    return status, headers, body


def _status_of(outcome: Outcome) -> int:
    return _ERROR_STATUS.get(outcome, 502)


def upstream_headers(raw_headers: RawHeaders, *, client_host: str, body_length: int | None) -> RawHeaders:
    """The request headers for the model's server, in the client's order and case.

    Hop-by-hop headers, those named in Connection, Expect and the gateway's own are left out. Content-Length
    becomes `body_length` (bytes; None: no body). `client_host` is appended to X-Forwarded-For.
    """
    length: bytes | None = None if body_length is None else b"%d" % body_length
    passed: RawHeaders = []
    connection: list[bytes] = []
    hosts: list[bytes] = []  # of X-Forwarded-For
    forwarded_at = -1  # where X-Forwarded-For stands in `passed`
    for header in raw_headers:
        lowered = header[0].lower()
        if lowered not in _REQUEST_SPECIAL:
            if lowered[: len(OUR_PREFIX)] != OUR_PREFIX:
                passed.append(header)
        elif lowered == b"content-length":
            if length is not None:
                passed.append((header[0], length))
                length = None
        elif lowered == b"x-forwarded-for":
            hosts.append(header[1])
            if forwarded_at < 0:
                forwarded_at = len(passed)
                passed.append(header)
        elif lowered == b"connection":
            connection.append(header[1])
    if length is not None:
        passed.append((b"Content-Length", length))
    client = client_host.encode()
    if hosts:
        passed[forwarded_at] = (passed[forwarded_at][0], b", ".join([*hosts, client]))
    else:
        passed.append((b"X-Forwarded-For", client))
    return _without_named(passed, connection) if connection else passed


def tunnel_head(raw_headers: RawHeaders, *, target: bytes, client_host: str) -> bytes:
    """The head with which a client's websocket upgrade is asked of the model's server.

    `target` is path and query there, the server's base path included.
    """
    headers = upstream_headers(raw_headers, client_host=client_host, body_length=None)
    headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    lines = [b"GET %b HTTP/1.1" % target, *(name + b": " + value for name, value in headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def downstream_headers(raw_headers: RawHeaders) -> tuple[RawHeaders, bool]:
    """The response headers for the client, and whether the body is an uncompressed event stream."""
    passed: RawHeaders = []
    connection: list[bytes] = []
    event_stream = compressed = buffering = False
    for header in raw_headers:
        lowered = header[0].lower()
        if lowered in _RESPONSE_SPECIAL:
            match lowered:
                case b"content-type":
                    event_stream = header[1].lower().startswith(b"text/event-stream")
                case b"content-encoding":
                    compressed = header[1].strip().lower() != b"identity"
                case b"x-accel-buffering":
                    buffering = True
                case b"connection":
                    connection.append(header[1])
                    continue
                case _:
                    continue
        elif lowered.startswith(OUR_PREFIX):
            continue  # of another gateway behind this one; ours are the ones that speak of this job
        passed.append(header)
    if connection:
        passed = _without_named(passed, connection)
    if event_stream and not buffering:
        passed.append((b"X-Accel-Buffering", b"no"))
    return passed, event_stream and not compressed


def whole_answer_headers(raw_headers: RawHeaders) -> RawHeaders:
    """The response headers for a client that is given the whole body at once, without its length."""
    passed, _ = downstream_headers(raw_headers)
    return [header for header in passed if header[0].lower() != b"content-length"]


def _without_named(headers: RawHeaders, connection: list[bytes]) -> RawHeaders:
    """`headers` without those that the values of Connection name."""
    named = {token.strip().lower() for value in connection for token in value.split(b",")} - _NOT_NAMEABLE
    return [header for header in headers if header[0].lower() not in named]
