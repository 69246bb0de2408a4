"""How long the GPU is idle between two renders of the resident model, when a render outlives its response.

Such a job is over when the gateway's next poll says so. Clients keep the queue filled with renders of random length;
the gap is measured at the server, from the end of one render to the beginning of the next. Once nobody but the
gateway asks how a render is, once its client asks ten times a second, which the gateway learns from too. Beside it,
in the same run: one client directly, which asks every second, as OpenAI's own does, and then sends its next.

`python benchmarks/polling.py [--quick] [--renders N]`
"""

from __future__ import annotations

import argparse
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from support import HERE, ModelServer, Process, gateway, machine, post, table

SERVER = HERE.parent / "tests" / "support" / "video_jobs.py"
VIDEOS = "/v1/videos"
CLIENTS = 4
SHORTEST_S = 0.3
LONGEST_S = 3.0
ONCE_S = 1.0  # between two questions of the client that has no gateway
OFTEN_S = 0.1  # the same, of clients that ask often


class VideoServer(ModelServer):
    """A server of OpenAI's videos API whose renders take as long as they are told."""

    def __init__(self, name: str, journal: Path) -> None:
        super().__init__(name, slots=1)
        self._journal = journal

    def entry(self) -> str:
        """Its lines in the configuration; the gateway's own state goes beside the journal."""
        own = super().entry().replace(str(HERE / "support_server.py"), f"{SERVER} --name {self.name}")
        more = f'    completion: openai-videos\n    env: ["STUB_LOG={self._journal}"]\n'
        return f"{own}{more}"

    def gaps_s(self) -> list[float]:
        """From the end of each render but the first to the beginning of the next, seconds; in order of size."""
        entries = [json.loads(line) for line in self._journal.read_text().splitlines()]
        starts, ends = ([each["t"] for each in entries if each["ev"] == ev] for ev in ("gpu_start", "gpu_end"))
        return sorted(start - end for start, end in zip(starts[2:], ends[1:], strict=False))


def render(process: Process, name: str, seconds: float, every_s: float | None) -> None:
    """Submit one, and ask for it every so many seconds until it is over; None: do not ask."""
    asked = {"model": name, "prompt": "a night train", "seconds": f"{seconds:.3f}"}
    job = json.loads(post(process.port, VIDEOS, asked))
    while every_s is not None and job["status"] not in ("completed", "failed"):
        time.sleep(every_s)
        job = process.get_json(f"{VIDEOS}/{job['id']}")


def measured(count: int, *, every_s: float | None, direct: bool) -> list[str]:
    """The cells of one way to render so many: median and 95th percentile of the gaps."""
    chance = random.Random(174)
    lengths_s = [chance.uniform(SHORTEST_S, LONGEST_S) for _ in range(count)]
    with TemporaryDirectory() as folder:
        server = VideoServer("video", Path(folder, "journal"))
        with gateway(server) as through:
            render(through, server.name, SHORTEST_S, OFTEN_S)  # starts the model
            asked = server.process() if direct else through
            with ThreadPoolExecutor(1 if direct else CLIENTS) as clients:
                list(clients.map(lambda length_s: render(asked, server.name, length_s, every_s), lengths_s))
            while through.get_json("/api/queue")["lanes"][0]["running"]:
                time.sleep(OFTEN_S)
            gaps_s = server.gaps_s()
    return [f"{gaps_s[int(len(gaps_s) * part)] * 1e3:,.0f} ms" for part in (0.5, 0.95)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="6 renders each: rough numbers in 45 s")
    parser.add_argument("--renders", type=int, help="how many of each kind")
    asked = parser.parse_args()
    count = asked.renders or (6 if asked.quick else 20)
    print(f"{machine()}\n")
    rows = [
        ["gateway, nobody else asks", *measured(count, every_s=None, direct=False)],
        [f"gateway, clients ask every {OFTEN_S:g} s", *measured(count, every_s=OFTEN_S, direct=False)],
        [f"beside it: one client directly, asks every {ONCE_S:g} s", *measured(count, every_s=ONCE_S, direct=True)],
    ]
    print(table([f"GPU idle between two of {count} renders of {SHORTEST_S:g} to {LONGEST_S:g} s", "p50", "p95"], rows))


if __name__ == "__main__":
    main()
