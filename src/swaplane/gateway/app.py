"""The gateway's ASGI application: which request is a job, and its passage from arrival to end.

A plain ASGI callable, without framework or middleware, because a request that waits must notice its
client's departure. Model-dispatched routes and `/upstream/...` become jobs of the runtime; everything else
goes to the management API. It decides nothing about order, and knows of models only what is configured.
"""

from __future__ import annotations

import asyncio
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from swaplane.config.settings import ModelSettings
from swaplane.core.outcomes import Outcome
from swaplane.gateway.answers import (
    CUT_WORDS,
    ShuttingDown,
    dropped_answer,
    method_not_allowed,
    reason_of,
    redirect,
    send_answer,
)
from swaplane.gateway.body import Body, ClientLeft, read_body
from swaplane.gateway.errors import ModelNotLoaded, RawHeaders, RequestRefused, UnknownModel, error_response
from swaplane.gateway.forward import Forwarding, tunnel_head, upstream_headers
from swaplane.gateway.front import WIRE, Wire
from swaplane.gateway.headers import OwnHeaders, read_own_headers, response_headers
from swaplane.gateway.model_field import find_model, rename
from swaplane.gateway.routes import MethodNotAllowed, Route, split_upstream
from swaplane.gateway.routes import match as find_route
from swaplane.gateway.tunnel import Tunnel
from swaplane.gateway.upstream import UpstreamPool, UpstreamUnreachable
from swaplane.runtime import Runtime
from swaplane.ticket import Dropped, Ticket


