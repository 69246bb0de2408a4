"""Requests reach the model one at a time, in the order of the score."""

from __future__ import annotations

from pathlib import Path

from tests.support.gateway import GatewayProcess, stub_models
from tests.support.stub_client import eventually

#: (priority header as sent, or None for no header) in the order in which the requests are sent.
SENT = [b"batch", b"normal", b"interactive", b"-98", b"+100", b"interactive", b"x", None, b"1e2", "٣".encode()]

#: Interactive first, then all that means 0 (invalid values too), then -98, then -100; within one by arrival.
EXPECTED = [
    "2-interactive",
    "4-+100",
    "5-interactive",
    "1-normal",
    "6-x",
    "7-None",
    "8-1e2",
    "9-٣",
    "3--98",
    "0-batch",
]


def test_the_headers_order_is_the_order_at_the_server(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, stub_models("mA")) as gateway:
        running = gateway.raw_chat("mA", "running", headers=b"X-LlamaSwap-Priority: batch\r\n", stub={"dur": 2})
        eventually(lambda: gateway.journal("req_start"), "the batch job runs")
        connections = [running]
        for number, value in enumerate(SENT):
            header = b"" if value is None else b"X-LlamaSwap-Priority: " + value + b"\r\n"
            rid = f"{number}-{value.decode() if value else None}"
            connections.append(gateway.raw_chat("mA", rid, headers=header, stub={"dur": 2}))
            waiting = number + 1
            eventually(lambda: len(gateway.queue()["waiting"]) == waiting, f"{rid} waits")  # noqa: B023

        foreseen = [job["id"] for job in gateway.queue()["waiting"]]
        eventually(lambda: len(gateway.journal("req_end")) == 11, "all have run", within_s=60)

        starts, ends = gateway.journal("req_start"), gateway.journal("req_end")
        assert [entry["rid"] for entry in starts] == ["running", *EXPECTED]
        for ended, started in zip(ends, starts[1:], strict=False):
            assert ended["t"] <= started["t"], "two jobs ran at once"
        assert len(foreseen) == 10
        answers = [connection.recv(65536) for connection in connections]
        assert all(b" 200 " in answer.split(b"\r\n")[0] for answer in answers)
        by_position = [answer.split(b"X-LlamaSwap-Job: ")[1].split(b"\r\n")[0].decode() for answer in answers]
        assert [int(rid.split("-")[0]) for rid in EXPECTED] == [by_position[1:].index(job) for job in foreseen]
        reasons = [b"X-LlamaSwap-Priority-Reason" in answer for answer in answers]
        assert reasons == [False] * 7 + [True, False, True, True]
        assert gateway.metric("swaplane_dispatched_total", band="interactive") == 3
        assert gateway.metric("swaplane_jobs_total", outcome="completed") == 11
