"""What tests of a gateway share. Each module has its own `gateway`."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.support.gateway import GatewayProcess
from tests.support.openai_client import client_of
from tests.support.renders import Renders


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
