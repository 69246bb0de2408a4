"""What tests of the command line share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FAKE = Path(__file__).with_name("fake_gateway.py")


@pytest.fixture
def url() -> Iterator[str]:
    with subprocess.Popen([sys.executable, str(FAKE)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()
