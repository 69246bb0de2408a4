"""Why a job waits, who goes before it, and who used the GPU. Reads the dispatcher; changes nothing.

The order of a waiting line is `forecast`'s, so a position may also grow. Whoever is shown a reason may not be
allowed to know of everybody's jobs, or of all models: `Sight` says which may be named.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

from swaplane.core.dispatcher import Dispatcher
from swaplane.core.events import Job
from swaplane.core.forecast import Expected, forecast, lane_grants
from swaplane.core.score import Score
from swaplane.core.state import Grant, LaneState, ModelPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What may be named to whoever is shown something."""

    job: Callable[[Job], bool] = lambda _: True  #: whether a job may, and with it whose it is
    model: Callable[[str], bool] = lambda _: True  #: whether the model of an id may; that of a job that may always may

    def model_of(self, job: Job) -> bool:
        """Whether the model of this job may be named."""
        return self.model(job.model) or self.job(job)


EVERYTHING = Sight()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job that waits, loads or runs, as people are shown it."""

    job: Job
    band: str
    state: str  #: "waiting", "loading" or "running"
    position: int | None  #: 1 = next; None when it holds a place, or stands too far back to be counted
    score: Score  #: now, or at the dispatch once it holds a place
    waited_s: float  #: since submit, until it was sent to its model
    aging_s: float  #: on the clock that counts; below 0 while its member's clock rests
    ahead: Mapping[str, int] | None  #: jobs that are expected to go first, by band; None when it holds a place, or
    #: stands too far back to be counted
    expected_wait_s: float | None  #: from now until its place; None: a part of it was never measured, or not counted
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


def lane_view(
    dispatcher: Dispatcher, lane: LaneState, now: float, *, limit: int, sight: Sight = EVERYTHING
) -> LaneView:
    """The lane at `now`, with the first `limit` waiting jobs."""
    name = lane.plan.name
    total = dispatcher.queue.count(name)
    owns: dict[tuple[str, str], Job] = {}
    ahead: Counter[str] = Counter()
    waiting = []
    for expected in islice(forecast(dispatcher, lane, now), limit):
        job = expected.job
        band = dispatcher.rules.band_of(job.priority).name
        own = owns.setdefault((job.member, band), job)
        place = _Place(expected=expected, ahead=dict(ahead), own_ahead=own if own is not job else None)
        waiting.append(_waiting_view(dispatcher, lane, job, now, place, sight))
        ahead[band] += 1
    return LaneView(
        name=name,
        size=lane.plan.size,
        paused=lane.paused,
        resident=tuple(sorted(lane.resident)),
        running=tuple(_granted_view(dispatcher, grant, now, sight) for grant in lane_grants(dispatcher, lane)),
        waiting=tuple(waiting),
        waiting_total=total,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a waiting job stands in the line."""

    expected: Expected
    ahead: Mapping[str, int]
    own_ahead: Job | None  # the first job of its member in its band, if that is another

    @property
    def position(self) -> int:
        return sum(self.ahead.values()) + 1


def job_view(
    dispatcher: Dispatcher, job_id: str, now: float, *, limit: int, sight: Sight = EVERYTHING
) -> JobView | None:
    """One job that waits or holds a place; None when it does neither. Its position is counted up to `limit`."""
    grant = dispatcher.grant(job_id)
    if grant is not None:
        return _granted_view(dispatcher, grant, now, sight)
    if job_id not in dispatcher.queue:
        return None
    lane = dispatcher.lanes[dispatcher.queue.lane_of(job_id)]
    for view in lane_view(dispatcher, lane, now, limit=limit, sight=sight).waiting:
        if view.job.id == job_id:
            return view
    return _waiting_view(dispatcher, lane, dispatcher.queue.job(job_id), now, None, sight)


def _granted_view(dispatcher: Dispatcher, grant: Grant, now: float, sight: Sight) -> JobView:
    until = now if grant.sent_at is None else grant.sent_at
    reason = (
        f"running for {now - grant.sent_at:.1f} s"
        if grant.sent_at is not None
        else f"{_its_model(grant.job, sight)} is {_loading_phase(dispatcher, grant)} for it"
    )
    return JobView(
        job=grant.job,
        band=dispatcher.rules.band_of(grant.job.priority).name,
        state="running" if grant.running else "loading",
        position=None,
        score=grant.score,
        waited_s=until - grant.job.submitted_at,
        aging_s=grant.granted_at - grant.clock,
        ahead=None,
        expected_wait_s=None,
        reason=reason,
    )


def _its_model(job: Job, sight: Sight) -> str:
    return job.model if sight.model_of(job) else "its model"


def _loading_phase(dispatcher: Dispatcher, grant: Grant) -> str:
    phase = dispatcher.models[grant.job.model].phase
    return "loading" if phase is ModelPhase.STARTING else "waiting for other models to leave, then loading"


