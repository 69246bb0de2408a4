"""Tells somebody else's server that a detached job is over, once for each job that was sent with a webhook.

Decides which addresses may be called, how a call is signed (Standard Webhooks) and when it is tried again. It
calls no host that the configuration does not name, follows no redirect and uses no proxy of the environment,
because the address comes from a client. What is still to be told is in the store, so that it survives a restart:
a receiver may be told twice (the `webhook-id` is the same), but is not forgotten. A receiver that does not answer
keeps only its own calls waiting. The app asks `webhook_of` once per request; the gateway runs one `Webhooks`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import http
import re
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache

import httpx2
import structlog

from swaplane.config.settings import JobsSettings
from swaplane.gateway.errors import RequestRefused, go_json
from swaplane.gateway.queue_view import detached_json
from swaplane.runtime import Runtime
from swaplane.store import Store, StoredJob, StoreError
from swaplane.wire import WEBHOOK_HEADER

log = structlog.get_logger("swaplane.webhook")

_NAME = WEBHOOK_HEADER.lower().encode()

#: Seconds before each try, counted from the one before; after the last one it is given up.
TRIES_AFTER_S = (0.0, 5.0, 30.0, 120.0, 600.0)
ANSWER_S = 15.0  #: how long a receiver may take
PER_RECEIVER = 2  #: calls under way side by side at one host and port
AT_ONCE = 64  #: and in all, so that no number of receivers takes all of the gateway's sockets
_PORTS = (None, *range(1, 65536))  # None: the scheme's own
_ORIGIN = re.compile(r"[^/?#]*(?://[^/?#]*)?")  # an address up to its path
_STORE_FAILED_S = 30.0  # before the store is asked again after it failed


class WebhookRefused(RequestRefused):
    """The address to call is not one that may be called."""

    code = "webhook_refused"


def webhook_of(raw_headers: Iterable[tuple[bytes, bytes]], settings: JobsSettings) -> str | None:
    """The address that a detached request wants called at its end; None when it wants none.

    Raises WebhookRefused.
    """
    values = [value for name, value in raw_headers if name.lower() == _NAME]
    if not values:
        return None
    if len(values) > 1:
        raise WebhookRefused(f"the header {WEBHOOK_HEADER} was sent {len(values)} times; send one address")
    try:
        text = values[0].decode().strip()
    except UnicodeDecodeError as error:
        shown = values[0][:100].decode(errors="backslashreplace")
        raise WebhookRefused(
            f"the header {WEBHOOK_HEADER} must be an http:// or https:// address in UTF-8, and is `{shown}`"
        ) from error
    if problem := _problem(text, settings):
        raise WebhookRefused(f"the header {WEBHOOK_HEADER} {problem}")
    return text


def _problem(text: str, settings: JobsSettings) -> str | None:
    """Why an address may not be called, as the rest of a sentence; None when it may.

    It is read by what will call it, so that both understand the same host.
    """
    url = _parsed(text)
    if url.scheme not in ("http", "https") or not url.host or url.port not in _PORTS:
        return f"must be an http:// or https:// address, and is `{text[:100]}`"
    if url.userinfo:
        return "must not hold a user name or a password"
    if not settings.webhook_hosts:
        return "cannot be used: the configuration names no hosts that may be called (jobs.webhook.hosts)"
    receiver = _receiver(url)
    host = receiver.rpartition(":")[0]
    allowed = {name.lower() for name in settings.webhook_hosts}
    if allowed.isdisjoint((host.strip("[]"), host, receiver)):
        return f"names `{receiver}`, which is not among the hosts that may be called (jobs.webhook.hosts)"
    return None


def _parsed(text: str) -> httpx2.URL:
    """The address; an empty one for what is none."""
    try:
        return httpx2.URL(text)
    except httpx2.InvalidURL:
        return httpx2.URL()


def _receiver(url: httpx2.URL) -> str:
    """The host, in ASCII and in brackets where it is an IPv6 address, and the port that a call goes to."""
    host = url.raw_host.decode("ascii")
    port = url.port or (443 if url.scheme == "https" else 80)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@lru_cache(maxsize=1024)
def _receiver_at(origin: str) -> str:
    return _receiver(_parsed(origin))


def _receiver_of(address: str) -> str:
    """The receiver at a stored address. A backlog asks this for each of its jobs at every turn, so it must be cheap."""
    found = _ORIGIN.match(address)
    return _receiver_at(found[0] if found else address)


def event_body(job: dict[str, object], ended_at: float) -> bytes:
    """What a receiver gets. `job` is the job as `/api/jobs/{id}` shows it, `ended_at` in unix seconds."""
    moment = datetime.fromtimestamp(ended_at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return go_json({"type": "job.ended", "timestamp": moment, "data": job}).encode("utf-8", "replace")


def signed_headers(message_id: str, sent_at: int, body: bytes, secret: bytes) -> dict[str, str]:
    """The headers of the Standard Webhooks scheme for a call at `sent_at` (unix seconds); unsigned without a secret."""
    headers = {"webhook-id": message_id, "webhook-timestamp": str(sent_at)}
    if secret:
        content = f"{message_id}.{sent_at}.".encode() + body
        signature = base64.b64encode(hmac.digest(secret, content, hashlib.sha256)).decode()
        headers["webhook-signature"] = f"v1,{signature}"
    return headers


class Webhooks:
    """All calls of one gateway."""

    def __init__(self, runtime: Runtime, store: Store) -> None:
        self._runtime = runtime
        self._store = store
        self._news = asyncio.Event()
        self._calls: dict[str, tuple[str, asyncio.Task[None]]] = {}  # receiver and task, by job
        self._task: asyncio.Task[None] | None = None
        # Its own limit would count a wait for a free connection as a receiver's failure.
        limits = httpx2.Limits(max_connections=None)
        self._client = httpx2.AsyncClient(trust_env=False, follow_redirects=False, timeout=ANSWER_S, limits=limits)

    def __repr__(self) -> str:
        return f"<Webhooks {len(self._calls)} under way>"

    def start(self) -> None:
        """Begin with what an earlier gateway left; once, when the event loop runs."""
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def job_ended(self, job: StoredJob) -> None:
        """A detached job's end is durable."""
        if job.webhook is not None:
            self._news.set()

    async def close(self) -> None:
        """Stop calling; the next start goes on with what is left."""
        tasks = [task for _, task in self._calls.values()]
        if self._task:
            tasks.append(self._task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()

    async def _serve(self) -> None:
        while True:
            self._news.clear()
            try:
                wait_s = await self._begin_due()
            except StoreError as error:
                log.error("webhooks are delayed", error=str(error))
                wait_s = _STORE_FAILED_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), wait_s)

    async def _begin_due(self) -> float | None:
        """Begin the calls that are due and have room; the seconds until another one is due, None when none will be.

        What is due and has no room stays in the store, and is looked for again when a call has ended.
        """
        now = time.time()
        due = [(job_id, _receiver_of(url)) for job_id, url in await self._store.jobs.due_webhooks(now)]
        at = await self._store.jobs.next_webhook(after=now)
        busy = Counter(receiver for receiver, _ in self._calls.values())
        # When there is not room for all, it is not for those whose receiver is called already.
        for job_id, receiver in sorted(due, key=lambda one: busy[one[1]]):
            if len(self._calls) >= AT_ONCE:
                break
            if job_id not in self._calls and busy[receiver] < PER_RECEIVER:
                busy[receiver] += 1
                self._begin(job_id, receiver)
        return None if at is None else max(at - time.time(), 0.0)

    def _begin(self, job_id: str, receiver: str) -> None:
        task = asyncio.get_running_loop().create_task(self._try(job_id))
        self._calls[job_id] = receiver, task

        def ended(_: asyncio.Task[None]) -> None:
            del self._calls[job_id]
            self._news.set()

        task.add_done_callback(ended)

    async def _try(self, job_id: str) -> None:
        try:
            job = await self._store.jobs.get(job_id)
            # A call that ended while the store was asked for what is due is not made again.
            if job is not None and job.webhook_at is not None and job.webhook_at <= time.time():
                await self._store.jobs.webhook_tried(job_id, again_at=await self._tried(job))
        except StoreError as error:
            log.error("a webhook's state is not kept", job=job_id, error=str(error))
            await asyncio.sleep(_STORE_FAILED_S)  # or it would be called again at once, and for ever

    async def _tried(self, job: StoredJob) -> float | None:
        """Call once; when to call again, in unix seconds, or None."""
        failure, final = await self._call(job)
        tries = job.webhook_tries + 1
        if not failure:
            log.info("webhook delivered", job=job.id)
        elif final or tries == len(TRIES_AFTER_S):
            log.warning("webhook given up", job=job.id, error=failure, tries=tries)
        else:
            log.info("webhook failed", job=job.id, error=failure, again_in_s=TRIES_AFTER_S[tries])
            return time.time() + TRIES_AFTER_S[tries]
        return None

    async def _call(self, job: StoredJob) -> tuple[str, bool]:
        """(what went wrong, whether trying again is pointless); ("", ...) when the receiver has it."""
        settings = self._runtime.settings.jobs
        url = job.webhook or ""
        if problem := _problem(url, settings):  # the configuration may have changed since
            return f"the address {problem}", True
        body = event_body(detached_json(self._runtime, job), job.ended_at or time.time())
        headers = signed_headers(f"msg_{job.id}", int(time.time()), body, settings.webhook_secret)
        headers["content-type"] = "application/json"
        try:
            # Only the status counts: the rest of the answer is not read, however long it is.
            async with (
                asyncio.timeout(ANSWER_S),
                self._client.stream("POST", url, content=body, headers=headers) as answer,
            ):
                status = answer.status_code
        except TimeoutError:
            return f"no answer in {ANSWER_S:g} s", False
        except (httpx2.HTTPError, OSError) as error:
            return str(error) or type(error).__name__, False
        if 200 <= status < 300:
            return "", True
        return f"it answered {status}", status == http.HTTPStatus.GONE
