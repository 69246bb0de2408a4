"""The comparison: two passes, its four variants, runner-up and margin; and the queue's own bookkeeping."""

from __future__ import annotations

import pytest

from swaplane.core.comparison import Pick
from swaplane.core.events import Job
from swaplane.core.queue import Queue
from swaplane.core.score import ScoreRules

MINUTE = 60.0


class Line:
    """A queue of one lane with short ways to fill it."""

    def __init__(self, rules: ScoreRules | None = None) -> None:
        self.queue = Queue(rules or ScoreRules())
        self.seq = 0
        self._residents: dict[tuple[str, ...], frozenset[str]] = {}

    def add(self, job_id: str, *, priority: int = 0, member: str = "ann", model: str = "m", at: float = 0.0) -> Job:
        self.seq += 1
        job = Job(id=job_id, seq=self.seq, model=model, member=member, priority=priority, submitted_at=at)
        self.queue.add(job, "gpu")
        return job

    def serve(self, job_id: str, *, until: float) -> None:
        """A waiting job runs."""
        job = self.queue.take(job_id)
        self.queue.give_back(job, "gpu", until, service_s=1.0, clock=0.0)

    def pick(self, now: float, *resident: str) -> Pick:
        # The same object for the same models, as the dispatcher does it.
        same = self._residents.setdefault(resident, frozenset(resident))
        found = self.queue.pick("gpu", now=now, resident=same)
        assert found is not None
        return found

    def order(self, now: float, *resident: str) -> list[str]:
        """All ids in the order in which they are picked when nothing runs in between."""
        found = []
        while pick := self.queue.pick("gpu", now=now, resident=frozenset(resident)):
            found.append(self.queue.remove(pick.winner.id).id)
        return found


def test_nobody_waits() -> None:
    assert Queue(ScoreRules()).pick("gpu", now=0.0, resident=frozenset()) is None


def test_higher_priorities_go_first_and_equal_ones_in_order_of_arrival() -> None:
    line = Line()
    for job_id, priority in [("b", -100), ("n", 0), ("i", 100), ("b2", -98), ("i2", 100), ("b1", -99), ("n2", 0)]:
        line.add(job_id, priority=priority)
    assert line.order(0.0) == ["i", "i2", "n", "n2", "b2", "b1", "b"]


def test_the_same_order_when_every_job_is_of_another_member() -> None:
    line = Line()
    for job_id, priority in [("b", -100), ("n", 0), ("i", 100), ("b2", -98), ("i2", 100), ("b1", -99), ("n2", 0)]:
        line.add(job_id, priority=priority, member=job_id)
    assert line.order(0.0) == ["i", "i2", "n", "n2", "b2", "b1", "b"]


@pytest.mark.parametrize(
    ("minutes", "winner"),
    [(0, "fresh"), (197, "fresh"), (197.99, "fresh"), (198, "old"), (198.01, "old"), (500, "old")],
)
def test_a_batch_job_overtakes_a_fresh_interactive_one_after_198_minutes(minutes: float, winner: str) -> None:
    """At exactly 198 minutes both have 100 points: the earlier clock decides."""
    line = Line()
    line.add("old", priority=-98, member="ann")
    line.add("fresh", priority=100, member="ben", at=minutes * MINUTE)
    assert line.pick(minutes * MINUTE).winner.id == winner


def test_the_same_within_one_member() -> None:
    line = Line()
    line.add("old", priority=-98)
    line.add("fresh", priority=100, at=198 * MINUTE)
    assert line.pick(198 * MINUTE).winner.id == "old"


def test_whoever_was_served_longest_ago_goes_next() -> None:
    line = Line()
    for job_id in ("ann 1", "ann 2", "ben 1", "ben 2", "cleo 1", "cleo 2"):
        line.add(job_id, member=job_id[:-2])
    for until, job_id in enumerate(["cleo 1", "ann 1", "ben 1"], start=60):
        line.serve(job_id, until=float(until))
    assert line.order(100.0) == ["cleo 2", "ann 2", "ben 2"]


def test_a_backlog_ages_one_job_at_a_time() -> None:
    line = Line()
    first = line.add("ann 1", member="ann")
    line.add("ann 2", member="ann")
    line.add("ben 1", member="ben", at=30.0)
    line.queue.take(first.id)
    assert line.pick(40.0).winner.id == "ben 1"  # Ann's clock stands while her job runs
    line.queue.give_back(first, "gpu", 60.0, service_s=20.0, clock=0.0)
    pick = line.pick(300.0)
    assert (pick.winner.id, pick.clock) == ("ben 1", 30.0)
    assert pick.runner_up is not None
    assert (pick.runner_up.id, pick.runner_up_clock) == ("ann 2", 60.0)


