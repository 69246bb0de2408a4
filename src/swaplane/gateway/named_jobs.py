"""Jobs at a server that the body of a request for another one names: what it goes on from, and the id that it chooses.

Decides whether its sender may name them, on a gateway with keys: a source is one's own or as good as unknown, and an id
that is known as somebody else's cannot be chosen, because the server would give up the job that has it. A body in which
other ids could hide from the gateway than from the server is refused. Called by `passage`, when a request comes and
once more before it is sent: ids become known while it waits.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from python_multipart.multipart import parse_options_header

from swaplane.completion.rule import NamingFields
from swaplane.completion.tree import job_id
from swaplane.gateway.access import Caller
from swaplane.gateway.errors import RawHeaders, RequestRefused
from swaplane.gateway.form_fields import read_multipart
from swaplane.gateway.json_scan import View, scan_object
from swaplane.gateway.remembered import RememberedJobs

if TYPE_CHECKING:
    from swaplane.gateway.passage import Errand

_IN_THREAD = 128 << 10  # bytes; longer bodies are searched in a thread
_LONGEST_VALUE = 4096  # bytes, of what may be an id
_LONGEST_FORM = 1 << 20  # bytes, of an urlencoded one
_UTF8, _PLAIN = (b"utf-8", b"utf8", b"us-ascii"), {b"identity"}
_ID = frozenset({b"id"})
_NO_ID = re.compile(r"[/:\s]")  # a source may be given as an address or as data, too


class UnknownAtServer(RequestRefused):
    """The caller has no such job at this model's server; whether somebody else has is not told."""

    status = HTTPStatus.NOT_FOUND

    def __init__(self, what: str, model: str) -> None:
        super().__init__(f"no {what} of model `{model}` is known: it was never made here, was deleted, or has expired")


class IdTaken(RequestRefused):
    """The id that a request chooses for its job is another job's."""

    status = HTTPStatus.CONFLICT

    def __init__(self, server_id: str, field: str) -> None:
        super().__init__(f"the id `{server_id[:100]}` is taken: leave out `{field}`, or choose another id")


class Ambiguous(RequestRefused):
    """What a request names cannot be told for certain."""


async def check_named(remembered: RememberedJobs, caller: Caller, errand: Errand) -> Sequence[str]:
    """Return if the caller may name the jobs that a request's body names: the ids that it chooses.

    Raises UnknownAtServer, IdTaken and Ambiguous.
    """
    rule, model = errand.model.completion, errand.model.id
    if rule is None or caller.admin:
        return ()
    fields = rule.naming_fields(errand.method.decode("latin-1"), errand.path)
    chosen = []
    for field, server_id in await _ids_in(errand, fields):
        if field in fields.sources:
            await check_own(remembered, caller, model, server_id)
        else:
            chosen.append((field, server_id))
    # Last, and nothing is awaited after it: of two that are sent in the same moment one sees the other.
    for field, server_id in chosen:
        if await remembered.is_only_of_others(server_id, model, caller):
            raise IdTaken(server_id, field)
    return [server_id for _, server_id in chosen]


async def check_own(remembered: RememberedJobs, caller: Caller, model: str, server_id: str) -> None:
    """Return if the caller has such a job at this model's server, running or over. Raises UnknownAtServer."""
    if remembered.live(server_id, model, caller=caller) is not None:
        return
    if await remembered.get(server_id, model, caller=caller) is None:
        raise UnknownAtServer(f"job `{server_id[:100]}`", model)


async def _ids_in(errand: Errand, fields: NamingFields) -> list[tuple[str, str]]:
    """The fields of a request's body that have ids, with those."""
    names = frozenset(name.encode() for name in (*fields.chosen, *fields.sources))
    if not names or not errand.body.length:
        return []
    view = errand.body.view()
    search = asyncio.to_thread(_found_in, errand.headers, view, names) if len(view) > _IN_THREAD else None
    found = await search if search is not None else _found_in(errand.headers, view, names)
    return [(name, each) for name, each in found if name in fields.chosen or not _NO_ID.search(each)]


def _found_in(headers: RawHeaders, view: View, names: frozenset[bytes]) -> list[tuple[str, str]]:
    """The same for the bytes of a body."""
    media_type, boundary = _content_type(headers)
    begin = view[:_LONGEST_VALUE].removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    if begin[:1] == b"{":  # some servers read JSON whatever its type is said to be
        return [(name, each) for name, raw in _members(view, names) if (each := _id_in_json(raw)) is not None]
    if media_type == b"multipart/form-data" and boundary:
        parts = read_multipart(view, boundary, names, longest=_LONGEST_VALUE)
        pairs = [(part.name, part.value) for part in parts]
    elif media_type == b"application/x-www-form-urlencoded" and len(view) <= _LONGEST_FORM:
        pairs = [pair for pair in parse_qsl(view[:], keep_blank_values=True) if pair[0] in names]
    else:
        raise Ambiguous("the body must be a JSON object or a form, so that the ids in it can be read")
    _refuse_repeated([name for name, _ in pairs])
    return [(name.decode(), each) for name, value in pairs if (each := _id_in_text(value)) is not None]


def _content_type(headers: RawHeaders) -> tuple[bytes, bytes]:
    """What a body is said to be, and the boundary of its parts. Raises Ambiguous when it may be something else."""
    types = {value.strip() for name, value in headers if name.lower() == b"content-type"}
    encodings = {value.strip().lower() for name, value in headers if name.lower() == b"content-encoding"}
    media_type, options = parse_options_header(types.pop() if types else b"")
    if types or encodings - _PLAIN or options.get(b"charset", b"utf-8").lower() not in _UTF8:
        raise Ambiguous("the body must be sent as UTF-8, without Content-Encoding and with one Content-Type")
    return media_type, options.get(b"boundary", b"")


def _members(view: View, names: frozenset[bytes]) -> list[tuple[str, bytes]]:
    """Those members of a JSON object, as they are written."""
    members, fault = scan_object(view, names)
    if fault is not None:
        raise Ambiguous(f"the body is not JSON: {fault.what} at byte {fault.at}")
    _refuse_repeated([member.key for member in members])
    return [(member.key.decode(), view[member.start : member.end]) for member in members]


def _refuse_repeated(names: list[bytes]) -> None:
    for name in set(names):
        if names.count(name) > 1:
            raise Ambiguous(f"`{name.decode()}` is given more than once in the body; give it once")


def _id_in_json(raw: bytes) -> str | None:
    """The id in a value: the value itself, or the member `id` of an object."""
    if raw.startswith(b"{"):
        return next((_id_in_json(value) for _, value in _members(raw, _ID)), None)
    try:
        return job_id(json.loads(raw, strict=False)) if len(raw) <= _LONGEST_VALUE else None
    except ValueError:
        return None


def _id_in_text(value: bytes) -> str | None:
    """The id in a form's field, which may hold JSON."""
    return _id_in_json(value) if value.startswith(b"{") else job_id(value.decode("utf-8", "replace"))
