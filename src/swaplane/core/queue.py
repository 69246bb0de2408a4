"""The waiting jobs of all lanes, and who of them goes next.

`pick` is one comparison in two passes of the same formula. (1) Within one (member, band) the candidate is
the job with the best score, its clock being its submit time. (2) Between the candidates the best score wins,
the clock being the member's turn clock. Ties: earlier clock, then arrival number.

Only heads can win: the first job of each (member, band, model, priority). All scores grow at the same rate, so
`now` cancels out of every comparison. What is compared is `points * divisor - clock`, in seconds and not in
points, because that keeps equal scores exactly equal; it is kept until a head, the set of resident models or the
clock changes. A decision costs one scan over the (member, band)s that wait.

The queue starts nothing and does not know whether the winner fits; that is the dispatcher's matter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from operator import attrgetter, itemgetter
from typing import NamedTuple

from swaplane.core.events import Job, Turn
from swaplane.core.score import ScoreRules
from swaplane.core.turns import TurnClock, TurnClocks, turn_key

#: (seconds of aging that the job is ahead, or without aging its points; -clock; -seq; the job): the greatest wins.
Rank = tuple[float, float, int, Job]

#: Sorts jobs by submit: the order of arrival too, but for jobs that are restored.
BY_SUBMIT: attrgetter[tuple[float, int]] = attrgetter("submitted_at", "seq")


class Ranks(NamedTuple):
    """A (member, band) in the second pass: the job that represents it in each comparison, with its rank."""

    full: Rank
    without_aging: Rank
    without_affinity: Rank
    without_turns: Rank
    first_come: Job
    of: Candidacy


class Candidacy(ABC):
    """A (member, band) as `pick` sees it: a clock, and lines of jobs that differ in nothing but arrival."""

    def __init__(self, clock: TurnClock) -> None:
        self.clock = clock
        self._affinities: dict[int, float] = {}  # by priority
        self._plain: tuple[Rank, Rank, Job] | None = None
        self._ranks: Ranks | None = None
        self._ranked_for: Collection[str] = ()  # the resident models and ...
        self._ranked_from = inf  # ... the floor of the clock for which the ranks hold

    @abstractmethod
    def heads(self) -> Iterable[Job]:
        """The first job of each line."""

    @abstractmethod
    def heads_of(self, model: str) -> Iterable[Job]:
        """The first job of each line of one model."""

    def heads_changed(self) -> None:
        """Forget both passes."""
        self._plain = self._ranks = None

    def ranks(self, now: float, resident: Collection[str], rules: ScoreRules) -> Ranks:
        """Both passes' part in the comparison. `resident` is known by identity: pass the same object until it changes.

        The rules are those of the queue, for good.
        """
        floor = self.clock.floor(now, rules)
        if self._ranks is None or self._ranked_from != floor or self._ranked_for is not resident:
            self._ranks = self._rank(floor, resident, rules)
            self._ranked_from, self._ranked_for = floor, resident
        return self._ranks

    def _rank(self, floor: float, resident: Collection[str], rules: ScoreRules) -> Ranks:
        # (1) Every clock is the submit time.
        divisor = rules.aging_divisor_s
        if self._plain is None:
            heads = list(self.heads())
            self._plain = (
                max(_ranked(job, 0.0, divisor) for job in heads),
                max(_unaged(job, 0.0) for job in heads),
                min(heads, key=BY_SUBMIT),
            )
        by_age, by_number, first_come = self._plain
        full, number = by_age, by_number
        # Affinity only adds, so beside the best without it only the resident models' heads can win with it.
        for model in resident:
            for job in self.heads_of(model):
                affinity = self._affinity(job, rules)
                full = max(full, _ranked(job, affinity, divisor))
                number = max(number, _unaged(job, affinity))
        # (2) The turn clock.
        return Ranks(
            full=_on_turn(full, floor),
            without_aging=_on_turn(number, floor, aging=False),
            without_affinity=_on_turn(by_age, floor),
            without_turns=full,
            first_come=first_come,
            of=self,
        )

    def _affinity(self, job: Job, rules: ScoreRules) -> float:
        affinity = self._affinities.get(job.priority)
        if affinity is None:
            affinity = self._affinities[job.priority] = rules.affinity_for(job.priority)
        return affinity


def _ranked(job: Job, affinity: float, divisor: float) -> Rank:
    """A job's rank on its submit time."""
    return ((job.priority + affinity) * divisor - job.submitted_at, -job.submitted_at, -job.seq, job)


def _unaged(job: Job, affinity: float) -> Rank:
    return (job.priority + affinity, -job.submitted_at, -job.seq, job)


def _on_turn(rank: Rank, floor: float, *, aging: bool = True) -> Rank:
    """The same rank on the turn clock."""
    ahead, minus_submitted, minus_seq, job = rank
    later_s = floor + minus_submitted
    if later_s <= 0:
        return rank
    return (ahead - later_s if aging else ahead, -floor, minus_seq, job)


