"""Requests about jobs that run at a model's server: how is it, where is the result, stop it.

They take no place in the queue and load nothing. Decides who answers: the server, if it runs; else what is kept of
a job that is over. A cancel that the server would not carry out becomes one of the gateway's own.

Where there are API keys it also decides whom such a request is for: a job is its owner's, what others could see or
lose is an admin's, and what shows nobody's work is everybody's. Called by `app` for what the model's `Completion`
calls a bystander.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from swaplane.completion.paths import normal
from swaplane.completion.rule import Call, Completion, Reach, Stage
from swaplane.gateway.access import Caller, caller_of
from swaplane.gateway.connection import UpstreamError
from swaplane.gateway.errors import Forbidden, ModelNotLoaded, RequestRefused
from swaplane.gateway.following import Following, pass_on
from swaplane.gateway.passage import Errand, Passage
from swaplane.gateway.remembered import RememberedJobs
from swaplane.gateway.replies import recorded
from swaplane.gateway.wire import Wire
from swaplane.runtime import Runtime

_RESULT_PATIENCE_S = 10.0  # for the caller's own job, whose file is asked for
_READ_BYTES = 64 << 10  # of a body that names jobs; a longer one is taken to be about all of them
_ADMIN = "this needs a key with admin: true"


class NotKept(RequestRefused):
    """The job is known, its server is gone, and this was not kept of it."""

    status = HTTPStatus.NOT_FOUND

    def __init__(self, server_id: str, model: str, path: str) -> None:
        super().__init__(
            f"of job `{server_id[:100]}` nothing is kept at {path[:200]}, and the server of {model} that ran it is gone"
        )


class UnknownAtServer(RequestRefused):
    """The caller has no such job at this model's server; whether somebody else has is not told."""

    status = HTTPStatus.NOT_FOUND

    def __init__(self, what: str, model: str) -> None:
        super().__init__(f"no {what} of model `{model}` is known: it was never made here, was deleted, or has expired")


