"""Whose videos, prompts, responses, files and batches may be seen, ended and used on a gateway with keys."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tests.support.async_servers import comfy_model, models, stub_model, video_model
from tests.support.gateway import GatewayProcess
from tests.support.people import KEYS, Person
from tests.support.renders import LONG_S, VIDEOS, message
from tests.support.scene import in_time

COMFY = "/upstream/comfy"
CHAT = "/v1/chat/completions"
ASYNC = {"Prefer": "respond-async"}
CONFIG = (
    models(
        video_model("wan", flavour="vllm", extra="completion: openai-videos"),
        video_model("other", flavour="vllm", extra="completion: openai-videos"),
        comfy_model("comfy", extra="completion: comfyui\nslots: 2"),
        stub_model("mA"),
    )
    + KEYS
    + "  - {key: sk-narrow-CANARY, name: narrow, models: [mA, wan]}\n"
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("owners"), CONFIG, key="sk-root-CANARY") as gateway:
        yield gateway


@pytest.fixture
def root(gateway: GatewayProcess) -> Person:
    """Without the tidying after each test: `things` are there for all of them."""
    return Person(gateway, "root")


def ok(answer: httpx2.Response) -> Any:
    assert answer.status_code in (200, 202), answer.text
    return answer.json()


def video(person: Person, *, headers: dict[str, str] | None = None, **fields: str) -> dict[str, Any]:
    """A video, whole unless `seconds` says otherwise."""
    body = {"model": "wan", "prompt": "a train", "seconds": "0.1", **fields}
    made = ok(person.request("POST", VIDEOS, json=body, headers=headers))
    if fields.get("seconds") != LONG_S:
        in_time(lambda: person.get(f"{VIDEOS}/{made['id']}").json()["status"] == "completed", "it is rendered")
    assert isinstance(made, dict)
    return made


def prompt(person: Person, seconds: float = 0.1) -> str:
    """A prompt of ComfyUI that has begun."""
    graph = {"9": {"class_type": "SaveImage", "inputs": {"seconds": seconds, "text": "CANARY"}}}
    return str(ok(person.request("POST", f"{COMFY}/prompt", json={"prompt": graph}))["prompt_id"])


def upload(person: Person, *bodies: dict[str, Any]) -> str:
    """A file of requests for a batch."""
    lines = [
        json.dumps({"custom_id": f"l-{n}", "method": "POST", "url": CHAT, "body": body})
        for n, body in enumerate(bodies)
    ]
    files = {"file": ("in.jsonl", "\n".join(lines).encode())}
    return str(ok(person.request("POST", "/v1/files", data={"purpose": "batch"}, files=files))["id"])


def batch(person: Person, file: str, **headers: str) -> dict[str, Any]:
    wanted = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    made = ok(person.request("POST", "/v1/batches", json=wanted, headers=headers))
    assert isinstance(made, dict)
    return made


def batch_over(person: Person, batch_id: str) -> dict[str, Any]:
    told: dict[str, Any] = {}

    def is_over() -> bool:
        told.update(ok(person.get(f"/v1/batches/{batch_id}")))
        return told["status"] in ("completed", "failed", "expired", "cancelled")

    in_time(is_over, f"{batch_id} is over")
    return told


def response(person: Person) -> str:
    """A background response that is whole."""
    made = ok(person.request("POST", "/v1/responses", json={"model": "mA", "input": "hi", "background": True}))
    path = f"/v1/responses/{made['id']}"
    in_time(lambda: person.get(path).json()["status"] == "completed", "it is answered")
    return str(made["id"])


@dataclass(frozen=True, kw_only=True)
class Things:
    """One of each, all over, of one member."""

    video: str
    waiting: str  #: a detached video that has not begun
    prompt: str
    response: str
    file: str
    batch: str


@pytest.fixture(scope="module")
def things(gateway: GatewayProcess) -> Iterator[Things]:
    alice = Person(gateway, "alice")
    file = upload(alice, {"model": "mA"})
    done = batch(alice, file)["id"]
    batch_over(alice, done)
    made = Things(
        video=video(alice)["id"],
        prompt=prompt(alice),
        response=response(alice),
        file=file,
        batch=done,
        waiting="",
    )
    in_time(lambda: made.prompt in alice.get(f"{COMFY}/history/{made.prompt}").json(), "the prompt is over")
    gateway.request("POST", "/api/lanes/gpu/pause")
    body = {"model": "wan", "prompt": "a train", "seconds": "0.1"}
    waiting = ok(alice.request("POST", VIDEOS, json=body, headers=ASYNC))["id"]
    yield Things(**{**made.__dict__, "waiting": waiting})
    gateway.request("POST", "/api/lanes/gpu/resume")


FOREIGN = [
    ("video", "GET", VIDEOS + "/{}", None),
    ("video", "HEAD", VIDEOS + "/{}", None),
    ("video", "GET", VIDEOS + "/{}/content", None),
    ("video", "DELETE", VIDEOS + "/{}", None),
    ("video", "POST", VIDEOS + "/{}/remix", {"prompt": "by day"}),
    ("video", "GET", "/upstream/wan/v1/videos/{}", None),
    ("video", "GET", "/upstream/wan/v1/videos/{}/content?variant=thumbnail", None),
    ("video", "DELETE", "/upstream/wan/v1/videos/{}", None),
    ("video", "POST", "/upstream/wan/v1/videos/{}/remix", {"prompt": "by day"}),
    ("waiting", "GET", VIDEOS + "/{}", None),
    ("waiting", "DELETE", VIDEOS + "/{}", None),
    ("waiting", "GET", VIDEOS + "/{}/content", None),
    ("prompt", "GET", COMFY + "/history/{}", None),
    ("prompt", "GET", COMFY + "/api/history/{}", None),
    ("prompt", "GET", COMFY + "/api/jobs/{}", None),
    ("prompt", "POST", COMFY + "/queue", {"delete": ["{}"]}),
    ("prompt", "POST", COMFY + "/history", {"delete": ["{}"]}),
    ("prompt", "POST", COMFY + "/interrupt", {"prompt_id": "{}"}),
    ("response", "GET", "/v1/responses/{}", None),
    ("response", "POST", "/v1/responses/{}/cancel", None),
    ("response", "DELETE", "/v1/responses/{}", None),
    ("file", "GET", "/v1/files/{}", None),
    ("file", "GET", "/v1/files/{}/content", None),
    ("file", "DELETE", "/v1/files/{}", None),
    ("file", "POST", "/v1/batches", {"input_file_id": "{}", "endpoint": CHAT, "completion_window": "24h"}),
    ("batch", "GET", "/v1/batches/{}", None),
    ("batch", "POST", "/v1/batches/{}/cancel", None),
]


@pytest.mark.parametrize(("what", "method", "path", "body"), FOREIGN)
def test_somebody_elses_is_answered_as_what_never_was(
    things: Things, bob: Person, bot: Person, what: str, method: str, path: str, body: Any
) -> None:
    known = str(getattr(things, what))
    unknown = known[:-3] + ("abc" if known[-3:] != "abc" else "def")

    def asked(person: Person, thing: str) -> tuple[int, str, list[str]]:
        content = None if body is None else json.loads(json.dumps(body).replace("{}", thing))
        answer = person.request(method, path.replace("{}", thing), json=content)
        return answer.status_code, answer.text.replace(thing, "ID"), sorted(answer.headers)

    for person in (bob, bot):
        status, text, headers = asked(person, known)
        assert (status, text, headers) == asked(person, unknown)
        assert status == 404
        assert method == "HEAD" or "ID" in text


def test_its_own_member_and_an_admin_still_have_everything(
    things: Things, gateway: GatewayProcess, root: Person
) -> None:
    for person in (Person(gateway, "alice"), Person(gateway, "phone"), root):
        assert ok(person.get(f"{VIDEOS}/{things.video}"))["status"] == "completed"
        assert person.get(f"{VIDEOS}/{things.video}/content").status_code == 200
        assert ok(person.get(f"{VIDEOS}/{things.waiting}"))["status"] == "queued"
        assert things.prompt in ok(person.get(f"{COMFY}/history/{things.prompt}"))
        assert ok(person.get(f"/v1/responses/{things.response}"))["status"] == "completed"
        assert person.get(f"/v1/files/{things.file}/content").status_code == 200
        told = ok(person.get(f"/v1/batches/{things.batch}"))
        assert person.get(f"/v1/files/{told['output_file_id']}/content").status_code == 200


@pytest.mark.parametrize("path", [VIDEOS, "/v1/files", "/v1/batches"])
def test_lists_and_their_pages_are_of_ones_own_only(
    things: Things, gateway: GatewayProcess, alice: Person, bob: Person, root: Person, path: str
) -> None:
    def ids(person: Person, query: str = "") -> list[str]:
        told = ok(person.get(path + query))
        assert told["first_id"] == (told["data"][0]["id"] if told["data"] else None)
        return [each["id"] for each in told["data"]] + ["more"] * told["has_more"]

    files = [upload(bob, {"model": "nothing"}) for _ in range(3)]
    if path == VIDEOS:
        bobs = [
            ok(bob.request("POST", VIDEOS, json={"model": "wan", "prompt": "x"}, headers=ASYNC))["id"] for _ in range(3)
        ]
    else:
        bobs = files if path == "/v1/files" else [batch(bob, file)["id"] for file in files]
    hers = ids(alice)
    assert set(hers).isdisjoint(bobs)
    assert {"/v1/files": things.file, "/v1/batches": things.batch}.get(path, things.video) in hers
    assert ids(Person(gateway, "phone")) == hers
    assert ids(bob)[:3] == bobs[::-1]
    assert ids(bob, "?limit=2") == [*bobs[:0:-1], "more"]
    assert bobs[0] in ids(bob, f"?limit=20&after={bobs[1]}")
    assert ids(bob, f"?after={hers[0]}") == ids(bob, "?after=unknown") == []
    assert set(ids(root)) >= {*hers, *bobs}
    if path == VIDEOS:
        for each in bobs:
            bob.request("DELETE", f"{VIDEOS}/{each}")


# ComfyUI's page and its controls.


def test_a_member_of_comfyui_sees_what_shows_nobodys_work(things: Things, bob: Person, root: Person) -> None:
    gateway_paths = ("queue", "history", "history?max_items=8", "api/queue", "jobs", "internal/logs", "api/assets")
    for path in gateway_paths:
        refused = bob.get(f"{COMFY}/{path}")
        assert refused.status_code == 403
        assert "is about everybody's jobs at `comfy`: this needs a key with admin: true" in message(refused)
        assert root.get(f"{COMFY}/{path}").status_code in (200, 404, 409)
    assert bob.request("POST", f"{COMFY}/history", json={"clear": True}).status_code == 403


@pytest.fixture
def resumed(gateway: GatewayProcess) -> Iterator[None]:
    """The lane runs jobs, whatever the tests before have left."""
    gateway.request("POST", "/api/lanes/gpu/resume")
    in_time(lambda: not gateway.queue()["running"] and not gateway.queue()["waiting"], "nothing is left to do")
    yield
    for job in (*gateway.queue()["running"], *gateway.queue()["waiting"]):
        gateway.request("DELETE", f"/api/jobs/{job['id']}")
    in_time(lambda: not gateway.queue()["running"], "nothing runs")


@pytest.mark.usefixtures("resumed")
def test_what_a_prompt_made_is_its_owners(alice: Person, bob: Person, root: Person) -> None:
    made = prompt(alice)
    view = f"{COMFY}/view?filename={made}.png&type=output"
    # As ComfyUI's page does: at the moment in which the file is there, and before the gateway has seen that.
    assert alice.get(view).content.startswith(b"\x89PNG")
    assert alice.get(f"{COMFY}/api/view?type=output&subfolder=&filename={made}.png&rand=1").status_code == 200
    assert root.get(view).status_code == 200
    foreign, unknown = bob.get(view), bob.get(view.replace(made, "unknown"))
    assert (foreign.status_code, foreign.text) == (404, unknown.text)
    with_two_names = f"{COMFY}/view?filename={made}.png&filename=mine.png&type=output"
    assert bob.get(with_two_names).status_code == 404
    assert bob.get(f"{COMFY}/view?filename={made}.png%20[output]&type=input").status_code == 404


@pytest.mark.usefixtures("resumed")
def test_controls_that_name_no_job_need_all_that_runs_to_be_ones_own(
    gateway: GatewayProcess, alice: Person, bob: Person
) -> None:
    own = prompt(alice, 600)
    in_time(lambda: gateway.queue()["running"], "it runs")
    controls: tuple[tuple[str, dict[str, bool]], ...] = (
        ("interrupt", {}),
        ("queue", {"clear": True}),
        ("free", {"unload_models": True}),
    )
    for control, body in controls:
        refused = bob.request("POST", f"{COMFY}/api/{control}", json=body)
        assert (refused.status_code, "would end work of others at `comfy`" in message(refused)) == (403, True)
        # What a server might read otherwise than the gateway is taken to be about everything.
        for headers in ({"Content-Encoding": "gzip"}, {"Content-Type": "application/json; charset=utf-7"}):
            content = json.dumps({"delete": [], "prompt_id": own}).encode()
            answer = bob.request("POST", f"{COMFY}/{control}", content=content, headers=headers)
            assert answer.status_code == 403
    assert alice.request("POST", f"{COMFY}/free", json={}).status_code == 200
    assert gateway.queue()["running"], "nothing has ended it"
    assert alice.request("POST", f"{COMFY}/interrupt", json={}).status_code == 200
    in_time(lambda: not gateway.queue()["running"], "it was interrupted")
    status = ok(alice.get(f"{COMFY}/history/{own}"))[own]["status"]
    assert status["status_str"] == "error"


@pytest.mark.usefixtures("resumed")
def test_beside_somebody_elses_prompt_ones_own_is_ended_by_its_id(
    gateway: GatewayProcess, alice: Person, bob: Person
) -> None:
    hers = prompt(alice, 600)
    in_time(lambda: len(gateway.queue()["running"]) == 1, "hers runs")
    bobs = prompt(bob, 600)
    in_time(lambda: len(gateway.queue()["running"]) == 2, "his stands behind it in the server's own queue")
    for person, own in ((alice, hers), (bob, bobs)):
        assert person.request("POST", f"{COMFY}/interrupt", json={}).status_code == 403
        assert person.request("POST", f"{COMFY}/interrupt", json={"prompt_id": own}).status_code == 403
        assert person.request("POST", f"{COMFY}/queue", json={"clear": True}).status_code == 403
    assert bob.request("POST", f"{COMFY}/queue", json={"delete": [hers, bobs]}).status_code == 404
    assert len(gateway.queue()["running"]) == 2
    assert bob.request("POST", f"{COMFY}/queue", json={"delete": [bobs]}).status_code == 200
    in_time(lambda: len(gateway.queue()["running"]) == 1, "his is gone")
    (left,) = gateway.queue()["running"]
    assert left["member"] == "alice"


@pytest.mark.usefixtures("resumed")
def test_a_running_video_is_seen_and_ended_by_its_member_only(
    gateway: GatewayProcess, alice: Person, bob: Person
) -> None:
    running = video(alice, seconds=LONG_S)["id"]
    for method in ("GET", "DELETE"):
        for path in (f"{VIDEOS}/{running}", f"/upstream/wan/v1/videos/{running}"):
            assert bob.request(method, path).status_code == 404
    assert bob.get("/upstream/wan/v1/videos").status_code == 403
    assert ok(alice.get(f"{VIDEOS}/{running}"))["status"] in ("queued", "in_progress")
    assert alice.request("DELETE", f"{VIDEOS}/{running}").status_code == 200
    in_time(lambda: not gateway.queue()["running"], "it is cancelled")


@pytest.mark.usefixtures("resumed")
def test_the_only_video_model_is_the_only_one_that_may_be_used(gateway: GatewayProcess, bob: Person) -> None:
    narrow = Person(gateway, "narrow")
    made = ok(narrow.request("POST", VIDEOS, json={"prompt": "a train", "seconds": "0.1"}))
    assert made["model"] == "wan"
    several = bob.request("POST", VIDEOS, json={"prompt": "a train"})
    assert "several models make videos: give the field `model`, one of `other`, `wan`" in message(several)
    unknown = narrow.get(f"{VIDEOS}?model=othe")
    assert (unknown.status_code, "other" in message(unknown).replace("`othe`", "")) == (404, False)


# Batches.


@pytest.mark.usefixtures("resumed")
def test_a_batch_runs_for_its_sender_with_its_tier_and_on_its_models(
    gateway: GatewayProcess, alice: Person, bob: Person, bot: Person
) -> None:
    narrow = Person(gateway, "narrow")
    gateway.request("POST", "/api/lanes/gpu/pause")
    with contextlib.ExitStack() as stack:
        stack.callback(gateway.request, "POST", "/api/lanes/gpu/resume")
        member = {"X-LlamaSwap-Member": "carol"}
        made = [
            (batch(alice, upload(alice, {"model": "mA"}))["id"], "alice", "alices-laptop", -98),
            (batch(bob, upload(bob, {"model": "mA"}), **member)["id"], "bob", "bobs", -100),
            (batch(bob, upload(bob, {"model": "mA"}), **{"X-LlamaSwap-Priority": "100"})["id"], "bob", "bobs", -100),
            (batch(bob, upload(bob, {"model": "mA"}), **{"X-LlamaSwap-Priority": "-300"})["id"], "bob", "bobs", -300),
            (batch(bot, upload(bot, {"model": "mA"}), **member)["id"], "carol", "bot", -100),
            (
                batch(bot, upload(bot, {"model": "mA"}), **member, **{"X-LlamaSwap-Priority": "-99"})["id"],
                "carol",
                "bot",
                -99,
            ),
        ]
        in_time(lambda: len(gateway.queue()["waiting"]) == len(made), "their lines wait")
        waiting = {job["label"]: job for job in gateway.queue()["waiting"]}
        for batch_id, whose, key, priority in made:
            job = waiting[f"batch={batch_id}"]
            assert (job["member"], job["key"], job["priority"]) == (whose, key, priority)
    for person, at in ((alice, 0), (bob, 1), (bob, 2), (bob, 3), (bot, 4), (bot, 5)):
        assert batch_over(person, made[at][0])["status"] == "completed"
    refused = batch_over(narrow, batch(narrow, upload(narrow, {"model": "mA"}, {"model": "other"}))["id"])
    assert refused["status"] == "failed"
    (error,) = refused["errors"]["data"]
    assert (error["code"], error["line"], error["param"]) == ("model_not_allowed", 2, "body.model")
    assert "the key `narrow` may not use the model `other`" in error["message"]


def test_what_is_kept_is_readable_for_the_gateways_user_alone(gateway: GatewayProcess, things: Things) -> None:
    (state,) = {path.parent for path in gateway.config.parent.rglob("jobs.db")}
    found = {path: path.stat().st_mode & 0o777 for path in state.rglob("*")}
    assert {path.parent.name for path in found} >= {"answers", "kept", "files"}
    for path, mode in found.items():
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_no_prompt_of_somebody_else_was_shown(gateway: GatewayProcess, bob: Person) -> None:
    for path in (f"{COMFY}/queue", f"{COMFY}/history", VIDEOS, "/api/queue"):
        assert "CANARY" not in bob.get(path).text
