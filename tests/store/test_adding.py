from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from swaplane.store import Store, StoreError
from swaplane.store.jobs import INLINE_BYTES
from tests.store.support import LONG, add, body_of, differences, job, names, pieces, stored_body

pytestmark = pytest.mark.anyio


async def test_a_job_comes_back_as_it_was_stored(store: Store) -> None:
    given = job(
        "c91c-1",
        kind="batch",
        label="film=a; shot=ä",
        headers=[(b"X-Twice", b"1"), (b"x-twice", b"\xff\x00 2"), (b"A", b"")],
        key="k",
        fingerprint="f",
        webhook="http://h/",
        batch="b",
        line=3,
        custom_id="mine",
    )
    stored = await store.jobs.add(given, pieces(b"hello"), 5)
    assert differences(stored, given) == {"seq", "body_bytes"}
    assert await store.jobs.get("c91c-1") == stored
    assert await stored_body(store, "c91c-1") == b"hello"
    assert await store.jobs.get("c91c-2") is None


@pytest.mark.parametrize("length", [0, 1, INLINE_BYTES, LONG, 5 * INLINE_BYTES + 7])
async def test_a_body_is_kept_whole_inline_or_as_a_file(store: Store, length: int) -> None:
    await add(store, "j-1", length)
    content = await store.jobs.body("j-1")
    assert isinstance(content, bytes) == (length <= INLINE_BYTES)
    assert await stored_body(store, "j-1") == body_of("j-1", length)
    assert len(names(store.folder / "bodies")) == (length > INLINE_BYTES)


async def test_jobs_survive_closing_and_opening(store: Store) -> None:
    stored = [await add(store, f"j-{n}", length) for n, length in enumerate((10, LONG))]
    await store.close()
    again = await Store.open(store.folder)
    try:
        assert await again.jobs.open() == stored
        assert [await stored_body(again, each.id) for each in stored] == [body_of("j-0", 10), body_of("j-1", LONG)]
        assert (await add(again, "j-2")).seq > stored[-1].seq
    finally:
        await again.close()


async def test_a_number_is_not_given_twice_though_the_newest_job_is_deleted(store: Store) -> None:
    first = await add(store, "j-1")
    await store.jobs.delete("j-1")
    assert (await add(store, "j-2")).seq > first.seq
    await store.jobs.delete("j-2")
    [third] = await store.jobs.add_many([(job("j-3"), b"")])
    assert third.seq == first.seq + 2


@pytest.mark.parametrize("length", [5, LONG])
async def test_a_key_that_comes_again_gives_the_earlier_job_and_stores_nothing(store: Store, length: int) -> None:
    first = await add(store, "j-1", 7, key="k", fingerprint="one")
    second = await add(store, "j-2", length, key="k", fingerprint="two")
    assert second == first
    assert await store.jobs.get("j-2") is None
    assert names(store.folder / "bodies") == set()
    assert await stored_body(store, "j-1") == body_of("j-1", 7)


async def test_idempotency_keys_belong_to_an_api_key_and_a_member(store: Store) -> None:
    hers = await add(store, "j-1", key="k", member="alice")
    his = await add(store, "j-2", key="k", member="bob")
    elsewhere = await add(store, "j-4", key="k", member="alice", key_name="bot")
    assert await store.jobs.by_key("", "alice", "k") == hers
    assert await store.jobs.by_key("", "bob", "k") == his
    assert await store.jobs.by_key("bot", "alice", "k") == elsewhere
    assert await store.jobs.by_key("bot", "bob", "k") is None
    assert await store.jobs.by_key("", "alice", "other") is None
    await store.jobs.delete("j-1")
    assert await store.jobs.by_key("", "alice", "k") is None
    assert (await add(store, "j-3", key="k", member="alice")).id == "j-3"


async def test_of_many_at_once_with_one_key_one_is_stored(store: Store) -> None:
    stored = await asyncio.gather(*(add(store, f"j-{n}", LONG if n % 2 else 5, key="k") for n in range(20)))
    assert len({each.id for each in stored}) == 1
    assert await store.jobs.open() == [stored[0]]
    assert len(names(store.folder / "bodies")) <= 1


async def test_an_id_that_is_there_already_is_refused_and_its_job_unharmed(store: Store) -> None:
    first = await add(store, "j-1", LONG)
    for length in (5, LONG):
        with pytest.raises(StoreError, match=r"UNIQUE.*jobs\.id"):
            await store.jobs.add(job("j-1", model="other"), pieces(bytes(length)), length)
    with pytest.raises(StoreError, match=r"UNIQUE.*jobs\.id"):
        await store.jobs.add_many([(job("j-2"), b"2"), (job("j-1"), b"1")])
    assert await store.jobs.open() == [first]
    assert await stored_body(store, "j-1") == body_of("j-1", LONG)


