"""A key that a request presented before the gateway had keys: it does not reach a model's server afterwards."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx2
from websockets.sync.client import connect

from tests.gateway.test_access_keys import reload
from tests.support.gateway import GatewayProcess, stub_models
from tests.support.people import KEYS, Person
from tests.support.scene import in_time

FUTURE = {"Authorization": "Bearer sk-alice-CANARY", "X-Api-Key": "sk-alice-CANARY"}
CHAT = "/v1/chat/completions"


def test_what_waited_since_before_there_were_keys_is_sent_without_credentials(tmp_path: Path) -> None:
    models = stub_models("mA")
    with GatewayProcess(tmp_path, models, key="sk-root-CANARY") as gateway:
        gateway.request("POST", "/api/lanes/gpu/pause")
        statuses = []

        def chat(rid: str, headers: dict[str, str]) -> None:
            body = {"model": "mA", "rid": rid}
            answer = httpx2.post(f"http://127.0.0.1:{gateway.port}{CHAT}", json=body, headers=headers, timeout=60)
            statuses.append(answer.status_code)

        def socket() -> None:
            url = f"ws://127.0.0.1:{gateway.port}/upstream/mA/ws?rid=socket"
            with connect(url, proxy=None, additional_headers=FUTURE, open_timeout=60):
                statuses.append(101)

        wanted = {
            "plain": FUTURE,
            "keyed": {**FUTURE, "Idempotency-Key": "k"},
            "detached": {**FUTURE, "Prefer": "respond-async"},
        }
        waiting = [threading.Thread(target=chat, args=each) for each in wanted.items()]
        waiting.append(threading.Thread(target=socket))
        for each in waiting:
            each.start()
        in_time(lambda: len(gateway.queue()["waiting"]) == len(waiting), "they wait")
        reload(gateway, models + KEYS)
        root = Person(gateway, "root")
        assert root.request("POST", "/api/lanes/gpu/resume").status_code == 200
        in_time(lambda: len(gateway.journal("req_start")) == len(waiting), "they have come to the model")
        for each in waiting:
            each.join()
        assert sorted(statuses) == [101, 200, 200, 202]
        assert {entry["rid"] for entry in gateway.journal("req_start")} == {*wanted, "socket"}
        assert "CANARY" not in json.dumps(gateway.journal("req_start"))
