"""`swaplane demo`: real models on the CPU, out of packages alone.

`run` is the whole of it. It checks for the packages before anything is imported that needs them.
"""

from __future__ import annotations

import sys

from swaplane.demo.packages import DemoPackageMissingError, require_packages


def run(*, keep: bool = False, port: int = 0, shots: int = 12, json_output: bool = False) -> int:
    """Play the demo and return the exit code: 0, 1 when a job or the gateway failed, 2 when it cannot start.

    `keep` leaves the gateway up afterwards until Ctrl-C. `port` is the gateway's, 0 takes a free one. `shots`
    is the length of the film. With `json_output` the result is one JSON document on standard output, and
    everything else goes to standard error. Ctrl-C or SIGTERM stops the gateway and gives 130.
    """
    try:
        require_packages()
    except DemoPackageMissingError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if shots < 1:
        sys.stderr.write(f"--shots: {shots} is too few; a film has at least 1 shot.\n")
        return 2
    from swaplane.demo.show import play

    return play(keep=keep, port=port, shots=shots, json_output=json_output)
