"""Nothing is left behind, whoever dies and however; and nothing blocks because of what a server prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import httpx2
import psutil
import pytest

from swaplane.core.commands import StopCause
from swaplane.core.events import ModelExited, ModelReady, ModelStopped
from tests.processes.conftest import World, outsider
from tests.support.stub_client import eventually, free_port, leftovers, stub_cmd, until, zombies_of

pytestmark = pytest.mark.anyio


def stub_with_strays(port: int) -> tuple[str, ...]:
    """A stub that has a child in its group and a grandchild that left group, session and parent."""
    stray = "(setsid sh -c 'trap \"\" TERM; while :; do sleep 1000; done' &)"
    return ("sh", "-c", f"{stray}; sleep 1000 & exec {stub_cmd(port)}")


async def strays_are_up(world: World) -> None:
    # The stub, its sleep, the shell in its own session and its sleep.
    await until(lambda: len(world.left()) == 4, "stub and strays are up")


def children_of_this_process() -> int:
    return len(psutil.Process().children())


@pytest.mark.parametrize("way", ["exit 0", "exit 1", "killed", "segv"])
async def test_cycles_leave_no_zombie_and_no_descriptor(world: World, way: str) -> None:
    fds = children = 0
    for cycle in range(4):
        flags = {"exit 0": ("--exit-after", "0.3"), "exit 1": ("--exit-after", "0.3", "--exit-code", "1")}.get(way, ())
        world.supervisor.start(world.spec(*flags))
        await world.event(ModelReady)
        if not flags:
            os.kill(world.journal("boot")[-1]["pid"], signal.SIGKILL if way == "killed" else signal.SIGSEGV)
        exited = await world.event(ModelExited)
        expected = {"killed": "by signal SIGKILL", "segv": "by signal SIGSEGV"}.get(
            way, f"with {way.replace('exit', 'exit code')}"
        )
        assert exited.message.splitlines()[0] == f"upstream command ended {expected}"
        assert zombies_of(os.getpid()) == []
        assert world.left() == []
        if cycle == 0:
            fds, children = len(os.listdir("/proc/self/fd")), children_of_this_process()
    assert len(os.listdir("/proc/self/fd")) <= fds
    assert children_of_this_process() == children


async def test_strays_end_when_the_server_is_stopped(world: World) -> None:
    port = free_port()
    world.supervisor.start(world.spec(argv=stub_with_strays(port), port=port, unload_timeout_s=0.5))
    await world.event(ModelReady)
    await strays_are_up(world)
    world.supervisor.stop("mA", StopCause.SWAP)
    await world.event(ModelStopped)
    assert world.left() == []


async def test_strays_end_when_the_server_dies(world: World) -> None:
    port = free_port()
    world.supervisor.start(world.spec(argv=stub_with_strays(port), port=port))
    await world.event(ModelReady)
    await strays_are_up(world)
    os.kill(world.journal("boot")[0]["pid"], signal.SIGKILL)
    exited = await world.event(ModelExited)
    assert world.left() == []
    assert "by signal SIGKILL" in exited.message


async def test_strays_end_when_the_guard_is_killed(world: World) -> None:
    port = free_port()
    world.supervisor.start(world.spec(argv=stub_with_strays(port), port=port))
    await world.event(ModelReady)
    await strays_are_up(world)
    guard = psutil.Process(world.journal("boot")[0]["pid"]).parent()
    assert guard is not None
    guard.kill()
    exited = await world.event(ModelExited)
    assert world.left() == []
    assert "unknown exit code" in exited.message


async def test_a_guard_that_hangs_does_not_stop_the_stop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swaplane.processes.guarded._STUCK_GUARD_S", 0.3)
    world.supervisor.start(world.spec("--term", "ignore", unload_timeout_s=0.1))
    await world.event(ModelReady)
    guard = psutil.Process(world.journal("boot")[0]["pid"]).parent()
    assert guard is not None
    guard.suspend()
    world.supervisor.stop("mA", StopCause.UNLOAD)
    await world.event(ModelStopped)
    assert world.left() == []


async def test_terminal_signals_do_not_reach_models_or_guards(world: World) -> None:
    world.supervisor.start(world.spec())
    await world.event(ModelReady)
    stub = psutil.Process(world.journal("boot")[0]["pid"])
    guard = stub.parent()
    assert guard is not None
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        guard.send_signal(number)
    assert len({os.getsid(0), os.getsid(guard.pid), os.getsid(stub.pid)}) == 3
    world.supervisor.stop("mA", StopCause.UNLOAD)
    await world.event(ModelStopped)
    assert [entry["ev"] for entry in world.journal()] == ["boot", "ready", "sigterm", "exit"]


GATEWAY = """
    import asyncio, sys
    from swaplane.observe.logs import LogHub
    from swaplane.processes.process import LaunchSpec
    from swaplane.processes.supervisor import Supervisor

    async def main():
        supervisor = Supervisor(lambda event: print(type(event).__name__, flush=True), LogHub())
        port, *argv = sys.argv[1:]
        supervisor.start(LaunchSpec(model="mA", argv=tuple(argv), proxy=f"http://127.0.0.1:{port}"))
        await asyncio.Event().wait()

    asyncio.run(main())
