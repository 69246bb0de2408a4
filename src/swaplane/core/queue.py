"""The waiting jobs of all lanes, and who of them goes next.

`pick` is one comparison in two passes of the same formula. (1) Within one (member, band) the candidate is
the job with the best score, its clock being its submit time. (2) Between the candidates the best score wins,
the clock being the member's turn clock. Ties: earlier clock, then arrival number.

Only heads can win: the first job of each (member, band, model, priority). The first pass does not depend on
`now`, because all scores grow at the same rate, so its result is kept until one of the heads or the set of
resident models changes. A decision costs one scan over the (member, band)s that wait.

The queue starts nothing and does not know whether the winner fits; that is the dispatcher's matter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from swaplane.core.events import Job
from swaplane.core.score import ScoreRules
from swaplane.core.turns import TurnClock, turn_key


class Candidates(NamedTuple):
    """The first pass of one (member, band): the job that represents it under each rule."""

    full: Job
    full_points: float  #: its priority + affinity
    without_affinity: Job
    without_aging: Job
    without_aging_points: float  #: its priority + affinity
    first_come: Job


class Candidacy(ABC):
    """A (member, band) as `pick` sees it: a clock, and lines of jobs that differ in nothing but arrival."""

    def __init__(self, band: str, clock: TurnClock) -> None:
        self.band = band
        self.clock = clock
        self._plain: tuple[Job, Job, Job] | None = None
        self._best: Candidates | None = None
        self._best_for: Collection[str] | None = None

    @abstractmethod
    def heads(self) -> Iterable[Job]:
        """The first job of each line."""

    @abstractmethod
    def heads_of(self, model: str) -> Iterable[Job]:
        """The first job of each line of one model."""

    def heads_changed(self) -> None:
        """Forget the first pass."""
        self._plain = self._best = None

    def best(self, resident: Collection[str], rules: ScoreRules) -> Candidates:
        """The first pass. `resident` is compared by identity: pass the same object until it changes."""
        if self._best is None or self._best_for is not resident:
            self._best = self._compare(resident, rules)
            self._best_for = resident
        return self._best

    def _compare(self, resident: Collection[str], rules: ScoreRules) -> Candidates:
        def aged(job: Job, affinity: float = 0.0) -> tuple[float, float, int]:
            # Every clock is the submit time here, so `now` cancels out of the comparison.
            points = job.priority + affinity - job.submitted_at / rules.aging_divisor_s
            return (points, -job.submitted_at, -job.seq)

        def unaged(job: Job, affinity: float = 0.0) -> tuple[float, float, int]:
            return (job.priority + affinity, -job.submitted_at, -job.seq)

        if self._plain is None:
            heads = list(self.heads())
            self._plain = (max(heads, key=aged), max(heads, key=unaged), min(heads, key=lambda job: job.seq))
        by_age, by_number, first_come = self._plain
        # Affinity only adds, so beside the best without it only the resident models' heads can win with it.
        favoured = [(job, rules.affinity_for(job.priority)) for model in resident for job in self.heads_of(model)]
        full, full_affinity = max([(by_age, 0.0), *favoured], key=lambda each: aged(*each))
        number, number_affinity = max([(by_number, 0.0), *favoured], key=lambda each: unaged(*each))
        return Candidates(
            full=full,
            full_points=full.priority + full_affinity,
            without_affinity=by_age,
            without_aging=number,
            without_aging_points=number.priority + number_affinity,
            first_come=first_come,
        )


class Standing(Candidacy):
    """The waiting jobs of one (member, band) in one lane."""

    def __init__(self, band: str, clock: TurnClock) -> None:
        super().__init__(band, clock)
        self._lines: dict[str, dict[int, OrderedDict[str, Job]]] = {}

    def add(self, job: Job) -> None:
        """Append a job; the jobs of one line come in the order of their arrival numbers."""
        line = self._lines.setdefault(job.model, {}).setdefault(job.priority, OrderedDict())
        if not line:
            self.heads_changed()
        line[job.id] = job

    def remove(self, job: Job) -> None:
        """Take a job out, wherever in its line it stands."""
        of_model = self._lines[job.model]
        line = of_model[job.priority]
        if next(iter(line)) == job.id:
            self.heads_changed()
        del line[job.id]
        if not line:
            del of_model[job.priority]
        if not of_model:
            del self._lines[job.model]

    def __bool__(self) -> bool:
        return bool(self._lines)

    def lines(self) -> Iterator[Iterable[Job]]:
        """The lines, each in order of arrival."""
        return (line.values() for of_model in self._lines.values() for line in of_model.values())

    def heads(self) -> Iterable[Job]:
        """The first job of each line."""
        return (next(iter(line)) for line in self.lines())

    def heads_of(self, model: str) -> Iterable[Job]:
        """The first job of each line of one model."""
        return (next(iter(line.values())) for line in self._lines.get(model, {}).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """One comparison's result."""

    winner: Job
    clock: float  #: from which the winner ages, seconds
    candidacy: Candidacy  #: the winner's
    runner_up: Job | None  #: the best candidate of another (member, band)
    runner_up_clock: float
    without_aging: Job  #: who would have won with the aging term off, ...
    without_affinity: Job  #: ... with the affinity term off, ...
    without_turns: Job  #: ... with every clock at the submit, ...
    first_come: Job  #: ... first-come-first-served


