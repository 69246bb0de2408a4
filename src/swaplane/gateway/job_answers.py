"""What a detached job's recorded answer says, for those who tell it in another shape than it was sent.

Decides whether an answer is whole, whether it is JSON, and in which words a failure is told. Reads files, so its
functions are called in threads. Called by `background` and `batch_output`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from swaplane.completion.tree import fault
from swaplane.core.outcomes import Outcome
from swaplane.store import StoredJob

CANCELLED = frozenset({Outcome.CANCELLED_WAITING, Outcome.CANCELLED_RUNNING})

_ERROR_BYTES = 1 << 20  # an answer that is longer is no error message


def is_whole(job: StoredJob) -> bool:
    """Whether the model's server answered an ended job, whatever it said, and nothing of that is missing."""
    return job.status is not None and job.outcome in (Outcome.COMPLETED, Outcome.UPSTREAM_ERROR)


def succeeded(job: StoredJob) -> bool:
    """Whether an ended job has the answer that was hoped for."""
    return job.outcome == Outcome.COMPLETED and job.status is not None and 200 <= job.status < 300


def parsed(data: bytes) -> Any:
    """JSON as its value. Raises ValueError for everything else, also for what Python alone takes for JSON."""
    try:
        return json.loads(data.decode(), parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def failure_words(job: StoredJob, answer: Path) -> str:
    """Why an ended job has no answer, or not the one hoped for: in the answer's own words, else in ours.

    `answer` is the file of its recorded answer, which may be missing.
    """
    try:
        with answer.open("rb") as file:
            data = file.read(_ERROR_BYTES + 1)
        value = parsed(data) if len(data) <= _ERROR_BYTES else None
    except (OSError, ValueError):
        value = None
    if isinstance(value, dict):
        error = value.get("error")
        for words in (error.get("message") if isinstance(error, dict) else error, value.get("message")):
            if isinstance(words, str) and words:
                return words
        if words := fault(value):  # as the servers of FastAPI say it
            return words
    if is_whole(job):
        return f"the model's server answered with status {job.status}"
    return f"the job ended as {job.outcome}"