"""


def test_nothing_outlives_a_gateway_that_is_killed(tmp_path: Path) -> None:
    port, stub_id = free_port(), f"killed-{tmp_path}"
    # The gateway itself does not carry the mark: only what it starts is counted.
    argv = ("env", f"STUB_ID={stub_id}", *stub_with_strays(port))
    gateway = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(GATEWAY), str(port), *argv], stdout=subprocess.PIPE, text=True
    )
    try:
        assert gateway.stdout is not None
        while "ModelReady" not in (line := gateway.stdout.readline()):
            assert line, "the gateway ended early"
        eventually(lambda: len(leftovers(stub_id)) >= 4, "stub and strays are up")
        guards = psutil.Process(gateway.pid).children()
        assert len(guards) == 1
    finally:
        gateway.kill()
        gateway.communicate()
    eventually(lambda: leftovers(stub_id) == [], "everything it started is gone", within_s=10)
    eventually(lambda: not guards[0].is_running(), "the guard is gone too", within_s=10)


@pytest.mark.parametrize("newline", [True, False])
async def test_output_is_always_drained_and_little_is_kept(world: World, newline: bool) -> None:
    flags = () if newline else ("--spam-no-newline",)
    world.supervisor.start(world.spec("--spam", str(5_000_000), *flags))
    await world.event(ModelReady)
    log = world.logs.model("mA")
    assert log.written_bytes >= 5_000_000
    assert len(log.history()) == 100 * 1024
    assert len(world.logs.upstream.history()) <= 100 * 1024
    assert "\N{REPLACEMENT CHARACTER}" in log.text()
    spec = world.supervisor.spec("mA")
    assert spec is not None
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
        answer = await client.post(spec.proxy, json={"rid": 1, "stub": {"spam": 20_000_000}})
    assert answer.json()["rid"] == 1
    await until(lambda: log.written_bytes >= 25_000_000, "all output is read")
    assert len(log.history()) == 100 * 1024


async def test_nobody_waits_for_a_pipe_that_a_stranger_holds(world: World) -> None:
    """A process outside the tree has the server's output open and keeps it."""
    holder = world.folder / "holder"
    program = (
        "import os, sys, time, pathlib\n"
        f"fd = os.open('/proc/' + sys.argv[1] + '/fd/1', os.O_WRONLY); pathlib.Path({str(holder)!r}).touch()\n"
        "time.sleep(1000)"
    )
    world.supervisor.start(world.spec())
    await world.event(ModelReady)
    with outsider(sys.executable, "-c", program, str(world.journal("boot")[0]["pid"])) as stranger:
        await until(holder.exists, "the stranger holds the pipe")
        world.supervisor.stop("mA", StopCause.UNLOAD)
        await world.event(ModelStopped)
        assert stranger.poll() is None
