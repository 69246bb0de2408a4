"""What holds for every path of the management API, as Go's router and llama-swap do it, and who may use which path.

Decides preflights, HEAD, what an unknown path or a wrong method is told, and whether a request's key gives the right
that its route asks for. Knows no endpoint. Called by `api`, which puts it around its application.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swaplane.gateway.access import CALLER, ApiRoute, Caller, Right
from swaplane.gateway.errors import Forbidden, RequestRefused, Unauthorized
from swaplane.gateway.replies import accept_of, raw_reply

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


class Guard:
    """Lets through what a request's caller has the right for; it answers 401 or 403 before any endpoint is asked.

    A route of `routes` that is not one of `rights` is for admins. A request whose scope names no caller has no key
    that is known: it gets what is for anybody, and is not told which other paths there are.
    """

    def __init__(self, app: ASGIApp, *, routes: Sequence[BaseRoute], rights: Iterable[ApiRoute]) -> None:
        self._app = app
        self._routes = routes
        self._rights = {(each.method, each.path): each.right for each in rights}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            answer = raw_reply(refusal.status, *refusal.response(accept_of(Request(scope))))
            await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> RequestRefused | None:
        right = self._right_for(scope)
        caller: Caller | None = scope.get("extensions", {}).get(CALLER)
        if right is Right.ANYBODY:
            return None
        if caller is None:
            return Unauthorized()
        if right is Right.ADMIN and not caller.admin:
            return Forbidden("this needs a key with `admin: true`")
        return None

    def _right_for(self, scope: Scope) -> Right:
        path = scope["path"]
        for route in self._routes:
            if isinstance(route, Route) and route.matches(scope)[0] is Match.FULL:
                return self._rights.get((scope["method"], route.path), Right.ADMIN)
        # There is nothing here. Browsers ask for these two by themselves, and would ask their user for a key.
        return Right.ANYBODY if path in _UNPROMPTED and scope["method"] == "GET" else Right.MEMBER


_UNPROMPTED = frozenset(("/favicon.ico", "/upstream"))


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
