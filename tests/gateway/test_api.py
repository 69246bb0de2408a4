from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import uvicorn

from swaplane.config.settings import ModelSettings, Settings
from swaplane.core.outcomes import Outcome
from swaplane.core.plan import LanePlan
from swaplane.core.score import ScoreRules
from swaplane.gateway.api import create_api
from swaplane.gateway.detached import DetachedJobs
from swaplane.gateway.jobs_api import JobsApi
from swaplane.gateway.passage import Passage, Pools
from swaplane.gateway.remembered import RememberedJobs
from swaplane.observe.logs import LogHub
from swaplane.observe.metrics import Metrics
from swaplane.runtime import Runtime
from swaplane.store.store import Store
from swaplane.ticket import Dropped, Run, Ticket
from tests.support.callers import AskedBy
from tests.support.stub_client import free_port, leftovers, stub_argv

pytestmark = pytest.mark.anyio

GO_404 = "404 page not found\n"


async def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"not within 20 s: {what}"
        await asyncio.sleep(0.01)


class Bench:
    """A runtime with two stub models, and a client of its API."""

    def __init__(self, store: Store, **changes: Any) -> None:
        self.stub_id = uuid4().hex
        models = {
            "mA": self.model("mA", name="Model A", description="the first", aliases=("a", "team/a")),
            "team/mB": self.model("team/mB", metadata={"size": "<7B>", "type": "mine"}),
            "secret": self.model("secret", unlisted=True, aliases=("hidden",)),
        }
        self.settings = Settings(
            path="config.yaml",
            models=models,
            groups=(),
            rules=ScoreRules(),
            lanes={"gpu": LanePlan(name="gpu")},
            log_level="info",
            start_port=5800,
            ports={},
            include_aliases_in_list=False,
            ignore_paths=(),
            warnings=(),
        )
        self.settings = replace(self.settings, **changes)
        self.runtime = Runtime(self.settings, logs=LogHub(), metrics=Metrics())
        passage = Passage(self.runtime, RememberedJobs(store.remembered, lambda: 60), Pools())
        detached = DetachedJobs(self.runtime, store, passage)
        self.api = AskedBy(create_api(self.runtime, JobsApi(self.runtime, store, detached).routes(), version="1.2.3"))
        transport = httpx2.ASGITransport(app=self.api, raise_app_exceptions=False)
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://gateway")

    def model(self, model_id: str, **settings: Any) -> ModelSettings:
        port = free_port()
        argv = stub_argv(port, model_id)
        return ModelSettings(
            id=model_id,
            argv=argv,
            cmd=f"stub --name {model_id}",
            env=(f"STUB_ID={self.stub_id}",),
            proxy=f"http://127.0.0.1:{port}",
            **settings,
        )

    def submit(self, model: str = "mA", *, priority: int = 0, member: str = "anna", label: str = "") -> Ticket:
        return self.runtime.submit(self.settings.models[model], member=member, priority=priority, label=label)

    async def running(self, model: str = "mA", **job: Any) -> Ticket:
        """A job that has been sent to its model."""
        ticket = self.submit(model, **job)
        assert isinstance(await asyncio.wait_for(ticket.turn, 30), Run)
        ticket.on_cut(ticket.ended)
        return ticket

    async def get(self, path: str, **options: Any) -> httpx2.Response:
        return await self.client.get(path, **options)

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[httpx2.AsyncClient]:
        """A client of the API behind a real server, for answers that do not end."""
        config = uvicorn.Config(
            self.api, host="127.0.0.1", port=free_port(), lifespan="off", log_config=None, timeout_graceful_shutdown=30
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        try:
            await until(lambda: server.started or task.done(), "the server listens")
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{config.port}", timeout=20) as client:
                yield client
        finally:
            server.should_exit = True
            await asyncio.wait_for(task, 20)


@contextlib.asynccontextmanager
async def bench(**changes: Any) -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory() as folder:
        store = await Store.open(Path(folder))
        this = Bench(store, **changes)
        try:
            async with this.client:
                yield this
        finally:
            await this.runtime.shut_down(drain_s=0, stop_s=5)
            await store.close()
            assert leftovers(this.stub_id) == []


def error_of(answer: httpx2.Response) -> tuple[int, str, str]:
    """(status, message, code) of an answer in llama-swap's envelope."""
    body = answer.json()
    assert body["src"] == "llama-swap"
    return answer.status_code, body["error"]["message"], body["error"]["code"]


# Operations.


@pytest.mark.parametrize("path", ["/health", "/wol-health"])
async def test_health_says_that_the_gateway_answers(path: str) -> None:
    async with bench() as b:
        answer = await b.get(path)
        assert (answer.status_code, answer.text) == (200, "OK")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"


async def test_version_index_and_openapi_name_the_version() -> None:
    async with bench() as b:
        assert (await b.get("/api/version")).json() == {
            "build_date": "unknown",
            "commit": "unknown",
            "version": "1.2.3",
        }
        index = await b.get("/")
        assert index.headers["content-type"].startswith("text/plain")
        assert "Swaplane 1.2.3" in index.text
        openapi = (await b.get("/openapi.json")).json()
        assert openapi["info"]["version"] == "1.2.3"
        assert {"get", "delete"} <= set(openapi["paths"]["/api/jobs/{job_id}"])


async def test_metrics_are_prometheus_text() -> None:
    async with bench() as b:
        answer = await b.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert 'swaplane_queue_depth{band="normal",lane="gpu"} 0.0' in answer.text


@pytest.mark.parametrize("path", ["/nothing", "/health/", "/HEALTH", "/docs", "/redoc", "/api/lanes/gpu"])
async def test_an_unknown_path_is_answered_as_by_gos_router(path: str) -> None:
    async with bench() as b:
        answer = await b.get(path)
        assert (answer.status_code, answer.text) == (404, GO_404)
        assert answer.headers["content-type"].startswith("text/plain")
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/health", "GET, HEAD"),
        ("PUT", "/api/jobs/x", "DELETE, GET, HEAD"),
        ("GET", "/api/models/unload/mA", "POST"),
        ("POST", "/openapi.json", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(method: str, path: str, allow: str) -> None:
    async with bench() as b:
        answer = await b.client.request(method, path)
        assert (answer.status_code, answer.text) == (405, "Method Not Allowed\n")
        assert answer.headers["allow"] == allow


async def test_head_is_get_without_the_body() -> None:
    async with bench() as b:
        answer = await b.client.head("/v1/models")
        assert (answer.status_code, answer.content) == (200, b"")
        assert int(answer.headers["content-length"]) == len((await b.get("/v1/models")).content)


async def test_a_preflight_is_allowed_everywhere() -> None:
    async with bench() as b:
        asked = {"Access-Control-Request-Headers": "x-llamaswap-priority, bad name, authorization"}
        answer = await b.client.options("/v1/chat/completions", headers=asked)
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["access-control-allow-methods"] == "GET, POST, PUT, PATCH, DELETE, OPTIONS"
        assert answer.headers["access-control-allow-headers"] == "x-llamaswap-priority, authorization"
        plain = await b.client.options("/nothing")
        assert plain.headers["access-control-allow-headers"] == "Content-Type, Authorization, Accept, X-Requested-With"


async def test_a_fault_of_the_gateway_is_told_in_the_envelope(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as b:
        monkeypatch.setattr(b.runtime.metrics, "render", None)
        status, message, code = error_of(await b.get("/metrics"))
        assert (status, code) == (500, "internal_error")
        assert "NoneType" not in message


# Models.


async def test_models_are_listed_as_llama_swap_lists_them() -> None:
    async with bench() as b:
        for path in ("/v1/models", "/models"):
            answer = await b.get(path, headers={"Origin": "http://page"})
            created = answer.json()["data"][0]["created"]
            assert abs(created - time.time()) < 60
            common = {"object": "model", "created": created, "owned_by": "llama-swap"}
            assert answer.json() == {
                "object": "list",
                "data": [
                    {
                        "id": "mA",
                        **common,
                        "name": "Model A",
                        "description": "the first",
                        "meta": {"llamaswap": {"type": "model", "aliases": ["a", "team/a"]}},
                        "status": {"value": "unloaded"},
                    },
                    {
                        "id": "team/mB",
                        **common,
                        "meta": {"llamaswap": {"type": "model", "size": "<7B>"}},
                        "status": {"value": "unloaded"},
                    },
                ],
            }
            assert answer.text.endswith("}\n")
            assert "\\u003c7B\\u003e" in answer.text
            assert answer.headers["access-control-allow-origin"] == "http://page"
        assert "access-control-allow-origin" not in (await b.get("/v1/models")).headers


async def test_aliases_are_listed_where_the_configuration_says_so() -> None:
    async with bench(include_aliases_in_list=True) as b:
        records = (await b.get("/v1/models")).json()["data"]
        assert [record["id"] for record in records] == ["a", "mA", "team/a", "team/mB"]
        assert records[0]["meta"] == {"llamaswap": {"type": "alias", "modelID": "mA"}}
        assert records[0]["name"] == "Model A"


async def test_listings_follow_a_reload_and_what_runs() -> None:
    async with bench() as b:
        assert (await b.get("/running")).json() == {"running": []}
        ticket = b.submit("mA")
        starting = (await b.get("/running")).json()["running"]
        assert [(each["model"], each["state"]) for each in starting] == [("mA", "starting")]
        assert isinstance(await asyncio.wait_for(ticket.turn, 30), Run)

        assert (await b.get("/running")).json() == {
            "running": [
                {
                    "model": "mA",
                    "state": "ready",
                    "cmd": "stub --name mA",
                    "proxy": b.settings.models["mA"].proxy,
                    "ttl": 0,
                    "name": "Model A",
                    "description": "the first",
                }
            ]
        }
        status = {each["id"]: each["status"]["value"] for each in (await b.get("/v1/models")).json()["data"]}
        assert status == {"mA": "loaded", "team/mB": "unloaded"}

        b.runtime.reload(replace(b.settings, models={"team/mB": b.settings.models["team/mB"]}))
        assert [each["id"] for each in (await b.get("/v1/models")).json()["data"]] == ["team/mB"]
        retiring = (await b.get("/running")).json()["running"]
        assert [(each["model"], each["proxy"]) for each in retiring] == [("mA", b.settings.models["mA"].proxy)]
        ticket.ended(Outcome.COMPLETED)


async def test_unloading_returns_when_the_processes_are_gone() -> None:
    async with bench() as b:
        for method, path, body in (
            ("GET", "/unload", "OK"),
            ("POST", "/api/models/unload", '{"msg":"ok"}'),
            ("POST", "/api/models/unload/team/a", "OK"),
        ):
            ticket = await b.running("mA")
            assert leftovers(b.stub_id) != []
            answer = await b.client.request(method, path)
            assert (answer.status_code, answer.text) == (200, body)
            assert leftovers(b.stub_id) == []
            assert b.runtime.recent[ticket.job.id].outcome is Outcome.UNLOADED_RUNNING


async def test_unloading_a_model_that_does_not_run_or_exist() -> None:
    async with bench() as b:
        assert (await b.client.post("/api/models/unload/mA")).text == "OK"
        assert (await b.get("/unload")).text == "OK"
        assert error_of(await b.client.post("/api/models/unload/m/x")) == (404, "model not found", "not_found")
        text = await b.client.post("/api/models/unload/nope", headers={"Accept": "text/plain"})
        assert (text.status_code, text.text) == (404, "llama-swap: model not found")


# Logs.


async def test_logs_are_the_gateways_own() -> None:
    async with bench() as b:
        b.runtime.logs.proxy.write(b"first\n")
        b.runtime.logs.upstream.write(b"of a model\n")
        answer = await b.get("/logs", headers={"Accept": "text/html"})
        assert (answer.status_code, answer.text) == (200, "first\n")
        assert answer.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(
    ("path", "log"),
    [("", "proxy"), ("/proxy", "proxy"), ("/upstream", "upstream"), ("/team/a", "mA"), ("/team/mB", "team/mB")],
)
async def test_a_log_stream_is_its_history_and_then_what_comes(path: str, log: str) -> None:
    async with bench() as b, b.served() as client:
        target = b.runtime.logs.get(log) or b.runtime.logs.model(log)
        target.write(b"before\n")
        async with client.stream("GET", "/logs/stream" + path) as answer:
            assert answer.headers["content-type"].startswith("text/plain")
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-accel-buffering"] == "no"
            pieces = answer.aiter_bytes()
            assert await anext(pieces) == b"before\n"
            target.write(b"after\n")
            assert await anext(pieces) == b"after\n"


async def test_a_log_stream_without_history_and_a_client_that_leaves_a_silent_log() -> None:
    async with bench() as b, b.served() as client:
        log = b.runtime.logs.proxy
        log.write(b"before\n")
        async with client.stream("GET", "/logs/stream?no-history") as answer:
            await until(lambda: "1 streams" in repr(log), "the log is followed")
            log.write(b"after\n")
            assert await anext(answer.aiter_bytes()) == b"after\n"
        await until(lambda: "0 streams" in repr(log), "the departure is noticed")


async def test_log_streams_end_when_the_gateway_has_stopped() -> None:
    async with bench() as b, b.served() as client:
        async with client.stream("GET", "/logs/stream") as answer:
            await until(lambda: "1 streams" in repr(b.runtime.logs.proxy), "the log is followed")
            b.runtime.logs.proxy.write(b"going down\n")
            await b.runtime.shut_down(drain_s=0, stop_s=5)
            assert b"".join([piece async for piece in answer.aiter_bytes()]) == b"going down\n"
        assert (await client.get("/logs/stream")).text == "going down\n"  # a late comer gets what there is


async def test_an_unknown_logger_is_refused() -> None:
    async with bench() as b:
        status, message, _ = error_of(await b.get("/logs/stream/m/x"))
        assert (status, message) == (400, "invalid logger. Use 'proxy', 'upstream' or a model's ID")


# The queue.


async def test_the_queue_shows_who_runs_who_waits_and_why() -> None:
    async with bench(rules=ScoreRules(aging_divisor_s=0.07)) as b:
        runs = await b.running("mA", member="anna", label="film=<x>; shot=1/2")
        batch = b.submit("team/mB", priority=-98, member="ben")
        urgent = b.submit("mA", priority=100, member="cleo")

        answer = await b.get("/api/queue")
        assert "film=\\u003cx\\u003e" in answer.text
        (lane,) = answer.json()["lanes"]
        assert (lane["name"], lane["size"], lane["paused"], lane["resident"]) == ("gpu", 1, False, ["mA"])
        assert lane["waiting_total"] == 2
        (running,) = lane["running"]
        assert (running["id"], running["state"], running["position"]) == (runs.job.id, "running", None)
        assert running["label"] == "film=<x>; shot=1/2"
        assert [job["id"] for job in lane["waiting"]] == [urgent.job.id, batch.job.id]
        first, second = lane["waiting"]
        assert (first["position"], first["state"], first["band"], first["affinity"]) == (
            1,
            "waiting",
            "interactive",
            10,
        )
        assert (second["position"], second["base"], second["tier_bonus"], second["priority"]) == (2, -100, 2, -98)
        assert runs.job.id in first["reason"]
        assert set(first) == {
            *("id", "model", "member", "label", "key", "priority", "band", "base", "tier_bonus", "affinity", "aging"),
            *("score", "waited_s", "aging_s", "position", "ahead", "expected_wait_s", "state", "reason", "progress"),
        }
        assert (running["ahead"], first["ahead"], second["ahead"]) == (None, {}, {"interactive": 1})
        assert running["expected_wait_s"] is first["expected_wait_s"] is None, "no job of mA was measured"
        for job in (running, first, second):
            terms = job["base"] + job["tier_bonus"] + job["affinity"] + job["aging"]
            assert job["score"] == round(terms, 3)
            assert all(round(job[name], 3) == job[name] for name in ("affinity", "aging", "waited_s", "aging_s"))

        cut = (await b.get("/api/queue?limit=1")).json()["lanes"][0]
        assert [job["id"] for job in cut["waiting"]] == [urgent.job.id]
        assert cut["waiting_total"] == 2


@pytest.mark.parametrize("limit", ["0", "1001", "ten", ""])
async def test_a_limit_outside_its_range_is_refused(limit: str) -> None:
    async with bench() as b:
        status, message, code = error_of(await b.get(f"/api/queue?limit={limit}"))
        assert (status, code) == (400, "bad_request")
        assert "`limit`" in message
        assert f"`{limit}`" in message


async def test_a_job_can_be_followed_to_its_end() -> None:
    async with bench() as b:
        runs = b.submit("mA", label="shot 1")
        waits = b.submit("mA")
        path = f"/api/jobs/{runs.job.id}"
        assert (await b.get(path)).json()["state"] == "loading"
        assert (await b.get(f"/api/jobs/{waits.job.id}")).json()["position"] == 1
        await asyncio.wait_for(runs.turn, 30)
        assert (await b.get(path)).json()["state"] == "running"
        runs.ended(Outcome.COMPLETED)

        ended = (await b.get(path)).json()
        assert ended.pop("waited_s") >= 0
        assert ended.pop("run_s") >= 0
        assert ended == {
            "id": runs.job.id,
            "model": "mA",
            "member": "anna",
            "label": "shot 1",
            "key": "",
            "priority": 0,
            "band": "normal",
            "state": "ended",
            "outcome": "completed",
        }
        assert (await b.get(f"/api/jobs/{waits.job.id}")).json()["state"] == "running"


async def test_how_long_a_job_will_wait_is_told_once_its_model_was_measured() -> None:
    async with bench() as b:
        (await b.running("mA")).ended(Outcome.COMPLETED)
        b.runtime.dispatcher.models["mA"].run_s = 1000.0
        runs = await b.running("mA")
        waits = [b.submit("mA") for _ in range(3)]
        expected = [(await b.get(f"/api/jobs/{ticket.job.id}")).json()["expected_wait_s"] for ticket in waits]
        assert expected == pytest.approx([1000, 2000, 3000], abs=30)
        assert (await b.get(f"/api/jobs/{runs.job.id}")).json()["expected_wait_s"] is None


async def test_an_unknown_job_is_told_in_a_sentence() -> None:
    async with bench() as b:
        for answer in (await b.get("/api/jobs/zz-1"), await b.client.delete("/api/jobs/zz-1")):
            status, message, code = error_of(answer)
            assert (status, code) == (404, "not_found")
            assert "`zz-1`" in message


async def test_cancelling_ends_a_waiting_and_a_running_job_once() -> None:
    async with bench() as b:
        runs = await b.running("mA")
        waits = b.submit("mA")
        for ticket, outcome in ((waits, Outcome.CANCELLED_WAITING), (runs, Outcome.CANCELLED_RUNNING)):
            path = f"/api/jobs/{ticket.job.id}"
            answer = await b.client.delete(path)
            assert (answer.status_code, answer.json()) == (200, {"msg": "ok", "id": ticket.job.id})
            assert b.runtime.recent[ticket.job.id].outcome is outcome
            status, message, code = error_of(await b.client.delete(path))
            assert (status, code) == (409, "conflict")
            assert str(outcome) in message
        dropped = waits.turn.result()
        assert isinstance(dropped, Dropped)
        assert (await b.get(f"/api/jobs/{waits.job.id}")).json()["run_s"] is None


async def test_a_paused_lane_starts_nothing_until_it_is_resumed() -> None:
    async with bench() as b:
        assert (await b.client.post("/api/lanes/gpu/pause")).json() == {"lane": "gpu", "paused": True}
        ticket = b.submit("mA")
        (lane,) = (await b.get("/api/queue")).json()["lanes"]
        assert lane["paused"]
        assert "paused" in lane["waiting"][0]["reason"]
        assert (await b.client.post("/api/lanes/gpu/resume")).json() == {"lane": "gpu", "paused": False}
        assert isinstance(await asyncio.wait_for(ticket.turn, 30), Run)


async def test_an_unknown_lane_is_told_the_nearest_names() -> None:
    async with bench() as b:
        for action in ("pause", "resume"):
            status, message, _ = error_of(await b.client.post(f"/api/lanes/gpus/{action}"))
            assert status == 404
            assert message == "no lane `gpus`; there is `gpu`"


async def test_what_json_cannot_say_in_metadata_is_shown_as_text() -> None:
    async with bench() as b:
        dated = replace(b.settings.models["mA"], metadata={"since": date(2026, 1, 31), "n": 1})
        b.runtime.reload(replace(b.settings, models={"mA": dated}))
        answer = json.loads((await b.get("/v1/models")).text)
        assert answer["data"][0]["meta"]["llamaswap"]["since"] == "2026-01-31"
