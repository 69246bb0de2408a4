"""The store of a process that is killed, and two processes with one folder."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swaplane.store import Store
from tests.store.adder import length_of
from tests.store.support import LONG, body_of, names, stored_body

pytestmark = pytest.mark.anyio


@contextmanager
def adder(folder: Path, epoch: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.store.adder", str(folder), epoch]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def killed_after(process: subprocess.Popen[str], lines: int) -> list[str]:
    """All that the process printed; it was killed when it had printed this much."""
    assert process.stdout is not None
    printed = [process.stdout.readline() for _ in range(lines)]
    process.kill()
    rest, errors = process.communicate()
    assert errors == ""
    return [line.strip() for line in [*printed, *rest.splitlines(keepends=True)] if line.endswith("\n")]


async def test_what_add_returned_for_is_there_after_a_kill_with_its_whole_body(tmp_path: Path) -> None:
    chance = random.Random()
    seed = chance.randrange(1 << 32)
    chance.seed(seed)
    print(f"seed {seed}")
    told: set[str] = set()
    for epoch in ("a", "b", "c", "d"):
        with adder(tmp_path, epoch) as process:
            told.update(killed_after(process, 1 + chance.randrange(60)))
        store = await Store.open(tmp_path)
        try:
            stored = {job.id: job for job in await store.jobs.open()}
            for line in told - {"open"}:
                what, _, job_id = line.partition(" ")
                job = await store.jobs.get(job_id)
                assert job is not None, line
                assert what == "added" or job.state == "ended", line
                stored[job_id] = job
            for job_id, job in stored.items():  # also those that were stored and not told of any more
                if job.state == "ended":  # nobody needs its body any more
                    continue
                assert await stored_body(store, job_id) == body_of(job_id, length_of(job_id)), job_id
            assert len({job.seq for job in stored.values()}) == len(stored)

            await store.expire(0.0)
            long_ones = await store._database.rows("SELECT file FROM bodies WHERE bytes >= ?", (LONG,))
            assert names(tmp_path / "bodies") == {file for (file,) in long_ones}
        finally:
            await store.close()
    assert len(told) > 4


async def test_a_second_process_is_refused_until_the_first_has_gone(tmp_path: Path) -> None:
    with adder(tmp_path, "a") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "open\n"
        with adder(tmp_path, "b") as second:
            assert second.stdout is not None
            assert second.stdout.readline() == ""
            assert second.stderr is not None
            assert second.stderr.read() == f"another gateway uses the folder {tmp_path}: give each its own\n"
            assert second.wait() == 1
        killed_after(first, 1)
        with adder(tmp_path, "c") as third:
            assert len(killed_after(third, 3)) >= 3
