"""Servers that give each job an id and a path to ask how it is.

Decides from a table of paths and words, which a preset or the configuration file fills. Called by the gateway as a
`rule.Completion`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swaplane.completion.paths import Route, is_plain, normal
from swaplane.completion.rule import (
    DEFAULT_DEADLINE_S,
    DEFAULT_PATIENCE_S,
    Answer,
    Call,
    Concern,
    NamingFields,
    Reach,
    Report,
    Stage,
)
from swaplane.completion.tree import (
    at,
    fault,
    for_people,
    job_id,
    parsed,
    per_cent,
    succeeded,
    text,
    with_value,
    written,
)

_NOT_THERE = (404, 410)


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """The paths, words and places in the JSON of one kind of server. Places are dotted, such as "data.0.id"."""

    name: str
    submit: tuple[Route, ...]
    id_at: str  #: where the id is, in the answer to a submit and in an error about the job
    poll: Route
    status_at: str = "status"
    done: tuple[str, ...]  #: what the status is when a job is done; neither one of these nor of `failed`: it runs
    failed: tuple[str, ...]  #: at least one
    progress_at: str | None = None  #: where the per cent are
    cancel: Route | None = None
    freeing_ids: tuple[str, ...] = ("",)  #: how the ids begin of jobs whose cancel frees the GPU
    result: Route | None = None
    other_by: str = ""  #: how a part of a query begins that asks for something else than is kept; empty: none does
    same_as_none: tuple[str, ...] = ()  #: such parts that ask for what is kept all the same
    going_on: tuple[Route, ...] = ()  #: those submits whose body names the job that they go on from
    source_at: tuple[str, ...] = ()  #: where it does
    heedless: tuple[Route, ...] = ()  #: whose response is the job, which goes on when the client leaves
    deadline_s: float = DEFAULT_DEADLINE_S
    patience_s: float = DEFAULT_PATIENCE_S

    def submits(self, method: str, path: str) -> bool:
        """See `Completion.submits`."""
        return any(route.fits(method, path) for route in self.submit)

    def is_bystander(self, method: str, path: str) -> bool:
        """See `Completion.is_bystander`: whatever reads a job or the list of jobs, and a cancel."""
        if self.submits(method, path):
            return False
        others = (route for route in (self.cancel, self.result) if route is not None)
        return self.poll.family_fits(method, path) or any(route.fits(method, path) for route in others)

    def id_of(self, answer: Answer) -> str | None:
        """See `Completion.id_of`."""
        return job_id(at(parsed(answer.body), self.id_at)) if succeeded(answer) else None

    def id_in(self, method: str, path: str) -> str | None:
        """See `Completion.id_in`: also of a submit that goes on from an earlier job."""
        submits = self.submits(method, path)
        routes = self.submit if submits else (self.poll, self.result, self.cancel)
        found = (route.id_in(method, path) for route in routes if route is not None)
        server_id = next(filter(None, found), None)
        return self.poll.family_id_in(method, path) if server_id is None and not submits else server_id

    def is_equivocal(self, path: str) -> bool:
        """See `Completion.is_equivocal`."""
        return not is_plain(path)

    def naming_fields(self, method: str, path: str) -> NamingFields:
        """See `Completion.naming_fields`: who may choose an id does so where the server tells it."""
        goes_on = any(route.fits(method, path) for route in self.going_on)
        return NamingFields(
            chosen=(self.id_at,) if self.submits(method, path) else (), sources=self.source_at if goes_on else ()
        )

    def concern(self, method: str, target: str, body: bytes | None) -> Concern:
        """See `Completion.concern`: what names no job is a list of all."""
        server_id = self.id_in(method, target.partition("?")[0])
        if server_id is not None:
            return Concern(reach=Reach.NAMED, ids=(server_id,))
        routes = (route for route in (self.poll, self.result, self.cancel) if route is not None)
        ids = next(filter(None, (route.ids_in_query(method, target) for route in routes)), ())
        return Concern(reach=Reach.NAMED if ids else Reach.EVERYBODY, ids=ids)

    def polls(self, server_id: str) -> tuple[Call, ...]:
        """See `Completion.polls`."""
        return (Call(method="GET", path=self.poll.filled(server_id)),)

    def read(self, server_id: str, answers: Sequence[Answer]) -> Report | None:
        """See `Completion.read`.

        An error that names the job and a final status is that status: some servers answer so for a failed job.
        """
        if not answers:
            return None
        answer = answers[0]
        job = parsed(answer.body)
        status = text(at(job, self.status_at))
        stage = self._stage(status)
        about_it = succeeded(answer) or (stage is not Stage.RUNNING and job_id(at(job, self.id_at)) == server_id)
        if status is not None and about_it:
            detail = (fault(job) if stage is Stage.FAILED else "") or for_people(status)
            progress = None if self.progress_at is None else per_cent(at(job, self.progress_at))
            return Report(stage=stage, progress=progress, detail=detail)
        if answer.status in _NOT_THERE:
            return Report(stage=Stage.GONE, detail=fault(job))
        said = fault(job) or f"no status at `{self.status_at}`"
        return Report(stage=Stage.UNCLEAR, detail=f"answered {answer.status}: {said}")

    def _stage(self, status: str | None) -> Stage:
        if status in self.done:
            return Stage.DONE
        return Stage.FAILED if status in self.failed else Stage.RUNNING

    def cancels(self, server_id: str) -> tuple[Call, ...]:
        """See `Completion.cancels`."""
        return () if self.cancel is None else (Call(method=self.cancel.method, path=self.cancel.filled(server_id)),)

    def frees_on_cancel(self, server_id: str) -> bool:
        """See `Completion.frees_on_cancel`."""
        return self.cancel is not None and server_id.startswith(self.freeing_ids)

    def kept_under(self, target: str) -> str:
        """See `Completion.kept_under`."""
        path, _, query = target.partition("?")
        others = [part for part in query.split("&") if self.other_by and part.startswith(self.other_by)]
        return normal(path) if set(others) <= set(self.same_as_none) else target

    def keeps(self, server_id: str, answers: Sequence[Answer]) -> tuple[str, ...]:
        """See `Completion.keeps`."""
        return tuple(route.filled(server_id) for route in (self.poll, self.result) if route is not None)

    def epitaph(self, server_id: str, last: bytes, why: str) -> bytes | None:
        """See `Completion.epitaph`."""
        job = parsed(last)
        if not isinstance(job, dict):
            return None
        told = with_value(job, self.status_at, self.failed[0])
        return written(with_value(told, "error", {"code": "not_finished", "message": why}))

    def abandons(self, method: str, path: str) -> bool:
        """See `Completion.abandons`."""
        return any(route.fits(method, path) for route in self.heedless)
