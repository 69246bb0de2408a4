"""ComfyUI, whose jobs are prompts: asked for in its queue first, then in its history.

The order matters: a prompt moves from the queue to the history in one step, so one that has left the queue is in the
history, or was deleted. Called by the gateway as a `rule.Completion`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import parse_qsl, quote, urlencode

from swaplane.completion.paths import is_plain, normal
from swaplane.completion.rule import (
    DEFAULT_DEADLINE_S,
    DEFAULT_PATIENCE_S,
    Answer,
    Call,
    Concern,
    NamingFields,
    Reach,
    Report,
    Stage,
)
from swaplane.completion.tree import at, for_people, job_id, parsed

_SUBMIT = "/prompt"
_FILE = "/view"
_CONTROLS = frozenset({"/interrupt", "/queue", "/history", "/free"})
_READ_JOB = re.compile(r"/(?:history|jobs)/([^/]+)")
_CANCEL_JOB = re.compile(r"/jobs/([^/]+)/cancel")
_READS = ("GET", "HEAD")
#: Lists of all jobs, and logs and folders that show their prompts and files.
_LISTS = re.compile(r"/(queue|history|jobs|internal|api/assets)(/.*)?", re.DOTALL)
_NAMES = re.compile(r"(/api)?(/v2)?/(userdata|extensions|experiment/models)/")  #: below these are files only
_MARKED = re.compile(r".*\[(input|output|temp)\]\s*", re.DOTALL)  # a file name that says in which folder it is


@dataclass(frozen=True, slots=True, kw_only=True)
class ComfyUi:
    """A ComfyUI server; every path is also known below `/api`."""

    name: ClassVar[str] = "comfyui"
    deadline_s: float = DEFAULT_DEADLINE_S
    patience_s: float = DEFAULT_PATIENCE_S

    def submits(self, method: str, path: str) -> bool:
        """See `Completion.submits`."""
        return method == "POST" and _plain(path) == _SUBMIT

    def is_bystander(self, method: str, path: str) -> bool:
        """See `Completion.is_bystander`: whatever an open page asks for, but not the page itself, and the controls."""
        if method in _READS:
            return normal(path) != "/"
        plain = _plain(path)
        cancels = plain == "/jobs/cancel" or _CANCEL_JOB.fullmatch(plain)
        return method == "POST" and (plain in _CONTROLS or bool(cancels))

    def id_of(self, answer: Answer) -> str | None:
        """See `Completion.id_of`."""
        return job_id(at(parsed(answer.body), "prompt_id")) if answer.status == 200 else None

    def id_in(self, method: str, path: str) -> str | None:
        """See `Completion.id_in`."""
        found = None
        if method in _READS:
            found = _READ_JOB.fullmatch(_plain(path))
        elif method == "POST":
            found = _CANCEL_JOB.fullmatch(_plain(path))
        return found and found[1]

    def is_equivocal(self, path: str) -> bool:
        """See `Completion.is_equivocal`: people name their workflows as they like."""
        return not is_plain(path, names_below=_NAMES)

    def naming_fields(self, method: str, path: str) -> NamingFields:
        """See `Completion.naming_fields`."""
        return NamingFields(chosen=("prompt_id",) if self.submits(method, path) else ())

    def concern(self, method: str, target: str, body: bytes | None) -> Concern:
        """See `Completion.concern`."""
        path, _, query = target.partition("?")
        named = self.id_in(method, path)
        if named is not None:
            return Concern(reach=Reach.NAMED, ids=(named,))
        plain = _plain(path)
        if method in _READS:
            if plain == _FILE:
                return Concern(reach=Reach.NOBODY if _is_input(query) else Reach.RESULT)
            lists = _LISTS.fullmatch(plain) or _LISTS.fullmatch(normal(path))
            return Concern(reach=Reach.EVERYBODY if lists else Reach.NOBODY)
        ids = _ids_in(plain, parsed(body or b""))
        if plain == "/history" and not ids:
            return Concern(reach=Reach.EVERYBODY)
        # An older server does not look at the id in an interrupt: it ends whatever runs.
        return Concern(reach=Reach.NAMED if ids and plain != "/interrupt" else Reach.RUNNING, ids=ids)

    def polls(self, server_id: str) -> tuple[Call, ...]:
        """See `Completion.polls`."""
        return Call(method="GET", path="/queue"), Call(method="GET", path=_history(server_id))

    def read(self, server_id: str, answers: Sequence[Answer]) -> Report | None:
        """See `Completion.read`."""
        for asked, answer in zip(("queue", "history"), answers, strict=False):
            tree = parsed(answer.body) if answer.status == 200 else None
            if not isinstance(tree, dict):
                return Report(stage=Stage.UNCLEAR, detail=f"answered {answer.status} for its {asked}")
            report = _in_queue(tree, server_id) if asked == "queue" else _in_history(tree.get(server_id))
            if report is not None:
                return report
        return None

    def cancels(self, server_id: str) -> tuple[Call, ...]:
        """See `Completion.cancels`: out of the queue first, because it may begin to run between the two."""
        delete, interrupt = json.dumps({"delete": [server_id]}), json.dumps({"prompt_id": server_id})
        return (
            Call(method="POST", path="/queue", body=delete.encode()),
            Call(method="POST", path="/interrupt", body=interrupt.encode()),
        )

    def frees_on_cancel(self, server_id: str) -> bool:
        """See `Completion.frees_on_cancel`."""
        return True

    def kept_under(self, target: str) -> str:
        """See `Completion.kept_under`: ComfyUI's pages add a random number to the query of a file."""
        path, _, query = target.partition("?")
        plain = _plain(path)
        if plain != _FILE:
            return plain
        given = dict(parse_qsl(query, keep_blank_values=True, errors="replace"))
        return _file(given.get("filename", ""), given.get("subfolder", ""), given.get("type", "output"))

    def keeps(self, server_id: str, answers: Sequence[Answer]) -> tuple[str, ...]:
        """See `Completion.keeps`: its entry in the history, and every file that the entry names."""
        history = parsed(answers[-1].body) if answers else None
        entry = history.get(server_id) if isinstance(history, dict) else None
        return _history(server_id), *dict.fromkeys(_files(entry))

    def epitaph(self, server_id: str, last: bytes, why: str) -> bytes | None:
        """See `Completion.epitaph`: an entry in the history."""
        fault = {"prompt_id": server_id, "exception_type": "not_finished", "exception_message": why}
        status = {"status_str": "error", "completed": False, "messages": [["execution_error", fault]]}
        return json.dumps({server_id: {"outputs": {}, "status": status}}).encode()

    def abandons(self, method: str, path: str) -> bool:
        """See `Completion.abandons`."""
        return False


