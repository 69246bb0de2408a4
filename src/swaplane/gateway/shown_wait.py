"""A client whose stream begins before its job does: it is told how it waits, and then given its model's answer.

`ShownWait` stands between such a client and whatever answers its request, as one `ClientSide` in front of another.
The head goes out at once, so whatever the answer turns out to be is told as events of that stream (`stream_answers`).
Decides when there is something new to tell, and in which words; who is told when is `waits`' business. Made by
`passage` for streamed requests that are not sent at once and ask for it, or whose model's file does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Protocol

from swaplane.gateway.client_side import ClientSide
from swaplane.gateway.connection import Framing, RawHeaders
from swaplane.gateway.headers import response_headers
from swaplane.gateway.stream_answers import Dialect, error_event, whole_answer
from swaplane.gateway.waits import Outlook, Waits
from swaplane.ticket import Dropped, Run, Ticket
from swaplane.wire import WAIT_HEADER

LIFE_S = 15.0  #: between two comments where nothing changes, so that proxies keep the connection
DOT_S = 5.0  #: between two dots of the text while a job waits; while its model loads, each second one

_HEADERS: RawHeaders = [
    (b"Content-Type", b"text/event-stream"),
    (b"Cache-Control", b"no-cache"),
    (b"X-Accel-Buffering", b"no"),
]
_WAIT = WAIT_HEADER.encode()
_NEWS_S, _NEWS_SHARE = 5.0, 0.2  # an expected moment that moves by more is news: seconds, part of what is left
_WHOLE_BYTES = 16 << 20  # of an answer that is no stream
_ERROR_BYTES = 64 << 10  # of one that is an error
_BROKEN_OFF = "the answer broke off before it was whole"


class Voice(Protocol):
    """One way of telling a wait."""

    def told(self, outlook: Outlook, now: float) -> bytes:
        """What is to be said now; empty where there is nothing new."""

    def sent(self, ticket: Ticket, turn: Run) -> bytes:
        """What is said when the job is sent to its model."""


class Comments:
    """Comment lines, one JSON object each: readers of the stream skip them, people and proxies see them."""

    def __init__(self) -> None:
        self._last: Outlook | None = None
        self._said_at = 0.0

    def told(self, outlook: Outlook, now: float) -> bytes:
        """See Voice."""
        if now - self._said_at < LIFE_S and not self._is_news(outlook, now):
            return b""
        self._last, self._said_at = outlook, now
        expected_at = outlook.expected_at
        queue: dict[str, Any] = {
            "state": outlook.state,
            "position": outlook.position,
            "ahead": outlook.ahead,
            "expected_wait_s": None if expected_at is None else round(max(expected_at - now, 0.0), 1),
        }
        return _comment(queue)

    def sent(self, ticket: Ticket, turn: Run) -> bytes:
        """See Voice."""
        queue = {"state": "running", "waited_s": round(turn.waited_s, 3), "priority": ticket.job.priority}
        if ticket.priority_reason:
            queue["priority_reason"] = ticket.priority_reason
        return _comment(queue)

    def _is_news(self, outlook: Outlook, now: float) -> bool:
        last = self._last
        if last is None or (outlook.state, outlook.position, outlook.ahead) != (last.state, last.position, last.ahead):
            return True
        at, before = outlook.expected_at, last.expected_at
        if at is None or before is None:
            return at is not before
        return abs(at - before) > max(_NEWS_S, _NEWS_SHARE * (before - now))


def _comment(queue: dict[str, Any]) -> bytes:
    return f": queue {json.dumps(queue)}\n\n".encode()


class LoadingText:
    """What a chat's reader sees as the model's thoughts while it waits; the frames are llama-swap's."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._line = ""
        self._said_at = 0.0

    def told(self, outlook: Outlook, now: float) -> bytes:
        """See Voice."""
        if outlook.state == "loading":
            line = f"Loading {self._model}"
        elif outlook.position is None:
            line = "Far back in the queue"
        else:
            line = f"Queue position: #{outlook.position}"
        if line == self._line:
            if outlook.state == "waiting" and now - self._said_at < DOT_S:
                return b""
            text = "."
        else:
            text = f"\n{line} " if self._line else f"━━━━━\nswaplane: {self._model}\n{line} "
        self._line, self._said_at = line, now
        return _thought(text)

    def sent(self, ticket: Ticket, turn: Run) -> bytes:
        """See Voice."""
        start = "\n" if self._line else f"━━━━━\nswaplane: {self._model}\n"
        return _thought(f"{start}Done! ({turn.waited_s:.2f}s)\n━━━━━\n \n")


def _thought(text: str) -> bytes:
    chunk = {"choices": [{"delta": {"reasoning_content": text}}]}
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n".encode("utf-8", "replace")