def _waiting_view(
    dispatcher: Dispatcher, lane: LaneState, job: Job, now: float, place: _Place | None, sight: Sight
) -> JobView:
    clock = dispatcher.queue.clock(job, lane.plan.name).starts_at(job.submitted_at, now, dispatcher.rules)
    return JobView(
        job=job,
        band=dispatcher.rules.band_of(job.priority).name,
        state="waiting",
        position=None if place is None else place.position,
        score=dispatcher.rules.score(job.priority, resident=job.model in lane.resident, now=now, clock=clock),
        waited_s=now - job.submitted_at,
        aging_s=now - clock,
        ahead=None if place is None else place.ahead,
        expected_wait_s=place.expected.at - now if place is not None and place.expected.known else None,
        reason=_waiting_reason(dispatcher, lane, job, place, sight),
    )


def _waiting_reason(dispatcher: Dispatcher, lane: LaneState, job: Job, place: _Place | None, sight: Sight) -> str:
    if lane.paused:
        return f"lane {lane.plan.name} is paused"
    if lane.bar.keeps_out(job):
        if job.member in lane.bar.members:
            member = job.member if sight.job(job) else "its member"
            return f"until a job of {member} ends: it has as many running as it may"
        if job.key in lane.bar.keys:
            key = f"key {job.key}" if sight.job(job) else "its key"
            return f"until a job of {key} ends: it has as many running as it may"
        return "the place that is left is reserved for a higher band"
    if place is None:
        return "far back in the line"
    if place.own_ahead is not None:
        named = sight.job(job) and sight.job(place.own_ahead)
        return f"behind your own {place.own_ahead.id}" if named else "behind another job of the same member"
    others = place.position - 1
    if others:
        return f"behind {others} other{'s' if others > 1 else ''}"
    return f"next, when {_what_it_waits_for(dispatcher, lane, job, sight)}"


def _what_it_waits_for(dispatcher: Dispatcher, lane: LaneState, job: Job, sight: Sight) -> str:
    """What keeps the first in line from its place, in the order in which `Dispatcher._grant_best` looks at it."""
    model = dispatcher.models[job.model]
    if model.loading and len(model.grants) < model.plan.slots:
        return f"{_its_model(job, sight)} is ready"
    holders = [each for each in dispatcher.models.values() if each.plan.lane == lane.plan.name and each.grants]
    names = [each.plan.id for each in holders]
    leaving = [] if model.grants else dispatcher.residency.must_leave(job.model, names)
    blockers = [model] if model.grants else [each for each in holders if each.plan.id in leaving] or holders
    swap = "" if model.phase in (ModelPhase.READY, ModelPhase.STARTING) else f", then {_its_model(job, sight)} loads"
    grants = [grant for each in blockers for grant in each.grants.values()]
    if len(grants) == 1:
        doing = "runs" if grants[0].running else "loads"
        holder = grants[0].job
        who = f"{holder.id} of {holder.member}" if sight.job(holder) else "somebody else's job"
        which = holder.model if sight.model_of(holder) else "another model"
        return f"{who} ends ({which} {doing}){swap}"
    ids = " and ".join(dict.fromkeys(_named(each.plan.id, job, sight) for each in blockers))
    return f"all jobs of {ids} end{swap}" if leaving else f"a job of {ids} ends{swap}"


def _named(model: str, job: Job, sight: Sight) -> str:
    """A model that keeps this job waiting."""
    return model if sight.model(model) or (model == job.model and sight.job(job)) else "another model"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member, as people are shown it."""

    member: str
    weight: float
    running: int  #: jobs that hold a place
    waiting: int
    gpu_s: float  #: since the gateway's start; running jobs count from their start
    share: float  #: of all members' `gpu_s`, 0 to 1
    hour_gpu_s: float  #: within the last hour
    budget_left_s: float | None  #: of what it may use per hour at the band that has a budget; None without one


def members_view(dispatcher: Dispatcher, now: float) -> tuple[MemberView, ...]:
    """Everybody who waits, runs or was served since the gateway's start; who used most comes first."""
    running: Counter[str] = Counter()
    under_way: defaultdict[str, float] = defaultdict(float)
    for grant in dispatcher.grants():
        running[grant.job.member] += 1
        under_way[grant.job.member] += dispatcher.gpu_s(grant, now)
    usage = dispatcher.usage
    total_s = usage.total_s + sum(under_way.values())
    views = []
    for member in {*usage.members, *running, *dispatcher.queue.tally.members()}:
        used = usage.members.get(member)
        gpu_s = under_way[member] + (0.0 if used is None else used.gpu_s)
        views.append(
            MemberView(
                member=member,
                weight=dispatcher.rules.weight_of(member),
                running=running[member],
                waiting=dispatcher.queue.tally.of_member(member),
                gpu_s=gpu_s,
                share=gpu_s / total_s if total_s else 0.0,
                hour_gpu_s=under_way[member] + (0.0 if used is None else used.hour.sum(now)),
                budget_left_s=dispatcher.left_of_budget_s(member, now),
            )
        )
    return tuple(sorted(views, key=lambda view: (-view.gpu_s, view.member)))
