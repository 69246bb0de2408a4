"""The questions about a job that outlives its response, and the data that goes in and out.

Decides no answer: those are in `polled` and `comfyui`. Called by the gateway, which makes the calls, waits between
polls, and gives up after `deadline_s` or `patience_s`; built by `config`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

DEFAULT_DEADLINE_S: float = 7200
DEFAULT_PATIENCE_S: float = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to a model server."""

    method: str
    path: str  #: with its query, the job's id already put in
    body: bytes = b""  #: JSON; empty: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a model server said to a call."""

    status: int
    body: bytes


class Stage(StrEnum):
    """How far a job is, as far as one poll tells."""

    RUNNING = "running"  #: not over; also when it still waits inside the server
    DONE = "done"
    FAILED = "failed"
    GONE = "gone"  #: the server does not know the job
    UNCLEAR = "unclear"  #: this answer says nothing of the job


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one poll says of a job."""

    stage: Stage
    progress: float | None = None  #: per cent, 0 to 100; None when the server does not say
    detail: str = ""  #: for people: the server's own word for the stage, its place in the server's queue, why it failed


class Reach(StrEnum):
    """Whose jobs a bystander's request is about."""

    NOBODY = "nobody"  #: no job: what the server can do, the files of its page
    NAMED = "named"  #: the jobs that it names
    RESULT = "result"  #: a file that a job made; what is kept of jobs tells whose
    RUNNING = "running"  #: it changes whatever the server works on
    EVERYBODY = "everybody"  #: it shows or changes all jobs that the server knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """The jobs that a bystander's request is about."""

    reach: Reach
    ids: tuple[str, ...] = ()  #: those that it names


@dataclass(frozen=True, slots=True, kw_only=True)
class NamingFields:
    """Where a submit's body may hold ids of jobs: names of form fields, and of members of the outermost JSON object."""

    chosen: tuple[str, ...] = ()  #: of the job that it starts, where the server leaves that to its client
    sources: tuple[str, ...] = ()  #: of a job that it goes on from; in JSON also as the member `id` of an object


class Completion(Protocol):
    """How the end of one model's jobs is known. None of it raises, whatever a server or a client says.

    Paths are relative to the root of the model's server, as sent or decoded; a slash at their end does not count.
    """

    @property
    def name(self) -> str:
        """Which kind it is, such as "openai-videos"."""

    @property
    def deadline_s(self) -> float:
        """Seconds from being sent to the server, after which a job counts as overdue."""

    @property
    def patience_s(self) -> float:
        """Seconds for which polls may fail or be unclear, one after the other."""

    def submits(self, method: str, path: str) -> bool:
        """Whether this request starts a job that outlives its response."""

    def is_bystander(self, method: str, path: str) -> bool:
        """Whether this request takes no place and loads nothing; never True of one that submits."""

    def id_of(self, answer: Answer) -> str | None:
        """The job's id from the answer to a submit; None when the server did not accept a job."""

    def id_in(self, method: str, path: str) -> str | None:
        """The id that the path of such a request has at a job's place. Whether there is such a job is not known."""

    def is_equivocal(self, path: str) -> bool:
        """Whether a server may take this path, as sent, for another one: then nothing that is said of it is sure."""

    def naming_fields(self, method: str, path: str) -> NamingFields:
        """Where such a request's body may name jobs; nowhere, of one that does not submit."""

    def concern(self, method: str, target: str, body: bytes | None) -> Concern:
        """Whose jobs a bystander's request with this path and query is about; never too few.

        A body of None is there and cannot be read.
        """

    def polls(self, server_id: str) -> tuple[Call, ...]:
        """What to ask, in this order, until `read` gives a report."""

    def read(self, server_id: str, answers: Sequence[Answer]) -> Report | None:
        """What the answers to the first calls of `polls` say; None: ask the next one too."""

    def cancels(self, server_id: str) -> tuple[Call, ...]:
        """What asks the server to stop the job, all to be sent in this order; empty: it cannot be asked."""

    def frees_on_cancel(self, server_id: str) -> bool:
        """Whether the GPU is free once the server has stopped the job; else only ending the server frees it."""

    def kept_under(self, target: str) -> str:
        """One spelling of a target, for all that would get the same of `keeps`' answers."""

    def keeps(self, server_id: str, answers: Sequence[Answer]) -> tuple[str, ...]:
        """Targets whose answers to GET are the job's results; `answers` are those of its last poll."""

    def epitaph(self, server_id: str, last: bytes, why: str) -> bytes | None:
        """What the server would say of the job if it had failed for this reason, for when it cannot be asked any more.

        `last` is the JSON that it last said of the job, or answered to the submit. None when that is no help.
        """

    def abandons(self, method: str, path: str) -> bool:
        """Whether the server works on when the client of this request leaves, though its response is the job."""
