from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from swaplane.gateway.background import TwiceGiven, background_in, find_background
from swaplane.gateway.body import Body
from tests.support.gateway import GatewayProcess, stub_models
from tests.support.openai_client import client_of
from tests.support.scene import in_time

CONFIG = stub_models("mA", "mB", extra="aliases: []") + "    useModelName: real/b\n"
ANSWER = {
    "id": "resp_of_the_server",
    "object": "response",
    "created_at": 1700000000,
    "status": "completed",
    "model": "mA",
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Paris <b>&</b> more", "annotations": []}],
        }
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "background": False,
    "extra": {"of": "the server"},
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("background"), CONFIG) as gateway:
        yield gateway


def answering(value: Any = ANSWER, status: int = 200) -> dict[str, Any]:
    text = json.dumps(value)
    head = f"HTTP/1.1 {status} Stub\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    return {"raw": [head + text]}


def create(client: openai.OpenAI, rid: str, stub: dict[str, Any], model: str = "mA", **options: Any) -> Response:
    answer = client.responses.create(
        model=model, input="What?", background=True, extra_body={"rid": rid, "stub": stub}, **options
    )
    assert isinstance(answer, Response)
    return answer


def over(client: openai.OpenAI, response: Response) -> Response:
    def is_over() -> bool:
        return client.responses.retrieve(response.id).status not in ("queued", "in_progress")

    in_time(is_over, f"{response.id} is over")
    return client.responses.retrieve(response.id)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"model": "m", "background": true}', b"true"),
        (b'{"model": "m", "background" : "true" }', b'"true"'),
        (b'{"background":1,"model": "m"}', b"1"),
        (b'{"model": "m", "background": false}', None),
        (b'{"model": "m", "background": null}', None),
        (b'{"model": "m", "background": "true-ish"}', None),
        (b'{"model": "m", "input": "background: true"}', None),
        (b'{"model": "m", "input": {"background": true}}', None),
        (b'{"model": "m"}', None),
        (b'{"background": false, "background": false}', None),
        (b"", None),
    ],
)
def test_where_a_body_says_that_it_is_for_the_background(body: bytes, value: bytes | None) -> None:
    span = background_in(body)
    assert (None if span is None else body[slice(*span)]) == value


def test_a_body_that_says_it_twice_is_refused() -> None:
    with pytest.raises(TwiceGiven):
        background_in(b'{"background": true, "background": false}')


@pytest.mark.anyio
@pytest.mark.parametrize("before", [1 << 20, (1 << 20) - 5, 5 << 20])
async def test_it_is_found_in_a_long_body_on_disk(tmp_path: Path, before: int) -> None:
    start = b'{"input": "'
    text = start + b"x" * (before - len(start) - len(b'", ')) + b'", "background": true}'
    path = tmp_path / "body"
    path.write_bytes(text)
    with Body(FileIO(path), len(text)) as body:
        span = await find_background(body)
    assert span is not None
    assert text[slice(*span)] == b"true"


def test_a_response_from_queued_to_completed(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    gateway.request("POST", "/api/lanes/gpu/pause")
    made = create(client, "a", answering(), extra_headers={"X-LlamaSwap-Member": "film"})
    assert (made.status, made.background, made.object, made.output) == ("queued", True, "response", [])
    assert (made.model, made.error) == ("mA", None)
    assert made.id.startswith("resp_")
    assert abs(made.created_at - time.time()) < 60
    assert client.responses.retrieve(made.id) == made
    (job,) = gateway.queue()["waiting"]
    assert (f"resp_{job['id']}", job["member"]) == (made.id, "film")
    gateway.request("POST", "/api/lanes/gpu/resume")
    done = over(client, made)
    assert (done.id, done.status, done.background) == (made.id, "completed", True)
    assert done.output_text == "Paris <b>&</b> more"
    assert done.created_at == ANSWER["created_at"]
    assert done.to_dict()["extra"] == {"of": "the server"}
    client.responses.delete(made.id)
    for ask in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match=f"no response `{made.id}` is known"):
            ask(made.id)


