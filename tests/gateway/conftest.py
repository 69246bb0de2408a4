"""What tests of a gateway share. Each module has its own `gateway`."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.support.gateway import GatewayProcess
from tests.support.openai_client import client_of
from tests.support.people import Person
from tests.support.renders import Renders
from tests.support.stub_client import eventually


@pytest.fixture
def renders(gateway: GatewayProcess) -> Iterator[Renders]:
    """The renders of one test; at its end nothing of them is left."""
    renders = Renders(gateway)
    yield renders
    renders.assert_at_rest()


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with client_of(gateway) as client:
        yield client


# On a gateway with the keys of `tests.support.people`.


@pytest.fixture
def root(gateway: GatewayProcess) -> Iterator[Person]:
    root = Person(gateway, "root")
    yield root
    for _ in range(2):  # what waits may run by the time it is ended
        lane = root.lane()
        for job in (*lane["waiting"], *lane["running"]):
            root.request("DELETE", f"/api/jobs/{job['id']}")
    eventually(lambda: not root.lane()["running"] and not root.lane()["waiting"], "nothing is left")


@pytest.fixture
def alice(gateway: GatewayProcess, root: Person) -> Person:
    return Person(gateway, "alice")


@pytest.fixture
def bob(gateway: GatewayProcess, root: Person) -> Person:
    return Person(gateway, "bob")


@pytest.fixture
def bot(gateway: GatewayProcess, root: Person) -> Person:
    return Person(gateway, "bot")


@pytest.fixture
def bobs_jobs(bob: Person) -> list[str]:
    """Of every kind: over, running, waiting, stored and over, stored and waiting."""
    chat = bob.request("POST", "/v1/chat/completions", json={"model": "mA", "rid": "b-over"})
    over = chat.headers["X-LlamaSwap-Job"]
    stored_over = bob.stored("b-stored-over")
    eventually(lambda: bob.get(f"/api/jobs/{stored_over}").json()["state"] == "ended", "the stored one is over")
    running, _ = bob.job("b-running", stub={"dur": 60})
    return [over, stored_over, running, bob.job("b-waiting")[0], bob.stored("b-stored")]
