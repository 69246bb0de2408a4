"""Finds the model in a request, and puts another name in its place where the model server knows it by another.

Decides which part of a request counts (query, JSON member, form field) and refuses requests that name their
model twice, because two readers would understand two different requests. Does not know which models exist.
Called by the app once per request, before the request becomes a job.

Where the model is looked for, by method and Content-Type:

1. GET and HEAD: the query.
2. `application/json`: the member `model` of the outermost object.
3. `multipart/form-data`: the form field `model`; and the query.
4. `application/x-www-form-urlencoded`: the form field `model`; and the query.
5. anything else: the query.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal
from urllib.parse import unquote_to_bytes

from python_multipart.multipart import parse_options_header

from swaplane.gateway.body import IN_MEMORY, Body
from swaplane.gateway.errors import DuplicateModel, ModelNameTooLong, NoModel, NotJson
from swaplane.gateway.form_fields import read_multipart
from swaplane.gateway.json_scan import Fault, Member, View, place_of, scan_object

_IN_THREAD = 128 << 10  # bytes; longer bodies are searched in a thread, so that the event loop goes on
_LONGEST_NAME = 1024  # bytes
_LONGEST_FORM = 10 << 20  # bytes of an urlencoded form: what Go's parser takes

_KEYS = frozenset({b"model", b"stream"})
_JSON_SPACE = b" \t\r\n"

Place = Literal["query", "form", "multipart", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelField:
    """Which model a request is for, and where it says so."""

    name: str  #: as the client wrote it, never empty
    stream: bool = False  #: whether the client asked for a streamed answer
    place: Place  #: the part of the request that holds the name
    span: tuple[int, int] | None = None  #: bytes of the body to replace for another name; None: not in reach


async def find_model(method: str, content_type: bytes, query: bytes, body: Body) -> ModelField:
    """The model of a request with this method, Content-Type header, raw query string and body.

    Raises NoModel, DuplicateModel, ModelNameTooLong and NotJson. Values nested in a JSON body are judged by
    their brackets and strings alone: the rest is for its model server to judge.
    """
    if method in ("GET", "HEAD"):
        return _chosen(_in_pairs(query, "query"), [])
    declared = content_type.lower()
    if b"application/json" in declared:
        if body.length > _IN_THREAD:
            return await asyncio.to_thread(_in_json, body.view())
        return _in_json(body.view())
    if body.length > _IN_THREAD:
        return await asyncio.to_thread(_in_form, content_type, query, body.view())
    return _in_form(content_type, query, body.view())


def rename(field: ModelField, body: Body, new_name: str) -> None:
    """Have `body` sent with `new_name` as its model, all other bytes as they came.

    A name in the query or in an urlencoded form stays: those are passed on as they are.
    """
    if field.span is not None:
        new = json.dumps(new_name) if field.place == "json" else new_name
        body.splice(*field.span, new.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What one part of a request says."""

    place: Place
    models: Sequence[tuple[str, tuple[int, int] | None]]  #: each name with its span; at most two
    stream: bool


def _chosen(first: _Found, others: Sequence[_Found], hint: str = "") -> ModelField:
    """The one model that the parts of a request agree on, with the span of the first part that has one."""
    parts = [part for part in (first, *others) if part.models]
    for part in parts:
        _refuse_repeated(part.place, len(part.models) > 1)
    if not parts or not parts[0].models[0][0]:
        raise NoModel(hint)
    name, span = parts[0].models[0]
    if any(part.models[0][0] != name for part in parts):
        raise DuplicateModel("the query parameter `model` and the form field `model` differ; give one of them")
    return ModelField(name=name, stream=any(p.stream for p in (first, *others)), place=parts[0].place, span=span)


def _refuse_repeated(place: Place, repeated: bool) -> None:
    if repeated:
        raise DuplicateModel(f"the {_WORDS[place]} `model` is given more than once; give it once")


_WORDS: dict[Place, str] = {
    "query": "query parameter",
    "form": "form field",
    "multipart": "form field",
    "json": "top-level key",
}


# --- JSON -------------------------------------------------------------------------------------------------------


def _in_json(view: View) -> ModelField:
    members, fault = scan_object(view, _KEYS)
    if fault is not None and not (len(view) <= IN_MEMORY and not view[:].strip(_JSON_SPACE)):
        # Also where the model is named before the fault: its server would refuse it after a load for nothing.
        raise _not_json(view, fault)
    stream = False
    models = []
    for member in members:
        if member.key == b"model":
            models.append(member)
        else:
            stream = stream or _is_true(view, member)
    _refuse_repeated("json", len(models) > 1)
    name = _text_of(view, models[0]) if models else ""
    if not name:
        raise _why_no_model(view, "the value of `model` is not a name" if models else "")
    return ModelField(name=name, stream=stream, place="json", span=(models[0].start, models[0].end))