class Bystanders:
    """Answers them."""

    def __init__(self, runtime: Runtime, remembered: RememberedJobs, passage: Passage) -> None:
        self._runtime = runtime
        self._remembered = remembered
        self._passage = passage

    async def serve(self, wire: Wire, errand: Errand, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one. Raises ModelNotLoaded, NotKept, UnknownAtServer and Forbidden."""
        rule = errand.model.completion
        assert rule is not None  # noqa: S101 - its bystander is what this is about
        model, method, caller = errand.model.id, errand.method.decode("latin-1"), caller_of(scope)
        is_result = not caller.admin and await self._checked(caller, rule, errand) is Reach.RESULT
        server_id = rule.id_in(method, errand.path) or ""
        following = self._remembered.live(server_id, model)
        if following is not None:
            if (answer := await self._about_running(following, rule, method, errand)) is not None:
                await answer(scope, receive, send)
                return
            if not self._runtime.is_ready(model):  # its server is gone: soon what is kept tells how it ended
                await following.over.wait()
            following = self._remembered.live(server_id, model)
        if following is None and method in ("GET", "HEAD"):
            target = rule.kept_under(errand.target.decode("latin-1"))
            kept = await self._remembered.kept(model, target, caller=caller)
            if kept is not None and (answer := await recorded(kept.path, kept.status, kept.headers)) is not None:
                await answer(scope, receive, send)
                return
        if is_result:
            raise UnknownAtServer("such file", model)
        known = following is None and server_id and await self._remembered.get(server_id, model) is not None
        if known and method == "DELETE":
            await self._remembered.forget(model, server_id)
            if not await self._forgotten_there(wire, errand):
                await deleted(server_id)(scope, receive, send)
        elif self._runtime.is_ready(model):
            await self._passage.beside(wire, errand, self._runtime.proxy_of(model))
        elif known:
            raise NotKept(server_id, model, errand.path)
        else:
            raise ModelNotLoaded(model, "requests about its jobs do not load it")

    async def check_source(self, caller: Caller, errand: Errand) -> None:
        """Let a request become a job, unless it goes on from one that is not the caller's. Raises UnknownAtServer."""
        rule = errand.model.completion
        if rule is not None and not caller.admin:
            server_id = rule.id_in(errand.method.decode("latin-1"), errand.path)
            if server_id is not None:
                await self._check_named(caller, errand.model.id, server_id)

    async def _checked(self, caller: Caller, rule: Completion, errand: Errand) -> Reach:
        """What a request reaches, all of which the caller may see or change. Raises UnknownAtServer and Forbidden."""
        method, target = errand.method.decode("latin-1"), errand.target.decode("latin-1")
        concern = rule.concern(method, target, _readable(errand))
        model = errand.model.id
        for server_id in concern.ids:
            await self._check_named(caller, model, server_id)
        match concern.reach:
            case Reach.RUNNING:
                jobs = [grant.job for grant in self._runtime.dispatcher.grants() if grant.job.model == model]
                if not all(caller.owns(member=job.member, key=job.key) for job in jobs):
                    raise Forbidden(f"{errand.path[:200]} would end work of others at `{model}`: {_ADMIN}")
            case Reach.EVERYBODY:
                raise Forbidden(f"{errand.path[:200]} is about everybody's jobs at `{model}`: {_ADMIN}")
            case Reach.RESULT if await self._remembered.kept(model, rule.kept_under(target), caller=caller) is None:
                await self._own_ends(caller, model)
            case _:
                pass
        return concern.reach

    async def _check_named(self, caller: Caller, model: str, server_id: str) -> None:
        following = self._remembered.live(server_id, model)
        if following is not None:
            known = _owns(caller, following)
        else:
            known = await self._remembered.get(server_id, model, caller=caller) is not None
        if not known:
            raise UnknownAtServer(f"job `{server_id[:100]}`", model)

    async def _own_ends(self, caller: Caller, model: str) -> None:
        """Wait a little for the caller's jobs there: a page asks for a file before its job is seen to be over."""
        own = [each for each in self._remembered.live_at(model) if _owns(caller, each)]
        ends = [asyncio.ensure_future(each.over.wait()) for each in own]
        try:
            if ends:
                await asyncio.wait(ends, timeout=_RESULT_PATIENCE_S)
        finally:
            for end in ends:
                end.cancel()

    async def _forgotten_there(self, wire: Wire, errand: Errand) -> bool:
        """Have the server delete a job that is over, and pass its answer on; False: it does not know the job.

        The process that runs now need not be the one that ran the job.
        """
        if not self._runtime.is_ready(errand.model.id):
            return False
        try:
            answer = await self._passage.ask(errand, self._runtime.proxy_of(errand.model.id))
        except UpstreamError:
            return False
        if answer.status >= HTTPStatus.BAD_REQUEST:
            return False
        pass_on(wire, answer, [])
        return True

    async def _about_running(
        self, following: Following, rule: Completion, method: str, errand: Errand
    ) -> Response | None:
        """What the gateway itself answers about a job that runs; None: its server does."""
        server_id = following.server_id
        polls = rule.polls(server_id)
        if len(polls) == 1 and _is_call(polls[0], method, errand.path):
            try:
                report, answers = await following.look()
            except (UpstreamError, TimeoutError):
                return None if not self._runtime.is_ready(errand.model.id) else _last_news(following)
            if report.stage is Stage.UNCLEAR:
                return _last_news(following)
            if report.stage is Stage.GONE:  # cancelled or lost: what is kept tells which
                await following.over.wait()
                return None
            # A failed job is no failed request: clients would ask again and raise instead of reading why.
            status = HTTPStatus.OK if report.stage is Stage.FAILED else answers[-1].status
            return Response(answers[-1].body, status, media_type="application/json")
        cancels = any(_is_call(call, method, errand.path) for call in rule.cancels(server_id))
        if cancels and (not rule.frees_on_cancel(server_id) or method == "DELETE"):
            self._runtime.cancel(following.ticket.job.id)
            await following.over.wait()
            if method == "DELETE":
                await self._remembered.forget(errand.model.id, server_id)
            return deleted(server_id)
        return None


def _owns(caller: Caller, following: Following) -> bool:
    job = following.ticket.job
    return caller.owns(member=job.member, key=job.key)


def _readable(errand: Errand) -> bytes | None:
    """A request's body as JSON, if the server cannot take it for anything else; None when there is no telling."""
    for name, value in errand.headers:
        lowered = name.lower()
        if lowered == b"content-encoding" or (lowered == b"content-type" and b"charset" in value.lower()):
            return None
    return bytes(errand.body.view()[:]) if errand.body.length <= _READ_BYTES else None


def _last_news(following: Following) -> Response:
    """What the server last said of a job, while it says nothing."""
    return Response(following.last, media_type="application/json")


def _is_call(call: Call, method: str, path: str) -> bool:
    """Whether a server would take a request of this method and path (without query) for the call."""
    return method == call.method and normal(path) == normal(call.path.partition("?")[0])


def deleted(server_id: str) -> Response:
    """What OpenAI's API says of a video that is deleted."""
    body = {"id": server_id, "object": "video.deleted", "deleted": True}
    return Response(json.dumps(body), media_type="application/json")