def test_one_that_runs_is_in_progress(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    made = create(client, "b", {"dur": 600})
    in_time(lambda: client.responses.retrieve(made.id).status == "in_progress", "it runs")
    cancelled = client.responses.cancel(made.id)
    assert (cancelled.id, cancelled.status) == (made.id, "cancelled")
    assert client.responses.cancel(made.id) == cancelled == client.responses.retrieve(made.id)
    in_time(lambda: not gateway.queue()["running"], "its place is free")


def test_one_that_waits_is_cancelled_and_never_sent(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    gateway.request("POST", "/api/lanes/gpu/pause")
    made = create(client, "c", {})
    other = create(client, "c2", {})
    assert client.responses.cancel(made.id).status == "cancelled"
    client.responses.delete(other.id)
    assert not gateway.queue()["waiting"]
    gateway.request("POST", "/api/lanes/gpu/resume")
    assert gateway.chat("mA", rid="after c").status_code == 200
    assert not {"c", "c2"} & {entry["rid"] for entry in gateway.journal("req_start")}
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(other.id)


def test_a_finished_one_stays_what_it_is_when_it_is_cancelled(client: openai.OpenAI) -> None:
    done = over(client, create(client, "d", answering()))
    assert client.responses.cancel(done.id) == done


@pytest.mark.parametrize("model", ["mA", "mB"])
def test_the_server_is_not_told(client: openai.OpenAI, gateway: GatewayProcess, model: str) -> None:
    # The stub says what it was sent: the answer is that, as a response.
    filler = "é" * 700_000  # long enough for a file, between the two places that change
    for name, content in (
        ("short", '{"background" :true, "n": 1.50, "model":"%s","stub":{"echo_body":true}}'),
        ("other", '{"n": 1.50, "model" : "%s", "stub":{"echo_body":true}, "background":  true}'),
        ("long", '{"model" : "%s","x":"' + filler + '", "background": true , "stub":{"echo_body":true}}'),
    ):
        text = (content % model).encode()
        with gateway.client() as raw:
            headers = {"Content-Type": "application/json"}
            answer = raw.post("/v1/responses", content=text, headers=headers)
        assert (answer.status_code, answer.json()["status"], answer.json()["model"]) == (200, "queued", model), name
        done = over(client, client.responses.retrieve(answer.json()["id"]))
        changed = text.replace(b'background" :true', b'background" :false')
        for spelling in (b'background":  true', b'background": true'):
            changed = changed.replace(spelling, spelling[:-4] + b"false")
        if model == "mB":
            changed = changed.replace(b'"mB"', b'"real/b"')
        assert gateway.journal("req_start")[-1]["sha256"] == hashlib.sha256(changed).hexdigest(), name
        assert (done.status, done.background) == ("completed", True)
        assert done.model == ("mA" if model == "mA" else "real/b")


def test_failures_are_told_in_the_response(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    for rid, stub, words in (
        ("e1", answering({"error": {"message": "too long a prompt", "type": "x"}}, 400), "too long a prompt"),
        ("e2", {"status": 500, "size": 10}, "answered with status 500"),
        ("e3", {"close_without_reply": True}, "upstream"),
        ("e4", {"size": 10}, "the model's answer is not a response"),
        ("e5", answering([1]), "it is not an object"),
    ):
        failed = over(client, create(client, rid, stub))
        assert failed.status == "failed", rid
        assert failed.error is not None
        assert failed.error.code == "server_error"
        assert failed.error.message, rid
        if rid != "e3":
            assert words in failed.error.message


def test_an_incomplete_one_stays_incomplete(client: openai.OpenAI) -> None:
    short = {**ANSWER, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "job": 1}
    answer = over(client, create(client, "f1", answering(short)))
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    unsaid = {key: value for key, value in ANSWER.items() if key != "status"}
    assert over(client, create(client, "f2", answering(unsaid))).status == "completed"
    odd = {**ANSWER, "status": "in_progress"}
    assert over(client, create(client, "f3", answering(odd))).status == "completed", "nobody would wait for its end"


def test_what_is_not_for_the_background_waits_as_ever(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="mA", input="background", background=False, extra_body={"stub": answering()})
    assert answer.id == "resp_of_the_server"


def test_refusals(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    with pytest.raises(openai.BadRequestError, match="`stream` cannot be combined with `background`"):
        client.responses.create(model="mA", input="x", background=True, stream=True)
    with pytest.raises(openai.NotFoundError, match="no router for requested model `m`"):
        client.responses.create(model="m", input="x", background=True)
    text = '{"model": "mA", "background": true, "background": true}'
    answer = gateway.request("POST", "/v1/responses", content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert "`background` is given more than once" in answer.json()["error"]["message"]
    for response_id in ("resp_", "resp_x", "x", "chatcmpl-1"):
        assert gateway.get(f"/v1/responses/{response_id}").status_code == 404
    made = create(client, "g", answering())
    with pytest.raises(openai.BadRequestError, match="`stream` cannot be combined"):
        client.responses.retrieve(made.id, stream=True)
    over(client, made)


def test_it_survives_a_kill(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path, CONFIG)
    with gateway.unguarded(), client_of(gateway) as client:
        done = over(client, create(client, "h0", answering()))
        gateway.request("POST", "/api/lanes/gpu/pause")
        made = create(client, "h1", answering())
        gateway.process.kill()
        gateway.process.wait()
    with GatewayProcess(tmp_path, CONFIG) as gateway, client_of(gateway) as client:
        assert client.responses.retrieve(done.id) == done
        assert over(client, made).output_text == "Paris <b>&</b> more"
        assert [entry["rid"] for entry in gateway.journal("req_start")] == ["h0", "h1"]
