"""People with API keys at a gateway, for tests of who may see and change what."""

from __future__ import annotations

import socket
from typing import Any

import httpx2

from tests.support.gateway import GatewayProcess
from tests.support.stub_client import eventually

KEYS = """
keys:
  - {key: sk-root-CANARY, name: root, admin: true}
  - {key: sk-alice-CANARY, name: alices-laptop, member: alice, tier: max}
  - {key: sk-phone-CANARY, name: alices-phone, member: alice}
  - {key: sk-bob-CANARY, name: bobs, member: bob}
  - {key: sk-bot-CANARY, name: bot, trust_member_header: true}
"""


class Person:
    """Whoever has one of these keys."""

    def __init__(self, gateway: GatewayProcess, key: str) -> None:
        self.key = f"sk-{key}-CANARY"
        self._gateway = gateway

    def request(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, **options: Any
    ) -> httpx2.Response:
        """One request that is answered at once."""
        own = {"Authorization": f"Bearer {self.key}", **(headers or {})}
        return self._gateway.request(method, path, headers=own, **options)

    def get(self, path: str) -> httpx2.Response:
        """GET a management path."""
        return self.request("GET", path)

    def lane(self) -> dict[str, Any]:
        """The lane `gpu` of /api/queue, as it is shown to this person."""
        (lane,) = self.get("/api/queue").json()["lanes"]
        assert isinstance(lane, dict)
        return lane

    def job(self, rid: str, *, stub: dict[str, Any] | None = None, **own: str) -> tuple[str, socket.socket]:
        """A chat that waits or runs: its id and its connection. `own` are headers of ours, such as `member`."""
        known = {job["id"] for job in self._jobs()}
        fields = {"authorization": f"Bearer {self.key}"} | {f"x-llamaswap-{name}": value for name, value in own.items()}
        headers = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode()
        connection = self._gateway.raw_chat("mA", rid, headers=headers, stub=stub)
        eventually(lambda: {job["id"] for job in self._jobs()} - known, "the job is there")
        (job_id,) = {job["id"] for job in self._jobs()} - known
        return job_id, connection

    def _jobs(self) -> list[dict[str, Any]]:
        lane = self.lane()
        return [job for job in (*lane["running"], *lane["waiting"]) if job["id"]]

    def stored(self, rid: str, *, stub: dict[str, Any] | None = None, **own: str) -> str:
        """A detached chat; its id."""
        headers = {"Prefer": "respond-async"} | {f"X-LlamaSwap-{name}": value for name, value in own.items()}
        body = {"model": "mA", "rid": rid, "stub": stub or {}}
        answer = self.request("POST", "/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 202, answer.text
        job_id = answer.json()["id"]
        assert isinstance(job_id, str)
        return job_id
