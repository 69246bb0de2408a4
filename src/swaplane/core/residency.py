"""Which models may be resident together: "target, running -> who must leave".

Pure functions of llama-swap's groups. Nothing here starts or stops anything; the dispatcher asks, and it
passes only models of the target's own lane, because lanes are separate resources.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DEFAULT_GROUP = "(default)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A llama-swap group."""

    name: str
    members: frozenset[str]  #: model ids
    swap: bool = True  #: only one member is resident at a time
    exclusive: bool = True  #: loading a member makes other groups' models leave ...
    persistent: bool = False  #: ... except those of persistent groups


class Residency:
    """Who must leave when a model is wanted."""

    def __init__(self, groups: Iterable[Group] = ()) -> None:
        self._default = Group(name=DEFAULT_GROUP, members=frozenset())
        self._group_of = {member: group for group in groups for member in group.members}

    def group_of(self, model: str) -> Group:
        """The model's group; models in no group share the default one (swap, exclusive, not persistent)."""
        return self._group_of.get(model, self._default)

    def must_leave(self, target: str, running: Iterable[str]) -> tuple[str, ...]:
        """The running models that must leave before `target` may serve, in the order given.

        For each running R of group H, with the target T in group G: (1) R is T: stays. (2) H is G: leaves
        when G swaps. (3) H is another group: leaves when G is exclusive and H is not persistent.

        The rule is one-sided, as in llama-swap: a non-exclusive B may join an exclusive T, but the next
        request for T makes B leave again.
        """
        group = self.group_of(target)
        leaving = []
        for model in running:
            other = self.group_of(model)
            if model == target:
                continue
            if (other is group and group.swap) or (other is not group and group.exclusive and not other.persistent):
                leaving.append(model)
        return tuple(leaving)
