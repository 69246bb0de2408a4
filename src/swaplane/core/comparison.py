"""Who of the waiting jobs goes next: one comparison in two passes of the same formula.

(1) Within one (member, band) the candidate is the job with the best score, its clock being its submit time.
(2) Between the candidates the best score wins, the clock being the member's turn clock. Ties: earlier clock, then
arrival number.

Only heads can win: the first job of each (member, band, model, priority, key). All scores grow at the same rate, so
`now` cancels out of every comparison. What is compared is `points * divisor - clock`, in seconds and not in
points, because that keeps equal scores exactly equal; it is kept until a head, the set of resident models or the
clock changes. A decision costs one scan over the (member, band)s that wait.

A `Bar` keeps jobs out of the comparison that may not be given a place now, such as those of a member that has as
many running as it may: they wait without holding up anybody else.

Nothing here remembers jobs or starts them: `queue` keeps the standings, `forecast` imagines some.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import NamedTuple

from swaplane.core.events import Job
from swaplane.core.score import ScoreRules
from swaplane.core.turns import TurnClock

#: (seconds of aging that the job is ahead, or without aging its points; -clock; -seq; the job): the greatest wins.
Rank = tuple[float, float, int, Job]

#: Sorts jobs by submit: the order of arrival too, but for jobs that are restored.
BY_SUBMIT: attrgetter[tuple[float, int]] = attrgetter("submitted_at", "seq")


class Bar(NamedTuple):
    """Which jobs are left out of a comparison."""

    members: frozenset[str] = frozenset()  #: those that have as many jobs running as they may
    keys: frozenset[str] = frozenset()  #: the same of keys, by name
    below: float = -inf  #: priorities below this may not take a further place ...
    joins: Mapping[str, float] = MappingProxyType({})  #: ... but may join these models, which hold one, from this on

    def keeps_out(self, job: Job) -> bool:
        """Whether a job is left out."""
        return (
            job.member in self.members
            or job.key in self.keys
            or job.priority < min(self.below, self.joins.get(job.model, inf))
        )


OPEN = Bar()  #: keeps nobody out


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
        self._ranked_for: Collection[str] | None = None  # the resident models, ...
        self._ranked_from = inf  # ... the floor of the clock and ...
        self._bar = OPEN  # ... the bar for which the ranks hold

    @abstractmethod
    def heads(self) -> Iterable[Job]:
        """The first job of each line."""

    @abstractmethod
    def heads_of(self, model: str) -> Iterable[Job]:
        """The first job of each line of one model."""

    @abstractmethod
    def callers(self) -> Iterable[tuple[str, str]]:
        """The (member, key)s of its jobs, and perhaps of some that are gone."""

    def _admitted(self, heads: Iterable[Job]) -> Iterable[Job]:
        return heads if self._bar is OPEN else (job for job in heads if not self._bar.keeps_out(job))

    def heads_changed(self) -> None:
        """Forget both passes."""
        self._plain = self._ranked_for = None

    def ranks(self, now: float, resident: Collection[str], rules: ScoreRules, bar: Bar = OPEN) -> Ranks | None:
        """Both passes' part in the comparison; None when the bar keeps all of its jobs out.

        `resident` and `bar` are known by identity: pass the same objects until they change. The rules are those of
        the queue, for good.
        """
        if bar is not self._bar:
            if self._is_touched_by(bar):
                self.heads_changed()
            self._bar = bar
        floor = self.clock.floor(now, rules)
        if self._ranked_from != floor or self._ranked_for is not resident:
            self._ranks = self._rank(floor, resident, rules)
            self._ranked_from, self._ranked_for = floor, resident
        return self._ranks

    def _is_touched_by(self, bar: Bar) -> bool:
        """Whether other jobs of this may be kept out by that bar than by the last one."""
        old = self._bar
        if (bar.below, bar.joins) != (old.below, old.joins):
            return True
        members, keys = bar.members ^ old.members, bar.keys ^ old.keys
        return any(member in members or key in keys for member, key in self.callers())

    def rank_as(self, other: Candidacy, now: float, resident: Collection[str], rules: ScoreRules, bar: Bar) -> None:
        """Take over both passes of another with the same jobs and the same clock."""
        ranks = other.ranks(now, resident, rules, bar)
        self._ranks = None if ranks is None else ranks._replace(of=self)
        self._ranked_from, self._ranked_for, self._bar = self.clock.floor(now, rules), resident, bar

    def _rank(self, floor: float, resident: Collection[str], rules: ScoreRules) -> Ranks | None:
        # (1) Every clock is the submit time.
        divisor = rules.aging_divisor_s
        if self._plain is None:
            heads = list(self._admitted(self.heads()))
            if not heads:
                return None
            self._plain = (
                max(_ranked(job, 0.0, divisor) for job in heads),
                max(_unaged(job, 0.0) for job in heads),
                min(heads, key=BY_SUBMIT),
            )
        by_age, by_number, first_come = self._plain
        full, number = by_age, by_number
        # Affinity only adds, so beside the best without it only the resident models' heads can win with it.
        for model in resident:
            for job in self._admitted(self.heads_of(model)):
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


Line = tuple[int, str, str]  #: what a model's jobs have in common that stand in one line: see `line_of`


def line_of(job: Job) -> Line:
    """Jobs that differ in these may be ordered, or kept out, otherwise than by arrival."""
    return (job.priority, job.member, job.key)


class Standing(Candidacy):
    """The waiting jobs of one (member, band) in one lane."""

    def __init__(self, clock: TurnClock) -> None:
        super().__init__(clock)
        self._lines: dict[str, dict[Line, OrderedDict[str, Job]]] = {}
        self._callers: Counter[tuple[str, str]] = Counter()  # with the number of their lines

    def add(self, job: Job) -> None:
        """Put a job into its line, which is in order of submit: at its end, but for jobs that are restored."""
        of_model = self._lines.setdefault(job.model, {})
        line = of_model.setdefault(line_of(job), OrderedDict())
        last = next(reversed(line.values()), None)
        line[job.id] = job
        if last is None:
            self._callers[job.member, job.key] += 1
            self.heads_changed()
        elif BY_SUBMIT(job) < BY_SUBMIT(last):
            self.heads_changed()
            of_model[line_of(job)] = OrderedDict((each.id, each) for each in sorted(line.values(), key=BY_SUBMIT))

    def remove(self, job: Job) -> None:
        """Take a job out, wherever in its line it stands."""
        of_model = self._lines[job.model]
        line = of_model[line_of(job)]
        if next(iter(line)) == job.id:
            self.heads_changed()
        del line[job.id]
        if not line:
            del of_model[line_of(job)]
            self._callers[job.member, job.key] -= 1
            if not self._callers[job.member, job.key]:
                del self._callers[job.member, job.key]
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

    def callers(self) -> Iterable[tuple[str, str]]:
        """The (member, key)s of its jobs."""
        return self._callers


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


def pick(
    candidacies: Iterable[Candidacy], *, now: float, resident: Collection[str], rules: ScoreRules, bar: Bar = OPEN
) -> Pick | None:
    """The second pass, with its four variants: the same comparison with one term switched off.

    The variant without aging keeps the turn clock as its tie-break, so that taking turns is not blamed on
    aging. None when there is no candidate.
    """
    ranks = _ranks(candidacies, now, resident, rules, bar)
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


def _ranks(
    candidacies: Iterable[Candidacy], now: float, resident: Collection[str], rules: ScoreRules, bar: Bar
) -> list[Ranks]:
    return [ranks for each in candidacies if (ranks := each.ranks(now, resident, rules, bar)) is not None]


_FULL, _WITHOUT_AGING, _WITHOUT_AFFINITY, _WITHOUT_TURNS = map(itemgetter, range(4))
