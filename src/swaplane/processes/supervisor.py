"""All model processes of a gateway, by model.

Decides only that a model's next start waits for the end of its last one. Which models run is the dispatcher's
decision: `runtime` carries its StartModel and StopModel out by calling this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from swaplane.core.commands import StopCause
from swaplane.core.events import Event
from swaplane.processes.guarded import OutputLog
from swaplane.processes.process import LaunchSpec, ModelProcess

CLOSE_MARGIN_S = 10.0  # after the last KILL, for processes that the kernel cannot end yet

_log = structlog.get_logger("swaplane.processes")


class ModelLogs(Protocol):
    """Where the models' output goes: `observe.logs.LogHub`."""

    def model(self, model_id: str) -> OutputLog:
        """The log of one model."""


class Supervisor:
    """Starts and stops models. Every `start` is answered by events through `post`; see `ModelProcess`."""

    def __init__(self, post: Callable[[Event], None], logs: ModelLogs) -> None:
        self._post = post
        self._logs = logs
        self._latest: dict[str, ModelProcess] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<Supervisor {self.states() or 'no model'}>"

    def start(self, spec: LaunchSpec) -> None:
        """Start a model; when its last process is still being stopped, after that.

        Raises:
            RuntimeError: the model runs and was not told to stop, or `close` was called.

        """
        if self._closed:
            raise RuntimeError(f"cannot start {spec.model}: the supervisor is closed")
        last = self._latest.get(spec.model)
        if last is not None and last.state not in ("stopping", "stopped"):
            raise RuntimeError(f"cannot start {spec.model}: it is {last.state}")
        process = ModelProcess(
            spec,
            post=self._post,
            log=self._logs.model(spec.model),
            others=self._guards,
            after=last if last is not None and last.state == "stopping" else None,
        )
        self._latest[spec.model] = process
        process.start()

    def stop(self, model: str, cause: StopCause, *, grace_s: float | None = None) -> None:
        """Stop a model, whatever its state; nothing happens when it does not run."""
        if model in self._latest:
            self._latest[model].stop(cause, grace_s=grace_s)

    async def assured(self, model: str) -> None:
        """Return when it is known whether a model whose request broke still lives; see `ModelProcess.assured`."""
        if model in self._latest:
            await self._latest[model].assured()

    def states(self) -> dict[str, str]:
        """Of each model that is not stopped: "starting", "ready" or "stopping"."""
        return {model: process.state for model, process in self._latest.items() if process.state != "stopped"}

    def spec(self, model: str) -> LaunchSpec | None:
        """How the running process of a model was started; None when it does not run."""
        process = self._latest.get(model)
        return process.spec if process is not None and process.state != "stopped" else None

    async def close(self, grace_s: float) -> None:
        """Stop everything, with at most `grace_s` seconds before KILL, and return when nothing is left.

        A process that the kernel cannot end (a driver that hangs) is given up after a while and logged; its guard
        stays with it.
        """
        self._closed = True
        running = [process for process in self._latest.values() if process.state != "stopped"]
        for process in running:
            process.stop(StopCause.SHUTDOWN, grace_s=min(grace_s, process.spec.unload_timeout_s))
        waits = [asyncio.ensure_future(process.wait_stopped()) for process in running]
        if waits:
            await asyncio.wait(waits, timeout=grace_s + CLOSE_MARGIN_S)
        for process, wait in zip(running, waits, strict=True):
            if not wait.done():
                _log.error("model could not be ended", model=process.spec.model, pid=process.pid)
                process.abandon()
                await wait

    def _guards(self) -> dict[int, str]:
        found = {process.guard_pid: model for model, process in self._latest.items()}
        return {pid: model for pid, model in found.items() if pid is not None}
