from __future__ import annotations

import sqlite3

import pytest

from swaplane.store import Store, StoreError
from tests.store.support import LONG, add, body_of, differences, end, job, names, stored_body

pytestmark = pytest.mark.anyio


async def test_a_job_goes_through_its_states(store: Store) -> None:
    waiting = await add(store, "j-1")
    await store.jobs.started("j-1")
    await store.jobs.server_id("j-1", "video_7")
    running = await store.jobs.get("j-1")
    assert running is not None
    assert differences(running, waiting) == {"state", "attempts", "server_id"}
    assert (running.state, running.attempts, running.server_id) == ("running", 1, "video_7")
    assert await store.jobs.open() == [running]

    await store.jobs.waits_again("j-1")
    again = await store.jobs.get("j-1")
    assert again is not None
    assert (again.state, again.attempts, again.server_id) == ("waiting", 1, None)

    await store.jobs.started("j-1")
    headers = [(b"Content-Type", b"video/mp4"), (b"X", b"\xe9")]
    await end(store, "j-1", status=206, reason="Partial", answer_headers=headers, answer_bytes=12, expires_at=3000.0)
    ended = await store.jobs.get("j-1")
    assert ended is not None
    assert ended == job(
        "j-1",
        body_bytes=5,
        seq=waiting.seq,
        state="ended",
        attempts=2,
        outcome="completed",
        lane="gpu",
        ran=True,
        waited_s=1.5,
        run_s=2.5,
        ended_at=2000.0,
        expires_at=3000.0,
        status=206,
        reason="Partial",
        answer_headers=headers,
        answer_bytes=12,
    )
    assert await store.jobs.open() == []


async def test_an_end_is_final(store: Store) -> None:
    await add(store, "j-1")
    await end(store, "j-1", outcome="cancelled_waiting", ran=False, status=None)
    before = await store.jobs.get("j-1")
    await store.jobs.started("j-1")
    await store.jobs.waits_again("j-1")
    await store.jobs.server_id("j-1", "x")
    await end(store, "j-1")
    assert await store.jobs.get("j-1") == before


async def test_what_is_done_to_a_job_that_is_not_there_changes_nothing(store: Store) -> None:
    await store.jobs.started("j-1")
    await store.jobs.waits_again("j-1")
    await end(store, "j-1")
    await store.jobs.webhook_tried("j-1", again_at=1.0)
    await store.jobs.delete("j-1")
    assert await store.jobs.get("j-1") is None
    with pytest.raises(StoreError, match="job j-1 has no stored body"):
        await store.jobs.body("j-1")


@pytest.mark.parametrize("length", [5, LONG])
async def test_deleting_takes_row_body_and_answer_and_may_be_done_twice(store: Store, length: int) -> None:
    kept = await add(store, "j-0", LONG)
    await add(store, "j-1", length)
    for job_id in ("j-0", "j-1"):
        store.jobs.answer_path(job_id).write_bytes(b"answer")
    for _ in range(2):
        await store.jobs.delete("j-1")
        assert await store.jobs.open() == [kept]
        assert len(names(store.folder / "bodies")) == 1
        assert names(store.folder / "answers") == {store.jobs.answer_path("j-0").name}
    assert await stored_body(store, "j-0") == body_of("j-0", LONG)


@pytest.mark.parametrize("job_id", ["c91c-1", "..", "../../etc/passwd", "a/b", "ä%2F", ""])
async def test_an_answer_is_in_its_folder_whatever_the_id(store: Store, job_id: str) -> None:
    path = store.jobs.answer_path(job_id)
    assert path.parent == store.folder / "answers"
    assert "/" not in path.name
    assert path.name not in (".", "..")
    assert path != store.jobs.answer_path(job_id + "x")


async def test_a_batch_is_read_by_line_while_its_jobs_come_and_go(store: Store) -> None:
    order = [*range(0, 600, 2), *range(1, 600, 2)]
    await store.jobs.add_many([(job(f"l-{line}", batch="b", line=line), b"") for line in order])
    await store.jobs.add_many([(job(f"o-{line}", batch="other", line=line), b"") for line in range(5)])
    await add(store, "j-1")
    seen = []
    async for each in store.jobs.of_batch("b"):
        seen.append(each.line)
        if each.line == 0:
            await store.jobs.delete("l-450")
            await end(store, "l-599")
        if each.line == 599:
            assert each.state == "ended"
        if each.line is not None and each.line % 100 == 0:
            await store.jobs.delete(each.id)
    assert seen == [line for line in range(600) if line != 450]
    assert [each.line async for each in store.jobs.of_batch("b")][:3] == [1, 2, 3]
    assert [each.line async for each in store.jobs.of_batch("none")] == []


async def test_a_batch_of_exactly_one_portion_is_read_once(store: Store) -> None:
    await store.jobs.add_many([(job(f"l-{line}", batch="b", line=line), b"") for line in range(200)])
    assert [each.line async for each in store.jobs.of_batch("b")] == list(range(200))


