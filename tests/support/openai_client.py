"""The real `openai` client, in front of a gateway of a test."""

from __future__ import annotations

import openai

from tests.support.gateway import GatewayProcess


def client_of(gateway: GatewayProcess) -> openai.OpenAI:
    """A client that does not repeat requests by itself."""
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", timeout=60, max_retries=0)
