from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swaplane.core.events import Job
from swaplane.gateway import outage as outage_module
from swaplane.gateway.outage import Outage
from swaplane.gateway.stored_priority import StoredPriorities
from swaplane.runtime import Runtime
from swaplane.store import Store, StoredJob, StoreError
from swaplane.ticket import Ticket
from tests.store.support import add

pytestmark = pytest.mark.anyio


def ticket(job_id: str, priority: int, band: str = "normal") -> Ticket:
    job = Job(id=job_id, seq=1, model="mA", member="alice", priority=priority, submitted_at=0.0)
    return cast("Ticket", SimpleNamespace(job=job, band=band, priority_reason="changed by request"))


class Watched:
    """A store with its priorities, and what they write."""

    def __init__(self, store: Store) -> None:
        self.runtime = SimpleNamespace(watchers=[])
        self.outage = Outage(store)
        self.priorities = StoredPriorities(cast("Runtime", self.runtime), store, self.outage)
        self.store = store

    def tell(self, changed: Ticket) -> None:
        for watcher in self.runtime.watchers:
            watcher(changed, None)

    async def kept(self, job_id: str) -> StoredJob:
        found = await self.store.jobs.get(job_id)
        assert found is not None
        return found


@pytest.fixture
async def watched(tmp_path: Path) -> Any:
    store = await Store.open(tmp_path)
    watched = Watched(store)
    yield watched
    await watched.priorities.close()
    watched.outage.close()
    await store.close()


async def test_the_last_of_several_changes_is_kept(watched: Watched) -> None:
    await add(watched.store, "j-1", priority=0)
    watched.priorities.watch(ticket("j-1", 0), 0)
    for priority, band in ((50, "normal"), (100, "interactive"), (-98, "batch")):
        watched.tell(ticket("j-1", priority, band))
    await watched.priorities.close()
    kept = await watched.kept("j-1")
    assert (kept.priority, kept.band, kept.priority_reason) == (-98, "batch", "changed by request")


async def test_a_change_that_came_before_the_job_was_watched_is_kept_too(watched: Watched) -> None:
    await add(watched.store, "j-1", priority=0)
    watched.priorities.watch(ticket("j-1", -100, "batch"), 0)
    await watched.priorities.close()
    assert (await watched.kept("j-1")).priority == -100


async def test_news_of_other_jobs_and_of_unchanged_ones_write_nothing(watched: Watched) -> None:
    await add(watched.store, "j-1", priority=0)
    watched.priorities.watch(ticket("j-1", 0), 0)
    commits = watched.store._database.commits
    for job_id, priority in (("j-1", 0), ("ordinary", 100)):
        watched.tell(ticket(job_id, priority))
    watched.priorities.drop("j-1")
    watched.tell(ticket("j-1", 100))
    await watched.priorities.close()
    assert watched.store._database.commits == commits


async def test_a_change_is_kept_once_the_disk_takes_it_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage_module, "PROBE_EVERY_S", 0.01)
    await add(watched.store, "j-1", priority=0)
    watched.priorities.watch(ticket("j-1", 0), 0)
    tried = asyncio.Event()

    async def full(*_: Any, **__: Any) -> None:
        tried.set()
        raise StoreError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(watched.store.jobs, "priority", full)
        broken.setattr(watched.store.jobs, "probe", full)
        watched.tell(ticket("j-1", -100, "batch"))
        await tried.wait()
        assert await watched.outage.begins(StoreError("the disk is full"))
        assert (await watched.kept("j-1")).priority == 0
    await watched.outage.over()
    await watched.priorities.close()
    assert (await watched.kept("j-1")).priority == -100
