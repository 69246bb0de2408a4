"""The input file of a batch: one request a line, checked whole before anything of it runs.

Decides whether a file can be run, line by line, and what each line asks of its model. A line longer than 128 KiB is
judged by its brackets and strings alone; what is wrong inside it is for its model server to judge. Called by
`batches`, in a thread.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from swaplane.config.settings import ModelSettings, Settings
from swaplane.gateway.access import Caller
from swaplane.gateway.background import background_in
from swaplane.gateway.body import Body
from swaplane.gateway.errors import ModelNotAllowed, NoModel, RequestRefused, UnknownModel
from swaplane.gateway.json_scan import scan_object
from swaplane.gateway.model_field import find_model, rename

MOST_LINES = 50_000
MOST_BYTES = 200 << 20  #: of the whole file
MOST_FAULTS = 100  #: of a file; what comes after that many is not looked at

_PARSED_BYTES = 128 << 10  # a longer line is not parsed whole: that would hold up the event loop
_ID_CHARS = 512
_TEXT_BYTES = 6 * _ID_CHARS + 2  # each character may be written as \\uXXXX
_MEMBERS = frozenset({b"custom_id", b"method", b"url", b"body"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One request of a batch."""

    number: int  #: of the line in the file, from 1
    custom_id: str
    model: ModelSettings
    body: bytes  #: as it is sent to the model's server


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFault:
    """Why a file cannot be run."""

    code: str
    message: str
    line: int | None = None  #: None: it is the file as a whole
    param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A file that was looked at: it can be run if and only if it has no faults."""

    lines: list[Line] = field(default_factory=list)
    faults: list[LineFault] = field(default_factory=list)


def check(path: Path, endpoint: str, settings: Settings, caller: Caller, given_up: threading.Event) -> Checked:
    """Look at the whole file, which may name models that `caller` may use; stops early when `given_up` is set.

    Takes seconds for a long file, so it is called in a thread. Raises OSError when the file cannot be read.
    """
    # Models are found by the coroutine that finds them in ordinary requests: a loop of its own runs it here.
    return asyncio.run(_check(path, endpoint, settings, caller, given_up))


async def _check(path: Path, endpoint: str, settings: Settings, caller: Caller, given_up: threading.Event) -> Checked:
    checked = Checked()
    if path.stat().st_size > MOST_BYTES:  # noqa: ASYNC240 - this loop has nothing else to do
        checked.faults.append(LineFault(code="file_too_large", message=f"the file is longer than {MOST_BYTES} bytes"))
        return checked
    ids: set[str] = set()
    for number, raw in _raw_lines(path):
        if given_up.is_set() or len(checked.faults) >= MOST_FAULTS:
            break
        if len(checked.lines) >= MOST_LINES:
            message = f"the file has more than {MOST_LINES} requests"
            checked.faults.append(LineFault(code="too_many_requests", message=message, line=number))
            break
        try:
            line = await _line(number, raw, endpoint, settings, caller)
            if line.custom_id in ids:
                message = f"`{line.custom_id[:100]}` is the custom_id of an earlier line; each line needs its own"
                raise _Faulty("duplicate_custom_id", message, "custom_id")
        except _Faulty as faulty:
            checked.faults.append(LineFault(code=faulty.code, message=faulty.message, line=number, param=faulty.param))
        else:
            ids.add(line.custom_id)
            checked.lines.append(line)
    if not checked.lines and not checked.faults:
        checked.faults.append(LineFault(code="empty_file", message="the file has no requests"))
    return checked


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each line that is not blank, with its number."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            text = raw.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r\n") if number == 1 else raw.strip(b" \t\r\n")
            if text:
                yield number, text


class _Faulty(Exception):  # noqa: N818 (never leaves this module)
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


async def _line(number: int, raw: bytes, endpoint: str, settings: Settings, caller: Caller) -> Line:
    values = _members(number, raw)
    custom_id = _text(values, "custom_id")
    if not 0 < len(custom_id) <= _ID_CHARS:
        raise _Faulty("invalid_custom_id", f"`custom_id` must have 1 to {_ID_CHARS} characters", "custom_id")
    method, url = _text(values, "method"), _text(values, "url")
    if method != "POST":
        raise _Faulty("invalid_method", f"`method` is `{method[:100]}`; it must be `POST`", "method")
    if url != endpoint:
        message = f"`url` is `{url[:100]}`; it must be `{endpoint}`, the batch's endpoint"
        raise _Faulty("invalid_url", message, "url")
    body = _value(values, "body")
    if not body.startswith(b"{"):
        raise _Faulty("invalid_request", "`body` must be an object", "body")
    model, sent = await _request(body, settings, caller)
    return Line(number=number, custom_id=custom_id, model=model, body=sent)


def _members(number: int, raw: bytes) -> dict[str, bytes]:
    try:
        text = raw.decode() if len(raw) <= _PARSED_BYTES else None
    except UnicodeDecodeError as error:
        raise _Faulty("invalid_json_line", f"line {number} is not UTF-8 text") from error
    members, fault = scan_object(raw, _MEMBERS)
    if fault is not None:
        raise _Faulty("invalid_json_line", f"the line is not JSON: {fault.what} at byte {fault.at}")
    if not raw.startswith(b"{"):
        raise _Faulty("invalid_json_line", "the line must be a JSON object")
    if text is not None:
        try:
            # Digits stay text: turning a long number into an int can fail for reasons that are not JSON's.
            json.loads(text, parse_int=str, parse_float=str)
        except ValueError as error:
            raise _Faulty("invalid_json_line", f"the line is not JSON: {error}") from error
        except RecursionError:  # nested more deeply than that module can follow, which is no fault
            pass
    values: dict[str, bytes] = {}
    for member in members:
        key = member.key.decode()
        if key in values:
            raise _Faulty("invalid_json_line", f"`{key}` is given more than once; give it once", key)
        values[key] = raw[member.start : member.end]
    return values


def _value(values: dict[str, bytes], key: str) -> bytes:
    if key not in values:
        raise _Faulty("missing_required_parameter", f"the line has no `{key}`", key)
    return values[key]


def _text(values: dict[str, bytes], key: str) -> str:
    raw = _value(values, key)
    try:
        if raw.startswith(b'"') and len(raw) <= _TEXT_BYTES:
            text = str(json.loads(raw))
            text.encode()  # half of a surrogate pair is no character and could not be stored
            return text
    except ValueError:
        pass
    raise _Faulty(f"invalid_{key}", f"`{key}` must be a string of at most {_ID_CHARS} characters", key)


async def _request(raw: bytes, settings: Settings, caller: Caller) -> tuple[ModelSettings, bytes]:
    """The model that a line's body is for, and the body to send it."""
    with Body(raw, len(raw)) as body:
        try:
            found = await find_model("POST", b"application/json", b"", body)
            model = settings.resolve(found.name)
            if model is None:
                raise UnknownModel(found.name, caller.names_of_models(settings))
            caller.check_model(model, found.name)
            background = background_in(raw)
        except UnknownModel as error:
            raise _Faulty("model_not_found", error.message, "body.model") from error
        except ModelNotAllowed as error:
            raise _Faulty("model_not_allowed", error.message, "body.model") from error
        except NoModel as error:
            raise _Faulty("missing_required_parameter", error.message, "body.model") from error
        except RequestRefused as error:
            raise _Faulty(error.code or "invalid_request", error.message, "body") from error
        if found.stream:
            raise _Faulty("invalid_request", "a line of a batch cannot be streamed; leave out `stream`", "body.stream")
        if background is not None:
            message = "a line of a batch has no background of its own; leave out `background`"
            raise _Faulty("invalid_request", message, "body.background")
        if model.use_model_name:
            rename(found, body, model.use_model_name)
        return model, b"".join([piece async for piece in body.pieces()])
