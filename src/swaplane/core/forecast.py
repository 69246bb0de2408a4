"""Who would go next, and when, if nothing else arrived.

The rules of the dispatcher run forward in imagined time: jobs run for as long as their model's jobs have taken so
far, places and clocks move, the best job that may have a place is picked; when it does not fit, the next end is
awaited. It reads the board and changes nothing. A forecast is no promise: a later arrival with a higher score goes
first. `explain` shows it to people; `gatekeeper` takes from it when a refused client may try again.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from swaplane.core.bars import bar_of, has_bar, holders_of
from swaplane.core.board import Board
from swaplane.core.comparison import OPEN, Bar, Candidacy, Line, Ranks, Standing, line_of
from swaplane.core.events import Job
from swaplane.core.score import ScoreRules
from swaplane.core.state import Grant, LaneState
from swaplane.core.turns import rest_until, turn_key

#: Assumed run and load seconds of a model that has not run or loaded yet.
UNKNOWN_RUN_S = 1.0
UNKNOWN_LOAD_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One waiting job's turn, as expected."""

    job: Job
    at: float  #: when it is given its place, seconds of the dispatcher's clock
    known: bool  #: whether all that goes before it was measured; otherwise there is a guess in `at`


class _Imagined(Candidacy):
    """A standing whose jobs can be taken without taking them from the queue; copied when the first one is."""

    def __init__(
        self, standing: Standing, lane: LaneState, *, band: str, share: float, longest_s: dict[str, float]
    ) -> None:
        super().__init__(standing.clock.idle_copy())
        self._standing = standing
        self._lane = lane
        self._band = band
        self._share = share
        self._longest_s = longest_s  # the longest rest by band, the same for all
        self._lines: dict[str, dict[Line, tuple[Job, Iterator[Job]]]] | None = None
        self.current: Ranks | None = None  #: its part in the comparison that is under way

    def take(self, job: Job) -> None:
        """Its next job is given a place."""
        self.clock.started()
        if self._lines is None:
            self._lines = {}
            for line in self._standing.lines():
                self._advance(iter(line))
        _, rest = self._lines[job.model].pop(line_of(job))
        self._advance(rest)
        self.heads_changed()

    def _advance(self, line: Iterator[Job]) -> None:
        job = next(line, None)
        if job is not None and self._lines is not None:
            self._lines.setdefault(job.model, {})[line_of(job)] = (job, line)

    def ended(self, now: float, service_s: float, rules: ScoreRules, *, clock: float) -> None:
        """One of its jobs that had a place ends; `clock` is the moment from which it aged when it was given that."""
        self.clock.stopped()
        if rules.fairness == "gpu_time":
            band_s = self._longest_s.get(self._band, 0.0)
            until, its_s = rest_until(self.clock, now, service_s, self._share, rules, clock=clock, longest_s=band_s)
            self.clock.rests(until, rest_s=its_s)
            self._longest_s[self._band] = max(band_s, its_s)
        else:
            self.clock.had_turn(now)

    def ranks(self, now: float, resident: Collection[str], rules: ScoreRules, bar: Bar = OPEN) -> Ranks | None:
        """As of any other; but as long as nothing differs from what is, the real one may know them already."""
        real, lane = self._standing, self._lane
        same = self._lines is None and resident is lane.resident and bar is lane.bar
        if same and self._ranked_for is None and real.clock.floor(now, rules) == self.clock.floor(now, rules):
            self.rank_as(real, now, resident, rules, bar)
        return super().ranks(now, resident, rules, bar)

    def __bool__(self) -> bool:
        return self._lines is None or any(self._lines.values())

    def heads(self) -> Iterable[Job]:
        if self._lines is None:
            return self._standing.heads()
        return (job for of_model in self._lines.values() for job, _ in of_model.values())

    def heads_of(self, model: str) -> Iterable[Job]:
        if self._lines is None:
            return self._standing.heads_of(model)
        return (job for job, _ in self._lines.get(model, {}).values())

    def callers(self) -> Iterable[tuple[str, str]]:
        return self._standing.callers()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A job that holds a place."""

    job: Job
    clock: float  # from which it aged when it was given that
    here: bool  # in the lane that is looked at
    whose: _Imagined | None  # None when its (member, band) has no other job waiting


class _Scene:
    """One lane at an imagined moment."""

    def __init__(self, board: Board, lane: LaneState, now: float) -> None:
        self._board = board
        self._lane = lane
        self._bar = lane.bar
        self._has_bar = has_bar(lane.plan, board.limits)
        self.at = now
        self.resident = lane.resident
        self._held: Counter[tuple[str, str]] = Counter()
        self._running: dict[str, dict[str, Job]] = {}  # by model and job id
        self._ready_at: dict[str, float] = {}  # of models that load
        self._ends: list[tuple[float, int, _Run | str]] = []  # a model by name: it is ready
        self._ordered = 0
        whose = self._imagine()
        self.standings = dict.fromkeys(whose.values())
        self._stale = self.standings.copy()  # whose part in the comparison is not known
        self._compared_for = (self.resident, self._bar)
        self._line: list[tuple[float, float, int, int, Ranks]] = []  # a heap; some entries are not current any more
        for grant in board.grants():
            here = grant.lane == lane.plan.name
            standing = whose.get(self._clock_key(grant.job)) if here else None
            if standing is not None:
                standing.clock.started()
            if here and grant.sent_at is None:
                self._loads(grant.job.model, max(now, grant.granted_at + load_s(board, grant.job.model)))
            self._hold(
                _Run(job=grant.job, clock=grant.clock, here=here, whose=standing), _expected_end(board, grant, now)
            )

    def _imagine(self) -> dict[tuple[str, str], _Imagined]:
        queue, name = self._board.queue, self._lane.plan.name
        shares = queue.shares(name) if self._board.rules.fairness == "gpu_time" else {}
        found = {}
        longest_s: dict[str, float] = {}
        for standing in queue.standings(name):
            key = self._clock_key(next(iter(standing.heads())))
            _, band = key
            longest_s[band] = max(longest_s.get(band, 0.0), standing.clock.rest_s)
            share = shares.get((name, *key), 1.0)
            found[key] = _Imagined(standing, self._lane, band=band, share=share, longest_s=longest_s)
        return found

    def _clock_key(self, job: Job) -> tuple[str, str]:
        rules = self._board.rules
        return turn_key(job.member, rules.band_of(job.priority).name, rules)

    def _await(self, at: float, run: _Run | str) -> None:
        self._ordered += 1
        heapq.heappush(self._ends, (at, self._ordered, run))

    def _loads(self, model: str, until: float) -> None:
        self._ready_at[model] = until
        self._await(until, model)

    def _hold(self, run: _Run, until: float) -> None:
        self._held.update(holders_of(run.job))
        if run.here:
            self._running.setdefault(run.job.model, {})[run.job.id] = run.job
        self._await(until, run)

    def best(self) -> Ranks | None:
        """Who is first in line of those that may have a place."""
        bar = self._bar_now()
        if self._compared_for[0] is not self.resident or self._compared_for[1] is not bar:
            self._compared_for = (self.resident, bar)
            self._stale = self.standings.copy()
            self._line.clear()
        again: dict[_Imagined, None] = {}  # the clock of those that have a job running goes on
        for standing in self._stale:
            if standing in self.standings:
                standing.current = ranks = standing.ranks(self.at, self.resident, self._board.rules, bar)
                if ranks is not None:
                    self._ordered += 1
                    ahead, minus_clock, minus_seq, _ = ranks.full
                    heapq.heappush(self._line, (-ahead, -minus_clock, -minus_seq, self._ordered, ranks))
                if standing.clock.running:
                    again[standing] = None
        self._stale = again
        while self._line:
            ranks = self._line[0][-1]
            if isinstance(ranks.of, _Imagined) and ranks.of.current is ranks:
                return ranks
            heapq.heappop(self._line)
        return None

    def _bar_now(self) -> Bar:
        if self._has_bar:
            bar = bar_of(
                self._lane.plan,
                self._board.limits,
                self._board.rules,
                held=self._held,
                tops={model: max(job.priority for job in jobs.values()) for model, jobs in self._running.items()},
                joinable=[model for model in self._running if self._takes_more(model)],
            )
            if bar != self._bar:
                self._bar = bar
        return self._bar

    def _takes_more(self, model: str) -> bool:
        return not self._is_loading(model) and len(self._running[model]) < self._slots(model)

    def _is_loading(self, model: str) -> bool:
        return self._ready_at.get(model, self.at) > self.at

    def _slots(self, model: str) -> int:
        return self._board.models[model].plan.slots

    def has_room(self) -> bool:
        """Whether any job could be given a place."""
        return len(self._running) < self._lane.plan.size or any(map(self._takes_more, self._running))

    def fits(self, job: Job) -> bool:
        """Whether the best job could be given a place: see `Dispatcher._grant_best`."""
        holds = job.model in self._running
        if not (self._takes_more(job.model) if holds else len(self._running) < self._lane.plan.size):
            return False
        must_leave = self._board.residency.must_leave
        loading = filter(self._is_loading, self._running)
        return not must_leave(job.model, self._running) and not any(must_leave(each, [job.model]) for each in loading)

    def start(self, found: Ranks) -> None:
        """The best job is given its place."""
        job, whose = found.full[-1], found.of
        assert isinstance(whose, _Imagined)  # noqa: S101 - it is one of those given
        sent_at = self.at
        leaving = self._board.residency.must_leave(job.model, self.resident)
        if leaving:
            self.resident = self.resident.difference(leaving)
        if job.model not in self.resident:
            sent_at += load_s(self._board, job.model)
            self._loads(job.model, sent_at)
        whose.take(job)
        whose.current = None
        self._stale[whose] = None
        if not whose:
            del self.standings[whose]
        run = _Run(job=job, clock=-found.full[1], here=True, whose=whose)
        self._hold(run, sent_at + run_s(self._board, job.model))

    def go_on(self) -> None:
        """Let time pass until something changes. Something is on its way: when nothing runs, any job fits."""
        self.at, _, run = heapq.heappop(self._ends)
        if isinstance(run, str):
            self.resident |= {run}
            return
        self._held.subtract(holders_of(run.job))
        if run.here:
            model = run.job.model
            del self._running[model][run.job.id]
            if not self._running[model]:
                del self._running[model]
            if run.whose is not None:
                service_s = run_s(self._board, model) / self._slots(model)
                run.whose.ended(self.at, service_s, self._board.rules, clock=run.clock)
                self._stale[run.whose] = None


def forecast(board: Board, lane: LaneState, now: float) -> Iterator[Expected]:
    """The lane's waiting jobs in the order in which they would be dispatched if nothing else arrived."""
    known = not lane.paused and all(
        _is_known(board, grant.job.model, loads=grant.sent_at is None) for grant in lane_grants(board, lane)
    )
    scene = _Scene(board, lane, now)
    while scene.standings:
        found = scene.best() if scene.has_room() else None
        if found is None or not scene.fits(found.full[-1]):
            scene.go_on()
            continue
        job = found.full[-1]
        yield Expected(job=job, at=scene.at, known=known)
        known = known and _is_known(board, job.model, loads=job.model not in scene.resident)
        scene.start(found)


def lane_grants(board: Board, lane: LaneState) -> list[Grant]:
    """The lane's jobs that hold a place, oldest first."""
    return [grant for grant in board.grants() if grant.lane == lane.plan.name]


def _expected_end(board: Board, grant: Grant, now: float) -> float:
    """When a job that holds a place ends if it takes as long as its model's jobs do.

    One that has taken longer already is expected to go on for as long as it is late, or all would come again each
    second until it is over.
    """
    model = grant.job.model
    sent_at = grant.granted_at + load_s(board, model) if grant.sent_at is None else grant.sent_at
    return now + abs(sent_at + run_s(board, model) - now)


def run_s(board: Board, model: str) -> float:
    """How long a job of this model is expected to run, seconds."""
    state = board.models.get(model)
    return UNKNOWN_RUN_S if state is None or state.run_s is None else state.run_s


def load_s(board: Board, model: str) -> float:
    """How long this model is expected to load, seconds."""
    measured = board.models[model].load_s
    return UNKNOWN_LOAD_S if measured is None else measured


def _is_known(board: Board, model: str, *, loads: bool) -> bool:
    state = board.models[model]
    return state.run_s is not None and not (loads and state.load_s is None)
