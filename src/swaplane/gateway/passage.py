"""The passage of one job, from the queue to its end: wait for its turn, send it, say how it ended.

Decides what a client is told when its job is not run, and whether a job is over with its answer (`forward`) or goes
on at its server (`following`); and which clients are shown how they wait (`shown_wait`). It does not choose the
order. `app` has requests served whose clients wait at the other end; `keyed` and `detached` have them run into
recordings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from swaplane.config.settings import Key, ModelSettings
from swaplane.core.commands import StopCause
from swaplane.core.outcomes import Outcome
from swaplane.gateway.access import Caller, caller_with, without_credentials
from swaplane.gateway.answers import CUT_WORDS, dropped_answer, send_answer
from swaplane.gateway.body import Body
from swaplane.gateway.client_side import ClientSide
from swaplane.gateway.connection import RawHeaders
from swaplane.gateway.errors import RequestRefused
from swaplane.gateway.fetch import Fetched, fetch
from swaplane.gateway.following import Following
from swaplane.gateway.forward import Forwarding, upstream_headers
from swaplane.gateway.headers import OwnHeaders, response_headers
from swaplane.gateway.named_jobs import check_named
from swaplane.gateway.remembered import RememberedJobs
from swaplane.gateway.shown_wait import Comments, LoadingText, ShownWait, Voice
from swaplane.gateway.stream_answers import DIALECTS
from swaplane.gateway.upstream import UpstreamPool
from swaplane.gateway.waits import Waits
from swaplane.runtime import Runtime
from swaplane.ticket import Dropped, Run, Ticket

_TEXT_PATH = "/v1/chat/completions"  # where `sendLoadingState` counts

#: Of jobs that end while they run because nobody wants them any more.
_UNWANTED = frozenset({Outcome.LEFT_RUNNING, Outcome.CANCELLED_RUNNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """One request to a model, ready to be sent when its turn comes."""

    model: ModelSettings
    method: bytes
    target: bytes  #: path and query at the model's server
    headers: RawHeaders  #: the client's, as received
    client_host: str  #: empty when unknown
    body: Body
    own: OwnHeaders
    streamed: bool = False  #: whether its client asked for a streamed answer

    def __repr__(self) -> str:
        return f"<Errand {self.method.decode()} {self.target.decode('latin-1')} for {self.model.id}>"

    @property
    def path(self) -> str:
        """The path at the model's server, without query."""
        return self.target.partition(b"?")[0].decode("latin-1")

    @property
    def outlives_response(self) -> bool:
        """Whether the job may go on after its answer."""
        rule = self.model.completion
        return rule is not None and rule.submits(self.method.decode("latin-1"), self.path)


class Pools:
    """The connections to each model's server."""

    def __init__(self) -> None:
        self._by_model: dict[str, UpstreamPool] = {}

    def of(self, model: str, proxy: str) -> UpstreamPool:
        """The pool for a model whose server is at `proxy`."""
        pool = self._by_model.get(model)
        if pool is None or pool.base_url != proxy:
            if pool is not None:
                pool.close()
            pool = self._by_model[model] = UpstreamPool(proxy)
        return pool


