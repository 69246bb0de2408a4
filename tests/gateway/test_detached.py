from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest

from swaplane.config.settings import ModelSettings
from swaplane.core.score import ScoreRules
from swaplane.gateway.access import EVERYBODY
from swaplane.gateway.body import Body
from swaplane.gateway.detached import DetachedJobs
from swaplane.gateway.headers import read_own_headers
from swaplane.gateway.jobs_api import wants_async
from swaplane.gateway.outage import JobNotStored
from swaplane.gateway.passage import Errand, Passage
from swaplane.runtime import Runtime
from swaplane.store import Store
from tests.support.gateway import GatewayProcess, stub_models
from tests.support.stub_client import eventually, leftovers

ASYNC = {"Prefer": "respond-async"}
FOREVER = {"dur": 600}
KILL = signal.SIGKILL


@pytest.fixture
def gateway(tmp_path: Path) -> GatewayProcess:
    return GatewayProcess(tmp_path, stub_models("mA", "mB"))


@pytest.fixture(scope="module")  # for the tests that do not end it; each uses names of its own
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("up"), stub_models("mA", "mB", "timed")) as gateway:
        yield gateway


def reporting(folder: Path) -> GatewayProcess:
    return GatewayProcess(folder, stub_models("mA", "mB") + "jobs: {interrupted: report}\n")


def send(
    gateway: GatewayProcess, model: str, rid: str, *, stub: Any = None, headers: Any = None, **body: Any
) -> httpx2.Response:
    content = {"model": model, "rid": rid, "stub": stub or {}, **body}
    return gateway.request("POST", "/v1/chat/completions", json=content, headers={**ASYNC, **(headers or {})})


def accept(gateway: GatewayProcess, model: str, rid: str, **options: Any) -> str:
    """The path of an accepted job."""
    answer = send(gateway, model, rid, **options)
    assert answer.status_code == 202, answer.text
    return str(answer.headers["Location"])


def ended(gateway: GatewayProcess, job: str) -> dict[str, Any]:
    """A job once it has ended."""
    eventually(lambda: gateway.get(job).json()["state"] == "ended", f"{job} ends", 60)
    return dict(gateway.get(job).json())


def result(gateway: GatewayProcess, job: str) -> httpx2.Response:
    """A job's answer once it has ended."""
    ended(gateway, job)
    return gateway.get(f"{job}/result")


def runs(gateway: GatewayProcess, *rids: str) -> None:
    eventually(lambda: not Counter(rids) - Counter(started(gateway)), f"{rids} run")


def started(gateway: GatewayProcess) -> list[str]:
    return [str(entry["rid"]) for entry in gateway.journal("req_start")]


def end(gateway: GatewayProcess, *numbers: signal.Signals) -> None:
    for number in numbers:
        gateway.process.send_signal(number)
    gateway.process.wait(60)
    eventually(lambda: not leftovers(gateway.stub_id), "no model process is left")


@contextmanager
def ended_by(gateway: GatewayProcess, *numbers: signal.Signals) -> Iterator[None]:
    """A gateway for the block, that then ends in this way."""
    gateway.__enter__()
    try:
        yield
    finally:
        end(gateway, *numbers)


# The answer


