from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from swaplane.store import Store, StoreError
from swaplane.store.batches import StoredBatch
from swaplane.store.files import StoredFile
from tests.store.support import LONG, body_of, names, pieces

pytestmark = pytest.mark.anyio


def file(file_id: str, purpose: str = "batch", **fields: Any) -> StoredFile:
    common: dict[str, Any] = {"filename": "in ä.jsonl", "bytes": 0, "created_at": 1000.5}
    return StoredFile(**common | {"id": file_id, "purpose": purpose, "member": "alice", "key_name": "bot"} | fields)


def stored_batch(batch_id: str, **fields: Any) -> StoredBatch:
    common: dict[str, Any] = {"created_at": 1000.5, "data": "{}", "open": False, "member": "alice", "key_name": "bot"}
    return StoredBatch(**common | {"id": batch_id} | fields)


@pytest.mark.parametrize("length", [0, 7, 3 * LONG])
async def test_a_file_is_kept_with_its_length(store: Store, length: int) -> None:
    stored = await store.files.add(file("file-1"), pieces(body_of("file-1", length)))
    assert stored == replace(file("file-1"), bytes=length)
    assert await store.files.get("file-1") == stored
    assert store.files.path("file-1").read_bytes() == body_of("file-1", length)


async def test_deleting_a_file_may_be_done_twice(store: Store) -> None:
    await store.files.add(file("file-1"), pieces(b"x"))
    for _ in range(2):
        await store.files.delete("file-1")
        assert await store.files.get("file-1") is None
        assert names(store.folder / "files") == set()


async def test_an_id_is_not_stored_twice(store: Store) -> None:
    first, second = await asyncio.gather(
        *(store.files.add(file("file-1"), pieces(data, 1)) for data in (b"first", b"second")), return_exceptions=True
    )
    assert not isinstance(first, BaseException)
    assert isinstance(second, StoreError)
    assert str(second) == f"{store.files.path('file-1')} is being written already"
    with pytest.raises(StoreError, match="a file with the id file-1 is stored already"):
        await store.files.add(file("file-1"), pieces(b"third"))
    assert store.files.path("file-1").read_bytes() == b"first"


async def test_what_a_crash_left_of_a_file_is_replaced(store: Store) -> None:
    store.files.path("file-1").write_bytes(b"what came before the crash")
    await store.files.add(file("file-1"), pieces(b"whole"))
    assert store.files.path("file-1").read_bytes() == b"whole"


async def test_an_upload_that_breaks_off_leaves_nothing(store: Store) -> None:
    class Left(Exception):  # noqa: N818
        pass

    async def breaking_off() -> AsyncIterator[bytes]:
        yield bytes(2 * LONG)
        raise Left

    with pytest.raises(Left):
        await store.files.add(file("file-1"), breaking_off())
    assert names(store.folder / "files") == set()
    assert await store.files.get("file-1") is None
    await store.files.add(file("file-1"), pieces(b"again"))


async def test_a_cancelled_upload_leaves_nothing_whenever_it_is_cancelled(store: Store) -> None:
    for n in range(40):
        adding = asyncio.create_task(store.files.add(file(f"file-{n}"), pieces(b"data")))
        for _ in range(n):
            await asyncio.sleep(0)
        adding.cancel()
        await asyncio.wait([adding])
        stored = await store.files.get(f"file-{n}") is not None
        assert stored != adding.cancelled()
        assert (f"file-{n}.file" in names(store.folder / "files")) == stored


async def test_files_are_listed_in_pages(store: Store) -> None:
    for n in range(4):
        await store.files.add(file(str(n), "vision" if n == 1 else "batch"), pieces(b""))

    async def page(limit: int = 9, **options: Any) -> list[str]:
        found, more = await store.files.list(limit=limit, **options)
        return [each.id for each in found] + ["more"] * more

    assert await page() == ["3", "2", "1", "0"]
    assert await page(newest_first=False) == ["0", "1", "2", "3"]
    assert await page(2) == ["3", "2", "more"]
    assert await page(2, after="2") == ["1", "0"]
    assert await page(1, after="1", newest_first=False) == ["2", "more"]
    assert await page(purpose="vision") == ["1"]
    assert await page(after="gone") == []


async def test_batches_are_stored_updated_and_listed(store: Store) -> None:
    batches = [stored_batch(f"b-{n}", created_at=1000.5 + n, data=f'{{"n": {n}}}', open=n != 1) for n in range(4)]
    for batch in batches:
        await store.batches.add(batch)
    assert await store.batches.get("b-1") == batches[1]
    assert await store.batches.get("b-9") is None
    assert await store.batches.open() == [batches[0], batches[2], batches[3]]

    over = replace(batches[2], data='{"over": true}', open=False, expires_at=5.0)
    await store.batches.update(over)
    await store.batches.update(replace(over, id="b-9"))
    assert await store.batches.get("b-2") == over
    assert await store.batches.open() == [batches[0], batches[3]]
    assert await store.batches.list(limit=2) == ([batches[3], over], True)
    assert await store.batches.list(limit=2, after="b-2") == ([batches[1], batches[0]], False)
    assert await store.batches.list(limit=9, after="b-2", newest_first=False) == ([batches[3]], False)
    assert await store.batches.list(limit=9, after="gone") == ([], False)
    with pytest.raises(StoreError, match="UNIQUE"):
        await store.batches.add(over)
