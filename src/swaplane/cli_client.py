"""The command line's side of a running gateway's HTTP interface.

Decides how a gateway is addressed and how its refusals and absences are put into one sentence. It prints
nothing. Called by `cli`; imported only inside its commands, because the HTTP library takes a while to load.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import cast
from urllib.parse import quote

import httpx2

from swaplane.wire import MembersJson, QueueJson

#: An answer of the management routes takes milliseconds; a gateway that is silent for longer is stuck.
_TIMEOUT_S = 10.0


class GatewayError(Exception):
    """The gateway cannot be asked, or its answer is no answer; the text is one sentence for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """What became of the wish to cancel one job."""

    job_id: str
    cancelled: bool
    message: str  #: one clause for people


class GatewayClient:
    """A connection to one gateway. Every method raises GatewayError."""

    def __init__(self, url: str, key: str = "") -> None:
        self._keyed = bool(key)
        try:
            parsed = httpx2.URL(url.rstrip("/"))
            self._http = httpx2.Client(base_url=parsed, headers=_credentials(key), trust_env=False, timeout=_TIMEOUT_S)
        except httpx2.InvalidURL:
            # What it says may repeat a password, and so may the address itself.
            raise GatewayError("--url: this is not an address such as http://127.0.0.1:8080") from None
        #: as people are shown it: a password or a key may stand in what is left out
        self.url = str(parsed.copy_with(userinfo=b"", query=None, fragment=None)).rstrip("/")

    def __repr__(self) -> str:
        return f"<GatewayClient {self.url}>"

    def __enter__(self) -> GatewayClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def queue(self) -> QueueJson:
        """What `GET /api/queue` answers."""
        return cast("QueueJson", self._document("/api/queue", holds="lanes"))

    def members(self) -> MembersJson:
        """What `GET /api/members` answers."""
        return cast("MembersJson", self._document("/api/members", holds="members"))

    def cancel(self, job_id: str) -> Cancellation:
        """End one job, whether it waits or runs."""
        response = self._ask("DELETE", f"/api/jobs/{quote(job_id, safe='')}")
        if response.is_success:
            return Cancellation(job_id=job_id, cancelled=True, message="cancelled")
        return Cancellation(job_id=job_id, cancelled=False, message=f"not cancelled: {_message_of(response)}")

    def set_paused(self, lane: str, *, paused: bool) -> None:
        """Let a lane start nothing new, or let it take jobs again."""
        response = self._ask("POST", f"/api/lanes/{quote(lane, safe='')}/{'pause' if paused else 'resume'}")
        if not response.is_success:
            raise GatewayError(f"lane {lane}: not {'paused' if paused else 'resumed'}: {_message_of(response)}")

    def _document(self, path: str, *, holds: str) -> object:
        """The JSON object that a GET answers, with a list in its field `holds`."""
        response = self._ask("GET", path)
        if response.status_code != 200:
            raise GatewayError(
                f"{self.url} answers GET {path} with status {response.status_code}: {_message_of(response)}"
            )
        document = _json_of(response)
        if not isinstance(document, dict) or not isinstance(document.get(holds), list):
            raise GatewayError(f"{self.url} does not answer GET {path} as a Swaplane gateway does")
        return document

    def _ask(self, method: str, path: str) -> httpx2.Response:
        try:
            response = self._http.request(method, path)
        except httpx2.UnsupportedProtocol:
            raise GatewayError(f"--url: `{self.url}` is not an address such as http://127.0.0.1:8080") from None
        except httpx2.TransportError as error:
            reason = str(error) or type(error).__name__
            raise GatewayError(
                f"No gateway can be reached at {self.url} ({reason}): start one with `swaplane serve`, or give its "
                "address with --url or SWAPLANE_URL."
            ) from None
        if response.status_code == 401:
            raise GatewayError(
                f"{self.url} does not know this API key: give another with SWAPLANE_KEY or --key, or have its operator "
                "add a new one (`swaplane key new`)."
                if self._keyed
                else f"{self.url} asks for an API key: give it with SWAPLANE_KEY or --key."
            )
        if response.status_code == 403:
            raise GatewayError(f"{self.url} does not allow this: {_message_of(response)}.")
        return response


def _credentials(key: str) -> dict[bytes, bytes]:
    """The header that carries an API key. Raises GatewayError for what is none; the key is not in its text."""
    data = key.strip().encode("utf-8", "surrogateescape")
    if any(byte <= 0x20 or byte == 0x7F for byte in data):
        raise GatewayError("--key or SWAPLANE_KEY: an API key holds no spaces and no control characters")
    return {b"Authorization": b"Bearer " + data} if data else {}


def _json_of(response: httpx2.Response) -> object:
    try:
        return response.json()
    except ValueError:
        return None


def _message_of(response: httpx2.Response) -> str:
    """The sentence in the gateway's error envelope, or the status in words."""
    document = _json_of(response)
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or response.reason_phrase or response.status_code)
