from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swaplane.config.settings import ModelSettings
from swaplane.core.outcomes import Outcome
from swaplane.core.score import ScoreRules
from swaplane.gateway.answers import send_answer
from swaplane.gateway.client_side import ClientSide
from swaplane.gateway.outage import Outage
from swaplane.gateway.passage import Errand, Passage
from swaplane.gateway.stored_run import StoredRuns
from swaplane.runtime import Runtime
from swaplane.store import Store, StoreError
from swaplane.ticket import Run, Ticket
from tests.gateway.test_batches import counts, over, read, request, start
from tests.gateway.test_detached import FOREVER, accept, ended, ended_by, runs, send, started
from tests.store.support import add
from tests.support.gateway import GatewayProcess, stub_models
from tests.support.openai_client import client_of
from tests.support.stub_client import eventually

LOCKED_S = 60.0  # what is made to wait for a lock gives up after ten seconds, and a few do so one after the other

Trouble = Callable[[GatewayProcess], AbstractContextManager[None]]


@pytest.fixture
def gateway(tmp_path: Path) -> GatewayProcess:
    return GatewayProcess(tmp_path, stub_models("mA", "mB"))


@contextmanager
def changing(gateway: GatewayProcess) -> Iterator[sqlite3.Connection]:
    [database] = gateway.config.parent.rglob("jobs.db")
    connection = sqlite3.connect(database, isolation_level=None, timeout=60)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def locked(gateway: GatewayProcess) -> Iterator[None]:
    """The database for the block, as a program that holds it makes it: each write fails after a long wait."""
    with changing(gateway) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


@contextmanager
def broken(gateway: GatewayProcess) -> Iterator[None]:
    """The database for the block, with nothing about jobs that can be written: each write fails at once."""
    changes = ("INSERT ON jobs", "UPDATE ON jobs", "DELETE ON jobs", "UPDATE ON probes")
    with changing(gateway) as connection:
        for number, change in enumerate(changes):
            words = "SELECT RAISE(ABORT, 'the disk is full')"
            connection.execute(f"CREATE TRIGGER refuse{number} BEFORE {change} BEGIN {words}; END")
        try:
            yield
        finally:
            for number in range(len(changes)):
                connection.execute(f"DROP TRIGGER refuse{number}")


both = pytest.mark.parametrize("outage", [locked, broken])
#: A lock is waited for before it counts as an outage, which takes a test half a minute.
at_once = pytest.mark.parametrize("outage", [broken])


def is_seen(gateway: GatewayProcess) -> None:
    eventually(lambda: "jobs wait until the disk" in gateway.log.read_text(), "the outage is seen", LOCKED_S)


def gpu(gateway: GatewayProcess, what: str) -> None:
    assert gateway.request("POST", f"/api/lanes/gpu/{what}").status_code == 200


def held(gateway: GatewayProcess, *rids: str, model: str = "mA", **options: Any) -> list[str]:
    """Jobs that wait, because the lane is paused from now on."""
    gpu(gateway, "pause")
    return [accept(gateway, model, rid, **options) for rid in rids]


def shown(gateway: GatewayProcess, jobs: list[str], key: str) -> list[Any]:
    return [gateway.get(job).json()[key] for job in jobs]


def outcomes(gateway: GatewayProcess, jobs: list[str]) -> set[str]:
    return {ended(gateway, job)["outcome"] for job in jobs}


# What waits


@both
def test_ten_jobs_outlast_an_outage(gateway: GatewayProcess, outage: Trouble) -> None:
    with gateway:
        long = accept(gateway, "mA", "long", stub={"dur": 2}, headers={"X-LlamaSwap-Member": "zoe"})
        jobs = []
        for member in ("ann", "ben"):
            for number in range(5):
                own = {"X-LlamaSwap-Member": member}
                jobs.append(accept(gateway, "mA", f"{member}-{number}", headers=own, stub={"dur": 0.1}))
        runs(gateway, "long")
        with outage(gateway):
            is_seen(gateway)
            assert gateway.chat("mA", rid="chat").status_code == 200
            eventually(lambda: not gateway.queue()["waiting"], "all are put off")
            assert set(shown(gateway, jobs, "state")) == {"waiting"}
            assert set(shown(gateway, jobs, "attempts")) == {0}
            assert "is stored and not in the queue" in gateway.get(f"{jobs[0]}/why").json()["text"]
            assert started(gateway) == ["long", "chat"]
        assert outcomes(gateway, [long, *jobs]) == {"completed"}
        in_turn = [f"{member}-{number}" for number in range(5) for member in ("ann", "ben")]
        assert started(gateway) == ["long", "chat", *in_turn]
        assert set(shown(gateway, [long, *jobs], "attempts")) == {1}


class Passed:
    """A passage whose model answers all."""

    async def run(self, client: ClientSide, errand: Errand, ticket: Ticket) -> Outcome:
        send_answer(client, 200, [(b"Content-Length", b"2")], b"{}")
        return Outcome.COMPLETED


