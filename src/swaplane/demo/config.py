"""The demo's gateway: its config file, its process, and that nothing of it is left behind.

It starts `swaplane serve` the way a user does, as a process of its own. Called by `show`.
"""

from __future__ import annotations

import contextlib
import json
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import httpx2

from swaplane.processes.guard import die_with_parent

#: Longer than the gateway needs to be ready and, when it stops, gives running jobs and then its models.
_READY_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 45.0
_SECONDS_PER_FRAME = 0.25

_COMMANDS = {
    "minilm": "swaplane.demo.chat_server --model minilm --port ${PORT}",
    "smollm2": "swaplane.demo.chat_server --model smollm2 --port ${PORT}",
    "video": f"swaplane.demo.video_server --seconds-per-frame {_SECONDS_PER_FRAME} --port ${{PORT}}",
}


class GatewayFailedError(Exception):
    """The gateway did not become ready; the text says why, with the last lines of its log."""


def config_text(start_port: int, folder: Path) -> str:
    """The demo's config.yaml; its models listen on `start_port` and the ports after it, jobs are kept in `folder`."""
    lines = [
        "# Written by `swaplane demo`. The models are in no group, so only one of them is resident at a time.",
        "healthCheckTimeout: 60",
        f"startPort: {start_port}",
        f"jobs: {{path: {json.dumps(str(folder))}}}",
        "models:",
    ]
    for model, command in _COMMANDS.items():
        lines += [
            f"  {model}:",
            f"    cmd: {json.dumps(f'{shlex.quote(sys.executable)} -m {command}')}",
            '    proxy: "http://127.0.0.1:${PORT}"',
        ]
    lines += [
        "# The defaults: interactive 100, normal 0, batch -100; a resident model is worth 10 points, a minute of",
        "# waiting 1 point.",
        "scheduling: {}",
    ]
    return "\n".join(lines) + "\n"


def free_ports(count: int) -> int:
    """The first of `count` ports in a row on 127.0.0.1 on which nothing listens now.

    They lie below those that the kernel gives to outgoing connections, which could take one before its server.
    """
    while True:
        first = random.randrange(12_000, 32_000 - count)  # noqa: S311 - any will do
        if are_free(first, count):
            return first


def are_free(first: int, count: int) -> bool:
    """Whether nothing listens now on 127.0.0.1 on `count` ports in a row, from `first` on."""
    with contextlib.ExitStack() as held:
        try:
            for port in range(first, first + count):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            return False
        return True


class Gateway:
    """`swaplane serve` on the demo's config, as a context manager: ready inside, gone outside.

    Raises `GatewayFailedError` when it does not become ready.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.config_path = folder / "config.yaml"
        self.log_path = folder / "gateway.log"
        self.port = port or free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Gateway {self.url} pid={self._process.pid if self._process else None}>"

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Gateway:
        try:
            # Whoever listens there already would answer in the gateway's place.
            socket.create_server(("127.0.0.1", self.port)).close()
        except OSError as error:
            raise GatewayFailedError(f"--port: {self.port} cannot be used ({error.strerror}).") from None
        self.config_path.write_text(
            config_text(free_ports(len(_COMMANDS)), self.config_path.parent.absolute() / "jobs"), encoding="utf-8"
        )
        command = [sys.executable, "-m", "swaplane", "serve"]
        command += ["--config", str(self.config_path), "--listen", f"127.0.0.1:{self.port}"]
        with self.log_path.open("wb") as log:
            # In a session of its own: Ctrl-C is for the demo, which then stops the gateway in good order.
            # It ends with the demo even if that is killed.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - no thread is running yet
            )
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        return "\n".join(self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        give_up_at = time.monotonic() + _READY_TIMEOUT_S
        with httpx2.Client(trust_env=False, timeout=5) as client:
            while process.poll() is None and time.monotonic() < give_up_at:
                with contextlib.suppress(httpx2.HTTPError):
                    if client.get(f"{self.url}/health").status_code == 200:
                        return
                time.sleep(0.05)
        end = "is still not ready" if process.poll() is None else f"ended with code {process.returncode}"
        raise GatewayFailedError(f"The gateway on {self.url} {end}; the end of {self.log_path}:\n{self.log_tail()}")

    def _stop(self) -> None:
        process = self._process
        if process is None:
            return
        # A second Ctrl-C must not interrupt what the first one asked for.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        finally:
            signal.signal(signal.SIGINT, previous)
