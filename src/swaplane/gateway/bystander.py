"""Requests about jobs that run at a model's server: how is it, where is the result, stop it.

They take no place in the queue and load nothing. Decides who answers: the server, if it runs; else what is kept of
a job that is over. A cancel that the server would not carry out becomes one of the gateway's own. Called by `app`
and `videos` for what the model's `Completion` calls a bystander.
"""

from __future__ import annotations

import json
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from swaplane.completion.paths import normal
from swaplane.completion.rule import Call, Completion, Stage
from swaplane.gateway.connection import UpstreamError
from swaplane.gateway.errors import ModelNotLoaded, RequestRefused
from swaplane.gateway.following import Following, pass_on
from swaplane.gateway.passage import Errand, Passage
from swaplane.gateway.remembered import RememberedJobs
from swaplane.gateway.replies import recorded
from swaplane.gateway.wire import Wire
from swaplane.runtime import Runtime


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
        """Answer one. Raises ModelNotLoaded and NotKept."""
        rule = errand.model.completion
        assert rule is not None  # noqa: S101 - its bystander is what this is about
        model, method = errand.model.id, errand.method.decode("latin-1")
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
            kept = await self._remembered.kept(model, rule.kept_under(errand.target.decode("latin-1")))
            if kept is not None and (answer := await recorded(kept.path, kept.status, kept.headers)) is not None:
                await answer(scope, receive, send)
                return
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
