"""One entry of `models:` as `ModelSettings`.

Decides what a model's macros and port come to, and whether its values make sense by themselves. What several
models must agree on (aliases, groups, addresses) is decided in `load` and `groups`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType

from swaplane.config import command_line, macros
from swaplane.config.completion import completion_of
from swaplane.config.groups import address
from swaplane.config.macros import Declared, Macro
from swaplane.config.problems import Problems
from swaplane.config.schema import File, ModelEntry
from swaplane.config.settings import ModelSettings
from swaplane.config.validation import validated
from swaplane.core.plan import LanePlan

DEFAULT_UNLOAD_S = 10.0
_LAST_PORT = 65535
_PORT = "${PORT}"
#: Fields whose left-over macros are reported as "found in m.cmd"; the others as "model m env: ...".
_FOUND_IN = frozenset({"cmd", "cmdStop", "proxy", "checkEndpoint", "name", "description"})


class ModelReader:
    """Reads the models of one file, in the order of their ids, because ports are given out in that order.

    `kept` are ports that models keep from before a reload: a model that is new in the file must not shift
    those of its neighbours, which would have to be restarted.
    """

    def __init__(
        self,
        file: File,
        shared: Declared,
        lanes: Mapping[str, LanePlan],
        problems: Problems,
        kept: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._file = file
        self._shared = shared
        self._lanes = lanes
        self._problems = problems
        self.ports: dict[str, int] = {}  #: given out, by model id
        self._kept = kept
        # Also those of models that are gone: their servers may still be ending.
        taken = frozenset(kept.values())
        self._free = (port for port in itertools.count(file.start_port) if port not in taken)

    def entry(self, model_id: str, raw: object) -> ModelEntry | None:
        """The model's keys with macros and port put in; what is wrong becomes problems and counts as not written.

        None when there is no mapping to read.
        """
        path = ("models", model_id)
        if raw is None:
            raw = {}
        if not isinstance(raw, dict):
            self._problems.add(path, "a model must be a mapping of its settings")
            return None
        block = raw.get("macros")
        own = Declared()
        if isinstance(block, dict):
            own = macros.declare(block, (*path, "macros"), self._problems, owner=f"model {model_id}: ")
        known = macros.scope(model_id, self._shared.macros, own.macros)
        body = {key: macros.expand(value, known) for key, value in _prepared(raw).items()}
        if _PORT in _text(body, "cmd"):
            self.ports[model_id] = self._port(model_id)
            port = Macro(name="PORT", value=self.ports[model_id])
            body = {key: macros.expand(value, [port]) for key, value in body.items()}
        self._refuse_left_over(model_id, body, known, self._shared.broken | own.broken)
        return validated(ModelEntry, {**body, "macros": block}, path, self._problems)

    def _port(self, model_id: str) -> int:
        port = self._kept[model_id] if model_id in self._kept else next(self._free)
        if port > _LAST_PORT:
            path = ("models", model_id)
            self._problems.add(path, f"no port is left for this model, {port} is above {_LAST_PORT}", at_key=True)
        return port

    def _refuse_left_over(
        self, model_id: str, body: Mapping[str, object], known: tuple[Macro, ...], broken: frozenset[str]
    ) -> None:
        path = ("models", model_id)
        uses_port = _PORT in _text(body, "proxy")
        # The command comes first: when it is faulty, nobody knows whether it would have used the port.
        for key in sorted(body, key=lambda key: key != "cmd"):
            if key == "proxy" and uses_port:
                self._refuse_port(model_id, body)
            # What is no text although it must be is reported as that, not for what is inside it.
            value = _text(body, key) if key in _FOUND_IN else body[key]
            for inner, name in macros.left_over(value, (*path, key)):
                if key == "cmdStop" and name == "PID":
                    continue
                field = ".".join(str(part) for part in inner[2:])
                found_in = key in _FOUND_IN or field == "filters.stripParams"
                sentence = f"unknown macro '${{{name}}}'"
                sentence = (
                    f"{sentence} found in {model_id}.{field}" if found_in else f"model {model_id} {key}: {sentence}"
                )
                macros.refuse(name, inner, sentence, known=known, broken=broken, problems=self._problems)

    def _refuse_port(self, model_id: str, body: Mapping[str, object]) -> None:
        path = ("models", model_id, "proxy")
        if self._problems.explained(("models", model_id, "cmd")) or not any(command_line.split(_text(body, "cmd"))[:1]):
            self._problems.explain(path)
            return
        sentence = f"model {model_id}: proxy uses {_PORT} but cmd does not - {_PORT} is only available when used in cmd"
        self._problems.add(path, f"{sentence}; put it there, or give the address the command listens on", at_key=True)

    def settings(self, model_id: str, entry: ModelEntry) -> ModelSettings | None:
        """The resolved model; None when something it cannot do without is wrong (a problem says what)."""
        path = ("models", model_id)
        argv = command_line.split(entry.cmd)
        if not model_id:
            self._problems.add(path, "a model needs a name", at_key=True)
        if not any(argv[:1]):
            sentence = f"model {model_id}: empty command: `cmd` must name the program to run"
            self._problems.add((*path, "cmd"), sentence, at_key=True)
        if entry.ttl < 0 and entry.ttl != -1:
            self._problems.add((*path, "ttl"), f"model {model_id}: invalid TTL value {entry.ttl:g}")
        if entry.lane not in self._lanes:
            sentence = f"model {model_id}: there is no lane `{entry.lane}` under scheduling.lanes"
            self._problems.add((*path, "lane"), sentence, near=(entry.lane, self._lanes))
        for key, command in (("cmd", entry.cmd), ("cmdStop", entry.cmd_stop)):
            if "\0" in command:
                self._problems.add((*path, key), "no program can be given a NUL character")
        for index, assignment in enumerate(entry.env):
            if assignment.find("=") < 1 or "\0" in assignment:
                self._problems.add((*path, "env", index), f'must be NAME=VALUE, not "{assignment}"')
        try:
            address(entry.proxy)
        except ValueError as error:
            self._problems.add((*path, "proxy"), f'invalid proxy URL "{entry.proxy}": {error}')
        completion = completion_of(entry.completion, (*path, "completion"), self._problems)
        if self._problems.within(path):
            return None
        return ModelSettings(
            id=model_id,
            name=entry.name,
            description=entry.description,
            argv=argv,
            cmd=entry.cmd,
            stop_argv=command_line.split(entry.cmd_stop) or None,
            env=tuple(entry.env),
            proxy=entry.proxy.rstrip("/"),
            check_endpoint=_check_endpoint(entry.check_endpoint),
            health_timeout_s=entry.health_check_timeout or self._file.health_check_timeout,
            ttl_s=(self._file.global_ttl if entry.ttl < 0 else entry.ttl) or None,
            unload_timeout_s=entry.unload_timeout or self._file.unload_timeout or DEFAULT_UNLOAD_S,
            aliases=tuple(entry.aliases),
            use_model_name=entry.use_model_name,
            unlisted=entry.unlisted,
            metadata=MappingProxyType({key: _plain(value) for key, value in entry.metadata.items()}),
            lane=entry.lane,
            slots=entry.slots or max(entry.concurrency_limit, 1),
            completion=completion,
            send_loading_state=(
                self._file.send_loading_state if entry.send_loading_state is None else entry.send_loading_state
            ),
        )


def _prepared(raw: Mapping[str, object]) -> dict[str, object]:
    """The entry before macros: no `macros`, no comment lines in commands, the default proxy where none is given.

    A comment line may name macros that do not exist.
    """
    body = {key: value for key, value in raw.items() if key != "macros"}
    for key in ("cmd", "cmdStop"):
        value = body.get(key)
        if isinstance(value, str):
            body[key] = command_line.without_comments(value)
    if body.get("proxy") is None:
        body["proxy"] = ModelEntry.model_fields["proxy"].default
    return body


def _text(body: Mapping[str, object], key: str) -> str:
    value = body.get(key)
    return value if isinstance(value, str) else ""


def _check_endpoint(written: str) -> str:
    path = written.strip()
    return path if path == "none" or path.startswith("/") else f"/{path}"


def _plain(value: object) -> object:
    """Free-form data as plain Python values: numbers forget how they were written."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, float) else value
