from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import openai
import pytest
from openai.types import Batch

from tests.support.gateway import GatewayProcess, stub_models
from tests.support.openai_client import client_of
from tests.support.scene import in_time

ENDPOINT: Final = "/v1/chat/completions"
CONFIG = stub_models("mA", "mB", extra="aliases: []") + "    useModelName: real/b\n"
INTERACTIVE = b"X-LlamaSwap-Priority: interactive\r\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("batches"), CONFIG) as gateway:
        yield gateway


def request(custom_id: str, model: str = "mA", url: str = ENDPOINT, **stub: Any) -> dict[str, Any]:
    body = {"model": model, "messages": [], "rid": custom_id, "stub": stub}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def upload(client: openai.OpenAI, lines: list[dict[str, Any]] | bytes) -> str:
    content = lines if isinstance(lines, bytes) else "\n".join(map(json.dumps, lines)).encode()
    return client.files.create(file=("input.jsonl", content), purpose="batch").id


def start(client: openai.OpenAI, lines: list[dict[str, Any]] | bytes, **options: Any) -> Batch:
    wanted: dict[str, Any] = {"endpoint": ENDPOINT, "completion_window": "24h", **options}
    return client.batches.create(input_file_id=upload(client, lines), **wanted)


def over(client: openai.OpenAI, batch: Batch) -> Batch:
    def is_over() -> bool:
        return client.batches.retrieve(batch.id).status in ("completed", "failed", "expired", "cancelled")

    in_time(is_over, f"{batch.id} is over")
    return client.batches.retrieve(batch.id)


