"""The numbers Prometheus scrapes.

Counts and durations are added up as jobs and models move; everything that can be read off the dispatcher
(depths, oldest waits, what runs) is computed at the scrape, so it cannot drift. It decides nothing but how a
dispatch is counted. The runtime calls it, on the event loop; adding to a number is one dictionary access.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate, product

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from swaplane.core.commands import Dispatch, StartCause
from swaplane.core.dispatcher import Dispatcher
from swaplane.core.outcomes import Outcome

#: The `Content-Type` of what `render` returns.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Members with a series of their own; whoever comes later is added to `OTHER_MEMBERS`.
MEMBERS_SHOWN = 1000
OTHER_MEMBERS = "other"

#: Upper bounds in seconds: of a wait, from 0.1 s to 24 h; of a run; of a model's load.
WAIT_BOUNDS_S = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 57600, 86400)
RUN_BOUNDS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)
SWAP_BOUNDS_S = (0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)

_PREFIX = "swaplane_"

_Labels = tuple[str, ...]


class _Counter:
    """One counter family: a number per combination of label values."""

    def __init__(self, name: str, help_text: str, *label_names: str) -> None:
        self._name = _PREFIX + name
        self._help_text = help_text
        self._label_names = label_names
        self.values: defaultdict[_Labels, float] = defaultdict(float)

    def family(self, shown: Iterable[_Labels] = ()) -> Metric:
        """As Prometheus wants it; `shown` are combinations that appear even while they are 0."""
        family = CounterMetricFamily(self._name, self._help_text, labels=self._label_names)
        for labels, value in sorted({**dict.fromkeys(shown, 0.0), **self.values}.items()):
            family.add_metric(labels, value)
        return family


class _Buckets:
    """One histogram series: how many values fell between which bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class _Histogram:
    """One histogram family: a series per combination of label values."""

    def __init__(self, name: str, help_text: str, bounds: tuple[float, ...], *label_names: str) -> None:
        self._name = _PREFIX + name
        self._help_text = help_text
        self._label_names = label_names
        self._bound_texts = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self.series: defaultdict[_Labels, _Buckets] = defaultdict(lambda: _Buckets(bounds))

    def family(self) -> Metric:
        """As Prometheus wants it, with cumulated counts."""
        family = HistogramMetricFamily(self._name, self._help_text, labels=self._label_names)
        for labels, series in sorted(self.series.items()):
            cumulated = [float(count) for count in accumulate(series.counts)]
            family.add_metric(labels, list(zip(self._bound_texts, cumulated, strict=True)), series.total)
        return family


