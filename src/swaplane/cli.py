"""The `swaplane` command: what its words mean, and how results and failures are told to a person or a script.

Each command reads its options, calls the part that does the work, and turns that part's errors into one clear
sentence on standard error: exit 1 for a failure, 2 for a wrong command line. Nothing is decided here that a
running gateway does. Parts that take long to import are imported inside the commands, so that `--help` and
shell completion answer at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from swaplane import __version__
from swaplane.cli_arguments import (
    DEFAULT_LISTEN,
    FlagNotAvailableError,
    listen_address,
    normalised,
    who_can_reach,
)

if TYPE_CHECKING:
    from rich.console import Console

    from swaplane.cli_client import GatewayClient

DEFAULT_URL = f"http://{DEFAULT_LISTEN}"
_REFRESH_EVERY_S = 1.0
_JOB_HELP = "Job ids, from `swaplane queue` or an answer's X-LlamaSwap-Job header."

app = typer.Typer(
    name="swaplane",
    help="One GPU, many jobs, who goes next: start and stop local model servers on demand, and give the GPU to "
    "the waiting job with the highest score.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Url = Annotated[str, typer.Option("--url", envvar="SWAPLANE_URL", help="Address of the gateway.")]


def main() -> None:
    """Run the command line of this process; does not return."""
    try:
        arguments = normalised(sys.argv[1:])
    except FlagNotAvailableError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    app(args=arguments, prog_name="swaplane")


def _print_version(wanted: bool) -> None:
    if wanted:
        # llama-swap's first word, for scripts that look for it.
        typer.echo(f"version: {__version__} (swaplane)")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


@app.callback()
def _swaplane(version: Version = False) -> None:
    pass


@app.command(
    epilog="llama-swap's flags may be given with one dash, as in -config FILE -listen :8080. Not available yet: "
    "-config-dir, -tls-cert-file, -tls-key-file, -watch-config (send SIGHUP to load the file again)."
)
def serve(
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="The config.yaml to serve. Required.")] = None,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to listen. A bare port is on this machine only; :PORT is on all interfaces, and so is the "
            "default of llama-swap, but not this one: there are no API keys yet.",
        ),
    ] = DEFAULT_LISTEN,
    version: Version = False,
) -> None:
    """Run the gateway until Ctrl-C or SIGTERM; SIGHUP loads the configuration again."""
    if config is None:
        _fail("at least one of -config or -config-dir must be provided: name your config.yaml with --config FILE")
    try:
        host, port = listen_address(listen)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--listen'") from None

    from swaplane.config.problems import ConfigError
    from swaplane.gateway.server import ListenError
    from swaplane.gateway.server import serve as run_gateway
    from swaplane.store.errors import StoreError

    if note := who_can_reach(listen, host):
        typer.echo(note, err=True)
    try:
        code = run_gateway(str(config), host, port)
    except ConfigError as error:
        _fail(*error.problems)
    except ListenError as error:
        _fail(f"{error}; --listen HOST:PORT chooses another address")
    except StoreError as error:
        _fail(f"{error} (`jobs: {{path: ...}}` in the file chooses another folder)")
    raise typer.Exit(code)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The config.yaml to check.")],
    json_output: Json = False,
) -> None:
    """Say what a configuration file would run, or everything that is wrong with it. Starts nothing."""
    from swaplane.cli_check import described, print_report
    from swaplane.config.load import load
    from swaplane.config.problems import ConfigError

    try:
        settings = load(file, os.environ)
    except ConfigError as error:
        _fail(*error.problems)
    if json_output:
        _print_json(described(settings))
    else:
        print_report(settings)


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the gateway up afterwards, until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the gateway; 0 takes a free one.")] = 0,
    shots: Annotated[int, typer.Option(min=1, help="Length of the film, in shots.")] = 12,
    json_output: Json = False,
) -> None:
    """Queue a film and a stream of chats on real models, on the CPU, and compare the waits."""
    from swaplane.demo import run

    raise typer.Exit(run(keep=keep, port=port, shots=shots, json_output=json_output))


@app.command()
def queue(
    once: Annotated[bool, typer.Option("--once", help="Print the queue once instead of following it.")] = False,
    json_output: Json = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show who runs and who waits, with each term of the score; followed until Ctrl-C on a terminal."""
    from rich.console import Console

    from swaplane.cli_client import GatewayClient, GatewayError
    from swaplane.tables import queue_table

    console = Console()
    try:
        with GatewayClient(url) as gateway:
            if json_output:
                _print_json(gateway.queue())
            elif once or not console.is_terminal:
                console.print(queue_table(gateway.queue(), width=console.width))
            else:
                _follow(gateway, console)
    except GatewayError as error:
        _fail(str(error))


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


@app.command()
def cancel(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB", help=_JOB_HELP)],
    json_output: Json = False,
    url: Url = DEFAULT_URL,
) -> None:
    """End jobs, whether they wait or run. Exit 1 when any of them was not cancelled."""
    from dataclasses import asdict

    from swaplane.cli_client import GatewayClient, GatewayError

    try:
        with GatewayClient(url) as gateway:
            results = [gateway.cancel(job_id) for job_id in jobs]
    except GatewayError as error:
        _fail(str(error))
    if json_output:
        _print_json({"jobs": [asdict(result) for result in results]})
    else:
        for result in results:
            typer.echo(f"{result.job_id}: {result.message}", err=not result.cancelled)
    if not all(result.cancelled for result in results):
        raise typer.Exit(1)


def _print_json(document: object) -> None:
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _fail(*sentences: str) -> NoReturn:
    """Tell what is wrong, a line for each sentence, and exit 1."""
    for sentence in sentences:
        typer.echo(sentence, err=True)
    raise typer.Exit(1)
