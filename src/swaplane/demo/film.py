"""What the demo asks of the gateway: a film of shots at batch, chat at interactive, embeddings at normal.

`plan` decides all arrivals beforehand; `ask` sends one of them and reads its answer to the end. It knows the
gateway by its HTTP interface only and does not compare waits (`report`) or show anything (`show`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2

from swaplane.wire import JOB_HEADER, LABEL_HEADER, MEMBER_HEADER, PRIORITY_HEADER, WAIT_HEADER

FILM = "night-train"
FRAMES_PER_SHOT = 12
_SCENE = {"prompt": "a night train crosses the desert", "seed": 7, "fps": 12, "width": 320, "height": 192}
#: While the film is rendered, a shot takes about this long; other requests stop coming with its last shot.
_SECONDS_PER_SHOT = 3.5

#: (second, member, question); again from the start every `_ROUND_S` seconds.
_CHATS = (
    (2.0, "alice", "Name a colour of the night sky."),
    (3.0, "bob", "What does a conductor do on a train?"),
    (9.0, "carol", "Give me a title for a film about a train."),
    (14.0, "alice", "Describe the desert at night in one sentence."),
    (15.0, "bob", "What do passengers drink in a dining car?"),
    (21.0, "carol", "Who could be the villain of a train film?"),
    (27.0, "alice", "What sound does a steam engine make?"),
    (28.0, "bob", "Name a city where a night train might arrive."),
    (34.0, "carol", "How does a film about a journey end?"),
    (40.0, "alice", "Write the last line of a film."),
)
_LOOK_UPS = ((6.0, "librarian"), (18.0, "librarian"), (31.0, "librarian"))
_ROUND_S = 42.0
_PASSAGES = ("a night train crosses the desert", "a sleeper train in the dunes after dark", "quarterly revenue")


class JobFailedError(Exception):
    """A request of the demo got no usable answer; the text says what came instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request, decided before the demo starts."""

    at_s: float  #: when it is sent, in seconds since the start
    band: str  #: its priority, by name
    member: str  #: on whose behalf
    label: str  #: what people see in the queue
    model: str  #: which model it goes to
    path: str  #: where it is posted
    body: dict[str, Any]  #: what is posted


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One request after its end."""

    arrival: Arrival  #: what was asked
    job: str  #: the gateway's id of it; empty when it never became a job
    wait_s: float  #: in the queue, loading included, as the gateway says
    run_s: float  #: from the start of the work to the last byte
    says: str = ""  #: its answer, in a line
    video: bytes = b""  #: the mp4, of a shot
    error: str = ""  #: why it failed; empty when it did not


def plan(shots: int) -> tuple[Arrival, ...]:
    """All requests of a demo with a film of `shots` shots, in order of arrival; the shots come first, all at once."""
    until_s = shots * _SECONDS_PER_SHOT
    rounds = range(math.ceil(until_s / _ROUND_S))
    others = (arrival for number in rounds for arrival in _round(number * _ROUND_S) if arrival.at_s < until_s)
    film = (_shot(number, shots) for number in range(1, shots + 1))
    return tuple(sorted([*film, *others], key=lambda arrival: arrival.at_s))


def _shot(number: int, shots: int) -> Arrival:
    return Arrival(
        at_s=(number - 1) * 0.02,  # all at once, and yet in their order
        band="batch",
        member="filmmaker",
        label=f"film={FILM}; shot={number}/{shots}",
        model="video",
        path="/upstream/video/v1/videos/sync",
        body={"model": "video", **_SCENE, "frames": FRAMES_PER_SHOT, "shot": number},
    )


def _round(start_s: float) -> Iterator[Arrival]:
    for at_s, member, question in _CHATS:
        yield Arrival(
            at_s=start_s + at_s,
            band="interactive",
            member=member,
            label="chat",
            model="smollm2",
            path="/v1/chat/completions",
            body={
                "model": "smollm2",
                "stream": True,
                "max_tokens": 24,
                "messages": [{"role": "user", "content": question}],
            },
        )
    for at_s, member in _LOOK_UPS:
        yield Arrival(
            at_s=start_s + at_s,
            band="normal",
            member=member,
            label="look-up",
            model="minilm",
            path="/v1/embeddings",
            body={"model": "minilm", "input": list(_PASSAGES)},
        )


async def ask(client: httpx2.AsyncClient, arrival: Arrival) -> Ended:
    """Send one request now and read its answer to the end. A failure is in the result, not raised."""
    headers = {
        PRIORITY_HEADER: arrival.band,
        MEMBER_HEADER: arrival.member,
        LABEL_HEADER: arrival.label,
    }
    sent = time.monotonic()
    job, wait_s, says, video, error = "", 0.0, "", b"", ""
    try:
        async with client.stream("POST", arrival.path, json=arrival.body, headers=headers) as response:
            job = response.headers.get(JOB_HEADER, "")
            wait_s = float(response.headers.get(WAIT_HEADER, 0.0))
            if response.status_code != 200:
                answer = (await response.aread()).decode(errors="replace")
                raise JobFailedError(f"HTTP {response.status_code}: {answer[:300].strip()}")
            if arrival.model == "video":
                video = await response.aread()
                says = f"{response.headers.get('X-Frames', 'no')} frames, {len(video) / 1024:.0f} KiB"
            elif arrival.model == "smollm2":
                says = await _streamed_text(response)
            else:
                says = _likeness(json.loads(await response.aread()))
    except (httpx2.HTTPError, JobFailedError, ValueError, LookupError, TypeError) as failure:
        error = str(failure) or type(failure).__name__
    run_s = max(time.monotonic() - sent - wait_s, 0.0)
    return Ended(arrival=arrival, job=job, wait_s=wait_s, run_s=run_s, says=says, video=video, error=error)


async def _streamed_text(response: httpx2.Response) -> str:
    """The text of a streamed chat answer. Raises `JobFailedError` unless it ends as such answers do."""
    words: list[str] = []
    async for line in response.aiter_lines():
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return " ".join("".join(words).split())
        if line.startswith("data:"):
            event = json.loads(data)
            if "error" in event:
                raise JobFailedError(f"the stream ended with an error: {event['error']}")
            words += [choice["delta"].get("content") or "" for choice in event["choices"]]
    raise JobFailedError("the stream ended without [DONE]")


def _likeness(answer: dict[str, Any]) -> str:
    """How near the second and third passage are to the first one, by their embeddings."""
    first, second, third = (item["embedding"] for item in answer["data"])
    return (
        f"{_PASSAGES[0]!r} is {_cosine(first, second):.2f} like {_PASSAGES[1]!r} "
        f"and {_cosine(first, third):.2f} like {_PASSAGES[2]!r}"
    )


def _cosine(left: list[float], right: list[float]) -> float:
    product = sum(one * other for one, other in zip(left, right, strict=True))
    return product / (math.hypot(*left) * math.hypot(*right))