def read(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def counts(batch: Batch) -> tuple[int, int, int]:
    assert batch.request_counts is not None
    return batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed


def stored_jobs(gateway: GatewayProcess) -> int:
    (database,) = gateway.config.parent.rglob("jobs.db")
    with sqlite3.connect(database) as connection:
        return int(connection.execute("SELECT count(*) FROM jobs WHERE batch IS NOT NULL").fetchone()[0])


def test_a_chat_goes_in_front_of_a_batch_of_40_lines(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    gateway.request("POST", "/api/lanes/gpu/pause")
    batch = start(client, [request(f"a{n}") for n in range(40)], metadata={"film": "night-train"})
    assert (batch.object, batch.status, batch.endpoint, batch.metadata) == (
        "batch",
        "validating",
        ENDPOINT,
        {"film": "night-train"},
    )
    assert batch.expires_at == batch.created_at + 24 * 3600
    in_time(lambda: len(gateway.queue()["waiting"]) == 40, "its lines wait")
    job = gateway.queue()["waiting"][0]
    assert (job["priority"], job["label"], job["member"]) == (-100, f"batch={batch.id}", "anonymous")
    in_time(lambda: client.batches.retrieve(batch.id).status == "in_progress", "it is in progress")
    assert counts(client.batches.retrieve(batch.id)) == (40, 0, 0)
    gateway.raw_chat("mA", "chat", headers=INTERACTIVE)
    in_time(lambda: len(gateway.queue()["waiting"]) == 41, "the chat waits, too")
    gateway.request("POST", "/api/lanes/gpu/resume")

    batch = over(client, batch)
    assert (batch.status, counts(batch), batch.error_file_id, batch.errors) == ("completed", (40, 40, 0), None, None)
    assert None not in (batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    started = [entry["rid"] for entry in gateway.journal("req_start")]
    assert started[: started.index("a39") + 1] == ["chat", *(f"a{n}" for n in range(40))]
    output = read(client, batch.output_file_id)
    assert [line["custom_id"] for line in output] == [f"a{n}" for n in range(40)]
    assert len({line["id"] for line in output}) == 40
    for line in output:
        assert (line["error"], line["response"]["status_code"]) == (None, 200)
        assert line["response"]["body"]["rid"] == line["custom_id"]
        assert line["response"]["request_id"]
    file = client.files.retrieve(batch.output_file_id or "")
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert file.expires_at == file.created_at + 30 * 86400
    in_time(lambda: stored_jobs(gateway) == 0, "its lines are not kept beside their output")
    answer = gateway.request("GET", f"/api/jobs/{job['id']}/result")
    assert answer.status_code == 404
    assert "is not kept (any more)" in answer.json()["error"]["message"]
    assert "it is in the output of its batch" in answer.json()["error"]["message"]


def test_lines_of_two_models_go_as_ordinary_requests_do(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    headers = {"X-LlamaSwap-Priority": "-300", "X-LlamaSwap-Member": "film", "X-LlamaSwap-Label": "night"}
    gateway.request("POST", "/api/lanes/gpu/pause")
    lines = [request("b1", echo_body=True), request("b2", model="mB", echo_body=True)]
    batch = start(client, lines, extra_headers=headers, completion_window="1h")
    in_time(lambda: len(gateway.queue()["waiting"]) == 2, "its lines wait")
    for job in gateway.queue()["waiting"]:
        assert (job["priority"], job["label"], job["member"]) == (-300, "night", "film")
    gateway.request("POST", "/api/lanes/gpu/resume")
    batch = over(client, batch)
    assert batch.expires_at == batch.created_at + 3600
    first, second = read(client, batch.output_file_id)
    assert first["response"]["body"] == lines[0]["body"]
    assert second["response"]["body"] == {**lines[1]["body"], "model": "real/b"}
    sent = next(entry for entry in gateway.journal("req_start") if entry["rid"] == "b1")
    assert "Authorization: Bearer unused" in sent["headers"]
    assert sent["line"].startswith(f"POST {ENDPOINT} ")


def test_a_higher_priority_is_not_to_be_had(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    gateway.request("POST", "/api/lanes/gpu/pause")
    batch = start(client, [request("c1")], extra_headers={"X-LlamaSwap-Priority": "interactive"})
    in_time(lambda: [job["priority"] for job in gateway.queue()["waiting"]] == [-100], "it waits at batch")
    gateway.request("POST", "/api/lanes/gpu/resume")
    assert over(client, batch).status == "completed"


def test_lines_that_fail_are_in_the_error_file(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    pretty = '{\n  "n": 1.50,\r\n  "text": "a\\nb"\n}\n'
    raw = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(pretty)}\r\n\r\n{pretty}"
    batch = start(
        client,
        [
            request("refused", status=400),
            request("pretty", raw=[raw]),
            request("failed", status=503),
            request("speech", size=1_000_000),
            request("broken", close_without_reply=True),
        ],
    )
    batch = over(client, batch)
    assert (batch.status, counts(batch)) == ("completed", (5, 2, 3))
    text = client.files.content(batch.output_file_id or "").text
    assert '"body":{   "n": 1.50,    "text": "a\\nb" } }' in text, "as it came, in one line"
    pretty_line, speech = read(client, batch.output_file_id)
    assert pretty_line["response"]["body"] == json.loads(pretty)
    assert speech["custom_id"] == "speech"
    assert speech["response"]["body"]["content_type"] == "application/octet-stream"
    assert base64.b64decode(speech["response"]["body"]["base64"]) == b"\xa5" * 1_000_000
    refused, failed, broken = read(client, batch.error_file_id)
    assert [refused["custom_id"], failed["custom_id"], broken["custom_id"]] == ["refused", "failed", "broken"]
    assert (refused["error"], refused["response"]["status_code"]) == (None, 400)
    assert (failed["error"], failed["response"]["status_code"]) == (None, 503)
    assert refused["response"]["body"]["rid"] == "refused"
    assert (broken["response"], broken["error"]["code"]) == (None, "upstream_broken")
    assert broken["error"]["message"]


def test_a_file_with_faults_runs_nothing(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    streamed = request("d3")
    streamed["body"]["stream"] = True
    lines = [request("d1"), request("d1"), streamed, request("d4", model="m"), request("d5", url="/v1/embeddings")]
    batch = over(client, start(client, "\n".join([*map(json.dumps, lines), "{"]).encode()))
    assert (batch.status, counts(batch), batch.output_file_id) == ("failed", (0, 0, 0), None)
    assert batch.failed_at
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(fault.line, fault.code, fault.param) for fault in batch.errors.data] == [
        (2, "duplicate_custom_id", "custom_id"),
        (3, "invalid_request", "body.stream"),
        (4, "model_not_found", "body.model"),
        (5, "invalid_url", "url"),
        (6, "invalid_json_line", None),
    ]
    assert not [entry for entry in gateway.journal("req_start") if str(entry["rid"]).startswith("d")]
    with pytest.raises(openai.ConflictError, match="cannot be cancelled: it is failed"):
        client.batches.cancel(batch.id)


def test_requests_for_a_batch_that_cannot_be(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    with pytest.raises(openai.NotFoundError, match="no file `file-x` is known"):
        client.batches.create(input_file_id="file-x", endpoint=ENDPOINT, completion_window="24h")
    other = client.files.create(file=("a.txt", b"{}"), purpose="user_data").id
    with pytest.raises(openai.BadRequestError, match="was uploaded for `user_data`; a batch needs one for `batch`"):
        client.batches.create(input_file_id=other, endpoint=ENDPOINT, completion_window="24h")
    metadata = (
        "`metadata`: it must be an object of at most 16 texts,"
        " with keys of up to 64 and values of up to 512 characters$"
    )
    for options, words in (
        (
            {"endpoint": "/v1/chat/completion"},
            "`/v1/chat/completion` cannot .* did you mean `/v1/chat/completions` or `/v1/completions`\\?$",
        ),
        ({"endpoint": "/v1/audio/transcriptions"}, "route that takes JSON, such as `/v1/chat/completions` or"),
        ({"endpoint": "x"}, "`endpoint`: `x` cannot .* JSON, such as `/v1/chat/completions` or `/v1/responses`"),
        ({"completion_window": "169h"}, "`completion_window`: it must be a number of hours from `1h` to `168h`"),
        ({"completion_window": "1d"}, "`completion_window`"),
        ({"metadata": {"a": "x" * 513}}, metadata),
        ({"metadata": {"a": 5}}, metadata),
        ({"metadata": {"a" * 65: ""}}, metadata),
        ({"metadata": {str(n): "" for n in range(17)}}, metadata),
        ({"metadata": ["a"]}, metadata),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "`output_expires_after.seconds`"),
    ):
        with pytest.raises(openai.BadRequestError, match=words):
            start(client, [request("never")], **options)
    for body in (b"", b"[]", b"{", b'{"endpoint": "/v1/embeddings"}', b"x" * (2 << 20)):
        answer = gateway.request("POST", "/v1/batches", content=body)
        assert answer.status_code == (413 if len(body) > 1 << 20 else 400)
        assert answer.json()["error"]["message"]
    for ask in (client.batches.retrieve, client.batches.cancel):
        with pytest.raises(openai.NotFoundError, match="no batch `batch_x` is known"):
            ask("batch_x")


def test_output_files_may_be_kept_for_less_time(client: openai.OpenAI) -> None:
    batch = over(client, start(client, [request("e1")], output_expires_after={"anchor": "created_at", "seconds": 3600}))
    file = client.files.retrieve(batch.output_file_id or "")
    assert file.expires_at == file.created_at + 3600


def test_batches_are_listed_newest_first(client: openai.OpenAI) -> None:
    made = [over(client, start(client, [request(f"f{n}")])).id for n in range(3)]
    page = client.batches.list(limit=2)
    assert [batch.id for batch in page.data] == [made[2], made[1]]
    assert page.has_more
    assert [batch.id for batch in client.batches.list(limit=2)][:3] == made[::-1], "page after page"
    assert all(batch.status in ("completed", "failed") for batch in client.batches.list())


def test_a_cancelled_batch_has_the_output_of_what_ran(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    lines = [request("g0"), request("g1", dur=600), *(request(f"g{n}") for n in range(2, 5))]
    batch = start(client, lines)
    in_time(lambda: "g1" in [entry["rid"] for entry in gateway.journal("req_start")], "the second line runs")
    assert counts(client.batches.retrieve(batch.id)) == (5, 1, 0)
    cancelled = client.batches.cancel(batch.id)
    assert cancelled.status in ("cancelling", "cancelled")
    assert cancelled.cancelling_at
    batch = over(client, batch)
    assert (batch.status, counts(batch)) == ("cancelled", (5, 1, 4))
    assert batch.cancelled_at
    assert [line["custom_id"] for line in read(client, batch.output_file_id)] == ["g0"]
    errors = read(client, batch.error_file_id)
    assert [line["custom_id"] for line in errors] == ["g1", "g2", "g3", "g4"]
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    assert client.batches.cancel(batch.id) == batch, "a second time changes nothing"
    assert not gateway.queue()["waiting"]


def test_the_input_file_may_go_once_the_batch_runs(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    gateway.request("POST", "/api/lanes/gpu/pause")
    batch = start(client, [request("h1"), request("h2")])
    in_time(lambda: client.batches.retrieve(batch.id).status == "in_progress", "it is in progress")
    client.files.delete(batch.input_file_id)
    gateway.request("POST", "/api/lanes/gpu/resume")
    assert counts(over(client, batch)) == (2, 2, 0)


class Restarted:
    """A gateway that is killed in the middle of something, and started anew on the same folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def killed(self, gateway: GatewayProcess) -> None:
        gateway.process.kill()
        gateway.process.wait()

    def change(self, **values: Any) -> None:
        """Change what the dead gateway knows of its batch."""
        (database,) = self.folder.rglob("jobs.db")
        with sqlite3.connect(database) as connection:
            ((batch_id, data),) = connection.execute("SELECT id, data FROM batches").fetchall()
            changed = json.dumps({**json.loads(data), **values})
            connection.execute("UPDATE batches SET data = ?, open = 1 WHERE id = ?", (changed, batch_id))
        connection.close()


def test_a_killed_gateway_goes_on_and_each_line_is_in_the_output_once(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path, CONFIG)
    restarted = Restarted(tmp_path)
    with gateway.unguarded(), client_of(gateway) as client:
        batch = start(client, [request(f"k{n}", dur=0.1) for n in range(30)])
        in_time(lambda: counts(client.batches.retrieve(batch.id))[1] >= 5, "some lines are done")
        restarted.killed(gateway)
    with GatewayProcess(tmp_path, CONFIG) as gateway, client_of(gateway) as client:
        batch = over(client, batch)
        assert (batch.status, counts(batch), batch.error_file_id) == ("completed", (30, 30, 0), None)
        output = read(client, batch.output_file_id)
        assert [line["custom_id"] for line in output] == [f"k{n}" for n in range(30)]
        assert all(line["response"]["body"]["rid"] == line["custom_id"] for line in output)
        ran = [entry["rid"] for entry in gateway.journal("req_start")]
        assert len(ran) <= 31, "only the one that ran at the kill may run twice"


def test_a_gateway_that_died_while_it_made_the_lines_does_not_make_them_twice(tmp_path: Path) -> None:
    restarted = Restarted(tmp_path)
    gateway = GatewayProcess(tmp_path, CONFIG)
    with gateway.unguarded(), client_of(gateway) as client:
        gateway.request("POST", "/api/lanes/gpu/pause")
        batch = start(client, [request(f"l{n}") for n in range(5)])
        in_time(lambda: client.batches.retrieve(batch.id).status == "in_progress", "it is in progress")
        restarted.killed(gateway)
    restarted.change(status="validating", request_counts={"total": 0})
    with GatewayProcess(tmp_path, CONFIG) as gateway, client_of(gateway) as client:
        batch = over(client, batch)
        assert counts(batch) == (5, 5, 0)
        assert [line["custom_id"] for line in read(client, batch.output_file_id)] == [f"l{n}" for n in range(5)]


def test_what_has_not_ended_at_its_time_expires(tmp_path: Path) -> None:
    restarted = Restarted(tmp_path)
    gateway = GatewayProcess(tmp_path, CONFIG)
    with gateway.unguarded(), client_of(gateway) as client:
        batch = start(client, [request("m0"), request("m1", dur=600), request("m2")])
        in_time(lambda: counts(client.batches.retrieve(batch.id))[1] == 1, "the first line is done")
        restarted.killed(gateway)
    restarted.change(expires_at=batch.created_at)
    with GatewayProcess(tmp_path, CONFIG) as gateway, client_of(gateway) as client:
        batch = over(client, batch)
        assert (batch.status, counts(batch)) == ("expired", (3, 1, 2))
        assert batch.expired_at
        assert [line["custom_id"] for line in read(client, batch.output_file_id)] == ["m0"]
        errors = read(client, batch.error_file_id)
        assert [(line["custom_id"], line["error"]["code"]) for line in errors] == [
            ("m1", "batch_expired"),
            ("m2", "batch_expired"),
        ]


def test_an_orderly_restart_loses_nothing_either(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, CONFIG) as gateway, client_of(gateway) as client:
        gateway.request("POST", "/api/lanes/gpu/pause")
        batch = start(client, [request(f"o{n}") for n in range(300)])
        in_time(lambda: client.batches.retrieve(batch.id).status == "in_progress", "it is in progress")
    with GatewayProcess(tmp_path, CONFIG) as gateway, client_of(gateway) as client:
        batch = over(client, batch)
        assert (batch.status, counts(batch)) == ("completed", (300, 300, 0))
        assert [line["custom_id"] for line in read(client, batch.output_file_id)] == [f"o{n}" for n in range(300)]
