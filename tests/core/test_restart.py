"""A gateway that restarts goes on as if it had not: the same dispatches in the same order for the same reasons.

Two gateways are compared from a moment at which nothing runs and no model is resident: the one that goes on, and a
new one that is told of what waits there and of whose turns have been. The new one's clock starts at zero, so all that
it is told of lies before its start. It is not told of turns that are half used, of rests, nor of used budgets.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from swaplane.core import events as ev
from swaplane.core.commands import Dispatch, StopCause
from swaplane.core.plan import Plan
from tests.core.strategies import KEYS, MEMBERS, MODELS, PRIORITIES, plans, seconds
from tests.core.world import Auto, World

Arrival = tuple[int, str, int, str]  #: the model's number, member, priority, key

arrivals: st.SearchStrategy[Arrival] = st.tuples(
    st.integers(0, len(MODELS) - 1), st.sampled_from(MEMBERS), st.sampled_from(PRIORITIES), st.sampled_from(KEYS)
)
happenings = st.one_of(
    st.lists(arrivals, min_size=1, max_size=4),
    seconds,
    st.tuples(st.sampled_from(["leave", "crash", "unload", "stuck"]), st.integers(0, 100)),
)
autos = st.builds(
    Auto,
    run_s=st.fixed_dictionaries({model: st.sampled_from([0.25, 7.0, 60.0, 240.0]) for model in MODELS}),
    load_s=st.sampled_from([0.0, 10.0]),
    stop_s=st.sampled_from([0.0, 2.5]),
)


def that_survives(plan: Plan) -> Plan:
    """A plan of which nothing is forgotten at a restart, and by which everybody waits to the end."""
    rules = plan.rules
    fairness = "turns" if rules.fairness == "gpu_time" else rules.fairness
    return replace(
        plan,
        rules=replace(rules, fairness=fairness, weights={}),
        limits=replace(plan.limits, budget=None, max_wait_s={}),
    )


def arrive(world: World, name: str, arrival: Arrival) -> None:
    number, member, priority, key = arrival
    models = sorted(world.plan.models)
    world.arrive(name, models[number % len(models)], member=member, priority=priority, key=key)


def happen(world: World, name: str, what: list[Arrival] | float | tuple[str, int]) -> None:
    seen = world.observer
    match what:
        case list():
            for number, arrival in enumerate(what):
                arrive(world, f"{name}.{number}", arrival)
        case float():
            let_pass(world, world.now + what)
        case "leave", number:
            if present := [*seen.waiting, *seen.granted, *seen.running]:
                world.leave(present[number % len(present)])
        case kind, number:
            alive = [each for each, server in seen.servers.items() if server.phase in ("ready", "starting")]
            if alive and kind == "crash" and seen.servers[alive[number % len(alive)]].phase == "ready":
                world.crash(alive[number % len(alive)])
            elif alive:
                world.unload(alive[number % len(alive)], StopCause.STUCK if kind == "stuck" else StopCause.UNLOAD)


def let_pass(world: World, until: float) -> None:
    world.run(until)
    world.now = until


def come_to_rest(world: World) -> None:
    """What runs ends, no model stays, what waits waits on."""
    for lane in world.plan.lanes:
        world.do(ev.LanePaused(lane=lane))
    world.run()
    for model in world.plan.models:
        world.unload(model)
    world.run()
    assert not world.dispatcher.grants()
    assert not any(model.alive for model in world.dispatcher.models.values())


def restarted(old: World, named: Random) -> World:
    """A new gateway that has taken in what the old one left, named in any order."""
    new = World(old.plan, old.auto)
    jobs = [
        new.job(job.id, job.model, member=job.member, priority=job.priority, key=job.key, at=job.submitted_at - old.now)
        for job in sorted(old.observer.waiting.values(), key=lambda job: job.seq)
    ]
    turns = [
        ev.Turn(lane=lane, member=member, band=band, ended_at=ended_at - old.now)
        for (lane, member, band), ended_at in old.observer.clocks.since.items()
    ]
    named.shuffle(jobs)
    named.shuffle(turns)
    new.restore(*jobs, turns=turns)
    return new


def seen_from(dispatches: list[Dispatch], start: float) -> dict[str, list[Dispatch]]:
    """By lane, with moments from `start` on and without their numbers."""
    found: dict[str, list[Dispatch]] = {}
    for each in dispatches:
        moved = replace(
            each, number=0, at=each.at - start, submitted_at=each.submitted_at - start, clock=each.clock - start
        )
        found.setdefault(each.lane, []).append(moved)
    return found


@pytest.mark.timeout(600)  # a failure takes minutes to be made short
@settings(deadline=None, max_examples=80)
@given(
    plan=plans().map(that_survives),
    auto=autos,
    before=st.lists(happenings, max_size=20),
    backlog=st.lists(arrivals, min_size=4, max_size=12),
    afterwards=st.lists(st.tuples(seconds, arrivals), max_size=6),
    named=st.randoms(),
)
def test_a_restart_changes_no_dispatch(
    plan: Plan,
    auto: Auto,
    before: list[list[Arrival] | float | tuple[str, int]],
    backlog: list[Arrival],
    afterwards: list[tuple[float, Arrival]],
    named: Random,
) -> None:
    old = World(plan, auto)
    for number, what in enumerate(before):
        happen(old, f"{number}", what)
    for number, arrival in enumerate(backlog):
        arrive(old, f"backlog {number}", arrival)
    come_to_rest(old)
    stopped_at, dispatched = old.now, len(old.dispatches)
    waiting = set(old.observer.waiting)
    event(f"{min(len(waiting), 5)} wait")
    new = restarted(old, named)
    for lane in plan.lanes:
        old.do(ev.LaneResumed(lane=lane))
    for world in (old, new):
        for number, (after_s, arrival) in enumerate(afterwards):
            let_pass(world, world.now + after_s)
            arrive(world, f"later {number}", arrival)
        world.run()
        assert not world.observer.waiting
    assert seen_from(old.dispatches[dispatched:], stopped_at) == seen_from(new.dispatches, 0.0)
    assert waiting <= {dispatch.winner.job_id for dispatch in new.dispatches}
