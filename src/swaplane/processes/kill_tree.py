"""Finding the processes of a tree and ending them, with the standard library alone.

Decides which processes belong to a tree; never whether or when it should end. The guard calls it for its
descendants; the gateway calls it when the guard itself was killed and its orphans have to be found by their
session and by a mark in their environment. Without /proc (other than on Linux) it finds nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import NamedTuple


class Proc(NamedTuple):
    """One living process, as /proc shows it."""

    pid: int
    parent: int
    group: int
    session: int
    started: int  #: clock ticks since the machine started; with the pid it names one process for ever


def living() -> list[Proc]:
    """All processes of the machine that are not zombies."""
    try:
        entries = os.listdir("/proc")
    except FileNotFoundError:
        return []
    return [proc for entry in entries if entry.isdigit() and (proc := look(int(entry))) is not None]


def descendants(root: int) -> list[Proc]:
    """The living processes below `root`, itself excluded."""
    children: dict[int, list[Proc]] = {}
    for proc in living():
        children.setdefault(proc.parent, []).append(proc)
    found: list[Proc] = []
    pending = [root]
    while pending:
        below = children.pop(pending.pop(), [])
        found += below
        pending += [proc.pid for proc in below]
    return found


def send(proc: Proc, number: int) -> None:
    """Signal exactly this process: nothing happens when it is gone and its pid is another's."""
    try:
        handle = os.pidfd_open(proc.pid)
    except OSError:
        return
    try:
        now = look(proc.pid)
        if now is not None and now.started == proc.started:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def end_orphans(*, session: int, mark: str) -> None:
    """Kill all processes of `session` and all with `mark` ("NAME=value") in their environment; return when gone.

    It takes as long as the kernel needs, so it belongs in a thread. Processes that became children of the
    caller (it is process 1 of a container) are reaped.
    """
    pause_s = 0.005
    killed: set[int] = set()
    while orphans := [proc for proc in living() if proc.session == session or _carries(proc.pid, mark.encode())]:
        for proc in orphans:
            send(proc, signal.SIGKILL)
            killed.add(proc.pid)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.5)
    for pid in killed:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def look(pid: int) -> Proc | None:
    """The process with this pid, or None when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, second, is in parentheses and may hold any character.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[0] in b"ZXx":
        return None
    return Proc(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def _carries(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False
