from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from swaplane.store import Store, StoreError
from tests.store.support import LONG, add, body_of, end, job, names, pieces, stored_body
from tests.store.test_files import file, stored_batch
from tests.store.test_remembered import kept, remembered

pytestmark = pytest.mark.anyio


async def test_ended_jobs_past_their_time_go_with_their_files(store: Store) -> None:
    for n, expires_at in enumerate((100.0, 100.5, None)):
        await add(store, f"j-{n}", LONG)
        store.jobs.answer_path(f"j-{n}").write_bytes(b"answer")
        await end(store, f"j-{n}", expires_at=expires_at)
    await add(store, "j-3", LONG)
    await store.expire(100.0)
    assert [await store.jobs.get(f"j-{n}") is not None for n in range(4)] == [False, True, True, True]
    assert len(names(store.folder / "bodies")) == 1
    assert names(store.folder / "answers") == {store.jobs.answer_path(f"j-{n}").name for n in (1, 2)}
    assert await stored_body(store, "j-3") == body_of("j-3", LONG)


async def test_a_job_stays_until_its_webhook_was_called(store: Store) -> None:
    await add(store, "j-1", webhook="http://h/")
    await end(store, "j-1", ended_at=10.0, expires_at=20.0)
    await store.jobs.webhook_tried("j-1", again_at=40.0)
    await store.expire(30.0)
    assert await store.jobs.get("j-1") is not None
    await store.jobs.webhook_tried("j-1", again_at=None)
    await store.expire(30.0)
    assert await store.jobs.get("j-1") is None


async def test_everything_else_goes_when_it_is_past_its_time(store: Store) -> None:
    for n, expires_at in enumerate((100.0, 101.0, None)):
        await store.files.add(
            file(f"f-{n}", expires_at=expires_at),
            pieces(b"file"),
        )
        await store.batches.add(stored_batch(f"b-{n}", expires_at=expires_at))
        await store.remembered.add(remembered("mA", f"v-{n}", expires_at=expires_at))
        await store.remembered.keep(f"c91c-v-{n}", f"/v1/videos/v-{n}", kept(store, b"x"))
    await store.expire(100.0)
    assert [file.id for file in (await store.files.list(limit=9))[0]] == ["f-2", "f-1"]
    assert names(store.folder / "files") == {"f-1.file", "f-2.file"}
    assert [batch.id for batch in (await store.batches.list(limit=9))[0]] == ["b-2", "b-1"]
    assert [await store.remembered.get(f"v-{n}") is not None for n in range(3)] == [False, True, True]
    assert await store.remembered.kept("mA", "/v1/videos/v-0") is None
    assert len(names(store.folder / "kept")) == 2


async def test_files_that_nobody_refers_to_are_removed_and_what_is_not_ours_stays(store: Store) -> None:
    stored = await add(store, "j-1", LONG)
    store.jobs.answer_path("j-1").write_bytes(b"half an answer")
    ours = {folder: names(store.folder / folder) for folder in ("bodies", "answers", "kept", "files")}
    for folder, suffix in (("bodies", "body"), ("answers", "answer"), ("kept", "kept"), ("files", "file")):
        (store.folder / folder / f"left over.{suffix}").write_bytes(b"x")
        (store.folder / folder / "README").write_bytes(b"not ours")
        (store.folder / folder / f"folder.{suffix}").mkdir()
    await store.expire(0.0)
    for folder, suffix in (("bodies", "body"), ("answers", "answer"), ("kept", "kept"), ("files", "file")):
        assert names(store.folder / folder) - ours[folder] == {"README", f"folder.{suffix}"}
        assert names(store.folder / folder) >= ours[folder]
    assert await store.jobs.open() == [stored]


async def test_a_body_that_is_being_written_is_not_taken_for_a_left_over(store: Store) -> None:
    half, rest = asyncio.Event(), asyncio.Event()

    async def slow(data: bytes) -> AsyncIterator[bytes]:
        yield data[:LONG]
        half.set()
        await rest.wait()
        yield data[LONG:]

    data = body_of("j-1", 2 * LONG)
    adding = asyncio.create_task(store.jobs.add(job("j-1"), slow(data), len(data)))
    uploading = asyncio.create_task(store.files.add(file("f-1"), slow(data)))
    while len(names(store.folder / "bodies") | names(store.folder / "files")) < 2:
        await half.wait()
        await asyncio.sleep(0)
    await store.expire(1e12)
    rest.set()
    await asyncio.gather(adding, uploading)
    await store.expire(0.0)
    assert await stored_body(store, "j-1") == data
    assert store.files.path("f-1").read_bytes() == data


async def test_an_answer_on_its_way_into_the_store_is_not_taken_for_a_left_over(store: Store) -> None:
    await store.remembered.add(remembered("mA", "v-1"))
    answer = kept(store, b"video")
    await store.expire(0.0)
    await store.remembered.keep("c91c-v-1", "/v1/videos/v-1/content", answer)
    await store.expire(0.0)
    assert answer.path.read_bytes() == b"video"


async def test_expiry_beside_a_stream_of_new_jobs_takes_none_of_their_bodies(store: Store) -> None:
    async def keep_adding(numbers: range) -> None:
        for n in numbers:
            await add(store, f"j-{n}", LONG)

    adding = [asyncio.create_task(keep_adding(range(start, 60, 4))) for start in range(4)]
    sweeps = 0
    while not all(task.done() for task in adding):
        await store.jobs.expire(0.0)
        sweeps += 1
    assert sweeps > 1
    for n in range(60):
        assert await stored_body(store, f"j-{n}") == body_of(f"j-{n}", LONG)


async def test_the_database_gives_back_the_space_of_what_is_deleted(store: Store) -> None:
    for n in range(10):
        await add(store, f"j-{n}", 1 << 20)
        await end(store, f"j-{n}", expires_at=1.0)
    await store.expire(1.0)
    await store.close()
    assert (store.folder / "jobs.db").stat().st_size < 1 << 20


async def test_a_full_disk_has_room_for_what_deletes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = store.folder / "reserve"
    assert reserve.stat().st_blocks * 512 >= 4 << 20
    await add(store, "j-1")
    await end(store, "j-1", expires_at=1.0)
    change = store._database.change

    async def on_a_full_disk(sql: str, parameters: Any = ()) -> None:
        if reserve.exists():
            raise StoreError("database or disk is full")
        await change(sql, parameters)

    monkeypatch.setattr(store._database, "change", on_a_full_disk)
    await store.expire(1.0)
    assert await store.jobs.get("j-1") is None
    assert reserve.stat().st_blocks * 512 >= 4 << 20
