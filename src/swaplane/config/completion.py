"""A model's `completion` as the gateway asks it.

Decides whether what is written describes a server, and words what is wrong with it. What the presets know and how
answers are read is in the package `completion`. Called by `models`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from swaplane.completion.paths import PLACEHOLDER, Route
from swaplane.completion.polled import Polled
from swaplane.completion.presets import PRESETS
from swaplane.completion.rule import Completion
from swaplane.config.fields import shown
from swaplane.config.problems import Path, Problems
from swaplane.config.schema import CompletionEntry
from swaplane.config.validation import validated

RESPONSE = "response"
_WORDS = (RESPONSE, *PRESETS)
_LISTED = "`response`, `openai-videos`, `comfyui` or a mapping"
_METHODS = ("POST", "PUT", "PATCH", "GET", "DELETE")
_NEEDED = ("submit", "id", "poll", "done", "failed")
_TIMES = ("deadline", "patience")
_ROUTE = re.compile(r"(?:([A-Za-z]+)\s+)?([!\"$-~]+)")
_BRACES = re.compile(r"[{}]")
_PLACE = re.compile(r"[^.\s]+(\.[^.\s]+)*")


def completion_of(written: object, path: Path, problems: Problems) -> Completion | None:
    """The completion written at `path`; None for `response`, and when something is wrong (a problem says what)."""
    if isinstance(written, str):
        return _preset(written, CompletionEntry(), path, problems)
    if not isinstance(written, dict):
        problems.add(path, f"must be {_LISTED}, not {shown(written)}")
        return None
    entry = validated(CompletionEntry, written, path, problems)
    given = {key for key, value in written.items() if value is not None}
    if "preset" in given:
        alone = [RESPONSE] if entry.preset == RESPONSE else []
        for key in sorted(given & (CompletionEntry.known_keys().keys() - {"preset", *([] if alone else _TIMES)})):
            sentence = f"`{key}` means nothing beside the preset `{entry.preset}`; remove one of them"
            problems.add((*path, key), sentence, at_key=True)
        return _preset(entry.preset, entry, (*path, "preset"), problems)
    missing = [f"`{key}`" for key in _NEEDED if key not in given]
    if missing:
        sentence = "a server of one's own is described by `submit`, `id`, `poll`, `done` and `failed`"
        problems.add(path, f"{sentence}: {_joined(missing)} missing; or choose a `preset`", at_key=True)
    return None if problems.within(path) else _Reader(entry, written, path, problems).completion()


def _preset(name: str, entry: CompletionEntry, path: Path, problems: Problems) -> Completion | None:
    if name in PRESETS:
        return PRESETS[name](entry.deadline, entry.patience)
    if name != RESPONSE:
        problems.add(path, f'unknown completion "{name}" (valid: {", ".join(_WORDS)})', near=(name, _WORDS))
    return None


def _joined(words: list[str]) -> str:
    return f"{words[0]} is" if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]} are"


class _Reader:
    """Reads the description of a server of one's own, whose keys have the right types."""

    def __init__(self, entry: CompletionEntry, written: Mapping[str, object], path: Path, problems: Problems) -> None:
        self._entry = entry
        self._written = written
        self._path = path
        self._problems = problems

    def completion(self) -> Completion | None:
        """What is described; None when something is wrong."""
        entry = self._entry
        submit = [self._submit(text, self._where("submit", index)) for index, text in enumerate(entry.submit)]
        poll = self._read("poll", entry.poll)
        result = self._read("result", entry.result) if entry.result else None
        cancel = self._cancel(submit) if entry.cancel else None
        for key, place in (("id", entry.id), ("status", entry.status), ("progress", entry.progress or "none")):
            if not _PLACE.fullmatch(place):
                sentence = f'must be names joined by dots, such as "data.task_id", not "{place}"'
                self._problems.add((*self._path, key), sentence)
        self._check_words()
        if self._problems.within(self._path) or poll is None:
            return None
        return Polled(
            name="custom",
            submit=tuple(route for route in submit if route is not None),
            id_at=entry.id,
            poll=poll,
            status_at=entry.status,
            done=tuple(entry.done),
            failed=tuple(entry.failed),
            progress_at=entry.progress or None,
            cancel=cancel,
            result=result,
            deadline_s=entry.deadline,
            patience_s=entry.patience,
        )

    def _submit(self, text: str, where: Path) -> Route | None:
        route = self._route(text, where, "POST /v1/tasks")
        if route is not None and "?" in route.target:
            self._problems.add(where, f'a submit is known by its path alone: leave out the query of "{text}"')
        return route

    def _cancel(self, submit: Sequence[Route | None]) -> Route | None:
        where = (*self._path, "cancel")
        route = self._route(self._entry.cancel, where, "DELETE /v1/tasks/{id}")
        if route is None or not self._names_the_job(route.target, where):
            return None
        if route.method == "GET" or route in submit:
            why = "only reads" if route.method == "GET" else "stands in `submit` too"
            self._problems.add(where, f'"{self._entry.cancel}" {why}: it cannot be what stops a job')
        return route

    def _read(self, key: str, text: str) -> Route | None:
        """The route of a path that is asked with GET."""
        where = (*self._path, key)
        route = self._route(text, where, f"/v1/tasks/{{id}}/{'status' if key == 'poll' else key}", ("GET",))
        return route if route is not None and self._names_the_job(route.target, where) else None

    def _route(self, text: str, where: Path, example: str, methods: Sequence[str] = _METHODS) -> Route | None:
        found = _ROUTE.fullmatch(text)
        method, target = (found[1] or methods[0], found[2]) if found else ("", "")
        if not target.startswith("/"):
            self._problems.add(where, f'must be a path that begins with `/`, such as `{example}`, not "{text}"')
        elif method.upper() not in methods:
            sentence = f'unknown method "{method}" (valid: {", ".join(methods)})'
            self._problems.add(where, sentence, near=(method, methods))
        elif _BRACES.search(target.replace(PLACEHOLDER, "")):
            self._problems.add(where, f'`{PLACEHOLDER}` is the only placeholder there is, "{text}" has another')
        elif target.count(PLACEHOLDER) > 1:
            self._problems.add(where, f'"{text}" has `{PLACEHOLDER}` more than once')
        else:
            return Route(method.upper(), target)
        return None

    def _names_the_job(self, target: str, where: Path) -> bool:
        if PLACEHOLDER in target:
            return True
        self._problems.add(where, f'must contain `{PLACEHOLDER}` where the job\'s id goes, "{target}" does not')
        return False

    def _check_words(self) -> None:
        for key in ("submit", "done", "failed"):
            words: list[str] = getattr(self._entry, key)
            if not words:
                self._problems.add((*self._path, key), "at least one is needed")
        for index, word in enumerate(self._entry.failed):
            if word in self._entry.done:
                sentence = f"`{word}` stands in `done` too: a job that ended so is either done or failed"
                self._problems.add(self._where("failed", index), sentence)

    def _where(self, key: str, index: int) -> Path:
        path = (*self._path, key)
        return (*path, index) if isinstance(self._written[key], list) else path
