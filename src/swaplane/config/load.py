"""Reads the configuration file: text in, `Settings` out, or every problem of it at once.

Decides the order of the steps (environment, YAML, macros, ports, types, names that refer to one another) and
what the top level comes to. It must not start anything or touch the network. Called by `cli` and, for a
reload, by `runtime`.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType

from swaplane.config import later, macros
from swaplane.config.document import env_names, read
from swaplane.config.groups import check_addresses, check_lanes, groups_of
from swaplane.config.jobs import jobs_of
from swaplane.config.keys import keys_of
from swaplane.config.limits import limits_of
from swaplane.config.macros import Declared
from swaplane.config.models import ModelReader
from swaplane.config.problems import ConfigError, Path, Problems, dotted
from swaplane.config.scheduling import lanes_of, rules_of
from swaplane.config.schema import DEFAULT_IGNORE_PATHS, PRIVATE, File, GroupEntry, ModelEntry
from swaplane.config.secret_env import secret_names
from swaplane.config.settings import Settings
from swaplane.config.validation import validated

__all__ = ["ConfigError", "load", "parse"]

_SHORTEST_HEALTH_CHECK_S = 15.0
_LOG_LEVELS = ("debug", "info", "warn", "error")
#: Top-level keys that begin so are the reader's own, usually a place for anchors.
_OWN_PREFIX = "x-"
_ROUTERS = ("group", "matrix")
_ROUTER: Path = ("routing", "router")


def load(path: str | pathlib.Path, environ: Mapping[str, str], *, previous: Settings | None = None) -> Settings:
    """The settings of this file. Raises ConfigError, also when the file cannot be read.

    At a reload, `previous` are the settings in force: models keep the ports they were given.
    """
    try:
        data = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise ConfigError([f"{path}: the file cannot be read: {error.strerror}"]) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise ConfigError([f"{path}:{line}:{column}: the file is not UTF-8 text"]) from error
    return parse(text, path=str(path), environ=environ, previous=previous)


def parse(text: str, *, path: str, environ: Mapping[str, str], previous: Settings | None = None) -> Settings:
    """The settings of this text; `path` names it in messages, `previous` is as in `load`. Raises ConfigError."""
    tree, places = read(text, file=path, environ=environ, private=PRIVATE)
    problems = Problems(path, places, PRIVATE)
    warnings: list[str] = []
    shared = _shared_macros(tree, problems)
    file = validated(File, _expanded_top(tree, shared, problems), (), problems)
    _refuse_what_would_mislead(tree, file, problems)
    _tell_what_is_not_honoured(tree, problems, warnings)
    if file.health_check_timeout < _SHORTEST_HEALTH_CHECK_S:
        file = _with_longer_health_check(file, warnings)

    rules = rules_of(file.scheduling, problems, warnings)
    lanes = lanes_of(file.scheduling, rules, problems)
    kept = previous.ports if previous is not None and previous.start_port == file.start_port else {}
    reader = ModelReader(file, shared, lanes, problems, kept)
    read_entries = ((model_id, reader.entry(model_id, file.models[model_id])) for model_id in sorted(file.models))
    entries = {model_id: entry for model_id, entry in read_entries if entry is not None}
    resolved = ((model_id, reader.settings(model_id, entry)) for model_id, entry in entries.items())
    models = {model_id: model for model_id, model in resolved if model is not None}
    if not file.models:
        warnings.append("models: there is none in this file")

    owners = _owners(entries, problems, warnings)
    written, where = _groups_written(file)
    groups = groups_of(written, where, ids=file.models, owners=owners, problems=problems, warnings=warnings)
    check_lanes(groups, where, models, problems)
    check_addresses(models, groups, problems)
    ignore_paths = _ignore_paths(file, problems)
    log_level = _log_level(file, warnings)
    jobs = jobs_of(file.jobs, problems)
    limits = limits_of(file.scheduling, rules, problems)
    ring = keys_of(
        file.api_keys, file.keys, rules=rules, ids=file.models, owners=owners, problems=problems, warnings=warnings
    )
    warnings.extend(
        f"{section}: nothing is written there: whoever reaches the gateway may do everything"
        for section in PRIVATE
        if section in tree and tree[section] is None and not ring.keys
    )
    problems.raise_any()
    return Settings(
        path=path,
        models=MappingProxyType(models),
        groups=groups,
        rules=rules,
        lanes=lanes,
        log_level=log_level,
        start_port=file.start_port,
        ports=MappingProxyType(reader.ports),
        include_aliases_in_list=file.include_aliases_in_list,
        ignore_paths=ignore_paths,
        jobs=jobs,
        keys=ring.keys,
        secret_env=secret_names(
            environ, used=env_names(text), keys=ring.texts, digests=frozenset(key.digest for key in ring.keys)
        ),
        limits=dataclasses.replace(limits, keys=ring.waiting, running_of_keys=ring.running),
        warnings=tuple(warnings),
    )


def _shared_macros(tree: Mapping[str, object], problems: Problems) -> Declared:
    block = tree.get("macros")
    return macros.declare(block, ("macros",), problems) if isinstance(block, dict) else Declared()


def _expanded_top(tree: Mapping[str, object], shared: Declared, problems: Problems) -> dict[str, object]:
    """The top level with macros put in everywhere but in `models`, whose macros come later, one by one."""
    top: dict[str, object] = {}
    for key, value in tree.items():
        if key in {"models", "macros"}:
            top[key] = value
        elif not key.startswith(_OWN_PREFIX):
            top[key] = macros.expand(value, shared.macros)
            for path, name in macros.left_over(top[key], (key,)):
                # What looks like a macro may be a part of a secret.
                sentence = "this holds a macro that is unknown" if key in PRIVATE else f"unknown macro '${{{name}}}'"
                macros.refuse(name, path, sentence, known=shared.macros, broken=shared.broken, problems=problems)
    return top


def _refuse_what_would_mislead(tree: Mapping[str, object], file: File, problems: Problems) -> None:
    """Refuse keys that cannot be left out without making the gateway unsafe or the residency wrong."""
    matrix = "is not supported yet: models would be loaded together that must not be"
    router = file.routing.router
    if tree.get("matrix"):
        problems.add(("matrix",), f"the matrix router {matrix}", at_key=True)
    if router is None:
        return
    use = router.use
    if use == "matrix":
        problems.add((*_ROUTER, "use"), f"the matrix router {matrix}")
    elif use not in _ROUTERS:
        problems.add((*_ROUTER, "use"), f'unknown router "{use}" (valid: group, matrix)', near=(use, _ROUTERS))
    if tree.get("groups"):
        sentence = "config uses both the legacy top-level 'matrix'/'groups' keys and the new 'routing.router' block"
        problems.add(("groups",), f"{sentence}; keep one of them", at_key=True)


def _tell_what_is_not_honoured(tree: Mapping[str, object], problems: Problems, warnings: list[str]) -> None:
    def tell(section: object, known: Mapping[str, later.Later], path: Path) -> None:
        warnings.extend(
            f"{dotted((*path, key))} is not honoured yet: {known[key].effect}"
            for key in later.given(section, known, path, problems)
            if known[key].effect
        )

    tell(tree, later.TOP_LEVEL, ())
    tell(tree.get("routing"), later.ROUTING, ("routing",))
    models = tree.get("models")
    users: dict[str, list[str]] = defaultdict(list)
    for model_id, entry in models.items() if isinstance(models, dict) else ():
        for key in later.given(entry, later.MODEL, ("models", model_id), problems):
            users[key].append(model_id)
    warnings.extend(
        f"models.{','.join(ids)}.{key} is not honoured yet: {later.MODEL[key].effect}" for key, ids in users.items()
    )


def _with_longer_health_check(file: File, warnings: list[str]) -> File:
    warnings.append(
        f"healthCheckTimeout: {file.health_check_timeout:g} is raised to {_SHORTEST_HEALTH_CHECK_S:g} seconds,"
        " the least for all models; a model's own healthCheckTimeout may be shorter"
    )
    return file.model_copy(update={"health_check_timeout": _SHORTEST_HEALTH_CHECK_S})


def _owners(entries: Mapping[str, ModelEntry], problems: Problems, warnings: list[str]) -> dict[str, str]:
    """The model id of each alias."""
    owners: dict[str, str] = {}
    for model_id, entry in entries.items():
        for index, alias in enumerate(entry.aliases):
            if alias in owners:
                sentence = f"duplicate alias {alias} found in model: {model_id}; {owners[alias]} has it already"
                problems.add(("models", model_id, "aliases", index), sentence)
            elif alias in entries and alias != model_id:
                warnings.append(f"models.{model_id}.aliases: `{alias}` leads to the model of that id, not here")
            owners.setdefault(alias, model_id)
    return owners


def _groups_written(file: File) -> tuple[Mapping[str, GroupEntry], Path]:
    """The groups of whichever spelling is used, and where they stand."""
    router = file.routing.router
    if router is None or file.groups:
        return file.groups, ("groups",)
    return router.settings.groups, (*_ROUTER, "settings", "groups")


def _ignore_paths(file: File, problems: Problems) -> tuple[re.Pattern[str], ...]:
    patterns = []
    for index, pattern in enumerate(file.upstream.ignore_paths or DEFAULT_IGNORE_PATHS):
        try:
            patterns.append(re.compile(pattern))
        except re.error as error:
            problems.add(("upstream", "ignorePaths", index), f'invalid regular expression "{pattern}": {error}')
    return tuple(patterns)


def _log_level(file: File, warnings: list[str]) -> str:
    level = file.log_level.lower()
    if level in _LOG_LEVELS:
        return level
    warnings.append(f"logLevel: `{file.log_level}` is none of {', '.join(_LOG_LEVELS)}; `info` is used")
    return "info"
