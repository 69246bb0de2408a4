"""Ways around the checks of whose jobs a request is about: spellings of paths, websockets, keys that are gone."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.support.async_servers import comfy_model, models, video_model
from tests.support.gateway import GatewayProcess
from tests.support.people import KEYS, Person
from tests.support.scene import Answer, ask_raw, in_time

WAN, COMFY = "/upstream/wan", "/upstream/comfy"
MODELS = models(
    video_model("wan", flavour="vllm", extra="completion: openai-videos"),
    comfy_model("comfy", extra="completion: comfyui"),
)
GROUPS = "groups:\n  side-by-side: {swap: false, members: [wan, comfy]}\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("owners-paths")
    with GatewayProcess(folder, MODELS + GROUPS + KEYS, key="sk-root-CANARY") as gateway:
        assert gateway.request("GET", f"{COMFY}/").status_code == 200  # which loads it
        yield gateway


@pytest.fixture(scope="module")
def alices(gateway: GatewayProcess) -> str:
    """The id of a video of Alice's, which is whole."""
    alice = Person(gateway, "alice")
    body = {"model": "wan", "prompt": "CANARY", "seconds": "0.1"}
    video = str(alice.request("POST", "/v1/videos", json=body).json()["id"])
    in_time(lambda: alice.get(f"/v1/videos/{video}").json()["status"] == "completed", "it is rendered")
    return video


def ask(person: Person, gateway: GatewayProcess, method: str, target: str) -> Answer:
    """One request whose target is sent as it is."""
    return ask_raw(gateway, method, target, headers=[("Authorization", f"Bearer {person.key}")])


@pytest.mark.parametrize(
    "target",
    [
        f"{WAN}//v1/videos",
        f"{WAN}/v1/./videos",
        f"{WAN}/v1/videos;a.json",
        f"{WAN}/x/../v1/videos",
        f"{WAN}/v1/videos%3f",
        f"{WAN}//v1/videos/ID",
        f"{WAN}/x/%2e%2e/v1/videos/ID/content",
        "/v1/videos/MINE/../ID",
        "/v1/videos/MINE/%2e%2e/ID",
        "/v1/videos/MINE/%2e%2e%2fID/content",
        f"{COMFY}//queue",
        f"{COMFY}/./history",
        f"{COMFY}/x%2f..%2fapi/queue",
        f"{COMFY}/queue%23.json",
    ],
)
def test_another_spelling_of_a_path_opens_nothing(
    gateway: GatewayProcess, alices: str, alice: Person, bob: Person, target: str
) -> None:
    mine = bob.request("POST", "/v1/videos", json={"model": "wan", "prompt": "x", "seconds": "0.1"}).json()["id"]
    target = target.replace("ID", alices).replace("MINE", mine)
    refused = ask(bob, gateway, "GET", target)
    assert refused.status == 403, refused.body
    assert b"is not the same path to every server" in refused.body
    # Also where nobody else could lose by it.
    assert ask(alice, gateway, "GET", target).status in (403, 404)


@pytest.mark.parametrize("target", [f"{COMFY}//interrupt", f"{COMFY}/interrupt;x", f"{WAN}//v1/videos/ID/remix"])
def test_nor_is_it_a_job(gateway: GatewayProcess, alices: str, bob: Person, target: str) -> None:
    refused = ask(bob, gateway, "POST", target.replace("ID", alices))
    assert refused.status == 403
    assert not refused.get("X-LlamaSwap-Job")


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("PATCH", f"{WAN}/v1/videos/ID", 404),
        ("DELETE", f"{WAN}/v1/videos/ID/content", 404),
        ("POST", f"{WAN}/v1/videos/ID/anything", 404),
        ("DELETE", f"{WAN}/v1/videos", 403),
        ("DELETE", f"{COMFY}/api/assets/1", 403),
        ("PATCH", f"{COMFY}/internal/logs/subscribe", 403),
    ],
)
def test_nor_does_another_method(
    gateway: GatewayProcess, alices: str, bob: Person, alice: Person, method: str, target: str, status: int
) -> None:
    refused = ask(bob, gateway, method, target.replace("ID", alices))
    assert (refused.status, refused.get("X-LlamaSwap-Job")) == (status, "")
    if "ID" in target:
        asked = ask(alice, gateway, method, target.replace("ID", alices))
        assert asked.get("X-LlamaSwap-Job"), "it is her video: the server may say what it thinks of that"
        asked = ask(bob, gateway, "POST", target.replace("ID", "upload"))
        assert asked.get("X-LlamaSwap-Job"), "that is no job"