_Rank = tuple[float, float, int]  #: (points, -clock, -seq): more points, then the earlier clock, then arrival
_LAST: _Rank = (float("-inf"), 0.0, 0)


def pick(candidacies: Iterable[Candidacy], *, now: float, resident: Collection[str], rules: ScoreRules) -> Pick | None:
    """The second pass, with its four variants: the same comparison with one term switched off.

    The variant without aging keeps the turn clock as its tie-break, so that taking turns is not blamed on
    aging. None when there is no candidate.
    """
    divisor = rules.aging_divisor_s
    best = second = best_unaged = best_unaffine = best_unturned = _LAST
    winner: tuple[Job, Candidacy] | None = None
    second_job: Job | None = None
    first: Job | None = None
    for each in candidacies:
        found = each.best(resident, rules)
        starts_at = each.clock.starts_at

        job = found.full
        clock = starts_at(job.submitted_at, now, rules)
        rank = (found.full_points + (now - clock) / divisor, -clock, -job.seq)
        if rank > best:
            second, second_job = best, winner[0] if winner else None
            best, winner = rank, (job, each)
        elif rank > second:
            second, second_job = rank, job

        rank = (found.full_points + (now - job.submitted_at) / divisor, -job.submitted_at, -job.seq)
        if rank > best_unturned:
            best_unturned, unturned = rank, job

        job = found.without_affinity
        clock = starts_at(job.submitted_at, now, rules)
        rank = (job.priority + (now - clock) / divisor, -clock, -job.seq)
        if rank > best_unaffine:
            best_unaffine, unaffine = rank, job

        job = found.without_aging
        clock = starts_at(job.submitted_at, now, rules)
        rank = (found.without_aging_points, -clock, -job.seq)
        if rank > best_unaged:
            best_unaged, unaged = rank, job

        if first is None or found.first_come.seq < first.seq:
            first = found.first_come
    if winner is None or first is None:
        return None
    return Pick(
        winner=winner[0],
        clock=-best[1],
        candidacy=winner[1],
        runner_up=second_job,
        runner_up_clock=-second[1],
        without_aging=unaged,
        without_affinity=unaffine,
        without_turns=unturned,
        first_come=first,
    )


