"""A long day at the GPU in about a minute: a film, videos and pictures for bots, look-ups, chats, and what goes wrong.

What is sent, and what goes wrong with it, is drawn once with a fixed seed; how it interleaves is left to chance. What
must hold is read from the journal that all model servers share and from the gateway's own books.
"""

from __future__ import annotations

import itertools
import math
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest

from tests.support.async_servers import comfy_model, models, stub_model, video_model
from tests.support.day import MISHAPS, Ask, Bursts, Day
from tests.support.gateway import GatewayProcess
from tests.support.gpu_journal import gpu_intervals, overlaps
from tests.support.stub_client import eventually, free_port


def film(chance: random.Random) -> Bursts:
    """Shots, one at a time; four of them go wrong."""
    mishaps = ("fail", "cancel waiting", "cancel running", "crash")
    wrong = dict(zip(chance.sample(range(2, 16), len(mishaps)), mishaps, strict=True))
    return [[_render("film", "wan", f"shot-{n}", chance, wrong.get(n, ""))] for n in range(16)]


def bot(member: str, chance: random.Random, mishaps: list[str]) -> Bursts:
    """Videos and pictures, a few at a time; a mishap is told with its model."""
    asked = [chance.choice(["wan", "h3", "comfy", "comfy"]) for _ in range(15 - len(mishaps))] + mishaps
    chance.shuffle(asked)
    named = [(f"{member}-{number}", *each.partition(" ")[::2]) for number, each in enumerate(asked)]
    each = iter([_render(member, model, label, chance, mishap) for label, model, mishap in named])
    return list(iter(lambda: list(itertools.islice(each, chance.randint(1, 4))), []))


def errands(chance: random.Random) -> Bursts:
    """Videos that nobody waits for on a connection."""
    asks = [_render("errands", model, f"errand-{n}", chance) for n, model in enumerate(["wan", "h3"] * 3)]
    asks[2].mishap = "delete waiting"
    asks[5].mishap = "cancel waiting"
    for ask in asks:
        ask.detached = True
    return [asks[:3], asks[3:]]


def chats(chance: random.Random) -> Bursts:
    mishaps = ["crash", *["cancel running", "cancel waiting", "leave running", "leave waiting"] * 2]
    found = [*mishaps, *[""] * (56 - len(mishaps))]
    chance.shuffle(found)
    each = [
        Ask(label=f"chat-{n}", member="chatters", model="chat", mishap=how, seconds=chance.uniform(0.03, 0.15))
        for n, how in enumerate(found)
    ]
    return [each[at : at + 6] for at in range(0, len(each), 6)]


def lookups(chance: random.Random) -> Bursts:
    each = [
        Ask(label=f"look-{n}", member="indexer", model="embed", seconds=chance.uniform(0.01, 0.1)) for n in range(24)
    ]
    return [each[at : at + 8] for at in range(0, len(each), 8)]


def _render(member: str, model: str, label: str, chance: random.Random, mishap: str = "") -> Ask:
    frames = chance.choice([1, 1, 5]) if model == "comfy" else chance.randint(3, 9)
    seconds = round(chance.uniform(0.2, 0.5), 2)
    return Ask(label=label, member=member, model=model, mishap=mishap, seconds=seconds, frames=frames)


def config(start_port: int, h3_flags: str) -> str:
    polled = "completion: {preset: openai-videos, deadline: 90}"
    entries = models(
        video_model("wan", flavour="vllm", extra=polled),
        video_model("h3", flavour="sglang", flags=h3_flags, extra=polled),
        comfy_model("comfy", extra="completion: {preset: comfyui, deadline: 90}"),
        stub_model("chat"),
        stub_model("embed"),
    )
    return f"startPort: {start_port}\n{entries}groups:\n  pair: {{swap: false, members: [wan, comfy]}}\n"


def starts(entries: list[dict[str, Any]]) -> list[tuple[float, str]]:
    """When each job began to use the GPU, by its label."""
    label = {"gpu_start": "prompt", "req_start": "rid"}
    return [(entry["t"], entry[label[entry["ev"]]]) for entry in entries if entry["ev"] in label]


def excerpt(entries: list[dict[str, Any]], since_s: float, until_s: float) -> str:
    """The journal of a stretch of time, for people."""
    dull = ("gpu_beat", "http", "send")
    shown = [each for each in entries if since_s - 1 <= each["t"] <= until_s + 1 and each["ev"] not in dull]
    told = ("prompt", "rid", "how", "line", "code", "why")
    return "\n" + "\n".join(
        f"{each['t'] - since_s:+8.3f} {each['name']:6} {each['pid']} {each['ev']:10} "
        + " ".join(str(each[key]) for key in ("id", *told) if key in each)
        for each in shown
    )


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path, config(free_port(), "")) as gateway:
        yield gateway