def _text_of(view: View, member: Member) -> str:
    """A string's text or a number's digits; empty for everything else."""
    if member.end - member.start > 6 * _LONGEST_NAME + 2:  # each byte of a name may be written as \\uXXXX
        raise _too_long()
    raw = view[member.start : member.end]
    if raw[:1] != b'"':
        return raw.decode() if raw[:1] in _NUMBER_STARTS else ""
    if b"\\" not in raw:
        return _short(raw[1:-1].decode("utf-8", "replace"))
    try:
        text = str(json.loads(raw.decode("utf-8", "replace"), strict=False))
    except ValueError:  # an escape that JSON does not have
        return ""
    # Half of a surrogate pair is no character and could not be written anywhere.
    return _short(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


_NUMBER_STARTS = tuple(bytes((byte,)) for byte in b"-0123456789")


def _is_true(view: View, member: Member) -> bool:
    # The spellings that tolerant servers take for true; a long value is none of them.
    return view[member.start : min(member.end, member.start + 8)] in (b"true", b'"true"', b"1")


def _why_no_model(view: View, hint: str) -> NoModel | NotJson:
    if len(view) > IN_MEMORY:
        return NoModel(hint)
    text = view[:]
    if not text.strip(_JSON_SPACE):
        return NoModel("the body is empty")
    fault = _nested_fault(text)
    return NoModel(hint) if fault is None else _not_json(view, fault)


def _not_json(view: View, fault: Fault) -> NotJson:
    return NotJson(f"the request body is not JSON: {fault.what} at {place_of(view, fault.at)}")


def _nested_fault(text: bytes) -> Fault | None:
    """A fault inside a nested value, which the scanner does not look for."""
    try:
        # Digits stay text: turning a long number into an int can fail for reasons that are not JSON's.
        json.loads(text.decode("utf-8-sig"), parse_int=str, parse_float=str)
    except UnicodeDecodeError as error:
        bom = 3 if text.startswith(b"\xef\xbb\xbf") else 0
        return Fault(at=error.start + bom, what="bytes that are not UTF-8")
    except json.JSONDecodeError as error:
        bom = 3 if text.startswith(b"\xef\xbb\xbf") else 0
        return Fault(at=len(error.doc[: error.pos].encode()) + bom, what=error.msg[:1].lower() + error.msg[1:])
    except RecursionError:  # nested more deeply than that module can follow, which is no fault
        return None
    return None


# --- forms and queries ------------------------------------------------------------------------------------------


def _in_form(content_type: bytes, query: bytes, view: View) -> ModelField:
    others = [_in_pairs(query, "query")]
    media_type, options = parse_options_header(content_type)
    if b"multipart/form-data" in content_type.lower():
        boundary = options.get(b"boundary", b"")
        hint = "" if boundary else "the Content-Type header of a multipart form must name its boundary"
        return _chosen(_in_multipart(view, boundary), others, hint)
    if media_type == b"application/x-www-form-urlencoded" and len(view) <= _LONGEST_FORM:
        others.insert(0, _in_pairs(view[:], "form"))
    looks_json = view[:1] == b"{"
    hint = "the body looks like JSON: send it with `Content-Type: application/json`" if looks_json else ""
    return _chosen(others[0], others[1:], hint)


def _in_multipart(view: View, boundary: bytes) -> _Found:
    fields = read_multipart(view, boundary, _KEYS, longest=_LONGEST_NAME)
    named = [each for each in fields if each.name == b"model"]
    models = [(_short(each.value.decode("utf-8", "replace")), each.span) for each in named[:2]]
    is_streamed = any(each.name == b"stream" and each.value == b"true" for each in fields)
    return _Found(place="multipart", models=models, stream=is_streamed)


def _pair(key: str) -> re.Pattern[bytes]:
    """One pair of a query or an urlencoded form with this key, each letter of which may be percent-encoded."""
    letters = "".join(f"(?:{letter}|%{ord(letter):02x}|%{ord(letter):02X})" for letter in key)
    return re.compile(rb"&" + letters.encode() + rb"(?:=([^&]*)|(?=&|\Z))")


_MODEL_PAIR, _STREAM_PAIR = _pair("model"), _pair("stream")


def _in_pairs(pairs: bytes, place: Place) -> _Found:
    if not pairs:
        return _Found(place=place, models=(), stream=False)
    pairs = b"&" + pairs
    models = [(_unquoted(found[1] or b""), None) for found in islice(_MODEL_PAIR.finditer(pairs), 2)]
    return _Found(place=place, models=models, stream=any(found[1] == b"true" for found in _STREAM_PAIR.finditer(pairs)))


def _unquoted(value: bytes) -> str:
    if len(value) > 3 * _LONGEST_NAME:
        raise _too_long()
    return _short(unquote_to_bytes(value.replace(b"+", b" ")).decode("utf-8", "replace"))


def _short(name: str) -> str:
    if len(name) > _LONGEST_NAME or len(name.encode("utf-8", "replace")) > _LONGEST_NAME:
        raise _too_long()
    return name


def _too_long() -> ModelNameTooLong:
    return ModelNameTooLong(f"the value of `model` is longer than the {_LONGEST_NAME} bytes a model's name may have")
