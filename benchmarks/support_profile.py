"""Runs the command line under the profiler: `python support_profile.py REPORT serve ...` as `swaplane serve ...`.

When the gateway ends, REPORT holds the functions by the time spent in themselves, and by all below them.
"""

from __future__ import annotations

import cProfile
import pstats
import sys

import swaplane.gateway.server  # noqa: F401 (imports are no part of the work)
from swaplane.cli import main

if __name__ == "__main__":
    report = sys.argv.pop(1)
    profiler = cProfile.Profile()
    try:
        profiler.runcall(main)
    finally:
        with open(report, "w") as stream:
            stats = pstats.Stats(profiler, stream=stream).strip_dirs()
            stats.sort_stats("tottime").print_stats(45)
            stats.sort_stats("cumtime").print_stats(45)
