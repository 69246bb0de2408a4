from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from swaplane.config.load import load
from swaplane.config.settings import Key
from swaplane.gateway import batch_run
from swaplane.gateway.batch_input import Checked
from swaplane.gateway.batch_record import Batch, Counts, Sender, stored_batch
from swaplane.gateway.batch_run import BatchRun
from swaplane.gateway.detached import DetachedJobs
from swaplane.observe.logs import LogHub
from swaplane.observe.metrics import Metrics
from swaplane.runtime import Runtime
from swaplane.store import Store, StoredJob, StoreError
from swaplane.store.batches import StoredBatch
from swaplane.store.files import StoredFile
from tests.support.stub_client import until

pytestmark = pytest.mark.anyio

ENDPOINT = "/v1/chat/completions"


class Lines:
    """Detached jobs that end when the test says so."""

    def __init__(self, runtime: Runtime, store: Store, batch: Batch) -> None:
        self.runtime = runtime
        self.store = store
        self.run = self.anew(batch)
        self.accepted = 0

    def anew(self, batch: Batch) -> BatchRun:
        return BatchRun(batch, runtime=self.runtime, store=self.store, detached=cast("DetachedJobs", self))

    async def accept_lines(self, batch: str, lines: Sequence[tuple[StoredJob, bytes]]) -> None:
        self.accepted += 1
        await self.store.jobs.add_many(lines)

    async def end(self, job: StoredJob, outcome: str = "completed") -> None:
        answer = b'{"answer": "to %b"}' % str(job.custom_id).encode()
        ran = outcome == "completed"
        if ran:
            self.store.jobs.answer_path(job.id).write_bytes(answer)
        await self.store.jobs.ended(
            job.id,
            outcome=outcome,
            lane="gpu",
            ran=ran,
            waited_s=0.0,
            run_s=1.0,
            ended_at=time.time(),
            expires_at=None,
            status=200 if ran else None,
            reason="OK",
            answer_headers=[(b"Content-Type", b"application/json")],
            answer_bytes=len(answer),
        )
        self.run.line_ended()

    async def cancel_lines(self, batch: str) -> None:
        for job in await self.store.jobs.open():
            await self.end(job, "cancelled_waiting")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await Store.open(tmp_path / "state")
    yield store
    await store.close()