@pytest.mark.parametrize("length", [5, LONG])
async def test_a_body_of_another_length_is_refused(store: Store, length: int) -> None:
    with pytest.raises(StoreError, match=f"job j-1 ended after {length - 1} bytes where it must have {length}"):
        await store.jobs.add(job("j-1"), pieces(bytes(length - 1)), length)
    assert await store.jobs.open() == []
    assert names(store.folder / "bodies") == set()


@pytest.mark.parametrize("length", [5, 3 * LONG])
async def test_what_the_body_raises_stores_nothing(store: Store, length: int) -> None:
    class Left(Exception):  # noqa: N818
        pass

    async def breaking_off() -> AsyncIterator[bytes]:
        yield bytes(length - 1)
        raise Left

    with pytest.raises(Left):
        await store.jobs.add(job("j-1"), breaking_off(), length)
    assert await store.jobs.open() == []
    assert names(store.folder / "bodies") == set()


@pytest.mark.parametrize("length", [5, LONG])
async def test_a_cancelled_add_stores_nothing_whenever_it_is_cancelled(store: Store, length: int) -> None:
    ended_first = 0
    for n in range(60):
        adding = asyncio.create_task(add(store, f"j-{n}", length))
        for _ in range(n):
            await asyncio.sleep(0)
        ended_first += adding.done()
        adding.cancel()
        await asyncio.wait([adding])
        stored = await store.jobs.get(f"j-{n}")
        assert (stored is None) == adding.cancelled()
        assert len(names(store.folder / "bodies")) == (length == LONG and stored is not None)
        await store.jobs.delete(f"j-{n}")
    assert ended_first < 60


async def test_jobs_added_at_once_take_few_commits_and_come_back_in_order(store: Store) -> None:
    before = store._database.commits
    came: list[int] = []

    async def accept(n: int) -> None:
        came.append((await add(store, f"j-{n}")).seq)

    await asyncio.gather(*(accept(n) for n in range(1000)))
    assert came == sorted(came)
    assert len(set(came)) == 1000
    assert store._database.commits - before < 20


async def test_many_in_one_call_are_numbered_in_their_order(store: Store) -> None:
    await add(store, "j-0")
    lines = [(job(f"l-{n}", batch="b", line=n), body_of(f"l-{n}", LONG if n == 7 else n)) for n in range(500)]
    before = store._database.commits
    stored = await store.jobs.add_many(lines)
    assert store._database.commits - before == 1
    assert [each.id for each in stored] == [f"l-{n}" for n in range(500)]
    assert [each.seq for each in stored] == list(range(stored[0].seq, stored[0].seq + 500))
    assert await store.jobs.get("l-499") == stored[499]
    assert [await stored_body(store, f"l-{n}") for n in (0, 7, 499)] == [lines[n][1] for n in (0, 7, 499)]
    assert (await add(store, "j-1")).seq == stored[-1].seq + 1
    assert await store.jobs.add_many([]) == []


async def test_of_many_none_is_stored_when_one_cannot_be(store: Store) -> None:
    await add(store, "j-1", key="k")
    with pytest.raises(StoreError, match="UNIQUE"):
        await store.jobs.add_many([(job("l-1"), bytes(LONG)), (job("l-2", key="k"), b"")])
    assert [each.id for each in await store.jobs.open()] == ["j-1"]
    assert names(store.folder / "bodies") == set()


async def test_a_cancelled_add_of_many_stores_none(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    adding = asyncio.create_task(store.jobs.add_many([(job(f"l-{n}"), bytes(LONG * (n == 1))) for n in range(100)]))
    write = store._database.write

    async def cancelled(work: Any) -> Any:
        adding.cancel()  # once the file is written
        return await write(work)

    monkeypatch.setattr(store._database, "write", cancelled)
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert await store.jobs.open() == []
    assert names(store.folder / "bodies") == set()


async def test_a_body_file_that_is_gone_or_cut_is_told(store: Store) -> None:
    await add(store, "j-1", LONG)
    path = await store.jobs.body("j-1")
    assert isinstance(path, Path)
    os.truncate(path, 10)
    with pytest.raises(StoreError, match=rf"{path}.*j-1, has 10 bytes where it must have {LONG}"):
        await store.jobs.body("j-1")
    path.unlink()
    with pytest.raises(StoreError, match=rf"{path} cannot be read or written: No such file"):
        await store.jobs.body("j-1")


async def test_a_long_body_is_synced_with_its_folder_before_its_row(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def note(descriptor: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", note)
    write = store._database.write

    async def noted(work: Any) -> Any:
        done.append("row")
        return await write(work)

    monkeypatch.setattr(store._database, "write", noted)
    await add(store, "j-1", LONG)
    assert done == [str(await store.jobs.body("j-1")), str(store.folder / "bodies"), "row"]