@pytest.mark.parametrize(
    "stub",
    [
        {"echo_body": True},
        {"echo_body": True, "status": 404},
        {"echo_body": True, "status": 422, "set_headers": [["Retry-After", "7"]]},
        {"echo_body": True, "status": 500},
        {"size": 3 << 20},
        {"echo_body": True, "gzip": True},
        {"size": 0, "status": 204},
    ],
    ids=lambda stub: "-".join(f"{key}={value}" for key, value in stub.items() if key != "set_headers"),
)
def test_the_result_is_what_a_waiting_client_gets(up: GatewayProcess, stub: dict[str, Any]) -> None:
    stub = {**stub, "set_headers": [*stub.get("set_headers", []), ["X-Model", "a"], ["X-Model", "b"]]}
    content = {"model": "mA", "stub": stub}
    with up.client() as client:
        direct, kept = (
            client.send(request, stream=True)
            for request in (
                client.build_request("POST", "/v1/chat/completions", json=content),
                client.build_request("GET", f"{accepted_and_ended(up, content)}/result"),
            )
        )
        assert kept.status_code == direct.status_code == stub.get("status", 200)
        assert b"".join(kept.iter_raw()) == b"".join(direct.iter_raw())
        ours = {"x-llamaswap-job", "x-llamaswap-wait"}
        assert {name for name, _ in direct.headers.multi_items()} >= ours
        expected = [(name, value) for name, value in direct.headers.multi_items() if name not in ours]
        got = kept.headers.multi_items()
        assert [header for header in expected if header not in got] == []
        assert kept.headers["X-LlamaSwap-Job"] != direct.headers["X-LlamaSwap-Job"]
        assert kept.headers.get_list("X-Model") == ["a", "b"]


def accepted_and_ended(gateway: GatewayProcess, content: dict[str, Any]) -> str:
    answer = gateway.request("POST", "/v1/chat/completions", json=content, headers=ASYNC)
    ended(gateway, answer.headers["Location"])
    return str(answer.headers["Location"])


def test_a_stream_is_kept_whole(up: GatewayProcess) -> None:
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    raw = [head, "8\r\ndata: a\n\r\n", 0.1, "e\r\ndata: [DONE]\n\n\r\n", "0\r\n\r\n"]
    answer = result(up, accept(up, "mA", "stream", stub={"raw": raw}, stream=True))
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/event-stream")
    assert answer.content == b"data: a\ndata: [DONE]\n\n"


def test_a_part_of_an_answer_can_be_asked_for(up: GatewayProcess) -> None:
    job = accept(up, "mA", "long", stub={"size": 3 << 20})
    ended(up, job)
    part = up.request("GET", f"{job}/result", headers={"Range": "bytes=1000-1099"})
    assert (part.status_code, part.content) == (206, b"\xa5" * 100)
    assert part.headers["Content-Range"] == f"bytes 1000-1099/{3 << 20}"


def test_an_answer_that_breaks_off_is_an_error_and_no_part(up: GatewayProcess) -> None:
    broken = accept(up, "mA", "breaks", stub={"die_at": 2, "chunks": 5}, stream=True)
    answer = result(up, broken)
    assert answer.status_code == 502
    assert "model's server" in answer.json()["error"]["message"]
    assert ended(up, broken)["outcome"] == "upstream_broken"


# Acceptance


def test_an_accepted_job_is_told_where_it_is(up: GatewayProcess) -> None:
    headers = {"X-LlamaSwap-Member": "ann", "X-LlamaSwap-Priority": "5000", "X-LlamaSwap-Label": "shot 1"}
    answer = send(up, "mA", "told", stub=FOREVER, headers=headers)
    job = answer.json()
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"/api/jobs/{job['id']}"
    assert answer.headers["Preference-Applied"] == "respond-async"
    assert answer.headers["X-LlamaSwap-Job"] == job["id"]
    assert answer.headers["X-LlamaSwap-Priority"] == "1000"
    assert answer.headers["X-LlamaSwap-Priority-Reason"] == "clamped from 5000 to 1000"
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert (job["member"], job["label"], job["priority"], job["detached"]) == ("ann", "shot 1", 1000, True)
    assert job["submitted_at"] == pytest.approx(time.time(), abs=60)
    assert (job["result"], job["status"]) == (f"{answer.headers['Location']}/result", None)

    runs(up, "told")
    eventually(lambda: up.get(answer.headers["Location"]).json()["state"] == "running", "it runs")
    running = up.get(answer.headers["Location"]).json()
    assert (running["detached"], running["attempts"], running["position"]) == (True, 1, None)
    early = up.get(job["result"])
    assert early.status_code == 409
    assert 1 <= int(early.headers["Retry-After"]) <= 60
    assert "is not over" in early.json()["error"]["message"]
    assert up.request("DELETE", answer.headers["Location"]).json() == {"msg": "ok", "id": job["id"]}


