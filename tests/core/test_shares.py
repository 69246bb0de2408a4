"""Who gets how much of the GPU: turns, GPU time, weights, tiers, and names that are made up."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from swaplane.core import events as ev
from swaplane.core.plan import ModelPlan, Plan
from swaplane.core.residency import Residency
from swaplane.core.score import Fairness, ScoreRules
from tests.core.world import Auto, World, make_plan, together

MINUTE = 60.0

Times = dict[str, float]  #: seconds that a job takes, by member


def rules(fairness: Fairness, **weights: float) -> ScoreRules:
    """Without affinity: which model is resident first must not decide here."""
    return ScoreRules(fairness=fairness, weights=weights, swap_affinity=0.0)


def own_models(members: Times, scoring: ScoreRules, *, slots: int = 1) -> Plan:
    """Every member has a model of its own, and all of them stay resident: what a job takes depends on its member."""
    models = [ModelPlan(id=f"model of {member}", lane="gpu", slots=slots) for member in members]
    return make_plan(*models, groups=[together(*(model.id for model in models))], rules=scoring)


class Busy:
    """Members who have jobs waiting all the time, as many as are asked for."""

    def __init__(self, takes_s: Times, scoring: ScoreRules, *, load_s: float = 0.0) -> None:
        self._takes_s = takes_s
        self.world = World(
            own_models(takes_s, scoring),
            Auto(run_s={f"model of {member}": s for member, s in takes_s.items()}, load_s=load_s),
            watched=False,
        )
        self._numbers: Counter[str] = Counter()

    def together(self, *members: str, jobs: int, priority: int = 0) -> None:
        """So many jobs of each at the same moment, of the first named member first."""
        self.world.do(ev.LanePaused(lane="gpu"))
        for member in members:
            self.queue(member, jobs, priority=priority)
        self.world.do(ev.LaneResumed(lane="gpu"))

    def queue(self, member: str, jobs: int, *, priority: int = 0) -> None:
        for _ in range(jobs):
            self._numbers[member] += 1
            job_id = f"{member} {self._numbers[member]}"
            self.world.arrive(job_id, f"model of {member}", member=member, priority=priority)

    def served(self, jobs: int, *, after: int = 0) -> list[str]:
        """Whose the next `jobs` dispatches were, some left out."""
        while len(self.world.dispatches) < after + jobs:
            until = self.world.now + MINUTE
            self.world.run(until=until)
            self.world.now = until
        return [each.winner.member for each in self.world.dispatches[after : after + jobs]]

    def gpu_shares(self, jobs: int, *, after: int = 0) -> dict[str, float]:
        """Each member's part of the GPU time of so many jobs in a row."""
        return shares_of(self.served(jobs, after=after), self._takes_s)


def shares_of(served: list[str], takes_s: Times) -> dict[str, float]:
    used_s = {member: served.count(member) * s for member, s in takes_s.items()}
    return {member: s / sum(used_s.values()) for member, s in used_s.items()}


# Turns.


def test_who_comes_later_with_three_jobs_alternates_with_a_backlog_of_200() -> None:
    world = World(make_plan("film", rules=rules("turns")), Auto(run_s={"film": 4 * MINUTE}), watched=False)
    for number in range(200):
        world.arrive(f"ann {number}", "film", member="ann", priority=-100)
    world.run(until=30 * MINUTE)
    world.now = 30 * MINUTE
    before = len(world.dispatches)
    for number in range(3):
        world.arrive(f"ben {number}", "film", member="ben", priority=-100)
    world.run()
    after = [each.winner.member for each in world.dispatches[before:]]
    assert after[:8] == ["ben", "ann", "ben", "ann", "ben", "ann", "ann", "ann"]
    assert len(world.ran_at) == 203, "all jobs ran"


def test_two_backlogs_of_the_same_number_alternate_from_the_first_to_the_last_job() -> None:
    busy = Busy({"ann": MINUTE, "ben": MINUTE}, rules("turns"))
    busy.together("ann", "ben", jobs=20, priority=-100)
    assert busy.served(40) == ["ann", "ben"] * 20


@pytest.mark.parametrize("first", ["ann", "ben"])
def test_a_member_of_weight_2_has_two_turns_in_a_row(first: str) -> None:
    busy = Busy({"ann": MINUTE, "ben": MINUTE}, rules("turns", ann=2.0))
    busy.together(first, "ben" if first == "ann" else "ann", jobs=30)
    turns = busy.served(31)
    repeating = ["ann", "ann", "ben"] * 10
    assert turns == ([*repeating, "ann"] if first == "ann" else ["ben", *repeating])


def test_weights_of_3_to_2_give_three_turns_to_two() -> None:
    busy = Busy({"ann": MINUTE, "ben": MINUTE}, rules("turns", ann=1.5))
    busy.together("ann", "ben", jobs=60)
    turns = busy.served(50)
    assert Counter(turns) == {"ann": 30, "ben": 20}
    for start in range(0, 50, 5):
        assert Counter(turns[start : start + 5]) == {"ann": 3, "ben": 2}, f"turns {start} to {start + 4} of {turns}"