@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
def test_a_long_day_of_mixed_load_never_has_two_jobs_on_the_gpu_and_loses_none(gateway: GatewayProcess) -> None:
    chance = random.Random(174)
    plans: list[tuple[Bursts, float]] = [  # and how long a member pauses at most
        (film(chance), 0.2),
        (bot("bot-1", chance, ["wan unload", "h3 forget", "comfy crash", "h3 delete"]), 3),
        (bot("bot-2", chance, ["h3 cancel running", "wan delete", "comfy fail", "wan leave running"]), 3),
        (bot("bot-3", chance, ["comfy deaf", "h3 unload", "h3 crash", "comfy cancel waiting"]), 3),
        (bot("bot-4", chance, ["wan deaf", "comfy cancel running", "h3 leave waiting", "h3 fail"]), 3),
        (errands(chance), 10),
        (chats(chance), 4),
        (lookups(chance), 10),
    ]
    with Day(gateway) as day:
        is_over = threading.Event()
        watcher = day.pool.submit(day.look_on, is_over)
        try:
            members = [day.member(plan, [chance.uniform(0, pause_s) for _ in plan]) for plan, pause_s in plans]
            eventually(lambda: half_is_done(day, members), "half of it is done", 200)
            reload(gateway)
            wait(members)
        finally:
            is_over.set()
        journal = gateway.journal()
        check_the_gpu(journal)
        for each in (*members, watcher):
            each.result()
        check_the_books(day)
        check_the_order(day, journal)
        check_the_runs(day, journal)
        for ask in day.asks:
            if ask.server_id and ask.saw == "completed":
                day.check_product(ask)


def half_is_done(day: Day, members: list[Future[None]]) -> bool:
    """Or will never be."""
    over = sum(ask.is_over.is_set() for ask in day.asks)
    return over > len(day.asks) / 2 or any(member.done() and member.exception() for member in members)


def reload(gateway: GatewayProcess) -> None:
    start_port = gateway.config.read_text().splitlines()[0].split()[1]
    gateway.config.write_text(config(int(start_port), "--seconds 0.4"))
    gateway.process.send_signal(signal.SIGHUP)
    eventually(lambda: "configuration reloaded" in gateway.log.read_text(), "the new file is in force")


def check_the_gpu(journal: list[dict[str, Any]]) -> None:
    """No two jobs use it at the same time."""
    clashes = overlaps(journal)
    assert not clashes, f"{clashes[0]}{excerpt(journal, clashes[0][1].start_s, clashes[0][0].end_s)}"


def check_the_books(day: Day) -> None:
    """Every request is counted once, in an outcome that fits what was done to it and what its client saw."""
    outcomes = {ask.label: day.outcome(ask) for ask in day.asks}
    unfit = [(ask, outcomes[ask.label]) for ask in day.asks if outcomes[ask.label] not in MISHAPS[ask.mishap][1]]
    assert not unfit, unfit
    unlike = [ask for ask in day.asks if (ask.saw == "completed") != (outcomes[ask.label] == "completed")]
    assert not [ask for ask in unlike if not ask.mishap.startswith("leave")], unlike
    tally = Counter(outcomes.values())
    happened = set().union(*(found for _, found in MISHAPS.values()))
    assert tally.keys() == happened, tally
    gateway = day.gateway
    assert {name: gateway.metric("swaplane_jobs_total", outcome=name) for name in happened} == tally
    assert gateway.metric("swaplane_jobs_total") == len(day.asks) >= 150
    assert gateway.metric("swaplane_running") == 0
    assert gateway.metric("swaplane_queue_depth") == 0
    assert (gateway.queue()["running"], gateway.queue()["waiting_total"]) == ([], 0)


def check_the_order(day: Day, journal: list[dict[str, Any]]) -> None:
    """A chat waits for the one job that is under way when it comes, and for other chats."""
    urgent = {ask.label: ask for ask in day.asks if ask.model == "chat"}
    begun = starts(journal)
    others = [label for _, label in begun if label not in urgent]
    used = [interval for interval in gpu_intervals(journal) if interval.name != "chat"]
    assert len(used) == len(others)
    have_waited = 0
    for at_s, label in begun:
        if label in urgent and not math.isnan(urgent[label].waited_s):
            came_s = at_s - urgent[label].waited_s
            before = [other for t, other in begun if came_s < t < at_s and other not in urgent]
            assert len(before) <= 1, f"{label} came at 0 and began after {before}{excerpt(journal, came_s, at_s)}"
            have_waited += any(each.start_s < at_s and came_s < each.end_s for each in used)
    assert have_waited > 10


def check_the_runs(day: Day, journal: list[dict[str, Any]]) -> None:
    """What waited to its end never reached a server, what ended there did once, nothing did twice."""
    runs = Counter(label for _, label in starts(journal))
    for ask in day.asks:
        outcome = day.outcome(ask)
        assert runs[ask.label] <= (not outcome.endswith("_waiting")), (ask, outcome)
        assert runs[ask.label] == 1 or not outcome.startswith(("completed", "upstream")), (ask, outcome)
