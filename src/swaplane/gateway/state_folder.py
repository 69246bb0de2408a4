"""Where the gateway keeps what outlives it.

Decides the folder: the one that the file names, else one of the user's own for this file, else, where there is no
such place, a temporary one that is gone with the gateway. Called by `server` at its start.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import structlog

from swaplane.config.settings import Settings
from swaplane.store.errors import StoreError
from swaplane.store.store import Store

log = structlog.get_logger("swaplane.gateway")


def default_folder(config: str, environ: Mapping[str, str]) -> Path:
    """The folder for a configuration file that names none: below $XDG_STATE_HOME, else ~/.local/state.

    Raises StoreError when the user has no home.
    """
    base = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        home = environ.get("HOME", "")
        if not os.path.isabs(home):
            raise StoreError("neither XDG_STATE_HOME nor HOME names a folder to keep jobs in")
        base = os.path.join(home, ".local", "state")
    real = os.path.realpath(config)
    mark = hashlib.sha256(real.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return Path(base) / "swaplane" / f"{Path(real).stem}-{mark}"


@contextlib.asynccontextmanager
async def opened_store(settings: Settings, environ: Mapping[str, str]) -> AsyncIterator[Store]:
    """The store of a gateway with these settings. Raises StoreError.

    A folder that another gateway uses is an error: the two would run each other's jobs.
    """
    async with contextlib.AsyncExitStack() as stack:
        store = await _open(settings, environ, stack)
        stack.push_async_callback(store.close)
        yield store


async def _open(settings: Settings, environ: Mapping[str, str], stack: contextlib.AsyncExitStack) -> Store:
    if settings.jobs.path is not None:
        return await Store.open(Path(settings.jobs.path))
    try:
        folder = default_folder(settings.path, environ)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (StoreError, OSError) as error:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swaplane-")))
        log.warning(
            "no folder to keep jobs in: those accepted with `Prefer: respond-async` do not survive the gateway;"
            " `jobs: {path: ...}` names a folder",
            error=str(error),
        )
    return await Store.open(folder)
