"""Tells somebody else's server that a detached job is over, once for each job that was sent with a webhook.

Decides which addresses may be called, how a call is signed (Standard Webhooks) and when it is tried again. It
calls no host that the configuration does not name, follows no redirect and uses no proxy of the environment,
because the address comes from a client. What is still to be told is in the store, so that it survives a restart:
a receiver may be told twice (the `webhook-id` is the same), but is not forgotten. The app asks `webhook_of` once
per request; the gateway runs one `Webhooks`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import http
import time
from collections.abc import Iterable
from datetime import UTC, datetime

import httpx2
import structlog

from swaplane.config.settings import JobsSettings
from swaplane.gateway.errors import RequestRefused, go_json
from swaplane.gateway.jobs_api import detached_json
from swaplane.runtime import Runtime
from swaplane.store import Store, StoredJob, StoreError
from swaplane.wire import HEADER_PREFIX

log = structlog.get_logger("swaplane.webhook")

WEBHOOK_HEADER = f"{HEADER_PREFIX}Webhook"
_NAME = WEBHOOK_HEADER.lower().encode()

#: Seconds before each try, counted from the one before; after the last one it is given up.
TRIES_AFTER_S = (0.0, 5.0, 30.0, 120.0, 600.0)
ANSWER_S = 15.0  #: how long a receiver may take
AT_ONCE = 8  #: calls under way side by side
_PORTS = (None, *range(1, 65536))  # None: the scheme's own
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
    text = values[0].decode("latin-1").strip()
    if problem := _problem(text, settings):
        raise WebhookRefused(f"the header {WEBHOOK_HEADER} {problem}")
    return text


def _problem(text: str, settings: JobsSettings) -> str | None:
    """Why an address may not be called, as the rest of a sentence; None when it may.

    It is read by what will call it, so that both understand the same host.
    """
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        url = httpx2.URL()
    if url.scheme not in ("http", "https") or not url.host or url.port not in _PORTS:
        return f"must be an http:// or https:// address, and is `{text[:100]}`"
    if url.userinfo:
        return "must not hold a user name or a password"
    if not settings.webhook_hosts:
        return "cannot be used: the configuration names no hosts that may be called (jobs.webhook.hosts)"
    host = f"[{url.host}]" if ":" in url.host else url.host
    port = url.port or (443 if url.scheme == "https" else 80)
    allowed = {name.lower() for name in settings.webhook_hosts}
    if allowed.isdisjoint((url.host, host, f"{host}:{port}")):
        return f"names `{host}:{port}`, which is not among the hosts that may be called (jobs.webhook.hosts)"
    return None


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
        self._calls: dict[str, asyncio.Task[None]] = {}  # by job
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._task: asyncio.Task[None] | None = None
        self._client = httpx2.AsyncClient(trust_env=False, follow_redirects=False, timeout=ANSWER_S)

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
        tasks = [*self._calls.values(), *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()

    async def _serve(self) -> None:
        while True:
            self._news.clear()
            try:
                for job in await self._store.jobs.due_webhooks(time.time()):
                    self._begin(job)
                wait_s = await self._wait_s()
            except StoreError as error:
                log.error("webhooks are delayed", error=str(error))
                wait_s = _STORE_FAILED_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), wait_s)

    async def _wait_s(self) -> float | None:
        """Seconds until the next one is due; calls under way report by themselves."""
        at = await self._store.jobs.next_webhook()
        now = time.time()
        # What is due and under way is still due in the store until its call has an end.
        return None if at is None or (at <= now and self._calls) else max(at - now, 0.0)

    def _begin(self, job: StoredJob) -> None:
        if job.id in self._calls:
            return
        task = asyncio.get_running_loop().create_task(self._try(job))
        self._calls[job.id] = task

        def ended(_: asyncio.Task[None]) -> None:
            del self._calls[job.id]
            self._news.set()

        task.add_done_callback(ended)

    async def _try(self, job: StoredJob) -> None:
        async with self._turn:
            failure, final = await self._call(job)
        tries = job.webhook_tries + 1
        again_at = None
        if not failure:
            log.info("webhook delivered", job=job.id)
        elif final or tries == len(TRIES_AFTER_S):
            log.warning("webhook given up", job=job.id, error=failure, tries=tries)
        else:
            again_at = time.time() + TRIES_AFTER_S[tries]
            log.info("webhook failed", job=job.id, error=failure, again_in_s=TRIES_AFTER_S[tries])
        try:
            await self._store.jobs.webhook_tried(job.id, again_at=again_at)
        except StoreError as error:
            log.error("a webhook's state is not kept", job=job.id, error=str(error))
            await asyncio.sleep(_STORE_FAILED_S)  # or it would be called again at once, and for ever

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