@pytest.mark.anyio
@pytest.mark.parametrize(("failures", "outcome"), [(1, "completed"), (2, "gateway_error")])
async def test_only_what_fails_while_the_store_works_ends_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, outcome: str
) -> None:
    store = await Store.open(tmp_path)
    stored = await add(store, "j-1")
    really, refused = store.jobs.started, [StoreError("not now")] * failures

    async def started_at_last(job_id: str) -> None:
        if refused:
            raise refused.pop()
        await really(job_id)

    monkeypatch.setattr(store.jobs, "started", started_at_last)
    jobs = SimpleNamespace(keep_s=60.0, interrupted="rerun")
    model = ModelSettings(id="mA", argv=("x",), cmd="x", proxy="http://127.0.0.1:1")
    runtime = SimpleNamespace(
        dispatcher=SimpleNamespace(rules=ScoreRules()), recent={}, settings=SimpleNamespace(jobs=jobs, keys=())
    )
    turn = asyncio.get_running_loop().create_future()
    turn.set_result(Run(proxy=model.proxy, waited_s=0.0))
    ticket = SimpleNamespace(
        job=stored, turn=turn, on_cut=lambda _: None, ended=lambda _: None, server_id=None, lane="gpu"
    )
    runs = StoredRuns(cast("Runtime", runtime), store, cast("Passage", Passed()), Outage(store))
    assert await runs.run(stored, model, cast("Ticket", ticket)) == outcome
    kept = await store.jobs.get("j-1")
    assert kept is not None
    assert (kept.state, kept.outcome) == ("ended", outcome)
    await store.close()


@at_once
def test_new_jobs_are_refused_meanwhile(gateway: GatewayProcess, outage: Trouble) -> None:
    with gateway:
        with outage(gateway):
            answer = send(gateway, "mA", "refused")
            assert answer.status_code == 507
            error = answer.json()["error"]
            assert error["code"] == "insufficient_storage"
            assert error["message"].startswith("the job was not accepted, because it could not be stored: ")
            assert "\n" not in error["message"]
            assert gateway.chat("mA", rid="chat").status_code == 200
        ended(gateway, accept(gateway, "mA", "taken"))
        assert started(gateway) == ["chat", "taken"]


# Cancelling


@at_once
def test_who_cancels_in_an_outage_is_answered_and_the_job_ends_after_it(tmp_path: Path, outage: Trouble) -> None:
    with GatewayProcess(tmp_path, stub_models("mA", extra="concurrencyLimit: 3")) as gateway:
        running = accept(gateway, "mA", "runs", stub=FOREVER)
        runs(gateway, "runs")
        deferred, again, kept = held(gateway, "never", "never-too", "kept")
        with outage(gateway):
            gpu(gateway, "resume")
            is_seen(gateway)
            eventually(lambda: not gateway.queue()["waiting"], "they are put off")
            for job in (deferred, running, again):
                answer = gateway.request("DELETE", job)
                assert answer.status_code == 507
                message = answer.json()["error"]["message"]
                assert message.endswith("has been told to end, but the disk has not taken its end yet; ask again later")
            assert shown(gateway, [deferred, running], "outcome") == [None, None]
        assert gateway.request("DELETE", again).status_code == 200
        assert ended(gateway, deferred)["outcome"] == "cancelled_waiting"
        assert ended(gateway, running)["outcome"] == "cancelled_running"
        assert ended(gateway, kept)["outcome"] == "completed"
        assert [gateway.get(f"{job}/result").status_code for job in (deferred, running)] == [410, 502]
        assert started(gateway) == ["runs", "kept"]


def test_a_job_that_is_cancelled_while_its_start_is_being_stored_is_not_sent(gateway: GatewayProcess) -> None:
    with gateway:
        assert gateway.chat("mA", rid="chat").status_code == 200
        [job] = held(gateway, "never")
        with locked(gateway):
            gpu(gateway, "resume")
            eventually(lambda: gateway.queue()["running"], "its turn has come")
            assert gateway.request("DELETE", job).status_code in (200, 507)
            is_seen(gateway)
        assert ended(gateway, job)["outcome"] == "cancelled_waiting"
        assert gateway.get(f"{job}/result").status_code == 410
        assert started(gateway) == ["chat"]


# The gateway's end and start


@at_once
def test_a_gateway_that_ends_in_an_outage_leaves_all_to_the_next(gateway: GatewayProcess, outage: Trouble) -> None:
    with ExitStack() as beyond_the_end, ended_by(gateway, signal.SIGTERM):
        running = accept(gateway, "mA", "runs", stub={"dur": 3})
        runs(gateway, "runs")
        waiting = [accept(gateway, "mA", rid) for rid in ("a", "b", "c")]
        beyond_the_end.enter_context(outage(gateway))
        is_seen(gateway)
    assert "Traceback" not in gateway.log.read_text()
    with gateway:
        assert outcomes(gateway, [running, *waiting]) == {"completed"}
        assert started(gateway) == ["runs", "runs", "a", "b", "c"]  # how it ended the first time was not stored


