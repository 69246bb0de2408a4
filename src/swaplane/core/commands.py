"""What is to be done: the dispatcher's output. Imperative and immutable; `runtime` carries them out in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from swaplane.core.outcomes import Outcome
from swaplane.core.score import Score


class StartCause(StrEnum):
    """Why a model was chosen to be started: the label of the swap metric."""

    IDLE = "idle"  #: no other model had to leave for it
    PRIORITY = "priority"  #: it displaced a resident model on points other than aging
    AGING = "aging"  #: without aging a job of a resident model would have gone first


class StopCause(StrEnum):
    """Why a model is stopped; named in the log line of each stop."""

    SWAP = "swap"  #: another model needs the room
    TTL = "ttl"  #: idle for longer than its ttl
    UNLOAD = "unload"  #: an operator asked for it
    RELOAD = "reload"  #: its configuration changed or is gone
    ABANDONED = "abandoned"  #: it was still loading, nobody waited for it any more, and another is wanted
    STUCK = "stuck"  #: it would not let go of a job: only its end frees what the job occupies
    SHUTDOWN = "shutdown"  #: the gateway is going down


@dataclass(frozen=True, slots=True, kw_only=True)
class StartModel:
    """Start the model's server; answer with ModelReady, ModelStartFailed or (when told to stop) ModelStopped."""

    model: str
    cause: StartCause


@dataclass(frozen=True, slots=True, kw_only=True)
class StopModel:
    """Stop the model's server, whatever its state; answer with ModelStopped when nothing of it is left."""

    model: str
    cause: StopCause


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """Send the job to its ready model; answer with JobEnded when it no longer occupies the server."""

    job_id: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndJob:
    """Tell the client of a job that was not run that it is over."""

    job_id: str
    outcome: Outcome
    detail: str = ""  #: for people: why
    private: str = ""  #: what follows it for operators alone
    retry_after_s: float | None = None  #: when trying again makes sense; None: nothing can serve it, or nobody knows


class PriorityCause(StrEnum):
    """Why a job's priority is not the one it came with any more."""

    OVER_BUDGET = "over_budget"  #: its member has used up what it may use per hour at that band
    REQUESTED = "requested"  #: somebody asked for it who may


@dataclass(frozen=True, slots=True, kw_only=True)
class TellPriority:
    """A waiting job has another priority from now on: remember it, and why."""

    job_id: str
    priority: int  #: the applied one
    cause: PriorityCause
    reason: str  #: one clause for people


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortJob:
    """Cut a running job's upstream request at once; JobEnded with this outcome follows."""

    job_id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A job as it stood in one comparison."""

    job_id: str
    model: str
    member: str
    band: str
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """The record of one dispatch: who won, by what, and who would have won under other rules.

    It is the one source for metrics, explanation and replay.
    """

    number: int  #: counts dispatches from 1
    at: float  #: `now` of the decision, seconds
    lane: str
    winner: Contender
    submitted_at: float  #: of the winner, seconds
    clock: float  #: the moment from which the winner aged, seconds; later than submitted_at when its member had a turn
    runner_up: Contender | None  #: the best job of another member or band; None when there was none
    margin: float | None  #: points between winner and runner-up
    without_aging: Contender  #: who would have won with the aging term off
    without_affinity: Contender  #: ... with the affinity term off
    without_turns: Contender  #: ... with every job's clock at its submit
    first_come: Contender  #: ... first-come-first-served
    swap: bool  #: whether the winner's model was not resident
    waiting: int  #: jobs that waited in the lane, the winner included


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDispatch:
    """Store this record."""

    dispatch: Dispatch = field(repr=False)


Command = StartModel | StopModel | RunJob | EndJob | AbortJob | TellPriority | RecordDispatch