def test_the_wait_is_estimated_from_what_runs_before(up: GatewayProcess) -> None:
    assert up.chat("timed", stub={"dur": 1.2}).status_code == 200
    blocker = accept(up, "timed", "blocks-timed", stub=FOREVER)
    answers = [send(up, "timed", f"timed-{n}") for n in range(5)]
    waits = [int(answer.headers["Retry-After"]) for answer in answers]
    assert waits == sorted(waits)
    assert waits[0] >= 3
    assert waits[-1] >= waits[0] + 4
    up.request("DELETE", blocker)
    for answer in answers:
        ended(up, answer.headers["Location"])


def test_the_model_sees_the_request_without_what_is_ours(up: GatewayProcess) -> None:
    job = accept(up, "mA", "seen", blob="x" * (2 << 20), headers={"Idempotency-Key": "k", "X-Own": "1"})
    ended(up, job)
    [seen] = [entry for entry in up.journal("req_start") if entry["rid"] == "seen"]
    names = [line.partition(":")[0].lower() for line in seen["headers"]]
    assert "x-own" in names
    assert not {"prefer", "idempotency-key"} & set(names)
    assert seen["length"] > 2 << 20


def test_a_job_that_is_not_detached_has_no_result(up: GatewayProcess) -> None:
    direct = up.chat("mA").headers["X-LlamaSwap-Job"]
    answer = up.get(f"/api/jobs/{direct}/result")
    assert answer.status_code == 404
    assert "not a detached one" in answer.json()["error"]["message"]
    assert "detached" not in up.get(f"/api/jobs/{direct}").json()
    unknown = up.get("/api/jobs/nobody-1/result")
    assert unknown.status_code == 404
    assert "no job `nobody-1` is known" in unknown.json()["error"]["message"]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([b"respond-async"], True),
        ([b"Respond-ASYNC ; foo=bar"], True),
        ([b"return=minimal, respond-async, wait=10"], True),
        ([b"return=minimal", b"respond-async"], True),
        ([b'respond-async=""'], True),
        ([b'foo="a, respond-async"'], False),
        ([b'foo="a\\", respond-async"'], False),
        ([b'foo="a\\"", respond-async'], True),
        ([b"foo; respond-async"], False),
        ([b"respond-async=no"], False),
        ([b"respond-asynchronously"], False),
        ([b""], False),
        ([], False),
    ],
)
def test_the_preference_is_read_as_its_grammar_says(values: list[bytes], wanted: bool) -> None:
    headers = [(b"Accept", b"respond-async"), *((b"PREFER", value) for value in values)]
    assert wants_async(headers) is wanted


def test_a_long_list_of_preferences_is_read_quickly() -> None:
    for value in (b'"' * 200_000, b"a=" * 100_000, b'\\"' * 100_000, b"," * 200_000, b'x="\\' * 50_000):
        began = time.process_time()
        assert not wants_async([(b"Prefer", value)])
        assert time.process_time() - began < 5, value[:10]


