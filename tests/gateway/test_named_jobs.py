"""What a request for a job may name on a gateway with keys: the video it goes on from, the id it chooses."""

from __future__ import annotations

import contextlib
import functools
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swaplane.completion.presets import PRESETS
from swaplane.completion.rule import NamingFields
from swaplane.gateway.errors import RawHeaders
from swaplane.gateway.named_jobs import Ambiguous, _found_in
from tests.gateway.test_access_keys import reload
from tests.gateway.test_owners import ok, video
from tests.support.async_servers import comfy_model, models, stub_model, video_model
from tests.support.gateway import GatewayProcess
from tests.support.people import KEYS, Person
from tests.support.renders import VIDEOS, message
from tests.support.scene import in_time

COMFY = "/upstream/comfy"
CONFIG = (
    models(
        video_model("wan", flavour="vllm", extra="completion: openai-videos"),
        comfy_model("comfy", extra="completion: comfyui\nslots: 2"),
        stub_model("mA"),
    )
    + KEYS
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("named"), CONFIG, key="sk-root-CANARY") as gateway:
        yield gateway


def graph(seconds: float = 0.1, file: str = "", **fields: Any) -> dict[str, Any]:
    inputs: dict[str, Any] = {"seconds": seconds} | ({"file": file} if file else {})
    return {"prompt": {"9": {"class_type": "SaveImage", "inputs": inputs}}, **fields}


def made(person: Person, **fields: Any) -> str:
    """A prompt that is over."""
    prompt = str(ok(person.request("POST", f"{COMFY}/prompt", json=graph(**fields)))["prompt_id"])
    in_time(lambda: prompt in person.get(f"{COMFY}/history/{prompt}").json(), "it is over")
    in_time(lambda: not person.lane()["running"], "its results are kept")
    return prompt


def is_told(person: Person, path: str, **wanted: str) -> bool:
    return bool(person.get(path).json().items() >= wanted.items())


# What one job has made, two may have made.


def test_a_picture_that_two_peoples_graphs_name_is_kept_for_each(
    gateway: GatewayProcess, alice: Person, bob: Person, root: Person
) -> None:
    view = f"{COMFY}/view?filename=cached.png&type=output"
    hers = made(alice, file="cached")
    before = alice.get(view)
    assert before.status_code == 200
    assert bob.get(view).status_code == 404
    bobs = made(bob, file="cached")
    assert gateway.unload().status_code == 200
    assert [person.get(view).status_code for person in (alice, bob, root)] == [200] * 3
    assert alice.get(view).content == before.content
    for person, prompt in ((alice, hers), (bob, bobs)):
        assert prompt in person.get(f"{COMFY}/history/{prompt}").json()


# The id that a prompt chooses.


def chosen(person: Person, prompt_id: object, path: str = "prompt", **options: Any) -> Any:
    return person.request("POST", f"{COMFY}/{path}", json=graph(prompt_id=prompt_id), **options)


def test_an_id_that_is_somebody_elses_cannot_be_chosen(gateway: GatewayProcess, alice: Person, bob: Person) -> None:
    taken, free = str(uuid.uuid4()), str(uuid.uuid4())
    assert made(alice, prompt_id=taken) == taken
    for headers in ({}, {"Prefer": "respond-async"}, {"Idempotency-Key": "k"}):
        for path in ("prompt", "api/prompt", "prompt/"):
            refused = chosen(bob, taken, path, headers=headers)
            assert (refused.status_code, message(refused)) == (
                409,
                f"the id `{taken}` is taken: leave out `prompt_id`, or choose another id",
            )
    long = graph(prompt_id=taken, client_id="x" * 300_000)
    assert bob.request("POST", f"{COMFY}/prompt", json=long).status_code == 409
    in_form = {"Content-Type": "multipart/form-data; boundary=x"}
    content = json.dumps(graph(prompt_id=taken)).encode()
    assert bob.request("POST", f"{COMFY}/prompt", content=content, headers=in_form).status_code == 409
    submits = [entry for entry in gateway.journal("http") if entry["path"].endswith("/prompt")]
    assert made(bob, prompt_id=free) == free
    assert len([entry for entry in gateway.journal("http") if entry["path"].endswith("/prompt")]) == len(submits) + 1
    assert bob.get(f"{COMFY}/history/{taken}").status_code == 404
    assert taken in alice.get(f"{COMFY}/history/{taken}").json()
    assert made(Person(gateway, "phone"), prompt_id=taken) == taken, "her own may be taken by herself"
    assert chosen(Person(gateway, "root"), taken).status_code == 200, "an admin may do everything"


