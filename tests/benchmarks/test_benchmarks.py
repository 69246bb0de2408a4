"""The benchmarks run from end to end, here with a few requests each: what they measure is another matter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(script: str, *arguments: str) -> list[list[str]]:
    """The cells of the tables that a benchmark prints; nothing it started is left."""
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    environ = {**os.environ, "BENCHMARK_OF_TEST": str(os.getpid())}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    left = [process for process in psutil.process_iter(["cmdline"]) if _is_ours(process)]
    assert not left
    return [[cell.strip() for cell in line.split(" | ")] for line in done.stdout.splitlines() if line.startswith("|")]


def _is_ours(process: psutil.Process) -> bool:
    try:
        return process.environ().get("BENCHMARK_OF_TEST") == str(os.getpid())
    except psutil.Error:
        return False


def test_overhead_compares_both_sides() -> None:
    rows = run("overhead.py", "--seconds", "0.05", "--repeats", "1", "--clients", "2")
    cases = [row for row in rows if row[0] in ("| json", "| stream")]
    assert [row[:2] for row in cases] == [["| json", "2"], ["| stream", "2"]]
    for row in cases:
        direct, through = (float(cell.replace(",", "")) for cell in row[2:4])
        assert direct > through > 0
    shown = [row[0] for row in rows]
    assert any("idle between two jobs" in text for text in shown)
    assert any("start to the first answer" in text for text in shown)


def test_overhead_shows_where_time_goes() -> None:
    command = [sys.executable, str(BENCHMARKS / "overhead.py"), "--profile", "--seconds", "0.05"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert "(_job)" in done.stdout


def test_waiting_connections_are_queued_and_leave() -> None:
    rows = run("waiting.py", "--connections", "20", "--seconds", "0.1")
    assert rows[0][0] == "| 20 waiting connections"
    shown = [row[0] for row in rows]
    assert any("all queued after" in text for text in shown)
    assert any("queue empty after" in text for text in shown)


def test_the_gpu_is_idle_between_polled_renders_for_a_moment() -> None:
    rows = run("polling.py", "--renders", "2")
    assert rows[0][0].startswith("| GPU idle between two of 2 renders")
    shown = rows[2:]
    assert [row[0].partition(",")[0] for row in shown] == ["| gateway", "| gateway", "| beside it: one client directly"]
    for row in shown:
        median_ms, most_ms = (float(cell.removesuffix(" |").removesuffix(" ms").replace(",", "")) for cell in row[1:])
        assert 0 <= median_ms <= most_ms


def test_more_connections_than_open_files_are_refused() -> None:
    command = [sys.executable, str(BENCHMARKS / "waiting.py"), "--connections", "1000000000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "open files" in done.stderr
