"""`swaplane key new`: a fresh API key, and what the file has to say of it.

The key is shown this once and kept nowhere: the file holds its hash. Asks no gateway and changes no file. Put into
the command line by `cli`.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import string
from typing import Annotated

import typer

from swaplane.cli_output import Json, print_json

_BYTES = 32  # of chance in a key
_LETTERS = 6  # of chance in a name

app = typer.Typer(help="Make API keys.", no_args_is_help=True)


@app.callback()
def _key() -> None:
    # With a callback the group keeps its one command's name.
    pass


def _fit_for_the_file(parameter: typer.CallbackParam, value: str | None) -> str | None:
    """An option's value, if the file takes it."""
    from swaplane.config.keys import member_fault, name_fault

    if value is not None:
        fault = member_fault(value) if parameter.name == "member" else name_fault(value)
        if fault or not value:
            raise typer.BadParameter(fault or "must not be empty")
    return value


@app.command()
def new(
    name: Annotated[
        str | None,
        typer.Option(
            callback=_fit_for_the_file,
            help="What the key is called. Without it: like its member; without both a name is made up.",
        ),
    ] = None,
    member: Annotated[
        str | None, typer.Option(callback=_fit_for_the_file, help="On whose behalf its jobs run.")
    ] = None,
    tier: Annotated[
        str | None, typer.Option(callback=_fit_for_the_file, help="Its tier: one of the file's `scheduling.tiers`.")
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="It may unload, pause, read logs, and see and end everybody's jobs.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Make an API key: print it, this once, and the entry for `keys:` in the file. Contacts nothing."""
    key = f"sk-{secrets.token_urlsafe(_BYTES)}"
    entry: dict[str, str | bool] = {"key": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"}
    if not name and not member:
        # Without one it would be called by its place in the file, which changes.
        name = "key-" + "".join(secrets.choice(string.ascii_lowercase) for _ in range(_LETTERS))
    entry |= {option: value for option, value in (("name", name), ("member", member), ("tier", tier)) if value}
    if admin:
        entry["admin"] = True
    if json_output:
        print_json({"key": key, "entry": entry})
        return
    typer.echo(f"The key, which is shown this once:\n\n    {key}\n\nIts entry in the file (SIGHUP loads it again):\n")
    typer.echo("keys:")
    for index, (option, value) in enumerate(entry.items()):
        # What JSON writes in quotes, YAML reads so.
        shown = value if option == "key" else json.dumps(value, ensure_ascii=False)
        typer.echo(f"{'    ' if index else '  - '}{option}: {shown}")
