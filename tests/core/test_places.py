"""How many jobs of a member or key run at once, and places that are reserved for a band."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swaplane.core.explain import job_view
from swaplane.core.limits import Allowance, Limits
from swaplane.core.plan import LanePlan, ModelPlan
from tests.core.door import limited, ready
from tests.core.world import Auto, World, make_plan, together

HOUR = 3600.0


def two_places(limits: Limits) -> World:
    """Two models in a lane of two; one of them runs three jobs side by side."""
    return ready(limited(limits, ModelPlan(id="m", lane="gpu", slots=3), "n", size=2))


def test_a_member_that_has_as_many_running_as_it_may_waits_and_others_pass() -> None:
    world = two_places(Limits(max_running=2))
    assert [world.arrive(f"ann {number}", "m") for number in range(4)] == [["run ann 0"], ["run ann 1"], [], []]
    assert world.arrive("ben", "m", member="ben") == ["run ben"]
    assert world.end("ben") == [], "its place stays free"
    assert world.end("ann 0") == ["run ann 2"]


def test_the_same_of_a_key_whoever_its_members_are() -> None:
    world = two_places(Limits(running_of_keys={"bot": 1}))
    assert world.arrive("1", "m", key="bot", member="ann") == ["run 1"]
    assert world.arrive("2", "m", key="bot", member="ben") == []
    assert world.arrive("3", "m", key="other", member="ann") == ["run 3"]
    assert world.arrive("4", "m", member="ann") == ["run 4"]
    assert world.end("1") == ["run 2"]


def test_jobs_in_all_lanes_count() -> None:
    plan = make_plan("m", ModelPlan(id="c", lane="cpu"), lanes=[LanePlan(name="gpu"), LanePlan(name="cpu")])
    world = World(replace(plan, limits=Limits(max_running=1)))
    world.have_ready("m", member="zoe")
    world.have_ready("c", member="zoe")
    assert world.arrive("1", "m") == ["run 1"]
    assert world.arrive("2", "c") == []
    assert world.end("1") == ["run 2"]


def test_a_reload_lets_more_of_a_member_run_at_once() -> None:
    world = two_places(Limits(max_running=1))
    for number in range(3):
        world.arrive(f"{number}", "m")
    more = limited(Limits(max_running=2), ModelPlan(id="m", lane="gpu", slots=3), "n", size=2)
    assert world.change(more) == ["run 1"]
    none = replace(more, limits=Limits())
    assert world.change(none) == ["run 2"]


@pytest.mark.parametrize("kind", ["slots of 3", "lane of 2"])
def test_the_backlog_of_a_member_at_its_limit_does_not_slow_another(kind: str) -> None:
    """The other's jobs wait as without it, up to one job that runs."""
    waits = {backlog: other_ones_waits(kind, backlog) for backlog in (0, 200)}
    longest_s = 10.0
    for alone, beside in zip(waits[0], waits[200], strict=True):
        assert beside <= alone + longest_s, f"{waits}"


def other_ones_waits(kind: str, backlog: int) -> list[float]:
    slots, size = (3, 1) if kind == "slots of 3" else (1, 2)
    plan = limited(Limits(max_running=1), ModelPlan(id="m", lane="gpu", slots=slots), "n", size=size)
    world = World(plan, Auto(run_s={"m": 10.0, "n": 10.0}, load_s=0.0), watched=False)
    for number in range(backlog):
        world.arrive(f"ann {number}", "m")
    asked: dict[str, float] = {}
    for number in range(40):
        moment = 7.0 + number * 6.0 + (number % 3)
        world.run(until=moment)
        world.now = moment
        asked[f"ben {number}"] = moment
        world.arrive(f"ben {number}", "m" if kind == "slots of 3" else "n", member="ben")
    world.run()
    return [world.ran_at[job_id] - moment for job_id, moment in asked.items()]


def test_a_member_at_its_limit_of_waiting_jobs_is_refused_while_anothers_are_taken() -> None:
    world = ready(limited(Limits(member=Allowance(jobs=5))))
    answers = [world.arrive(f"ann {number}", "m") for number in range(10)]
    assert answers == [["run ann 0"], *[[]] * 5, *[[f"end ann {number} (refused_full)"] for number in range(6, 10)]]
    assert world.arrive("ben", "m", member="ben") == []
    world.now += 10.0
    assert world.end("ann 0") == ["run ben"]


# Places that are reserved.


def interactive_first() -> World:
    """A lane of two, of which one place is for interactive jobs; "m" runs two jobs side by side, "n" and "o" one."""
    return ready(limited(Limits(), ModelPlan(id="m", lane="gpu", slots=2), "n", "o", size=2, reserve=1))


