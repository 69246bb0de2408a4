"""One start of one model's server: from the command to the moment when nothing of it is left.

Decides when the server is ready, when a start has failed and how it is stopped. It never decides that a model should
start or stop: the supervisor passes those orders on. It is the only owner of the process and of its state, which
changes here alone:

    starting -> ready -> stopping -> stopped        and       starting -> stopping -> stopped

Whatever happens, a start ends in exactly one of: ModelStartFailed; ModelReady and later ModelExited or ModelStopped;
ModelStopped alone, when it was told to stop before it was ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NoReturn

import structlog

from swaplane.core.commands import StopCause
from swaplane.core.events import Event, ModelExited, ModelReady, ModelStartFailed, ModelStopped, StartFault
from swaplane.processes import health, kill_tree
from swaplane.processes.guarded import CommandError, Guarded, OutputLog

State = Literal["starting", "ready", "stopping", "stopped"]

FAILED_START_GRACE_S = 5.0  # for a server that never got ready; a shorter unload timeout goes first
DOUBT_S = 2.0  # longest wait for a sign of life after a request broke
TAIL_LINES = 15
TAIL_LINE_CHARS = 400

_log = structlog.get_logger("swaplane.processes")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """How to start, reach and stop one model's server; all macros but ${PID} are already replaced."""

    model: str  #: model id
    argv: tuple[str, ...]  #: the command and its arguments
    env: tuple[str, ...] = field(default=(), repr=False)  #: "NAME=value", later ones win, on top of the gateway's own
    proxy: str  #: URL of the server
    check_endpoint: str = "/health"  #: path that answers 200 when it is ready; "none": ready once it runs
    health_timeout_s: float = 120.0  #: the most it may take to get ready
    stop_argv: tuple[str, ...] | None = None  #: run in place of TERM; ${PID} is replaced by the server's pid
    unload_timeout_s: float = 10.0  #: from the order to stop to KILL
    presence: int | None = None  #: a descriptor for its guard, see `presence`
    secrets: frozenset[str] = frozenset()  #: names in the gateway's own environment that nothing of it may see


class _StartError(Exception):
    """The start has failed; `private` follows the sentence where operators read it."""

    def __init__(self, fault: StartFault, sentence: str, private: str = "", *, with_output: bool = True) -> None:
        super().__init__(sentence + private)
        self.fault = fault
        self.sentence = sentence
        self.private = private
        self.with_output = with_output


