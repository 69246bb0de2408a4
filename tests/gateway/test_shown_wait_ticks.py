from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from swaplane.core.board import Board
from swaplane.core.dispatcher import Dispatcher
from swaplane.core.events import Job, JobArrived, JobEnded, JobLeft, LanePaused, ModelReady
from swaplane.core.forecast import Expected, forecast
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import LanePlan, ModelPlan, Plan
from swaplane.core.residency import Residency
from swaplane.core.score import ScoreRules
from swaplane.core.state import LaneState
from swaplane.gateway import waits as module
from swaplane.gateway.shown_wait import DOT_S, LIFE_S, Comments, LoadingText
from swaplane.gateway.waits import Outlook, Waits
from swaplane.runtime import Runtime
from swaplane.ticket import Run, Ticket
from tests.support.stub_client import until

MODELS = {name: ModelPlan(id=name, lane="gpu", slots=1, ttl_s=None, fingerprint="f") for name in ("mA", "mB")}


class Line:
    """A dispatcher with jobs and who is shown them, without a gateway around it."""

    def __init__(self) -> None:
        lanes = {"gpu": LanePlan(name="gpu")}
        plan = Plan(models=MODELS, lanes=lanes, residency=Residency(()), rules=ScoreRules())
        self.dispatcher = Dispatcher(plan)
        self.waits = Waits(cast("Runtime", SimpleNamespace(dispatcher=self.dispatcher)))
        self.told: dict[str, list[Outlook]] = {}
        self._arrivals = 0

    def arrive(
        self, job_id: str, *, model: str = "mA", priority: int = 0, member: str = "m", shown: bool = True
    ) -> None:
        self._arrivals += 1
        job = Job(
            id=job_id,
            seq=self._arrivals,
            model=model,
            member=member,
            priority=priority,
            submitted_at=time.monotonic(),
        )
        self.dispatcher.handle(JobArrived(job=job), time.monotonic())
        if shown:
            self.show(job_id)

    def show(self, job_id: str) -> None:
        told = self.told.setdefault(job_id, [])
        self.waits.add(job_id, lambda outlook, _: told.append(outlook))

    def leave(self, job_id: str) -> None:
        self.dispatcher.handle(JobLeft(job_id=job_id), time.monotonic())
        self.waits.remove(job_id)

    def last(self, job_id: str) -> Outlook | None:
        return self.told[job_id][-1] if self.told[job_id] else None


