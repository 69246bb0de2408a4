"""Answers of the gateway itself: JSON, why a request was refused, or a file on disk.

Decides their bytes and headers only. Called by the endpoints of files, batches and background responses, which
raise a `RequestRefused` where they cannot go on; `refused` answers it. What a model server once answered is sent by
`recorded`, for detached jobs and for jobs whose server is gone.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.responses import FileResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from swaplane.gateway.errors import RawHeaders, RequestRefused, go_json


class Unknown(RequestRefused):
    """There is nothing with this id."""

    status = 404


class NotNow(RequestRefused):
    """What is asked for does not fit to the state of the thing it is asked of; asking again does not help."""

    status = 409


class TooLong(RequestRefused):
    """The request's body is longer than any that makes sense here."""

    status = 413
    code = "request_too_large"


async def short_body(request: Request, limit: int) -> bytes:
    """The body of a request, of at most `limit` bytes. Raises TooLong, and RequestRefused when it breaks off."""
    data = b""
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > limit:
                raise TooLong(f"the request body is longer than {limit} bytes")
    except ClientDisconnect:
        raise RequestRefused("the request broke off") from None  # nobody reads it
    return data


def json_reply(value: Any, *, end: str = "") -> Response:
    """`value` as JSON, and `end` after it."""
    return Response((go_json(value) + end).encode("utf-8", "replace"), media_type="application/json")


def raw_reply(status: int, headers: RawHeaders, body: bytes) -> Response:
    """An answer with these headers and no others."""
    answer = Response(body, status)
    answer.raw_headers = [(name.lower(), value) for name, value in headers]
    return answer


async def refused(request: Request, error: Exception) -> Response:
    """The answer to a request that an endpoint refused with a RequestRefused."""
    assert isinstance(error, RequestRefused)  # noqa: S101 - registered for nothing else
    headers, body = error.response(accept_of(request))
    return raw_reply(error.status, [*headers, *_retry_headers(error)], body)


def accept_of(request: Request) -> bytes:
    """The request's Accept header; empty when there is none."""
    return request.headers.get("accept", "").encode("latin-1")


class FileReply(FileResponse):
    """A file, whole or the part of it that is asked for.

    A Range header of another unit, or that makes no sense, is as good as none (RFC 9110, 14.2).
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        asked = [value for name, value in scope["headers"] if name == b"range"]
        if not (len(asked) == 1 and _makes_sense(asked[0])):
            scope = {**scope, "headers": [header for header in scope["headers"] if header[0] != b"range"]}
        await super().__call__(scope, receive, send)


_RANGE = re.compile(rb"[ \t]*(?:([0-9]{1,18})-([0-9]{0,18})|-[0-9]{1,18})[ \t]*")


def _makes_sense(asked: bytes) -> bool:
    unit, _, ranges = asked.partition(b"=")
    found = [_RANGE.fullmatch(each) for each in ranges.split(b",")]
    return unit.strip().lower() == b"bytes" and all(
        each is not None and (not each[1] or not each[2] or int(each[1]) <= int(each[2])) for each in found
    )


async def recorded(path: Path, status: int, headers: RawHeaders) -> Response | None:
    """What a server answered, its body at `path`, whole or the part that is asked for; None when the file is gone."""
    try:
        stat = await asyncio.to_thread(os.stat, path)
    except FileNotFoundError:
        return None
    answer = FileReply(path, status)
    own = [(name.lower(), value) for name, value in headers if name.lower() != b"accept-ranges"]
    answer.raw_headers[:] = [*own, (b"accept-ranges", b"bytes")]  # in place: `headers` is a view of it
    answer.set_stat_headers(stat)
    answer.stat_result = stat
    return answer


def _retry_headers(error: RequestRefused) -> RawHeaders:
    # The OpenAI client repeats a conflict by itself; this header stops it.
    return [(b"X-Should-Retry", b"false")] if isinstance(error, NotNow) else []
