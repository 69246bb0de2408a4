"""What the dispatcher remembers of models, lanes and granted jobs between two events.

Plain data with no decisions in it; only `dispatcher` writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from swaplane.core.commands import StartCause
from swaplane.core.comparison import OPEN, Bar
from swaplane.core.events import Job
from swaplane.core.plan import LanePlan, ModelPlan
from swaplane.core.score import Score


class ModelPhase(StrEnum):
    """Where a model's server is in its life, in llama-swap's words."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


@dataclass(slots=True, kw_only=True)
class Grant:
    """A job that holds a place: its model loads for it, or runs it."""

    job: Job
    lane: str
    score: Score  #: at the dispatch
    clock: float  #: from which it aged at the dispatch, seconds
    granted_at: float
    sent_at: float | None = None  #: when it was sent to its model; None while the model loads

    @property
    def running(self) -> bool:
        """Whether it was sent to its model."""
        return self.sent_at is not None


@dataclass(slots=True, kw_only=True)
class ModelState:
    """One model. Its plan changes only while its server is stopped, except for slots and ttl."""

    plan: ModelPlan
    successor: ModelPlan | None = None  #: the plan that takes over when the server has stopped
    removed: bool = False  #: no longer configured; forgotten when the server has stopped
    phase: ModelPhase = ModelPhase.STOPPED
    grants: dict[str, Grant] = field(default_factory=dict)  #: by job id; not empty: it holds a place
    start_cause: StartCause = StartCause.IDLE
    idle_since: float = 0.0  #: end of the last job, or ready
    failed_starts: int = 0  #: in a row
    retry_at: float = 0.0  #: before this no start is tried
    last_failure: str = ""  #: why the last start failed that did
    last_failure_private: str = ""  #: what follows it for operators alone
    load_s: float | None = None  #: measured, smoothed
    run_s: float | None = None  #: measured, smoothed

    @property
    def retiring(self) -> bool:
        """Whether the server has to stop before the next job, because its configuration changed or is gone."""
        return self.removed or self.successor is not None

    @property
    def loading(self) -> list[Grant]:
        """The granted jobs that are not sent yet."""
        return [grant for grant in self.grants.values() if grant.sent_at is None]

    @property
    def takes_more(self) -> bool:
        """Whether a further job may run beside those that hold a place."""
        return self.phase is ModelPhase.READY and not self.retiring and len(self.grants) < self.plan.slots

    @property
    def alive(self) -> bool:
        """Whether anything of the server may still exist."""
        return self.phase is not ModelPhase.STOPPED


@dataclass(slots=True, kw_only=True)
class LaneState:
    """One lane."""

    plan: LanePlan
    paused: bool = False
    resident: frozenset[str] = frozenset()  #: ready models; the same object until it changes
    bar: Bar = OPEN  #: who may not be given a place in it now; the same object until it changes
