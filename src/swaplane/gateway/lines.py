"""The lines of one batch on their way into the queue: which wait behind it, and how many are in it.

Decides nothing; `detached`, the only user, moves them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Lines:
    """One batch's lines that are not over."""

    waiting: deque[str] = field(default_factory=deque)  #: ids of those not in the queue yet, in order of line
    in_queue: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  #: held to move lines into the queue
    _timer: asyncio.TimerHandle | None = None

    def retry(self, after_s: float, refill: Callable[[], None]) -> None:
        """Have lines moved again later, when nothing else may give rise to it."""
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(after_s, refill)

    def stop(self) -> None:
        """Have none moved by the time alone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
