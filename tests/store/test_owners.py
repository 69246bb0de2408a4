"""Whose everything is: what an owner sees, and what becomes of what an earlier version stored."""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from swaplane.store import Owner, Store
from tests.store.support import add, end, job, pieces
from tests.store.test_files import file, stored_batch
from tests.store.test_remembered import kept, remembered

pytestmark = pytest.mark.anyio

ALICE = Owner(key_name="phone", member="alice")
NOBODY = Owner(key_name="guest")
#: By id: the member and the key of what is there. Alice's are the first three, whatever they came with.
WHOSE = {
    "1": ("alice", "phone"),
    "2": ("alice", "bot"),
    "3": ("bob", "phone"),
    "4": ("bob", "bot"),
    "5": ("", ""),
}


@pytest.mark.parametrize(("owner", "own"), [(None, "12345"), (ALICE, "123"), (NOBODY, "")])
async def test_an_owner_sees_what_came_with_its_key_or_is_its_members(
    store: Store, owner: Owner | None, own: str
) -> None:
    for number, (member, key_name) in WHOSE.items():
        whose: dict[str, Any] = {"member": member, "key_name": key_name}
        await add(store, number, target="/v1/videos", **whose)
        await store.remembered.add(remembered("mA", number, **whose))
        await store.remembered.keep(f"c91c-{number}", f"/v1/videos/{number}", kept(store, b"x"))
        await store.files.add(file(number, **whose), pieces(b"x"))
        await store.batches.add(stored_batch(number, **whose))
    seen = {
        "jobs": [each.id for each in await store.jobs.open_below("/v1/videos", owner=owner)],
        "known": [each for each in WHOSE if await store.remembered.get(each, owner=owner)],
        "kept": [each for each in WHOSE if await store.remembered.kept("mA", f"/v1/videos/{each}", owner=owner)],
    }
    assert seen == {what: list(own) for what in seen}


async def listed(store: Store, table: str, **options: Any) -> list[str]:
    """The ids of one page, and "more" where there are more."""
    if table == "remembered":
        rows, more = await store.remembered.list(completion="openai-videos", model=None, **options)
        return [row.server_id for row in rows] + ["more"] * more
    if table == "files":
        files, more = await store.files.list(**options)
        return [row.id for row in files] + ["more"] * more
    batches, more = await store.batches.list(**options)
    return [row.id for row in batches] + ["more"] * more


@pytest.mark.parametrize("table", ["remembered", "files", "batches"])
async def test_pages_of_an_owner_are_full_and_begin_behind_its_own_ids_only(store: Store, table: str) -> None:
    for n in range(12):
        whose = {"member": "bob", "key_name": "bot"} if n % 3 else {"member": "alice", "key_name": "bot"}
        await store.remembered.add(remembered("mA", str(n), **whose))
        await store.files.add(file(str(n), **whose), pieces(b"x"))
        await store.batches.add(stored_batch(str(n), **whose))
    first = {"owner": ALICE, "limit": 3, "newest_first": True}
    assert await listed(store, table, after=None, **first) == ["9", "6", "3", "more"]
    assert await listed(store, table, after="3", **first) == ["0"]
    assert await listed(store, table, after="3", owner=ALICE, limit=2, newest_first=False) == ["6", "9"]
    assert await listed(store, table, after=None, owner=ALICE, limit=4, newest_first=False) == ["0", "3", "6", "9"]
    assert await listed(store, table, after="4", **first) == [], "somebody else's id is as good as none"
    assert await listed(store, table, after="4", owner=None, limit=9, newest_first=True) == ["3", "2", "1", "0"]


async def test_of_two_jobs_with_one_id_each_owner_finds_its_own(store: Store) -> None:
    await store.remembered.add(remembered("mA", "v-1", member="alice", key_name="phone"))
    await store.remembered.add(remembered("mB", "v-1", job_id="c91c-2", member="bob", key_name="desk"))
    found = [await store.remembered.get("v-1", owner=each) for each in (ALICE, Owner(key_name="desk"), NOBODY)]
    assert [each and each.model for each in found] == ["mA", "mB", None]


