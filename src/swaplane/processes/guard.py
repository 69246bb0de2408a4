"""The small process above each model's command: it outlives the gateway by a moment, to leave nothing behind.

Decides how a tree ends once it has to; never when a healthy one should. `guarded` starts one guard per command and
holds the other end of its link, a socket. It uses the standard library alone and stays small: one guard lives
beside every running model.

1. The gateway sends what to run: a length (4 bytes) and JSON {"argv", "env"}.
2. The command starts in a session of its own. The guard answers `pid N`, or `error ERRNO` and ends.
3. It reaps the command and every orphan it adopts, and answers `exit CODE` (negative: a signal) for the command.
4. Orders: `t` sends TERM to the command's process group, `k` kills the whole tree. The link's end means that the
   gateway died: TERM, `GRACE_S`, then kill.
5. When the command has ended, what it left behind is asked to end, and killed after `GRACE_S`, unless a `t` came
   before: then the gateway's `k` decides, as a server behind a wrapper may take its whole stop time.
6. The guard ends when no descendant is alive.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import sys
import time

from swaplane.processes import kill_tree

GRACE_S = 2.0

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

#: A terminal's and a service manager's signals reach the gateway as well, which stops its models in order.
_IGNORED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGPIPE,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


class Guard:
    """One command and all that comes of it."""

    def __init__(self, link: int, *held: int) -> None:
        self._link = link
        self._held = held  # descriptors that are to be open as long as this process lives
        self._linked = True
        self._command = 0
        self._ended = False  # the command itself
        self._asked = False  # TERM was sent to its group
        self._kill_at: float | None = None

    def run(self) -> None:
        """Run the command to the end of its whole tree."""
        for descriptor in (self._link, *self._held):
            os.set_inheritable(descriptor, False)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        size = int.from_bytes(self._read_exactly(4))
        launch = json.loads(self._read_exactly(size))
        if not self._launch(launch["argv"], launch["env"]):
            return
        while self._reap():
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                for proc in kill_tree.descendants(os.getpid()):
                    kill_tree.send(proc, signal.SIGKILL)
                self._kill_at = time.monotonic() + 0.02  # for those born meanwhile
            ready, _, _ = select.select([woken, self._link] if self._linked else [woken], [], [], self._left_s())
            if woken in ready:
                os.read(woken, 4096)
            if self._link in ready:
                self._obey()

    def _launch(self, argv: list[str], env: dict[str, str]) -> bool:
        """Start the command; report its pid, or why it could not be run."""
        failed, fail = os.pipe()  # closed by a successful exec
        me = os.getpid()
        self._command = os.fork()
        if self._command == 0:
            try:
                os.setsid()
                die_with_parent(signal.SIGKILL)
                if os.getppid() != me:
                    os._exit(127)
                for ignored in (*_IGNORED, signal.SIGCHLD, signal.SIGXFSZ):
                    signal.signal(ignored, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, [])
                os.execvpe(argv[0], argv, env)  # noqa: S606 - the command is a list of words, by design
            except OSError as error:
                # For a directory the system says "permission denied".
                number = errno.EISDIR if os.path.isdir(argv[0]) else error.errno
                os.write(fail, str(number).encode())
            except ValueError:  # a NUL byte in a word
                os.write(fail, str(errno.EINVAL).encode())
            finally:
                os._exit(127)
        os.close(fail)
        reason = os.read(failed, 16).decode()
        os.close(failed)
        if reason:
            os.waitpid(self._command, 0)
            self._tell(f"error {reason}")
            return False
        self._tell(f"pid {self._command}")
        return True

    def _reap(self) -> bool:
        """Take the exit codes of all who ended. False when no descendant is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._command:
                self._ended = True
                self._tell(f"exit {os.waitstatus_to_exitcode(status)}")
                self._end_the_rest()

    def _end_the_rest(self) -> None:
        for proc in kill_tree.descendants(os.getpid()):
            # To some servers a second TERM means "at once"; the group has had its first.
            if not (self._asked and proc.group == self._command):
                kill_tree.send(proc, signal.SIGTERM)
        if not self._asked:
            self._kill_by(GRACE_S)

    def _obey(self) -> None:
        try:
            orders = os.read(self._link, 64)
        except OSError:
            orders = b""
        if not orders:
            self._linked = False
            self._kill_by(GRACE_S)
        if b"k" in orders:
            self._kill_by(0)
        elif not self._ended and not self._asked:
            self._asked = True
            with contextlib.suppress(OSError):
                os.killpg(self._command, signal.SIGTERM)

    def _kill_by(self, delay_s: float) -> None:
        at = time.monotonic() + delay_s
        self._kill_at = at if self._kill_at is None else min(at, self._kill_at)

    def _left_s(self) -> float | None:
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the gateway is gone; the link's end says so too
            os.write(self._link, line.encode() + b"\n")

    def _read_exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = os.read(self._link, count - len(data))
            if not piece:
                sys.exit(0)
            data += piece
        return data


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the thread that started it ends (on Linux)."""
    _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def main() -> None:
    """Run as `... LINK_FD[,HELD_FD] NAME`; the name is there for people who read a list of processes."""
    Guard(*map(int, sys.argv[1].split(","))).run()


if __name__ == "__main__":
    main()
