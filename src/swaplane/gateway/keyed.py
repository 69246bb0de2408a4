"""`Idempotency-Key`: a request that is sent again gets the answer of its first time, not a second job.

Decides whether a request is a repetition, how long a job goes on while none of its clients is there, and which
answers are kept for a later repetition. The keys are remembered in memory alone: a gateway that starts anew knows
none of them. It does not queue or send: the job itself is a `Passage` into a `Recording`, and every client, the
first one too, is a player of that. Called by the app for requests with the header; `detached` reads keys and
compares requests with the functions here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import mmap
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence

from python_multipart.multipart import parse_options_header

from swaplane.core.outcomes import Outcome
from swaplane.gateway.body import Body
from swaplane.gateway.client_side import ClientSide
from swaplane.gateway.errors import RawHeaders, RequestRefused
from swaplane.gateway.passage import Errand, Passage
from swaplane.gateway.recording import Recording
from swaplane.ticket import Ticket
from swaplane.wire import REPLAYED_HEADER

KEY_HEADER = "Idempotency-Key"
GRACE_S = 10.0  #: how long a job goes on for clients that have left; the SDKs come again after 0.5 to 8 s
CLOSE_S = 2.0  #: how long jobs that were cut may take to say so
KEPT_ANSWERS = 1000  #: at most, of jobs that have ended
KEPT_BYTES = 256 << 20  #: of their bodies, at most in total

_REPLAYED = ((REPLAYED_HEADER.encode(), b"true"),)
_KEY_NAME = KEY_HEADER.lower().encode()
_KEY = re.compile(rb"[!-~]{1,255}")
_SHORT_BYTES = 64 << 10  # of a body: hashed faster than a thread takes over
_SHOWN_CHARS = 60  # of a key in a message

#: The model answered. After any other end a repetition is a new job.
_ANSWERED = frozenset((Outcome.COMPLETED, Outcome.UPSTREAM_ERROR))
#: Statuses that say that nothing was done and that later is better, also where a model's server says it.
_NOT_NOW = frozenset((429, 503))

_log = logging.getLogger(__name__)

_Scope = tuple[str, str, str]  # the name of an API key, a member, and the Idempotency-Key


class KeyReused(RequestRefused):
    """The key came with another request before."""

    status = 422
    code = "idempotency_key_reused"

    def __init__(self, key: str) -> None:
        shown = key if len(key) <= _SHOWN_CHARS else key[:_SHOWN_CHARS] + "..."
        super().__init__(
            f"the {KEY_HEADER} `{shown}` belongs to an earlier request with another method, path or body;"
            " a new request needs a new key"
        )


def idempotency_key(raw_headers: RawHeaders) -> str | None:
    """The request's key; None when it has none. Raises RequestRefused where the header makes no sense."""
    keys = {value.strip(b" \t") for name, value in raw_headers if name.lower() == _KEY_NAME}
    if not keys:
        return None
    if len(keys) > 1:
        raise RequestRefused(f"the header {KEY_HEADER} was sent more than once with different values; send one")
    key = keys.pop()
    if not _KEY.fullmatch(key):
        raise RequestRefused(f"the header {KEY_HEADER} must be 1 to 255 visible ASCII characters, without spaces")
    return key.decode("ascii")


async def fingerprint(method: bytes, target: bytes, content_type: bytes, body: Body) -> str:
    """What tells a repetition from another request: a hash over these, with the body as it was received.

    The boundary of a multipart body is left out: clients choose another one each time they send a form.
    """
    view = body.view()
    head = b"%b %b\n" % (method, target)
    if len(view) <= _SHORT_BYTES:
        return _hashed(head, content_type, view)
    return await asyncio.to_thread(_hashed, head, content_type, view)


def _hashed(head: bytes, content_type: bytes, view: bytes | mmap.mmap) -> str:
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"") if kind.startswith(b"multipart/") else b""
    digest = hashlib.sha256(head + (kind if boundary else content_type) + b"\n")
    line, start = b"--" + boundary, 0
    with memoryview(view) as content:
        while boundary and (end := view.find(line, start)) >= 0:
            digest.update(content[start:end])
            start = end + len(line)
        digest.update(content[start:])
    return digest.hexdigest()


