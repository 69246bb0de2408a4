"""Who is let into the queue, how long they may stay, and who is passed over.

Decides by `limits`: what is refused on arrival, which jobs have waited too long, whose budget of GPU time is used
up, and who may not be given a place now (the `Bar` of a lane). It does not choose who goes next. The dispatcher is
built upon it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from math import inf

from swaplane.core.bars import bar_of, has_bar
from swaplane.core.board import Board
from swaplane.core.commands import EndJob, PriorityCause, TellPriority
from swaplane.core.comparison import OPEN, Bar
from swaplane.core.deadlines import Deadlines
from swaplane.core.events import Job
from swaplane.core.forecast import Expected, forecast
from swaplane.core.limits import Budget
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import Plan
from swaplane.core.state import LaneState, ModelPhase, ModelState
from swaplane.core.tally import Full, Scope, scopes_of

_OUTLOOK_S = 1.0  # how long a forecast serves those who are refused
_LOOKED_AHEAD = 20  # jobs of the forecast that a refused client's time to try again is taken from


class Gatekeeper(Board):
    """The board, with its limits."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._deadlines = Deadlines()
        self._outlooks: dict[str, tuple[float, list[Expected]]] = {}  # by lane: when it was worked out
        self._refused: Counter[Scope] = Counter()  # since the last of them was

    # On arrival.

    def refusal(self, job: Job, now: float) -> EndJob | None:
        """How this job would be refused if it arrived now; None: it would be taken. Changes nothing else."""
        model = self.models.get(job.model)
        if self.shutting_down:
            return EndJob(job_id=job.id, outcome=Outcome.REFUSED_STOPPING, detail="the gateway is shutting down")
        if model is None or model.removed:
            return EndJob(
                job_id=job.id, outcome=Outcome.MODEL_REMOVED, detail=f"model {job.model} is no longer configured"
            )
        if now < model.retry_at:
            return EndJob(
                job_id=job.id,
                outcome=Outcome.REFUSED_BACKOFF,
                detail=f"model {job.model} failed to start {model.failed_starts} times in a row "
                f"and is left alone for a while; the last time: {model.last_failure}",
                private=model.last_failure_private,
                retry_after_s=model.retry_at - now,
            )
        band = self.rules.band_of(self._affordable(job, now)).name
        full = self.queue.tally.full(job, band, self.limits)
        if full is None:
            return None
        lane = self.lanes[model.plan.lane]
        retry_after_s = None if lane.paused else self._place_frees_s(full, now)
        return EndJob(
            job_id=job.id,
            outcome=Outcome.REFUSED_FULL,
            detail=full.words + (f"; lane {lane.plan.name} is paused" if lane.paused else ""),
            retry_after_s=retry_after_s,
        )

    def _place_frees_s(self, full: Full, now: float) -> float | None:
        """When there is room for a refused job, in seconds; None: nothing moves.

        Those who are refused at about the same time are told one moment after the other: there is not room for all.
        """
        leaving_s = self._leaving_s(full.scope, now)
        if not leaving_s:  # they may have come since the line was looked at
            self._outlooks.clear()
            leaving_s = self._leaving_s(full.scope, now)
        if not leaving_s:
            return None
        wanted = full.leave + self._refused[full.scope]
        self._refused[full.scope] += 1
        if wanted <= len(leaving_s):
            return leaving_s[wanted - 1]
        return leaving_s[-1] * wanted / len(leaving_s)  # further than the forecast looks, at the same pace

    def _leaving_s(self, scope: Scope, now: float) -> list[float]:
        """When the jobs that use up an allowance are expected to leave the queue, as far as is looked, in seconds.

        They may wait in any lane. Where none of them is among the first, it takes longer than those do.
        """
        found, longer_s = [], []
        for lane in self.lanes.values():
            if lane.paused:
                continue
            expected = self._outlook(lane, now)
            its_s = [max(0.0, each.at - now) for each in expected if self._counts_for(scope, each.job)]
            found += its_s
            if not its_s and len(expected) == _LOOKED_AHEAD:
                longer_s.append(max(0.0, expected[-1].at - now))
        return sorted(found) or [min(longer_s)] if found or longer_s else []

    def _outlook(self, lane: LaneState, now: float) -> list[Expected]:
        """The first of a lane's line, as they were expected a moment ago: a refusal has to cost little."""
        made_at, expected = self._outlooks.get(lane.plan.name, (-inf, []))
        if now >= made_at + _OUTLOOK_S or not expected:
            expected = list(islice(forecast(self, lane, now), _LOOKED_AHEAD))
            self._outlooks[lane.plan.name] = (now, expected)
            self._refused.clear()
        return expected

    def _counts_for(self, scope: Scope, job: Job) -> bool:
        return scope in scopes_of(job, self.rules.band_of(job.priority).name)

    # Budgets and priorities.

    def left_of_budget_s(self, member: str, now: float) -> float | None:
        """What a member may still use at its budget's band this hour, seconds, not below 0; None without a budget.

        What its running jobs have used so far counts.
        """
        budget = self.limits.budget
        if budget is None:
            return None
        left_s = budget.gpu_s - self.usage.spent_s(member, now)
        if ("member", member) in self._held_by:
            left_s -= sum(
                self.gpu_s(grant, now)
                for grant in self._grants.values()
                if grant.job.member == member and self.has_budget(grant.job)
            )
        return max(left_s, 0.0)

    def _affordable(self, job: Job, now: float) -> int:
        """The job's priority, or, when its member's budget is used up, that in the band below the budget's."""
        budget = self.limits.budget
        if budget is None or not self.has_budget(job) or self.left_of_budget_s(job.member, now) != 0:
            return job.priority
        return self._lowered(job.priority, budget)

    def _lowered(self, priority: int, budget: Budget) -> int:
        """A priority that has a budget, in the band below the budget's; a tier's bonus stays."""
        floor = self.rules.value_of(budget.band)
        return self.rules.band_of(floor - 1).value + self.rules.split(priority)[1]

    def _keep_to_budget(self, member: str, now: float) -> bool:
        """Lower a member's waiting jobs if its budget is used up; whether there were any to lower."""
        budget = self.limits.budget
        if budget is None or not self.queue.tally.of_member(member) or self.left_of_budget_s(member, now) != 0:
            return False
        minutes = f"{budget.gpu_s / 60:g} GPU minutes an hour"
        dear = [job for job in self.queue.jobs(member=member) if self.has_budget(job)]
        for job in dear:
            priority = self._lowered(job.priority, budget)
            reason = f"lowered from {job.priority} to {priority}: the member has used its {minutes} at {budget.band}"
            self._change_priority(job.id, priority, PriorityCause.OVER_BUDGET, reason, now)
        return bool(dear)

    def _change_priority(self, job_id: str, priority: int, cause: PriorityCause, reason: str, now: float) -> None:
        job = self.queue.job(job_id)
        moved = self.rules.band_of(priority) != self.rules.band_of(job.priority)
        since = now if moved else job.in_band_since
        self.queue.change(replace(job, priority=priority, in_band_since=since))
        self._deadlines.add(job_id, self.leaves_at(self.queue.job(job_id)))
        self._commands.append(TellPriority(job_id=job_id, priority=priority, cause=cause, reason=reason))

    # How long a job may wait.

    def leaves_at(self, job: Job) -> float | None:
        """When a job ends unless it has been sent to its model, seconds; None: it may wait for ever.

        Its own wish, or what its band may wait where that is sooner. The wait of one that ran before is over.
        """
        if job.ran_before:
            return None
        return min((until for until, _ in self._may_wait(job)), default=None)

    def _may_wait(self, job: Job) -> list[tuple[float, str]]:
        """(until when, by which limit) a job may wait."""
        band = self.rules.band_of(job.priority).name
        found = []
        if job.max_wait_s is not None:
            wish = f"X-LlamaSwap-Max-Wait allows {job.max_wait_s:g} s"
            found.append((job.submitted_at + job.max_wait_s, wish))
        if (band_s := self.limits.max_wait_s.get(band)) is not None:
            since = job.submitted_at if job.in_band_since is None else job.in_band_since
            found.append((since + band_s, f"max_wait allows {band_s:g} s in band {band}"))
        return found

    def _deadline(self, job_id: str) -> float | None:
        """When a job ends that was not sent to its model; None for one that was, is gone, or may wait for ever."""
        if job_id in self.queue:
            return self.leaves_at(self.queue.job(job_id))
        grant = self._grants.get(job_id)
        return None if grant is None or grant.running else self.leaves_at(grant.job)

    def _end_overdue(self, now: float) -> bool:
        """End the jobs that have waited too long; whether there were any."""
        again_s: dict[str, float | None] = {}  # by lane, the same for all that end now
        overdue = dict.fromkeys(self._deadlines.passed(now, self._deadline))  # a job may be in there twice
        for job_id in overdue:
            grant = self._grants.get(job_id)
            job = self.queue.job(job_id) if grant is None else grant.job
            name = self.queue.lane_of(job_id) if grant is None else grant.lane
            if name not in again_s:
                again_s[name] = self._next_place_s(self.lanes[name], now)
            if grant is None:
                self.queue.remove(job_id)
            else:
                self._release(grant, now, ran=False)
            model = self.models[job.model]
            doing = "for its turn" if grant is None else f"for {job.model} to load"
            retry_after_s = again_s[name]
            if grant is None and retry_after_s == 0 and model.phase is not ModelPhase.READY:
                # Nobody is in its way: coming again would change nothing.
                doing, retry_after_s = f"and {job.model}, which is not loaded, is not loaded for that", None
            limit = min(self._may_wait(job))[1]
            self._commands.append(
                EndJob(
                    job_id=job_id,
                    outcome=Outcome.WAITED_TOO_LONG,
                    detail=f"it has waited {now - job.submitted_at:.1f} s {doing}: {limit}"
                    + (f"; lane {name} is paused" if self.lanes[name].paused else ""),
                    retry_after_s=retry_after_s,
                )
            )
        return bool(overdue)

    def _next_place_s(self, lane: LaneState, now: float) -> float | None:
        """When the next job of a lane is expected to be given its place, in seconds; None: nothing moves."""
        expected = [] if lane.paused else self._outlook(lane, now)
        return max(0.0, expected[0].at - now) if expected else None

    def _limits_changed(self) -> None:
        """Other limits hold, or jobs are in other lanes."""
        for lane in self.lanes.values():
            lane.bar = OPEN
        self._deadlines = Deadlines()
        for job in (*self.queue.jobs(), *(grant.job for grant in self._grants.values() if not grant.running)):
            self._deadlines.add(job.id, self.leaves_at(job))

    # What may not be given a place now.

    def _bar(self, lane: LaneState, holders: list[ModelState]) -> Bar:
        """Who is kept out of this lane's comparison; the same object as before unless it has changed.

        `holders` are the lane's models with jobs.
        """
        if not has_bar(lane.plan, self.limits):
            return OPEN
        bar = bar_of(
            lane.plan,
            self.limits,
            self.rules,
            held=self._held_by,
            tops={model.plan.id: max(each.job.priority for each in model.grants.values()) for model in holders},
            joinable=[model.plan.id for model in holders if model.takes_more],
        )
        if bar != lane.bar:
            lane.bar = bar
        return lane.bar

    def _refresh_bars(self) -> None:
        """Bring the bars up to date also of lanes that had no place to give: people are shown who is kept out."""
        for lane in self.lanes.values():
            if has_bar(lane.plan, self.limits):
                self._bar(lane, [model for model in self._of_lane(lane) if model.grants])