class Gateway:
    """The application uvicorn serves."""

    def __init__(self, runtime: Runtime, api: ASGIApp) -> None:
        self._runtime = runtime
        self._api = api
        self._pools: dict[str, UpstreamPool] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if scope["method"] == "OPTIONS":  # a browser's preflight is no work for a model
            await self._api(scope, receive, send)
            return
        wire: Wire = scope["extensions"][WIRE]
        try:
            match find_route(scope["method"], path):
                case Route() as route:
                    await self._model_route(wire, route, receive)
                case MethodNotAllowed(allow=allow):
                    method_not_allowed(wire, allow)
                case _ if path.startswith("/upstream/"):
                    await self._upstream_route(wire, receive)
                case _:
                    await self._api(scope, receive, send)
        except RequestRefused as refused:
            headers, body = refused.response(wire.header(b"accept"))
            send_answer(wire, refused.status, headers, body)
        except ClientLeft:
            pass

    async def _model_route(self, wire: Wire, route: Route, receive: Receive) -> None:
        _, mark, query = wire.target.partition(b"?")
        with await _whole_body(receive) as body:
            content_type = wire.header(b"content-type")
            field = await find_model(wire.method.decode("ascii"), content_type, query, body)
            model = self._runtime.settings.resolve(field.name)
            if model is None:
                raise UnknownModel(field.name, self._runtime.settings.listed_names())
            if model.use_model_name:
                rename(field, body, model.use_model_name)
            await self._job(wire, model, route.upstream_path.encode("ascii") + mark + query, body)

    async def _upstream_route(self, wire: Wire, receive: Receive) -> None:
        """`/upstream/{model}/{rest}`: like any request, but page assets never load a model or take a place."""
        raw_path, mark, query = wire.target.partition(b"?")
        model, rest = self._upstream_model(raw_path)
        if not rest:
            redirect(wire, raw_path + b"/" + mark + query)
            return
        with await _whole_body(receive) as body:
            if any(pattern.search(rest.decode("latin-1")) for pattern in self._runtime.settings.ignore_paths):
                await self._page_asset(wire, model, rest + mark + query, body)
            else:
                await self._job(wire, model, rest + mark + query, body)

    def _upstream_model(self, raw_path: bytes) -> tuple[ModelSettings, bytes]:
        found = split_upstream(raw_path, self._runtime.settings.resolve)
        if found is None:
            name = unquote(raw_path.removeprefix(b"/upstream/").split(b"/")[0].decode("latin-1"))
            raise UnknownModel(name, self._runtime.settings.listed_names())
        return found[0], found[1]

    async def _page_asset(self, wire: Wire, model: ModelSettings, target: bytes, body: Body) -> None:
        if not self._runtime.is_ready(model.id):
            raise ModelNotLoaded(model.id)
        await self._forwarding(wire, model.id, self._runtime.proxy_of(model.id), target, body, []).run()

    async def _job(self, wire: Wire, model: ModelSettings, target: bytes, body: Body) -> None:
        """One job: queue it, watch its client while it waits, pass it through in its turn, say how it ended."""
        own, ticket = self._submit(wire.raw_headers, model)
        outcome = Outcome.GATEWAY_ERROR
        try:
            wire.on_departure(ticket.leave)
            turn = await ticket.turn
            wire.on_departure(None)
            extra = response_headers(ticket.job.id, own.priority.applied, turn.waited_s, own.priority.reason)
            if wire.departed:
                outcome = Outcome.LEFT_WAITING
            elif isinstance(turn, Dropped):
                status, headers, answer = dropped_answer(turn, wire.header(b"accept"))
                send_answer(wire, status, headers + extra, answer)
            else:
                forwarding = self._forwarding(wire, model.id, turn.proxy, target, body, extra)
                ticket.on_cut(lambda outcome: forwarding.cut(outcome, CUT_WORDS[outcome]))
                outcome = (await forwarding.run()).outcome
        finally:
            ticket.ended(outcome)

    def _submit(self, raw_headers: RawHeaders, model: ModelSettings) -> tuple[OwnHeaders, Ticket]:
        own = read_own_headers(raw_headers, self._runtime.dispatcher.rules)
        if own.priority.adjust_kind is not None:
            self._runtime.metrics.priority_adjusted(own.priority.adjust_kind)
        return own, self._runtime.submit(model, member=own.member, priority=own.priority.applied, label=own.label)

    def _forwarding(
        self, wire: Wire, model: str, proxy: str, target: bytes, body: Body, extra: RawHeaders
    ) -> Forwarding:
        has_body = body.length > 0 or wire.method not in (b"GET", b"HEAD")
        headers = upstream_headers(
            wire.raw_headers,
            client_host=wire.client[0] if wire.client else "",
            body_length=body.length if has_body else None,
        )
        return Forwarding(
            wire,
            self._pool(model, proxy),
            target=target,
            headers=headers,
            body=body if has_body else None,
            extra_headers=extra,
        )

    def _pool(self, model: str, proxy: str) -> UpstreamPool:
        pool = self._pools.get(model)
        if pool is None or pool.base_url != proxy:
            if pool is not None:
                pool.close()
            pool = self._pools[model] = UpstreamPool(proxy)
        return pool

    async def tunnel(self, tunnel: Tunnel) -> None:
        """A websocket through `/upstream/{model}/...`: a job that lasts as long as the connection."""
        raw_path, mark, query = tunnel.target.partition(b"?")
        try:
            model, rest = self._upstream_model(raw_path)
        except RequestRefused as refused:
            await tunnel.refuse(refused.status, reason_of(refused.status), *refused.response())
            return
        _, ticket = self._submit(tunnel.raw_headers, model)
        outcome = Outcome.GATEWAY_ERROR
        try:
            tunnel.on_departure(ticket.leave)
            turn = await ticket.turn
            tunnel.on_departure(None)
            if tunnel.departed:
                outcome = Outcome.LEFT_WAITING
            elif isinstance(turn, Dropped):
                status, headers, answer = dropped_answer(turn, b"")
                await tunnel.refuse(status, reason_of(status), headers, answer)
            else:
                outcome = await self._relay(tunnel, ticket, turn.proxy, (rest or b"/") + mark + query)
        finally:
            ticket.ended(outcome)

    async def _relay(self, tunnel: Tunnel, ticket: Ticket, proxy: str, target: bytes) -> Outcome:
        cut_as: list[Outcome] = []

        def cut(outcome: Outcome) -> None:
            cut_as.append(outcome)
            tunnel.cut()

        ticket.on_cut(cut)
        server = self._pool(ticket.job.model, proxy)
        client_host = tunnel.client[0] if tunnel.client else ""
        head = tunnel_head(tunnel.raw_headers, target=server.base_path + target, client_host=client_host)
        try:
            result = await tunnel.connect_and_relay(server.host, server.port, server.tls, head)
        except UpstreamUnreachable as error:
            await tunnel.refuse(502, reason_of(502), *error_response(502, str(error)))
            return Outcome.UPSTREAM_BROKEN
        if cut_as:
            return cut_as[0]
        if result.ended_by == "upstream":
            # A server that closes a websocket and one that has died look the same from here.
            await self._runtime.assured(ticket.job.model)
            if not self._runtime.is_ready(ticket.job.model):
                return Outcome.UPSTREAM_BROKEN
        if result.status is None:
            return Outcome.LEFT_RUNNING if result.ended_by == "client" else Outcome.UPSTREAM_BROKEN
        return Outcome.COMPLETED if result.status < 500 else Outcome.UPSTREAM_ERROR


async def _whole_body(receive: Receive) -> Body:
    try:
        return await read_body(receive)
    except asyncio.CancelledError:  # by the server that goes down, when a client is still sending
        raise ShuttingDown from None
