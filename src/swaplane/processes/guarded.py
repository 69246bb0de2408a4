"""The gateway's end of a guard: a command that runs under one, its output, its exit code, and orders to end it.

Decides nothing about health or time; `process` does. All output is always drained, and nothing here waits for a
pipe to close: a process outside the tree may hold it for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import swaplane
from swaplane.processes import kill_tree

#: Appended to the path, not put first: the standard library must win over what lies beside the package.
_BOOT = "import sys; sys.path.append(sys.argv.pop(1)); from swaplane.processes.guard import main; main()"
_ROOT = str(Path(swaplane.__file__).parents[1])
_READ_BYTES = 64 * 1024
_MARK = "SWAPLANE_PROCESS"
_STUCK_GUARD_S = 5.0


class OutputLog(Protocol):
    """Where a command's output goes; none of its methods may block."""

    @property
    def written_bytes(self) -> int:
        """A position in what was ever written."""

    def write(self, data: bytes) -> None:
        """Take some output as it comes."""

    def end_line(self) -> None:
        """End an unfinished last line."""

    def tail_lines(self, count: int, *, since: int = 0) -> list[str]:
        """The last lines written after a position."""


class CommandError(Exception):
    """The command could not be run at all."""

    def __init__(self, command: str, reason: str) -> None:
        self.message = "failed to start command"  #: for everybody
        self.private = f" '{command}': {reason}"  #: what follows it
        super().__init__(self.message + self.private)


class Guarded:
    """A running command. Made by `spawn`; done when `wait_gone` returns."""

    def __init__(
        self,
        guard: subprocess.Popen[bytes],
        link: socket.socket,
        output: int,
        *,
        log: OutputLog,
        mark: str,
        on_end: Callable[[], None],
    ) -> None:
        self.pid = 0  #: of the command
        self.guard_pid = guard.pid
        self.ended = False  #: the command itself; what it started may live on for a moment
        self.exit_code: int | None = None  #: negative: the signal that ended it; None: unknown, the guard was killed
        self._guard = guard
        self._link = link
        self._output = output
        self._log = log
        self._mark = mark
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._heard = bytearray()
        self._launched: asyncio.Future[str] = self._loop.create_future()  # "", or why it could not run
        self._unlinked = asyncio.Event()
        self._last_resort: asyncio.TimerHandle | None = None
        self._loop.add_reader(output, self._drain)
        self._loop.add_reader(link, self._hear)
        self._watching = self._loop.create_task(self._watch(), name=f"guard {guard.pid}")

    def __repr__(self) -> str:
        return f"<Guarded pid {self.pid} under guard {self.guard_pid}, {self.describe_end()}>"

    @classmethod
    async def spawn(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        guard_env: Mapping[str, str],
        log: OutputLog,
        name: str,
        presence: int | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> Guarded:
        """Run `argv` with exactly `env`, its output going to `log`; `on_end` is called once, when it has ended.

        `guard_env` is the environment of the guard itself.
        `presence` is a descriptor that stays open as long as anything of the command lives; see that module.

        Raises:
            CommandError: it could not be run; nothing is left of it.

        """
        mark = uuid.uuid4().hex
        try:
            guarded = cls(*_start_guard(name, guard_env, presence), log=log, mark=f"{_MARK}={mark}", on_end=on_end)
        except OSError as error:
            raise CommandError(argv[0], _reason(error.errno)) from error
        launch = json.dumps({"argv": list(argv), "env": {**env, _MARK: mark}}).encode()
        try:
            with contextlib.suppress(ConnectionError):
                await guarded._loop.sock_sendall(guarded._link, len(launch).to_bytes(4) + launch)
            failure = await guarded._launched
        except BaseException:
            guarded.abandon()
            raise
        if failure:
            await guarded.wait_gone()
            raise CommandError(argv[0], failure)
        return guarded

    def term(self) -> None:
        """Ask the command and its process group to end."""
        self._order(b"t")

    def kill(self) -> None:
        """End the whole tree now. A guard that does not see to it is ended itself, and its work taken over."""
        self._order(b"k")
        if self._last_resort is None and not self._watching.done():
            self._last_resort = self._loop.call_later(_STUCK_GUARD_S, self._guard.kill)

    async def wait_gone(self) -> None:
        """Return when no process of the tree is alive and all its output is in the log."""
        await asyncio.shield(self._watching)

    def abandon(self) -> None:
        """Let go without waiting: the guard ends the tree by itself, as if the gateway had died."""
        self._watching.cancel()

    def describe_end(self) -> str:
        """How the command ended, to continue a sentence with: "with exit code 1", "by signal SIGKILL"."""
        if not self.ended:
            return "still running"
        if self.exit_code is None:
            return "with an unknown exit code, as its guard process was killed"
        if self.exit_code < 0:
            return f"by signal {_signal_name(-self.exit_code)}"
        return f"with exit code {self.exit_code}"

    def _order(self, order: bytes) -> None:
        with contextlib.suppress(OSError):  # the guard is gone, or so far behind that it has this order already
            self._link.send(order)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._output, _READ_BYTES)
            if data:
                self._log.write(data)
            else:
                self._loop.remove_reader(self._output)

    def _hear(self) -> None:
        try:
            data = self._link.recv(1024)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._loop.remove_reader(self._link)
            self._unlinked.set()
        self._heard += data
        *lines, rest = self._heard.split(b"\n")
        self._heard = bytearray(rest)
        for line in lines:
            word, number = line.decode().split()
            if word == "pid":
                self.pid = int(number)
                self._launched.set_result("")
            elif word == "error":
                self._launched.set_result(_reason(int(number)))
            else:
                self._command_ended(int(number))

    def _command_ended(self, exit_code: int | None) -> None:
        if not self.ended:
            self.ended = True
            self.exit_code = exit_code
            self._on_end()

    async def _watch(self) -> None:
        try:
            await self._unlinked.wait()
            await asyncio.to_thread(self._guard.wait)  # only its last instructions are left
            if self._guard.returncode != 0:
                await asyncio.to_thread(kill_tree.end_orphans, session=self.pid or -1, mark=self._mark)
            if not self._launched.done():
                self._launched.set_result("its guard process ended before it")
            self._command_ended(None)
            self._drain_rest()
        finally:
            if self._last_resort is not None:
                self._last_resort.cancel()
            self._loop.remove_reader(self._output)
            self._loop.remove_reader(self._link)
            self._link.close()
            os.close(self._output)

    def _drain_rest(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(64):  # more than a pipe holds: whoever still writes is not of this tree
                data = os.read(self._output, _READ_BYTES)
                if not data:
                    break
                self._log.write(data)
        self._log.end_line()


def _start_guard(
    name: str, env: Mapping[str, str], presence: int | None
) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """A guard that waits for what to run, the link to it and the reading end of its output."""
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
        output, write_end = os.pipe()
        undo.callback(os.close, output)
        theirs.callback(os.close, write_end)
        ours, far_end = socket.socketpair()
        undo.callback(ours.close)
        theirs.callback(far_end.close)
        os.set_blocking(output, False)
        ours.setblocking(False)
        theirs_alone = [far_end.fileno(), *([] if presence is None else [presence])]
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOT, _ROOT, ",".join(map(str, theirs_alone)), name],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            pass_fds=theirs_alone,
            start_new_session=True,
        )
        undo.pop_all()
    return guard, ours, output


def _reason(errno: int | None) -> str:
    text = os.strerror(errno or 0)
    return text[0].lower() + text[1:]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
