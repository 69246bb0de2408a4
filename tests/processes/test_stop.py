"""How a model's server is stopped, and in which order."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from swaplane.core.commands import StopCause
from swaplane.core.events import ModelReady, ModelStopped
from tests.processes.conftest import World
from tests.support.stub_client import free_port, stub_cmd

pytestmark = pytest.mark.anyio


async def test_a_server_that_ignores_term_is_killed_when_its_time_is_up(world: World) -> None:
    world.supervisor.start(world.spec("--term", "ignore", unload_timeout_s=0.6))
    await world.event(ModelReady)
    loop = asyncio.get_running_loop()
    began = loop.time()
    world.supervisor.stop("mA", StopCause.SWAP)
    assert world.supervisor.states() == {"mA": "stopping"}
    await world.event(ModelStopped)
    assert loop.time() - began >= 0.6
    assert world.left() == []
    assert world.journal("sigterm")
    assert not world.journal("exit")


async def test_a_server_may_take_its_time_to_stop(world: World) -> None:
    world.supervisor.start(world.spec("--linger", "0.5", "--exit-code", "4", unload_timeout_s=20))
    await world.event(ModelReady)
    with capture_logs() as lines:
        world.supervisor.stop("mA", StopCause.TTL)
        await world.event(ModelStopped)
    assert [(line["event"], line["model"], line["reason"]) for line in lines] == [
        ("stopping model", "mA", "ttl"),
        ("model stopped", "mA", "ttl"),
    ]
    assert lines[0]["pid"] == world.journal("boot")[0]["pid"]
    assert lines[1]["ended"] == "with exit code 4"
    assert world.journal("exit")[0]["code"] == 4


async def test_a_server_behind_a_wrapper_has_the_same_time(world: World) -> None:
    """The shell dies of TERM at once; what it started is not killed for that."""
    port = free_port()
    command = stub_cmd(port, "mA", "--linger", "2.5")
    world.supervisor.start(world.spec(argv=("sh", "-c", f"{command} & wait"), port=port, unload_timeout_s=20))
    await world.event(ModelReady)
    world.supervisor.stop("mA", StopCause.SWAP)
    await world.event(ModelStopped)
    assert world.left() == []
    assert len(world.journal("sigterm")) == 1
    assert world.journal("exit")


async def test_stop_during_the_start(world: World) -> None:
    world.supervisor.start(world.spec("--boot", "1000"))
    await world.entry("boot")
    world.supervisor.stop("mA", StopCause.ABANDONED)
    assert world.supervisor.states() == {"mA": "stopping"}
    world.supervisor.start(world.spec())  # wanted again before it is gone
    await world.event(ModelStopped)
    await world.event(ModelReady)
    assert [entry["ev"] for entry in world.journal()] == ["boot", "sigterm", "exit", "boot", "ready"]


async def test_stop_right_after_start(world: World) -> None:
    world.supervisor.start(world.spec())
    world.supervisor.stop("mA", StopCause.ABANDONED)
    await world.event(ModelStopped)
    assert world.journal() == []

    world.supervisor.start(world.spec("--boot", "1000"))
    await asyncio.sleep(0.01)  # amid the look at the port or the spawn
    world.supervisor.stop("mA", StopCause.ABANDONED)
    await world.event(ModelStopped)
    assert len(world.posted) == 2


async def test_stop_twice_is_one_stop_and_the_shorter_time_counts(world: World) -> None:
    world.supervisor.start(world.spec("--term", "ignore", unload_timeout_s=1000))
    await world.event(ModelReady)
    world.supervisor.stop("mA", StopCause.UNLOAD)
    await world.entry("sigterm")
    world.supervisor.stop("mA", StopCause.SHUTDOWN, grace_s=0.1)
    await world.event(ModelStopped)
    world.supervisor.stop("mA", StopCause.SHUTDOWN)
    await world.supervisor.close(0.1)
    assert len(world.posted) == 2
    assert len(world.journal("sigterm")) == 1


async def test_a_start_during_the_stop_waits_for_its_end(world: World) -> None:
    port = free_port()
    world.supervisor.start(world.spec("--linger", "0.5", port=port))
    await world.event(ModelReady)
    world.supervisor.stop("mA", StopCause.RELOAD)
    world.supervisor.start(world.spec(port=port))
    assert world.supervisor.states() == {"mA": "stopping"}
    await world.event(ModelStopped)
    await world.event(ModelReady)
    events = [entry["ev"] for entry in world.journal()]
    assert events == ["boot", "ready", "sigterm", "exit", "boot", "ready"]


async def test_a_start_that_waits_can_be_stopped_too(world: World) -> None:
    world.supervisor.start(world.spec("--linger", "0.3"))
    await world.event(ModelReady)
    world.supervisor.stop("mA", StopCause.RELOAD)
    world.supervisor.start(world.spec())
    world.supervisor.stop("mA", StopCause.UNLOAD)
    await world.event(ModelStopped)
    await world.event(ModelStopped)
    assert len(world.journal("boot")) == 1


async def test_a_start_of_a_running_model_is_refused(world: World) -> None:
    world.supervisor.start(world.spec())
    with pytest.raises(RuntimeError, match="cannot start mA: it is starting"):
        world.supervisor.start(world.spec())
    await world.event(ModelReady)


async def test_the_stop_command_goes_in_place_of_term(world: World) -> None:
    told = world.folder / "told"
    stop = ("sh", "-c", f"echo $STUB_ID ${{PID}} > {told}; echo bye; kill -INT ${{PID}}; exit 1")
    world.supervisor.start(world.spec(stop_argv=stop))
    await world.event(ModelReady)
    pid = world.journal("boot")[0]["pid"]
    world.supervisor.stop("mA", StopCause.UNLOAD)
    await world.event(ModelStopped)
    assert told.read_text() == f"{world.stub_id} {pid}\n"
    assert not world.journal("sigterm")
    assert world.journal("sigint")
    assert "bye" in world.logs.model("mA").text()
    assert world.left() == []


@pytest.mark.parametrize("stop", [("no-such-command",), ("false",), ("sleep", "1000")])
async def test_a_stop_command_that_does_not_stop_it(world: World, stop: tuple[str, ...]) -> None:
    world.supervisor.start(world.spec(stop_argv=stop, unload_timeout_s=0.4))
    await world.event(ModelReady)
    world.supervisor.stop("mA", StopCause.UNLOAD)
    await world.event(ModelStopped)
    assert not world.journal("sigterm")
    assert world.left() == []


async def test_close_stops_all_models_side_by_side(world: World) -> None:
    for model in ("mA", "mB", "mC"):
        world.supervisor.start(world.spec("--term", "ignore", model=model, unload_timeout_s=1000))
    for _ in range(3):
        await world.event(ModelReady)
    await world.supervisor.close(0.3)
    assert world.left() == []
    for _ in range(3):
        await world.event(ModelStopped)
    with pytest.raises(RuntimeError, match="the supervisor is closed"):
        world.supervisor.start(world.spec())
