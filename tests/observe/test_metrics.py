from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from swaplane.core.commands import Command, Contender, Dispatch, RecordDispatch, StartCause
from swaplane.core.dispatcher import Dispatcher
from swaplane.core.events import Event, Job, JobArrived, JobEnded, ModelReady, ModelStopped
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import LanePlan, ModelPlan, Plan
from swaplane.core.residency import Residency
from swaplane.core.score import Score, ScoreRules
from swaplane.observe.metrics import MEMBERS_SHOWN, Metrics

NAMES = {
    "swaplane_queue_depth": {"lane", "band"},
    "swaplane_queue_oldest_wait_seconds": {"lane", "band"},
    "swaplane_wait_seconds": {"lane", "band"},
    "swaplane_dispatched_total": {"lane", "band"},
    "swaplane_order_changed_total": {"lane", "band", "displaced_band", "cause"},
    "swaplane_jobs_total": {"lane", "band", "outcome"},
    "swaplane_running": {"lane", "model"},
    "swaplane_run_seconds": {"lane", "model"},
    "swaplane_swaps_total": {"lane", "model", "cause"},
    "swaplane_swap_seconds": {"model"},
    "swaplane_swaps_avoided_total": {"lane"},
    "swaplane_priority_adjusted_total": {"reason"},
    "swaplane_member_gpu_seconds_total": {"member"},
}


def new_dispatcher() -> Dispatcher:
    models = {name: ModelPlan(id=name, lane="gpu") for name in ("mA", "mB")}
    lanes = {"gpu": LanePlan(name="gpu"), "cpu": LanePlan(name="cpu")}
    return Dispatcher(Plan(models=models, lanes=lanes, residency=Residency(), rules=ScoreRules()))


def samples(metrics: Metrics, dispatcher: Dispatcher, now: float = 0.0) -> dict[str, dict[frozenset[str], float]]:
    """Every sample of a scrape: name -> {label values} -> value."""
    found: dict[str, dict[frozenset[str], float]] = {}
    for family in text_string_to_metric_families(metrics.render(dispatcher, now).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.values())] = sample.value
    return found


def key(*labels: str) -> frozenset[str]:
    return frozenset(labels)


def job(seq: int, *, model: str = "mA", priority: int = 0, at: float = 0.0) -> Job:
    return Job(id=f"j{seq}", seq=seq, model=model, member="anna", priority=priority, submitted_at=at)


def contender(job_id: str, *, model: str = "mA", band: str = "normal") -> Contender:
    score = Score(base=0, tier_bonus=0, affinity=0.0, aging=0.0)
    return Contender(job_id=job_id, model=model, member="anna", band=band, score=score)


def dispatch(winner: Contender, *, swap: bool = False, **variants: Contender) -> Dispatch:
    names = ("without_aging", "without_affinity", "without_turns", "first_come")
    return Dispatch(
        number=1,
        at=0.0,
        lane="gpu",
        winner=winner,
        submitted_at=0.0,
        clock=0.0,
        runner_up=None,
        margin=None,
        swap=swap,
        waiting=1,
        **{name: variants.get(name, winner) for name in names},
    )


def play(dispatcher: Dispatcher, metrics: Metrics, now: float, *events: Event) -> list[Command]:
    commands = [command for event in events for command in dispatcher.handle(event, now)]
    for command in commands:
        if isinstance(command, RecordDispatch):
            metrics.dispatched(command.dispatch)
    return commands


def test_every_metric_has_its_agreed_name_and_labels() -> None:
    metrics, dispatcher = Metrics(), new_dispatcher()
    metrics.job_sent("gpu", "normal", 1.0)
    metrics.job_ended(
        lane="gpu", band="normal", model="mA", member="anna", outcome=Outcome.COMPLETED, run_s=2.0, slots=1
    )
    metrics.dispatched(dispatch(contender("1"), first_come=contender("2", model="mB")))
    metrics.model_started("mA", "gpu", StartCause.IDLE)
    metrics.model_ready("mA", 3.0)
    metrics.priority_adjusted("invalid")

    found: dict[str, set[str]] = {}
    text = metrics.render(dispatcher, 0.0).decode()
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = {label for sample in family.samples for label in sample.labels} - {"le"}
    assert found == NAMES
    assert "_created" not in text


def test_gauges_are_what_the_dispatcher_shows_at_the_scrape() -> None:
    metrics, dispatcher = Metrics(), new_dispatcher()
    play(dispatcher, metrics, 0.0, JobArrived(job=job(1)), ModelReady(model="mA", load_s=1.0))
    for seq, priority, at in ((2, -100, 10.0), (3, -98, 12.0), (4, 100, 20.0)):
        play(dispatcher, metrics, at, JobArrived(job=job(seq, model="mB", priority=priority, at=at)))

    busy = samples(metrics, dispatcher, 30.0)
    assert busy["swaplane_running"] == {key("gpu", "mA"): 1, key("gpu", "mB"): 0}
    assert busy["swaplane_queue_depth"] == {
        key("gpu", "batch"): 2,
        key("gpu", "normal"): 0,
        key("gpu", "interactive"): 1,
        key("cpu", "batch"): 0,
        key("cpu", "normal"): 0,
        key("cpu", "interactive"): 0,
    }
    oldest = busy["swaplane_queue_oldest_wait_seconds"]
    assert oldest[key("gpu", "batch")] == 20.0
    assert oldest[key("gpu", "interactive")] == 10.0
    assert oldest[key("gpu", "normal")] == 0.0

    play(dispatcher, metrics, 31.0, JobEnded(job_id="j1", outcome=Outcome.COMPLETED), ModelStopped(model="mA"))
    later = samples(metrics, dispatcher, 32.0)
    assert later["swaplane_running"] == {key("gpu", "mA"): 0, key("gpu", "mB"): 0}
    assert later["swaplane_queue_depth"][key("gpu", "interactive")] == 0
    assert later["swaplane_dispatched_total"][key("gpu", "interactive")] == 1


