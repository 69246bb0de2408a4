"""What the gateway adds to a request: latency, requests per second and CPU time, against the direct connection.

The same model server is loaded directly and through the gateway in turns, at 1, 16 and 64 clients, with whole
answers (JSON) and with event streams of 64 chunks. The model has 64 slots, so nothing waits: every request is a
job all the same, with its decision, its record, its metrics and its line in the log. Below the table follow a
stream at the pace of a model, the gap between two jobs of a model with one slot, and what starting costs.

`python benchmarks/overhead.py [--quick] [--profile]`
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support import HERE, ModelServer, Process, chat, gateway, load, machine, median, post, table, uvicorn_alone
from support_load import Measured

CHUNKS = 64
KINDS: dict[str, dict[str, Any] | None] = {"json": None, "stream": {"chunks": CHUNKS}}
PACED = {"chunks": CHUNKS, "every_s": 0.005}  # 200 tokens a second in each of ...
PACED_CLIENTS = 16  # ... so many streams
WORK = {"work_s": 0.002}  # of a job whose follower is waited for


class Side:
    """All runs of one case on one side: direct, or through the gateway."""

    def __init__(self) -> None:
        self._runs: list[Measured] = []
        self._cpu_s = 0.0

    def run(self, process: Process, **case: Any) -> None:
        """One more run against this process."""
        cpu_s = process.cpu_s()
        self._runs.append(load(process.port, **case))
        self._cpu_s += process.cpu_s() - cpu_s

    @property
    def per_second(self) -> float:
        """Requests per second."""
        return median([run["per_second"] for run in self._runs])

    def us(self, key: str) -> float:
        """The median over the runs of one of `Measured`'s times, in microseconds."""
        return median([run[key] * 1e6 for run in self._runs])  # type: ignore[literal-required]

    @property
    def cpu_us_per_request(self) -> float:
        """CPU time of the process per request."""
        return self._cpu_s * 1e6 / sum(run["sent"] for run in self._runs)

    @property
    def cpu_us_per_chunk(self) -> float:
        """CPU time of the process per event of a stream, its requests' included."""
        return self._cpu_s * 1e6 / sum(run["chunks"] for run in self._runs)


def both(server: Process, through: Process, repeats: int, **case: Any) -> tuple[Side, Side]:
    """Runs of a case in turns, directly and through the gateway."""
    direct, gated = Side(), Side()
    for _ in range(repeats):
        direct.run(server, **case)
        gated.run(through, **case)
    return direct, gated


def _times(more: float, less: float) -> str:
    """How many times as much; CPU time is counted in ticks, of which a short run may have none."""
    return f"{more / less:.1f}x" if less else "-"


def throughput(many: ModelServer, through: Process, clients: Sequence[int], repeats: int, seconds: float) -> str:
    """The main table."""
    rows = []
    for kind, bench in KINDS.items():
        for count in clients:
            direct, gated = both(
                many.process(), through, repeats, clients=count, seconds=seconds, model=many.name, bench=bench
            )
            p50, p99 = (gated.us(key) - direct.us(key) for key in ("p50_s", "p99_s"))
            rows.append(
                [
                    kind,
                    f"{count}",
                    f"{direct.per_second:,.0f}",
                    f"{gated.per_second:,.0f}",
                    f"{gated.per_second / direct.per_second:.2f}",
                    f"{p50:,.0f} ({gated.us('p50_s') / direct.us('p50_s'):.1f}x)",
                    f"{p99:,.0f} ({gated.us('p99_s') / direct.us('p99_s'):.1f}x)",
                    f"{gated.cpu_us_per_request:.0f} ({_times(gated.cpu_us_per_request, direct.cpu_us_per_request)})",
                    f"{gated.cpu_us_per_chunk:.1f}" if bench else "",
                ]
            )
    head = ["answer", "clients", "direct req/s", "gateway req/s", "ratio", "added p50 us", "added p99 us"]
    return table([*head, "CPU us/request", "CPU us/chunk"], rows)


