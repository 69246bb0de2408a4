"""The gateway's ASGI application: which request is a job, and on which way it goes.

A plain ASGI callable, without framework or middleware, because a request that waits must notice its
client's departure. Model-dispatched routes and `/upstream/...` become jobs of the runtime, with their client waiting
(`passage`), by a key (`keyed`) or without one (`detached`); news of jobs at their servers takes no place
(`bystander`, `videos`); everything else goes to the management API. Before anything is read of a request, its key is:
from then on it has a `Caller`, and nobody sees the key again. It decides nothing about order, and knows of models only
what is configured.
"""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from swaplane.config.settings import ModelSettings
from swaplane.gateway import background, videos
from swaplane.gateway.access import CALLER, EVERYBODY, Caller, caller_of, identify, without_credentials
from swaplane.gateway.answers import ShuttingDown, method_not_allowed, redirect, send_answer
from swaplane.gateway.body import Body, ClientLeft, read_body
from swaplane.gateway.bystander import Bystanders, deleted
from swaplane.gateway.detached import DetachedJobs
from swaplane.gateway.errors import (
    ModelNotLoaded,
    NoModel,
    RequestRefused,
    Unauthorized,
    UnknownModel,
    error_response,
    not_stored,
)
from swaplane.gateway.front import WIRE, Wire
from swaplane.gateway.headers import read_own_headers
from swaplane.gateway.jobs_api import accepted, wants_async
from swaplane.gateway.keyed import KeyedRequests, idempotency_key
from swaplane.gateway.model_field import ModelField, find_model, rename
from swaplane.gateway.passage import Errand, Passage, Pools
from swaplane.gateway.remembered import RememberedJobs
from swaplane.gateway.routes import MethodNotAllowed, Route
from swaplane.gateway.routes import match as find_route
from swaplane.gateway.sockets import Sockets, named_upstream
from swaplane.gateway.tunnel import Tunnel
from swaplane.gateway.videos import Videos
from swaplane.gateway.webhook import WebhookRefused, webhook_of
from swaplane.runtime import Runtime
from swaplane.store import StoredJob, StoreError
from swaplane.wire import WEBHOOK_HEADER


