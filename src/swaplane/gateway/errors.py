"""Error answers of the gateway itself, and the errors that refuse a request before it becomes a job.

Decides how an error looks on the wire: the envelope, and JSON, text or HTML as the `Accept` header wants
it. Does not log, count or send, and does not know why a request failed. Used by everything in the gateway
that answers without a model server.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import ClassVar

from swaplane.config.problems import nearest

RawHeaders = list[tuple[bytes, bytes]]

#: status -> (type, code) of the envelope
_KINDS = {
    400: ("invalid_request_error", "bad_request"),
    401: ("authentication_error", "unauthorized"),
    403: ("authentication_error", "forbidden"),
    404: ("invalid_request_error", "not_found"),
    409: ("invalid_request_error", "conflict"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    502: ("server_error", "bad_gateway"),
    503: ("server_error", "service_unavailable"),
    504: ("server_error", "gateway_timeout"),
}
_OTHER_4XX = ("invalid_request_error", "invalid_request")
_OTHER = ("server_error", "internal_error")

# A message travels inside pages and scripts: these characters are escaped even where JSON allows them.
_JSON_ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})
_HTML_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})

_SHOWN_CHARS = 100  # of a name that a client sent


def error_response(
    status: int,
    message: str,
    *,
    accept: bytes = b"",
    code: str | None = None,
    extra: Sequence[tuple[bytes, bytes]] = (),
) -> tuple[RawHeaders, bytes]:
    """Headers (Content-Type, Content-Length, then `extra`) and body of an error answer.

    `accept` is the request's Accept header: plain text if it names `text/plain`, else HTML if it names
    `text/html`, else JSON. `code` replaces the status's own code in the JSON envelope.
    """
    if b"text/plain" in accept:
        content_type, text = b"text/plain", f"llama-swap: {message}"
    elif b"text/html" in accept:
        escaped = message.translate(_HTML_ESCAPES)
        content_type, text = b"text/html", f"<html><body><h1>llama-swap</h1><p>{escaped}</p></body></html>"
    else:
        content_type, text = b"application/json", error_json(status, message, code=code)
    body = text.encode("utf-8", "replace")
    return [(b"Content-Type", content_type), (b"Content-Length", b"%d" % len(body)), *extra], body


def error_json(status: int, message: str, *, code: str | None = None) -> str:
    """The JSON envelope as text without a newline, fit for a body or for the data of one SSE event."""
    kind, default_code = _KINDS.get(status) or (_OTHER_4XX if 400 <= status < 500 else _OTHER)
    error = {"message": message, "type": kind, "param": None, "code": code or default_code}
    return go_json({"src": "llama-swap", "error": error})


def go_json(value: object) -> str:
    """JSON as Go writes it, in one line. What YAML knows and JSON does not, such as a date, becomes its text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str).translate(_JSON_ESCAPES)


def not_stored(error: Exception) -> str:
    """The sentence for a disk that does not do what it has to."""
    return f"what is kept on disk could not be read or written: {error}"


class RequestRefused(Exception):  # noqa: N818 (it is the client's fault or the machine's, not an error of ours)
    """A request that does not become a job; each subclass knows its HTTP status and its code."""

    status: ClassVar[int] = 400
    code: ClassVar[str | None] = None  #: in the JSON envelope; None: the status's own
    extra: ClassVar[Sequence[tuple[bytes, bytes]]] = ()  #: headers of the answer beside the usual ones

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message  #: one sentence for the client

    def response(self, accept: bytes = b"") -> tuple[RawHeaders, bytes]:
        """Headers and body that tell the client."""
        return error_response(self.status, self.message, accept=accept, code=self.code, extra=self.extra)


class Unauthorized(RequestRefused):
    """The request carries no key that the file knows. Browsers ask their user for one then."""

    status = 401
    extra = ((b"WWW-Authenticate", b'Basic realm="llama-swap"'),)

    def __init__(self) -> None:
        super().__init__("unauthorized: invalid or missing API key")


class Forbidden(RequestRefused):
    """The key is known and does not give this right."""

    status = 403


class ModelNotAllowed(Forbidden):
    """The key is for other models. `asked` is the name that the request gives, perhaps none."""

    def __init__(self, asked: str, key_name: str) -> None:
        which = f"the model `{_shortened(asked)}`" if asked else "this model"
        super().__init__(f"the key `{key_name}` may not use {which}: its `models` do not name it")


class NoModel(RequestRefused):
    """The request does not say which model it is for."""

    status = 404

    def __init__(self, detail: str = "") -> None:
        super().__init__("no model id could be identified" + (f"; {detail}" if detail else ""))


class UnknownModel(RequestRefused):
    """The request is for a model that is not configured; the nearest names are told."""

    status = 404

    def __init__(self, name: str, known: Iterable[str]) -> None:
        message = f"no router for requested model `{_shortened(name)}`"
        # Long names are no typing slips, and comparing them with every known name takes long.
        near = nearest(name, known) if len(name) <= _SHOWN_CHARS else []
        if near:
            message += "; did you mean " + " or ".join(f"`{other}`" for other in near) + "?"
        super().__init__(message)
        self.name = name  #: as the client sent it


def _shortened(name: str) -> str:
    return name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "..."


class ModelNotLoaded(RequestRefused):
    """A page's asset, or news of a job, was asked of a model that is not resident; neither loads one."""

    status = 409

    def __init__(self, model: str, why: str = "path matches upstream.ignorePaths") -> None:
        super().__init__(f"model {model} is not loaded; {why}")


class DuplicateModel(RequestRefused):
    """The request names its model twice: two readers would understand two different requests."""

    code = "duplicate_model"


class ModelNameTooLong(RequestRefused):
    """The value given as the model cannot be a name."""


class NotJson(RequestRefused):
    """The body is declared to be JSON, is not, and no model can be found in it."""

    code = "not_json"


class NotStored(RequestRefused):
    """The disk did not take what has to be kept."""

    status = 507
    code = "insufficient_storage"


class BodyNotStored(NotStored):
    """The body does not fit into memory and could not be written to disk."""
