from __future__ import annotations

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from swaplane.config.settings import Key
from swaplane.core.outcomes import Outcome
from swaplane.gateway.access import EVERYBODY, ApiRoute, Caller, Right
from swaplane.gateway.answers import dropped_answer
from swaplane.gateway.edge import Edge, Guard
from swaplane.ticket import Dropped
from tests.support.callers import AskedBy

pytestmark = pytest.mark.anyio

MEMBER = Caller(key=Key(name="k", digest=b""))
ADMIN = Caller(key=Key(name="k", digest=b"", admin=True))


async def endpoint(request: Request) -> Response:
    return PlainTextResponse("done")


ROUTES = [
    ApiRoute("GET", "/open", endpoint, Right.ANYBODY),
    ApiRoute("GET", "/mine", endpoint, Right.MEMBER),
    ApiRoute("GET", "/things/all", endpoint, Right.MEMBER),
    ApiRoute("GET", "/things/{name}", endpoint),
    ApiRoute("DELETE", "/mine", endpoint),
    ApiRoute("GET", "/silent", endpoint),
]


def guarded() -> ASGIApp:
    """An application with a route more than the guard was told of."""
    app = Starlette(routes=[Route(each.path, each.endpoint, methods=[each.method]) for each in ROUTES])
    app.router.routes.append(Route("/forgotten", endpoint))
    return Edge(Guard(app, routes=app.router.routes, rights=ROUTES))


async def status(app: ASGIApp, method: str, path: str) -> int:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://g") as client:
        answer = await client.request(method, path)
        assert (answer.text == "done") == (answer.status_code == 200 and method != "HEAD")
        return int(answer.status_code)


@pytest.mark.parametrize(
    ("method", "path", "stranger", "member", "admin"),
    [
        ("GET", "/open", 200, 200, 200),
        ("GET", "/mine", 401, 200, 200),
        ("GET", "/things/all", 401, 200, 200),
        ("GET", "/things/one", 401, 403, 200),
        ("DELETE", "/mine", 401, 403, 200),
        ("GET", "/silent", 401, 403, 200),
        ("GET", "/forgotten", 401, 403, 200),
        ("GET", "/nothing", 401, 404, 404),
        ("POST", "/open", 401, 405, 405),
        ("POST", "/silent", 401, 405, 405),
        ("OPTIONS", "/silent", 204, 204, 204),
    ],
)
async def test_what_says_nothing_of_rights_is_for_admins(
    method: str, path: str, stranger: int, member: int, admin: int
) -> None:
    app = guarded()
    assert await status(app, method, path) == stranger
    assert await status(AskedBy(app, MEMBER), method, path) == member
    assert await status(AskedBy(app, ADMIN), method, path) == admin
    assert await status(AskedBy(app, EVERYBODY), method, path) == admin
    if method == "GET":
        assert await status(app, "HEAD", path) == stranger
        assert await status(AskedBy(app, MEMBER), "HEAD", path) == member


@pytest.mark.parametrize(
    ("outcome", "code"), [(Outcome.REFUSED_FULL, "queue_full"), (Outcome.WAITED_TOO_LONG, "waited_too_long")]
)
@pytest.mark.parametrize(
    ("retry_after_s", "status_code", "retry"), [(12.2, 429, b"13"), (0.0, 429, b"1"), (None, 503, None)]
)
def test_a_place_that_others_have_is_429_and_none_at_all_is_503(
    outcome: Outcome, code: str, retry_after_s: float | None, status_code: int, retry: bytes | None
) -> None:
    dropped = Dropped(outcome=outcome, waited_s=1.0, detail="too many wait", retry_after_s=retry_after_s)
    got, headers, body = dropped_answer(dropped, b"")
    assert got == status_code
    assert dict(headers).get(b"Retry-After") == retry
    assert b'"message":"too many wait"' in body
    assert f'"code":"{code}"'.encode() in body
