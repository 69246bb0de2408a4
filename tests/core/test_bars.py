"""Where limits meet: lanes that share a member, bands that share a place, deadlines that share a moment."""

from __future__ import annotations

from swaplane.core.commands import EndJob
from swaplane.core.explain import job_view
from swaplane.core.limits import Limits
from swaplane.core.plan import LanePlan, ModelPlan
from swaplane.core.residency import Group
from tests.core.world import World, make_plan, together

LANES = (LanePlan(name="gpu"), LanePlan(name="cpu"))


def reason(world: World, job_id: str) -> str:
    found = job_view(world.dispatcher, job_id, world.now, limit=100)
    assert found is not None
    return found.reason


def test_a_place_given_in_one_lane_lets_those_pass_who_waited_behind_the_same_member_in_another() -> None:
    plan = make_plan(
        ModelPlan(id="chat", lane="gpu", slots=2),
        "image",
        ModelPlan(id="voice", lane="cpu"),
        lanes=LANES,
        limits=Limits(max_running=2),
    )
    world = World(plan)
    world.have_ready("chat")
    world.have_ready("voice")
    world.arrive("ben 1", "chat", member="ben")
    world.arrive("zoe 1", "voice", member="zoe")
    world.arrive("ben 2", "image", member="ben", priority=100)
    assert world.arrive("ann 1", "chat", member="ann") == [], "Ben's image is first in line and waits for the swap"
    world.arrive("ben 3", "voice", member="ben")
    assert world.end("zoe 1") == ["run ben 3", "run ann 1"]


def test_a_lane_without_a_free_place_still_tells_whose_limit_is_reached() -> None:
    world = World(make_plan("a", ModelPlan(id="b", lane="cpu"), lanes=LANES, limits=Limits(max_running=1)))
    world.arrive("ben 1", "b", member="ben")
    world.arrive("zoe 1", "a", member="zoe")
    world.arrive("ben 2", "a", member="ben")
    assert reason(world, "ben 2") == "until a job of ben ends: it has as many running as it may"
    world.leave("ben 1")
    assert reason(world, "ben 2") == "next, when zoe 1 of zoe ends (a loads)"


def test_a_job_is_told_that_its_key_has_as_many_running_as_it_may() -> None:
    limits = Limits(running_of_keys={"bot": 1})
    world = World(make_plan("a", "b", lanes=[LanePlan(name="gpu", size=2)], groups=[together("a", "b")], limits=limits))
    world.arrive("1", "a", member="ann", key="bot")
    world.arrive("2", "b", member="ben", key="bot")
    assert reason(world, "2") == "until a job of key bot ends: it has as many running as it may"


def test_a_job_that_is_kept_out_does_not_keep_out_later_ones_of_its_member() -> None:
    world = World(make_plan(ModelPlan(id="a", lane="gpu", slots=3), limits=Limits(running_of_keys={"bot": 1})))
    world.have_ready("a")
    world.arrive("1", "a", key="bot")
    assert world.arrive("2", "a", key="bot") == []
    assert world.arrive("3", "a", key="cli") == ["run 3"]


def test_a_job_that_may_not_wait_makes_no_other_model_leave() -> None:
    guest = Group(name="guest", members=frozenset({"b"}), swap=False, exclusive=False)
    world = World(make_plan("a", "b", groups=[guest]))
    world.have_ready("a")
    world.have_ready("b")
    assert world.arrive("1", "a", max_wait_s=0.0) == ["end 1 (waited_too_long)"]
    assert world.arrive("2", "a") == ["stop b (swap)"], "one that may wait does"


def test_a_band_that_holds_a_place_too_many_gets_no_further_jobs_and_the_bands_above_it_do() -> None:
    models = [ModelPlan(id=name, lane="gpu", slots=4) for name in "ab"]
    lane = LanePlan(name="gpu", size=3, reserve={"interactive": 1, "normal": 1})
    world = World(make_plan(*models, lanes=[lane], groups=[together("a", "b")]))
    world.have_ready("a")
    world.have_ready("b")
    world.arrive("urgent", "a", priority=100)
    world.arrive("batch 1", "a", priority=-100)
    world.arrive("batch 2", "b", priority=-100)
    world.end("urgent")
    assert world.arrive("batch 3", "a", priority=-100) == [], "both places are in use by batch, and one is all it may"
    assert world.arrive("normal", "a") == ["run normal", "run batch 3"], "the place counts for the most urgent"


def test_of_those_whose_time_is_up_each_is_told_what_it_waited_for() -> None:
    world = World(make_plan("warm", "cold"))
    world.have_ready("warm")
    world.restore(world.job("1", "cold", priority=100, max_wait_s=0.0), world.job("2", "warm", max_wait_s=0.0))
    again = {each.job_id: each.retry_after_s for each in world.commands if isinstance(each, EndJob)}
    assert again == {"1": None, "2": 0.0}, "nothing is in the way of the first but the load, which it does not wait for"