def test_one_member_of_half_the_weight_leaves_the_others_two_turns_each() -> None:
    busy = Busy(dict.fromkeys(("ann", "ben", "cleo"), MINUTE), rules("turns", cleo=0.5))
    busy.together("ann", "ben", "cleo", jobs=30)
    assert busy.served(15) == ["ann", "ann", "ben", "ben", "cleo"] * 3


def test_a_part_of_a_turn_is_not_forgotten_while_its_member_has_no_job() -> None:
    """Ann has two turns to one of Ben's: the first one alone, the second one later, together with Ben's."""
    busy = Busy({"ann": MINUTE, "ben": MINUTE}, rules("turns", ann=2.0))
    busy.queue("ann", 1)
    assert busy.served(1) == ["ann"]
    busy.world.run()
    busy.together("ann", "ben", jobs=3)
    assert busy.served(6, after=1) == ["ann", "ben", "ann", "ann", "ben", "ben"]


def test_a_weight_does_not_lift_a_job_over_a_higher_number() -> None:
    busy = Busy({"ann": MINUTE, "ben": MINUTE}, rules("turns", ann=100.0))
    busy.queue("ann", 6)
    busy.queue("ben", 6, priority=100)
    assert busy.served(8) == ["ann", *["ben"] * 6, "ann"], "only Ann was there when the lane was free"


def test_without_fairness_the_first_come_of_a_number_go_first_whoever_they_are() -> None:
    busy = Busy({"ann": MINUTE, "ben": MINUTE}, rules("none"))
    busy.together("ann", "ben", jobs=5)
    assert busy.served(10) == ["ann"] * 5 + ["ben"] * 5


# GPU time. Without the credit for what a job had waited, the short jobs would lose the time that they wait behind
# each long one, and two members with jobs of 1 s and 0.25 s would get 57 to 43 per cent.


@pytest.mark.parametrize("takes_s", [(1.0, 0.25), (1.0, 0.3), (1.0, 0.25, 0.5), (1.0, 0.3, 0.7), (2.0, 1.0, 0.5, 0.25)])
def test_gpu_time_is_shared_equally_over_100_jobs_whatever_one_takes_and_whoever_came_first(
    takes_s: tuple[float, ...],
) -> None:
    names = ("ann", "ben", "cleo", "dan")[: len(takes_s)]
    for order in (names, names[::-1]):
        busy = Busy(dict(zip(names, takes_s, strict=True)), rules("gpu_time"))
        busy.together(*order, jobs=200)
        shares = busy.gpu_shares(100)
        for member, share in shares.items():
            assert share == pytest.approx(1 / len(names), abs=0.02), f"{member} of {shares}, in the order {order}"


def test_gpu_time_is_still_equal_over_a_long_time() -> None:
    busy = Busy({"ann": 1.0, "ben": 0.25}, rules("gpu_time"))
    busy.together("ann", "ben", jobs=1500)
    assert busy.gpu_shares(1000) == pytest.approx({"ann": 0.5, "ben": 0.5}, rel=0.002)


@pytest.mark.parametrize("first", ["ann", "ben"])
def test_gpu_time_follows_weights(first: str) -> None:
    for takes_s in ({"ann": 1.0, "ben": 0.25}, {"ann": 0.25, "ben": 1.0}):
        busy = Busy(takes_s, rules("gpu_time", ann=2.0))
        busy.together(first, "ben" if first == "ann" else "ann", jobs=400)
        assert busy.gpu_shares(100) == pytest.approx({"ann": 2 / 3, "ben": 1 / 3}, abs=0.02), takes_s


