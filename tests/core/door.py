"""A world with limits: all of its models stay resident together, in one lane."""

from __future__ import annotations

import pytest

from swaplane.core.commands import EndJob
from swaplane.core.limits import Limits
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import LanePlan, ModelPlan, Plan
from swaplane.core.score import ScoreRules
from tests.core.world import World, make_plan, together


def limited(
    limits: Limits,
    *models: str | ModelPlan,
    reserve: int = 0,
    size: int = 1,
    rules: ScoreRules | None = None,
) -> Plan:
    """A plan; the model is called "m" unless others are named. `reserve` places are for interactive jobs."""
    plans = [ModelPlan(id=each, lane="gpu") if isinstance(each, str) else each for each in models or ("m",)]
    lane = LanePlan(name="gpu", size=size, reserve={"interactive": reserve} if reserve else {})
    groups = [together(*(each.id for each in plans))]
    return make_plan(*plans, lanes=[lane], groups=groups, limits=limits, rules=rules)


def ready(plan: Plan) -> World:
    """All models are ready and idle, and nobody was measured yet."""
    world = World(plan)
    for model in plan.models:
        world.have_ready(model, member="zoe")
        world.dispatcher.models[model].run_s = None  # it took no time at all
    world.ran_at.clear()
    world.dispatches.clear()
    return world


def measured(limits: Limits) -> World:
    """Jobs of model "m" take 10 s; "runs" was started now."""
    world = ready(limited(limits))
    world.arrive("measured", "m", member="zoe")
    world.now += 10.0
    world.end("measured")
    world.arrive("runs", "m")
    return world


def told(world: World) -> EndJob:
    """The one refusal or end among the last commands."""
    (found,) = [command for command in world.commands if isinstance(command, EndJob)]
    return found


def expect(world: World, outcome: Outcome, *, retry_after_s: float | None, words: str) -> None:
    """What that one says."""
    found = told(world)
    assert found.outcome is outcome
    assert found.retry_after_s == (None if retry_after_s is None else pytest.approx(retry_after_s))
    assert found.detail == words