class ShownWait:
    """One client that is told how it waits. `voices` say it; the head is sent at once."""

    def __init__(
        self, client: ClientSide, ticket: Ticket, waits: Waits, *, dialect: Dialect, voices: list[Voice], reason: str
    ) -> None:
        self.method = client.method
        self.target = client.target
        self.raw_headers = client.raw_headers
        self.client = client.client
        self._client = client
        self._ticket = ticket
        self._waits = waits
        self._dialect = dialect
        self._voices = voices
        self._passes = False  # the answer is a stream, and goes on as it comes
        self._status = 0
        self._retry_after_s: int | None = None
        self._compressed = False
        self._held = bytearray()  # of an answer that is no stream
        job = ticket.job
        ours = [header for header in response_headers(job.id, job.priority, 0.0, reason) if header[0] != _WAIT]
        client.start(status=200, reason=b"OK", headers=[*_HEADERS, *ours], framing="chunked")
        waits.add(job.id, self._tell)
        ticket.turn.add_done_callback(self._turn_came)

    def __repr__(self) -> str:
        return f"<ShownWait of {self._ticket!r} for {self._client!r}>"

    # The wait

    def _tell(self, outlook: Outlook, now: float) -> None:
        if not self._client.writable:  # it does not read: the next news is newer
            return
        for voice in self._voices:
            self._client.gather(voice.told(outlook, now))
        self._client.flush()

    def _turn_came(self, turn: asyncio.Future[Run | Dropped]) -> None:
        self._waits.remove(self._ticket.job.id)
        if turn.cancelled() or isinstance(run := turn.result(), Dropped):
            return
        for voice in self._voices:
            self._client.gather(voice.sent(self._ticket, run))
        self._client.flush()

    # The client, as whoever answers sees it

    @property
    def departed(self) -> bool:
        """Whether the client has left."""
        return self._client.departed

    def header(self, name: bytes) -> bytes:
        """As the request's, but for Accept: in a stream every error is told as JSON."""
        return b"" if name == b"accept" else self._client.header(name)

    @property
    def writable(self) -> bool:
        """Whether the client takes more."""
        return self._client.writable

    @property
    def unsent_bytes(self) -> int:
        """What the client has not taken yet."""
        return self._client.unsent_bytes

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        """Call once when the client takes more."""
        self._client.on_writable(callback)

    def on_departure(self, callback: Callable[[], None] | None) -> None:
        """Call once when the client leaves."""
        self._client.on_departure(callback)

    # The answer

    def start(self, *, status: int, reason: bytes, headers: RawHeaders, framing: Framing) -> None:
        """Take the answer's head: from now on its body passes if it is a stream of events, and is held if not."""
        self._status = status
        event_stream = False
        for name, value in headers:
            match name.lower():
                case b"content-type":
                    event_stream = value.lower().startswith(b"text/event-stream")
                case b"content-encoding":
                    self._compressed = value.strip().lower() not in (b"", b"identity")
                case b"retry-after":
                    self._retry_after_s = int(value) if value.isdigit() else None
        self._passes = event_stream and not self._compressed and HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES

    def write(self, data: bytes) -> None:
        """Take a piece of the answer."""
        self.gather(data)
        self.flush()

    def gather(self, data: bytes) -> None:
        """Take a piece of the answer, to be written at the next `flush`."""
        if self._passes:
            self._client.gather(data)
        elif len(self._held) <= _WHOLE_BYTES:
            self._held += data

    def flush(self) -> None:
        """Write what was gathered."""
        self._client.flush()

    def finish(self) -> None:
        """The answer is whole."""
        if not self._passes:
            self._client.gather(self._as_event(bytes(self._held)))
        self._client.finish()

    def abort(self, last: bytes = b"") -> None:
        """The answer breaks off: tell it as the route's readers expect, and end the stream cleanly.

        `last` is the event that an ordinary stream would end with.
        """
        told = last.strip().removeprefix(b"data: ")
        error = error_event(self._dialect, HTTPStatus.BAD_GATEWAY, told or _BROKEN_OFF.encode())
        self._client.gather((b"\n\n" if self._passes else b"") + error)
        self._client.finish()

    def _as_event(self, body: bytes) -> bytes:
        what = ""
        if self._compressed:
            what = "is compressed, although that was not asked for"
        elif not HTTPStatus.OK <= self._status < HTTPStatus.MULTIPLE_CHOICES:
            told = body[:_ERROR_BYTES]
            return error_event(self._dialect, self._status, told, retry_after_s=self._retry_after_s)
        elif len(body) > _WHOLE_BYTES:
            what = f"is no stream, and longer than the {_WHOLE_BYTES} bytes that one event may have here"
        elif not body.strip():
            what = "is empty"
        else:
            try:
                return whole_answer(self._dialect, body)
            except UnicodeDecodeError:
                what = "is neither a stream of events nor text"
        return error_event(self._dialect, HTTPStatus.BAD_GATEWAY, f"the model server's answer {what}".encode())
