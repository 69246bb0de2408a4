"""The resolved configuration: what the rest of the gateway is told.

Holds the outcome of `load`: macros are put in, ports given out, defaults applied. It decides nothing but how a
name is looked up and which settings need a restart. Immutable: a reload replaces it whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from swaplane.completion.rule import Completion
from swaplane.core.limits import Limits
from swaplane.core.plan import LanePlan, ModelPlan, Plan
from swaplane.core.residency import Group, Residency
from swaplane.core.score import ScoreRules


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelSettings:
    """One local model."""

    id: str
    name: str = ""  #: for people; empty when none was given
    description: str = ""  #: for people; empty when none was given
    argv: tuple[str, ...]  #: the command, never empty
    cmd: str  #: the same as one text, as `/running` shows it
    stop_argv: tuple[str, ...] | None = None  #: run instead of SIGTERM; may hold the literal `${PID}`
    env: tuple[str, ...] = ()  #: "K=V", added to the gateway's own environment; the last of a name counts
    proxy: str  #: where the server answers, without a trailing slash
    check_endpoint: str = "/health"  #: the path that answers 200 when it is ready, or "none"
    health_timeout_s: float = 120.0  #: from the start of the command to ready
    ttl_s: float | None = None  #: idle seconds after which it is unloaded; None: never
    unload_timeout_s: float = 10.0  #: from the first signal to SIGKILL
    aliases: tuple[str, ...] = ()  #: other names that requests may use
    use_model_name: str = ""  #: the model name its server is sent; empty: the one requested
    unlisted: bool = False  #: left out of `/v1/models`
    metadata: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))  #: shown in `/v1/models`
    lane: str = "gpu"  #: name of the lane whose place its jobs take
    slots: int = 1  #: how many of its jobs may run side by side
    completion: Completion | None = None  #: how the end of its jobs is known; None: with their responses
    send_loading_state: bool = False  #: whether a chat that waits and is streamed is told so in its text

    def __repr__(self) -> str:
        return f"<model {self.id} in lane {self.lane} with {self.slots} slots at {self.proxy}>"

    @property
    def fingerprint(self) -> str:
        """Changes if and only if a setting changed that its running server cannot take over."""
        parts = (self.argv, self.env, self.proxy, self.check_endpoint, self.stop_argv, self.lane)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSettings:
    """What is kept of jobs on disk, for how long, and who may be told of their end."""

    path: str | None = None  #: the folder; None: the default one
    keep_s: float = 86400.0  #: how long an ended job's answer is kept
    interrupted: Literal["rerun", "report"] = "rerun"  #: what becomes of a detached job that ran when the gateway died
    webhook_hosts: tuple[str, ...] = ()  #: "host", for any port of it, or "host:port"; in lower case
    webhook_secret: bytes = field(default=b"", repr=False)  #: the key that webhooks are signed with; empty: unsigned
    replay_s: float = 600.0  #: how long the answer to a request with an Idempotency-Key is kept for a retry


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One API key and what its holder may do. The key itself is not kept: its hash is."""

    name: str  #: shown to people; unique
    digest: bytes = field(repr=False)  #: SHA-256 of the key
    member: str | None = None  #: on whose behalf its jobs run; None: the pool of all who name nobody
    tier_bonus: int = 0  #: points, added to a priority that is exactly a band's value
    max_priority: int | None = None  #: a higher one is clamped to this; None: only `priority_limits` hold
    trust_member_header: bool = False  #: whether its requests may say on whose behalf they are
    admin: bool = False  #: whether it may change models and lanes, read logs, and see and end everybody's jobs
    models: frozenset[str] | None = None  #: ids of the models it may use; None: all


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """The whole configuration."""

    path: str  #: of the file, for messages
    models: Mapping[str, ModelSettings]  #: by id, in the order of ids
    groups: tuple[Group, ...]
    rules: ScoreRules
    lanes: Mapping[str, LanePlan]  #: by name; every model's lane is in it
    start_port: int  #: the first of the ports given out as ${PORT}
    ports: Mapping[str, int]  #: given out as ${PORT}, by model id
    log_level: str  #: debug, info, warn or error
    include_aliases_in_list: bool  #: whether `/v1/models` lists aliases too
    ignore_paths: tuple[re.Pattern[str], ...]  #: a match anywhere in `/upstream/<model>/<path>` takes no place
    jobs: JobsSettings = JobsSettings()
    keys: tuple[Key, ...] = ()  #: none: everything is allowed to everybody
    secret_env: frozenset[str] = frozenset()  #: names of our environment's variables that hold keys, or parts of one
    limits: Limits = field(default_factory=Limits)
    warnings: tuple[str, ...]  #: one sentence each: what the file asks for and does not get
    _by_alias: Mapping[str, ModelSettings] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        by_alias = {alias: model for model in self.models.values() for alias in model.aliases}
        object.__setattr__(self, "_by_alias", MappingProxyType(by_alias))

    def __repr__(self) -> str:
        return f"<settings of {self.path}: {len(self.models)} models in {len(self.lanes)} lanes>"

    def resolve(self, name: str) -> ModelSettings | None:
        """The model of this id, else of this alias, exactly as written; None when there is none."""
        return self.models.get(name) or self._by_alias.get(name)

    def listed_names(self) -> list[str]:
        """The ids and aliases of all models that are not unlisted."""
        listed = [model for model in self.models.values() if not model.unlisted]
        return [name for model in listed for name in (model.id, *model.aliases)]

    def is_operator(self, key_name: str) -> bool:
        """Whether the holder of the key of this name may read what tells of commands, addresses and other jobs.

        Without keys everybody may.
        """
        return not self.keys or any(key.admin and key.name == key_name for key in self.keys)

    def plan(self) -> Plan:
        """What the dispatcher needs to know of it."""
        models = {
            model.id: ModelPlan(
                id=model.id, lane=model.lane, slots=model.slots, ttl_s=model.ttl_s, fingerprint=model.fingerprint
            )
            for model in self.models.values()
        }
        return Plan(
            models=models, lanes=self.lanes, residency=Residency(self.groups), rules=self.rules, limits=self.limits
        )
