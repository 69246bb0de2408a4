"""What the dispatcher needs to know of the configuration: models, lanes, residency and the score's rules.

Built by `config`, replaced whole by a `PlanChanged` event. It holds no commands, ports or URLs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from swaplane.core.limits import Limits
from swaplane.core.residency import Residency
from swaplane.core.score import ScoreRules


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """One local model, as the dispatcher sees it."""

    id: str
    lane: str  #: name of the lane whose place its jobs take
    slots: int = 1  #: how many of its jobs may run side by side while it holds a place
    ttl_s: float | None = None  #: idle seconds after which it is unloaded; None: never
    fingerprint: str = ""  #: changes whenever a setting changed that needs a restart of its server


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePlan:
    """A resource of a fixed number of places."""

    name: str
    size: int = 1  #: places; a model with running jobs holds one
    reserve: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Places by band that jobs of lower bands may not take; fewer than `size` in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything the dispatcher decides by."""

    models: Mapping[str, ModelPlan]  #: by model id
    lanes: Mapping[str, LanePlan]  #: by name; every model's lane is in it
    residency: Residency
    rules: ScoreRules
    limits: Limits = field(default_factory=Limits)
