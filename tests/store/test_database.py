from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiosqlite
import pytest

from swaplane.store import Store, StoreError
from swaplane.store.database import Database
from swaplane.store.files import StoredFile
from tests.store.support import LONG, add, body_of, end, job, names, open_and_close, pieces, stored_body

pytestmark = pytest.mark.anyio


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = await Database.open(tmp_path)
    await database.change("CREATE TABLE t (n INTEGER UNIQUE) STRICT")
    yield database
    await database.close()


@contextlib.contextmanager
def no_file_longer_than(length: int) -> Iterator[None]:
    """The disk takes no byte behind this one of any file: what a full disk looks like to one process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def numbers(database: Database) -> list[int]:
    return [n for (n,) in await database.rows("SELECT n FROM t ORDER BY n")]


async def test_one_write_that_cannot_be_stored_does_not_take_others_with_it(database: Database) -> None:
    async def breaking(writer: aiosqlite.Connection) -> None:
        await writer.execute_fetchall("INSERT INTO t VALUES (100)")
        raise LookupError("a fault")

    insert = "INSERT INTO t VALUES (?)"
    results = await asyncio.gather(
        database.change(insert, (1,)),
        database.change(insert, (1,)),
        database.write(breaking),
        database.change(insert, ("text",)),
        database.change(insert, (2,)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), StoreError, LookupError, StoreError, type(None)]
    assert await numbers(database) == [1, 2]


async def test_nothing_is_seen_before_it_is_committed(database: Database) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def slow(writer: aiosqlite.Connection) -> None:
        await writer.execute_fetchall("INSERT INTO t VALUES (1)")
        inside.set()
        await go_on.wait()

    writing = asyncio.create_task(database.write(slow))
    await inside.wait()
    assert await numbers(database) == []
    go_on.set()
    await writing
    assert await numbers(database) == [1]


async def test_commits_are_synced(database: Database) -> None:
    async def settings(writer: aiosqlite.Connection) -> list[object]:
        found = []
        for name in ("journal_mode", "synchronous", "foreign_keys"):
            [(value,)] = await writer.execute_fetchall(f"PRAGMA {name}")
            found.append(value)
        return found

    assert await database.write(settings) == ["wal", 2, 1]


async def test_tables_are_strict(store: Store) -> None:
    tables = await store._database.rows("SELECT name, strict FROM pragma_table_list WHERE name NOT LIKE 'sqlite_%'")
    names = {"jobs", "bodies", "remembered", "kept_answers", "files", "batches", "probes"}
    assert {name for name, _ in tables} == names
    assert all(strict for _, strict in tables)


async def test_reads_cannot_write(database: Database) -> None:
    with pytest.raises(StoreError, match="readonly"):
        await database.rows("INSERT INTO t VALUES (1)")


async def test_closing_writes_what_waits_and_refuses_what_comes_later(database: Database) -> None:
    waiting = [asyncio.create_task(database.change("INSERT INTO t VALUES (?)", (n,))) for n in range(50)]
    await asyncio.sleep(0)
    await asyncio.gather(database.close(), database.close())
    await asyncio.gather(*waiting)
    with pytest.raises(StoreError, match=f"{database.file} is closed"):
        await database.change("INSERT INTO t VALUES (99)")
    with pytest.raises(StoreError, match=f"{database.file} is closed"):
        await database.rows("SELECT 1")
    with contextlib.closing(sqlite3.connect(database.file)) as other:
        assert other.execute("SELECT n FROM t ORDER BY n").fetchall() == [(n,) for n in range(50)]


def test_a_loop_that_ends_in_the_middle_of_writes_leaves_no_thread_and_no_lock(tmp_path: Path) -> None:
    threads = threading.active_count()

    async def main() -> None:
        database = await Database.open(tmp_path)
        for _ in range(20):
            asyncio.create_task(database.change("CREATE TABLE IF NOT EXISTS t (n INTEGER)"))  # noqa: RUF006
        await asyncio.sleep(0)
        raise LookupError("a fault")

    with pytest.raises(LookupError):
        asyncio.run(main())
    assert threading.active_count() == threads
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


# Two gateways.


async def test_a_folder_has_one_user_at_a_time(store: Store) -> None:
    with pytest.raises(StoreError, match=f"another gateway uses the folder {store.folder}: give each its own"):
        await open_and_close(store.folder)
    await add(store, "j-1")
    await store.close()
    await open_and_close(store.folder)


async def test_a_file_that_another_program_holds_fails_all_that_waits_at_once_and_is_used_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swaplane.store.database.BUSY_S", 0.01)
    async with contextlib.AsyncExitStack() as stack:
        store = await Store.open(tmp_path)
        stack.push_async_callback(store.close)
        other = stack.enter_context(contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)))
        other.execute("BEGIN IMMEDIATE")
        refused = await asyncio.gather(*(add(store, f"j-{n}") for n in range(50)), return_exceptions=True)
        assert {str(error) for error in refused} == {
            f"{tmp_path}/jobs.db cannot be read or written: database is locked"
        }
        assert await store.jobs.open() == []
        other.execute("COMMIT")
        await add(store, "j-1")


# Folders and files that cannot be used.


@pytest.mark.parametrize("folder", ["/dev/null/state", "/proc/state"])
async def test_a_folder_that_cannot_be_made_is_named(folder: str) -> None:
    with pytest.raises(StoreError, match=f"{folder} cannot be read or written: "):
        await open_and_close(Path(folder))


async def test_a_folder_is_made_for_its_owner_only(store: Store) -> None:
    assert store.folder.stat().st_mode & 0o777 == 0o700


async def test_a_file_in_the_place_of_a_folder_is_named_and_the_lock_let_go(tmp_path: Path) -> None:
    (tmp_path / "bodies").write_text("not a folder")
    with pytest.raises(StoreError, match=f"{tmp_path} cannot be read or written: File exists"):
        await open_and_close(tmp_path)
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def damaged(folder: Path, how: str) -> bytes:
    """A database with some jobs, damaged; gives what it has in it now."""
    store = await Store.open(folder)
    for n in range(50):
        await add(store, f"j-{n}", 9000)
    await store.close()
    file = folder / "jobs.db"
    if how == "garbage":
        file.write_bytes(b"This is no database. " * 1000)
    elif how == "cut":
        os.truncate(file, 8192)
    else:
        content = file.read_bytes()
        file.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))
    return file.read_bytes()


@pytest.mark.parametrize("how", ["garbage", "cut", "overwritten"])
async def test_a_damaged_database_is_named_and_left_as_it_is(tmp_path: Path, how: str) -> None:
    content = await damaged(tmp_path, how)

    async def use() -> None:
        store = await Store.open(tmp_path)
        try:
            await store.jobs.open()
        finally:
            await store.close()

    for _ in range(2):
        with pytest.raises(StoreError, match=rf"^{tmp_path}/jobs\.db is damaged or is not a database"):
            await use()
    assert (tmp_path / "jobs.db").read_bytes() == content


async def test_a_database_of_a_newer_version_is_refused_and_left_as_it_is(store: Store) -> None:
    await add(store, "j-1")
    await store.close()
    with contextlib.closing(sqlite3.connect(store.folder / "jobs.db")) as other:
        other.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match=r"jobs\.db was made by a newer version of swaplane \(its schema is 99, "):
        await open_and_close(store.folder)
    with contextlib.closing(sqlite3.connect(store.folder / "jobs.db")) as other:
        assert other.execute("SELECT id FROM jobs").fetchall() == [("j-1",)]
        assert other.execute("PRAGMA user_version").fetchall() == [(99,)]


async def test_a_schema_that_was_half_made_is_made_whole(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").touch()
    await open_and_close(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as other:
        assert other.execute("SELECT count(*) FROM jobs").fetchall() == [(0,)]


# A disk that takes no more.


async def test_a_row_that_the_disk_does_not_take_is_told_and_the_store_goes_on(store: Store) -> None:
    first = await add(store, "j-1")
    with no_file_longer_than((store.folder / "jobs.db-wal").stat().st_size + 100_000):
        results = await asyncio.gather(
            *(add(store, f"long-{n}", 1 << 20) for n in range(3)), add(store, "j-2"), return_exceptions=True
        )
        assert [type(result) for result in results[:3]] == [StoreError] * 3
        assert str(store.folder / "jobs.db") in str(results[0])
        assert not isinstance(results[3], BaseException)
        assert [each.id for each in await store.jobs.open()] == ["j-1", "j-2"]
        with pytest.raises(StoreError):
            await store.jobs.add_many([(job("l-1"), b""), (job("l-2"), bytes(1 << 20))])
        await end(store, "j-2")
    assert await store.jobs.open() == [first]
    await add(store, "j-3", 1 << 20)
    assert await stored_body(store, "j-3") == body_of("j-3", 1 << 20)


async def test_a_file_that_the_disk_does_not_take_is_told_and_leaves_nothing(store: Store) -> None:
    await add(store, "j-1")
    with no_file_longer_than(LONG):
        with pytest.raises(StoreError, match=f"{store.folder / 'bodies'} cannot be read or written: File too large"):
            await add(store, "j-2", 3 * LONG)
        upload = StoredFile(id="file-1", filename="f", purpose="batch", bytes=0, created_at=1.0, member="", key_name="")
        with pytest.raises(StoreError, match=f"{store.folder / 'files'} cannot be read or written: File too large"):
            await store.files.add(upload, pieces(bytes(3 * LONG)))
        assert names(store.folder / "bodies") | names(store.folder / "files") == set()
        await add(store, "j-3")
    await add(store, "j-2", 3 * LONG)
    await store.files.add(upload, pieces(bytes(3 * LONG)))
    assert [each.id for each in await store.jobs.open()] == ["j-1", "j-3", "j-2"]