def _plain(path: str) -> str:
    path = normal(path)
    return path.removeprefix("/api") if path.startswith("/api/") else path


def _ids_in(plain: str, fields: object) -> tuple[str, ...]:
    """The prompts that a control's body names; empty when it is about more than those."""
    if not isinstance(fields, dict) or fields.get("clear"):
        return ()
    ids: object = None
    if plain == "/interrupt":
        ids = [fields.get("prompt_id")]
    elif plain in ("/queue", "/history"):
        ids = fields.get("delete")
    if not isinstance(ids, list):
        return ()
    known = tuple(each for each in ids if isinstance(each, str) and each)
    return known if len(known) == len(ids) else ()


def _is_input(query: str) -> bool:
    """Whether a file is one that was uploaded, for whatever the server takes of the query."""
    given = parse_qsl(query, keep_blank_values=True, errors="replace")
    names, kinds = ([value for key, value in given if key == wanted] for wanted in ("filename", "type"))
    return len(names) == 1 and kinds == ["input"] and _MARKED.fullmatch(names[0]) is None


def _history(server_id: str) -> str:
    return f"/history/{quote(server_id, safe='')}"


def _in_queue(queue: dict[str, object], server_id: str) -> Report | None:
    running, pending = queue.get("queue_running"), queue.get("queue_pending")
    if not isinstance(running, list) or not isinstance(pending, list):
        return Report(stage=Stage.UNCLEAR, detail="answered no queue")
    if any(at(item, "1") == server_id for item in running):
        return Report(stage=Stage.RUNNING, detail="running")
    mine = next((item for item in pending if at(item, "1") == server_id), None)
    if mine is None:
        return None
    place = 1 + sum(_number(item) < _number(mine) for item in pending)  # the server lists them as a heap
    return Report(stage=Stage.RUNNING, detail=f"place {place} of {len(pending)} in its queue")


def _number(item: object) -> float:
    number = at(item, "0")
    return number if isinstance(number, int | float) else 0


def _in_history(entry: object) -> Report:
    if entry is None:
        return Report(stage=Stage.GONE, detail="neither in its queue nor in its history")
    status = at(entry, "status")
    if at(status, "status_str") != "error" and at(status, "completed") is not False:
        return Report(stage=Stage.DONE, detail="success")
    messages = at(status, "messages")
    for message in reversed(messages) if isinstance(messages, list) else ():
        event = at(message, "0")
        if event == "execution_interrupted":
            return Report(stage=Stage.FAILED, detail="interrupted")
        if event == "execution_error":
            node, why = (for_people(at(message, f"1.{key}")) for key in ("node_type", "exception_message"))
            return Report(stage=Stage.FAILED, detail=": ".join(part for part in (node, why) if part))
    return Report(stage=Stage.FAILED, detail="error")


def _files(entry: object) -> Iterator[str]:
    """A target for each file that the outputs name, whatever they call its kind."""
    outputs = at(entry, "outputs")
    for node in outputs.values() if isinstance(outputs, dict) else ():
        for items in node.values() if isinstance(node, dict) else ():
            for item in items if isinstance(items, list) else ():
                name = at(item, "filename")
                if isinstance(name, str):
                    yield _file(name, at(item, "subfolder") or "", at(item, "type") or "output")


def _file(name: str, subfolder: object, kind: object) -> str:
    return f"{_FILE}?{urlencode({'filename': name, 'subfolder': subfolder, 'type': kind}, errors='replace')}"
