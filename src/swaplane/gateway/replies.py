"""Answers of the API's endpoints that are JSON: a value, or why a request was refused.

Decides their bytes and headers only. Called by the endpoints of files, batches and background responses, which
raise a `RequestRefused` where they cannot go on; `refused` answers it.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from swaplane.gateway.errors import RawHeaders, RequestRefused, go_json


class Unknown(RequestRefused):
    """There is nothing with this id."""

    status = 404


class NotNow(RequestRefused):
    """What is asked for does not fit to the state of the thing it is asked of; asking again does not help."""

    status = 409


def json_reply(value: Any, status: int = 200) -> Response:
    """`value` as JSON."""
    return Response(go_json(value).encode("utf-8", "replace"), status, media_type="application/json")


async def refused(request: Request, error: Exception) -> Response:
    """The answer to a request that an endpoint refused with a RequestRefused."""
    assert isinstance(error, RequestRefused)  # noqa: S101 - registered for nothing else
    headers, body = error.response(request.headers.get("accept", "").encode("latin-1"))
    answer = Response(body, error.status)
    answer.raw_headers = [(name.lower(), value) for name, value in [*headers, *_retry_headers(error)]]
    return answer


def _retry_headers(error: RequestRefused) -> RawHeaders:
    # The OpenAI client repeats a conflict by itself; this header stops it.
    return [(b"X-Should-Retry", b"false")] if isinstance(error, NotNow) else []