class ModelProcess:
    """One model's server, from its one `start()` to its end.

    `post` is called on the event loop. `others` gives the guards of the models that run besides (pid to model id).
    With `after`, the start waits for that process to be gone.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        *,
        post: Callable[[Event], None],
        log: OutputLog,
        others: Callable[[], Mapping[int, str]] = dict,
        after: ModelProcess | None = None,
    ) -> None:
        self.spec = spec
        self._post = post
        self._log = log
        self._log_start = log.written_bytes
        self._others = others
        self._after = after
        self._state: State = "stopped"
        self._child: Guarded | None = None
        self._cause: StopCause | None = None
        self._kill_at = math.inf  # loop time
        self._kill_timer: asyncio.TimerHandle | None = None
        self._stopper: Guarded | None = None  # the stop command
        self._probing: asyncio.Task[None] | None = None
        self._over = asyncio.Event()  # the server ended or has to
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ModelProcess {self.spec.model} {self.state}, pid {self.pid}>"

    @property
    def state(self) -> State:
        """What it is doing; "stopping" also while the one it comes after is not gone."""
        return "stopping" if self._after is not None and self._state == "starting" else self._state

    @property
    def pid(self) -> int | None:
        """Of the command itself; None when it does not run."""
        return self._child.pid if self._child is not None and self._state != "stopped" else None

    @property
    def guard_pid(self) -> int | None:
        """Of the guard above it: the root of its process tree; None when it does not run."""
        return self._child.guard_pid if self._child is not None and self._state != "stopped" else None

    def start(self) -> None:
        """Begin the one start of this object; everything else is told by events."""
        if self._task is not None:
            raise RuntimeError(f"{self!r} was started before")
        self._state = "starting"
        self._task = asyncio.get_running_loop().create_task(self._live(), name=f"model {self.spec.model}")

    def stop(self, cause: StopCause, *, grace_s: float | None = None) -> None:
        """End it, whatever its state; KILL after `grace_s` seconds (default: its unload timeout).

        The first call's cause counts, and the earliest KILL.
        """
        if self._state == "stopped":
            return
        if self._after is not None:
            self._after.stop(cause, grace_s=grace_s)
        if self._cause is None:
            self._cause = cause
        self._kill_by(self.spec.unload_timeout_s if grace_s is None else grace_s)
        self._wake()

    async def wait_stopped(self) -> None:
        """Return when nothing of it is left and its last event is posted."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def assured(self) -> None:
        """Return when a doubt is settled: the server answers its health check, or nothing of it is left.

        A server that does neither within `DOUBT_S` seconds keeps its state; the next request shows.
        """
        stopped = asyncio.ensure_future(self.wait_stopped())
        healthy = asyncio.ensure_future(self._healthy_again())
        try:
            await asyncio.wait({stopped, healthy}, timeout=DOUBT_S, return_when=asyncio.FIRST_COMPLETED)
            if self._over.is_set():
                await stopped
        finally:
            stopped.cancel()
            healthy.cancel()

    async def _healthy_again(self) -> None:
        if self.spec.check_endpoint.strip() == "none":
            await asyncio.sleep(DOUBT_S)
        else:
            with contextlib.suppress(health.HealthTimeoutError):
                await health.wait_healthy(health.Endpoint.of(self.spec.proxy, self.spec.check_endpoint), DOUBT_S)

    def abandon(self) -> None:
        """Give up waiting for its end, without a last event. Its guard still ends it."""
        if self._task is not None:
            self._task.cancel()

    async def _live(self) -> None:
        failure: _StartError | None = None
        try:
            if self._after is not None:
                await self._after.wait_stopped()
                self._after = None
            try:
                await self._get_ready()
            except _StartError as error:
                failure = error
            except Exception:
                _log.exception("start failed for a reason of the gateway's own", model=self.spec.model)
                failure = _StartError(StartFault.COMMAND, "the gateway failed to start it; see its own log")
            if failure is None:
                await self._over.wait()
            try:
                await self._end(failure)
            except Exception:
                _log.exception("stop failed for a reason of the gateway's own", model=self.spec.model)
        finally:
            if self._kill_timer is not None:
                self._kill_timer.cancel()
            for guarded in (self._child, self._stopper):
                if guarded is not None:
                    guarded.abandon()  # does nothing to those that are gone
            self._state = "stopped"
        self._post(self._last_event(failure))

    async def _get_ready(self) -> None:
        """Start the command and wait until its server is healthy; return early when told to stop."""
        began = asyncio.get_running_loop().time()
        endpoint = None
        if self.spec.check_endpoint.strip() != "none":
            endpoint = health.Endpoint.of(self.spec.proxy, self.spec.check_endpoint)
        if endpoint is not None and not self._over.is_set() and await health.somebody_listens(endpoint):
            self._refuse(endpoint, await asyncio.to_thread(health.listeners, endpoint))
        if self._over.is_set():
            return
        self._log_start = self._log.written_bytes
        try:
            self._child = child = await Guarded.spawn(
                self.spec.argv,
                env=self._environment(),
                guard_env=self._inherited(),
                log=self._log,
                name=self.spec.model,
                presence=self.spec.presence,
                on_end=self._wake,
            )
        except CommandError as error:
            raise _StartError(StartFault.COMMAND, error.message, error.private, with_output=False) from error
        _log.info("starting model", model=self.spec.model, pid=child.pid, command=self.spec.argv[0])
        if endpoint is not None and not self._over.is_set():
            await self._probe(endpoint)
        if endpoint is not None and not self._over.is_set():
            await self._refuse_stranger(endpoint, child)
        if self._over.is_set():
            if self._cause is None:
                sentence = f"upstream command exited prematurely {child.describe_end()}"
                if child.exit_code == 0:
                    sentence += "; it must stay in the foreground"
                raise _StartError(StartFault.EXITED, sentence)
            return
        self._state = "ready"
        load_s = asyncio.get_running_loop().time() - began
        _log.info("model ready", model=self.spec.model, pid=child.pid, load_s=round(load_s, 3))
        self._post(ModelReady(model=self.spec.model, load_s=load_s))

    async def _probe(self, endpoint: health.Endpoint) -> None:
        """Return when the server is healthy, or when `_wake` says that this need not be waited for."""
        self._probing = asyncio.ensure_future(health.wait_healthy(endpoint, self.spec.health_timeout_s))
        try:
            await asyncio.wait({self._probing})
            if not self._probing.cancelled():
                self._probing.result()
        except health.HealthTimeoutError as error:
            raise _StartError(StartFault.TIMEOUT, error.message, error.private) from error
        finally:
            self._probing.cancel()

    async def _refuse_stranger(self, endpoint: health.Endpoint, child: Guarded) -> None:
        """Fail when it is known that another process than ours answers.

        A listener outside our tree may be ours all the same, such as the proxy of a container engine, unless it
        was there before or belongs to another model.
        """
        found = await asyncio.to_thread(health.listeners, endpoint)
        if any(child.guard_pid in listener.ancestors for listener in found):
            return
        guard = kill_tree.look(child.guard_pid)
        others = self._others().keys()
        strangers = [
            listener
            for listener in found
            if (guard is not None and listener.started < guard.started) or listener.ancestors & others
        ]
        if strangers:
            self._refuse(endpoint, strangers)

    def _refuse(self, endpoint: health.Endpoint, owners: list[health.Listener]) -> NoReturn:
        """Fail because of those who hold the port."""
        models = [name for pid, name in self._others().items() if any(pid in owner.ancestors for owner in owners)]
        by = " and ".join(map(str, owners)) or "a process that could not be found"
        private = f": port {endpoint.port} of {self.spec.proxy} is taken by {by}"
        if models:
            private += f" of model {models[0]}"
        private += "; end it or give this model another port"
        raise _StartError(StartFault.PORT_TAKEN, "its address is in use", private, with_output=False)

    async def _end(self, failure: _StartError | None) -> None:
        """Leave nothing of it."""
        child = self._child
        if child is None:
            return
        self._state = "stopping"
        if self._cause is None:  # else `stop` has said when
            self._kill_by(min(self.spec.unload_timeout_s, FAILED_START_GRACE_S))
        self._arm()
        if child.ended:
            await child.wait_gone()
            return
        reason = self._cause.value if self._cause is not None else f"start failed: {failure}"
        _log.info("stopping model", model=self.spec.model, pid=child.pid, reason=reason)
        if self.spec.stop_argv is None:
            child.term()
            await child.wait_gone()
        else:
            await asyncio.gather(child.wait_gone(), self._run_stop_command(self.spec.stop_argv, child))

    async def _run_stop_command(self, argv: tuple[str, ...], child: Guarded) -> None:
        """Run it to its end. It is killed together with the server when the time is up."""
        words = [word.replace("${PID}", str(child.pid)) for word in argv]
        name = f"{self.spec.model} (stop command)"
        try:
            self._stopper = stopper = await Guarded.spawn(
                words,
                env=self._environment(),
                guard_env=self._inherited(),
                log=self._log,
                name=name,
                presence=self.spec.presence,
            )
        except CommandError as error:
            _log.warning("stop command failed", model=self.spec.model, error=str(error))
            return
        if asyncio.get_running_loop().time() >= self._kill_at:
            stopper.kill()
        await stopper.wait_gone()
        if stopper.exit_code != 0:
            _log.warning("stop command failed", model=self.spec.model, ended=stopper.describe_end())

    def _kill_by(self, delay_s: float) -> None:
        self._kill_at = min(self._kill_at, asyncio.get_running_loop().time() + delay_s)
        if self._kill_timer is not None:
            self._arm()

    def _arm(self) -> None:
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._kill_timer = asyncio.get_running_loop().call_at(self._kill_at, self._kill)

    def _kill(self) -> None:
        for guarded in (self._child, self._stopper):
            if guarded is not None:
                guarded.kill()

    def _wake(self) -> None:
        """The server ended, or has to: whatever is waited for, it is that no more."""
        if self._state != "stopped":
            self._state = "stopping"
        self._over.set()
        if self._probing is not None:
            self._probing.cancel()

    def _inherited(self) -> dict[str, str]:
        """The gateway's own environment without its secrets."""
        return {name: value for name, value in os.environ.items() if name not in self.spec.secrets}

    def _environment(self) -> dict[str, str]:
        """The server's: what it inherits, and what the configuration adds."""
        return {**self._inherited(), **dict(entry.split("=", 1) for entry in self.spec.env if "=" in entry)}

    def _last_event(self, failure: _StartError | None) -> Event:
        """What became of the start, logged."""
        model, child = self.spec.model, self._child
        ended = "never ran" if child is None else child.describe_end()
        if self._cause is not None:
            _log.info("model stopped", model=model, reason=self._cause.value, ended=ended)
            return ModelStopped(model=model)
        if failure is not None:
            _log.warning("model start failed", model=model, fault=failure.fault.value, error=str(failure))
            private = failure.private + (self._output() if failure.with_output else "")
            return ModelStartFailed(model=model, fault=failure.fault, message=failure.sentence, private=private)
        _log.warning("model exited", model=model, ended=ended)
        return ModelExited(model=model, message=f"upstream command ended {ended}{self._output()}")

    def _output(self) -> str:
        """The last lines that the server wrote, each after a line break."""
        lines = self._log.tail_lines(TAIL_LINES, since=self._log_start)
        return "".join(f"\n{line[-TAIL_LINE_CHARS:]}" for line in lines)
