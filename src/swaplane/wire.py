"""What gateway and client say to each other: header names and the shapes of the JSON answers.

Names and types only. Imported by the gateway, which fills them, and by clients, which read them.
"""

from __future__ import annotations

from typing import Literal, TypedDict

#: All our headers, of requests and answers, begin with this; none is passed on to a model server.
HEADER_PREFIX = "X-LlamaSwap-"

ANONYMOUS = "anonymous"  #: the one member behind all requests that name none

# Of a request.
PRIORITY_HEADER = "X-LlamaSwap-Priority"  #: an integer or a band's name; in the answer: the applied integer
MEMBER_HEADER = "X-LlamaSwap-Member"  #: on whose behalf the job runs
LABEL_HEADER = "X-LlamaSwap-Label"  #: free text for people, at most 200 characters
MAX_WAIT_HEADER = "X-LlamaSwap-Max-Wait"  #: seconds, perhaps with decimals: the longest to wait; 0: now or not at all
SHOW_WAIT_HEADER = "X-LlamaSwap-Show-Wait"  #: "true": a streamed request is told in comments how it gets on
WEBHOOK_HEADER = "X-LlamaSwap-Webhook"  #: where to tell of a detached job's end

# Of an answer.
JOB_HEADER = "X-LlamaSwap-Job"  #: the job's id
WAIT_HEADER = "X-LlamaSwap-Wait"  #: seconds from arrival to being sent to the model, with three decimals
REPLAYED_HEADER = "X-LlamaSwap-Replayed"  #: "true" on an earlier job's answer, given again for its Idempotency-Key
PRIORITY_REASON_HEADER = "X-LlamaSwap-Priority-Reason"  #: only where the applied priority is not the requested one

JobState = Literal["waiting", "loading", "running"]


class JobJson(TypedDict):
    """One job that waits or runs.

    Of somebody else's, `id`, `label` and `key` are empty and `member` is "other"; `model` is "other" too where the
    reader's key is not for it.
    """

    id: str
    model: str
    member: str
    label: str  #: empty when the request had none
    key: str  #: name of the API key it came with; empty without one
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
    ahead: dict[str, int] | None  #: jobs that go first, by band; None once it runs, or where it is not counted
    expected_wait_s: float | None  #: from now until its place, by what was measured; None: unknown
    reason: str  #: one sentence: what it waits for, or why it runs
    progress: float | None  #: per cent done, where its model's server tells


class LaneJson(TypedDict):
    """One lane with its jobs."""

    name: str
    size: int  #: places
    paused: bool
    resident: list[str]  #: ids of the models whose servers are ready, "other" for each that the reader's key is not for
    running: list[JobJson]
    waiting: list[JobJson]  #: in dispatch order; may be cut short
    waiting_total: int  #: how many wait, also where `waiting` is cut short


class QueueJson(TypedDict):
    """The answer of `GET /api/queue`."""

    lanes: list[LaneJson]


class MemberJson(TypedDict):
    """One member: what it has now, and what it has used."""

    member: str
    weight: float  #: its share of the turns, against 1 of most members
    running: int  #: jobs
    waiting: int  #: jobs
    gpu_s: float  #: GPU seconds its jobs have used
    share: float  #: of the GPU seconds of all members, from 0 to 1
    hour_gpu_s: float  #: GPU seconds of the last hour
    budget_left_s: float | None  #: of its GPU seconds for this hour; None: there is no budget


class MembersJson(TypedDict):
    """The answer of `GET /api/members`."""

    members: list[MemberJson]  #: the busiest first
    since_s: float  #: for how long GPU seconds have been counted
