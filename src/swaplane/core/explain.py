"""Why a job waits, and who goes before it. Reads the dispatcher; changes nothing.

The order of a waiting line is the comparison of `queue.pick` run forward in imagined time: the winner runs
for as long as its model's jobs have taken so far, its member's clock moves, the next one is picked. It is a
forecast: a later arrival with a higher score goes first, so a position may also grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from swaplane.core.dispatcher import Dispatcher
from swaplane.core.events import Job
from swaplane.core.queue import Candidacy, Standing, leader
from swaplane.core.score import Score
from swaplane.core.state import Grant, LaneState, ModelPhase
from swaplane.core.turns import TurnClock

#: Assumed run and load seconds of a model that has not run or loaded yet.
UNKNOWN_RUN_S = 1.0
UNKNOWN_LOAD_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job that waits, loads or runs, as people are shown it."""

    job: Job
    band: str
    state: str  #: "waiting", "loading" or "running"
    position: int | None  #: 1 = next; None when it holds a place, or stands too far back to be counted
    score: Score  #: now, or at the dispatch once it holds a place
    waited_s: float  #: since submit, until it was sent to its model
    aging_s: float  #: on the clock that counts
    reason: str  #: one clause: why it is not running, or what it is doing


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneView:
    """One lane, as people are shown it."""

    name: str
    size: int
    paused: bool
    resident: tuple[str, ...]
    running: tuple[JobView, ...]  #: jobs that hold a place, oldest first
    waiting: tuple[JobView, ...]  #: the first of the line, in the order of dispatch
    waiting_total: int


class _Imagined(Candidacy):
    """A copy of a standing whose jobs can be taken without taking them from the queue."""

    def __init__(self, standing: Standing) -> None:
        clock = TurnClock()
        clock.last_end = standing.clock.last_end
        super().__init__(clock)
        self._lines: dict[tuple[str, int], tuple[Job, Iterator[Job]]] = {}
        for line in standing.lines():
            self._advance(iter(line))

    def _advance(self, line: Iterator[Job]) -> None:
        job = next(line, None)
        if job is not None:
            self._lines[job.model, job.priority] = (job, line)
        self.heads_changed()

    def take(self, job: Job) -> None:
        _, line = self._lines.pop((job.model, job.priority))
        self._advance(line)

    def __bool__(self) -> bool:
        return bool(self._lines)

    def heads(self) -> Iterable[Job]:
        return (job for job, _ in self._lines.values())

    def heads_of(self, model: str) -> Iterable[Job]:
        return (job for job, _ in self._lines.values() if job.model == model)


def forecast(dispatcher: Dispatcher, lane: LaneState, now: float) -> Iterator[Job]:
    """The lane's waiting jobs in the order in which they would be dispatched if nothing else arrived."""
    holders = _grants(dispatcher, lane)
    at = min((_expected_end(dispatcher, grant, now) for grant in holders), default=now)
    standings = []
    for original in dispatcher.queue.standings(lane.plan.name):
        standing = _Imagined(original)
        if original.clock.running:
            standing.clock.last_end = at
        standings.append(standing)
    resident = lane.resident
    for grant in holders:
        resident = _with(dispatcher, grant.job.model, resident)
    while found := leader(standings, now=at, resident=resident, rules=dispatcher.rules):
        job = found.full[-1]
        yield job
        if job.model not in resident:
            resident = _with(dispatcher, job.model, resident)
            at += _load_s(dispatcher, job.model)
        at += _run_s(dispatcher, job.model)
        served = found.of
        assert isinstance(served, _Imagined)  # noqa: S101 - it is one of those given
        served.clock.last_end = at
        served.take(job)
        if not served:
            standings.remove(served)


def _grants(dispatcher: Dispatcher, lane: LaneState) -> list[Grant]:
    """The lane's jobs that hold a place, oldest first."""
    return [grant for grant in dispatcher.grants() if grant.lane == lane.plan.name]


def _expected_end(dispatcher: Dispatcher, grant: Grant, now: float) -> float:
    """When a job that holds a place ends if it takes as long as its model's jobs do; not before `now`."""
    model = grant.job.model
    sent_at = grant.granted_at + _load_s(dispatcher, model) if grant.sent_at is None else grant.sent_at
    return max(now, sent_at + _run_s(dispatcher, model))


def _run_s(dispatcher: Dispatcher, model: str) -> float:
    measured = dispatcher.models[model].run_s
    return UNKNOWN_RUN_S if measured is None else measured


def _load_s(dispatcher: Dispatcher, model: str) -> float:
    measured = dispatcher.models[model].load_s
    return UNKNOWN_LOAD_S if measured is None else measured


def _with(dispatcher: Dispatcher, model: str, resident: frozenset[str]) -> frozenset[str]:
    return (resident - set(dispatcher.residency.must_leave(model, resident))) | {model}