def test_turns_are_taken_per_band() -> None:
    line = Line()
    first = line.add("batch", member="ann", priority=-100)
    line.add("ann's chat", member="ann", priority=100, at=10.0)
    line.add("ben's chat", member="ben", priority=100, at=20.0)
    line.queue.take(first.id)
    assert line.pick(30.0).winner.id == "ann's chat"


def test_within_a_member_all_jobs_age_so_that_none_is_starved_by_the_resident_model() -> None:
    line = Line()
    line.add("video", model="video")
    for number in range(15):
        line.add(f"image {number}", model="image", at=number * 2 * MINUTE)
    assert line.pick(30 * MINUTE, "image").winner.id == "image 0"
    for number in range(5):
        line.queue.remove(f"image {number}")
    assert line.pick(30 * MINUTE, "image").winner.id == "video"  # the tie goes to the earlier submit


def test_without_a_line_per_model_affinity_keeps_a_model_for_ten_minutes_of_waiting() -> None:
    line = Line()
    line.add("swap", member="ann", model="b")
    line.add("stay", member="ben", model="a", at=9.9 * MINUTE)
    assert line.pick(9.9 * MINUTE, "a").winner.id == "stay"
    line.queue.remove("stay")
    line.add("stay", member="ben", model="a", at=10 * MINUTE)
    assert line.pick(10 * MINUTE, "a").winner.id == "swap"


def variants(pick: Pick) -> dict[str, str]:
    return {
        "winner": pick.winner.id,
        "aging": pick.without_aging.id,
        "affinity": pick.without_affinity.id,
        "turns": pick.without_turns.id,
        "first come": pick.first_come.id,
    }


def test_each_variant_can_have_another_winner() -> None:
    """One comparison that every term decides differently."""
    line = Line()
    line.add("early", member="ben", priority=-100)  # -100 + 20
    line.add("served", member="ann", priority=2, at=0.5 * MINUTE)
    line.add("again", member="ann", priority=2, at=0.5 * MINUTE)  # 2 + 1; by its submit 2 + 19.5
    line.add("waited", member="dan", model="b", at=6 * MINUTE)  # 0 + 14
    line.add("resident", member="cleo", model="a", at=12 * MINUTE)  # 0 + 10 + 8
    line.add("urgent", member="eve", priority=11, model="b", at=19 * MINUTE)  # 11 + 1
    line.serve("served", until=19 * MINUTE)
    assert variants(line.pick(20 * MINUTE, "a")) == {
        "winner": "resident",
        "aging": "urgent",
        "affinity": "waited",
        "turns": "again",
        "first come": "early",
    }


def test_aging_changes_the_order() -> None:
    line = Line()
    line.add("urgent", member="ann", priority=1, at=3 * MINUTE)
    line.add("waited", member="ben", at=0.0)
    assert variants(line.pick(4 * MINUTE)) == {
        "winner": "waited",
        "aging": "urgent",
        "affinity": "waited",
        "turns": "waited",
        "first come": "waited",
    }


def test_affinity_changes_the_order() -> None:
    line = Line()
    line.add("other", member="ann", model="b")
    line.add("resident", member="ben", model="a", at=5 * MINUTE)
    assert variants(line.pick(6 * MINUTE, "a")) == {
        "winner": "resident",
        "aging": "resident",
        "affinity": "other",
        "turns": "resident",
        "first come": "other",
    }


def test_taking_turns_changes_the_order_and_is_not_blamed_on_aging() -> None:
    line = Line()
    line.add("ann 1", member="ann")
    line.add("ann 2", member="ann")
    line.add("ben 1", member="ben", at=MINUTE)
    line.serve("ann 1", until=2 * MINUTE)
    assert variants(line.pick(3 * MINUTE)) == {
        "winner": "ben 1",
        "aging": "ben 1",  # the turn clock stays the tie-break
        "affinity": "ben 1",
        "turns": "ann 2",
        "first come": "ann 2",
    }


def test_priority_changes_the_order_against_first_come() -> None:
    line = Line()
    line.add("batch", member="ann", priority=-100)
    line.add("chat", member="ben", priority=100)
    assert variants(line.pick(1.0)) == {
        "winner": "chat",
        "aging": "chat",
        "affinity": "chat",
        "turns": "chat",
        "first come": "batch",
    }


def test_the_variants_differ_within_one_member_too() -> None:
    line = Line()
    line.add("waited", model="b")
    line.add("resident", model="a", at=5 * MINUTE)
    line.add("urgent", priority=3, model="b", at=5 * MINUTE)
    assert variants(line.pick(6 * MINUTE, "a")) == {
        "winner": "resident",
        "aging": "resident",
        "affinity": "waited",
        "turns": "resident",
        "first come": "waited",
    }


