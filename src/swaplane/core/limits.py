"""How much may wait, how long, and how much of it may run at once: the numbers and what they refuse.

Holds what `scheduling.limits` and the keys of the file allow. It does not count: `queue` does, and `dispatcher`
asks. None stands for no limit everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

DEFAULT_WAITING = 20_000  #: jobs that may wait in all
DEFAULT_WAITING_BYTES = 4 << 30  #: of their bodies, in all

_NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What may wait at the same time."""

    jobs: int | None = None
    bytes: int | None = None  #: of their bodies


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """GPU time that a member may use per hour at or above a band; beyond it its jobs count as the next band's."""

    band: str  #: name; not the lowest
    gpu_s: float  #: seconds per hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What protects the queue and its members from one another."""

    total: Allowance = Allowance(jobs=DEFAULT_WAITING, bytes=DEFAULT_WAITING_BYTES)
    bands: Mapping[str, Allowance] = field(default_factory=lambda: MappingProxyType({}))  #: by the band's name
    member: Allowance = Allowance()  #: for each member
    keys: Mapping[str, Allowance] = field(default_factory=lambda: MappingProxyType({}))  #: by the key's name
    max_wait_s: Mapping[str, float] = field(default_factory=lambda: _NOTHING)  #: by the band's name
    max_running: int | None = None  #: jobs of one member that hold a place at once
    running_of_keys: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))  #: the same, of one key
    budget: Budget | None = None

    @property
    def bound_running(self) -> bool:
        """Whether anybody may have no more than so many jobs running."""
        return self.max_running is not None or bool(self.running_of_keys)