async def test_a_batch_is_counted_by_what_became_of_its_jobs(store: Store) -> None:
    assert await store.jobs.batch_counts("b") == {"waiting": 0, "running": 0, "completed": 0, "failed": 0}
    await store.jobs.add_many([(job(f"l-{line}", batch="b", line=line), b"") for line in range(9)])
    await add(store, "j-1")
    await store.jobs.started("l-0")
    for line, status in enumerate((200, 299, 300, 199, 500, None), 1):
        await end(store, f"l-{line}", status=status)
    assert await store.jobs.batch_counts("b") == {"waiting": 2, "running": 1, "completed": 2, "failed": 4}


async def test_turns_are_the_latest_ends_of_jobs_that_ran(store: Store) -> None:
    for n, (member, band, lane, ended_at, ran) in enumerate(
        [
            ("alice", "normal", "gpu", 10.0, True),
            ("alice", "normal", "gpu", 30.0, True),
            ("alice", "normal", "gpu", 40.0, False),
            ("alice", "batch", "gpu", 20.0, True),
            ("alice", "normal", "cpu", 5.0, True),
            ("bob", "normal", "gpu", 50.0, False),
        ]
    ):
        await add(store, f"j-{n}", member=member, band=band)
        await end(store, f"j-{n}", lane=lane, ended_at=ended_at, ran=ran)
    await add(store, "j-9", member="carol")
    assert sorted(await store.jobs.turns()) == [
        ("cpu", "alice", "normal", 5.0),
        ("gpu", "alice", "batch", 20.0),
        ("gpu", "alice", "normal", 30.0),
    ]


async def test_epochs_are_what_ids_begin_with(store: Store) -> None:
    for job_id in ("c91c-1", "c91c-2", "0af3-1", "resp_77"):
        await add(store, job_id)
    assert await store.jobs.epochs() == {"c91c", "0af3"}


async def test_a_webhook_is_due_from_the_end_until_it_is_done(store: Store) -> None:
    assert await store.jobs.next_webhook(after=0.0) is None
    for n in range(4):
        await add(store, f"j-{n}", webhook=None if n == 3 else f"http://h/{n}")
    assert await store.jobs.next_webhook(after=0.0) is None
    for n, ended_at in enumerate((20.0, 10.0, 30.0, 5.0)):
        await end(store, f"j-{n}", ended_at=ended_at)
    assert await store.jobs.next_webhook(after=0.0) == 10.0
    assert await store.jobs.due_webhooks(9.0) == []
    assert await store.jobs.due_webhooks(20.0) == [("j-1", "http://h/1"), ("j-0", "http://h/0")]

    await store.jobs.webhook_tried("j-1", again_at=25.0)
    assert await store.jobs.due_webhooks(24.0) == [("j-0", "http://h/0")]
    assert await store.jobs.due_webhooks(25.0) == [("j-0", "http://h/0"), ("j-1", "http://h/1")]
    again = await store.jobs.get("j-1")
    assert again is not None
    assert (again.webhook_tries, again.webhook_at) == (1, 25.0)

    for n in range(3):
        await store.jobs.webhook_tried(f"j-{n}", again_at=None)
    assert await store.jobs.due_webhooks(1e9) == []
    assert await store.jobs.next_webhook(after=0.0) is None


async def test_the_next_webhook_is_one_that_is_not_due_yet(store: Store) -> None:
    for n, ended_at in enumerate((30.0, 10.0, 20.0)):
        await add(store, f"j-{n}", webhook="http://h/")
        await end(store, f"j-{n}", ended_at=ended_at)
    assert [await store.jobs.next_webhook(after=after) for after in (9.0, 10.0, 29.9, 30.0)] == [10.0, 20.0, 30.0, None]


@pytest.mark.parametrize("length", [5, LONG])
async def test_an_ended_job_needs_no_body_any_more(store: Store, length: int) -> None:
    await add(store, "j-1", length)
    await add(store, "j-2", length)
    await end(store, "j-1")
    with pytest.raises(StoreError, match="job j-1 has no stored body"):
        await store.jobs.body("j-1")
    assert await stored_body(store, "j-2") == body_of("j-2", length)
    assert len(names(store.folder / "bodies")) == (1 if length == LONG else 0)


async def test_the_open_jobs_below_a_path_are_in_order_of_acceptance(store: Store) -> None:
    targets = {"a": "/v1/videos", "b": "/v1/video", "c": "/v1/videos/x/remix?y=1", "d": "/V1/videos", "e": "/v1/videos"}
    for job_id, target in targets.items():
        await add(store, job_id, target=target)
    await store.jobs.started("c")
    await end(store, "e")
    assert [each.id for each in await store.jobs.open_below("/v1/videos")] == ["a", "c"]
    assert [each.id for each in await store.jobs.open_below("/v1/%")] == []


async def test_a_probe_tells_whether_a_change_reaches_the_disk(store: Store) -> None:
    await store.probe()
    with sqlite3.connect(store.folder / "jobs.db", isolation_level=None) as other:
        other.execute("CREATE TRIGGER refuse BEFORE UPDATE ON probes BEGIN SELECT RAISE(ABORT, 'it is full'); END")
        with pytest.raises(StoreError, match=r"jobs\.db cannot be read or written: it is full"):
            await store.probe()
        other.execute("DROP TRIGGER refuse")
    other.close()
    await store.probe()
    await store.close()
    with pytest.raises(StoreError, match="is closed"):
        await store.probe()
