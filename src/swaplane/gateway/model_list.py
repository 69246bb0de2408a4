"""Models as llama-swap's listings show them: `/v1/models` and `/running`.

Reads settings and the dispatcher's phases; changes nothing. Called by `api`, which turns the result into JSON.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from swaplane.config.settings import ModelSettings
from swaplane.gateway.access import Caller
from swaplane.runtime import Runtime

Record = dict[str, Any]


def model_list(runtime: Runtime, caller: Caller, created: int) -> Record:
    """What `/v1/models` answers; `created` (Unix seconds) is the same for all.

    A model counts as loaded from the start of its server until that is gone. Unlisted models, those that the caller
    may not use, and the aliases of both are left out; aliases are listed only where the configuration says so.
    """
    records: list[Record] = []
    for model in runtime.settings.models.values():
        if model.unlisted or not caller.may_use(model.id):
            continue
        own = {"type": "model", **({"aliases": list(model.aliases)} if model.aliases else {})}
        records.append(_record(runtime, model, model.id, created, own))
        if runtime.settings.include_aliases_in_list:
            records += [
                _record(runtime, model, alias, created, {"type": "alias", "modelID": model.id})
                for alias in model.aliases
            ]
    return {"data": sorted(records, key=lambda record: str(record["id"])), "object": "list"}


def _record(runtime: Runtime, model: ModelSettings, listed_id: str, created: int, own: Record) -> Record:
    """One entry. `own` is what the gateway says of the model: it hides metadata of the same name."""
    state = runtime.dispatcher.models.get(model.id)
    record: Record = {"id": listed_id, "object": "model", "created": created, "owned_by": "llama-swap"}
    if name := model.name.strip():
        record["name"] = name
    if description := model.description.strip():
        record["description"] = description
    record["meta"] = {"llamaswap": dict(sorted({**model.metadata, **own}.items()))}
    record["status"] = {"value": "loaded" if state is not None and state.alive else "unloaded"}
    return record


def running_list(runtime: Runtime, caller: Caller) -> Record:
    """What `/running` answers: every model whose server is not stopped and that the caller may use.

    Commands, which may hold secrets, and addresses, which lead around the queue, are for admins.
    """
    return {"running": list(_running(runtime, caller))}


def _running(runtime: Runtime, caller: Caller) -> Iterator[Record]:
    for model_id, state in sorted(runtime.dispatcher.models.items()):
        if not state.alive or not caller.may_use(model_id):
            continue
        model = runtime.settings.models.get(model_id)
        spec = runtime.supervisor.spec(model_id)
        if model is not None:
            cmd, proxy = model.cmd, model.proxy
        else:  # it is no longer configured, but its server still stops
            cmd, proxy = (shlex.join(spec.argv), spec.proxy) if spec is not None else ("", "")
        yield {
            "model": model_id,
            "state": str(state.phase),
            "cmd": cmd if caller.admin else "",
            "proxy": proxy if caller.admin else "",
            "ttl": int(state.plan.ttl_s or 0),
            "name": "" if model is None else model.name,
            "description": "" if model is None else model.description,
        }
