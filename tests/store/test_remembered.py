from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swaplane.store import Store, StoreError
from swaplane.store.remembered import KeptAnswer, Remembered
from tests.store.support import names

pytestmark = pytest.mark.anyio


def remembered(model: str, server_id: str, **fields: Any) -> Remembered:
    common: dict[str, Any] = {
        "job_id": f"c91c-{server_id}",
        "member": "alice",
        "key_name": "bot",
        "completion": "openai-videos",
        "created_at": 1000.5,
        "stage": "running",
        "last": b'{"status": "queued"}',
    }
    return Remembered(model=model, server_id=server_id, **common | fields)


def kept(store: Store, body: bytes, **fields: Any) -> KeptAnswer:
    path = store.remembered.new_path()
    path.write_bytes(body)
    common: dict[str, Any] = {"status": 200, "reason": "OK", "headers": [(b"Content-Type", b"video/mp4")]}
    return KeptAnswer(path=path, bytes=len(body), **common | fields)


async def test_a_job_at_a_server_is_remembered_updated_and_forgotten(store: Store) -> None:
    first = remembered("mA", "v-1")
    await store.remembered.add(first)
    assert await store.remembered.get("v-1") == first
    assert await store.remembered.get("v-1", "mA") == first
    assert await store.remembered.get("v-1", "mB") is None
    assert await store.remembered.get("v-2") is None

    over = replace(first, stage="done", last=b"\xff{}", ended_at=2000.0, expires_at=3000.0)
    await store.remembered.update(over)
    assert await store.remembered.get("v-1") == over

    for _ in range(2):
        await store.remembered.forget("c91c-v-1")
        assert await store.remembered.get("v-1") is None
    await store.remembered.update(over)
    assert await store.remembered.get("v-1") is None


async def test_of_several_models_with_one_id_the_newest_is_meant(store: Store) -> None:
    for model in ("mB", "mA", "mC"):
        await store.remembered.add(remembered(model, "1", job_id=f"c91c-{model}"))
    for expected in ("mC", "mA", "mB"):
        found = await store.remembered.get("1")
        assert found is not None
        assert found.model == expected
        await store.remembered.forget(f"c91c-{expected}")


async def test_an_id_that_a_server_gives_again_makes_the_earlier_job_forgotten(store: Store) -> None:
    await store.remembered.add(remembered("mA", "1", job_id="c91c-1"))
    await store.remembered.add(remembered("mA", "2", job_id="c91c-2"))
    await store.remembered.keep("c91c-1", "/v1/videos/1/content", kept(store, b"old"))
    await store.remembered.keep("c91c-2", "/v1/videos/2/content", kept(store, b"other"))
    await store.remembered.add(remembered("mA", "1", job_id="c91c-3"))
    found = await store.remembered.get("1")
    assert found is not None
    assert found.job_id == "c91c-3"
    assert await store.remembered.kept("mA", "/v1/videos/1/content") is None
    assert await store.remembered.kept("mA", "/v1/videos/2/content") is not None
    assert len(names(store.folder / "kept")) == 1
    listed, _ = await store.remembered.list(
        completion="openai-videos", model=None, limit=9, after=None, newest_first=True
    )
    assert [each.job_id for each in listed] == ["c91c-3", "c91c-2"]


async def test_a_job_that_is_run_again_makes_its_earlier_attempt_forgotten(store: Store) -> None:
    await store.remembered.add(remembered("mA", "cut", job_id="c91c-1"))
    await store.remembered.add(remembered("mA", "other", job_id="c91c-2"))
    for job_id, server_id in (("c91c-1", "cut"), ("c91c-2", "other")):
        await store.remembered.keep(job_id, f"/v1/videos/{server_id}", kept(store, b"failed"))
    await store.remembered.add(remembered("mA", "again", job_id="c91c-1"))
    found = await store.remembered.of_job("c91c-1")
    assert found is not None
    assert found.server_id == "again"
    assert await store.remembered.get("cut") is None
    assert await store.remembered.kept("mA", "/v1/videos/cut") is None
    assert await store.remembered.kept("mA", "/v1/videos/other") is not None
    assert len(names(store.folder / "kept")) == 1
    listed, _ = await store.remembered.list(
        completion="openai-videos", model=None, limit=9, after=None, newest_first=True
    )
    assert [each.server_id for each in listed] == ["again", "other"]