def test_a_dispatch_counts_once_for_each_term_that_changed_who_went_first() -> None:
    metrics, dispatcher = Metrics(), new_dispatcher()
    winner = contender("1", band="batch")
    other, third = contender("2", band="interactive"), contender("3", band="normal")
    metrics.dispatched(dispatch(winner, without_aging=other))
    metrics.dispatched(dispatch(winner, without_affinity=third, without_turns=other))
    metrics.dispatched(dispatch(winner, first_come=other))
    metrics.dispatched(dispatch(winner))

    assert samples(metrics, dispatcher)["swaplane_order_changed_total"] == {
        key("gpu", "batch", "interactive", "aging"): 1,
        key("gpu", "batch", "normal", "affinity"): 1,
        key("gpu", "batch", "interactive", "fairness"): 1,
        key("gpu", "batch", "interactive", "priority"): 1,
    }
    assert samples(metrics, dispatcher)["swaplane_dispatched_total"][key("gpu", "batch")] == 4


def test_a_swap_is_avoided_when_only_affinity_kept_the_resident_model() -> None:
    metrics, dispatcher = Metrics(), new_dispatcher()
    same, other = contender("2"), contender("3", model="mB")
    metrics.dispatched(dispatch(contender("1"), without_affinity=same))  # no other model wanted the place
    metrics.dispatched(dispatch(contender("1"), without_affinity=other, swap=True))  # swapped all the same
    assert samples(metrics, dispatcher)["swaplane_swaps_avoided_total"][key("gpu")] == 0
    metrics.dispatched(dispatch(contender("1"), without_affinity=other))
    assert samples(metrics, dispatcher)["swaplane_swaps_avoided_total"][key("gpu")] == 1


def test_a_bucket_counts_what_is_at_most_its_bound() -> None:
    metrics, dispatcher = Metrics(), new_dispatcher()
    for wait_s in (0.1, 0.2, 86400.0, 86401.0):
        metrics.job_sent("gpu", "normal", wait_s)
    found = samples(metrics, dispatcher)
    buckets = found["swaplane_wait_seconds_bucket"]
    assert buckets[key("gpu", "normal", "0.1")] == 1
    assert buckets[key("gpu", "normal", "0.5")] == 2
    assert buckets[key("gpu", "normal", "86400.0")] == 3
    assert buckets[key("gpu", "normal", "+Inf")] == 4
    assert found["swaplane_wait_seconds_count"][key("gpu", "normal")] == 4
    assert found["swaplane_wait_seconds_sum"][key("gpu", "normal")] == 0.1 + 0.2 + 86400.0 + 86401.0


def test_a_job_that_was_not_run_has_an_outcome_and_no_run_time() -> None:
    metrics, dispatcher = Metrics(), new_dispatcher()
    metrics.job_ended(
        lane="gpu", band="batch", model="mA", member="anna", outcome=Outcome.LEFT_WAITING, run_s=None, slots=1
    )
    found = samples(metrics, dispatcher)
    assert found["swaplane_jobs_total"][key("gpu", "batch", "left_waiting")] == 1
    assert sum(found["swaplane_jobs_total"].values()) == 1
    assert "swaplane_run_seconds_count" not in found
    assert "swaplane_member_gpu_seconds_total" not in found


def test_members_beyond_the_limit_share_one_series() -> None:
    metrics, dispatcher = Metrics(), new_dispatcher()
    for number in [*range(MEMBERS_SHOWN + 50), 0]:
        metrics.job_ended(
            lane="gpu", band="normal", model="mA", member=f"m{number}", outcome=Outcome.COMPLETED, run_s=2.0, slots=1
        )
    seconds = samples(metrics, dispatcher)["swaplane_member_gpu_seconds_total"]
    assert len(seconds) == MEMBERS_SHOWN + 1
    assert seconds[key("m0")] == 4.0
    assert seconds[key("other")] == 100.0


def test_a_members_name_cannot_break_the_text() -> None:
    metrics, dispatcher = Metrics(), new_dispatcher()
    name = 'a"b\\c\nswaplane_running 7'
    metrics.job_ended(lane="gpu", band="normal", model="mA", member=name, outcome=Outcome.COMPLETED, run_s=1.0, slots=1)
    assert samples(metrics, dispatcher)["swaplane_member_gpu_seconds_total"] == {key(name): 1.0}
