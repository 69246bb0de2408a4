"""The tables of docs/scheduling.md, computed again, so that the page cannot say what the code does not do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from swaplane.core.commands import RecordDispatch
from swaplane.core.dispatcher import BACKOFF_S, Dispatcher
from swaplane.core.events import Job, JobArrived, JobEnded, ModelReady
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import LanePlan, ModelPlan, Plan
from swaplane.core.residency import Residency
from swaplane.core.score import AgingClock, ScoreRules
from swaplane.gateway.headers import parse_priority

ROOT = Path(__file__).parents[2]
RULES = ScoreRules()


def table(name: str) -> list[list[str]]:
    """The cells below the headings of the table that follows this mark."""
    page = (ROOT / "docs" / "scheduling.md").read_text()
    (block,) = re.findall(rf"^<!-- table: {name}\b.*-->\n((?:\|.*\n)+)", page, flags=re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
    assert len(rows) > 2
    return rows[2:]


def test_headers_are_read_as_the_page_says() -> None:
    for header, applied, band, base, tier_bonus, reason in table("headers"):
        values = [value.encode() for value in re.findall(r"`([^`]*)`", header)]
        priority = parse_priority(values, RULES)
        assert (str(priority.applied), priority.reason) == (applied, reason), header
        assert (RULES.band_of(priority.applied).name, RULES.split(priority.applied)) == (
            band,
            (int(base), int(tier_bonus)),
        )


def test_the_worked_comparison_adds_up_and_is_in_order() -> None:
    ranks = []
    for _, _, model, priority, minutes, *terms in table("comparison"):
        aged_s = 60.0 * float(minutes)
        score = RULES.score(int(priority), resident=model == "gemma", now=aged_s, clock=0.0)
        assert [score.base, score.tier_bonus, score.affinity, score.aging, score.total] == [
            float(term) for term in terms
        ]
        ranks.append((score.total, aged_s))
    assert ranks == sorted(ranks, reverse=True)
    assert [row[0] for row in table("comparison")] == [str(place) for place in range(1, len(ranks) + 1)]


@pytest.mark.parametrize(("column", "clock"), [(1, "turn"), (2, "submit")])
def test_turns_are_taken_as_the_page_says(column: int, clock: AgingClock) -> None:
    expected = [(float(row[0]), row[column]) for row in table("turns")]
    assert _dispatched(ScoreRules(aging_clock=clock)) == expected


def _dispatched(rules: ScoreRules) -> list[tuple[float, str]]:
    """(minute, job) of each dispatch: A queues four jobs at minute 0, B two at minute 1, each runs four minutes."""
    plan = Plan(
        models={"m": ModelPlan(id="m", lane="gpu")},
        lanes={"gpu": LanePlan(name="gpu")},
        residency=Residency(),
        rules=rules,
    )
    dispatcher = Dispatcher(plan)
    found: list[tuple[float, str]] = []

    def note(commands: object, minute: float) -> None:
        assert isinstance(commands, list)
        found.extend((minute, each.dispatch.winner.job_id) for each in commands if isinstance(each, RecordDispatch))

    arrivals = [("A", number, 0.0) for number in range(1, 5)] + [("B", number, 1.0) for number in (1, 2)]
    for seq, (member, number, minute) in enumerate(arrivals, start=1):
        job = Job(id=f"{member}{number}", seq=seq, model="m", member=member, priority=0, submitted_at=60 * minute)
        note(dispatcher.handle(JobArrived(job=job), 60 * minute), minute)
        if seq == 1:
            note(dispatcher.handle(ModelReady(model="m", load_s=0.0), 0.0), 0.0)
    for minute in (4.0, 8.0, 12.0, 16.0, 20.0):
        (running,) = dispatcher.grants()
        ended = JobEnded(job_id=running.job.id, outcome=Outcome.COMPLETED)
        note(dispatcher.handle(ended, 60 * minute), minute)
    return found


def test_the_backoff_is_the_dispatchers() -> None:
    rows = table("backoff")
    assert [float(seconds) for _, seconds in rows] == list(BACKOFF_S)
    assert [row[0].split()[0] for row in rows] == [str(count) for count in range(1, len(BACKOFF_S) + 1)]


def test_every_outcome_is_listed_in_order() -> None:
    listed = [row[0].strip("`") for row in table("outcomes")]
    assert listed == [str(outcome) for outcome in Outcome]
    assert [Outcome(name).ran for name in listed] == [False] * 11 + [True] * 11
