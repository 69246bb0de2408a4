"""How tests start `stub.py`, read its journal and find what it left behind."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from swaplane.demo.config import are_free

STUB = Path(__file__).with_name("stub.py")


def stub_argv(port: int, name: str = "mA", *flags: str) -> tuple[str, ...]:
    """The command that starts a stub, as a list of words."""
    return (sys.executable, "-E", "-s", str(STUB), "--port", str(port), "--name", name, *flags)


def stub_cmd(port: int | str, name: str = "mA", *flags: str) -> str:
    """The same as one line for a config file; `port` may be "${PORT}"."""
    words = stub_argv(0, name, *flags)
    return shlex.join(words).replace("--port 0", f"--port {port}")


def free_port() -> int:
    """The first of some ports in a row on which nobody listens at this moment.

    A gateway's models may start long after this. So no other test process looks among the same ports, and this one
    gives others first.
    """
    return next(first for first in _blocks if are_free(first, _IN_A_ROW))


def _own_blocks() -> Iterator[int]:
    number, count = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    # Below the ports that the kernel gives to outgoing connections.
    blocks = list(range(12_000, 32_000, _IN_A_ROW))[int(number.removeprefix("gw")) :: int(count)]
    begin = random.randrange(len(blocks))
    return itertools.cycle(blocks[begin:] + blocks[:begin])


_IN_A_ROW = 10
_blocks = _own_blocks()


def read_journal(path: Path, *events: str) -> list[dict[str, Any]]:
    """The journal's complete entries in order of time; only those of the named events when any are named."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    wanted = [entry for entry in entries if not events or entry["ev"] in events]
    return sorted(wanted, key=lambda entry: float(entry["t"]))


def leftovers(stub_id: str) -> list[int]:
    """Pids of live processes (zombies have no environment) that carry STUB_ID=<stub_id>."""
    mark, found = f"STUB_ID={stub_id}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark in environ.split(b"\0"):
                found.append(int(entry.name))
    return found


def zombies_of(parent: int) -> list[int]:
    """Pids of the dead, unreaped children of `parent`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, ppid = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state == "Z" and int(ppid) == parent:
            found.append(int(stat.parent.name))
    return found


def eventually(condition: Callable[[], object], what: str, within_s: float = 20.0) -> None:
    """Poll from synchronous code until `condition()` is true; AssertionError naming `what` otherwise."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.02)


async def until(condition: Callable[[], object], what: str, within_s: float = 30.0) -> None:
    """The same from a coroutine, leaving the event loop free."""
    try:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - it watches other processes, which set no event
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {within_s} s: {what}") from None