class _Answer:
    """What one key stands for: a job, and its answer as far as it has come."""

    def __init__(self, mark: str, recording: Recording) -> None:
        self.mark = mark  # of the request
        self.recording = recording
        self.listeners = 0
        self.timer: asyncio.TimerHandle | None = None  # to the end of the grace; later, of the time it is kept

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class KeyedRequests:
    """The jobs and the answers of all requests with a key. `replay_s()` is how long an answer is kept."""

    def __init__(self, replay_s: Callable[[], float], *, grace_s: float = GRACE_S) -> None:
        self._replay_s = replay_s
        self._grace_s = grace_s
        self._answers: dict[_Scope, _Answer] = {}
        self._kept: OrderedDict[_Scope, _Answer] = OrderedDict()  # those whose job has ended, oldest first
        self._kept_bytes = 0
        self._jobs: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<KeyedRequests: {len(self._jobs)} jobs, {len(self._kept)} answers of {self._kept_bytes} bytes>"

    async def run(self, wire: ClientSide, errand: Errand, passage: Passage, key: str) -> None:
        """Answer `wire` with the job of its key: a new one, or the one there is or was.

        The errand's body is closed here, at the latest when its job has ended. Raises KeyReused.
        """
        with contextlib.ExitStack() as body:
            body.callback(errand.body.close)
            mark = await fingerprint(errand.method, errand.target, wire.header(b"content-type"), errand.body)
            scope = (errand.own.key, errand.own.member, key)
            answer = self._answers.get(scope)
            if answer is not None and answer.mark != mark:
                raise KeyReused(key)
            extra = () if answer is None else _REPLAYED
            if answer is None:
                answer = self._begin(scope, mark, wire, errand, passage)
                body.pop_all()
        await self._listen(scope, answer, wire, extra)

    async def close(self) -> None:
        """Give everything back, once the runtime has ended the jobs; who listens still gets what there is."""
        if self._jobs:
            _, going_on = await asyncio.wait(self._jobs, timeout=CLOSE_S)
            for job in going_on:
                job.cancel()
            await asyncio.gather(*going_on, return_exceptions=True)
        answers = dict(self._answers)
        for scope, answer in answers.items():
            self._forget(scope, answer)
        for answer in answers.values():
            await answer.recording.saved()  # nothing is being written any more

    def _begin(self, scope: _Scope, mark: str, wire: ClientSide, errand: Errand, passage: Passage) -> _Answer:
        ticket = passage.submit(errand)
        recording = Recording(method=wire.method, target=wire.target, raw_headers=errand.headers, client=wire.client)
        answer = self._answers[scope] = _Answer(mark, recording)
        job = asyncio.get_running_loop().create_task(self._run_job(scope, answer, errand, passage, ticket))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return answer

    async def _run_job(self, scope: _Scope, answer: _Answer, errand: Errand, passage: Passage, ticket: Ticket) -> None:
        outcome = Outcome.GATEWAY_ERROR
        try:
            outcome = await passage.run(answer.recording, errand, ticket)
            if answer.recording.over:
                await answer.recording.saved()  # until then the disk can still spoil it
        except Exception:
            _log.exception("a job failed: %r", ticket)
        finally:
            errand.body.close()
            self._settle(scope, answer, outcome)

    async def _listen(
        self, scope: _Scope, answer: _Answer, wire: ClientSide, extra: Sequence[tuple[bytes, bytes]]
    ) -> None:
        recording = answer.recording
        answer.listeners += 1
        if not recording.over:
            answer.stop_timer()
        try:
            await recording.play(wire, extra)
        finally:
            answer.listeners -= 1
            if not answer.listeners and not recording.over:
                loop = asyncio.get_running_loop()
                answer.timer = loop.call_later(self._grace_s, self._give_up, scope, answer)

    def _give_up(self, scope: _Scope, answer: _Answer) -> None:
        """Nobody has come back in time."""
        # A job may go on after its answer; clients count for the answer alone.
        if not answer.recording.over:
            self._forget(scope, answer)

    def _settle(self, scope: _Scope, answer: _Answer, outcome: Outcome) -> None:
        """The job is over: keep its answer, or make room for another try."""
        recording = answer.recording
        if self._answers.get(scope) is not answer:  # given up
            return
        if outcome not in _ANSWERED or not recording.complete or recording.status in _NOT_NOW:
            self._forget(scope, answer)
            return
        loop = asyncio.get_running_loop()
        answer.timer = loop.call_later(self._replay_s(), self._forget, scope, answer)
        self._kept[scope] = answer
        self._kept_bytes += recording.length
        while len(self._kept) > KEPT_ANSWERS or self._kept_bytes > KEPT_BYTES:
            self._forget(*next(iter(self._kept.items())))

    def _forget(self, scope: _Scope, answer: _Answer) -> None:
        """The next request with the key is a new job; who listens now still gets the whole answer."""
        answer.stop_timer()
        del self._answers[scope]
        if self._kept.pop(scope, None) is not None:
            self._kept_bytes -= answer.recording.length
        answer.recording.close()
