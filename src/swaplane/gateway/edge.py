"""What holds for every path of the management API, as Go's router and llama-swap do it.

Decides preflights, HEAD, and what an unknown path or a wrong method is told. Knows no endpoint.
Called by `api`, which puts it around its application.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TOKEN_CHARS = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Edge:
    """What holds for every path: OPTIONS is a browser's preflight, and HEAD is GET without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS":
            await _preflight(Request(scope))(scope, receive, send)
        elif scope["method"] == "HEAD":

            async def send_head(message: Message) -> None:
                await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

            await self._app({**scope, "method": "GET"}, receive, send_head)
        else:
            await self._app(scope, receive, send)


def _preflight(request: Request) -> Response:
    asked = request.headers.get("access-control-request-headers", "")
    names = [name.strip() for name in asked.split(",")]
    allowed = ", ".join(name for name in names if name and all(char in _TOKEN_CHARS for char in name))
    headers = {
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE, OPTIONS",
        "Access-Control-Allow-Headers": allowed or "Content-Type, Authorization, Accept, X-Requested-With",
        "Access-Control-Max-Age": "86400",
    }
    return Response(status_code=204, headers=headers)


async def not_routed(request: Request, error: Exception) -> Response:
    """No such path, or not with this method; both as Go's router says it."""
    scope = request.scope
    allow: set[str] = set()
    for route in scope["app"].routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            allow.update(route.methods or ())
    if "GET" in allow:
        allow.add("HEAD")
    if allow:
        return _refusal(405, "Method Not Allowed\n", {"Allow": ", ".join(sorted(allow))})
    return _refusal(404, "404 page not found\n", {})


def _refusal(status: int, text: str, headers: dict[str, str]) -> Response:
    headers = {**headers, "X-Content-Type-Options": "nosniff"}
    return Response(text, status, headers, media_type="text/plain; charset=utf-8")
