"""Where the gateway's own lines go."""

from __future__ import annotations

import os
import subprocess
import sys

from swaplane.observe.log_output import StandardError

LINE = b"x" * 200 + b"\n"

SCRIPT = """
import structlog
from swaplane.observe.log_output import configure_logging
from swaplane.observe.logs import LogHub
logs = LogHub()
configure_logging(logs, level="warn")
log = structlog.get_logger()
log.info("not at this level")
log.warning("a line", empty="", spaced="a b", plain=1, nothing=None)
assert logs.proxy.text().endswith("[warning] a line empty='' spaced='a b' plain=1\\n"), logs.proxy.text()
"""


def test_a_pipe_that_nobody_reads_costs_lines_and_no_time() -> None:
    reader, writer = os.pipe()
    output = StandardError(writer)
    for _ in range(2000):
        output.write(LINE)  # far more than a pipe holds
    held = os.read(reader, 1 << 20)
    assert held.count(b"\n") < 2000
    output.write(b"again\n")
    told, again = os.read(reader, 1 << 20).splitlines()
    assert told == b"... %d lines dropped: nobody read them ..." % (2000 - held.count(b"\n"))
    assert again == b"again"
    os.close(reader)
    output.write(LINE)
    os.close(writer)


def test_a_line_reads_time_level_event_and_pairs() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[0].partition(" ")[2] == "[warning] a line empty='' spaced='a b' plain=1"
    assert len(done.stderr.splitlines()) == 1
