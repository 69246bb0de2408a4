"""How a start ends: ready, or failed in a way that says why."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from swaplane.core.commands import StopCause
from swaplane.core.events import ModelExited, ModelReady, ModelStartFailed, ModelStopped, StartFault
from swaplane.processes import kill_tree
from swaplane.processes.health import go_duration
from tests.processes.conftest import World, outsider
from tests.support.stub_client import free_port, read_journal, stub_argv, stub_cmd, until

pytestmark = pytest.mark.anyio

ANSWERS_404 = "import http.server as h; h.HTTPServer(('127.0.0.1', PORT), h.BaseHTTPRequestHandler).serve_forever()"
REDIRECTS = """
import http.server as h
class Handler(h.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(302); self.send_header("Location", "/elsewhere"); self.end_headers()
h.HTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
"""
ANSWERS_200 = """
import http.server as h
class Handler(h.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
h.HTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
"""
ACCEPTS_ONLY = "import socket, time; s = socket.create_server(('127.0.0.1', PORT)); time.sleep(1000)"


def read(path: Path | str) -> bytes:
    return Path(path).read_bytes()


def whole(failed: ModelStartFailed) -> str:
    return failed.message + failed.private


async def test_a_server_is_ready_once_it_answers_200(world: World) -> None:
    world.supervisor.start(world.spec("--boot", "0.4"))
    assert world.supervisor.states() == {"mA": "starting"}
    ready = await world.event(ModelReady)
    assert world.supervisor.states() == {"mA": "ready"}
    assert ready.load_s > 0.4
    assert [entry["ev"] for entry in world.journal()] == ["boot", "ready"]
    spec = world.supervisor.spec("mA")
    assert spec is not None
    assert spec.model == "mA"
    world.supervisor.stop("mA", StopCause.UNLOAD)
    await world.event(ModelStopped)
    assert world.left() == []
    assert world.supervisor.spec("mA") is None


async def test_proxy_variables_of_the_environment_do_not_matter(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    world.supervisor.start(world.spec())
    await world.event(ModelReady)


async def test_without_a_check_it_is_ready_once_it_runs(world: World) -> None:
    world.supervisor.start(world.spec(argv=("sleep", "1000"), check_endpoint=" none "))
    await world.event(ModelReady)


async def test_the_command_gets_its_environment_and_no_input(world: World) -> None:
    script = 'echo "<$A $B $(cat) $PYTHONSAFE>"; exit 3'
    env = ("A=1", "B=x=y", "A=2")
    world.supervisor.start(world.spec(argv=("sh", "-c", script), env=env))
    failed = await world.event(ModelStartFailed)
    assert whole(failed).splitlines() == ["upstream command exited prematurely with exit code 3", "<2 x=y  >"]


async def test_the_command_does_not_see_the_gateways_secrets(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEY", "sk-1")
    monkeypatch.setenv("OTHER", "kept")
    spec = world.spec(argv=("sh", "-c", 'echo "<$OWN_KEY $OTHER>"; exit 3'))
    world.supervisor.start(replace(spec, secrets=frozenset({"OWN_KEY"})))
    failed = await world.event(ModelStartFailed)
    assert whole(failed).splitlines()[-1] == "< kept>"


async def test_no_process_of_a_model_has_the_gateways_secrets(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEY", "sk-1")
    monkeypatch.setenv("OTHER", "kept")
    stop = (
        "sh",
        "-c",
        f"for pid in $PPID $$ ${{PID}}; do cat /proc/$pid/environ; done > {world.folder}/seen; kill ${{PID}}",
    )
    world.supervisor.start(replace(world.spec(stop_argv=stop), secrets=frozenset({"OWN_KEY"})))
    await world.event(ModelReady)
    (guard,) = world.supervisor._guards()
    world.supervisor.stop("mA", StopCause.UNLOAD)
    seen = read(f"/proc/{guard}/environ")
    await world.event(ModelStopped)
    seen += read(world.folder / "seen")
    assert seen.count(b"OTHER=kept") == 4  # the server's guard, the stop command and its guard, the server
    assert b"OWN_KEY" not in seen


async def test_an_early_exit_fails_at_once_with_the_last_lines_of_this_start(world: World) -> None:
    world.logs.model("mA").write(b"of an earlier start\n")
    script = "for i in $(seq 40); do echo line $i >&2; done; exit 7"
    world.supervisor.start(world.spec(argv=("sh", "-c", script)))
    failed = await world.event(ModelStartFailed)
    assert failed.fault is StartFault.EXITED
    first, *rest = whole(failed).splitlines()
    assert first == "upstream command exited prematurely with exit code 7"
    assert rest == [f"line {number}" for number in range(26, 41)]

    world.supervisor.start(world.spec(argv=("sh", "-c", "kill -SEGV $$")))
    failed = await world.event(ModelStartFailed)
    assert whole(failed) == "upstream command exited prematurely by signal SIGSEGV"


async def test_an_exit_with_0_is_a_failed_start_too(world: World) -> None:
    world.supervisor.start(world.spec(argv=("true",)))
    assert (await world.event(ModelStartFailed)).fault is StartFault.EXITED


async def test_commands_that_cannot_run(world: World) -> None:
    plain = world.folder / "plain"
    plain.write_text("x")
    reasons = {
        "no-such-command": "no such file or directory",
        str(plain): "permission denied",
        str(world.folder): "is a directory",
        "nul\0byte": "invalid argument",
    }
    for command, reason in reasons.items():
        world.supervisor.start(world.spec(argv=(command,)))
        failed = await world.event(ModelStartFailed)
        assert failed.fault is StartFault.COMMAND
        assert failed.message == "failed to start command"
        assert whole(failed) == f"failed to start command '{command}': {reason}"


@pytest.mark.parametrize(
    ("program", "last"),
    [(ANSWERS_404, "last: 501"), (REDIRECTS, "last: 302"), (ACCEPTS_ONLY, "last: no answer")],
)
async def test_anything_but_200_is_not_ready(world: World, program: str, last: str) -> None:
    # The probe of a server that never answers is cut by the limit, before its own bound.
    world.supervisor.start(world.spec(argv=(sys.executable, "-c", program), health_timeout_s=1.5))
    failed = await world.event(ModelStartFailed)
    assert failed.fault is StartFault.TIMEOUT
    assert failed.message == "health check timed out after 1.5s"
    assert whole(failed).startswith("health check timed out after 1.5s: GET http://127.0.0.1:")
    assert last in whole(failed)
    assert world.left() == []


async def test_a_failed_start_is_not_for_ever(world: World) -> None:
    script = world.folder / "starts"
    script.write_text("hang work")
    world.supervisor.start(
        world.spec("--max-starts-file", str(script), "--term", "ignore", health_timeout_s=0.7, unload_timeout_s=0.3)
    )
    failed = await world.event(ModelStartFailed)
    assert world.left() == []
    assert failed.message == "health check timed out after 700ms"
    assert "listening on" in failed.private
    assert world.journal("sigterm")
    world.supervisor.start(world.spec("--max-starts-file", str(script)))
    await world.event(ModelReady)


async def test_a_stranger_on_the_port_is_named_and_nothing_is_started(world: World) -> None:
    port = free_port()
    journal = world.folder / "stranger"
    with outsider(*stub_argv(port, "stranger"), STUB_LOG=str(journal)) as stranger:
        await until(lambda: read_journal(journal, "ready"), "the stranger is ready")
        world.supervisor.start(world.spec(port=port))
        failed = await world.event(ModelStartFailed)
    assert failed.fault is StartFault.PORT_TAKEN
    assert f"port {port} of http://127.0.0.1:{port} is taken by process {stranger.pid} (python" in failed.private
    assert failed.message == "its address is in use"
    assert world.journal("boot") == []
    world.supervisor.start(world.spec(port=port))
    await world.event(ModelReady)


async def test_a_stranger_that_was_there_first_is_not_taken_for_our_child(world: World) -> None:
    """It takes the port after the check and before our server would, but is older than our start."""
    port = free_port()
    go = world.folder / "go"
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n"
    with outsider(sys.executable, "-c", waits + ANSWERS_200.replace("PORT", str(port))) as stranger:
        seen = kill_tree.look(stranger.pid)
        assert seen is not None
        later = (seen.started + 2) / os.sysconf("SC_CLK_TCK")
        await until(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) > later, "the stranger is older by a clock tick")
        world.supervisor.start(world.spec(argv=("sh", "-c", f"touch {go}; exec sleep 1000"), port=port))
        failed = await world.event(ModelStartFailed)
    assert failed.fault is StartFault.PORT_TAKEN
    assert f"process {stranger.pid} " in failed.private


async def test_the_server_may_be_a_grandchild_in_a_session_of_its_own(world: World) -> None:
    port = free_port()
    world.supervisor.start(world.spec(argv=("sh", "-c", f"setsid {stub_cmd(port)} & wait"), port=port))
    await world.event(ModelReady)
    world.supervisor.stop("mA", StopCause.UNLOAD)
    await world.event(ModelStopped)
    assert world.left() == []
    assert world.journal("sigterm")


async def test_two_models_on_one_port(world: World) -> None:
    port = free_port()
    world.supervisor.start(world.spec(port=port))
    await world.event(ModelReady)
    world.supervisor.start(world.spec(port=port, model="mB"))
    failed = await world.event(ModelStartFailed)
    assert failed.fault is StartFault.PORT_TAKEN
    assert "of model mA; end it or give this model another port" in failed.private
    assert world.supervisor.states() == {"mA": "ready"}


async def test_a_crash_when_ready_is_told_with_its_code_and_last_lines(world: World) -> None:
    world.supervisor.start(world.spec("--exit-after", "0.5", "--exit-code", "9"))
    await world.event(ModelReady)
    exited = await world.event(ModelExited)
    assert world.left() == []
    assert exited.message.startswith("upstream command ended with exit code 9\nstub mA: listening on")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(15, "15s"), (120, "2m0s"), (3600, "1h0m0s"), (1.5, "1.5s"), (0.5, "500ms"), (0, "0s"), (61.25, "1m1.25s")],
)
def test_durations_read_as_in_go(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text
