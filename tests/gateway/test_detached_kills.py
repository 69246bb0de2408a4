"""A thousand accepted jobs, and a gateway that is killed again and again while they are taken in and run."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import httpx2

from tests.support.gateway import GatewayProcess, stub_models
from tests.support.stub_client import eventually, leftovers

JOBS = 1000
KILLS = 10
SEED = 20260917
MEMBERS = ("ann", "ben", "eve", "kim")
PRIORITIES = ("-100", "0", "1", "100")

# All models stay resident and none is preferred, so that nothing but the order of acceptance can decide within a
# (member, priority).
CONFIG = (
    stub_models("mA", "mB", "mC")
    + """
groups:
  all: {swap: false, exclusive: false, members: [mA, mB, mC]}
scheduling: {swap_affinity: 0}
"""
)


@dataclass(frozen=True)
class Accepted:
    """One accepted job."""

    rid: str
    line: tuple[str, str]  #: (member, priority): its jobs start in the order of their acceptance
    path: str
    keyed: bool


class Client(threading.Thread):
    """One member's client: sends its jobs one after the other, and those with a key again until they are accepted."""

    def __init__(self, gateway: GatewayProcess, member: str, seed: int) -> None:
        super().__init__(name=f"client of {member}", daemon=True)
        self.accepted: list[Accepted] = []
        self.unsure: set[str] = set()  # without a key and without an answer: they may or may not have been accepted
        self._http = gateway.client()
        self._member = member
        self._random = random.Random(seed)

    def run(self) -> None:
        number = 0
        with self._http:
            while len(self.accepted) < JOBS // len(MEMBERS):
                self._send(f"{self._member}-{number}")
                number += 1

    def _send(self, rid: str) -> None:
        priority, model = self._random.choice(PRIORITIES), self._random.choice(("mA", "mB", "mC"))
        headers = {"Prefer": "respond-async", "X-LlamaSwap-Member": self._member, "X-LlamaSwap-Priority": priority}
        keyed = self._random.random() < 0.5
        if keyed:
            headers["Idempotency-Key"] = f"key of {rid}".replace(" ", "-")
        while True:
            try:
                answer = self._http.post(
                    "/v1/chat/completions", json={"model": model, "rid": rid, "stub": {}}, headers=headers
                )
            except httpx2.TransportError:
                time.sleep(0.05)  # it starts again
                if keyed:
                    continue
                self.unsure.add(rid)
                return
            assert answer.status_code == 202, answer.text
            self.accepted.append(Accepted(rid, (self._member, priority), answer.headers["Location"], keyed))
            return


def test_no_accepted_job_is_lost_doubled_or_overtaken(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    gateway = GatewayProcess(tmp_path, CONFIG)
    clients = [Client(gateway, member, SEED + n) for n, member in enumerate(MEMBERS)]
    with gateway.unguarded():
        for client in clients:
            client.start()
        for starts in sorted(chance.sample(range(1, JOBS * 3 // 4), KILLS)):
            until_started(tmp_path, starts)
            time.sleep(chance.uniform(0, 0.02))  # at any point of a job's life
            gateway.process.kill()
            gateway.process.wait()
            gateway.__enter__()
        for client in clients:
            client.join(60)
            assert not client.is_alive()
        eventually(lambda: not gateway.queue()["waiting_total"] and not gateway.queue()["running"], "all end", 60)

        accepted = [job for client in clients for job in client.accepted]
        outcomes = {job.rid: outcome_of(gateway, job) for job in accepted}
        for job in accepted[::20]:
            if outcomes[job.rid] == "completed":
                assert gateway.get(f"{job.path}/result").json()["rid"] == job.rid
        assert gateway.stop() == 0
    eventually(lambda: not leftovers(gateway.stub_id), "no model process is left")

    starts_of: dict[str, list[float]] = defaultdict(list)
    for entry in gateway.journal("req_start"):
        starts_of[entry["rid"]].append(entry["t"])
    assert len(accepted) == JOBS
    assert len({job.path for job in accepted}) == JOBS
    for job in accepted:
        if job.keyed:
            assert len(starts_of[job.rid]) <= 1, f"{job} ran twice"
            assert outcomes[job.rid] in ("completed", "interrupted")
            assert starts_of[job.rid] or outcomes[job.rid] == "interrupted", f"{job} never ran"
        else:
            assert 1 <= len(starts_of[job.rid]) <= 3, f"{job} ran {len(starts_of[job.rid])} times"
            assert outcomes[job.rid] == "completed"
    for line in {job.line for job in accepted}:
        ran = [job.rid for job in accepted if job.line == line and starts_of[job.rid]]
        assert ran == sorted(ran, key=lambda rid: starts_of[rid][0]), f"{line} did not run in order of acceptance"


def until_started(folder: Path, count: int) -> None:
    journal = folder / "journal.jsonl"  # counted as bytes: parsing it again and again takes a second core

    def enough() -> bool:
        return journal.exists() and journal.read_bytes().count(b'"ev": "req_start"') >= count

    eventually(enough, f"{count} have started", 60)


def outcome_of(gateway: GatewayProcess, job: Accepted) -> str:
    eventually(lambda: gateway.get(job.path).json()["state"] == "ended", f"the end of {job} is stored", 60)
    return str(gateway.get(job.path).json()["outcome"])
