"""A supervisor, the events it posts, and stubs as its models."""

from __future__ import annotations

import asyncio
import os
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from swaplane.core.events import Event
from swaplane.observe.logs import LogHub
from swaplane.processes.process import LaunchSpec
from swaplane.processes.supervisor import Supervisor
from tests.support.stub_client import free_port, leftovers, read_journal, stub_argv, until

E = TypeVar("E", bound=Event)


class World:
    """What a test sees of its models: events, logs, journal, and processes left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stub_id = uuid.uuid4().hex
        self.logs = LogHub()
        self.supervisor = Supervisor(self._post, self.logs)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self.posted: list[Event] = []

    def _post(self, event: Event) -> None:
        self.posted.append(event)
        self._events.put_nowait(event)

    def spec(self, *flags: str, argv: tuple[str, ...] = (), model: str = "mA", **settings: Any) -> LaunchSpec:
        """A stub with these flags, or any other command that may contain PORT in its words."""
        port = settings.pop("port", None) or free_port()
        command = tuple(word.replace("PORT", str(port)) for word in argv) or stub_argv(port, model, *flags)
        env = (f"STUB_ID={self.stub_id}", f"STUB_LOG={self.folder / 'journal'}", *settings.pop("env", ()))
        settings.setdefault("health_timeout_s", 30.0)
        return LaunchSpec(model=model, argv=command, env=env, proxy=f"http://127.0.0.1:{port}", **settings)

    async def event(self, kind: type[E]) -> E:
        """The next event, which must be of this kind; after any but ModelReady nothing of the model may be left."""
        event = await asyncio.wait_for(self._events.get(), 30)
        assert isinstance(event, kind), event
        return event

    def journal(self, *events: str) -> list[dict[str, Any]]:
        return read_journal(self.folder / "journal", *events)

    def left(self) -> list[int]:
        return leftovers(self.stub_id)

    async def entry(self, *events: str) -> dict[str, Any]:
        """Wait for the first of these entries in the journal."""
        await until(lambda: self.journal(*events), f"{events} in the journal")
        return self.journal(*events)[0]


@contextmanager
def outsider(*argv: str, **env: str) -> Iterator[psutil.Popen]:
    """A process that no supervisor knows."""
    process = psutil.Popen(argv, env={**os.environ, **env}, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    await world.supervisor.close(1.0)
    assert world.left() == []
    assert world.supervisor.states() == {}
