"""One gateway from start to end: configuration, runtime, uvicorn, signals, reload and shutdown.

SIGTERM and SIGINT end it in order: waiting jobs are told, running ones may finish, models stop; the signal a
second time cuts the running ones. SIGHUP reads the configuration again; a broken file keeps the old one.
Called by the command line; decides nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
from collections.abc import Iterator

import structlog
import uvicorn
import uvloop

from swaplane.config.load import ConfigError, load
from swaplane.config.settings import Settings
from swaplane.gateway.assembly import Assembly
from swaplane.gateway.front import FrontProtocol
from swaplane.gateway.state_folder import opened_store
from swaplane.observe.log_output import configure_logging
from swaplane.observe.logs import LogHub
from swaplane.observe.metrics import Metrics
from swaplane.processes.presence import claim
from swaplane.runtime import Runtime

log = structlog.get_logger("swaplane.gateway")

DRAIN_S = 30.0  #: how long running jobs may finish after SIGTERM, as in llama-swap
STOP_S = 10.0  #: how long models have to stop after that, before they are killed
#: How long a client's idle connection is kept. Common clients close theirs after 5 s and more: a request that one sends
#: at the moment at which we close is lost.
KEEP_ALIVE_S = 75
BACKLOG = 4096  #: connections the kernel holds while the loop is busy


class _Server(uvicorn.Server):
    """uvicorn's server with our end: jobs are told before connections are waited for."""

    def __init__(self, config: uvicorn.Config, runtime: Runtime, parts: Assembly) -> None:
        super().__init__(config)
        self._runtime = runtime
        self._parts = parts

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are set up in `_run`; uvicorn's own handling would end the process by the signal."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, end the jobs and the models, then what is left of the connections."""
        for server in self.servers:
            server.close()
        await self._runtime.shut_down(drain_s=DRAIN_S, stop_s=STOP_S)
        await self._parts.close()
        await super().shutdown(sockets)


class ListenError(Exception):
    """The address cannot be listened on."""


def serve(settings: Settings, host: str, port: int) -> int:
    """Run a gateway until it is told to stop; the exit code. SIGHUP reads `settings.path` again.

    Raises ListenError for an address that cannot be used, and StoreError when the folder for stored jobs cannot be
    used or another gateway uses it.
    """
    listener = _listen(host, port)
    logs = LogHub()
    configure_logging(logs, level=settings.log_level)
    _raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings, listener, logs))
    return 0


async def _run(settings: Settings, listener: socket.socket, logs: LogHub) -> None:
    async with opened_store(settings, os.environ) as store:
        presence = await claim(store.folder / "servers")
        runtime = Runtime(settings, logs=logs, metrics=Metrics(), presence=presence)
        parts = Assembly(runtime, store)
        await parts.restore()
        await _serve(runtime, parts, listener)
    log.info("shutdown complete")


async def _serve(runtime: Runtime, parts: Assembly, listener: socket.socket) -> None:
    settings = runtime.settings
    config = uvicorn.Config(
        parts.gateway,
        http=FrontProtocol,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=2,
    )
    server = _Server(config, runtime, parts)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, server, runtime, number)
    hang_up = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hang_up.set)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)

    for warning in settings.warnings:
        log.warning(warning)
    address = "{}:{}".format(*listener.getsockname()[:2])
    # What exists now exists to the end: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    counts = {"models": len(settings.models), "keys": len(settings.keys)}
    log.info("listening", url=f"http://{address}", **counts, pid=os.getpid())
    reloading = loop.create_task(_reload_on(hang_up, runtime))
    await server.serve(sockets=[listener])
    reloading.cancel()


def _stop(server: uvicorn.Server, runtime: Runtime, number: int) -> None:
    log.info("stopping", signal=signal.Signals(number).name)
    if server.should_exit:  # told twice: running jobs are not waited for any longer
        runtime.stop_draining()
    server.should_exit = True


async def _reload_on(hang_up: asyncio.Event, runtime: Runtime) -> None:
    """Read the configuration again at each signal; one that comes meanwhile counts for once more."""
    jobs_path = runtime.settings.jobs.path  # the folder is opened by now, and stays
    while True:
        await hang_up.wait()
        hang_up.clear()
        await _reload(runtime, jobs_path)


async def _reload(runtime: Runtime, jobs_path: str | None) -> None:
    path = runtime.settings.path
    try:
        # A long file takes seconds to read, in which requests go on.
        settings = await asyncio.to_thread(load, path, os.environ, previous=runtime.settings)
        if not settings.models:  # many editors empty a file before they write it
            raise ConfigError([f"{path}: it has no models; to run without any, start anew"])
        if runtime.settings.keys and not settings.keys:  # half a file would let everybody in
            raise ConfigError([f"{path}: it has no keys any more; to let everybody in, start anew"])
    except ConfigError as error:
        for problem in error.problems:
            log.error("the configuration stays as it was", problem=problem)
        return
    for warning in settings.warnings:
        log.warning(warning)
    if settings.jobs.path != jobs_path:
        log.warning("`jobs.path` has changed: it takes effect at the next start", in_use=jobs_path)
    runtime.reload(settings)
    log.info("configuration reloaded", models=len(settings.models), keys=len(settings.keys))


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ListenError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listener


def _raise_file_limit() -> None:
    """Thousands of waiting connections need as many descriptors: take what the hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