class Standing(Candidacy):
    """The waiting jobs of one (member, band) in one lane."""

    def __init__(self, clock: TurnClock) -> None:
        super().__init__(clock)
        self._lines: dict[str, dict[int, OrderedDict[str, Job]]] = {}

    def add(self, job: Job) -> None:
        """Put a job into its line, which is in order of submit: at its end, but for jobs that are restored."""
        of_model = self._lines.setdefault(job.model, {})
        line = of_model.setdefault(job.priority, OrderedDict())
        last = next(reversed(line.values()), None)
        line[job.id] = job
        if last is None:
            self.heads_changed()
        elif BY_SUBMIT(job) < BY_SUBMIT(last):
            self.heads_changed()
            of_model[job.priority] = OrderedDict((each.id, each) for each in sorted(line.values(), key=BY_SUBMIT))

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
        """The lines, each in order of submit."""
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
    runner_up: Job | None  #: the best candidate of another (member, band)
    runner_up_clock: float
    without_aging: Job  #: who would have won with the aging term off, ...
    without_affinity: Job  #: ... with the affinity term off, ...
    without_turns: Job  #: ... with every clock at the submit, ...
    first_come: Job  #: ... first-come-first-served


def pick(candidacies: Iterable[Candidacy], *, now: float, resident: Collection[str], rules: ScoreRules) -> Pick | None:
    """The second pass, with its four variants: the same comparison with one term switched off.

    The variant without aging keeps the turn clock as its tie-break, so that taking turns is not blamed on
    aging. None when there is no candidate.
    """
    ranks = [each.ranks(now, resident, rules) for each in candidacies]
    if not ranks:
        return None
    winner = max(ranks, key=_FULL)
    runner_up = max((each for each in ranks if each is not winner), key=_FULL, default=None)
    return Pick(
        winner=winner.full[-1],
        clock=-winner.full[1],
        runner_up=runner_up.full[-1] if runner_up else None,
        runner_up_clock=-runner_up.full[1] if runner_up else 0.0,
        without_aging=max(ranks, key=_WITHOUT_AGING).without_aging[-1],
        without_affinity=max(ranks, key=_WITHOUT_AFFINITY).without_affinity[-1],
        without_turns=max(ranks, key=_WITHOUT_TURNS).without_turns[-1],
        first_come=min((each.first_come for each in ranks), key=BY_SUBMIT),
    )


_FULL, _WITHOUT_AGING, _WITHOUT_AFFINITY, _WITHOUT_TURNS = map(itemgetter, range(4))


def leader(
    candidacies: Iterable[Candidacy], *, now: float, resident: Collection[str], rules: ScoreRules
) -> Ranks | None:
    """The second pass without its variants: the winner's ranks; None when there is no candidate."""
    return max((each.ranks(now, resident, rules) for each in candidacies), key=_FULL, default=None)


class Queue:
    """The waiting jobs of all lanes, by (lane, member, band), and the turn clocks."""

    def __init__(self, rules: ScoreRules) -> None:
        self._rules = rules
        self._jobs: dict[str, tuple[Job, str]] = {}
        self._standings: dict[str, dict[tuple[str, str], Standing]] = {}
        self._clocks = TurnClocks()
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
            standings[key] = Standing(self.clock(job, lane))
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
        self._let_go(lane, key)
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
        self._let_go(lane, self._key(job))

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
        """The turn clock of this (lane, member, band), of which this job waits or holds a place."""
        return self._clocks.use((lane, *self._key(job)))

    def remember(self, turn: Turn) -> None:
        """Move the clock of a (lane, member, band) on to the end of its last job, whether a job of it waits or not."""
        self._clocks.remember((turn.lane, *turn_key(turn.member, turn.band, self._rules)), turn.ended_at)

    def rebuilt(self, rules: ScoreRules, lane_of: Mapping[str, str], holding: Iterable[tuple[Job, str]]) -> Queue:
        """The same jobs under other rules or lanes.

        `lane_of` gives each waiting model's lane, `holding` the jobs that hold a place with their lane. A
        clock keeps its last end where its (lane, member, band) still exists under the new rules.
        """
        queue = Queue(rules)
        queue._clocks = self._clocks.unused()
        for job, lane in holding:
            queue.clock(job, lane).started()
        for job in sorted(self.jobs(), key=BY_SUBMIT):
            queue.add(job, lane_of[job.model])
        return queue

    def _key(self, job: Job) -> tuple[str, str]:
        return turn_key(job.member, self._rules.band_of(job.priority).name, self._rules)

    def _let_go(self, lane: str, key: tuple[str, str]) -> None:
        if key not in self._standings.get(lane, {}):
            self._clocks.let_go((lane, *key))
