"""What stands at the client's end of a job: somebody to answer, here or later.

`wire.Wire` is a client's connection; `shown_wait.ShownWait` is one whose stream has begun before its answer;
`recording.Recording` keeps the answer for a client that comes for it. What answers a model's request (`forward`,
`answers`, `passage`) knows no more of them than this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from swaplane.gateway.connection import Framing, RawHeaders


class ClientSide(Protocol):
    """One request, and where its answer goes. See `Wire` for what each part promises."""

    method: bytes
    target: bytes
    raw_headers: RawHeaders
    client: tuple[str, int] | None

    @property
    def departed(self) -> bool:
        """Whether nobody wants the answer any more."""

    def header(self, name: bytes) -> bytes:
        """The value of the request's first header of this (lower-case) name; empty when there is none."""

    @property
    def writable(self) -> bool:
        """Whether more is taken without having to be held back in memory."""

    @property
    def unsent_bytes(self) -> int:
        """What was written and has not been taken yet."""

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        """Call once when more is taken."""

    def on_departure(self, callback: Callable[[], None] | None) -> None:
        """Call once when nobody wants the answer any more; at once if that is so already."""

    def start(self, *, status: int, reason: bytes, headers: RawHeaders, framing: Framing) -> None:
        """Write the head."""

    def write(self, data: bytes) -> None:
        """Write a piece of the body."""

    def gather(self, data: bytes) -> None:
        """Like `write`, but small pieces may wait for `flush`."""

    def flush(self) -> None:
        """Write what was gathered."""

    def finish(self) -> None:
        """End the answer cleanly."""

    def abort(self, last: bytes = b"") -> None:
        """End the answer visibly broken, after `last` where there is room for it."""
