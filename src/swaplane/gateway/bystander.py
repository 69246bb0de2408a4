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
from swaplane.config.settings import ModelSettings
from swaplane.gateway.access import Caller, caller_of
from swaplane.gateway.connection import UpstreamError
from swaplane.gateway.errors import Forbidden, ModelNotLoaded, RequestRefused
from swaplane.gateway.following import Following, pass_on
from swaplane.gateway.named_jobs import UnknownAtServer, check_own
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
        target = errand.target.decode("latin-1")
        is_result = (
            not caller.admin
            and await self._checked(caller, rule, model, method, target, _readable(errand)) is Reach.RESULT
        )
        server_id = rule.id_in(method, errand.path) or ""
        following = self._remembered.live(server_id, model, caller=caller)
        if following is not None:
            if (answer := await self._about_running(following, rule, method, errand)) is not None:
                await answer(scope, receive, send)
                return
            if not self._runtime.is_ready(model):  # its server is gone: soon what is kept tells how it ended
                await following.over.wait()
            following = self._remembered.live(server_id, model, caller=caller)
        if following is None and method in ("GET", "HEAD"):
            kept = await self._remembered.kept(model, rule.kept_under(target), caller=caller)
            if kept is not None and (answer := await recorded(kept.path, kept.status, kept.headers)) is not None:
                await answer(scope, receive, send)
                return
        if is_result:
            raise UnknownAtServer("such file", model)
        known = await self._remembered.get(server_id, model, caller=caller) if following is None and server_id else None
        if known is not None and method == "DELETE":
            await self._remembered.forget(known.job_id)
            if not await self._forgotten_there(wire, errand):
                await deleted(server_id)(scope, receive, send)
        elif self._runtime.is_ready(model):
            await self._passage.beside(wire, errand, self._runtime.proxy_of(model))
        elif known is not None:
            raise NotKept(server_id, model, errand.path)
        else:
            raise ModelNotLoaded(model, "requests about its jobs do not load it")

    def check_path(self, caller: Caller, model: ModelSettings, target: bytes) -> None:
        """Raises Forbidden where the other checks could see another path in a target than the model's server does."""
        path = target.partition(b"?")[0].decode("latin-1")
        if model.completion is not None and not caller.admin and model.completion.is_equivocal(path):
            how = "with no empty, `.` or `..` part, no `;` or `\\`, and no escaped `/`, `?`, `#` or `%`"
            raise Forbidden(f"{path[:200]} is not the same path to every server: write it {how}, or {_ADMIN}")

    async def check_job(self, caller: Caller, model: ModelSettings, method: str, path: str) -> None:
        """Let a request that is no bystander's become a job, unless it goes on from others' or changes them.

        Raises UnknownAtServer and Forbidden.
        """
        rule = model.completion
        if rule is None or caller.admin:
            return
        source = rule.id_in(method, path)
        if source is not None:
            await check_own(self._remembered, caller, model.id, source)
        elif not rule.submits(method, path):
            # What a read of the path would show, another method may change. It need not be a job's that stands there.
            read = rule.id_in("GET", path)
            if read is not None:
                if await self._remembered.is_only_of_others(read, model.id, caller):
                    raise UnknownAtServer(f"job `{read[:100]}`", model.id)
            elif method != "POST" and _is_list(rule, path):
                raise Forbidden(f"{path[:200]} is about everybody's jobs at `{model.id}`: {_ADMIN}")

    async def check_socket(self, caller: Caller, model: ModelSettings, target: bytes) -> None:
        """Let a websocket be opened, where the GET that asks for it would be let through as a plain one.

        A server need not agree to it, and then answers the GET. Raises UnknownAtServer and Forbidden.
        """
        rule, path = model.completion, target.partition(b"?")[0].decode("latin-1")
        self.check_path(caller, model, target)
        if rule is None or caller.admin:
            return
        if not rule.is_bystander("GET", path):
            await self.check_job(caller, model, "GET", path)
        elif await self._checked(caller, rule, model.id, "GET", target.decode("latin-1"), b"") is Reach.RESULT:
            raise UnknownAtServer("such websocket", model.id)

    async def _checked(
        self, caller: Caller, rule: Completion, model: str, method: str, target: str, body: bytes | None
    ) -> Reach:
        """What a request reaches, all of which the caller may see or change. Raises UnknownAtServer and Forbidden."""
        concern, path = rule.concern(method, target, body), target.partition("?")[0]
        for server_id in concern.ids:
            await check_own(self._remembered, caller, model, server_id)
        match concern.reach:
            case Reach.RUNNING:
                jobs = [grant.job for grant in self._runtime.dispatcher.grants() if grant.job.model == model]
                if not all(caller.owns(member=job.member, key=job.key) for job in jobs):
                    raise Forbidden(f"{path[:200]} would end work of others at `{model}`: {_ADMIN}")
            case Reach.EVERYBODY:
                raise Forbidden(f"{path[:200]} is about everybody's jobs at `{model}`: {_ADMIN}")
            case Reach.RESULT if await self._remembered.kept(model, rule.kept_under(target), caller=caller) is None:
                await self._own_ends(caller, model)
            case _:
                pass
        return concern.reach

    async def _own_ends(self, caller: Caller, model: str) -> None:
        """Wait a little for the caller's jobs there: a page asks for a file before its job is seen to be over."""
        own = self._remembered.live_at(model, caller=caller)
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
                await self._remembered.forget(following.ticket.job.id)
            return deleted(server_id)
        return None


def _is_list(rule: Completion, path: str) -> bool:
    return rule.is_bystander("GET", path) and rule.concern("GET", path, b"").reach is Reach.EVERYBODY


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
