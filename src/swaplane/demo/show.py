"""The demo from beginning to end: start the gateway, send what was planned, show the queue, compare.

On a terminal the live queue stays below the lines that tell what ended; elsewhere there are only the lines. It
decides no priorities and measures nothing but time. Called by `swaplane.demo.run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from rich.live import Live
from rich.text import Text

from swaplane.demo.config import Gateway, GatewayFailedError
from swaplane.demo.film import FILM, FRAMES_PER_SHOT, Arrival, Ended, ask, plan
from swaplane.demo.frames import count_frames, join
from swaplane.demo.minilm_gguf import minilm_gguf
from swaplane.demo.packages import minilm_folder
from swaplane.demo.report import HOW_COMPARED, Loads, compare, comparison_json, comparison_table, job_json, read_loads
from swaplane.tables import queue_table

_VIEW_EVERY_S = 0.3


def play(*, keep: bool, port: int, shots: int, json_output: bool) -> int:
    """What `swaplane.demo.run` promises, once the packages are known to be there."""
    console = Console(stderr=json_output, highlight=False, markup=False)
    try:
        with _endings_as_interrupt():
            # Not for the gateway's sake: so that converting is not counted as loading.
            minilm_gguf(minilm_folder())
            folder = Path(tempfile.mkdtemp(prefix="swaplane-demo-"))
            with Gateway(folder, port) as gateway:
                console.print(f"Gateway: {gateway.url}  config and log: {folder}", soft_wrap=True)
                return _play(gateway, folder, console, shots=shots, keep=keep, json_output=json_output)
    except GatewayFailedError as error:
        console.print(str(error), soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("Stopped; the gateway and its models are gone.")
        return 130


def _play(gateway: Gateway, folder: Path, console: Console, *, shots: int, keep: bool, json_output: bool) -> int:
    ended, loads = asyncio.run(_play_plan(gateway.url, plan(shots), console))
    film = _join_film(ended, folder / f"{FILM}.mp4", console)
    failed = [job for job in ended if job.error]
    chat = next((job for job in ended if job.arrival.model == "smollm2" and not job.error), None)
    comparison = compare(ended, loads)
    if json_output:
        result: dict[str, Any] = {
            "url": gateway.url,
            "film": film,
            "chat": chat and {"question": _question(chat.arrival), "answer": chat.says},
            **comparison_json(comparison),
            "load_s": dict(loads.mean_s),
            "failed": len(failed),
            "jobs": [job_json(job) for job in ended],
        }
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
        sys.stdout.flush()
    else:
        if chat is not None:
            console.print(f"SmolLM2 was asked {_question(chat.arrival)!r} and said {chat.says!r}")
        console.print()
        console.print(comparison_table(comparison))
        console.print(HOW_COMPARED)
    if failed:
        console.print(f"{len(failed)} of {len(ended)} jobs failed; the end of {gateway.log_path}:", soft_wrap=True)
        console.print(gateway.log_tail(), soft_wrap=True)
    if keep:
        with contextlib.suppress(KeyboardInterrupt):
            _stay(gateway, console)
    return 1 if failed or film is None else 0


async def _play_plan(url: str, arrivals: Sequence[Arrival], console: Console) -> tuple[list[Ended], Loads]:
    """Send every arrival at its second; return what became of them, in order of arrival, and the loads."""
    limits = httpx2.Limits(max_connections=None)
    timeout = httpx2.Timeout(None, connect=10.0)
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=timeout, limits=limits) as client:
        started = time.monotonic()

        async def come(arrival: Arrival) -> Ended:
            await asyncio.sleep(started + arrival.at_s - time.monotonic())
            job = await ask(client, arrival)
            line = _line(job, time.monotonic() - started)
            console.print(line, no_wrap=True, overflow="ellipsis" if console.is_terminal else "ignore", crop=False)
            return job

        async with asyncio.TaskGroup() as tasks:
            view = tasks.create_task(_show_queue(client, console))
            coming = [tasks.create_task(come(arrival)) for arrival in arrivals]
            ended = [await task for task in coming]
            view.cancel()
        try:
            metrics = await client.get("/metrics")
            loads = read_loads(metrics.raise_for_status().text)
        except (httpx2.HTTPError, ValueError) as error:
            console.print(f"No load times from {url}/metrics: {error}", soft_wrap=True)
            loads = Loads(count=0, mean_s={})
    return ended, loads


async def _show_queue(client: httpx2.AsyncClient, console: Console) -> None:
    """Keep the live queue at the bottom of the terminal, until cancelled."""
    if not console.is_terminal:
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            with contextlib.suppress(httpx2.HTTPError, ValueError):
                queue = (await client.get("/api/queue")).raise_for_status().json()
                live.update(queue_table(queue, width=console.width), refresh=True)
            await asyncio.sleep(_VIEW_EVERY_S)


def _line(job: Ended, now_s: float) -> Text:
    """One ended job: when, how urgent, who, how long it waited and ran, and what came of it."""
    arrival = job.arrival
    who = arrival.label.rpartition("; ")[2] if arrival.band == "batch" else arrival.member
    line = Text(f"{now_s:5.1f} s  {arrival.band:<11} {who:<10} waited {job.wait_s:4.1f} s, ran {job.run_s:3.1f} s: ")
    return line.append(job.error or job.says, style="red" if job.error else "dim")


def _join_film(ended: Sequence[Ended], target: Path, console: Console) -> dict[str, Any] | None:
    """Join the shots in their order; None when one is missing or a frame was lost."""
    shots = [job for job in ended if job.arrival.model == "video"]
    if not all(job.video for job in shots):
        console.print("No film: a shot is missing.")
        return None
    join([job.video for job in shots], target)
    frames = count_frames([target])
    expected = len(shots) * FRAMES_PER_SHOT
    console.print(f"Film: {target} ({len(shots)} shots, {frames} frames)", soft_wrap=True)
    if frames != expected:
        console.print(f"The film has {frames} frames; its shots were ordered with {expected}.")
        return None
    return {"path": str(target), "shots": len(shots), "frames": frames}


def _question(arrival: Arrival) -> str:
    return str(arrival.body["messages"][0]["content"])


def _stay(gateway: Gateway, console: Console) -> None:
    """Tell how to go on by hand, and stay up until Ctrl-C."""
    chat = '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}]}'
    console.print(
        f"\nThe gateway stays up on {gateway.url} until Ctrl-C. For example:\n\n"
        f"  curl {gateway.url}/api/queue\n"
        f"  curl {gateway.url}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f"    -H 'X-LlamaSwap-Priority: interactive' -d '{chat}'\n",
        soft_wrap=True,
    )
    while True:
        signal.pause()


@contextlib.contextmanager
def _endings_as_interrupt() -> Iterator[None]:
    """SIGTERM and a closed terminal end the demo as Ctrl-C does, so that they too stop the gateway."""

    def interrupt(_number: int, _frame: object) -> None:
        signal.raise_signal(signal.SIGINT)

    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: interrupt, signal.SIGHUP: interrupt}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