@pytest.fixture
async def lines(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lines:
    monkeypatch.setattr(batch_run, "_AGAIN_S", 0.0)
    config = tmp_path / "config.yaml"
    config.write_text("models:\n  mA:\n    cmd: a ${PORT}\n")
    runtime = Runtime(load(str(config), {}), logs=LogHub(), metrics=Metrics())
    content = b"\n".join(
        json.dumps({"custom_id": f"r{n}", "method": "POST", "url": ENDPOINT, "body": {"model": "mA"}}).encode()
        for n in range(3)
    )

    async def pieces() -> AsyncIterator[bytes]:
        yield content

    now = int(time.time())
    await store.files.add(
        StoredFile(id="file-in", filename="a", purpose="batch", bytes=0, created_at=now, member="", key_name=""),
        pieces(),
    )
    sender = Sender(member="m", label="l", priority=-100, client="", authorization=None)
    batch = Batch(
        endpoint=ENDPOINT,
        input_file_id="file-in",
        completion_window="1h",
        created_at=now,
        expires_at=now + 3600,
        sender=sender,
    )
    await store.batches.add(stored_batch(batch, is_open=True))
    return Lines(runtime, store, batch)


async def jobs_of(lines: Lines) -> list[StoredJob]:
    return [job async for job in lines.store.jobs.of_batch(lines.run.batch.id)]


async def until_in_progress(lines: Lines) -> None:
    await until(lambda: lines.run.batch.status == "in_progress", "its lines are made", 60)


async def end_all(lines: Lines) -> None:
    await until_in_progress(lines)
    for job in await jobs_of(lines):
        await lines.end(job)


async def done(work: asyncio.Task[None]) -> None:
    async with asyncio.timeout(60):
        await work


async def output(lines: Lines) -> list[str]:
    files, _ = await lines.store.files.list(purpose="batch_output", limit=100)
    (file,) = files
    assert file.id == lines.run.batch.output_file_id
    return [json.loads(text)["custom_id"] for text in lines.store.files.path(file.id).read_text().splitlines()]


async def test_it_is_over_when_its_last_line_is(lines: Lines) -> None:
    work = asyncio.create_task(lines.run.run())
    await end_all(lines)
    await done(work)
    batch = lines.run.batch
    assert (batch.status, batch.request_counts.completed, await output(lines)) == ("completed", 3, ["r0", "r1", "r2"])
    assert not await jobs_of(lines)
    stored = await lines.store.batches.get(batch.id)
    assert stored is not None
    assert not stored.open
    assert Batch.model_validate_json(stored.data) == batch
    assert stored.expires_at is not None
    assert stored.expires_at > time.time() + 29 * 86400


class Crash(BaseException):
    pass


@pytest.mark.parametrize("how", [Crash(), StoreError("the disk is full")], ids=["a crash", "a full disk"])
@pytest.mark.parametrize(
    ("status", "is_open"), [("in_progress", True), ("finalizing", True), ("completed", True), ("completed", False)]
)
async def test_its_output_is_written_once_whichever_step_is_not_stored(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, how: BaseException, status: str, is_open: bool
) -> None:
    update = lines.store.batches.update
    failed: list[str] = []

    async def fail_once(batch: StoredBatch) -> None:
        if f'"status":"{status}"' in batch.data and batch.open == is_open and not failed:
            failed.append(status)
            raise how
        await update(batch)

    monkeypatch.setattr(lines.store.batches, "update", fail_once)
    work = asyncio.create_task(lines.run.run())
    if status != "in_progress" or isinstance(how, StoreError):
        await end_all(lines)
    with contextlib.suppress(Crash):
        await done(work)
    assert failed
    if isinstance(how, Crash):
        (row,) = await lines.store.batches.open()
        lines.run = lines.anew(Batch.model_validate_json(row.data))
        work = asyncio.create_task(lines.run.run())
        if status == "in_progress":
            await end_all(lines)
        await done(work)
    assert lines.accepted == 1
    assert (lines.run.batch.status, await output(lines)) == ("completed", ["r0", "r1", "r2"])
    assert lines.run.batch.request_counts == Counts(total=3, completed=3)
    assert not await lines.store.batches.open()
    assert not await jobs_of(lines)


async def test_an_output_that_the_disk_does_not_take_is_written_later(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = lines.store.files.add
    failed: list[str] = []

    async def fail_once(file: StoredFile, content: AsyncIterator[bytes]) -> StoredFile:
        if not failed:
            failed.append(file.id)
            raise StoreError("the disk is full")
        return await add(file, content)

    monkeypatch.setattr(lines.store.files, "add", fail_once)
    work = asyncio.create_task(lines.run.run())
    await end_all(lines)
    await done(work)
    assert failed == [lines.run.batch.output_file_id]
    assert await output(lines) == ["r0", "r1", "r2"]


async def test_an_answer_that_is_gone_is_told(lines: Lines) -> None:
    work = asyncio.create_task(lines.run.run())
    await until_in_progress(lines)
    jobs = await jobs_of(lines)
    for job in jobs[:2]:
        await lines.end(job)
    lines.store.jobs.answer_path(jobs[1].id).unlink()
    await lines.end(jobs[2])
    await done(work)
    text = lines.store.files.path(lines.run.batch.output_file_id or "").read_text()
    errors = [json.loads(line)["error"] for line in text.splitlines()]
    assert [error and error["code"] for error in errors] == [None, "answer_lost", None]


async def test_a_cancel_while_it_is_checked_runs_nothing(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def check(path: Path, endpoint: str, settings: object, caller: object, given_up: threading.Event) -> Checked:
        begun.set()
        assert given_up.wait(60)
        return Checked()

    monkeypatch.setattr(batch_run, "check", check)
    work = asyncio.create_task(lines.run.run())
    await asyncio.to_thread(begun.wait, 60)
    await lines.run.cancel()
    await done(work)
    batch = lines.run.batch
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("cancelled", None, None)
    assert (lines.accepted, batch.request_counts.total) == (0, 0)


async def test_nothing_runs_for_a_key_that_was_removed_before_the_file_was_checked(lines: Lines) -> None:
    other = Key(name="other", digest=b"")
    lines.run.batch.sender.key = "gone"
    lines.runtime.settings = replace(lines.runtime.settings, keys=(other,))
    await done(asyncio.create_task(lines.run.run()))
    batch = lines.run.batch
    assert (batch.status, lines.accepted) == ("failed", 0)
    assert batch.errors is not None
    assert [error.code for error in batch.errors.data] == ["key_removed"]


async def test_a_cancel_while_its_lines_are_made_ends_them(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    accept = lines.accept_lines

    async def accept_and_cancel(batch: str, jobs: Sequence[tuple[StoredJob, bytes]]) -> None:
        await accept(batch, jobs)
        await lines.run.cancel()

    monkeypatch.setattr(lines, "accept_lines", accept_and_cancel)
    await done(asyncio.create_task(lines.run.run()))
    batch = lines.run.batch
    assert (batch.status, batch.request_counts.total, batch.request_counts.failed) == ("cancelled", 3, 3)
    text = lines.store.files.path(batch.error_file_id or "").read_text()
    assert [json.loads(line)["error"]["code"] for line in text.splitlines()] == ["batch_cancelled"] * 3


async def test_an_input_file_that_is_gone_is_a_fault(lines: Lines) -> None:
    await lines.store.files.delete("file-in")
    await done(asyncio.create_task(lines.run.run()))
    batch = lines.run.batch
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(fault.code, fault.line) for fault in batch.errors.data] == [("file_not_found", None)]


async def test_its_time_may_come_while_it_is_awaited(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "_LOOK_S", 0.01)
    work = asyncio.create_task(lines.run.run())
    await until_in_progress(lines)
    first, *_ = await jobs_of(lines)
    await lines.end(first)
    lines.run.batch.expires_at = int(time.time())
    await done(work)
    batch = lines.run.batch
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("expired", 1, 2)
    assert await output_of_errors(lines) == ["r1", "r2"]


async def output_of_errors(lines: Lines) -> list[str]:
    text = lines.store.files.path(lines.run.batch.error_file_id or "").read_text()
    return [json.loads(line)["custom_id"] for line in text.splitlines()]
