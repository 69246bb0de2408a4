"""OpenAI's `/v1/videos/...` for all video servers together: the id tells which model it is about.

Decides where a request about a video goes. Creating one is an ordinary model route; everything else takes no place
and loads nothing (`bystander`), except a remix, which is a job. A video that was asked for with
`Prefer: respond-async` is known by its job's id too, from the moment it is accepted. Called by `app`.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import time
from dataclasses import replace
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote

from starlette.responses import Response

from swaplane.completion.presets import PRESETS
from swaplane.completion.rule import DEFAULT_DEADLINE_S, DEFAULT_PATIENCE_S
from swaplane.config.settings import ModelSettings
from swaplane.core.outcomes import Outcome
from swaplane.gateway.access import Caller
from swaplane.gateway.errors import NoModel, RequestRefused, UnknownModel
from swaplane.gateway.job_answers import failure_words
from swaplane.gateway.owned import owner_of
from swaplane.gateway.remembered import RememberedJobs
from swaplane.runtime import Runtime
from swaplane.store.jobs import JobTable, StoredJob
from swaplane.store.remembered import Remembered

PATH = "/v1/videos"
PREFIX = PATH + "/"
KIND = "openai-videos"  #: the completion of the models that are meant
_PAGE, _LONGEST_PAGE = 20, 100  # videos in one answer
_RULE = PRESETS[KIND](DEFAULT_DEADLINE_S, DEFAULT_PATIENCE_S)  # for what was made under it, whatever the file says now


class UnknownVideo(RequestRefused):
    """No job has this id."""

    status = HTTPStatus.NOT_FOUND

    def __init__(self, video_id: str) -> None:
        super().__init__(f"no video `{video_id[:100]}` is known: it was never made here, was deleted, or has expired")


class NotFinished(RequestRefused):
    """The video is not there yet, or never will be."""

    status = HTTPStatus.NOT_FOUND


class BadPage(RequestRefused):
    """A listing is asked for in a way that makes no sense."""


class Videos:
    """Which model and which job a video's id stands for."""

    def __init__(self, runtime: Runtime, remembered: RememberedJobs, jobs: JobTable) -> None:
        self._runtime = runtime
        self._remembered = remembered
        self._jobs = jobs

    def only_model(self, caller: Caller) -> ModelSettings | None:
        """The model of a request that names none: the one that the caller may use. Raises NoModel for several."""
        models = self._runtime.settings.models.values()
        found = [model for model in models if is_video_model(model) and caller.may_use(model.id)]
        if len(found) > 1:
            names = ", ".join(f"`{model.id}`" for model in found)
            raise NoModel(f"several models make videos: give the field `model`, one of {names}")
        return found[0] if found else None

    async def find(self, video_id: str, caller: Caller) -> tuple[ModelSettings, str] | StoredJob:
        """(model, the id at its server) of the caller's video, or a detached job that its server has not seen.

        Raises UnknownVideo, also for somebody else's.
        """
        stored = await self._jobs.get(video_id)
        if stored is not None and stored.expires_at is not None and stored.expires_at <= time.time():
            stored = None  # it will be deleted soon
        if stored is not None and not caller.owns(member=stored.member, key=stored.key_name):
            stored = None
        known = await self._remembered.get(video_id, caller=caller)
        known = known or await self._remembered.of_job(video_id, caller=caller)
        if known is not None and known.completion == KIND and (stored is None or not _runs_again(stored, known)):
            return self._as_it_ran(known), known.server_id
        if stored is None or not is_video(stored, self._runtime) or stored.server_id is not None:
            raise UnknownVideo(video_id)
        return stored

    def _as_it_ran(self, known: Remembered) -> ModelSettings:
        """The model of a video, also when the file has lost it or calls it another kind since."""
        model = self._runtime.settings.models.get(known.model)
        if model is None:
            return ModelSettings(id=known.model, argv=("",), cmd="", proxy="", completion=_RULE)
        return model if is_video_model(model) else replace(model, completion=_RULE)

    async def list(self, query: bytes, caller: Caller) -> Response:
        """The caller's videos of all models, as `after`, `limit`, `order` and `model` in the query want them.

        Raises BadPage and UnknownModel.
        """
        given = {name: values[-1] for name, values in parse_qs(query.decode("latin-1")).items()}
        limit = given.get("limit", str(_PAGE))
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= _LONGEST_PAGE):
            raise BadPage(
                f"query parameter `limit` must be a whole number from 1 to {_LONGEST_PAGE}, not `{limit[:100]}`"
            )
        order = given.get("order", "desc")
        if order not in ("asc", "desc"):
            raise BadPage(f"query parameter `order` must be `asc` or `desc`, not `{order[:100]}`")
        model = None if "model" not in given else self._named(given["model"], caller).id
        shown, has_more = await self._page(caller, model, int(limit), given.get("after"), newest_first=order == "desc")
        ids = [video["id"] for video in shown]
        page = {"object": "list", "data": shown, "has_more": has_more}
        page |= {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
        return _json(page)

    async def _page(
        self, caller: Caller, model: str | None, limit: int, after: str | None, *, newest_first: bool
    ) -> tuple[builtins.list[dict[str, Any]], bool]:
        """At most `limit` videos that follow `after`, and whether there are more: those that wait are the newest."""
        waiting = await self._waiting(model, caller)
        ids = [job.id for job in waiting]
        if after is not None and after not in ids:
            taken_since = await self._remembered.of_job(after, caller=caller)
            after = after if taken_since is None else taken_since.server_id
        again = set(ids)

        async def taken(room: int, since: str | None) -> tuple[builtins.list[dict[str, Any]], bool]:
            shown: builtins.list[dict[str, Any]] = []
            more = True
            while more and len(shown) < room:
                found, more = await self._remembered.page(
                    caller=caller,
                    completion=KIND,
                    model=model,
                    limit=room - len(shown),
                    after=since,
                    newest_first=newest_first,
                )
                # Of those that wait again, the attempts that were cut are no videos.
                shown += [json.loads(each.last) for each in found if each.job_id not in again]
                since = found[-1].server_id if found else since
            return shown, more

        if newest_first:
            waiting.reverse()
            ids.reverse()
            if after is not None and after not in ids:
                return await taken(limit, after)
            rest = [waiting_video(job) for job in waiting[ids.index(after) + 1 if after in ids else 0 :]]
            if len(rest) > limit:
                return rest[:limit], True
            more, has_more = await taken(max(limit - len(rest), 1), None)
            return (rest + more)[:limit], has_more or len(rest) + len(more) > limit
        shown: builtins.list[dict[str, Any]] = []
        if after not in ids:
            if after is not None and await self._remembered.get(after, model, caller=caller) is None:
                return [], False  # nothing follows what is not known
            shown, has_more = await taken(limit, after)
            if has_more:
                return shown, True
        rest = [waiting_video(job) for job in waiting[ids.index(after) + 1 if after in ids else 0 :]]
        return (shown + rest)[:limit], len(shown) + len(rest) > limit

    async def _waiting(self, model: str | None, caller: Caller) -> builtins.list[StoredJob]:
        """The caller's detached videos that no server has taken, in order of acceptance."""
        found = []
        for job in await self._jobs.open_below(PATH, owner=owner_of(caller)):
            if is_video(job, self._runtime) and model in (None, job.model):
                known = await self._remembered.of_job(job.id) if job.attempts else None
                if known is None or _runs_again(job, known):
                    found.append(job)
        return found

    async def about_waiting(self, stored: StoredJob, method: str, rest: str) -> Response:
        """The answer to a GET about a video that no server has taken. Raises NotFinished."""
        why = "it waits for its turn"
        if stored.state == "ended":
            why = await asyncio.to_thread(failure_words, stored, self._jobs.answer_path(stored.id))
        if rest or method not in ("GET", "HEAD"):
            raise NotFinished(f"video `{stored.id}` has no content: {why}")
        return _json(waiting_video(stored, why))

    def _named(self, name: str, caller: Caller) -> ModelSettings:
        model = self._runtime.settings.resolve(name)
        if model is None:
            raise UnknownModel(name, caller.names_of_models(self._runtime.settings))
        return model


def _runs_again(stored: StoredJob, known: Remembered) -> bool:
    """Whether what is known is of an attempt that an earlier gateway cut, and the job is to be had yet."""
    return stored.state == "waiting" or (stored.state == "running" and stored.attempts > 1 and known.stage == "failed")


def is_video(stored: StoredJob, runtime: Runtime) -> bool:
    """Whether a detached job makes a video."""
    path = stored.target.partition("?")[0]
    model = runtime.settings.resolve(stored.model)
    # Of one that was removed the path is all that is left to tell by.
    return (model is None or is_video_model(model)) and _RULE.submits(stored.method, path)


def is_video_model(model: ModelSettings) -> bool:
    """Whether its server makes videos in the way of OpenAI's API."""
    return model.completion is not None and model.completion.name == KIND


def id_and_rest(path: str) -> tuple[str, str]:
    """`/v1/videos/{id}{rest}`, as sent, as (id, rest): the id is decoded; the rest is empty or begins with a slash."""
    video_id, slash, rest = path[len(PREFIX) :].partition("/")
    return unquote(video_id), slash + rest


def waiting_video(stored: StoredJob, why: str = "") -> dict[str, Any]:
    """A detached job that its server has not taken, as a Video of OpenAI's API; of one that has ended with why."""
    video: dict[str, Any] = {
        "id": stored.id,
        "object": "video",
        "model": stored.model,
        "status": "queued",
        "progress": 0,
        "created_at": int(stored.submitted_at),
        "seconds": "",
        "size": "",
    }
    if stored.state == "ended":
        refused = stored.outcome == Outcome.COMPLETED  # its server answered, and took no job
        video |= {"status": "failed", "error": {"code": "refused" if refused else stored.outcome, "message": why}}
    return video


def _json(value: object) -> Response:
    return Response(json.dumps(value, ensure_ascii=False).encode(), media_type="application/json")
