from __future__ import annotations

import pytest

from swaplane.demo.first_come import Job, first_come


def job(at_s: float, model: str, run_s: float) -> Job:
    return Job(at_s=at_s, model=model, run_s=run_s)


LOAD_S = {"a": 10.0, "b": 1.0}


@pytest.mark.parametrize(
    ("jobs", "waits_s", "swaps", "end_s"),
    [
        pytest.param([], (), 0, 0.0, id="nobody comes"),
        pytest.param([job(5, "a", 2)], (10,), 1, 17.0, id="a load is part of the wait"),
        pytest.param([job(0, "a", 2), job(0, "a", 2), job(0, "a", 2)], (10, 12, 14), 1, 16.0, id="one load serves all"),
        pytest.param(
            [job(0, "a", 2), job(1, "b", 2), job(2, "a", 2)], (10, 12, 23), 3, 27.0, id="a load at each change"
        ),
        pytest.param([job(0, "a", 2), job(100, "a", 2)], (10, 0), 1, 102.0, id="an idle model stays loaded"),
        pytest.param(
            [job(3, "a", 2), job(0, "b", 5)], (13, 1), 2, 18.0, id="arrival decides, not the place in the list"
        ),
        pytest.param([job(0, "c", 2)], (0,), 1, 2.0, id="an unmeasured load takes no time"),
    ],
)
def test_strict_order_of_arrival(jobs: list[Job], waits_s: tuple[float, ...], swaps: int, end_s: float) -> None:
    result = first_come(jobs, LOAD_S)
    assert result.waits_s == waits_s
    assert result.swaps == swaps
    assert result.end_s == end_s


def test_urgency_counts_for_nothing() -> None:
    film = [job(0, "video", 3.0) for _ in range(12)]
    chat = job(2, "chat", 0.5)
    result = first_come([*film, chat], {"video": 1.0, "chat": 1.5})
    assert result.waits_s[-1] == 1.0 + 12 * 3.0 + 1.5 - 2