def test_an_id_that_becomes_somebody_elses_while_a_job_waits_is_refused_when_its_turn_comes(
    gateway: GatewayProcess, alice: Person, bob: Person
) -> None:
    prompt_id = str(uuid.uuid4())
    gateway.request("POST", "/api/lanes/gpu/pause")
    with contextlib.ExitStack() as stack:
        stack.callback(gateway.request, "POST", "/api/lanes/gpu/resume")
        headers = {"Prefer": "respond-async"}
        hers = ok(chosen(alice, prompt_id, headers={**headers, "X-LlamaSwap-Priority": "100"}))["id"]
        bobs = ok(chosen(bob, prompt_id, headers=headers))["id"]
    results = {}
    for person, job in ((alice, hers), (bob, bobs)):
        path = f"/api/jobs/{job}"
        in_time(functools.partial(is_told, person, path, state="ended"), "it is over")
        results[job] = person.get(f"/api/jobs/{job}/result")
    assert [results[job].status_code for job in (hers, bobs)] == [200, 409]
    assert results[bobs].headers["X-LlamaSwap-Job"] == bobs
    assert "is taken" in message(results[bobs])
    assert prompt_id in alice.get(f"{COMFY}/history/{prompt_id}").json()


def test_a_job_whose_key_was_removed_goes_on_by_what_its_key_had(tmp_path: Path) -> None:
    config = models(comfy_model("comfy", extra="completion: comfyui"))
    with GatewayProcess(tmp_path, config + KEYS, key="sk-root-CANARY") as gateway:
        alice, bob, root = (Person(gateway, name) for name in ("alice", "bob", "root"))
        his, hers = str(uuid.uuid4()), str(uuid.uuid4())
        assert made(bob, prompt_id=his) == his
        root.request("POST", "/api/lanes/gpu/pause")
        headers = {"Prefer": "respond-async"}
        jobs = [ok(chosen(bob, prompt_id, headers=headers))["id"] for prompt_id in (his, hers)]
        ok(chosen(alice, hers, headers={**headers, "X-LlamaSwap-Priority": "100"}))
        reload(gateway, config + KEYS.replace("sk-bob-CANARY", "sk-new-CANARY").replace("name: bobs", "name: new"))
        root.request("POST", "/api/lanes/gpu/resume")
        for job, status in zip(jobs, (200, 409), strict=True):
            in_time(functools.partial(is_told, root, f"/api/jobs/{job}", state="ended"), "it is over")
            assert root.get(f"/api/jobs/{job}/result").status_code == status
        assert hers in alice.get(f"{COMFY}/history/{hers}").json()


@pytest.mark.parametrize(
    ("headers", "content", "why"),
    [
        ({"Content-Encoding": "gzip"}, b"{}", "the body must be sent as UTF-8, without Content-Encoding"),
        ({"Content-Type": "application/json; charset=utf-16"}, b"{}", "the body must be sent as UTF-8"),
        ({}, '{"prompt_id": "x"}'.encode("utf-16"), "the body must be a JSON object or a form"),
        ({}, b'{"prompt_id": "x", "prompt\\u005fid": "y"}', "`prompt_id` is given more than once"),
        ({}, b'{"prompt_id": "x"', "the body is not JSON: unexpected end of the text at byte 17"),
    ],
)
def test_a_body_that_may_hide_an_id_is_refused(
    bob: Person, gateway: GatewayProcess, headers: dict[str, str], content: bytes, why: str
) -> None:
    refused = bob.request("POST", f"{COMFY}/prompt", content=content, headers=headers)
    assert (refused.status_code, why in message(refused)) == (400, True)


