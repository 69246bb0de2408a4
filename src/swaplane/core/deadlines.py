"""Until when jobs wait: which of them is the next that has waited too long.

A heap that forgets lazily: an entry whose job is gone, or has another deadline by now, is dropped when it is seen.
Kept by the board; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

_ROOM = 64  # entries that are never worth tidying up

Deadline = Callable[[str], float | None]  #: of a job by id, seconds; None: it waits for ever, or not any more


class Deadlines:
    """The deadlines of those that wait."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._tidy_at = _ROOM

    def __repr__(self) -> str:
        return f"<Deadlines of {len(self._heap)} jobs, some of which may be gone>"

    def add(self, job_id: str, at: float | None) -> None:
        """A job waits until `at`, seconds; None: for ever."""
        if at is not None:
            heappush(self._heap, (at, job_id))

    def next(self, deadline: Deadline) -> float | None:
        """The earliest one, seconds; None when nobody has one."""
        self._tidy(deadline)
        while self._heap:
            at, job_id = self._heap[0]
            if deadline(job_id) == at:
                return at
            heappop(self._heap)
        return None

    def passed(self, now: float, deadline: Deadline) -> Iterator[str]:
        """Take out and give the jobs whose deadline has come, earliest first."""
        while self._heap and self._heap[0][0] <= now:
            at, job_id = heappop(self._heap)
            if deadline(job_id) == at:
                yield job_id

    def _tidy(self, deadline: Deadline) -> None:
        """Forget those that are gone once they may be more than half of all, so that the heap stays small."""
        if len(self._heap) < self._tidy_at:
            return
        self._heap = [(at, job_id) for at, job_id in self._heap if deadline(job_id) == at]
        heapify(self._heap)
        self._tidy_at = max(_ROOM, 2 * len(self._heap))
