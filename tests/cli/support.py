"""How these tests run the command line: as a user does, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, fit for output that does not depend on the terminal it runs in."""
    dropped = ("SWAPLANE_URL", "SWAPLANE_KEY", "FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {"COLUMNS": "100", "TERM": "dumb"} | changes


def swaplane(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `swaplane` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "swaplane", *arguments],
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
