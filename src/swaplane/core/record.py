"""The record of one dispatch, made from the comparison that decided it. Called by `dispatcher` only."""

from __future__ import annotations

from swaplane.core.commands import Contender, Dispatch, StartCause
from swaplane.core.comparison import Pick
from swaplane.core.events import Job
from swaplane.core.queue import Queue
from swaplane.core.score import ScoreRules
from swaplane.core.state import LaneState, ModelPhase, ModelState


def record(
    pick: Pick, *, number: int, lane: LaneState, model: ModelState, queue: Queue, rules: ScoreRules, now: float
) -> Dispatch:
    """What the comparison `pick` looked like at `now`, before the winner leaves the queue."""

    def contender(job: Job, clock: float) -> Contender:
        return Contender(
            job_id=job.id,
            model=job.model,
            member=job.member,
            band=rules.band_of(job.priority).name,
            score=rules.score(job.priority, resident=job.model in lane.resident, now=now, clock=clock),
        )

    def on_turn(job: Job) -> Contender:
        if job is pick.winner:
            return winner
        clock = queue.clock(job, lane.plan.name).starts_at(job.submitted_at, now, rules)
        return contender(job, clock)

    winner = contender(pick.winner, pick.clock)
    runner_up = contender(pick.runner_up, pick.runner_up_clock) if pick.runner_up else None
    return Dispatch(
        number=number,
        at=now,
        lane=lane.plan.name,
        winner=winner,
        submitted_at=pick.winner.submitted_at,
        clock=pick.clock,
        runner_up=runner_up,
        margin=max(0.0, winner.score.total - runner_up.score.total) if runner_up else None,  # rounding aside
        without_aging=on_turn(pick.without_aging),
        without_affinity=on_turn(pick.without_affinity),
        without_turns=on_turn(pick.without_turns),
        first_come=on_turn(pick.first_come),
        swap=model.phase is not ModelPhase.READY,
        waiting=queue.count(lane.plan.name),
    )


def start_cause(pick: Pick, leaving: list[ModelState], lane: LaneState) -> StartCause:
    """Why the winner's model is started: see `StartCause`."""
    if not any(model.phase is ModelPhase.READY for model in leaving):
        return StartCause.IDLE
    if pick.without_aging.model in lane.resident:
        return StartCause.AGING
    return StartCause.PRIORITY
