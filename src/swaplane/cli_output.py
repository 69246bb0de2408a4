"""How the command line says what came out: one JSON document, or what is wrong, a line for each sentence.

Decides nothing. Called by the commands of `cli`, `cli_gateway` and `cli_key`.
"""

from __future__ import annotations

import json
from typing import Annotated, NoReturn

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def print_json(document: object) -> None:
    """Print `document` on standard output, indented."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def fail(*sentences: str) -> NoReturn:
    """Tell what is wrong on standard error, a line for each sentence, and exit 1."""
    for sentence in sentences:
        typer.echo(sentence, err=True)
    raise typer.Exit(1)