class Queue:
    """The waiting jobs of all lanes, by (lane, member, band), and the turn clocks."""

    def __init__(self, rules: ScoreRules) -> None:
        self._rules = rules
        self._jobs: dict[str, tuple[Job, str]] = {}
        self._standings: dict[str, dict[tuple[str, str], Standing]] = {}
        self._clocks: dict[tuple[str, str, str], TurnClock] = {}
        self._waiting_for: Counter[str] = Counter()
        self._waiting_in: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def __repr__(self) -> str:
        lanes = ", ".join(f"{lane} {len(found)}" for lane, found in self._standings.items())
        return f"<Queue {len(self)} waiting; standings by lane: {lanes or 'none'}>"

    def add(self, job: Job, lane: str) -> None:
        """Put a job into a lane's line. Raises ValueError for an id that already waits."""
        if job.id in self._jobs:
            raise ValueError(f"job {job.id} already waits")
        key = self._key(job)
        standings = self._standings.setdefault(lane, {})
        if key not in standings:
            standings[key] = Standing(key[1], self.clock(job, lane))
        standings[key].add(job)
        self._jobs[job.id] = (job, lane)
        self._waiting_for[job.model] += 1
        self._waiting_in[lane] += 1

    def remove(self, job_id: str) -> Job:
        """Take a job out. Raises KeyError when it does not wait."""
        job, lane = self._jobs.pop(job_id)
        key = self._key(job)
        standing = self._standings[lane][key]
        standing.remove(job)
        if not standing:
            del self._standings[lane][key]
        self._forget_idle_clock(lane, key)
        self._waiting_for[job.model] -= 1
        self._waiting_in[lane] -= 1
        return job

    def take(self, job_id: str) -> Job:
        """Take a job out to give it a place: its (member, band) has its turn. Raises KeyError."""
        job, lane = self._jobs[job_id]
        self.clock(job, lane).started()
        return self.remove(job_id)

    def give_back(self, job: Job, lane: str, now: float, *, ran: bool) -> None:
        """A job that was taken has ended; `ran` says whether it consumed its turn."""
        self.clock(job, lane).ended(now, ran=ran)
        self._forget_idle_clock(lane, self._key(job))

    def waits_for(self, model: str) -> bool:
        """Whether any job for this model waits."""
        return self._waiting_for[model] > 0

    def count(self, lane: str) -> int:
        """How many jobs wait in this lane."""
        return self._waiting_in[lane]

    def jobs(self, *, model: str | None = None) -> list[Job]:
        """Waiting jobs in order of arrival, of one model if named."""
        found = (job for job, _ in self._jobs.values() if model is None or job.model == model)
        return sorted(found, key=lambda job: job.seq)

    def job(self, job_id: str) -> Job:
        """A waiting job. Raises KeyError when it does not wait."""
        return self._jobs[job_id][0]

    def lane_of(self, job_id: str) -> str:
        """The lane a job waits in. Raises KeyError when it does not wait."""
        return self._jobs[job_id][1]

    def standings(self, lane: str) -> Collection[Standing]:
        """What `pick` compares in this lane."""
        return self._standings.get(lane, {}).values()

    def pick(self, lane: str, *, now: float, resident: Collection[str]) -> Pick | None:
        """Who goes next in this lane; None when nobody waits."""
        return pick(self.standings(lane), now=now, resident=resident, rules=self._rules)

    def clock(self, job: Job, lane: str) -> TurnClock:
        """The turn clock of this job's (lane, member, band).

        It is kept while jobs of it wait or hold a place. It may be forgotten afterwards: whatever arrives
        later is submitted after any end it could remember.
        """
        return self._clocks.setdefault((lane, *self._key(job)), TurnClock())

    def rebuilt(self, rules: ScoreRules, lane_of: Mapping[str, str], holding: Iterable[tuple[Job, str]]) -> Queue:
        """The same jobs under other rules or lanes.

        `lane_of` gives each waiting model's lane, `holding` the jobs that hold a place with their lane. A
        clock keeps its last end where its (lane, member, band) still exists under the new rules.
        """
        queue = Queue(rules)
        for job, lane in holding:
            queue.clock(job, lane).started()
        for job in self.jobs():
            queue.add(job, lane_of[job.model])
        for key, clock in queue._clocks.items():
            if key in self._clocks:
                clock.last_end = self._clocks[key].last_end
        return queue

    def _key(self, job: Job) -> tuple[str, str]:
        return turn_key(job.member, self._rules.band_of(job.priority).name, self._rules)

    def _forget_idle_clock(self, lane: str, key: tuple[str, str]) -> None:
        if key not in self._standings.get(lane, {}) and not self._clocks[lane, *key].running:
            del self._clocks[lane, *key]
