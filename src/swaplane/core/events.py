"""What happened: the dispatcher's input. Past tense, immutable, without timestamps (`now` is passed in)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from swaplane.core.commands import StopCause
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request to a model, from its arrival to its end."""

    id: str  #: unique for ever; shown to people
    seq: int  #: arrival number; breaks the last tie
    model: str  #: model id, aliases already resolved
    member: str  #: on whose behalf it runs
    priority: int  #: the applied priority: base + tier bonus
    submitted_at: float  #: when it arrived, in seconds of the caller's monotonic clock
    label: str = ""  #: free text for people, such as "film=night-train; shot=12/174"
    key: str = ""  #: name of the API key it came with; empty when it came without one
    bytes: int = 0  #: of its request's body
    max_wait_s: float | None = None  #: the longest it wants to wait, since submit; None: as long as its band may
    in_band_since: float | None = None  #: when its priority was moved into its band; None: it came with it
    ran_before: bool = False  #: it was sent to its model once already, and is run again however long that takes


@dataclass(frozen=True, slots=True, kw_only=True)
class JobArrived:
    """A request for a known model came in; its model may not be in the plan any more."""

    job: Job
    promised: bool = False  #: its client was told that it is taken, so no limit refuses it any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """When a (member, band) was last served in a lane."""

    lane: str
    member: str
    band: str  #: its name
    ended_at: float  #: end of its last job that ran, in seconds of the caller's monotonic clock; not after now


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsRestored:
    """Jobs that were accepted earlier come into the queue, all at once: none may gain by being named first."""

    jobs: tuple[Job, ...]  #: in any order; submitted whenever they were, also before this gateway's start
    turns: tuple[Turn, ...]  #: turns that an earlier gateway gave, in any order; the latest of each counts


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLeft:
    """Somebody wants the job gone: its client went away, or it was cancelled by request."""

    job_id: str
    cancelled: bool = False  #: by request, not because the connection closed


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """A job that was run is over and no longer occupies its model's server."""

    job_id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityChanged:
    """Somebody who may do so gives a job another priority; nothing happens unless it waits."""

    job_id: str
    priority: int  #: the applied one from now on


class StartFault(StrEnum):
    """Why a model's server could not be started."""

    COMMAND = "command"  #: the command could not be run at all
    PORT_TAKEN = "port_taken"  #: another process answers at its address
    EXITED = "exited"  #: the process ended before it was healthy
    TIMEOUT = "timeout"  #: it was not healthy in time


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReady:
    """A model's server passed its health check: it is resident from now on."""

    model: str
    load_s: float  #: seconds from the start command to ready


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStartFailed:
    """A model's server could not be started and nothing of it is left."""

    model: str
    fault: StartFault
    message: str  #: one sentence for everybody
    private: str = ""  #: its continuation for operators alone: command and address, and the last lines of output


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStopped:
    """A model's server is gone after it was told to stop (also when it was told during its start)."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExited:
    """A ready model's server ended without being told to; nothing of it is left."""

    model: str
    message: str  #: one sentence with the exit code, then the last lines of its output


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloadRequested:
    """A model's server has to be stopped now. Its running jobs are cut; those in the queue stay there.

    A job that it loads for ends when an operator wants the model gone; when the server is stuck it is loaded again.
    """

    model: str
    cause: StopCause = StopCause.UNLOAD  #: UNLOAD or STUCK


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePaused:
    """Nothing new may start in the lane; what runs ends normally."""

    lane: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneResumed:
    """The lane takes jobs again."""

    lane: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChanged:
    """The configuration was loaded anew."""

    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed:
    """The moment named by `Dispatcher.wakes_at` has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownRequested:
    """The gateway is going down: waiting jobs end now, running ones may finish, nothing new starts."""


Event = (
    JobArrived
    | JobsRestored
    | JobLeft
    | JobEnded
    | PriorityChanged
    | ModelReady
    | ModelStartFailed
    | ModelStopped
    | ModelExited
    | UnloadRequested
    | LanePaused
    | LaneResumed
    | PlanChanged
    | TimePassed
    | ShutdownRequested
)
