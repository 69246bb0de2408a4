"""What one decision costs: a job ends, the next one is chosen with all variants, and another job arrives.

Only the core is measured, through `Dispatcher.handle`, in imagined time: the same seed gives the same decisions.
A decision is the end of a job up to the command to run the next (with a swap: all events up to it), plus the
arrival of the job that takes its place in the line, so that the line keeps its length and its shape. "Heads" are
the first jobs of each (member, band, model): only they can win.

`python benchmarks/decision.py [--quick] [--seed N]`
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from support import machine, table
from swaplane.core.commands import RunJob, StartModel, StopModel
from swaplane.core.dispatcher import Dispatcher
from swaplane.core.events import Event, Job, JobArrived, JobEnded, ModelReady, ModelStopped
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import LanePlan, ModelPlan, Plan
from swaplane.core.residency import Group, Residency
from swaplane.core.score import ScoreRules

BANDS = (-100, 0, 100)
RUN_S = 30.0
LOAD_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One waiting line."""

    jobs: int = 10_000
    members: int = 100
    models: int = 20  #: of which each member uses ...
    models_each: int = 20  #: ... so many
    swap: bool = False  #: every decision swaps models; else all models are resident

    @property
    def heads(self) -> int:
        """Lines in the queue, when each has a job."""
        return min(self.jobs, self.members * len(BANDS) * self.models_each)


class Line:
    """A dispatcher with a full waiting line, and the world that keeps it so."""

    def __init__(self, case: Case, random: Random) -> None:
        names = [f"model-{number}" for number in range(case.models)]
        beside = Group(name="beside", members=frozenset(names), swap=False)
        # Without affinity the winner's model is hardly ever the one that is resident.
        rules = ScoreRules(swap_affinity=0.0 if case.swap else 10.0)
        self._dispatcher = Dispatcher(
            Plan(
                models={name: ModelPlan(id=name, lane="gpu") for name in names},
                lanes={"gpu": LanePlan(name="gpu")},
                residency=Residency([] if case.swap else [beside]),
                rules=rules,
            )
        )
        self._now = 0.0
        self._arrivals = itertools.count(1)
        self._jobs: dict[str, Job] = {}
        self._running = ""
        if not case.swap:
            for name in names:
                self._settle(self._arrive(member="warm-up", model=name, priority=1000))
                self._settle(JobEnded(job_id=self._running, outcome=Outcome.COMPLETED))
        for number in range(case.jobs + 1):
            member, rest = number % case.members, number // case.members
            band, model = BANDS[rest % len(BANDS)], (member + rest // len(BANDS) % case.models_each) % case.models
            self._now += random.expovariate(1.0)
            self._settle(self._arrive(member=f"member-{member}", model=names[model], priority=band))

    def decisions(self) -> Iterator[tuple[float, bool]]:
        """One decision after the other: its seconds, and whether it was a swap."""
        while True:
            self._now += RUN_S
            ended = self._jobs.pop(self._running)
            took_s, swapped = self._settle(JobEnded(job_id=ended.id, outcome=Outcome.COMPLETED))
            again = self._arrive(member=ended.member, model=ended.model, priority=ended.priority)
            yield took_s + self._settle(again)[0], swapped

    def _arrive(self, *, member: str, model: str, priority: int) -> JobArrived:
        seq = next(self._arrivals)
        job = Job(id=f"job-{seq}", seq=seq, model=model, member=member, priority=priority, submitted_at=self._now)
        self._jobs[job.id] = job
        return JobArrived(job=job)

    def _settle(self, event: Event) -> tuple[float, bool]:
        """One event and the answers to what it commands: seconds in the dispatcher, and whether a model started."""
        began = time.perf_counter()
        commands = self._dispatcher.handle(event, self._now)
        took_s = time.perf_counter() - began
        swapped = False
        for command in commands:
            match command:
                case RunJob():
                    self._running = command.job_id
                    continue
                case StopModel():
                    answer: Event = ModelStopped(model=command.model)
                case StartModel():
                    swapped = True
                    answer = ModelReady(model=command.model, load_s=LOAD_S)
                case _:
                    continue
            further_s, started = self._settle(answer)
            took_s += further_s
            swapped |= started
        return took_s, swapped


def measure(case: Case, *, seed: int, decisions: int) -> tuple[float, float]:
    """Median and 95th percentile of a decision, in seconds."""
    line = Line(case, Random(seed))
    fitting = (took_s for took_s, swapped in line.decisions() if swapped == case.swap)
    next(fitting)  # the first one compares all heads anew
    taken = sorted(itertools.islice(fitting, decisions))
    return statistics.median(taken), taken[int(0.95 * (len(taken) - 1))]


def compare(title: str, cases: list[tuple[str, Case]], *, seed: int, decisions: int) -> str:
    """A table of cases, each against the first."""
    rows = []
    first = 0.0
    for name, case in cases:
        median_s, p95_s = measure(case, seed=seed, decisions=decisions)
        first = first or median_s
        rows.append(
            [
                name,
                f"{case.jobs:,}",
                f"{case.heads:,}",
                f"{median_s * 1e6:,.0f} us",
                f"{p95_s * 1e6:,.0f} us",
                f"{median_s / first:.2f}",
            ]
        )
    return f"{title}\n{table(['case', 'jobs', 'heads', 'median', 'p95', 'ratio'], rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer decisions and no line above 10,000 jobs")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    largest = 10_000 if arguments.quick else 100_000
    decisions = 100 if arguments.quick else 500

    def show(title: str, cases: list[tuple[str, Case]]) -> None:
        kept = [(name, case) for name, case in cases if case.jobs <= largest]
        print(compare(title, kept, seed=arguments.seed, decisions=decisions), end="\n\n", flush=True)

    print(machine(), end="\n\n")
    show(
        "10,000 waiting jobs of 100 members, 20 models and 3 bands",
        [("resident", Case()), ("swap each time", Case(swap=True))],
    )
    show(
        "By members (each with 3 bands and 2 models)",
        [(f"{members:,} members", Case(members=members, models_each=2)) for members in (10, 30, 100, 300, 1000)],
    )
    show(
        "By members, with a swap each time",
        [
            (f"{members:,} members", Case(members=members, models_each=2, swap=True))
            for members in (10, 30, 100, 300, 1000)
        ],
    )
    show(
        "By jobs (100 members, each with 3 bands and 2 models)",
        [(f"{jobs:,} jobs", Case(jobs=jobs, models_each=2)) for jobs in (1_000, 3_000, 10_000, 30_000, 100_000)],
    )


if __name__ == "__main__":
    main()
