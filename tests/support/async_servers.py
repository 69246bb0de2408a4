"""How tests start `video_jobs.py` and `comfy.py`: as entries of a configuration, or without a gateway.

    models(video_model("wan", flavour="vllm"), comfy_model("comfy"), stub_model("mA"))

gives the `models:` block of a configuration. All of them write the journal that the gateway's $STUB_LOG names.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from tests.support.stub_client import eventually, free_port, leftovers, read_journal, stub_cmd

HERE = Path(__file__).parent
PATIENCE_S = 30.0


def models(*entries: str) -> str:
    """The `models:` block of these entries."""
    return "models:\n" + "".join(entries)


def video_model(name: str, *, flavour: str = "openai", flags: str = "", extra: str = "") -> str:
    """An entry with a `video_jobs.py`; `flags` go to its command, `extra` lines into the entry."""
    return _entry(name, f"{server_cmd('video_jobs.py', name)} --flavour {flavour} {flags}", extra)


def comfy_model(name: str, *, flags: str = "", extra: str = "") -> str:
    """An entry with a `comfy.py`."""
    return _entry(name, f"{server_cmd('comfy.py', name)} {flags}", f"checkEndpoint: /system_stats\n{extra}")


def stub_model(name: str, *, flags: str = "", extra: str = "") -> str:
    """An entry with a `stub.py`."""
    return _entry(name, f"{stub_cmd('${PORT}', name)} {flags}", extra)


def server_cmd(program: str, name: str, port: str = "${PORT}") -> str:
    """The command of a server, as one line for a config file."""
    return f"{shlex.join([sys.executable, '-E', '-s', str(HERE / program)])} --port {port} --name {name}"


def _entry(name: str, cmd: str, extra: str) -> str:
    lines = [f"  {name}:", f"    cmd: {cmd.strip()}", *(f"    {line}" for line in extra.splitlines())]
    return "\n".join(lines) + "\n"


class LoneServer:
    """One server without a gateway, with a journal in `folder`; it is ended by SIGTERM."""

    def __init__(self, folder: Path, program: str, name: str = "lone", flags: str = "") -> None:
        self.port = free_port()
        self.stub_id = uuid.uuid4().hex
        self._journal = folder / "journal.jsonl"
        self._command = [*shlex.split(server_cmd(program, name, str(self.port))), *shlex.split(flags)]
        self._client = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE_S, trust_env=False)
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        environ = {**os.environ, "STUB_LOG": str(self._journal), "STUB_ID": self.stub_id}
        self.process = subprocess.Popen(self._command, env=environ, stdout=subprocess.DEVNULL)
        self.until(lambda: self.process.pid in [entry["pid"] for entry in self.journal("ready")], "it is ready")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._client.close()
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        assert not leftovers(self.stub_id)

    def request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """One request, waited for."""
        return self._client.request(method, path, **options)

    def get(self, path: str) -> Any:
        """The JSON of an answer with status 200."""
        answer = self.request("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def journal(self, *events: str) -> list[dict[str, Any]]:
        """What it wrote down."""
        return read_journal(self._journal, *events)

    def gpu(self) -> list[tuple[str, str]]:
        """The ids of the renders that are over, in order, and how each ended."""
        return [(entry["id"], entry["how"]) for entry in self.journal("gpu_end")]

    def lasted_s(self, job: str) -> float:
        """How long the GPU was in use for a render that is over."""
        times = [float(entry["t"]) for entry in self.journal("gpu_start", "gpu_end") if entry["id"] == job]
        return times[1] - times[0]

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Poll until `condition()` is true."""
        eventually(condition, what, PATIENCE_S)
