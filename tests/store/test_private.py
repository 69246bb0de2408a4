"""Who on the same machine may read what is stored: nobody but the gateway's user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from swaplane.store import Store
from tests.store.support import LONG, add, pieces
from tests.store.test_files import file

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[0o000, 0o022, 0o377])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """By path within the folder."""
    return {str(path.relative_to(folder)): oct(path.lstat().st_mode & 0o777) for path in folder.rglob("*")}


def assert_private(folder: Path) -> None:
    found = modes(folder)
    assert {"jobs.db", "jobs.db-wal", "jobs.db-shm", "lock", "reserve", "bodies", "answers"} <= found.keys()
    for name, mode in found.items():
        assert mode == ("0o700" if (folder / name).is_dir() else "0o600"), name


async def test_in_a_folder_that_others_may_read_nothing_of_ours_can_be(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o755)
    store = await Store.open(folder)
    try:
        await add(store, "j-1", LONG)
        await store.files.add(file("f-1"), pieces(b"x"))
        await store.expire(0.0)
        assert any(name.startswith("bodies/") for name in modes(folder))
        assert_private(folder)
        assert folder.stat().st_mode & 0o777 == 0o755, "the folder itself is its owner's business"
    finally:
        await store.close()


async def test_what_is_there_already_is_made_private_at_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    store = await Store.open(folder)
    await add(store, "j-1", LONG)
    await store.files.add(file("f-1"), pieces(b"x"))
    await store.close()
    for name in ("jobs.db-wal", "jobs.db-shm"):  # as after a crash
        (folder / name).touch()
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    theirs, linked = folder / "notes.txt", tmp_path / "linked"
    for other in (theirs, linked):
        other.touch()
        other.chmod(0o644)
    (folder / "kept" / "x.kept").symlink_to(linked)
    store = await Store.open(folder)
    try:
        assert oct(theirs.stat().st_mode & 0o777) == oct(linked.stat().st_mode & 0o777) == "0o644", "they are not ours"
        theirs.unlink()
        (folder / "kept" / "x.kept").unlink()
        assert_private(folder)
    finally:
        await store.close()
