"""A gateway's guards hold its folder until nothing of its servers is left."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from pathlib import Path

import pytest

from swaplane.observe.logs import LogHub
from swaplane.processes import presence
from swaplane.processes.guarded import Guarded

pytestmark = pytest.mark.anyio

SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")


def released(path: Path) -> bool:
    """Whether a gateway that starts now would not have to wait."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        return presence._locked(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


async def test_the_next_claim_waits_for_the_guards_of_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "servers"
    first = await presence.claim(path)
    child = await Guarded.spawn(SLEEPER, env={}, guard_env={}, log=LogHub().model("mA"), name="mA", presence=first)
    os.close(first)  # as at the gateway's end
    os.kill(child.guard_pid, signal.SIGSTOP)
    waiting = asyncio.create_task(presence.claim(path))
    assert not released(path)
    await asyncio.sleep(0)
    assert not waiting.done()
    os.kill(child.guard_pid, signal.SIGCONT)
    child.kill()
    os.close(await asyncio.wait_for(waiting, 30))
    await child.wait_gone()


async def test_the_server_itself_does_not_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "servers"
    first = await presence.claim(path)
    child = await Guarded.spawn(SLEEPER, env={}, guard_env={}, log=LogHub().model("mA"), name="mA", presence=first)
    held = {os.readlink(f"/proc/{child.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{child.pid}/fd")}
    assert str(path) not in held
    guards = {os.readlink(f"/proc/{child.guard_pid}/fd/{fd}") for fd in os.listdir(f"/proc/{child.guard_pid}/fd")}
    assert str(path) in guards
    child.kill()
    await child.wait_gone()
    os.close(first)
    assert released(path)


async def test_servers_that_do_not_end_are_not_waited_for_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "PATIENCE_S", 0.2)
    path = tmp_path / "servers"
    first = await presence.claim(path)
    os.close(await asyncio.wait_for(presence.claim(path), 30))
    os.close(first)
