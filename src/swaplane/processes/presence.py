"""Whether servers of an earlier gateway are still there: a lock that lives as long as any of their guards.

A gateway that is killed leaves its servers to their guards, which end them within a few seconds. One that is started
at once must not load a model meanwhile: two would be on the GPU, or find their port taken. So every guard holds the
gateway's lock on a file in its folder, as a descriptor it was started with, and the next gateway waits for it. Called
by `gateway.server` at its start; which processes are ended, and how, is decided by `guard`.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

import structlog

PATIENCE_S = 30.0  #: how long servers of an earlier gateway are waited for; the kernel may not let go of one
_LOOK_EVERY_S = 0.05

_log = structlog.get_logger("swaplane.processes")


async def claim(path: Path) -> int:
    """A descriptor to start guards with, once none of an earlier gateway's is left. Raises OSError.

    It is the process's for good. After `PATIENCE_S` the servers that are still there are logged and not waited for.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + PATIENCE_S
    told = False
    while not _locked(descriptor, fcntl.LOCK_EX):
        if not told:
            told = True
            _log.info("waiting for the servers of an earlier gateway to end")
        if loop.time() >= give_up_at:
            _log.error("servers of an earlier gateway have not ended", waited_s=PATIENCE_S)
            break
        await asyncio.sleep(_LOOK_EVERY_S)
    _locked(descriptor, fcntl.LOCK_SH)
    return descriptor


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
