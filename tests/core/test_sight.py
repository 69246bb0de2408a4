"""Who may not know of all models is named none of the others, in whatever reason they would stand."""

from __future__ import annotations

from swaplane.core.events import Job
from swaplane.core.explain import Sight, job_view
from swaplane.core.plan import LanePlan
from tests.core.world import World, make_plan, together


def mine(job: Job) -> bool:
    return job.member == "me"


MINE = Sight(job=mine, model=lambda model: model == "a")


def reason(world: World, job_id: str, sight: Sight = MINE) -> str:
    found = job_view(world.dispatcher, job_id, world.now, limit=100, sight=sight)
    assert found is not None
    assert "secret" not in found.reason or sight is not MINE
    return found.reason


def test_a_job_that_waits_for_a_model_that_may_not_be_named() -> None:
    world = World(make_plan("a", "secret"))
    world.have_ready("secret", member="zoe")
    world.arrive("zoe 1", "secret", member="zoe")
    world.arrive("me 1", "a", member="me")
    assert reason(world, "me 1") == "next, when somebody else's job ends (another model runs), then a loads"
    assert "(secret runs)" in reason(world, "me 1", Sight())


def test_jobs_of_several_models_that_may_not_be_named() -> None:
    world = World(
        make_plan(
            "a", "secret 1", "secret 2", lanes=[LanePlan(name="gpu", size=2)], groups=[together("secret 1", "secret 2")]
        )
    )
    for model in ("secret 1", "secret 2"):
        world.have_ready(model, member="zoe")
        world.arrive(f"on {model}", model, member="zoe")
    world.arrive("me 1", "a", member="me")
    assert reason(world, "me 1") == "next, when all jobs of another model end, then a loads"


def test_a_job_of_somebody_else_is_told_without_its_model() -> None:
    world = World(make_plan("a", "secret"))
    world.arrive("zoe 1", "secret", member="zoe")
    world.arrive("zoe 2", "secret", member="zoe")
    assert reason(world, "zoe 1") == "its model is loading for it"
    assert reason(world, "zoe 1", Sight()) == "secret is loading for it"
    assert reason(world, "zoe 2") == "next, when somebody else's job ends (another model loads)"


def test_the_model_of_a_job_that_may_be_seen_may_be_named() -> None:
    world = World(make_plan("a", "b"))
    world.have_ready("b", member="zoe")
    world.arrive("me 1", "b", member="me")
    world.arrive("me 2", "b", member="me")
    assert reason(world, "me 2") == "next, when me 1 of me ends (b runs)"