async def test_of_one_file_that_two_made_each_keeps_their_own(store: Store) -> None:
    target, desk = "/view?filename=cached.png", Owner(key_name="desk")
    await store.remembered.add(remembered("mA", "p-1", member="alice", key_name="phone"))
    await store.remembered.keep("c91c-p-1", target, kept(store, b"alice's"))
    await store.remembered.add(remembered("mA", "p-2", member="bob", key_name="desk"))
    await store.remembered.keep("c91c-p-2", target, kept(store, b"bob's"))

    async def seen(owner: Owner | None) -> bytes | None:
        found = await store.remembered.kept("mA", target, owner=owner)
        return None if found is None else found.path.read_bytes()

    assert [await seen(each) for each in (ALICE, desk, NOBODY, None)] == [b"alice's", b"bob's", None, b"bob's"]
    await store.remembered.forget("c91c-p-2")
    assert [await seen(each) for each in (ALICE, desk, NOBODY, None)] == [b"alice's", None, None, b"alice's"]


async def test_an_id_that_a_server_gives_to_another_key_too_takes_nothing_away(store: Store) -> None:
    desk = Owner(key_name="desk")
    await store.remembered.add(remembered("mA", "1", job_id="c91c-1", member="alice", key_name="phone"))
    await store.remembered.keep("c91c-1", "/v1/videos/1", kept(store, b"alice's"))
    await store.remembered.add(remembered("mA", "1", job_id="c91c-2", member="anonymous", key_name="desk"))
    await store.remembered.keep("c91c-2", "/v1/videos/1", kept(store, b"theirs"))
    found = [await store.remembered.get("1", "mA", owner=each) for each in (ALICE, desk, NOBODY, None)]
    assert [each and each.job_id for each in found] == ["c91c-1", "c91c-2", None, "c91c-2"]
    answers = [await store.remembered.kept("mA", "/v1/videos/1", owner=each) for each in (ALICE, desk)]
    assert [each and each.path.read_bytes() for each in answers] == [b"alice's", b"theirs"]
    await store.remembered.add(remembered("mA", "1", job_id="c91c-3", member="anonymous", key_name="desk"))
    found = [await store.remembered.get("1", "mA", owner=each) for each in (ALICE, desk)]
    assert [each and each.job_id for each in found] == ["c91c-1", "c91c-3"]
    assert await store.remembered.of_job("c91c-2") is None
    assert len(list((store.folder / "kept").iterdir())) == 1


async def test_another_priority_is_kept_until_the_job_has_ended(store: Store) -> None:
    await add(store, "j-1")
    await store.jobs.priority("j-1", -98, band="batch", reason="lowered")
    changed = await store.jobs.get("j-1")
    assert changed is not None
    assert (changed.priority, changed.band, changed.priority_reason) == (-98, "batch", "lowered")
    await end(store, "j-1")
    await store.jobs.priority("j-1", 100, band="interactive", reason="")
    await store.jobs.priority("unknown", 100, band="interactive", reason="")
    ended = await store.jobs.get("j-1")
    assert ended is not None
    assert ended.priority == -98


async def test_the_length_of_a_body_outlives_it(store: Store) -> None:
    assert (await add(store, "j-1", 7, body_bytes=99)).body_bytes == 7
    [line] = await store.jobs.add_many([(job("j-2", max_wait_s=1.5), b"12345")])
    assert line == await store.jobs.get("j-2")
    await end(store, "j-1")
    assert [each and each.body_bytes for each in (await store.jobs.get("j-1"), line)] == [7, 5]


# What an earlier version stored.