# The id that a server gives.


def test_an_id_that_a_server_gives_to_two_people_stands_for_each_ones_own_job(
    gateway: GatewayProcess, alice: Person, bob: Person
) -> None:
    hers = str(ok(alice.request("POST", f"{COMFY}/prompt", json=graph(600)))["prompt_id"])

    def the_same(person: Person) -> Any:
        body = {"prompt": {"9": {"class_type": "SaveImage", "inputs": {"same_as": hers}}}}
        answer = person.request("POST", f"{COMFY}/prompt", json=body)
        assert ok(answer)["prompt_id"] == hers
        return answer.headers["X-LlamaSwap-Job"]

    (running,) = alice.lane()["running"]
    bobs = the_same(bob)
    in_time(lambda: len(gateway.queue()["running"]) == 2, "both are followed")
    assert bob.request("DELETE", f"/api/jobs/{bobs}").status_code == 200
    in_time(lambda: len(gateway.queue()["running"]) == 1, "his is over")
    assert bob.get(f"/api/jobs/{bobs}").json()["outcome"] == "cancelled_running"
    assert alice.lane()["running"][0]["id"] == running["id"], "hers goes on"
    assert hers in [entry["id"] for entry in gateway.journal("gpu_start")]
    assert hers not in [entry["id"] for entry in gateway.journal("gpu_end")]
    assert alice.request("POST", f"{COMFY}/queue", json={"delete": [hers]}).status_code == 200, "it is still hers"
    assert alice.request("DELETE", f"/api/jobs/{running['id']}").status_code == 200
    in_time(lambda: not gateway.queue()["running"], "it is over")
    assert gateway.unload().status_code == 200
    told = [each.get(f"{COMFY}/history/{hers}").json()[hers]["status"]["messages"][-1] for each in (alice, bob)]
    assert [fault["exception_message"] for _, fault in told] == ["cancelled by request while it ran"] * 2
    assert Person(gateway, "bot").get(f"{COMFY}/history/{hers}").status_code == 404


# The video that another one goes on from.


def forms(source: str) -> list[dict[str, Any]]:
    fields = {"model": "wan", "prompt": "by day", "seconds": "0.1"}
    some_file = {"input_reference": ("a.png", b"x")}
    return [
        {"json": {**fields, "video": {"id": source}}},
        {"json": {**fields, "video": source}},
        {"json": {**fields, "video_id": source}},
        {"data": {**fields, "video[id]": source}, "files": some_file},
        {"data": {**fields, "video": source}, "files": some_file},
        {"data": {**fields, "video_id": source}, "files": some_file},
        {"data": {**fields, "video": json.dumps({"id": source})}, "files": some_file},
    ]


@pytest.mark.parametrize("route", ["edits", "extensions"])
@pytest.mark.parametrize("base", [VIDEOS, "/upstream/wan/v1/videos"])
def test_a_video_goes_on_from_ones_own_only(
    gateway: GatewayProcess, alice: Person, bob: Person, route: str, base: str
) -> None:
    source = video(alice)["id"]
    unknown = source[:-3] + ("abc" if source[-3:] != "abc" else "def")
    asked = len(gateway.journal("http"))
    for options, other in zip(forms(source), forms(unknown), strict=True):
        refused, never_was = (bob.request("POST", f"{base}/{route}", **each) for each in (options, other))
        assert refused.status_code == 404
        assert refused.text.replace(source, "ID") == never_was.text.replace(unknown, "ID")
        assert f"no job `{source}` of model `wan` is known" in message(refused)
    assert not [e for e in gateway.journal("http")[asked:] if e["path"].endswith(route)], "nothing of it was sent"
    for options in forms(source)[:1] + forms(source)[3:4]:
        again = ok(alice.request("POST", f"{base}/{route}", **options))
        assert again["remixed_from_video_id"] == source
        in_time(lambda: not alice.lane()["running"], "it is over")