@pytest.mark.anyio
async def test_a_job_that_cannot_be_stored_is_not_accepted(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    await store.close()
    rules = ScoreRules()
    dispatcher = SimpleNamespace(shutting_down=False, rules=rules)
    runtime = SimpleNamespace(dispatcher=dispatcher, next_id=lambda: "a-1", watchers=[], refusal=lambda *_, **__: None)
    errand = Errand(
        model=ModelSettings(id="mA", argv=("x",), cmd="x", proxy="http://127.0.0.1:1"),
        method=b"POST",
        target=b"/",
        headers=[],
        client_host="",
        body=Body(b"{}", 2),
        own=read_own_headers([], rules, EVERYBODY),
    )
    with pytest.raises(JobNotStored, match="is closed") as refused:
        await DetachedJobs(cast("Runtime", runtime), store, cast("Passage", None)).accept(errand)
    assert refused.value.status == 507


# Cancelling and deleting


def test_a_waiting_and_a_running_job_are_cancelled(up: GatewayProcess) -> None:
    running, waiting = (accept(up, "mA", rid, stub=FOREVER) for rid in ("cut", "never"))
    runs(up, "cut")
    for job, outcome, status in ((waiting, "cancelled_waiting", 410), (running, "cancelled_running", 502)):
        assert up.request("DELETE", job).status_code == 200
        shown = up.get(job).json()
        assert (shown["state"], shown["outcome"], shown["status"]) == ("ended", outcome, status)
        assert up.get(f"{job}/result").status_code == status
    assert "never" not in started(up)


def test_a_cancelled_job_stays_cancelled_when_the_gateway_dies_at_once(gateway: GatewayProcess) -> None:
    with ended_by(gateway, KILL):
        running, waiting = (accept(gateway, "mA", rid, stub=FOREVER) for rid in ("runs", "waits"))
        runs(gateway, "runs")
        for job in (waiting, running):
            gateway.request("DELETE", job)
    with gateway:
        assert ended(gateway, running)["outcome"] == "cancelled_running"
        assert ended(gateway, waiting)["outcome"] == "cancelled_waiting"


def test_an_ended_job_is_deleted_with_its_answer(up: GatewayProcess) -> None:
    job = accept(up, "mA", "deleted", stub={"size": 3 << 20})
    ended(up, job)
    [file] = up.config.parent.rglob(f"{job.rpartition('/')[2]}.answer")
    assert up.request("DELETE", job).json() == {"msg": "ok", "id": job.rpartition("/")[2]}
    assert not file.exists()
    for path in (job, f"{job}/result"):
        assert up.get(path).status_code == 404
    assert up.request("DELETE", job).status_code == 404


def test_an_answer_is_gone_when_its_time_is_over(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path, stub_models("mA"))
    with ended_by(gateway, signal.SIGTERM):
        old, new = (accept(gateway, "mA", rid) for rid in ("old", "new"))
        ended(gateway, old)
        expires_at = ended(gateway, new)["expires_at"]
        assert expires_at == pytest.approx(time.time() + 86400, abs=60)
    [database] = tmp_path.rglob("jobs.db")
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE jobs SET expires_at = 1 WHERE id = ?", (old.rpartition("/")[2],))
    connection.close()
    with gateway:
        assert gateway.get(old).status_code == 404
        assert gateway.get(f"{old}/result").status_code == 404
        assert gateway.get(f"{new}/result").status_code == 200
        assert len(list(tmp_path.rglob("*.answer"))) == 1


# The gateway's end


def test_a_job_that_waits_when_the_gateway_is_killed_runs_at_the_next_start(gateway: GatewayProcess) -> None:
    with ended_by(gateway, KILL):
        running = accept(gateway, "mA", "runs", stub=FOREVER)
        waiting = accept(gateway, "mA", "waits")
        runs(gateway, "runs")
        before = gateway.get(waiting).json()
    with gateway:
        shown = gateway.get(waiting).json()
        assert shown["submitted_at"] == before["submitted_at"]
        assert shown["waited_s"] >= before["waited_s"]
        gateway.request("DELETE", running)
        assert result(gateway, waiting).json()["rid"] == "waits"
        assert started(gateway).count("waits") == 1


def test_a_job_that_runs_when_the_gateway_is_killed_is_run_again(gateway: GatewayProcess) -> None:
    with ended_by(gateway, KILL):
        job = accept(gateway, "mA", "again", stub={"dur": 1})
        runs(gateway, "again")
    with gateway:
        assert result(gateway, job).json()["rid"] == "again"
        assert ended(gateway, job)["attempts"] == 2
        assert started(gateway) == ["again", "again"]


@pytest.mark.parametrize("why", ["report", "key"])
def test_a_job_that_ran_when_the_gateway_was_killed_is_reported(tmp_path: Path, why: str) -> None:
    gateway = reporting(tmp_path) if why == "report" else GatewayProcess(tmp_path, stub_models("mA"))
    headers = {"Idempotency-Key": "once"} if why == "key" else {}
    with ended_by(gateway, KILL):
        job = accept(gateway, "mA", "once", stub=FOREVER, headers=headers)
        runs(gateway, "once")
    with gateway:
        answer = result(gateway, job)
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "interrupted"
        assert "gateway ended while this job ran" in answer.json()["error"]["message"]
        assert answer.headers["X-LlamaSwap-Job"] == job.rpartition("/")[2]
        shown = ended(gateway, job)
        assert (shown["outcome"], shown["status"], shown["attempts"]) == ("interrupted", 500, 1)
        assert started(gateway) == ["once"]
        if why == "key":
            assert accept(gateway, "mA", "once", stub=FOREVER, headers=headers) == job


def _let_go_when_waited_for(gateway: GatewayProcess, guard: int) -> None:
    eventually(lambda: "waiting for the servers of an earlier gateway" in gateway.log.read_text(), "it is waited for")
    os.kill(guard, signal.SIGCONT)


def test_a_server_that_outlives_its_gateway_by_a_moment_costs_no_job(gateway: GatewayProcess) -> None:
    gateway.__enter__()
    jobs = [accept(gateway, "mA", rid, stub={"dur": dur}) for rid, dur in (("runs", 1), ("waits", 0))]
    runs(gateway, "runs")
    guard = int(gateway.journal("boot")[0]["ppid"])
    os.kill(guard, signal.SIGSTOP)
    gateway.process.kill()
    gateway.process.wait()
    go_on = threading.Thread(target=_let_go_when_waited_for, args=(gateway, guard))
    go_on.start()
    with gateway:
        go_on.join()
        assert [result(gateway, job).status_code for job in jobs] == [200, 200]


def test_a_job_that_takes_the_gateway_down_three_times_is_given_up(gateway: GatewayProcess) -> None:
    for attempt in (1, 2, 3):
        with ended_by(gateway, KILL):
            if attempt == 1:
                job = accept(gateway, "mA", "evil", stub=FOREVER)
            runs(gateway, *["evil"] * attempt)
    with gateway:
        assert ended(gateway, job)["outcome"] == "interrupted"
        assert len(started(gateway)) == 3


def test_an_orderly_end_keeps_what_waits_and_runs_again_what_was_cut(gateway: GatewayProcess) -> None:
    with ended_by(gateway, signal.SIGTERM, signal.SIGINT):
        cut = accept(gateway, "mA", "cut", stub={"dur": 2})
        waiting = [accept(gateway, model, f"waits-{model}") for model in ("mA", "mB")]
        runs(gateway, "cut")
    assert "Traceback" not in gateway.log.read_text()
    with gateway:
        assert [result(gateway, job).json()["rid"] for job in (cut, *waiting)] == ["cut", "waits-mA", "waits-mB"]
        assert started(gateway) == ["cut", "cut", "waits-mA", "waits-mB"]


def test_an_orderly_end_lets_a_running_job_finish(gateway: GatewayProcess) -> None:
    with ended_by(gateway, signal.SIGTERM):
        job = accept(gateway, "mA", "finishes", stub={"dur": 1})
        runs(gateway, "finishes")
    with gateway:
        shown = ended(gateway, job)
        assert (shown["outcome"], shown["attempts"]) == ("completed", 1)
        assert result(gateway, job).json()["rid"] == "finishes"


def test_a_job_whose_model_is_gone_at_the_next_start_ends(gateway: GatewayProcess) -> None:
    with ended_by(gateway, KILL):
        accept(gateway, "mA", "blocks", stub=FOREVER)
        job = accept(gateway, "mB", "orphan")
    gateway.write_config(stub_models("mA"))
    with gateway:
        answer = result(gateway, job)
        assert answer.status_code == 404
        assert "model mB is no longer configured" in answer.json()["error"]["message"]
        assert ended(gateway, job)["outcome"] == "model_removed"
        for blocker in gateway.queue()["running"]:
            gateway.request("DELETE", f"/api/jobs/{blocker['id']}")


def test_the_best_of_those_that_waited_goes_first_and_members_take_turns(gateway: GatewayProcess) -> None:
    ann, ben = ({"X-LlamaSwap-Member": name} for name in ("ann", "ben"))
    with ended_by(gateway, KILL):
        first = accept(gateway, "mA", "ann-0", headers=ann, stub={"dur": 1})
        runs(gateway, "ann-0")
        gateway.request("POST", "/api/lanes/gpu/pause")
        for rid, headers in (("ann-1", ann), ("ann-2", ann), ("ben-1", ben), ("ben-2", ben)):
            accept(gateway, "mA", rid, headers=headers)
        urgent = accept(gateway, "mA", "urgent", headers={"X-LlamaSwap-Priority": "100"})
        assert ended(gateway, first)["outcome"] == "completed"
    with gateway:
        ended(gateway, urgent)
        eventually(lambda: len(started(gateway)) == 6, "all run")
        assert started(gateway) == ["ann-0", "urgent", "ben-1", "ann-1", "ben-2", "ann-2"]


def test_new_jobs_get_ids_that_no_earlier_one_has(gateway: GatewayProcess) -> None:
    jobs = set()
    for _ in range(3):
        with ended_by(gateway, KILL):
            jobs |= {accept(gateway, "mA", f"{n}") for n in range(5)}
    assert len(jobs) == 15
    with gateway:
        assert {ended(gateway, job)["outcome"] for job in jobs} == {"completed"}


# Keys


def test_the_same_key_is_the_same_job(gateway: GatewayProcess) -> None:
    key = {"Idempotency-Key": "k1", "X-LlamaSwap-Member": "ann"}
    with ended_by(gateway, KILL):
        first = send(gateway, "mA", "one", headers=key)
        again = send(gateway, "mA", "one", headers=key)
        assert again.status_code == 202
        assert again.headers["Location"] == first.headers["Location"]
        assert again.json()["id"] == first.json()["id"]
        job = first.headers["Location"]
        ended(gateway, job)
        assert accept(gateway, "mA", "one", headers=key) == job
    with gateway:
        assert accept(gateway, "mA", "one", headers=key) == job
        assert result(gateway, job).json()["rid"] == "one"
        other = accept(gateway, "mA", "one", headers={**key, "X-LlamaSwap-Member": "ben"})
        assert other != job
        ended(gateway, other)
        assert started(gateway) == ["one", "one"]


def test_a_key_of_another_request_is_refused(up: GatewayProcess) -> None:
    job = accept(up, "mA", "keyed", headers={"Idempotency-Key": "k1"})
    answer = send(up, "mA", "keyed-too", headers={"Idempotency-Key": "k1"})
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "idempotency_key_reused"
    ended(up, job)
    assert "keyed-too" not in started(up)


def test_a_key_that_waits_when_the_gateway_is_killed_still_runs_once(gateway: GatewayProcess) -> None:
    with ended_by(gateway, KILL):
        blocker = accept(gateway, "mA", "blocks", stub=FOREVER)
        job = accept(gateway, "mA", "once", headers={"Idempotency-Key": "k"})
        runs(gateway, "blocks")
    with gateway:
        gateway.request("DELETE", blocker)
        assert result(gateway, job).json()["rid"] == "once"
        assert started(gateway).count("once") == 1


# What an answer must not be


@pytest.mark.parametrize("status", [204, 304])
def test_a_recorded_answer_that_has_no_body_has_no_length(up: GatewayProcess, status: int) -> None:
    raw = f'HTTP/1.1 {status} Fine\r\nETag: "a"\r\nContent-Length: 700\r\n\r\n'
    answer = result(up, accept(up, "mA", f"bare-{status}", stub={"raw": [raw]}))
    assert (answer.status_code, answer.content, answer.headers["ETag"]) == (status, b"", '"a"')
    assert "Content-Length" not in answer.headers


def test_an_empty_recorded_answer_says_that_it_is(up: GatewayProcess) -> None:
    answer = result(up, accept(up, "mA", "empty", stub={"raw": ["HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]}))
    assert (answer.status_code, answer.headers.get_list("Content-Length")) == (200, ["0"])


def test_a_recorded_answer_says_once_that_parts_of_it_can_be_had(up: GatewayProcess) -> None:
    stub = {"size": 1000, "set_headers": [["Accept-Ranges", "none"]]}
    answer = result(up, accept(up, "mA", "ranged", stub=stub))
    assert answer.headers.get_list("Accept-Ranges") == ["bytes"]


def test_a_range_that_makes_no_sense_is_ignored(up: GatewayProcess) -> None:
    job = accept(up, "mA", "unranged", stub={"size": 1000})
    assert len(result(up, job).content) == 1000
    for nonsense in ("frames=1-2", "bytes=5-2", "bytes=", "bytes=a-b", "bytes=0-1,x", "bytes", "bytes=--1", "0-1"):
        answer = up.request("GET", f"{job}/result", headers={"Range": nonsense})
        assert (answer.status_code, len(answer.content)) == (200, 1000), nonsense
    for asked, length in {"bytes=5-5": 1, "Bytes=990-": 10, "bytes=-7": 7, "bytes= 0-1 , 1-3": 4}.items():
        answer = up.request("GET", f"{job}/result", headers={"Range": asked})
        assert (answer.status_code, len(answer.content)) == (206, length), asked
    assert up.request("GET", f"{job}/result", headers={"Range": "bytes=1000-"}).status_code == 416


# When to ask again


def test_who_stands_too_far_back_to_be_counted_is_told_to_wait_long(gateway: GatewayProcess) -> None:
    with gateway:
        assert gateway.chat("mA").status_code == 200
        gateway.request("POST", "/api/lanes/gpu/pause")
        waits = [int(send(gateway, "mA", f"{n}").headers["Retry-After"]) for n in range(102)]
        assert max(waits[:100]) < 60
        assert waits[100:] == [60, 60]


def test_a_job_that_runs_for_longer_than_others_makes_for_a_longer_wait(gateway: GatewayProcess) -> None:
    with gateway:
        assert gateway.chat("mA").status_code == 200
        paths = [accept(gateway, "mA", "long", stub=FOREVER), accept(gateway, "mA", "behind")]

        def waits() -> list[int]:
            return [int(gateway.get(f"{path}/result").headers["Retry-After"]) for path in paths]

        eventually(lambda: min(waits()) >= 4, "they are told to wait as long as it has run")
        gateway.request("DELETE", paths[0])
        ended(gateway, paths[1])


def test_what_is_told_of_a_job_that_may_have_been_deleted(up: GatewayProcess) -> None:
    job = accept(up, "mA", "deleted-told")
    ended(up, job)
    up.request("DELETE", job)
    for path in (job, f"{job}/result"):
        words = up.get(path).json()["error"]["message"]
        assert words.endswith("is known: it never arrived here, was deleted, or ended long ago")


def test_what_is_told_of_a_job_that_is_not_run_again(tmp_path: Path) -> None:
    gateway = reporting(tmp_path)
    with ended_by(gateway, KILL):
        job = accept(gateway, "mA", "cut", stub=FOREVER)
        runs(gateway, "cut")
    with gateway:
        words = result(gateway, job).json()["error"]["message"]
        assert words == "the gateway ended while this job ran, and it is not run again; it may have had effects"