def lane_view(dispatcher: Dispatcher, lane: LaneState, now: float, *, limit: int) -> LaneView:
    """The lane at `now`, with the first `limit` waiting jobs."""
    name = lane.plan.name
    total = dispatcher.queue.count(name)
    first = list(islice(forecast(dispatcher, lane, now), limit))
    ahead: dict[tuple[str, str], Job] = {}
    waiting = []
    for position, job in enumerate(first, start=1):
        band = dispatcher.rules.band_of(job.priority).name
        own = ahead.setdefault((job.member, band), job)
        waiting.append(_waiting_view(dispatcher, lane, job, now, position, own if own is not job else None))
    return LaneView(
        name=name,
        size=lane.plan.size,
        paused=lane.paused,
        resident=tuple(sorted(lane.resident)),
        running=tuple(_granted_view(dispatcher, grant, now) for grant in _grants(dispatcher, lane)),
        waiting=tuple(waiting),
        waiting_total=total,
    )


def job_view(dispatcher: Dispatcher, job_id: str, now: float, *, limit: int) -> JobView | None:
    """One job that waits or holds a place; None when it does neither. Its position is counted up to `limit`."""
    grant = dispatcher.grant(job_id)
    if grant is not None:
        return _granted_view(dispatcher, grant, now)
    if job_id not in dispatcher.queue:
        return None
    lane = dispatcher.lanes[dispatcher.queue.lane_of(job_id)]
    for view in lane_view(dispatcher, lane, now, limit=limit).waiting:
        if view.job.id == job_id:
            return view
    return _waiting_view(dispatcher, lane, dispatcher.queue.job(job_id), now, None, None)


def _granted_view(dispatcher: Dispatcher, grant: Grant, now: float) -> JobView:
    until = now if grant.sent_at is None else grant.sent_at
    reason = (
        f"running for {now - grant.sent_at:.1f} s"
        if grant.sent_at is not None
        else f"{grant.job.model} is {_loading_phase(dispatcher, grant)} for it"
    )
    return JobView(
        job=grant.job,
        band=dispatcher.rules.band_of(grant.job.priority).name,
        state="running" if grant.running else "loading",
        position=None,
        score=grant.score,
        waited_s=until - grant.job.submitted_at,
        aging_s=grant.granted_at - grant.clock,
        reason=reason,
    )


def _loading_phase(dispatcher: Dispatcher, grant: Grant) -> str:
    phase = dispatcher.models[grant.job.model].phase
    return "loading" if phase is ModelPhase.STARTING else "waiting for other models to leave, then loading"


def _waiting_view(
    dispatcher: Dispatcher,
    lane: LaneState,
    job: Job,
    now: float,
    position: int | None,
    own_ahead: Job | None,
) -> JobView:
    clock = dispatcher.queue.clock(job, lane.plan.name).starts_at(job.submitted_at, now, dispatcher.rules)
    return JobView(
        job=job,
        band=dispatcher.rules.band_of(job.priority).name,
        state="waiting",
        position=position,
        score=dispatcher.rules.score(job.priority, resident=job.model in lane.resident, now=now, clock=clock),
        waited_s=now - job.submitted_at,
        aging_s=now - clock,
        reason=_waiting_reason(dispatcher, lane, job, position, own_ahead),
    )


def _waiting_reason(
    dispatcher: Dispatcher, lane: LaneState, job: Job, position: int | None, own_ahead: Job | None
) -> str:
    if lane.paused:
        return f"lane {lane.plan.name} is paused"
    if position is None:
        return "far back in the line"
    if own_ahead is not None:
        return f"behind your own {own_ahead.id}"
    if position > 1:
        return f"behind {position - 1} other{'s' if position > 2 else ''}"
    return f"next, when {_what_it_waits_for(dispatcher, lane, job)}"


def _what_it_waits_for(dispatcher: Dispatcher, lane: LaneState, job: Job) -> str:
    """What keeps the first in line from its place, in the order in which `Dispatcher._grant_best` looks at it."""
    model = dispatcher.models[job.model]
    if model.loading and len(model.grants) < model.plan.slots:
        return f"{job.model} is ready"
    holders = [each for each in dispatcher.models.values() if each.plan.lane == lane.plan.name and each.grants]
    names = [each.plan.id for each in holders]
    leaving = [] if model.grants else dispatcher.residency.must_leave(job.model, names)
    blockers = [model] if model.grants else [each for each in holders if each.plan.id in leaving] or holders
    swap = "" if model.phase in (ModelPhase.READY, ModelPhase.STARTING) else f", then {job.model} loads"
    grants = [grant for each in blockers for grant in each.grants.values()]
    if len(grants) == 1:
        doing = "runs" if grants[0].running else "loads"
        return f"{grants[0].job.id} of {grants[0].job.member} ends ({grants[0].job.model} {doing}){swap}"
    ids = " and ".join(each.plan.id for each in blockers)
    return f"all jobs of {ids} end{swap}" if leaving else f"a job of {ids} ends{swap}"
