from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import openai
import pytest

from swaplane.config.settings import JobsSettings
from swaplane.gateway import webhook
from swaplane.gateway.webhook import TRIES_AFTER_S, WebhookRefused, Webhooks, webhook_of
from swaplane.runtime import Runtime
from swaplane.store import Store, StoredJob
from tests.support.gateway import GatewayProcess, stub_models
from tests.support.stub_client import eventually

SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes....").decode()
OTHER_SECRET = "whsec_" + base64.b64encode(b"another one of thirty-two bytes.").decode()


class Receiver(ThreadingHTTPServer):
    """A receiver that answers with the statuses it was given, then with 200; calls of `/hang` are not answered."""

    daemon_threads = True

    def __init__(self, *statuses: int, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.statuses = list(statuses)
        self.calls: list[tuple[dict[str, str], bytes]] = []
        self.paths: list[str] = []
        self.over = threading.Event()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/hook"

    def data(self) -> list[dict[str, Any]]:
        return [json.loads(body)["data"] for _, body in self.calls]


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.paths.append(self.path)
        self.server.calls.append((headers, body))
        if self.path == "/hang":
            self.server.over.wait()
            return
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def receiving(*statuses: int, port: int = 0) -> Iterator[Receiver]:
    with Receiver(*statuses, port=port) as receiver:
        thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield receiver
        finally:
            receiver.over.set()
            receiver.shutdown()
            thread.join()


def a_gateway(folder: Path, hosts: str = "127.0.0.1") -> GatewayProcess:
    webhooks = f"jobs: {{webhook: {{hosts: ['{hosts}'], secret: {SECRET}}}}}\n"
    return GatewayProcess(folder, stub_models("mA") + webhooks)


def send(gateway: GatewayProcess, url: str, **stub: Any) -> httpx2.Response:
    return gateway.request(
        "POST",
        "/v1/chat/completions",
        json={"model": "mA", "stub": stub},
        headers=[(b"Prefer", b"respond-async"), (b"X-LlamaSwap-Webhook", url.encode())],
    )


def test_a_receiver_is_told_of_the_end_and_can_verify_it(tmp_path: Path) -> None:
    with receiving() as receiver, a_gateway(tmp_path) as gateway:
        job = send(gateway, receiver.url, status=404).json()
        eventually(lambda: receiver.calls, "it is called")
        [(headers, body)] = receiver.calls
        assert headers["content-type"] == "application/json"
        assert headers["webhook-id"] == f"msg_{job['id']}"

        event = json.loads(body)
        assert event["type"] == "job.ended"
        assert event["timestamp"].endswith("Z")
        told = event["data"]
        assert (told["id"], told["outcome"], told["status"]) == (job["id"], "completed", 404)
        assert gateway.get(told["result"]).status_code == 404
        assert told == gateway.get(f"/api/jobs/{job['id']}").json()

        client = openai.OpenAI(api_key="x", base_url="http://127.0.0.1:1", webhook_secret=SECRET)
        with client:
            client.webhooks.verify_signature(body, headers)
            assert client.webhooks.unwrap(body, headers).type == "job.ended"  # type: ignore[comparison-overlap]
            for payload, secret in ((body + b" ", SECRET), (body, OTHER_SECRET)):
                with pytest.raises(openai.InvalidWebhookSignatureError):
                    client.webhooks.verify_signature(payload, headers, secret=secret)


def test_a_receiver_that_fails_is_told_again_also_after_a_restart(tmp_path: Path) -> None:
    gateway = a_gateway(tmp_path)
    with receiving(503) as receiver:
        gateway.__enter__()
        job = send(gateway, receiver.url).json()
        eventually(lambda: "webhook failed" in gateway.log.read_text(), "the failure is noted")
        gateway.process.kill()
        gateway.process.wait()
        port = receiver.server_port
    with receiving(port=port) as receiver, gateway:
        eventually(lambda: receiver.calls, "it is called again", 30)
        [told] = receiver.data()
        assert told["id"] == job["id"]
        assert receiver.calls[0][0]["webhook-id"] == f"msg_{job['id']}"
        eventually(lambda: "webhook delivered" in gateway.log.read_text(), "it is delivered")


def test_redirects_are_not_followed_and_gone_is_final(tmp_path: Path) -> None:
    with receiving(307, 410) as receiver, a_gateway(tmp_path) as gateway:
        send(gateway, receiver.url)
        eventually(lambda: "webhook given up" in gateway.log.read_text(), "it is given up", 30)
        assert receiver.paths == ["/hook", "/hook"]
        assert "it answered 307" in gateway.log.read_text()
        assert "it answered 410" in gateway.log.read_text()


def test_a_request_with_an_address_that_may_not_be_called_is_refused(tmp_path: Path) -> None:
    with a_gateway(tmp_path, "hooks.example.org") as gateway:
        answer = send(gateway, "http://127.0.0.1:9/hook")
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "webhook_refused"
        assert "names `127.0.0.1:9`, which is not among the hosts" in answer.json()["error"]["message"]
        without = gateway.request(
            "POST",
            "/v1/chat/completions",
            json={"model": "mA"},
            headers={"X-LlamaSwap-Webhook": "http://hooks.example.org/"},
        )
        assert without.status_code == 400
        assert "respond-async" in without.json()["error"]["message"]
        assert gateway.journal("req_start") == []


def test_an_address_in_utf_8_is_called_as_it_was_meant(tmp_path: Path) -> None:
    with receiving() as receiver, a_gateway(tmp_path) as gateway:
        send(gateway, f"{receiver.origin}/ü?q=日")
        eventually(lambda: receiver.paths, "it is called")
        assert receiver.paths == ["/%C3%BC?q=%E6%97%A5"]


def asked(*values: str, hosts: tuple[str, ...] = ("hooks.example.org", "10.0.0.1:8080", "[::1]")) -> str | None:
    headers = [(b"x-llamaswap-WEBHOOK", value.encode()) for value in values]
    return webhook_of([(b"Accept", b"*/*"), *headers], JobsSettings(webhook_hosts=hosts))


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.org/a?b=c",
        "https://hooks.example.org:8443/",
        "HTTPS://Hooks.Example.ORG",
        "http://10.0.0.1:8080/",
        "http://[::1]:99/",
    ],
)
def test_a_host_may_be_called_on_any_port_or_on_one(url: str) -> None:
    assert asked(url) == url


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "must be an http:// or https:// address"),
        ("hooks.example.org", "must be an http:// or https:// address"),
        ("//hooks.example.org/", "must be an http:// or https:// address"),
        ("ftp://hooks.example.org/", "must be an http:// or https:// address"),
        ("http:///hooks.example.org/", "must be an http:// or https:// address"),
        ("http://hooks.example.org:99999/", "must be an http:// or https:// address"),
        ("http://hooks.example.org\x00/", "must be an http:// or https:// address"),
        ("http://hooks.example.org@evil.example/", "user name"),
        ("http://evil.example\\@hooks.example.org/", "user name"),
        ("http://evil.example/", "names `evil.example:80`"),
        ("http://evil.example#hooks.example.org", "names `evil.example:80`"),
        ("http://hooks.example.org.evil.example/", "which is not among the hosts"),
        ("http://10.0.0.1/", "names `10.0.0.1:80`"),
        ("https://10.0.0.1/", "names `10.0.0.1:443`"),
    ],
)
def test_every_other_address_is_refused_with_its_reason(url: str, why: str) -> None:
    with pytest.raises(WebhookRefused) as refused:
        asked(url)
    assert why in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("url", ["http://münchen.example/", "http://xn--mnchen-3ya.example/"])
