"""The waiting jobs of all lanes, and the turn clocks.

Keeps them by (lane, member, band), as `comparison` wants them, and adds them up. It chooses by asking `comparison`
and starts nothing: whether the winner fits is the dispatcher's matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from swaplane.core.comparison import BY_SUBMIT, OPEN, Bar, Pick, Standing, pick
from swaplane.core.events import Job, Turn
from swaplane.core.score import ScoreRules
from swaplane.core.tally import Tally
from swaplane.core.turns import ClockKey, TurnClock, TurnClocks, turn_key


class Queue:
    """The waiting jobs of all lanes, by (lane, member, band), and the turn clocks."""

    def __init__(self, rules: ScoreRules) -> None:
        self._rules = rules
        self._jobs: dict[str, tuple[Job, str]] = {}
        self._standings: dict[str, dict[tuple[str, str], Standing]] = {}
        self._clocks = TurnClocks(rules)
        self.tally = Tally()  #: of all lanes
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
        self.tally.add(job, self._rules.band_of(job.priority).name)
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
        self.tally.remove(job, self._rules.band_of(job.priority).name)
        self._waiting_for[job.model] -= 1
        self._waiting_in[lane] -= 1
        return job

    def take(self, job_id: str) -> Job:
        """Take a job out to give it a place: its (member, band) has its turn. Raises KeyError."""
        job, lane = self._jobs[job_id]
        self.clock(job, lane).started()
        return self.remove(job_id)

    def give_back(self, job: Job, lane: str, now: float, *, service_s: float | None, clock: float) -> None:
        """A job that was taken has ended: see `TurnClocks.ended`."""
        key = self._key(job)
        self._clocks.ended((lane, *key), now, service_s=service_s, clock=clock)
        self._let_go(lane, key)

    def change(self, job: Job) -> None:
        """Put a job in place of the one of the same id, which has waited as long. Raises KeyError when none waits."""
        lane = self.lane_of(job.id)
        self.remove(job.id)
        self.add(job, lane)

    def waits_for(self, model: str) -> bool:
        """Whether any job for this model waits."""
        return self._waiting_for[model] > 0

    def count(self, lane: str) -> int:
        """How many jobs wait in this lane."""
        return self._waiting_in[lane]

    def jobs(self, *, model: str | None = None, member: str | None = None) -> list[Job]:
        """Waiting jobs in order of arrival, of one model and one member if named."""
        found = (job for job, _ in self._jobs.values() if model in (None, job.model) and member in (None, job.member))
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

    def pick(self, lane: str, *, now: float, resident: Collection[str], bar: Bar = OPEN) -> Pick | None:
        """Who goes next in this lane; None when nobody waits whom the bar lets pass."""
        return pick(self.standings(lane), now=now, resident=resident, rules=self._rules, bar=bar)

    def clock(self, job: Job, lane: str) -> TurnClock:
        """The turn clock of this (lane, member, band), of which this job waits or holds a place."""
        return self._clocks.use((lane, *self._key(job)))

    def shares(self, lane: str) -> Mapping[ClockKey, float]:
        """See `TurnClocks.shares`."""
        return self._clocks.shares(lane)

    def remember(self, turn: Turn) -> None:
        """Move the clock of a (lane, member, band) on to the end of its last job, whether a job of it waits or not."""
        self._clocks.remember((turn.lane, *turn_key(turn.member, turn.band, self._rules)), turn.ended_at)

    def rebuilt(self, rules: ScoreRules, lane_of: Mapping[str, str], holding: Iterable[tuple[Job, str]]) -> Queue:
        """The same jobs under other rules or lanes.

        `lane_of` gives each waiting model's lane, `holding` the jobs that hold a place with their lane. A
        clock keeps its last end where its (lane, member, band) still exists under the new rules.
        """
        queue = Queue(rules)
        queue._clocks = self._clocks.unused(rules)
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