async def test_the_jobs_that_run_are_found_after_a_restart(store: Store) -> None:
    for n, stage in enumerate(("running", "done", "running", "failed")):
        await store.remembered.add(remembered("mA", f"v-{n}", stage=stage))
    await store.close()
    again = await Store.open(store.folder)
    try:
        assert [each.server_id for each in await again.remembered.running()] == ["v-0", "v-2"]
        assert await again.jobs.epochs() == {"c91c"}
    finally:
        await again.close()


async def test_jobs_are_listed_in_pages(store: Store) -> None:
    for n, (model, completion) in enumerate(
        [("mB", "openai-videos"), *[("mA", "openai-videos")] * 3, ("mA", "comfyui"), ("mA", "openai-videos")]
    ):
        await store.remembered.add(remembered(model, str(n), completion=completion))

    async def page(model: str | None, newest_first: bool, after: str | None, limit: int) -> list[str]:
        found, more = await store.remembered.list(
            completion="openai-videos", model=model, limit=limit, after=after, newest_first=newest_first
        )
        return [each.server_id for each in found] + ["more"] * more

    assert await page("mA", True, None, 9) == ["5", "3", "2", "1"]
    assert await page("mA", False, None, 9) == ["1", "2", "3", "5"]
    assert await page(None, False, None, 9) == ["0", "1", "2", "3", "5"]
    assert await page("mA", True, None, 4) == ["5", "3", "2", "1"]
    assert await page("mA", True, None, 2) == ["5", "3", "more"]
    assert await page("mA", True, "3", 2) == ["2", "1"]
    assert await page("mA", True, "3", 1) == ["2", "more"]
    assert await page("mA", False, "2", 9) == ["3", "5"]
    assert await page("mA", True, "1", 9) == []
    assert await page("mA", True, "unknown", 9) == await page("mA", False, "unknown", 9) == []


async def test_an_answer_is_kept_for_its_target(store: Store) -> None:
    await store.remembered.add(remembered("mA", "v-1"))
    answer = kept(store, b"video", status=206, reason="Some", headers=[(b"A", b"\xff"), (b"a", b"")])
    await store.remembered.keep("c91c-v-1", "/v1/videos/v-1/content?a=b", answer)
    assert await store.remembered.kept("mA", "/v1/videos/v-1/content?a=b") == answer
    assert await store.remembered.kept("mA", "/v1/videos/v-1/content") is None
    assert await store.remembered.kept("mB", "/v1/videos/v-1/content?a=b") is None
    await store.remembered.forget("c91c-v-1")
    assert await store.remembered.kept("mA", "/v1/videos/v-1/content?a=b") is None
    assert names(store.folder / "kept") == set()


async def test_of_a_target_that_several_jobs_have_the_newest_answer_is_meant(store: Store) -> None:
    for server_id, body in (("p-1", b"one"), ("p-1", b"two"), ("p-2", b"three")):
        if await store.remembered.get(server_id) is None:
            await store.remembered.add(remembered("mA", server_id))
        await store.remembered.keep(f"c91c-{server_id}", "/view?filename=a.png", kept(store, body))
    found = await store.remembered.kept("mA", "/view?filename=a.png")
    assert found is not None
    assert found.path.read_bytes() == b"three"
    assert len(names(store.folder / "kept")) == 2, "one for each job"
    await store.remembered.forget("c91c-p-2")
    left = await store.remembered.kept("mA", "/view?filename=a.png")
    assert left is not None
    assert left.path.read_bytes() == b"two"
    assert names(store.folder / "kept") == {left.path.name}


async def test_an_answer_of_a_job_that_was_forgotten_meanwhile_is_not_kept(store: Store) -> None:
    await store.remembered.keep("c91c-v-1", "/v1/videos/v-1", kept(store, b"late"))
    assert await store.remembered.kept("mA", "/v1/videos/v-1") is None
    assert names(store.folder / "kept") == set()


async def test_an_answer_without_its_file_is_refused(store: Store) -> None:
    await store.remembered.add(remembered("mA", "v-1"))
    answer = kept(store, b"video")
    answer.path.unlink()
    with pytest.raises(StoreError, match=f"{answer.path} cannot be read or written: No such file"):
        await store.remembered.keep("c91c-v-1", "/v1/videos/v-1", answer)
    assert await store.remembered.kept("mA", "/v1/videos/v-1") is None
