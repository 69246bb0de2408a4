"""How a job can end: the closed list.

Every job ends in exactly one `Outcome`. The list is grouped by how far the job got, because that is what
its owner wants to know: was anything run for me? Metrics count by these values, so counts over all
outcomes add up to the arrivals.
"""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """The one way a job ended."""

    # Refused before waiting.
    REFUSED_BACKOFF = "refused_backoff"  #: its model keeps crashing at start and is left alone for a while
    REFUSED_STOPPING = "refused_stopping"  #: the gateway is shutting down
    REFUSED_FULL = "refused_full"  #: a limit of what may wait is reached

    # Dropped while waiting: it never held a place, or its model never became ready.
    LEFT_WAITING = "left_waiting"  #: the client went away before its job was sent to the model
    CANCELLED_WAITING = "cancelled_waiting"  #: cancelled by request before it was sent to the model
    WAITED_TOO_LONG = "waited_too_long"  #: it was not sent to its model in the time it may wait
    START_FAILED = "start_failed"  #: the model's server could not be started
    UNLOADED_WAITING = "unloaded_waiting"  #: its model was unloaded by request while it was loading for this job
    MODEL_REMOVED = "model_removed"  #: its model vanished from the configuration
    STOPPED_WAITING = "stopped_waiting"  #: the gateway shut down first
    DEFERRED = "deferred"  #: the disk did not take that it runs; it will be put into the queue again

    # Ran.
    COMPLETED = "completed"  #: the model's answer (any status below 500) was passed on whole, and its job is done
    UPSTREAM_ERROR = "upstream_error"  #: the model answered whole with a status of 500 or above, or its job failed
    UPSTREAM_BROKEN = "upstream_broken"  #: the model's server could not be reached, or died before its answer was whole
    LEFT_RUNNING = "left_running"  #: the client went away while it ran
    CANCELLED_RUNNING = "cancelled_running"  #: cancelled by request while it ran
    UNLOADED_RUNNING = "unloaded_running"  #: its model was unloaded while it ran, by request or because it was stuck
    STOPPED_RUNNING = "stopped_running"  #: the gateway shut down and could not wait any longer
    UPSTREAM_LOST = "upstream_lost"  #: the model's server forgot the job, or gave no news of it for too long
    OVERDUE = "overdue"  #: it was not over by its model's deadline; the server was stopped
    INTERRUPTED = "interrupted"  #: the gateway ended while it ran, and it is not run again
    GATEWAY_ERROR = "gateway_error"  #: a fault of the gateway itself

    @property
    def ran(self) -> bool:
        """Whether the job was sent to its model: only then does it consume its member's turn."""
        return self in _RAN


_RAN = frozenset(
    {
        Outcome.COMPLETED,
        Outcome.UPSTREAM_ERROR,
        Outcome.UPSTREAM_BROKEN,
        Outcome.LEFT_RUNNING,
        Outcome.CANCELLED_RUNNING,
        Outcome.UNLOADED_RUNNING,
        Outcome.STOPPED_RUNNING,
        Outcome.UPSTREAM_LOST,
        Outcome.OVERDUE,
        Outcome.INTERRUPTED,
        Outcome.GATEWAY_ERROR,
    }
)