def test_jobs_of_lower_bands_leave_the_reserved_place_free_and_interactive_ones_start_at_once() -> None:
    world = interactive_first()
    assert world.arrive("batch 1", "n", priority=-100) == ["run batch 1"]
    assert world.arrive("batch 2", "o", priority=-100, member="ben") == []
    assert world.arrive("normal", "o", member="cleo") == []
    assert world.arrive("chat", "o", priority=100, member="dan") == ["run chat"]


def test_a_job_that_may_not_have_the_reserved_place_is_told_so() -> None:
    world = interactive_first()
    world.arrive("batch 1", "n", priority=-100)
    world.arrive("batch 2", "o", priority=-100, member="ben")
    found = job_view(world.dispatcher, "batch 2", world.now, limit=10)
    assert found is not None
    assert found.reason == "the place that is left is reserved for a higher band"


def test_an_interactive_job_takes_the_reserved_place_so_that_a_lower_one_may_have_the_other() -> None:
    world = interactive_first()
    assert world.arrive("chat", "n", priority=100) == ["run chat"]
    assert world.arrive("batch", "o", priority=-100) == ["run batch"]
    assert world.arrive("chat 2", "m", priority=100) == []
    assert world.end("chat") == ["run chat 2"]


def test_when_the_interactive_job_ends_its_place_is_not_given_to_a_lower_band() -> None:
    world = interactive_first()
    world.arrive("chat", "n", priority=100)
    world.arrive("batch 1", "o", priority=-100)
    world.arrive("batch 2", "n", priority=-100)
    assert world.end("chat") == []
    assert world.end("batch 1") == ["run batch 2"]


def test_lower_jobs_that_joined_an_urgent_one_give_its_place_up_again() -> None:
    world = interactive_first()
    world.arrive("batch 1", "n", priority=-100)
    world.arrive("chat", "m", priority=100, member="ben")
    assert world.arrive("batch 2", "m", priority=-100) == ["run batch 2"], "the place is the chat's"
    assert world.end("chat") == []
    assert world.arrive("batch 3", "m", priority=-100) == [], "lower jobs hold a place too many"
    assert world.arrive("chat 2", "m", priority=100, member="ben") == ["run chat 2"]
    assert world.end("chat 2") == []
    assert world.end("batch 2") == [], "now the reserved place is free"
    assert world.end("batch 1") == ["run batch 3"]


def test_a_lower_job_may_join_a_model_that_holds_a_place() -> None:
    world = interactive_first()
    assert world.arrive("batch 1", "m", priority=-100) == ["run batch 1"]
    assert world.arrive("batch 2", "m", priority=-100) == ["run batch 2"]
    assert world.arrive("batch 3", "m", priority=-100) == [], "no slot is left"
    assert world.arrive("batch 4", "n", priority=-98, member="ben") == []
    assert world.end("batch 1") == ["run batch 3"], "the better one may not have the place that is left"


def test_an_old_batch_job_that_is_first_in_line_does_not_keep_the_reserved_place_from_others() -> None:
    world = interactive_first()
    world.arrive("runs for long", "n", priority=-100)
    world.arrive("old", "o", priority=-100)
    world.now += 5 * HOUR
    assert world.arrive("chat", "o", priority=100, member="ben") == ["run chat"]
    assert world.dispatches[-1].winner.job_id == "chat"
    assert world.end("chat") == []
    assert world.end("runs for long") == ["run old"]


def test_without_reserved_places_an_old_batch_job_goes_first() -> None:
    """The contrast."""
    world = ready(limited(Limits(), "n", "o", size=2))
    world.arrive("runs for long", "n", priority=-100)
    assert world.arrive("old", "o", priority=-100) == ["run old"]


def test_a_reload_reserves_a_place() -> None:
    world = ready(limited(Limits(), "n", "o", "m", size=2))
    world.arrive("batch 1", "n", priority=-100)
    world.arrive("batch 2", "o", priority=-100)
    world.arrive("batch 3", "m", priority=-100)
    world.change(limited(Limits(), "n", "o", "m", size=2, reserve=1))
    assert world.end("batch 1") == [], "one batch job holds the place that is not reserved"
    assert world.arrive("chat", "n", priority=100, member="ben") == ["run chat"]
    assert world.end("batch 2") == ["run batch 3"]


def test_two_bands_with_reserved_places() -> None:
    """Of four places one is for interactive jobs and one for normal ones or better."""
    models = ["1", "2", "3", "4", "5", "6"]
    lanes = [LanePlan(name="gpu", size=4, reserve={"interactive": 1, "normal": 1})]
    world = ready(make_plan(*models, lanes=lanes, groups=[together(*models)]))
    ran = [world.arrive(f"batch {number}", model, priority=-100) for number, model in enumerate(models[:3])]
    assert ran == [["run batch 0"], ["run batch 1"], []]
    assert world.arrive("normal 1", "4") == ["run normal 1"]
    assert world.arrive("normal 2", "5") == []
    assert world.arrive("chat", "6", priority=100) == ["run chat"]
