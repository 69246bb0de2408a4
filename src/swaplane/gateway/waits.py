"""Who is shown how a job gets on in the queue, and when they are told.

Decides how often the lines are looked at and how far they are counted: once for everybody together, so that a
thousand who wait cost one forecast a second and not a thousand. It does not know what is made of the news and never
changes the order. `shown_wait` listens; nothing runs here while nobody does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from swaplane.core.forecast import forecast
from swaplane.core.state import LaneState
from swaplane.runtime import Runtime

EVERY_S = 1.0  #: between two looks, and between two tellings of the same job
EARLY_S = 0.1  #: between a look and the next one for those who have come since; many that come at once share it
LONGEST_S = 5.0  #: between two looks, however long one takes
SHARE = 1 / 40  #: of the gateway's time that looking may take

MOST_COUNTED = 1000  #: jobs of a line that are counted
LEAST_COUNTED = 32  #: jobs that are counted whatever it costs; beyond them ...
COUNTING_S = 0.03  #: ... no longer than this of the processor's time, because everything else waits meanwhile
_CHECKED = 16  # jobs between two looks at the processor's clock
_PORTION = 100  # listeners that are told before the event loop goes on

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """How one job stands."""

    state: Literal["waiting", "loading"]
    position: int | None = None  #: from 1, in dispatch order; None: it holds a place, or stands too far back
    ahead: dict[str, int] | None = None  #: jobs that go first, by band, without empty bands; None as above
    expected_at: float | None = None  #: when it is given its place or its model is ready, monotonic; None: unknown


Tell = Callable[[Outlook, float], None]  #: takes the outlook and the time, seconds of the monotonic clock


class _Listener:
    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.told_at: float | None = None


class Waits:
    """All jobs whose wait is shown."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._listeners: dict[str, _Listener] = {}
        self._newcomers = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None  # None: nobody listens

    def __repr__(self) -> str:
        return f"<Waits of {len(self._listeners)} jobs>"

    def add(self, job_id: str, tell: Tell) -> None:
        """Tell how a job stands, soon and then every second, until it is removed."""
        self._listeners[job_id] = _Listener(tell)
        self._newcomers.set()
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look_on())

    def remove(self, job_id: str) -> None:
        """Tell nothing more of a job."""
        self._listeners.pop(job_id, None)
        if not self._listeners and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look_on(self) -> None:
        while True:
            self._newcomers.clear()
            begun = time.thread_time()
            try:
                await self._look()
            except Exception:
                _log.exception("those who are shown their wait could not be told: %r", self)
            looked_at = time.monotonic()
            rest_s = min((time.thread_time() - begun) / SHARE, LONGEST_S)
            try:
                async with asyncio.timeout(max(EVERY_S, rest_s)):
                    await self._newcomers.wait()
                    early_at = looked_at + max(EARLY_S, rest_s)
                    await asyncio.sleep(early_at - time.monotonic())
            except TimeoutError:
                pass

    async def _look(self) -> None:
        now = time.monotonic()
        due = {
            job_id: each
            for job_id, each in self._listeners.items()
            if each.told_at is None or now - each.told_at > EVERY_S - EARLY_S
        }
        for number, (job_id, outlook) in enumerate(list(self._outlooks(due, now)), start=1):
            listener = self._listeners.get(job_id)
            if listener is not None:  # else its turn has come while others were told
                listener.told_at = now
                listener.tell(outlook, now)
            if number % _PORTION == 0:
                await asyncio.sleep(0)

    def _outlooks(self, job_ids: Collection[str], now: float) -> Iterator[tuple[str, Outlook]]:
        """How these jobs stand."""
        dispatcher = self._runtime.dispatcher
        waiting: dict[str, set[str]] = {}
        for job_id in job_ids:
            if job_id in dispatcher.queue:
                waiting.setdefault(dispatcher.queue.lane_of(job_id), set()).add(job_id)
            elif (grant := dispatcher.grant(job_id)) is not None and not grant.running:
                load_s = dispatcher.models[grant.job.model].load_s
                ready_at = None if load_s is None else max(now, grant.granted_at + load_s)
                yield job_id, Outlook(state="loading", expected_at=ready_at)
        for name, wanted in waiting.items():
            yield from self._line(dispatcher.lanes[name], wanted, now)

    def _line(self, lane: LaneState, wanted: set[str], now: float) -> Iterator[tuple[str, Outlook]]:
        """How the wanted jobs of a line stand; it is counted until the last of them is found."""
        dispatcher = self._runtime.dispatcher
        until = time.thread_time() + COUNTING_S
        ahead: Counter[str] = Counter()
        for position, expected in enumerate(forecast(dispatcher, lane, now), start=1):
            job = expected.job
            if job.id in wanted:
                at = expected.at if expected.known and not lane.paused else None
                yield job.id, Outlook(state="waiting", position=position, ahead=dict(ahead), expected_at=at)
                wanted.discard(job.id)
            if not wanted or position >= MOST_COUNTED:
                break
            if position >= LEAST_COUNTED and position % _CHECKED == 0 and time.thread_time() > until:
                break
            ahead[dispatcher.rules.band_of(job.priority).name] += 1
        for job_id in wanted:
            yield job_id, Outlook(state="waiting")
