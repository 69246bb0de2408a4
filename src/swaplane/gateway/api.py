"""The management API: everything over HTTP that is not a job.

Decides the paths and how their answers look: llama-swap's operations routes as its clients know them, and our
queue, jobs, lanes and metrics. It starts no model and dispatches nothing; what it changes goes through the
runtime. The gateway passes it every request that leads to no model.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError

from swaplane.config.problems import nearest
from swaplane.core.events import LanePaused, LaneResumed
from swaplane.gateway.access import ApiRoute, Right, caller_of
from swaplane.gateway.edge import Edge, Guard, not_routed
from swaplane.gateway.errors import RequestRefused, error_response, not_stored
from swaplane.gateway.log_stream import log_answer
from swaplane.gateway.model_list import model_list, running_list
from swaplane.gateway.queue_view import queue_json
from swaplane.gateway.replies import accept_of, json_reply, raw_reply, refused
from swaplane.observe.logs import RingLog
from swaplane.observe.metrics import CONTENT_TYPE
from swaplane.runtime import Runtime
from swaplane.store.errors import StoreError

_INVALID_LOGGER = "invalid logger. Use 'proxy', 'upstream' or a model's ID"

_INDEX = """\
Swaplane {version}: one GPU, many jobs, who goes next.

/v1/...             OpenAI-compatible routes; name a model in the request
/v1/models          the models
/upstream/MODEL/    a model's own server
/running            models that are loaded, and their state
/api/queue          who runs, who waits, and why
/api/jobs/ID        one job; DELETE cancels it, PATCH changes the priority of one that waits
/api/members        who uses the GPU, and how much
/api/jobs/ID/result the answer to a request sent with `Prefer: respond-async`
/v1/videos          the videos of all models; /v1/files, /v1/batches
/logs/stream        the gateway's log; /logs/stream/MODEL a model's
/metrics            for Prometheus
/openapi.json       this API
"""


def create_api(runtime: Runtime, others: Iterable[ApiRoute] = (), *, version: str) -> FastAPI:
    """The API's ASGI application, with `others` as further routes. It finds a request's `Caller` in its scope.

    Settings are read at each request: a reload replaces them.
    """
    app = FastAPI(title="Swaplane", version=version, docs_url=None, redoc_url=None, redirect_slashes=False)
    routes = (*_Api(runtime, version).routes(), *others)
    for route in routes:
        app.add_api_route(route.path, route.endpoint, methods=[route.method])
    for status in (404, 405):  # raised by the router alone: endpoints return their refusals
        app.add_exception_handler(status, not_routed)
    app.add_exception_handler(RequestRefused, refused)
    app.add_exception_handler(StoreError, _not_stored)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(Guard, routes=app.router.routes, rights=routes)
    app.add_middleware(Edge)
    return app


class _Api:
    """The endpoints, each a method that answers one route."""

    def __init__(self, runtime: Runtime, version: str) -> None:
        self._runtime = runtime
        self._version = version

    def routes(self) -> list[ApiRoute]:
        """Of two paths that match, the first counts."""
        return [
            ApiRoute("GET", "/", self.index, Right.ANYBODY),
            ApiRoute("GET", "/health", self.health, Right.ANYBODY),
            ApiRoute("GET", "/wol-health", self.health, Right.ANYBODY),
            ApiRoute("GET", "/v1/models", self.models, Right.MEMBER),
            ApiRoute("GET", "/models", self.models, Right.MEMBER),
            ApiRoute("GET", "/running", self.running, Right.MEMBER),
            ApiRoute("GET", "/unload", self.unload_all_plain),
            ApiRoute("POST", "/api/models/unload", self.unload_all),
            ApiRoute("POST", "/api/models/unload/{model:path}", self.unload_one),
            ApiRoute("GET", "/logs", self.log_history),
            ApiRoute("GET", "/logs/stream", self.stream_proxy_log),
            ApiRoute("GET", "/logs/stream/{name:path}", self.stream_log),
            ApiRoute("GET", "/api/queue", self.queue, Right.MEMBER),
            ApiRoute("POST", "/api/lanes/{lane}/pause", self.pause),
            ApiRoute("POST", "/api/lanes/{lane}/resume", self.resume),
            ApiRoute("GET", "/api/version", self.version, Right.MEMBER),
            ApiRoute("GET", "/metrics", self.metrics),
        ]

    async def index(self) -> Response:
        """What this is and where to look."""
        return _text(_INDEX.format(version=self._version))

    async def health(self) -> Response:
        """That the gateway answers; says nothing about models."""
        return _text("OK")

    async def version(self) -> Response:
        """The gateway's version."""
        return json_reply({"build_date": "unknown", "commit": "unknown", "version": self._version})

    async def metrics(self) -> Response:
        """The numbers Prometheus scrapes."""
        body = self._runtime.metrics.render(self._runtime.dispatcher, time.monotonic())
        return Response(body, media_type=CONTENT_TYPE)

    # Models.

    async def models(self, request: Request) -> Response:
        """The listed models that the caller may use, as OpenAI clients expect them."""
        answer = json_reply(model_list(self._runtime, caller_of(request.scope), int(time.time())), end="\n")
        if origin := request.headers.get("origin"):
            answer.headers["Access-Control-Allow-Origin"] = origin
        return answer

    async def running(self, request: Request) -> Response:
        """The models whose servers are not stopped, of those that the caller may use."""
        return json_reply(running_list(self._runtime, caller_of(request.scope)), end="\n")

    async def unload_all_plain(self) -> Response:
        """Stop every model; answers when all processes are gone."""
        await self._unload_all()
        return _text("OK")

    async def unload_all(self) -> Response:
        """Stop every model; answers when all processes are gone."""
        await self._unload_all()
        return json_reply({"msg": "ok"})

    async def _unload_all(self) -> None:
        alive = [model_id for model_id, state in self._runtime.dispatcher.models.items() if state.alive]
        await asyncio.gather(*(self._runtime.unload(model_id) for model_id in alive))

    async def unload_one(self, request: Request, model: str) -> Response:
        """Stop one model, named by id or alias; answers when its process is gone, also if there was none."""
        found = self._runtime.settings.resolve(model)
        if found is None:
            return _error(request, 404, "model not found")
        await self._runtime.unload(found.id)
        return _text("OK")

    # Logs.

    async def log_history(self) -> Response:
        """The last lines of the gateway's own log."""
        return Response(self._runtime.logs.proxy.history(), media_type="text/plain")

    async def stream_proxy_log(self, request: Request) -> Response:
        """The gateway's own log, followed without an end; `?no-history` leaves out what was written before."""
        return self._follow(request, self._runtime.logs.proxy)

    async def stream_log(self, request: Request, name: str) -> Response:
        """One log, followed without an end: `proxy`, `upstream` (all models) or a model by id or alias."""
        logs = self._runtime.logs
        model = self._runtime.settings.resolve(name)
        log = logs.get(name) or (logs.model(model.id) if model is not None else None)
        if log is None:
            return _error(request, 400, _INVALID_LOGGER)
        return self._follow(request, log)

    def _follow(self, request: Request, log: RingLog) -> Response:
        history = "no-history" not in request.query_params
        caller = caller_of(request.scope)

        def allowed() -> bool:
            now = caller.renewed(self._runtime.settings)
            return now is not None and now.admin

        return log_answer(log, history=history, allowed=allowed, stopped=self._runtime.stopped)

    # Jobs and lanes.

    async def queue(self, request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
        """Every lane with its running jobs and the first `limit` waiting ones, in the order of dispatch."""
        caller = caller_of(request.scope)
        return json_reply(queue_json(self._runtime, time.monotonic(), caller, limit=limit))

    async def pause(self, request: Request, lane: str) -> Response:
        """Start nothing new in a lane; what runs ends normally."""
        return self._set_paused(request, lane, LanePaused(lane=lane))

    async def resume(self, request: Request, lane: str) -> Response:
        """Let a paused lane take jobs again."""
        return self._set_paused(request, lane, LaneResumed(lane=lane))

    def _set_paused(self, request: Request, lane: str, event: LanePaused | LaneResumed) -> Response:
        lanes = self._runtime.dispatcher.lanes
        if lane not in lanes:
            names = nearest(lane, lanes) or sorted(lanes)
            return _error(
                request, 404, f"no lane `{lane[:100]}`; there is " + " and ".join(f"`{name}`" for name in names)
            )
        self._runtime.post(event)
        return json_reply({"lane": lane, "paused": lanes[lane].paused})


async def _not_valid(request: Request, error: Exception) -> Response:
    """A parameter is not what it should be."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for nothing else
    first = error.errors()[0]
    where, name = first["loc"][0], first["loc"][-1]
    wanted = str(first["msg"]).removeprefix("Input ")
    return _error(request, 400, f"{where} parameter `{name}` {wanted}, and is `{str(first['input'])[:100]}`")


async def _not_stored(request: Request, error: Exception) -> Response:
    """The disk does not do what it has to."""
    return _error(request, 507, not_stored(error))


async def _failed(request: Request, error: Exception) -> Response:
    """A fault of the gateway; Starlette hands it on to the server's log."""
    return _error(request, 500, "the gateway failed on this request; its log says why")


def _text(text: str) -> Response:
    return Response(text, media_type="text/plain; charset=utf-8")


def _error(request: Request, status: int, message: str) -> Response:
    return raw_reply(status, *error_response(status, message, accept=accept_of(request)))
