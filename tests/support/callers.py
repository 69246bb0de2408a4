"""The management API without the gateway's app around it, for tests: who asks is given, not read from headers."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from swaplane.gateway.access import CALLER, EVERYBODY, Caller


class AskedBy:
    """An API that one caller asks all the time."""

    def __init__(self, api: ASGIApp, caller: Caller = EVERYBODY) -> None:
        self._api = api
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._api({**scope, "extensions": {CALLER: self._caller}}, receive, send)
