"""The `swaplane` command: what its words mean, and how results and failures are told to a person or a script.

Each command reads its options, calls the part that does the work, and turns that part's errors into one clear
sentence on standard error: exit 1 for a failure, 2 for a wrong command line. Nothing is decided here that a
running gateway does; the commands that ask one are in `cli_gateway`, `key` is in `cli_key`. Parts that take long to
import are imported inside the commands, so that `--help` and shell completion answer at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from swaplane import __version__
from swaplane.cli_arguments import (
    DEFAULT_LISTEN,
    FlagNotAvailableError,
    listen_address,
    normalised,
    who_can_reach,
)
from swaplane.cli_gateway import cancel, members, pause, queue, resume
from swaplane.cli_key import app as key_app
from swaplane.cli_output import Json, fail, print_json

app = typer.Typer(
    name="swaplane",
    help="One GPU, many jobs, who goes next: start and stop local model servers on demand, and give the GPU to "
    "the waiting job with the highest score.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
            help="Where to listen. A bare port is on this machine only; :PORT is on all interfaces, as the default of "
            "llama-swap is: give the file `keys` then.",
        ),
    ] = DEFAULT_LISTEN,
    version: Version = False,
) -> None:
    """Run the gateway until Ctrl-C or SIGTERM; SIGHUP loads the configuration again."""
    if config is None:
        fail("at least one of -config or -config-dir must be provided: name your config.yaml with --config FILE")
    try:
        host, port = listen_address(listen)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--listen'") from None

    from swaplane.config.load import load
    from swaplane.config.problems import ConfigError
    from swaplane.gateway.server import ListenError
    from swaplane.gateway.server import serve as run_gateway
    from swaplane.store.errors import StoreError

    try:
        settings = load(str(config), os.environ)
        if note := who_can_reach(listen, host, keyed=bool(settings.keys)):
            typer.echo(note, err=True)
        code = run_gateway(settings, host, port)
    except ConfigError as error:
        fail(*error.problems)
    except ListenError as error:
        fail(f"{error}; --listen HOST:PORT chooses another address")
    except StoreError as error:
        fail(f"{error} (`jobs: {{path: ...}}` in the file chooses another folder)")
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
        fail(*error.problems)
    if json_output:
        print_json(described(settings))
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


for _command in (queue, members, cancel, pause, resume):
    app.command()(_command)
app.add_typer(key_app, name="key")
