"""The commands that ask a running gateway: what it says is shown, and nothing is decided here.

Each opens a connection, asks, and puts the answer into a table, a sentence or JSON. The API key comes from `--key` or
SWAPLANE_KEY and is shown nowhere. Put into the command line by `cli`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from swaplane.cli_arguments import DEFAULT_LISTEN
from swaplane.cli_output import Json, fail, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from swaplane.cli_client import GatewayClient

DEFAULT_URL = f"http://{DEFAULT_LISTEN}"
_REFRESH_EVERY_S = 1.0
_JOB_HELP = "Job ids, from `swaplane queue` or an answer's X-LlamaSwap-Job header."
_LANE_HELP = "Name of the lane; may be left out where there is only one."
_KEY_HELP = "API key, where the gateway has keys. In SWAPLANE_KEY nobody else on this machine can read it."

Url = Annotated[str, typer.Option("--url", envvar="SWAPLANE_URL", help="Address of the gateway.")]
ApiKey = Annotated[str, typer.Option("--key", envvar="SWAPLANE_KEY", metavar="KEY", show_default=False, help=_KEY_HELP)]
Lane = Annotated[str, typer.Argument(metavar="LANE", show_default=False, help=_LANE_HELP)]


@contextlib.contextmanager
def _connected(url: str, key: str) -> Iterator[GatewayClient]:
    """A connection; what goes wrong in the block ends the command with one sentence."""
    from swaplane.cli_client import GatewayClient, GatewayError

    try:
        with GatewayClient(url, key) as gateway:
            yield gateway
    except GatewayError as error:
        fail(str(error))


def queue(
    once: Annotated[bool, typer.Option("--once", help="Print the queue once instead of following it.")] = False,
    json_output: Json = False,
    url: Url = DEFAULT_URL,
    key: ApiKey = "",
) -> None:
    """Show who runs and who waits, with each term of the score; followed until Ctrl-C on a terminal."""
    from rich.console import Console

    from swaplane.tables import queue_table

    console = Console()
    with _connected(url, key) as gateway:
        if json_output:
            print_json(gateway.queue())
        elif once or not console.is_terminal:
            console.print(queue_table(gateway.queue(), width=console.width))
        else:
            _follow(gateway, console)


def _follow(gateway: GatewayClient, console: Console) -> None:
    """Show the queue anew every second until Ctrl-C. Raises GatewayError once the gateway is gone."""
    from rich.live import Live
    from rich.table import Table

    from swaplane.tables import queue_table

    def shown() -> Table:
        return queue_table(gateway.queue(), width=console.width, height=console.height)

    with contextlib.suppress(KeyboardInterrupt), Live(shown(), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(_REFRESH_EVERY_S)
            live.update(shown(), refresh=True)


def members(json_output: Json = False, url: Url = DEFAULT_URL, key: ApiKey = "") -> None:
    """Show what each member has running and waiting, and its share of the GPU time."""
    from rich.console import Console

    from swaplane.tables import members_table

    with _connected(url, key) as gateway:
        answer = gateway.members()
    if json_output:
        print_json(answer)
    else:
        console = Console()
        console.print(members_table(answer, width=console.width))


def cancel(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB", help=_JOB_HELP)],
    json_output: Json = False,
    url: Url = DEFAULT_URL,
    key: ApiKey = "",
) -> None:
    """End jobs, whether they wait or run. Exit 1 when any of them was not cancelled."""
    from dataclasses import asdict

    with _connected(url, key) as gateway:
        results = [gateway.cancel(job_id) for job_id in jobs]
    if json_output:
        print_json({"jobs": [asdict(result) for result in results]})
    else:
        for result in results:
            typer.echo(f"{result.job_id}: {result.message}", err=not result.cancelled)
    if not all(result.cancelled for result in results):
        raise typer.Exit(1)


def pause(lane: Lane = "", url: Url = DEFAULT_URL, key: ApiKey = "") -> None:
    """Start nothing new in a lane until `swaplane resume`; what runs ends normally."""
    with _connected(url, key) as gateway:
        name = lane or _only_lane(gateway)
        gateway.set_paused(name, paused=True)
    typer.echo(f"lane {name} is paused: what runs ends normally, nothing new starts until `swaplane resume {name}`")


def resume(lane: Lane = "", url: Url = DEFAULT_URL, key: ApiKey = "") -> None:
    """Let a paused lane take jobs again."""
    with _connected(url, key) as gateway:
        name = lane or _only_lane(gateway)
        gateway.set_paused(name, paused=False)
    typer.echo(f"lane {name} takes jobs")


def _only_lane(gateway: GatewayClient) -> str:
    names = [lane["name"] for lane in gateway.queue()["lanes"]]
    if len(names) != 1:
        fail(f"Say which lane: {gateway.url} has {' and '.join(names) or 'none'}.")
    return names[0]