def test_the_runner_up_is_of_another_member_or_band() -> None:
    line = Line()
    line.add("ann 1", member="ann", priority=1)
    line.add("ann 2", member="ann", priority=1)
    assert line.pick(0.0).runner_up is None
    line.add("ben 1", member="ben", priority=-100)
    line.add("ann 3", member="ann", priority=0)
    pick = line.pick(0.0)
    assert pick.runner_up is not None
    assert pick.runner_up.id == "ben 1"
    line.add("ann 4", member="ann", priority=-99)
    pick = line.pick(0.0)
    assert pick.runner_up is not None
    assert pick.runner_up.id == "ann 4"


def test_with_fairness_none_a_whole_band_is_one_line() -> None:
    line = Line(ScoreRules(fairness="none"))
    line.add("ann 1", member="ann")
    line.add("ann 2", member="ann")
    line.add("ben 1", member="ben", at=1.0)
    line.serve("ann 1", until=2.0)
    assert line.order(3.0) == ["ann 2", "ben 1"]


def test_with_submit_clocks_a_backlog_ages_all_at_once() -> None:
    line = Line(ScoreRules(aging_clock="submit"))
    line.add("ann 1", member="ann")
    line.add("ann 2", member="ann")
    line.add("ben 1", member="ben", at=1.0)
    line.serve("ann 1", until=2.0)
    assert line.order(3.0) == ["ann 2", "ben 1"]


def test_a_job_may_leave_from_the_middle_of_its_line() -> None:
    line = Line()
    for job_id in ("1", "2", "3"):
        line.add(job_id)
    line.pick(0.0)
    line.queue.remove("2")
    assert line.order(0.0) == ["1", "3"]


def test_a_comparison_follows_new_heads_and_other_resident_models() -> None:
    line = Line()
    line.add("1", model="a")
    assert line.pick(0.0).winner.id == "1"
    line.add("2", model="b")
    assert line.pick(0.0).winner.id == "1"
    assert line.pick(0.0, "b").winner.id == "2"
    assert line.pick(0.0).winner.id == "1"
    line.add("3", model="a", priority=1)
    assert line.pick(0.0).winner.id == "3"
    line.queue.remove("3")
    assert line.pick(0.0).winner.id == "1"


def test_a_comparison_follows_an_older_job_that_comes_later() -> None:
    line = Line()
    line.add("newer", at=5.0)
    assert line.pick(9.0).winner.id == "newer"
    line.add("older", at=-5.0)
    assert line.pick(9.0).winner.id == "older"
    line.add("between", at=0.0)
    assert line.order(9.0) == ["older", "between", "newer"]


def test_a_comparison_follows_the_clock() -> None:
    line = Line()
    first = line.add("ann 1", member="ann")
    line.add("ann 2", member="ann")
    line.add("ben 1", member="ben", at=10.0)
    assert line.pick(20.0).winner.id == "ann 1"
    line.queue.take(first.id)
    assert line.pick(20.0).winner.id == "ben 1"
    line.queue.give_back(first, "gpu", 20.0, service_s=None, clock=0.0)
    pick = line.pick(20.0)
    assert (pick.winner.id, pick.clock) == ("ann 2", 0.0)


def test_counts_and_names() -> None:
    line = Line()
    assert repr(line.queue) == "<Queue 0 waiting; standings by lane: none>"
    line.add("1", model="a")
    line.add("2", model="b", priority=1)
    queue = line.queue
    assert (len(queue), queue.count("gpu"), queue.count("cpu")) == (2, 2, 0)
    assert "1" in queue
    assert "3" not in queue
    assert queue.waits_for("a")
    assert not queue.waits_for("c")
    assert [job.id for job in queue.jobs()] == ["1", "2"]
    assert [job.id for job in queue.jobs(model="b")] == ["2"]
    assert (queue.job("2").model, queue.lane_of("2")) == ("b", "gpu")
    assert repr(queue) == "<Queue 2 waiting; standings by lane: gpu 1>"
    queue.remove("1")
    assert not queue.waits_for("a")
    with pytest.raises(KeyError):
        queue.remove("1")
    with pytest.raises(ValueError, match="job 2 already waits"):
        line.add("2")


def test_other_rules_keep_the_clocks_that_still_exist() -> None:
    line = Line()
    line.add("ann 1", member="ann")
    line.add("ann 2", member="ann")
    line.add("ben 1", member="ben", at=1.0)
    line.serve("ann 1", until=5.0)
    line.queue = line.queue.rebuilt(ScoreRules(swap_affinity=5.0), {"m": "gpu"}, [])
    assert line.pick(9.0).winner.id == "ben 1"
    line.queue = line.queue.rebuilt(ScoreRules(fairness="none"), {"m": "gpu"}, [])
    assert line.order(9.0) == ["ann 2", "ben 1"]
