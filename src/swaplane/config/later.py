"""Keys of llama-swap that are accepted and not acted on yet.

Decides which of them are known (also the keys inside them) and what a reader is told about each. A file that
would be served unsafely or wrongly without them is refused by `load`, not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from swaplane.config.problems import Path, Problems

#: The keys of a mapping and what each holds; "*" stands for any key, None for any value.
Shape = Mapping[str, "Shape | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """One key that is not acted on yet."""

    effect: str = ""  #: what happens instead; empty when nobody would notice
    shape: Shape | None = None  #: the keys known inside it


_FILTERS: Shape = {"stripParams": None, "strip_params": None, "setParams": None, "setParamsByID": None}
_TIMEOUTS: Shape = dict.fromkeys(
    ("connect", "keepalive", "responseHeader", "tlsHandshake", "expectContinue", "idleConn")
)

TOP_LEVEL: Mapping[str, Later] = {
    "captureBuffer": Later(effect="requests and responses are not captured"),
    "hooks": Later(effect="no model is loaded at start", shape={"on_startup": {"preload": None}}),
    "logRequests": Later(),
    "logTimeFormat": Later(effect="log lines keep their own time format"),
    "logToStdout": Later(effect="the gateway's own log lines go to the terminal, those of the models do not"),
    "matrix": Later(),
    "metricsMaxInMemory": Later(effect="the number of kept requests is fixed"),
    "peers": Later(
        effect="the models of peers are unknown",
        shape={"*": {"proxy": None, "models": None, "apiKey": None, "filters": _FILTERS, "timeouts": _TIMEOUTS}},
    ),
    "performance": Later(effect="no performance samples are kept", shape={"disabled": None, "every": None}),
    "profiles": Later(effect="no profile can be chosen", shape={"*": {"description": None, "pins": None}}),
    "selectors": Later(
        effect="their names are unknown models",
        shape={
            "*": dict.fromkeys(("strategy", "targets", "settings", "name", "description", "unlisted", "metadata")),
        },
    ),
    "store": Later(effect="nothing is stored in that file", shape={"path": None}),
    "ui": Later(effect="it changes nothing", shape={"activity": {"session_id": None}}),
}

MODEL: Mapping[str, Later] = {
    "capabilities": Later(
        effect="they are not shown", shape=dict.fromkeys(("in", "out", "tools", "reranker", "context"))
    ),
    "compat": Later(effect="websockets take a place like any job", shape={"ignoreWebsockets": None}),
    "filters": Later(effect="request bodies pass unchanged", shape=_FILTERS),
    "timeouts": Later(effect="the gateway's own timeouts hold", shape=_TIMEOUTS),
}

ROUTING: Mapping[str, Later] = {
    "scheduler": Later(
        effect="models have no priority of their own, requests have",
        shape={"use": None, "settings": {"fifo": {"priority": None}}},
    ),
}

ROUTER_SETTINGS: Mapping[str, Later] = {"matrix": Later()}


def given(section: object, known: Mapping[str, Later], path: Path, problems: Problems) -> Iterator[str]:
    """The keys of `section` that say something and are not acted on; unknown keys inside them become problems."""
    if not isinstance(section, dict):
        return
    for key, later in known.items():
        if section.get(key):
            _check(section[key], later.shape, (*path, key), problems)
            yield key


def _check(value: object, shape: Shape | None, path: Path, problems: Problems) -> None:
    if shape is None or not isinstance(value, dict):
        return
    for key, inner in value.items():
        if key in shape or "*" in shape:
            _check(inner, shape[key] if key in shape else shape["*"], (*path, key), problems)
        else:
            problems.add((*path, key), f"unknown key `{key}`", at_key=True, near=(key, shape))
