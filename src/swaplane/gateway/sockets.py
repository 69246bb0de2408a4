"""Websockets through `/upstream/{model}/...`: which are jobs, and their passage from upgrade to end.

Decides whether a websocket takes a place and how it ended. The bytes are relayed by `tunnel`. Called by `app`.
"""

from __future__ import annotations

from urllib.parse import unquote

from swaplane.config.settings import ModelSettings, Settings
from swaplane.core.outcomes import Outcome
from swaplane.gateway.access import EVERYBODY, Caller, identify, without_credentials
from swaplane.gateway.answers import dropped_answer, reason_of
from swaplane.gateway.bystander import Bystanders
from swaplane.gateway.errors import ModelNotLoaded, RequestRefused, UnknownModel, error_response
from swaplane.gateway.forward import tunnel_head
from swaplane.gateway.headers import OwnHeaders, read_own_headers
from swaplane.gateway.passage import Passage, Pools
from swaplane.gateway.routes import split_upstream
from swaplane.gateway.tunnel import NotSwitched, RelayResult, Tunnel
from swaplane.gateway.upstream import UpstreamUnreachable
from swaplane.runtime import Runtime
from swaplane.ticket import Dropped, Ticket


class Sockets:
    """Serves them."""

    def __init__(self, runtime: Runtime, passage: Passage, pools: Pools, bystanders: Bystanders) -> None:
        self._runtime = runtime
        self._passage = passage
        self._pools = pools
        self._bystanders = bystanders

    async def serve(self, tunnel: Tunnel) -> None:
        """One websocket: a job that lasts as long as the connection.

        Where a poll tells when jobs are over, an open socket is a page that looks on: it takes no place, and is open
        as long as its key allows that.
        """
        raw_path, mark, query = tunnel.target.partition(b"?")
        settings, caller = self._runtime.settings, EVERYBODY
        try:
            if settings.keys:
                caller = identify(tunnel.raw_headers, settings.keys)
                tunnel.raw_headers = without_credentials(tunnel.raw_headers)
            model, rest = named_upstream(raw_path, settings, caller)
            own = read_own_headers(tunnel.raw_headers, self._runtime.dispatcher.rules, caller)
            looks_on = model.completion is not None
            if looks_on and not self._runtime.is_ready(model.id):
                raise ModelNotLoaded(model.id, "a websocket does not load it")
            target = (rest or b"/") + mark + query
            if looks_on:
                await self._bystanders.check_socket(caller, model, target)
        except RequestRefused as refused:
            await tunnel.refuse(refused.status, reason_of(refused.status), *refused.response())
            return
        if looks_on:
            tunnel.switched_only, tunnel.allowed = True, _Leave(self._runtime, caller, model.id).holds
            await self._connect(tunnel, model.id, self._runtime.proxy_of(model.id), target, own.key)
        else:
            await self._tunnel_job(tunnel, model, own, target)

    async def _tunnel_job(self, tunnel: Tunnel, model: ModelSettings, own: OwnHeaders, target: bytes) -> None:
        ticket = self._passage.queue(model, own)
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
                outcome = await self._relay(tunnel, ticket, turn.proxy, target)
        finally:
            ticket.ended(outcome)

    async def _relay(self, tunnel: Tunnel, ticket: Ticket, proxy: str, target: bytes) -> Outcome:
        cut_as: list[Outcome] = []

        def cut(outcome: Outcome) -> None:
            cut_as.append(outcome)
            tunnel.cut()

        ticket.on_cut(cut)
        result = await self._connect(tunnel, ticket.job.model, proxy, target, ticket.job.key)
        if result is None:
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

    async def _connect(self, tunnel: Tunnel, model: str, proxy: str, target: bytes, key: str) -> RelayResult | None:
        """Relay a tunnel until it ends; None when the server cannot be reached, which the client has been told.

        `key` is the name of the client's.
        """
        server = self._pools.of(model, proxy)
        client_host = tunnel.client[0] if tunnel.client else ""
        # The socket may have begun to wait before the gateway had keys.
        headers = without_credentials(tunnel.raw_headers) if self._runtime.settings.keys else tunnel.raw_headers
        head = tunnel_head(headers, target=server.base_path + target, client_host=client_host)
        try:
            return await tunnel.connect_and_relay(server.host, server.port, server.tls, head)
        except UpstreamUnreachable as error:
            words = error.told(operator=self._runtime.settings.is_operator(key))
            await tunnel.refuse(502, reason_of(502), *error_response(502, words))
            return None
        except NotSwitched as error:
            await tunnel.refuse(502, reason_of(502), *error_response(502, str(error)))
            return None


class _Leave:
    """Whether a caller may go on looking on at a model's server, by the keys that count now."""

    def __init__(self, runtime: Runtime, caller: Caller, model: str) -> None:
        self._runtime = runtime
        self._caller = caller
        self._model = model
        self._settings = runtime.settings
        self._holds = True

    def holds(self) -> bool:
        """Asked for every piece, so it only thinks after a reload: a key that was changed has to ask anew."""
        settings = self._runtime.settings
        if settings is not self._settings:
            self._settings = settings
            now = self._caller.renewed(settings)
            as_before = now is not None and (now == self._caller or now.admin)
            self._holds = as_before and now is not None and now.may_use(self._model)
        return self._holds


def named_upstream(raw_path: bytes, settings: Settings, caller: Caller) -> tuple[ModelSettings, bytes]:
    """The model that a path below `/upstream/` names, and the path at its server.

    Raises UnknownModel, with suggestions that the caller may use, and ModelNotAllowed.
    """
    found = split_upstream(raw_path, settings.resolve)
    if found is None:
        name = unquote(raw_path.removeprefix(b"/upstream/").split(b"/")[0].decode("latin-1"))
        raise UnknownModel(name, caller.names_of_models(settings))
    model, rest, name = found
    caller.check_model(model, name)
    return model, rest
