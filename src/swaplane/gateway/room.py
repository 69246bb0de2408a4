"""Whether there is room for one more job that is to be stored: what may wait is limited.

A stored job is a promise, so it is refused before it is stored or not at all. The limits are the dispatcher's.
Called by `detached`.
"""

from __future__ import annotations

from http import HTTPStatus

from swaplane.gateway.answers import dropped_answer
from swaplane.gateway.errors import RawHeaders, RequestRefused
from swaplane.gateway.passage import Errand
from swaplane.runtime import Runtime
from swaplane.ticket import Dropped


class NotTaken(RequestRefused):
    """The job would be refused, and nothing can serve it at present."""

    status = HTTPStatus.SERVICE_UNAVAILABLE

    def __init__(self, dropped: Dropped) -> None:
        super().__init__(dropped.detail)
        self.dropped = dropped

    def response(self, accept: bytes = b"") -> tuple[RawHeaders, bytes]:
        """Headers and body that tell the client, as they tell it of a job that came with its connection."""
        _, headers, body = dropped_answer(self.dropped, accept)
        return headers, body


class Contended(NotTaken):
    """The job would be refused, because others have the room: later there may be some."""

    status = HTTPStatus.TOO_MANY_REQUESTS


#: By status. A job that would end in another way, such as one of a model that is gone, is stored and ends so.
_REFUSALS: dict[int, type[NotTaken]] = {refuses.status: refuses for refuses in (NotTaken, Contended)}


def check_room(runtime: Runtime, errand: Errand) -> None:
    """Return when the job would be taken. Raises NotTaken, and counts the refusal like one of any other job."""
    own = errand.own
    dropped = runtime.refusal(
        errand.model,
        member=own.member,
        key=own.key,
        priority=own.priority.applied,
        body_bytes=errand.body.length,
    )
    if dropped is not None and (refuses := _REFUSALS.get(dropped_answer(dropped, b"")[0])) is not None:
        runtime.metrics.job_ended(
            lane=errand.model.lane,
            band=runtime.dispatcher.rules.band_of(own.priority.applied).name,
            model=errand.model.id,
            member=own.member,
            outcome=dropped.outcome,
            run_s=None,
            slots=errand.model.slots,
        )
        raise refuses(dropped)