def test_a_host_that_is_not_ascii_may_be_called_by_its_ascii_name(url: str) -> None:
    assert asked(url, hosts=("xn--mnchen-3ya.example",)) == url
    with pytest.raises(WebhookRefused, match=r"names `xn--mnchen-3ya\.example:80`"):
        asked(url)


def test_an_address_that_is_not_utf_8_is_refused() -> None:
    address = "http://hooks.example.org/ü".encode("latin-1")
    with pytest.raises(WebhookRefused) as refused:
        webhook_of([(b"x-llamaswap-webhook", address)], JobsSettings(webhook_hosts=("hooks.example.org",)))
    assert "must be an http:// or https:// address in UTF-8" in refused.value.message
    assert r"and is `http://hooks.example.org/\xfc`" in refused.value.message


def test_no_address_no_hosts_and_two_addresses() -> None:
    assert asked() is None
    with pytest.raises(WebhookRefused, match="names no hosts"):
        asked("http://hooks.example.org/", hosts=())
    with pytest.raises(WebhookRefused, match="sent 2 times"):
        asked("http://hooks.example.org/", "http://hooks.example.org/")


def settings(*hosts: str) -> Runtime:
    return cast("Runtime", SimpleNamespace(settings=SimpleNamespace(jobs=JobsSettings(webhook_hosts=hosts))))


async def store_ended_job(store: Store, url: str, job_id: str = "e-1") -> StoredJob:
    async def body() -> AsyncIterator[bytes]:
        yield b"{}"

    job = StoredJob(
        id=job_id,
        kind="async",
        model="mA",
        member="ann",
        priority=0,
        band="normal",
        label="",
        method="POST",
        target="/",
        headers=[],
        client="",
        submitted_at=time.time(),
        webhook=url,
    )
    await store.jobs.add(job, body(), 2)
    await store.jobs.ended(
        job.id,
        outcome="completed",
        lane="gpu",
        ran=True,
        waited_s=0.0,
        run_s=0.0,
        ended_at=time.time(),
        expires_at=None,
        status=200,
        reason="OK",
        answer_headers=[],
        answer_bytes=0,
    )
    return job


async def until_over(store: Store) -> None:
    async with asyncio.timeout(30):
        while await store.jobs.next_webhook(after=0.0) is not None:  # noqa: ASYNC110 - the store sets no event
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - a receiver is a thread
            await asyncio.sleep(0.01)