def pace(many: ModelServer, through: Process, repeats: int, seconds: float) -> list[str]:
    """One row: the CPU time of a chunk that comes alone, as a model's tokens do, and how much later it arrives."""
    direct, gated = both(
        many.process(), through, repeats, clients=PACED_CLIENTS, seconds=seconds, model=many.name, bench=PACED
    )
    late = gated.us("chunk_p50_s") - direct.us("chunk_p50_s")
    return [
        f"CPU per chunk, {PACED_CLIENTS} streams of {1 / PACED['every_s']:.0f} chunks a second: gateway, model server",
        f"{gated.cpu_us_per_chunk:.1f} us",
        f"{direct.cpu_us_per_chunk:.1f} us",
        f"{gated.cpu_us_per_chunk / direct.cpu_us_per_chunk:.1f}x; it arrives {late:.0f} us later",
    ]


def gaps(one: ModelServer, through: Process, repeats: int, seconds: float) -> list[str]:
    """One row: how long the model server has nothing to do between two jobs, though more of them wait."""
    found: tuple[list[float], list[float]] = ([], [])
    server = one.process()
    for _ in range(repeats):
        for medians, port, clients in ((found[0], server.port, 1), (found[1], through.port, 16)):
            server.get("/gaps")
            load(port, clients=clients, seconds=seconds, model=one.name, bench=WORK)
            medians.append(median(server.get_json("/gaps")))
    direct_s, gated_s = map(median, found)
    return [
        "model idle between two jobs: 16 clients through the gateway, 1 client directly",
        f"{gated_s * 1e6:.0f} us",
        f"{direct_s * 1e6:.0f} us",
        f"{gated_s / direct_s:.1f}x",
    ]


def starting(repeats: int) -> list[list[str]]:
    """Two rows: the start of a gateway without models, and its memory; beside uvicorn without an application."""
    started_s: tuple[list[float], list[float]] = ([], [])
    rss_mb: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for side, started in enumerate((uvicorn_alone, gateway)):
            with started() as process:
                started_s[side].append(process.started_s)
                rss_mb[side].append(process.rss_bytes() / 1e6)
    bare_s, own_s = map(median, started_s)
    bare_mb, own_mb = map(median, rss_mb)
    return [
        [
            "start to the first answer: gateway without models, uvicorn alone",
            f"{own_s * 1e3:.0f} ms",
            f"{bare_s * 1e3:.0f} ms",
            f"{own_s / bare_s:.1f}x",
        ],
        [
            "memory when idle: gateway without models, uvicorn alone",
            f"{own_mb:.0f} MB",
            f"{bare_mb:.0f} MB",
            f"{own_mb / bare_mb:.1f}x",
        ],
    ]


def profile(many: ModelServer, seconds: float) -> None:
    """Print where the gateway's time goes under 16 clients, whole answers. A profiled gateway is half as fast."""
    with TemporaryDirectory() as folder:
        report = Path(folder, "report")
        with gateway(many, launcher=[str(HERE / "support_profile.py"), str(report)]) as through:
            post(through.port, "/v1/chat/completions", chat(many.name))
            load(through.port, clients=16, seconds=seconds, model=many.name)
        print(report.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short run of each case: rough numbers in 15 s")
    parser.add_argument("--seconds", type=float, help="length of one run")
    parser.add_argument("--repeats", type=int, help="runs of each case on each side")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64], help="numbers of clients")
    parser.add_argument("--profile", action="store_true", help="show instead where the gateway's time goes")
    asked = parser.parse_args()
    seconds = asked.seconds or (0.3 if asked.quick else 1.2)
    repeats = asked.repeats or (1 if asked.quick else 3)
    many, one = ModelServer("many", slots=64), ModelServer("one", slots=1)
    if asked.profile:
        profile(many, seconds=4 * seconds)
        return

    print(f"{machine()}\n{repeats} runs of {seconds:g} s for each number, in turns; medians\n")
    with gateway(many, one) as through:
        post(through.port, "/v1/chat/completions", chat(many.name))  # starts the model
        print(throughput(many, through, asked.clients, repeats, seconds), "\n", flush=True)
        rows = [pace(many, through, repeats, seconds)]
        post(through.port, "/v1/chat/completions", chat(one.name))
        rows.append(gaps(one, through, repeats, seconds))
    rows += starting(repeats)
    print(table(["", "gateway", "beside it", "ratio"], rows))


if __name__ == "__main__":
    main()
