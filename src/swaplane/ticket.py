"""One job as its request sees it: a ticket to wait with, and what can become of the wait.

Made by `runtime` for each request to a model, held by the gateway until the job's end. It decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from swaplane.config.settings import ModelSettings
from swaplane.core.events import Job
from swaplane.core.outcomes import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a job is made of."""

    job_id: str  #: as it is told to its client
    model: ModelSettings
    member: str
    priority: int  #: the applied one
    label: str
    submitted_at: float  #: seconds of this process's monotonic clock; of a restored job perhaps before its start
    key: str = ""  #: name of the API key
    body_bytes: int = 0
    max_wait_s: float | None = None  #: since `submitted_at`, as its client wants it; its band may wait less
    ran_before: bool = False  #: it was sent to its model by an earlier gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The job's turn: send it to this server now."""

    proxy: str  #: base URL of the model's server
    waited_s: float  #: from its arrival to this moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """The job is over without having been run."""

    outcome: Outcome
    waited_s: float  #: from its arrival to this moment
    detail: str  #: for people; may be empty; no more than the holder of its key may read
    retry_after_s: float | None  #: when trying again makes sense


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What is remembered of a job that is over."""

    job: Job
    band: str
    outcome: Outcome
    waited_s: float
    run_s: float | None  #: None when it was not run


class Desk(Protocol):
    """Where tickets are handed in: the runtime."""

    def job_left(self, ticket: Ticket) -> None:
        """The client of a job has gone away."""

    def job_ended(self, ticket: Ticket, outcome: Outcome) -> None:
        """A job's request is over."""

    def job_changed(self, ticket: Ticket, outcome: Outcome | None = None) -> None:
        """There is news of a job; with an outcome, its last."""


class Ticket:
    """One job as its request sees it: wait for the turn, run, end. Exactly one of its ends is recorded."""

    def __init__(self, desk: Desk, job: Job, model: ModelSettings, band: str) -> None:
        self.job = job
        self.lane = model.lane
        self.slots = model.slots
        self.band = band
        self.turn: asyncio.Future[Run | Dropped] = asyncio.get_running_loop().create_future()
        self.priority_reason = ""  #: why its priority is not the one it came with any more; empty while it is
        self.sent_at: float | None = None
        self.progress: float | None = None  #: per cent, where its model's server tells; None: unknown
        self.news = ""  #: what its model's server last said of it, for people
        self.server_id: str | None = None  #: what its model's server calls it, where it answers before it works
        self._desk = desk
        self._cut: Callable[[Outcome], None] | None = None
        self._cut_short: Outcome | None = None

    def __repr__(self) -> str:
        return f"<Ticket {self.job.id} for {self.job.model}>"

    def tell(self, *, progress: float | None, news: str) -> None:
        """Take in what the job's model server says of it; a progress of None leaves the one before."""
        progress = self.progress if progress is None else progress
        if (progress, news) != (self.progress, self.news):
            self.progress, self.news = progress, news
            self._desk.job_changed(self)

    def decide(self, turn: Run | Dropped) -> None:
        """Called by the runtime: what became of the wait."""
        if not self.turn.done():  # its request may have been cancelled while it waited
            self.turn.set_result(turn)

    def leave(self) -> None:
        """The client has gone away."""
        self._desk.job_left(self)

    def on_cut(self, cut: Callable[[Outcome], None]) -> None:
        """`cut(outcome)` is called when the running job has to end at once; also now, if that is already so."""
        self._cut = cut
        if self._cut_short is not None:
            cut(self._cut_short)

    def ended(self, outcome: Outcome) -> None:
        """The job's request is over, and its model's server is rid of it. Further calls do nothing."""
        self._desk.job_ended(self, outcome)

    def cut(self, outcome: Outcome) -> None:
        """End the running job at once, as `outcome`."""
        self._cut_short = self._cut_short or outcome
        if self._cut is not None:
            self._cut(self._cut_short)