class Passage:
    """Runs errands as jobs."""

    def __init__(self, runtime: Runtime, remembered: RememberedJobs, pools: Pools) -> None:
        self._runtime = runtime
        self._remembered = remembered
        self._pools = pools
        self._waits = Waits(runtime)

    async def check_named(self, errand: Errand) -> Sequence[str]:
        """Return if the jobs that an errand's body names may be named with its key: the ids that it chooses.

        Raises UnknownAtServer, IdTaken, Ambiguous and StoreError.
        """
        if errand.model.completion is None:
            return ()
        caller = caller_with(errand.own.key, self._runtime.settings.keys)
        if caller is None:  # its key was removed since
            caller = Caller(key=Key(name=errand.own.key, digest=b""))
        return await check_named(self._remembered, caller, errand)

    def submit(self, errand: Errand, *, job_id: str | None = None) -> Ticket:
        """Put an errand into the queue; see `Runtime.submit`."""
        return self.queue(errand.model, errand.own, job_id=job_id, body_bytes=errand.body.length)

    def queue(self, model: ModelSettings, own: OwnHeaders, *, job_id: str | None = None, body_bytes: int = 0) -> Ticket:
        """Put a job into the queue, whatever it will send. One that has an id already was promised its place."""
        if own.priority.adjust_kind is not None:
            self._runtime.metrics.priority_adjusted(own.priority.adjust_kind)
        return self._runtime.submit(
            model,
            member=own.member,
            priority=own.priority.applied,
            label=own.label,
            key=own.key,
            body_bytes=body_bytes,
            max_wait_s=own.max_wait_s,
            job_id=job_id,
        )

    async def serve(self, client: ClientSide, errand: Errand) -> None:
        """Run an errand whose client waits at the other end; it is shown its wait where that is asked for."""
        ticket = self.submit(errand)
        if errand.streamed and not ticket.turn.done():
            client, errand = self._shown(client, errand, ticket)
        await self.run(client, errand, ticket)

    def _shown(self, client: ClientSide, errand: Errand, ticket: Ticket) -> tuple[ClientSide, Errand]:
        """The client and the errand of a streamed job that has to wait, or both as they are."""
        dialect = DIALECTS.get(errand.path)
        if dialect is None:
            return client, errand
        voices: list[Voice] = []
        if errand.own.show_wait:
            voices.append(Comments())
        if errand.model.send_loading_state and errand.path == _TEXT_PATH:
            voices.append(LoadingText(errand.model.id))
        if not voices:
            return client, errand
        reason = errand.own.priority.reason
        shown = ShownWait(client, ticket, self._waits, dialect=dialect, voices=voices, reason=reason)
        # The stream has begun without compression, and goes on so.
        plain = [header for header in errand.headers if header[0].lower() != b"accept-encoding"]
        return shown, replace(errand, headers=plain)

    async def run(self, client: ClientSide, errand: Errand, ticket: Ticket) -> Outcome:
        """Wait for the job's turn, run it, answer the client; how it ended."""
        outcome = Outcome.GATEWAY_ERROR
        try:
            client.on_departure(ticket.leave)
            turn = await ticket.turn
            client.on_departure(None)
            reason = ticket.priority_reason or errand.own.priority.reason
            extra = response_headers(ticket.job.id, ticket.job.priority, turn.waited_s, reason)
            if isinstance(turn, Dropped):
                outcome = turn.outcome
                if not client.departed:
                    status, headers, answer = dropped_answer(turn, client.header(b"accept"))
                    send_answer(client, status, headers + extra, answer)
                return outcome
            if client.departed:
                outcome = Outcome.LEFT_WAITING
            else:
                outcome = await self._send(client, errand, ticket, turn, extra)
        finally:
            ticket.ended(outcome)
        return outcome

    async def _send(self, client: ClientSide, errand: Errand, ticket: Ticket, turn: Run, extra: RawHeaders) -> Outcome:
        rule = errand.model.completion
        pool = self._pools.of(errand.model.id, turn.proxy)
        if rule is not None and errand.outlives_response:
            try:
                chosen = await self.check_named(errand)  # some may have become known while it waited
            except RequestRefused as refused:
                headers, answer = refused.response(client.header(b"accept"))
                send_answer(client, refused.status, headers + extra, answer)
                return Outcome.COMPLETED
            following = Following(
                runtime=self._runtime, remembered=self._remembered, ticket=ticket, rule=rule, pool=pool
            )
            headers, body = self._passed_on(errand)
            with self._remembered.chosen(ticket.job, chosen):
                return await following.run(client, target=errand.target, headers=headers, body=body, extra=extra)
        forwarding = self._forwarding(client, errand, pool, extra)
        ticket.on_cut(lambda outcome: forwarding.cut(outcome, CUT_WORDS[outcome]))
        outcome = (await forwarding.run()).outcome
        if rule is not None and outcome in _UNWANTED and rule.abandons(errand.method.decode("latin-1"), errand.path):
            await asyncio.shield(self._runtime.unload(errand.model.id, StopCause.STUCK))
        return outcome

    async def beside(self, client: ClientSide, errand: Errand, proxy: str) -> None:
        """Pass a request on to a running server without a place in the queue."""
        await self._forwarding(client, errand, self._pools.of(errand.model.id, proxy), []).run()

    async def ask(self, errand: Errand, proxy: str) -> Fetched:
        """A running server's answer to a request, without a place in the queue. Raises UpstreamError."""
        headers, body = self._passed_on(errand)
        pool = self._pools.of(errand.model.id, proxy)
        return await fetch(pool, errand.method.decode("latin-1"), errand.target, headers=headers, body=body)

    def _forwarding(self, client: ClientSide, errand: Errand, pool: UpstreamPool, extra: RawHeaders) -> Forwarding:
        headers, body = self._passed_on(errand)
        return Forwarding(
            client,
            pool,
            target=errand.target,
            headers=headers,
            body=body,
            extra_headers=extra,
            operator=self._runtime.settings.is_operator(errand.own.key),
        )

    def _passed_on(self, errand: Errand) -> tuple[RawHeaders, Body | None]:
        """The headers and the body that a model's server gets; on a gateway with keys no credentials.

        The errand may have come, or may have been stored, before the gateway had keys.
        """
        body = errand.body if errand.body.length > 0 or errand.method not in (b"GET", b"HEAD") else None
        headers = upstream_headers(
            without_credentials(errand.headers) if self._runtime.settings.keys else errand.headers,
            client_host=errand.client_host,
            body_length=None if body is None else body.length,
        )
        return headers, body