def made_by_the_first_version(folder: Path) -> None:
    """A database as version 1 left it: waiting, ended and keyed jobs, a video, files and two batches."""
    scripts = importlib.resources.files("swaplane.store") / "migrations"
    folder.mkdir()
    with contextlib.closing(sqlite3.connect(folder / "jobs.db")) as db:
        db.executescript((scripts / "0001_first.sql").read_text())
        db.execute("PRAGMA user_version = 1")
        columns = (
            "id, kind, model, member, priority, band, label, method, target, headers, client, submitted_at, key,"
            " fingerprint, webhook_tries, state, attempts, lane, ran, reason"
        )
        for job_id, member, key, state in (
            ("j-1", "alice", None, "waiting"),
            ("j-2", "alice", "k", "ended"),
            ("j-3", "bob", "k", "waiting"),
        ):
            db.execute(
                f"INSERT INTO jobs ({columns}) VALUES (?, 'async', 'mA', ?, 0, 'normal', '', 'POST', '/x', '[]', '',"
                " 1.5, ?, 'print', 0, ?, 0, 'gpu', 0, '')",
                (job_id, member, key, state),
            )
        db.execute("INSERT INTO bodies (seq, bytes, data) VALUES (1, 5, x'0102030405')")
        for server_id, job_id in (("v-0", "j-2"), ("v-1", "j-2"), ("v-2", "gone")):
            db.execute(
                "INSERT INTO remembered (model, server_id, job_id, completion, created_at, stage, last)"
                " VALUES ('mA', ?, ?, 'openai-videos', 1.5, 'done', x'7b7d')",
                (server_id, job_id),
            )
            db.execute(
                "INSERT INTO kept_answers VALUES ('mA', ?, ?, 200, 'OK', '[]', ?, 1)",
                (f"/v1/videos/{server_id}", server_id, f"{server_id}.kept"),
            )
        for file_id in ("in", "out-1", "err-1", "out-2", "alone"):
            db.execute("INSERT INTO files VALUES (?, 'f', 'batch', 0, 1.5, NULL)", (file_id,))
        for batch_id, member, output in (("b-1", "bob", "1"), ("b-2", "alice", "2")):
            data = {
                "input_file_id": "in",
                "sender": {"member": member},
                "future_output_file_id": f"out-{output}",
                "future_error_file_id": f"err-{output}",
            }
            db.execute("INSERT INTO batches VALUES (?, 1.5, ?, 1, NULL)", (batch_id, json.dumps(data)))
        db.commit()


async def test_what_the_first_version_stored_goes_on_and_belongs_to_its_members(tmp_path: Path) -> None:
    made_by_the_first_version(tmp_path / "state")
    store = await Store.open(tmp_path / "state")
    try:
        waiting = await store.jobs.open()
        assert [(each.id, each.member, each.key_name, each.body_bytes, each.max_wait_s) for each in waiting] == [
            ("j-1", "alice", "", 5, None),
            ("j-3", "bob", "", 0, None),
        ]
        alice, bob = Owner(key_name="phone", member="alice"), Owner(key_name="desk", member="bob")
        known = await store.remembered.get("v-1", owner=alice)
        assert known is not None
        assert (known.member, known.key_name) == ("alice", "")
        assert await store.remembered.get("v-1", owner=bob) is None
        assert await store.remembered.get("v-2", owner=alice) is None, "nothing is known of whose it was"
        assert [each and each.server_id for each in (await store.remembered.get("v-2"),)] == ["v-2"]
        assert await store.remembered.get("v-0") is None, "an earlier attempt at what v-1 became"
        kept_paths = [await store.remembered.kept("mA", f"/v1/videos/v-{n}") for n in range(3)]
        assert [each and each.path.name for each in kept_paths] == [None, "v-1.kept", "v-2.kept"]
        assert await store.remembered.kept("mA", "/v1/videos/v-1", owner=bob) is None
        assert [[row.id for row in (await store.batches.list(limit=9, owner=each))[0]] for each in (alice, bob)] == [
            ["b-2"],
            ["b-1"],
        ]
        assert [[row.id for row in (await store.files.list(limit=9, owner=each))[0]] for each in (alice, bob)] == [
            ["out-2"],
            ["err-1", "out-1", "in"],
        ]
        assert await store.jobs.by_key("", "alice", "k") is not None
        again = await add(store, "j-4", key="k", member="bob")
        assert again.id == "j-3", "a retry from before is recognised"
        assert (await add(store, "j-5", key="k", member="bob", key_name="desk")).id == "j-5"
    finally:
        await store.close()
    await (await Store.open(tmp_path / "state")).close()