class Gateway:
    """The application uvicorn serves."""

    def __init__(
        self,
        runtime: Runtime,
        api: ASGIApp,
        *,
        passage: Passage,
        pools: Pools,
        remembered: RememberedJobs,
        known_videos: Videos,
        keyed: KeyedRequests,
        detached: DetachedJobs,
        in_background: background.Background,
    ) -> None:
        self._runtime = runtime
        self._api = api
        self._passage = passage
        self._bystanders = Bystanders(runtime, remembered, passage)
        self._sockets = Sockets(runtime, passage, pools, self._bystanders)
        self._videos = known_videos
        self._keyed = keyed
        self._detached = detached
        self._background = in_background

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if scope["method"] == "OPTIONS":  # a browser's preflight is no work for a model
            await self._api(scope, receive, send)
            return
        wire: Wire = scope["extensions"][WIRE]
        if not self._identified(scope, wire):
            await self._api(scope, receive, send)  # which knows what is for anybody, and refuses the rest
            return
        try:
            answer: Response | None = None
            match find_route(scope["method"], path):
                case Route() as route:
                    await self._model_route(wire, route, caller_of(scope), receive)
                case MethodNotAllowed(allow=allow):
                    if path == videos.PATH and scope["method"] in ("GET", "HEAD"):
                        answer = await self._videos.list(scope["query_string"], caller_of(scope))
                    else:
                        method_not_allowed(wire, allow)
                case _ if path.startswith("/upstream/"):
                    await self._upstream_route(wire, scope, receive, send)
                case _ if wire.target.startswith(videos.PREFIX.encode()):
                    answer = await self._video_route(wire, scope, receive, send)
                case _:
                    await self._api(scope, receive, send)
            if answer is not None:
                await answer(scope, receive, send)
        except RequestRefused as refused:
            headers, body = refused.response(wire.header(b"accept"))
            send_answer(wire, refused.status, headers, body)
        except StoreError as error:
            headers, body = error_response(507, not_stored(error), accept=wire.header(b"accept"))
            send_answer(wire, 507, headers, body)
        except ClientLeft:
            pass

    def _identified(self, scope: Scope, wire: Wire) -> bool:
        """Put the caller into a request's scope; False: a key is needed, and none that is known was presented."""
        keys = self._runtime.settings.keys
        if keys:
            try:
                scope["extensions"][CALLER] = identify(wire.raw_headers, keys)
            except Unauthorized:
                return False
            wire.raw_headers = without_credentials(wire.raw_headers)
            scope["headers"] = without_credentials(scope["headers"])
        else:
            scope["extensions"][CALLER] = EVERYBODY
        return True

    async def _model_route(self, wire: Wire, route: Route, caller: Caller, receive: Receive) -> None:
        _, mark, query = wire.target.partition(b"?")
        with contextlib.ExitStack() as held:
            body = await _whole_body(receive)
            held.callback(body.close)
            model, field = await self._named_model(wire, route, caller, query, body)
            target = route.upstream_path.encode("ascii") + mark + query
            streamed = field is not None and field.stream
            errand = self._errand(wire, caller, model, target, body, streamed=streamed)
            if field is not None and route.upstream_path == background.PATH:
                span = await background.find_background(body)
                if span is not None:
                    key, webhook = idempotency_key(wire.raw_headers), self._webhook(wire)
                    answer = await self._background.accept(errand, field, span, key=key, webhook=webhook)
                    send_answer(wire, *answer)
                    return
            if field is not None and model.use_model_name:
                rename(field, body, model.use_model_name)
            await self._job(wire, errand, held)

    async def _named_model(
        self, wire: Wire, route: Route, caller: Caller, query: bytes, body: Body
    ) -> tuple[ModelSettings, ModelField | None]:
        """The model a request is for, and where it says so; None: nowhere, it is the only one that makes videos."""
        try:
            field = await find_model(wire.method.decode("ascii"), wire.header(b"content-type"), query, body)
        except NoModel:
            model = self._videos.only_model(caller) if route.upstream_path.startswith(videos.PATH) else None
            if model is None:
                raise
            return model, None
        named = self._runtime.settings.resolve(field.name)
        if named is None:
            raise UnknownModel(field.name, caller.names_of_models(self._runtime.settings))
        caller.check_model(named, field.name)
        return named, field

    async def _video_route(self, wire: Wire, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """`/v1/videos/{id}...`: the id says which model it is about."""
        raw_path, mark, query = wire.target.partition(b"?")
        video_id, rest = videos.id_and_rest(raw_path.decode("latin-1"))
        found = await self._videos.find(video_id, caller_of(scope))
        if isinstance(found, StoredJob):
            if wire.method == b"DELETE" and not rest:
                if found.state != "ended":
                    await self._detached.cancel(found.id)
                await self._detached.delete(found.id)
                return deleted(found.id)
            return await self._videos.about_waiting(found, scope["method"], rest)
        model, server_id = found
        target = f"{videos.PATH}/{quote(server_id, safe='')}{rest}".encode("latin-1") + mark + query
        await self._at_server(wire, model, target, scope, receive, send)
        return None

    async def _upstream_route(self, wire: Wire, scope: Scope, receive: Receive, send: Send) -> None:
        """`/upstream/{model}/{rest}`: like any request, but page assets never load a model or take a place."""
        raw_path, mark, query = wire.target.partition(b"?")
        model, rest = named_upstream(raw_path, self._runtime.settings, caller_of(scope))
        if not rest:
            redirect(wire, raw_path + b"/" + mark + query)
            return
        await self._at_server(wire, model, rest + mark + query, scope, receive, send)

    async def _at_server(
        self, wire: Wire, model: ModelSettings, target: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """A request for a path of a model's server: a job, unless it asks for a page's asset or for news of a job."""
        caller = caller_of(scope)
        caller.check_model(model)
        self._bystanders.check_path(caller, model, target)
        with contextlib.ExitStack() as held:
            body = await _whole_body(receive)
            held.callback(body.close)
            errand = self._errand(wire, caller, model, target, body)
            rule = model.completion
            if rule is not None and rule.is_bystander(wire.method.decode("latin-1"), errand.path):
                await self._bystanders.serve(wire, errand, scope, receive, send)
            elif self._is_asset(errand):
                if not self._runtime.is_ready(model.id):
                    raise ModelNotLoaded(model.id)
                await self._passage.beside(wire, errand, self._runtime.proxy_of(model.id))
            else:
                await self._bystanders.check_job(caller, model, errand.method.decode("latin-1"), errand.path)
                await self._job(wire, errand, held)

    def _is_asset(self, errand: Errand) -> bool:
        """Whether a file of a page is read; what another method does is work."""
        patterns = self._runtime.settings.ignore_paths
        return errand.method in (b"GET", b"HEAD") and any(pattern.search(errand.path) for pattern in patterns)

    async def _job(self, wire: Wire, errand: Errand, held: contextlib.ExitStack) -> None:
        """One job: its client waits, comes back with the same key, or has it done without waiting.

        `held` closes the errand's body.
        """
        await self._passage.check_named(errand)
        if not errand.own.more:
            await self._passage.serve(wire, errand)
            return
        key = idempotency_key(wire.raw_headers)
        webhook = self._webhook(wire)
        if wire.method != b"HEAD" and wants_async(wire.raw_headers):
            stored = await self._detached.accept(errand, key=key, webhook=webhook)
            accepted(wire, stored, self._runtime)
        elif webhook is not None:
            raise WebhookRefused(f"the header {WEBHOOK_HEADER} goes with `Prefer: respond-async` only")
        elif key is not None:
            held.pop_all()
            await self._keyed.run(wire, errand, self._passage, key)
        else:
            await self._passage.serve(wire, errand)

    def _webhook(self, wire: Wire) -> str | None:
        return webhook_of(wire.raw_headers, self._runtime.settings.jobs)

    async def tunnel(self, tunnel: Tunnel) -> None:
        """A websocket through `/upstream/{model}/...`."""
        await self._sockets.serve(tunnel)

    def _errand(
        self, wire: Wire, caller: Caller, model: ModelSettings, target: bytes, body: Body, *, streamed: bool = False
    ) -> Errand:
        """Raises BadHeader."""
        return Errand(
            model=model,
            method=wire.method,
            target=target,
            headers=wire.raw_headers,
            client_host=wire.client[0] if wire.client else "",
            body=body,
            streamed=streamed,
            own=read_own_headers(wire.raw_headers, self._runtime.dispatcher.rules, caller),
        )


async def _whole_body(receive: Receive) -> Body:
    try:
        return await read_body(receive)
    except asyncio.CancelledError:  # by the server that goes down, when a client is still sending
        raise ShuttingDown from None