class Forecasts:
    """Counts how often lines are looked at, and how far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self.counted = 0
        monkeypatch.setattr(module, "forecast", self._forecast)

    def _forecast(self, board: Board, lane: LaneState, now: float) -> Iterator[Expected]:
        self.made += 1
        for each in forecast(board, lane, now):
            self.counted += 1
            yield each


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def forecasts(monkeypatch: pytest.MonkeyPatch) -> Forecasts:
    return Forecasts(monkeypatch)


@pytest.mark.anyio
async def test_everybody_learns_who_is_ahead(line: Line) -> None:
    line.arrive("loads")
    for name, priority in (("film", -98), ("b", 0), ("c", 7), ("a", 150)):
        line.arrive(name, priority=priority, member=name)
    await until(lambda: all(map(line.last, line.told)), "all are told")
    assert {name: told[0] for name, told in line.told.items()} == {
        "loads": Outlook(state="loading"),
        "a": Outlook(state="waiting", position=1, ahead={}),
        "c": Outlook(state="waiting", position=2, ahead={"interactive": 1}),
        "b": Outlook(state="waiting", position=3, ahead={"interactive": 1, "normal": 1}),
        "film": Outlook(state="waiting", position=4, ahead={"interactive": 1, "normal": 2}),
    }
    for name in list(line.told):
        line.leave(name)


@pytest.mark.anyio
async def test_a_wait_is_known_once_the_model_was_measured_and_not_while_the_lane_is_paused(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    monkeypatch.setattr(module, "EARLY_S", 0.001)
    line.arrive("first", shown=False)
    line.arrive("second")
    await until(lambda: line.last("second"), "it is told")
    assert line.told["second"][0].expected_at is None, "nothing was measured yet"
    now = time.monotonic()
    line.dispatcher.handle(ModelReady(model="mA", load_s=3.0), now)
    line.dispatcher.handle(JobEnded(job_id="first", outcome=Outcome.COMPLETED), now + 4.0)
    line.waits.remove("second")
    line.arrive("third")
    line.arrive("fourth", model="mB")
    await until(lambda: all((line.last("third"), line.last("fourth"))), "both are told")
    third, fourth = line.told["third"][0], line.told["fourth"][0]
    assert third.expected_at is not None
    assert fourth.expected_at is not None
    assert fourth.expected_at - third.expected_at == pytest.approx(4.0)
    line.dispatcher.handle(LanePaused(lane="gpu"), now + 4.0)
    await until(lambda: (last := line.last("third")) and last.expected_at is None, "the pause is told")
    for name in ("third", "fourth"):
        line.leave(name)


@pytest.mark.anyio
async def test_two_hundred_who_come_at_once_cost_one_look(line: Line, forecasts: Forecasts) -> None:
    for number in range(201):
        line.arrive(str(number))
    await until(lambda: all(map(line.last, line.told)), "all are told")
    assert forecasts.made == 1
    assert forecasts.counted == 200
    for number in range(201):
        line.leave(str(number))


@pytest.mark.anyio
async def test_two_hundred_who_come_one_after_the_other_share_looks(line: Line, forecasts: Forecasts) -> None:
    looks_s = min(module.EARLY_S, module.EVERY_S)
    begun = time.monotonic()
    for number in range(201):
        line.arrive(str(number))
        await asyncio.sleep(0)
    await until(lambda: all(map(line.last, line.told)), "all are told")
    assert forecasts.made <= 2 + (time.monotonic() - begun) / looks_s
    assert forecasts.made < 50
    for number in range(201):
        line.leave(str(number))


@pytest.mark.anyio
async def test_a_thousand_are_told_and_not_counted_to_the_last_where_that_takes_long(
    line: Line, forecasts: Forecasts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COUNTING_S", 0.0)
    for number in range(1001):
        line.arrive(str(number), member=str(number % 7))
    await until(lambda: all(map(line.last, line.told)), "all are told")
    assert forecasts.made == 1
    assert forecasts.counted == module.LEAST_COUNTED
    positions = sorted(told[0].position for told in line.told.values() if told[0].position is not None)
    assert positions == list(range(1, module.LEAST_COUNTED + 1))
    for number in range(1001):
        line.leave(str(number))


@pytest.mark.anyio
async def test_a_line_is_counted_no_further_than_to_who_asks(line: Line, forecasts: Forecasts) -> None:
    for number in range(100):
        line.arrive(str(number), shown=False)
    line.arrive("asks", priority=100)
    await until(lambda: line.last("asks"), "it is told")
    assert (forecasts.made, forecasts.counted) == (1, 1)
    line.leave("asks")


@pytest.mark.anyio
async def test_nothing_goes_on_where_nobody_listens(line: Line, forecasts: Forecasts) -> None:
    tasks = asyncio.all_tasks()
    for _ in range(3):
        line.arrive("one")
        line.arrive("two")
        await until(lambda: all(map(line.last, line.told)), "both are told")
        line.leave("two")
        assert asyncio.all_tasks() > tasks
        line.leave("one")
        await until(lambda: asyncio.all_tasks() == tasks, "nothing is left")
        line.told.clear()


@pytest.mark.anyio
async def test_a_fault_silences_nobody_for_good(
    line: Line, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    line.arrive("loads", shown=False)
    faults = iter([RuntimeError("a fault")])

    def tell(outlook: Outlook, now: float) -> None:
        for fault in faults:
            raise fault
        line.told["one"].append(outlook)

    line.told["one"] = []
    line.waits.add("loads", tell)
    await until(lambda: line.last("one"), "it is told in the end")
    assert "a fault" in caplog.text
    line.waits.remove("loads")


def waiting(position: int, expected_at: float | None = None) -> Outlook:
    return Outlook(state="waiting", position=position, ahead={"normal": position - 1}, expected_at=expected_at)


def test_comments_tell_what_changed_and_else_that_they_live() -> None:
    comments = Comments()
    assert comments.told(waiting(3), 100.0) == (
        b': queue {"state": "waiting", "position": 3, "ahead": {"normal": 2}, "expected_wait_s": null}\n\n'
    )
    assert comments.told(waiting(3), 101.0) == b""
    assert comments.told(waiting(3), 100.0 + LIFE_S - 1) == b""
    assert comments.told(waiting(3), 100.0 + LIFE_S)
    assert b'"position": 2' in comments.told(waiting(2), 117.0)
    loading = comments.told(Outlook(state="loading", expected_at=120.0), 118.0)
    assert loading == b': queue {"state": "loading", "position": null, "ahead": null, "expected_wait_s": 2.0}\n\n'


def test_an_estimate_that_counts_down_as_foretold_is_no_news() -> None:
    comments = Comments()
    assert b'"expected_wait_s": 100.0' in comments.told(waiting(2, 200.0), 100.0)
    assert comments.told(waiting(2, 200.0), 110.0) == b""
    assert comments.told(waiting(2, 217.0), 111.0) == b""
    assert b'"expected_wait_s": 118.0' in comments.told(waiting(2, 230.0), 112.0)
    assert b'"expected_wait_s": null' in comments.told(waiting(2), 113.0)
    assert b'"expected_wait_s": 16.0' in comments.told(waiting(2, 130.0), 114.0)
    assert b'"expected_wait_s": 0.0' in comments.told(waiting(2, 114.0), 115.0)


@pytest.mark.anyio
async def test_the_last_comment_tells_a_priority_that_was_changed_meanwhile() -> None:
    job = Job(id="j", seq=1, model="mA", member="m", priority=5, submitted_at=0.0)
    ticket = cast("Ticket", SimpleNamespace(job=job, priority_reason=""))
    turn = Run(proxy="", waited_s=1.23456)
    assert Comments().sent(ticket, turn) == b': queue {"state": "running", "waited_s": 1.235, "priority": 5}\n\n'
    ticket.priority_reason = "set from 0 to 5\nby request"
    assert Comments().sent(ticket, turn) == (
        b': queue {"state": "running", "waited_s": 1.235, "priority": 5,'
        b' "priority_reason": "set from 0 to 5\\nby request"}\n\n'
    )


def test_the_text_names_the_model_and_its_own_news_only() -> None:
    text = LoadingText("gemma")
    frame = 'data: {"choices":[{"delta":{"reasoning_content":"%s"}}]}\n\n'
    assert text.told(waiting(2), 100.0).decode() == frame % r"━━━━━\nswaplane: gemma\nQueue position: #2 "
    assert text.told(waiting(2), 101.0) == b""
    assert text.told(waiting(2), 100.0 + DOT_S).decode() == frame % "."
    assert text.told(waiting(1), 106.0).decode() == frame % r"\nQueue position: #1 "
    assert text.told(Outlook(state="loading"), 107.0).decode() == frame % r"\nLoading gemma "
    assert text.told(Outlook(state="loading"), 108.0).decode() == frame % "."
    done = text.sent(cast("Ticket", None), Run(proxy="", waited_s=1.234))
    assert done.decode() == frame % r"\nDone! (1.23s)\n━━━━━\n \n"


def test_the_text_of_a_turn_that_comes_before_any_news_has_its_head_too() -> None:
    done = LoadingText('ge"mma').sent(cast("Ticket", None), Run(proxy="", waited_s=0.01)).decode()
    assert r"━━━━━\nswaplane: ge\"mma\nDone! (0.01s)" in done
