"""`GET /api/members`: what each member has waiting and running, and its share of the GPU time.

Decides who is shown whose numbers: admins everybody's, the holder of any other key those of the member that its jobs
are on behalf of. The numbers come from `core.explain`. `assembly` puts it into the API.
"""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from swaplane.core.explain import MemberView, members_view
from swaplane.gateway.access import ApiRoute, Right, caller_of
from swaplane.gateway.replies import json_reply
from swaplane.runtime import Runtime
from swaplane.wire import ANONYMOUS, MemberJson, MembersJson

_DECIMALS = 3  # of seconds
_SHARE_DECIMALS = 4


class MembersApi:
    """The endpoint. GPU seconds are counted from the moment it is made, which is the gateway's start."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._since = time.monotonic()

    def routes(self) -> list[ApiRoute]:
        """What is served."""
        return [ApiRoute("GET", "/api/members", self.members, Right.MEMBER)]

    async def members(self, request: Request) -> Response:
        """The members that the caller may see, the busiest first."""
        caller, now = caller_of(request.scope), time.monotonic()
        own = None if caller.key is None or caller.admin else caller.key.member or ANONYMOUS
        views = members_view(self._runtime.dispatcher, now)
        answer: MembersJson = {
            "members": [_member_json(view) for view in views if own in (None, view.member)],
            "since_s": round(now - self._since, _DECIMALS),
        }
        return json_reply(answer)


def _member_json(view: MemberView) -> MemberJson:
    return {
        "member": view.member,
        "weight": view.weight,
        "running": view.running,
        "waiting": view.waiting,
        "gpu_s": round(view.gpu_s, _DECIMALS),
        "share": round(view.share, _SHARE_DECIMALS),
        "hour_gpu_s": round(view.hour_gpu_s, _DECIMALS),
        "budget_left_s": None if view.budget_left_s is None else round(view.budget_left_s, _DECIMALS),
    }