def test_an_admin_may_spell_as_ever(gateway: GatewayProcess, root: Person) -> None:
    answer = ask(root, gateway, "GET", f"{COMFY}//queue")
    assert answer.status == 200, "this server reads two slashes as one"
    assert b"queue_running" in answer.body


def test_what_follows_a_videos_id_reaches_the_server_as_it_was_sent(
    gateway: GatewayProcess, alices: str, alice: Person, root: Person
) -> None:
    assert ask(alice, gateway, "GET", f"/v1/videos/{alices}/content?variant=video").status == 200
    assert ask(root, gateway, "GET", f"/v1/videos/{alices}/%0d%0aX:%20y%20%E4").status == 404
    assert ask(root, gateway, "GET", f"/v1/videos/{alices}/%e4%b8%ad").status == 404


# Websockets.


def socket(person: Person, gateway: GatewayProcess, path: str) -> ClientConnection:
    headers = {"Authorization": f"Bearer {person.key}"}
    return connect(f"ws://127.0.0.1:{gateway.port}{path}", additional_headers=headers, proxy=None)


def refusal(person: Person, gateway: GatewayProcess, path: str) -> tuple[int, str]:
    """How a websocket is refused."""
    with pytest.raises(InvalidStatus) as refused:
        socket(person, gateway, path)
    response = refused.value.response
    return response.status_code, response.body.decode()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{COMFY}/queue", 403),
        (f"{COMFY}/api/history", 403),
        (f"{COMFY}//queue", 403),
        (f"{COMFY}/history/ID", 404),
        (f"{COMFY}/view?filename=ID.png", 404),
        (f"{WAN}/v1/videos", 403),
        (f"{WAN}/v1/videos/ID", 404),
        (f"{WAN}/v1/videos/ID/content", 404),
    ],
)
def test_an_offer_of_a_websocket_gets_around_no_check(
    gateway: GatewayProcess, alices: str, bob: Person, root: Person, path: str, status: int
) -> None:
    path = path.replace("ID", alices)
    told, words = refusal(bob, gateway, path)
    assert (told, "CANARY" in words) == (status, False)
    told, words = refusal(root, gateway, path)
    assert told == 502, "nobody gets an answer that is none of a websocket"
    assert "the model's server opened no websocket here: it answered " in words


def test_a_websocket_that_looks_on_ends_with_its_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("gone")
    config = MODELS + GROUPS + KEYS
    with GatewayProcess(folder, config, key="sk-root-CANARY") as gateway, contextlib.ExitStack() as stack:
        gateway.request("GET", f"{COMFY}/")
        people = {name: Person(gateway, name) for name in ("root", "alice", "bob", "bot", "phone")}
        sockets = {name: stack.enter_context(socket(each, gateway, f"{COMFY}/ws")) for name, each in people.items()}
        for each in sockets.values():
            assert "status" in str(each.recv())

        kept = [line for line in config.splitlines() if "sk-bob" not in line]  # gone
        config = "\n".join(kept)
        config = config.replace("name: alices-laptop, member: alice", "name: alices-laptop, member: eve")
        config = config.replace("trust_member_header: true", "trust_member_header: true, models: [wan]")
        gateway.config.write_text(gateway.config.read_text().splitlines()[0] + "\n" + config + "\n")
        gateway.process.send_signal(signal.SIGHUP)
        in_time(lambda: "configuration reloaded" in gateway.log.read_text(), "the new file is in force")

        graph = {"prompt": {"9": {"class_type": "SaveImage", "inputs": {"seconds": 0.1}}}}
        people["root"].request("POST", f"{COMFY}/prompt", json=graph)
        for name in ("bob", "alice", "bot"):
            with pytest.raises(ConnectionClosedError):
                sockets[name].recv(timeout=30)
        for name in ("root", "phone"):
            assert "status" in str(sockets[name].recv(timeout=30)), "their keys are as they were"