def test_a_line_of_a_batch_goes_on_from_ones_own_video_only(
    gateway: GatewayProcess, alice: Person, bob: Person
) -> None:
    source = video(alice)["id"]
    body = {"model": "wan", "prompt": "by day", "seconds": "0.1", "video": {"id": source}}
    line = json.dumps({"custom_id": "1", "method": "POST", "url": f"{VIDEOS}/edits", "body": body})
    asked = len(gateway.journal("http"))
    told = {}
    for person in (bob, alice):
        files = {"file": ("in.jsonl", line.encode())}
        file = ok(person.request("POST", "/v1/files", data={"purpose": "batch"}, files=files))["id"]
        wanted = {"input_file_id": file, "endpoint": f"{VIDEOS}/edits", "completion_window": "24h"}
        batch = ok(person.request("POST", "/v1/batches", json=wanted))["id"]
        in_time(functools.partial(is_told, person, f"/v1/batches/{batch}", status="completed"), "it is over")
        told[person] = person.get(f"/v1/batches/{batch}").json()
    assert told[alice]["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    assert told[bob]["request_counts"] == {"total": 1, "completed": 0, "failed": 1}
    errors = bob.get(f"/v1/files/{told[bob]['error_file_id']}/content").json()
    assert errors["response"]["status_code"] == 404
    assert "is known: it was never made here" in json.dumps(errors)
    assert len([e for e in gateway.journal("http")[asked:] if e["path"].endswith("edits")]) == 1


# Reading.

VIDEO = NamingFields(chosen=("id",), sources=("video", "video[id]", "video_id"))
JSON: RawHeaders = [(b"content-type", b"application/json")]
FORM: RawHeaders = [(b"content-type", b"application/x-www-form-urlencoded")]


def read(headers: RawHeaders, content: bytes) -> dict[str, str]:
    names = frozenset(name.encode() for name in (*VIDEO.chosen, *VIDEO.sources))
    return dict(_found_in(headers, content, names))


@pytest.mark.parametrize(
    ("headers", "content", "found"),
    [
        (JSON, b'{"id": 5, "video": {"x": 1, "id": "a"}}', {"id": "5", "video": "a"}),
        (JSON, b'\xef\xbb\xbf {"video": "\\u0061"}', {"video": "a"}),
        (JSON, b'{"video": null, "video_id": ["a"], "id": true}', {}),
        (JSON, b'{"video": {"x": 1}, "video_id": "\\q"}', {}),
        (JSON, b'{"video_id": "%s"}' % (b"a" * 5000), {}),
        ([], b'{"video_id": "a"}', {"video_id": "a"}),
        (FORM, b"video_id=a&video%5Bid%5D=b&prompt=x", {"video_id": "a", "video[id]": "b"}),
        ([(b"content-type", b"Application/JSON; charset=UTF-8")], b'{"video": "a"}', {"video": "a"}),
    ],
)
def test_ids_are_found_where_they_may_be(headers: RawHeaders, content: bytes, found: dict[str, str]) -> None:
    assert read(headers, content) == found


@pytest.mark.parametrize(
    ("headers", "content"),
    [
        ([(b"content-type", b"multipart/form-data")], b"--x"),
        ([(b"content-type", b"text/plain")], b"video_id=a"),
        ([*JSON, (b"Content-Type", b"text/plain")], b"{}"),
        (FORM, b"video_id=a&video_id=b"),
        (JSON, b'{"video": {"id": "a", "id": "b"}}'),
        (JSON, b'{"video": {"id": "a"'),
    ],
)
def test_what_may_be_read_in_two_ways_is_refused(headers: RawHeaders, content: bytes) -> None:
    with pytest.raises(Ambiguous):
        read(headers, content)


def test_only_submits_are_read() -> None:
    videos, comfy = (PRESETS[name](1, 1) for name in ("openai-videos", "comfyui"))
    assert videos.naming_fields("POST", "/v1/videos") == NamingFields(chosen=("id",))
    assert videos.naming_fields("POST", "/v1/videos/edits/") == VIDEO
    assert videos.naming_fields("GET", "/v1/videos/edits") == NamingFields()
    assert comfy.naming_fields("POST", "/api/prompt") == NamingFields(chosen=("prompt_id",))
    assert comfy.naming_fields("POST", "/queue") == NamingFields()