class Metrics:
    """All numbers of one gateway. They live as long as it does; a reload does not reset them."""

    def __init__(self) -> None:
        self._waits = _Histogram(
            "wait_seconds", "From a job's arrival until it was sent to its model.", WAIT_BOUNDS_S, "lane", "band"
        )
        self._runs = _Histogram(
            "run_seconds", "How long a job occupied its model's server.", RUN_BOUNDS_S, "lane", "model"
        )
        self._loads = _Histogram(
            "swap_seconds", "From a model's start command until it was ready.", SWAP_BOUNDS_S, "model"
        )
        self._dispatched = _Counter("dispatched_total", "Jobs that were given a place.", "lane", "band")
        self._order_changed = _Counter(
            "order_changed_total",
            "Dispatches for which another job would have been chosen without this cause; band is the winner's.",
            "lane",
            "band",
            "displaced_band",
            "cause",
        )
        self._jobs = _Counter(
            "jobs_total",
            "Ended jobs; over all outcomes they add up to the arrivals.",
            "lane",
            "band",
            "outcome",
        )
        self._swaps = _Counter("swaps_total", "Models started, by what made it happen.", "lane", "model", "cause")
        self._swaps_avoided = _Counter(
            "swaps_avoided_total",
            "Dispatches to a resident model where, without affinity, a job of another model would have gone first.",
            "lane",
        )
        self._adjusted = _Counter("priority_adjusted_total", "Requested priorities that were not applied.", "reason")
        self._member_gpu = _Counter(
            "member_gpu_seconds_total",
            "Seconds for which a member's jobs occupied a model's server, divided by its slots.",
            "member",
        )

    def __repr__(self) -> str:
        dispatched, ended = sum(self._dispatched.values.values()), sum(self._jobs.values.values())
        return f"<Metrics {dispatched:.0f} jobs dispatched, {ended:.0f} ended>"

    def job_sent(self, lane: str, band: str, wait_s: float) -> None:
        """A job was sent to its model, `wait_s` seconds after it arrived."""
        self._waits.series[lane, band].observe(wait_s)

    def job_ended(
        self, *, lane: str, band: str, model: str, member: str, outcome: Outcome, run_s: float | None, slots: int
    ) -> None:
        """A job is over; `run_s` is how long it occupied its model's server, None when it was never sent there.

        Its member is charged for one of the model's `slots`: a full server counts as one GPU.
        """
        self._jobs.values[lane, band, str(outcome)] += 1
        if run_s is None:
            return
        self._runs.series[lane, model].observe(run_s)
        seconds = self._member_gpu.values
        seconds[(member if (member,) in seconds or len(seconds) < MEMBERS_SHOWN else OTHER_MEMBERS,)] += run_s / slots

    def dispatched(self, dispatch: Dispatch) -> None:
        """A job was given a place; its record says whether a term of the score changed the order."""
        winner, lane = dispatch.winner, dispatch.lane
        self._dispatched.values[lane, winner.band] += 1
        for cause, variant in (
            ("aging", dispatch.without_aging),
            ("affinity", dispatch.without_affinity),
            ("fairness", dispatch.without_turns),
            ("priority", dispatch.first_come),
        ):
            if variant.job_id != winner.job_id:
                self._order_changed.values[lane, winner.band, variant.band, cause] += 1
        if not dispatch.swap and dispatch.without_affinity.model != winner.model:
            self._swaps_avoided.values[lane,] += 1

    def model_started(self, model: str, lane: str, cause: StartCause) -> None:
        """A model's server is being started."""
        self._swaps.values[lane, model, str(cause)] += 1

    def model_ready(self, model: str, load_s: float) -> None:
        """A model's server became ready, `load_s` seconds after its start command."""
        self._loads.series[model,].observe(load_s)

    def priority_adjusted(self, reason: str) -> None:
        """A request's priority was not applied as sent; `reason` comes from the gateway's short list."""
        self._adjusted.values[reason,] += 1

    def render(self, dispatcher: Dispatcher, now: float) -> bytes:
        """The text Prometheus reads, of type `CONTENT_TYPE`; `now` is in seconds of the dispatcher's clock."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Scrape(self, dispatcher, now))
        return generate_latest(registry)

    def families(self, dispatcher: Dispatcher) -> Iterator[Metric]:
        """What was added up so far; lanes and bands of `dispatcher` appear even where nothing happened."""
        places = list(product(dispatcher.lanes, (band.name for band in dispatcher.rules.bands)))
        yield self._waits.family()
        yield self._dispatched.family(places)
        yield self._order_changed.family()
        yield self._jobs.family((*place, str(outcome)) for place in places for outcome in Outcome)
        yield self._runs.family()
        yield self._swaps.family()
        yield self._loads.family()
        yield self._swaps_avoided.family((lane,) for lane in dispatcher.lanes)
        yield self._adjusted.family()
        yield self._member_gpu.family()


class _Scrape(Collector):
    """One scrape: the sums, and what the dispatcher shows at this moment."""

    def __init__(self, metrics: Metrics, dispatcher: Dispatcher, now: float) -> None:
        self._metrics = metrics
        self._dispatcher = dispatcher
        self._now = now

    def collect(self) -> Iterator[Metric]:
        yield from self._waiting()
        yield self._running()
        yield from self._metrics.families(self._dispatcher)

    def _waiting(self) -> Iterator[Metric]:
        labels = ("lane", "band")
        depths = GaugeMetricFamily(_PREFIX + "queue_depth", "Jobs that wait for a place.", labels=labels)
        oldest = GaugeMetricFamily(
            _PREFIX + "queue_oldest_wait_seconds", "How long the oldest of them has waited.", labels=labels
        )
        rules = self._dispatcher.rules
        for lane in self._dispatcher.lanes:
            depth = {band.name: 0 for band in rules.bands}
            arrived = dict.fromkeys(depth, self._now)
            # A line's jobs share their priority and stand in order of arrival: only its head is looked at.
            for standing in self._dispatcher.queue.standings(lane):
                for line in standing.lines():
                    head = next(iter(line))
                    band = rules.band_of(head.priority).name
                    depth[band] += sum(1 for _ in line)
                    arrived[band] = min(arrived[band], head.submitted_at)
            for band in depth:
                depths.add_metric((lane, band), depth[band])
                oldest.add_metric((lane, band), self._now - arrived[band])
        yield depths
        yield oldest

    def _running(self) -> Metric:
        running = GaugeMetricFamily(_PREFIX + "running", "Jobs that occupy a model's server.", labels=("lane", "model"))
        for name, model in sorted(self._dispatcher.models.items()):
            count = sum(1 for grant in model.grants.values() if grant.running)
            running.add_metric((model.plan.lane, name), count)
        return running
