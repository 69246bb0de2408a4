"""What gateway and client say to each other: header names and the shapes of the JSON answers.

Names and types only. Imported by the gateway, which fills them, and by clients, which read them.
"""

from __future__ import annotations

from typing import Literal, TypedDict

#: All our headers, of requests and answers, begin with this; none is passed on to a model server.
HEADER_PREFIX = "X-LlamaSwap-"

# Of a request.
PRIORITY_HEADER = "X-LlamaSwap-Priority"  #: an integer or a band's name; in the answer: the applied integer
MEMBER_HEADER = "X-LlamaSwap-Member"  #: on whose behalf the job runs
LABEL_HEADER = "X-LlamaSwap-Label"  #: free text for people, at most 200 characters
WEBHOOK_HEADER = "X-LlamaSwap-Webhook"  #: where to tell of a detached job's end

# Of an answer.
JOB_HEADER = "X-LlamaSwap-Job"  #: the job's id
WAIT_HEADER = "X-LlamaSwap-Wait"  #: seconds from arrival to being sent to the model, with three decimals
REPLAYED_HEADER = "X-LlamaSwap-Replayed"  #: "true" on an earlier job's answer, given again for its Idempotency-Key
PRIORITY_REASON_HEADER = "X-LlamaSwap-Priority-Reason"  #: only where the applied priority is not the requested one

JobState = Literal["waiting", "loading", "running"]


class JobJson(TypedDict):
    """One job that waits or runs."""

    id: str
    model: str
    member: str
    label: str  #: empty when the request had none
    priority: int  #: the applied one: base + tier_bonus
    band: str  #: name of the band the priority is in
    base: int  #: points
    tier_bonus: int  #: points
    affinity: float  #: points
    aging: float  #: points
    score: float  #: points; the sum of the four terms
    waited_s: float  #: since it arrived; of a running job: until it was sent to its model
    aging_s: float  #: on the clock that counts for its aging
    position: int | None  #: from 1, in dispatch order; None once it runs
    state: JobState
    reason: str  #: one sentence: what it waits for, or why it runs
    progress: float | None  #: per cent done, where its model's server tells


class LaneJson(TypedDict):
    """One lane with its jobs."""

    name: str
    size: int  #: places
    paused: bool
    resident: list[str]  #: ids of the models whose servers are ready
    running: list[JobJson]
    waiting: list[JobJson]  #: in dispatch order; may be cut short
    waiting_total: int  #: how many wait, also where `waiting` is cut short


class QueueJson(TypedDict):
    """The answer of `GET /api/queue`."""

    lanes: list[LaneJson]
