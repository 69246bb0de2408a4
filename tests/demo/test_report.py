from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console

from swaplane.demo.film import Arrival, Ended
from swaplane.demo.report import Loads, compare, comparison_json, comparison_table, read_loads


def ended(at_s: float, band: str, model: str, *, wait_s: float, run_s: float, error: str = "") -> Ended:
    arrival = Arrival(at_s=at_s, band=band, member="m", label="l", model=model, path="/", body={})
    return Ended(arrival=arrival, job="j", wait_s=wait_s, run_s=run_s, error=error)


LOADS = Loads(count=3, mean_s={"video": 1.0, "chat": 2.0})


def test_loads_are_read_from_the_histogram_of_each_model() -> None:
    text = """\
# HELP swaplane_swap_seconds Seconds from the start of a swap until the model is ready.
# TYPE swaplane_swap_seconds histogram
swaplane_swap_seconds_bucket{model="chat",le="1.0"} 0.0
swaplane_swap_seconds_bucket{model="chat",le="+Inf"} 2.0
swaplane_swap_seconds_count{model="chat"} 2.0
swaplane_swap_seconds_sum{model="chat"} 3.0
swaplane_swap_seconds_bucket{model="video",le="+Inf"} 1.0
swaplane_swap_seconds_count{model="video"} 1.0
swaplane_swap_seconds_sum{model="video"} 0.5
swaplane_swap_seconds_count{model="never"} 0.0
swaplane_swap_seconds_sum{model="never"} 0.0
# TYPE swaplane_other counter
swaplane_other_total 7.0
"""
    assert read_loads(text) == Loads(count=3, mean_s={"chat": 1.5, "video": 0.5})


def film_and_chat() -> Sequence[Ended]:
    return [
        ended(0, "batch", "video", wait_s=1, run_s=10),
        ended(0, "batch", "video", wait_s=15, run_s=10),
        ended(2, "interactive", "chat", wait_s=11, run_s=1),
        ended(3, "normal", "chat", wait_s=9, run_s=1, error="it broke"),
    ]


def test_both_ways_are_compared_on_the_same_jobs() -> None:
    comparison = compare(film_and_chat(), LOADS)
    assert list(comparison.bands) == ["interactive", "batch"]
    chat, film = comparison.bands["interactive"], comparison.bands["batch"]
    assert (chat.count, chat.median_s, chat.max_s) == (1, 11, 11)
    assert (chat.first_come_median_s, chat.first_come_max_s) == (1 + 10 + 10 + 2 - 2, 21)
    assert (film.count, film.median_s, film.max_s) == (2, 8, 15)
    assert (film.first_come_median_s, film.first_come_max_s) == (6, 11)
    assert (comparison.swaps, comparison.first_come_swaps) == (3, 2)
    assert (comparison.end_s, comparison.first_come_end_s) == (25, 24)


def test_the_table_fits_80_columns_and_names_both() -> None:
    output = io.StringIO()
    Console(file=output, width=80, color_system=None).print(comparison_table(compare(film_and_chat(), LOADS)))
    lines = output.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if "interactive" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["interactive", "1", "11.0", "11.0", "21.0", "21.0"]
    assert any("3 / 2" in line for line in lines)


def test_the_document_has_the_same_numbers() -> None:
    document = comparison_json(compare(film_and_chat(), LOADS))
    assert document["waits"]["interactive"]["first_come"] == {"median_s": 21, "max_s": 21}
    assert document["swaps"] == {"here": 3, "first_come": 2}


def test_nothing_served_is_no_crash() -> None:
    failed = ended(0, "batch", "video", wait_s=0, run_s=0, error="refused")
    assert compare([failed], Loads(count=0, mean_s={})).bands == {}