@pytest.mark.parametrize("beside", [True, False])
def test_gpu_time_is_equal_although_another_model_is_loaded_in_between(beside: bool) -> None:
    """Somebody's urgent job comes; both models stay beside its model, or leave and are loaded again."""
    takes_s = {"ann": MINUTE, "ben": MINUTE / 4}
    plan = own_models(takes_s, rules("gpu_time"))
    plan = replace(plan, models={**plan.models, "big": ModelPlan(id="big", lane="gpu")})
    if beside:
        plan = replace(plan, residency=Residency([together(*plan.models)]))
    run_s = {f"model of {member}": s for member, s in takes_s.items()} | {"big": 5.0}
    world = World(plan, Auto(run_s=run_s, load_s=20.0), watched=False)
    for member in takes_s:
        world.arrive(f"warm-up of {member}", f"model of {member}", member="zoe")
    world.run()
    world.do(ev.LanePaused(lane="gpu"))
    for member in takes_s:
        for number in range(300):
            world.arrive(f"{member} {number}", f"model of {member}", member=member)
    before = len(world.dispatches)
    world.do(ev.LaneResumed(lane="gpu"))
    urgent_at = world.now + 20 * MINUTE
    urgent = world.job("urgent", "big", member="cleo", priority=100, at=urgent_at)
    world.at(urgent_at, ev.JobArrived(job=urgent))
    world.run(until=world.now + 100 * MINUTE)
    served = [each.winner.member for each in world.dispatches[before:]]
    assert 10 < served.index("cleo") < 90, "the load is in between"
    served.remove("cleo")
    shares = shares_of(served[:100], takes_s)
    assert shares == pytest.approx({"ann": 0.5, "ben": 0.5}, abs=0.02)


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize(
    "takes_s",
    [
        {"ann": 4.0, "ben": 1.0},
        {"ben": 1.0, "ann": 4.0},
        {"ann": 0.6, "ben": 0.06},
        {"ben": 0.06, "ann": 0.6},
        {"ann": 4.0, "ben": 1.0, "cleo": 2.0},
    ],
)
def test_gpu_time_is_equal_where_jobs_run_side_by_side(takes_s: Times, slots: int) -> None:
    """Every job has its part of its model's place, whoever it is of; long jobs that end together owe for them all."""
    world = World(make_plan(ModelPlan(id="m", lane="gpu", slots=slots), rules=rules("gpu_time")), watched=False)
    world.have_ready("m", member="zoe")
    world.do(ev.LanePaused(lane="gpu"))
    for member in takes_s:
        for number in range(3000):
            world.arrive(f"{member} {number}", "m", member=member)
    world.do(ev.LaneResumed(lane="gpu"))
    del world.ran_at["warm-up-m"]
    used_s = dict.fromkeys(takes_s, 0.0)
    for _ in range(2000):
        ends = {job_id: at + takes_s[job_id.split()[0]] for job_id, at in world.ran_at.items()}
        first = min(ends, key=lambda job_id: ends[job_id])
        world.now = ends[first]
        used_s[first.split()[0]] += takes_s[first.split()[0]]
        del world.ran_at[first]
        world.end(first)
    for member in takes_s:
        assert used_s[member] / sum(used_s.values()) == pytest.approx(1 / len(takes_s), abs=0.02), used_s


def test_who_was_away_has_no_gpu_time_to_catch_up_on() -> None:
    """After five minutes in which Ann had the GPU to herself, both have the same from then on."""
    busy = Busy({"ann": 1.0, "ben": 0.25}, rules("gpu_time"))
    busy.queue("ann", 500)
    busy.served(300)
    alone = len(busy.world.dispatches)
    busy.queue("ben", 500)
    assert busy.gpu_shares(100, after=alone) == pytest.approx({"ann": 0.5, "ben": 0.5}, abs=0.02)


def test_a_long_job_does_not_push_its_member_below_the_next_band() -> None:
    """The clock would have to rest for the three hours that the job ran: after 30 minutes of it the rest is over."""
    busy = Busy({"ann": 180 * MINUTE, "ben": MINUTE, "cleo": MINUTE}, rules("gpu_time"))
    busy.queue("ann", 2)
    busy.queue("ben", 1)
    busy.world.run(until=179 * MINUTE)
    busy.world.now = 179 * MINUTE
    busy.queue("cleo", 1, priority=-100)
    assert busy.served(4) == ["ann", "ben", "ann", "cleo"]


# Tiers.


def test_tiers_order_the_batch_jobs_that_came_together_and_none_passes_a_normal_job() -> None:
    world = World(make_plan("m"), Auto(run_s={"m": MINUTE}, load_s=0.0), watched=False)
    world.do(ev.LanePaused(lane="gpu"))
    for member, priority in [("free", -100), ("max", -98), ("pro", -99), ("max", 0), ("anybody", 0)]:
        world.arrive(f"{member} at {priority}", "m", member=member, priority=priority)
    world.do(ev.LaneResumed(lane="gpu"))
    world.run()
    order = [each.winner.job_id for each in world.dispatches]
    assert order == ["max at 0", "anybody at 0", "max at -98", "pro at -99", "free at -100"]


# Names that are made up.


def waits_of_the_real_one(jobs: list[tuple[str, str]]) -> int:
    """How many of the others' jobs (member, key) go before one job of a member who comes when 10 of them ran."""
    world = World(make_plan("m"), Auto(run_s={"m": MINUTE}, load_s=0.0), watched=False)
    for number, (member, key) in enumerate(jobs):
        job = world.job(f"theirs {number}", "m", member=member)
        world.do(ev.JobArrived(job=replace(job, key=key)))
    world.run(until=9.5 * MINUTE)
    world.now = 9.5 * MINUTE
    before = len(world.dispatches)
    world.arrive("real", "m", member="real")
    world.run()
    return [each.winner.job_id for each in world.dispatches[before:]].index("real")


def test_200_invented_names_behind_one_key_hold_a_real_member_back_for_one_job_at_most() -> None:
    assert waits_of_the_real_one([("bot", "bot")] * 200) == 0, "the job that ran when it came is not counted"


def test_200_real_members_do_have_200_turns() -> None:
    """The contrast: where names are believed, each of them counts."""
    assert waits_of_the_real_one([(f"name {number}", "") for number in range(200)]) == 190
