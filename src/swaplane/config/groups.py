"""Groups, and what they allow to run at the same time.

Decides whether the groups of the file are sound and whether two models may share an address. Who must leave for
whom is decided in `core.residency`. Called by `load`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from swaplane.config.problems import Path, Problems
from swaplane.config.schema import GroupEntry
from swaplane.config.settings import ModelSettings
from swaplane.core.residency import DEFAULT_GROUP, Group, Residency

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_PORTS = {"http": 80, "https": 443}


def groups_of(
    entries: Mapping[str, GroupEntry],
    path: Path,
    *,
    ids: Collection[str],
    owners: Mapping[str, str],
    problems: Problems,
    warnings: list[str],
) -> tuple[Group, ...]:
    """The groups of the file. `ids` are all model ids, `owners` the model id of each alias."""
    home: dict[str, str] = {}
    groups = []
    for name, entry in entries.items():
        if name == DEFAULT_GROUP:
            warnings.append(f"groups.{name}: this group is built in and holds the models of no other; yours is ignored")
            continue
        for index, member in enumerate(entry.members):
            fault, offer = _member_fault(member, name, home, ids, owners)
            if fault:
                problems.add((*path, name, "members", index), fault, near=offer)
            else:
                home[member] = name
        members = frozenset(member for member in entry.members if member in ids)
        groups.append(
            Group(
                name=name,
                members=members,
                swap=entry.swap,
                exclusive=entry.exclusive,
                persistent=entry.persistent,
            )
        )
    return tuple(groups)


def _member_fault(
    member: str, group: str, home: Mapping[str, str], ids: Collection[str], owners: Mapping[str, str]
) -> tuple[str, tuple[str, Collection[str]] | None]:
    if member in ids:
        if member not in home:
            return "", None
        if home[member] == group:
            return f"duplicate model member {member} found in group: {group}", None
        return f"model member {member} is used in multiple groups: {home[member]} and {group}", None
    if member in owners:
        return f'"{member}" is an alias: name the model itself, "{owners[member]}"', None
    return f'no model config for "{member}"', (member, ids)


def check_lanes(groups: Sequence[Group], path: Path, models: Mapping[str, ModelSettings], problems: Problems) -> None:
    """A group that swaps must lie in one lane: lanes are separate resources, models of two never displace another."""
    for group in groups:
        lanes: dict[str, str] = {}
        for member in sorted(group.members & models.keys()):
            lanes.setdefault(models[member].lane, member)
        if group.swap and len(lanes) > 1:
            where = " and ".join(f"`{member}` in {lane}" for lane, member in lanes.items())
            sentence = f"the members of a group with `swap: true` must be in one lane, but it has {where}"
            problems.add((*path, group.name), sentence, at_key=True)


def check_addresses(models: Mapping[str, ModelSettings], groups: Sequence[Group], problems: Problems) -> None:
    """Two models that may be resident at the same time must not share an address."""
    residency = Residency(groups)
    at: dict[tuple[str, int], list[ModelSettings]] = defaultdict(list)
    for model in models.values():
        at[address(model.proxy)].append(model)
    for (host, port), one, other in _pairs(at):
        apart = (
            one.lane == other.lane
            and residency.must_leave(one.id, [other.id])
            and residency.must_leave(other.id, [one.id])
        )
        if not apart:
            sentence = (
                f"`{one.id}` and `{other.id}` share the address {host}:{port}, but may be loaded at the same time"
            )
            problems.add(("models", other.id, "proxy"), sentence, at_key=True)


def _pairs(
    at: Mapping[tuple[str, int], Sequence[ModelSettings]],
) -> Iterator[tuple[tuple[str, int], ModelSettings, ModelSettings]]:
    for where, models in at.items():
        for one, other in itertools.combinations(models, 2):
            yield where, one, other


def address(proxy: str) -> tuple[str, int]:
    """Host and port of a proxy URL, all names of this machine being one.

    Raises ValueError, saying what is wrong, for anything but an http or https URL with a host.
    """
    parts = urlsplit(proxy)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("an address such as http://localhost:8080 is needed")
    if parts.query or parts.fragment:
        raise ValueError("an address may have a path, but nothing after `?` or `#`")
    host = "localhost" if parts.hostname in _LOOPBACK else parts.hostname
    port = parts.port if parts.port is not None else _PORTS[parts.scheme]
    if port == 0:
        raise ValueError("port 0 is no address")
    return host, port