@at_once
def test_a_gateway_that_starts_in_an_outage_serves_models_and_goes_on_after_it(
    gateway: GatewayProcess, outage: Trouble
) -> None:
    with ended_by(gateway, signal.SIGKILL):
        running = accept(gateway, "mA", "runs", stub={"dur": 1})
        runs(gateway, "runs")
        waiting = [accept(gateway, "mA", rid) for rid in ("a", "b")]
    with ExitStack() as up:
        with outage(gateway):
            up.enter_context(gateway)
            is_seen(gateway)
            assert gateway.chat("mA", rid="chat").status_code == 200
            assert set(shown(gateway, waiting, "state")) == {"waiting"}
            assert started(gateway) == ["runs", "chat"]
        assert outcomes(gateway, [running, *waiting]) == {"completed"}
        assert started(gateway) == ["runs", "chat", "runs", "a", "b"]


# Batches


def test_a_batch_outlasts_an_outage(gateway: GatewayProcess) -> None:
    with gateway, client_of(gateway) as client:
        batch = start(client, [request(f"l{n}", dur=0.1) for n in range(30)])
        runs(gateway, "l3")
        with broken(gateway):
            is_seen(gateway)
            assert gateway.chat("mA").status_code == 200
            assert client.batches.retrieve(batch.id).status == "in_progress"
        batch = over(client, batch)
        assert (batch.status, *counts(batch)) == ("completed", 30, 30, 0)
        assert [line["custom_id"] for line in read(client, batch.output_file_id)] == [f"l{n}" for n in range(30)]
        assert Counter(started(gateway)) == Counter(f"l{n}" for n in range(30)) + Counter(["None"])


def test_a_batch_that_is_cancelled_in_an_outage_ends_after_it(gateway: GatewayProcess) -> None:
    with gateway, client_of(gateway) as client:
        batch = start(client, [request(f"l{n}", dur=0.1) for n in range(250)])  # more than are in the queue
        runs(gateway, "l3")
        with broken(gateway):
            is_seen(gateway)
            eventually(lambda: not gateway.queue()["waiting"], "all are put off")
            assert client.batches.cancel(batch.id).status == "cancelling"
            # Longer than a cancelled job makes its client wait.
            eventually(lambda: gateway.log.read_text().count("is not stored yet") > 600, "no end is taken", 60)
            ran = started(gateway)
        batch = over(client, batch)
        assert (batch.status, *counts(batch)) == ("cancelled", 250, len(ran), 250 - len(ran))
        assert started(gateway) == ran


def test_lines_wait_for_a_model_that_is_left_alone_after_failed_starts(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    starts.write_text("exit exit exit")
    config = stub_models("mA", flags=f"--max-starts-file {starts}")
    with GatewayProcess(tmp_path, config) as gateway, client_of(gateway) as client:
        eventually(lambda: gateway.chat("mA").status_code != 200 and not starts.read_text(), "three starts failed")
        assert gateway.chat("mA").status_code == 503
        batch = over(client, start(client, [request(f"l{n}") for n in range(30)]))
        assert (batch.status, *counts(batch)) == ("completed", 30, 30, 0)


# Names and times


def test_jobs_of_a_model_that_was_renamed_run_under_its_new_name(gateway: GatewayProcess) -> None:
    with ended_by(gateway, signal.SIGKILL), client_of(gateway) as client:
        running = accept(gateway, "mB", "runs", stub={"dur": 1})
        runs(gateway, "runs")
        waiting = [accept(gateway, "mB", "a"), accept(gateway, "mA", "gone")]
        batch = start(client, [request(f"l{n}", "mB") for n in range(210)])
        eventually(lambda: client.batches.retrieve(batch.id).status == "in_progress", "its lines are stored")
        gpu(gateway, "pause")
    gateway.write_config(stub_models("mC", extra="aliases: [mB]"))
    with gateway, client_of(gateway) as client:
        assert [ended(gateway, job)["outcome"] for job in (running, *waiting)] == [
            "completed",
            "completed",
            "model_removed",
        ]
        batch = over(client, batch)
        assert (batch.status, *counts(batch)) == ("completed", 210, 210, 0)
        assert {entry["name"] for entry in gateway.journal("boot")} == {"mB", "mC"}


def test_a_job_whose_time_is_over_is_unknown_at_once_and_its_key_free(tmp_path: Path) -> None:
    key = {"Idempotency-Key": "k"}
    with GatewayProcess(tmp_path, stub_models("mA") + "jobs: {keep: 1}\n") as gateway:
        job = accept(gateway, "mA", "old", headers=key)
        eventually(lambda: gateway.get(job).status_code == 404, "its time is over")
        assert gateway.get(f"{job}/result").status_code == 404
        assert gateway.request("DELETE", job).status_code == 404
        again = accept(gateway, "mA", "old", headers=key)
        assert again != job
        assert gateway.get(again).status_code == 200
        eventually(lambda: started(gateway) == ["old", "old"], "it runs once more")
