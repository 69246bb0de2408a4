"""What random worlds are made of: the small vocabulary that makes clashes likely, and plans over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

from swaplane.core.limits import Allowance, Budget, Limits
from swaplane.core.plan import LanePlan, ModelPlan, Plan
from swaplane.core.residency import Group, Residency
from swaplane.core.score import DEFAULT_BANDS, AgingClock, Fairness, ScoreRules
from tests.core.observer import HIGHEST

T = TypeVar("T")

MODELS = ("chat", "image", "video", "voice")
MEMBERS = ("ann", "ben", "cleo")
KEYS = ("", "bot", "cli")
PRIORITIES = (-100, -99, -98, 0, 1, 2, 100, 101, 102, -300, -137, -1, 50, 99, HIGHEST)
LANES = ("gpu", "cpu")
#: The defaults come up more often.
AGING_CLOCKS: tuple[AgingClock, ...] = ("turn", "turn", "turn", "submit")
FAIRNESS: tuple[Fairness, ...] = ("turns", "turns", "gpu_time", "none")
BANDS = tuple(band.name for band in DEFAULT_BANDS)
#: Powers of two, so that shares are exact.
WEIGHTS: tuple[dict[str, float], ...] = ({}, {}, {"ann": 2.0}, {"ben": 0.5}, {"ann": 0.5, "cleo": 2.0})
RESERVES: dict[int, tuple[dict[str, int], ...]] = {
    1: ({},),
    2: ({}, {"interactive": 1}, {"normal": 1}),
    3: ({}, {"interactive": 1, "normal": 1}, {"interactive": 2}, {"batch": 1, "interactive": 1}),
}

#: Multiples of 1/4 s, so that all sums are exact.
seconds = st.one_of(
    st.integers(min_value=0, max_value=40).map(lambda quarters: quarters / 4),
    st.integers(min_value=1, max_value=600).map(float),
    st.integers(min_value=1, max_value=8).map(lambda hours: hours * 3600.0),
)

max_waits = st.sampled_from([*[None] * 10, 0.0, 5.0, 60.0, 3600.0])
bodies = st.sampled_from([0, 1, 100, 1000])  #: bytes

#: Model (by number), member, priority, seconds since its submit, longest wait, whether it ran before.
RestoredJob = tuple[int, str, int, float, float | None, bool]
PastTurn = tuple[str, str, str, float]  #: lane, member, band, seconds since its end

restored_jobs = st.tuples(
    st.integers(0, 10**6), st.sampled_from(MEMBERS), st.sampled_from(PRIORITIES), seconds, max_waits, st.booleans()
)
turns = st.tuples(
    st.sampled_from([*LANES, "nowhere"]),
    st.sampled_from([*MEMBERS, "nobody"]),
    st.sampled_from([*BANDS, "unknown"]),
    seconds,
)


allowances = st.one_of(
    st.builds(Allowance, jobs=st.integers(1, 6)), st.builds(Allowance, bytes=st.sampled_from([50, 150, 1100]))
)


def by(names: Sequence[str], values: st.SearchStrategy[T]) -> st.SearchStrategy[dict[str, T]]:
    return st.dictionaries(st.sampled_from(names), values, min_size=1, max_size=2)


LIMITS: dict[str, st.SearchStrategy[object]] = {
    "total": allowances,
    "bands": by(BANDS, allowances),
    "member": allowances,
    "keys": by(KEYS[1:], allowances),
    "max_wait_s": by(BANDS, st.sampled_from([4.0, 30.0, 600.0])),
    "max_running": st.integers(1, 2),
    "running_of_keys": by(KEYS[1:], st.integers(1, 2)),
    "budget": st.builds(Budget, band=st.sampled_from(BANDS[1:]), gpu_s=st.sampled_from([4.0, 60.0, 600.0])),
}


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    """A few at a time: with all of them nobody would get far."""
    named = draw(st.lists(st.sampled_from(sorted(LIMITS)), unique=True, max_size=3))
    return Limits(**{name: draw(LIMITS[name]) for name in named})  # type: ignore[arg-type]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    sizes = {lane: draw(st.integers(1, 3)) for lane in draw(st.sampled_from([LANES[:1], LANES[:1], LANES]))}
    names = draw(st.lists(st.sampled_from(MODELS), unique=True, min_size=2))
    models = {
        name: ModelPlan(
            id=name,
            lane=draw(st.sampled_from(sorted(sizes))),
            slots=draw(st.sampled_from([1, 2, 4])),
            ttl_s=draw(st.sampled_from([None, 0.0, 30.0, 3600.0])),
            fingerprint=draw(st.sampled_from("ab")),
        )
        for name in names
    }
    grouped = draw(st.dictionaries(st.sampled_from(names), st.sampled_from(["one", "two"])))
    groups = [
        Group(
            name=name,
            members=frozenset(model for model, group in grouped.items() if group == name),
            swap=draw(st.booleans()),
            exclusive=draw(st.booleans()),
            persistent=draw(st.booleans()),
        )
        for name in sorted(set(grouped.values()))
    ]
    rules = ScoreRules(
        swap_affinity=draw(st.sampled_from([0.0, 2.5, 10.0])),
        aging_divisor_s=draw(st.sampled_from([4.0, 64.0, 2.0**40])),
        aging_clock=draw(st.sampled_from(AGING_CLOCKS)),
        fairness=draw(st.sampled_from(FAIRNESS)),
        weights=draw(st.sampled_from(WEIGHTS)),
    )
    return Plan(
        models=models,
        lanes={
            name: LanePlan(name=name, size=size, reserve=draw(st.sampled_from(RESERVES[size])))
            for name, size in sizes.items()
        },
        residency=Residency(groups),
        rules=rules,
        limits=draw(limits()),
    )