@pytest.mark.anyio
async def test_a_receiver_that_never_takes_it_is_called_five_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(TRIES_AFTER_S) == [0, 5, 30, 120, 600]
    monkeypatch.setattr(webhook, "TRIES_AFTER_S", (0.0, 0.01, 0.01, 0.01, 0.01))
    store = await Store.open(tmp_path / "state")
    with receiving(*[500] * 9) as receiver:
        webhooks = Webhooks(settings("127.0.0.1"), store)
        webhooks.start()
        webhooks.job_ended(await store_ended_job(store, receiver.url))
        await until_over(store)
        await webhooks.close()
        assert len(receiver.calls) == 5
        assert len({headers["webhook-id"] for headers, _ in receiver.calls}) == 1
        assert "webhook-signature" not in receiver.calls[0][0], "there is no secret"
    await store.close()


@pytest.mark.anyio
async def test_a_host_that_is_not_allowed_any_more_is_not_called(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "state")
    with receiving() as receiver:
        webhooks = Webhooks(settings("hooks.example.org"), store)
        webhooks.job_ended(await store_ended_job(store, receiver.url))
        webhooks.start()
        await until_over(store)
        await webhooks.close()
        assert receiver.calls == []
    await store.close()


@pytest.mark.anyio
async def test_a_receiver_that_does_not_answer_is_given_its_time_and_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "ANSWER_S", 0.3)
    monkeypatch.setattr(webhook, "TRIES_AFTER_S", (0.0, 0.01))
    store = await Store.open(tmp_path / "state")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        webhooks = Webhooks(settings("127.0.0.1"), store)
        webhooks.start()
        webhooks.job_ended(await store_ended_job(store, f"http://127.0.0.1:{silent.getsockname()[1]}/"))
        await until_over(store)
        await webhooks.close()
    job = await store.jobs.get("e-1")
    assert job is not None
    assert job.webhook_tries == 2
    await store.close()


@pytest.mark.anyio
async def test_a_receiver_is_told_while_thirty_calls_of_another_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "ANSWER_S", 3600.0)
    store = await Store.open(tmp_path / "state")
    with receiving() as hanging, receiving() as healthy:
        for n in range(30):
            await store_ended_job(store, f"{hanging.origin}/hang", f"h-{n}")
        await store_ended_job(store, healthy.url)
        webhooks = Webhooks(settings("127.0.0.1"), store)
        webhooks.start()
        await until(lambda: bool(healthy.paths))
        await until(lambda: len(hanging.paths) >= 2 and "2 under way" in repr(webhooks))
        await webhooks.close()
        assert len(hanging.paths) == 2, "the others are not begun, and not connected"
        assert len(healthy.paths) == 1
    await store.close()


@pytest.mark.anyio
async def test_what_waits_for_its_receiver_is_called_when_another_call_of_it_ends(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "state")
    with receiving() as receiver:
        for n in range(20):
            await store_ended_job(store, receiver.url, f"j-{n}")
        webhooks = Webhooks(settings("127.0.0.1"), store)
        webhooks.start()
        await until_over(store)
        await webhooks.close()
        assert sorted(told["id"] for told in receiver.data()) == sorted(f"j-{n}" for n in range(20))
    await store.close()


@pytest.mark.anyio
@pytest.mark.parametrize("hangs_at_the_same", [False, True])
async def test_a_call_is_made_again_while_others_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs_at_the_same: bool
) -> None:
    monkeypatch.setattr(webhook, "ANSWER_S", 3600.0)
    monkeypatch.setattr(webhook, "TRIES_AFTER_S", (0.0, 0.01, 0.01))
    store = await Store.open(tmp_path / "state")
    with receiving() as other, receiving() as receiver:
        await store_ended_job(store, f"{(receiver if hangs_at_the_same else other).origin}/hang", "h-1")
        webhooks = Webhooks(settings("127.0.0.1"), store)
        webhooks.start()
        await until(lambda: receiver.paths + other.paths == ["/hang"])
        receiver.statuses = [500, 500]
        webhooks.job_ended(await store_ended_job(store, receiver.url))
        await until(lambda: receiver.paths.count("/hook") == 3)
        await webhooks.close()
        assert (receiver.paths + other.paths).count("/hang") == 1
    await store.close()


@pytest.mark.anyio
async def test_when_there_is_not_room_for_all_a_receiver_without_a_call_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "ANSWER_S", 3600.0)
    monkeypatch.setattr(webhook, "AT_ONCE", 2)
    store = await Store.open(tmp_path / "state")
    with receiving() as first, receiving() as second:
        second.paths = first.paths
        for n, url in enumerate([*(f"{first.origin}/{path}" for path in ("hang", "a1", "a2", "a3")), second.url]):
            await store_ended_job(store, url, f"j-{n}")
        webhooks = Webhooks(settings("127.0.0.1"), store)
        webhooks.start()
        await until(lambda: len(first.paths) == 5)
        await webhooks.close()
        assert sorted(first.paths[:2]) == ["/a1", "/hang"]
        assert first.paths[2:] == ["/hook", "/a2", "/a3"]
    await store.close()
