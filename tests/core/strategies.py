"""What random worlds are made of: the small vocabulary that makes clashes likely, and plans over it."""

from __future__ import annotations

from hypothesis import strategies as st

from swaplane.core.plan import LanePlan, ModelPlan, Plan
from swaplane.core.residency import Group, Residency
from swaplane.core.score import DEFAULT_BANDS, AgingClock, Fairness, ScoreRules
from tests.core.observer import HIGHEST

MODELS = ("chat", "image", "video", "voice")
MEMBERS = ("ann", "ben", "cleo")
PRIORITIES = (-100, -99, -98, 0, 1, 2, 100, 101, 102, -300, -137, -1, 50, 99, HIGHEST)
LANES = ("gpu", "cpu")
#: The defaults come up more often.
AGING_CLOCKS: tuple[AgingClock, ...] = ("turn", "turn", "turn", "submit")
FAIRNESS: tuple[Fairness, ...] = ("turns", "turns", "turns", "none")

#: Multiples of 1/4 s, so that all sums are exact.
seconds = st.one_of(
    st.integers(min_value=0, max_value=40).map(lambda quarters: quarters / 4),
    st.integers(min_value=1, max_value=600).map(float),
    st.integers(min_value=1, max_value=8).map(lambda hours: hours * 3600.0),
)

RestoredJob = tuple[str, str, int, float]  #: model, member, priority, seconds since its submit
PastTurn = tuple[str, str, str, float]  #: lane, member, band, seconds since its end

restored_jobs = st.tuples(
    st.sampled_from([*MODELS, "unknown"]), st.sampled_from(MEMBERS), st.sampled_from(PRIORITIES), seconds
)
turns = st.tuples(
    st.sampled_from([*LANES, "nowhere"]),
    st.sampled_from([*MEMBERS, "nobody"]),
    st.sampled_from([*(band.name for band in DEFAULT_BANDS), "unknown"]),
    seconds,
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    sizes = {lane: draw(st.integers(1, 2)) for lane in draw(st.sampled_from([LANES[:1], LANES[:1], LANES]))}
    names = draw(st.lists(st.sampled_from(MODELS), unique=True, min_size=2))
    models = {
        name: ModelPlan(
            id=name,
            lane=draw(st.sampled_from(sorted(sizes))),
            slots=draw(st.integers(1, 3)),
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
    )
    return Plan(
        models=models,
        lanes={name: LanePlan(name=name, size=size) for name, size in sizes.items()},
        residency=Residency(groups),
        rules=rules,
    )
