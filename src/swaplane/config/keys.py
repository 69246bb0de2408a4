"""`apiKeys:` and `keys:` as the keys that the gateway takes, each with what its holder may do.

Decides whether they make sense: names, members, tiers, priorities, models. Settings are told hashes, never a key, and
no sentence of it repeats what is written where a key may stand. What a right means for a request is decided in
`gateway.access`. Called by `load`; `swaplane key new` asks it for the rule of names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from swaplane.config.fields import as_text, shown
from swaplane.config.limits import allowance
from swaplane.config.problems import Path, Problems, dotted
from swaplane.config.scheduling import is_band
from swaplane.config.schema import KeyEntry
from swaplane.config.settings import Key
from swaplane.config.validation import validated
from swaplane.core.limits import Allowance
from swaplane.core.score import ScoreRules
from swaplane.wire import ANONYMOUS

_HASH_PREFIX = "sha256:"
_HASH = re.compile(r"[0-9A-Fa-f]{64}")
_HASH_OF_NOTHING = hashlib.sha256().digest()
_EMPTY = "empty api key found in {section}"
_ENV_REFERENCE = "${env."
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The keys of a file, and what the jobs of each may take."""

    keys: tuple[Key, ...]
    waiting: Mapping[str, Allowance]  #: by the key's name
    running: Mapping[str, int]  #: jobs that hold a place at once, by the key's name
    texts: frozenset[str] = field(repr=False)  #: the keys themselves, but for those that are written as a hash


def name_fault(text: str) -> str:
    """Why a key cannot have this name, or be of this member or tier; empty when it can."""
    if text == text.strip() and text.isprintable() and len(text) <= _LONGEST_NAME:
        return ""
    return f"must be at most {_LONGEST_NAME} signs that can be seen, without spaces around them"


def member_fault(text: str) -> str:
    """Why a key cannot be of this member; empty when it can."""
    if text == ANONYMOUS:
        return f"`{ANONYMOUS}` is the member of all who name none; leave `member` out, or choose another name"
    return name_fault(text)


def keys_of(
    api_keys: object,
    keys: object,
    *,
    rules: ScoreRules,
    ids: Collection[str],
    owners: Mapping[str, str],
    problems: Problems,
    warnings: list[str],
) -> Keys:
    """The keys of the file; what is wrong becomes problems. `ids` are all model ids, `owners` that of each alias.

    A key of `apiKeys` may do everything, unless an entry of `keys` says otherwise about the same key.
    """
    hashing = _Hashing(problems, warnings)
    simple = _simple_keys(api_keys, hashing, problems, warnings)
    reader = _Reader(rules, ids, owners, hashing, problems, warnings)
    for index, written in enumerate(_listed(keys, "keys", problems)):
        reader.read(index, written)
    reader.add_simple(simple)
    found = reader.found()
    if found.keys and not any(key.admin for key in found.keys):
        warnings.append("keys: none has `admin: true`: nobody may unload a model, pause a lane or read the logs")
    return found


def _listed(written: object, section: str, problems: Problems) -> list[object]:
    if isinstance(written, list):
        return written
    if written is not None:
        # A text is not repeated: it may be a key.
        kind = "a text" if isinstance(written, str) else "a mapping" if isinstance(written, dict) else "a single value"
        problems.add((section,), f"must be a list, not {kind}", at_key=True)
    return []


class _Hashing:
    """Hashes keys that are written as they are, and knows them until the file is read."""

    def __init__(self, problems: Problems, warnings: list[str]) -> None:
        self.texts: set[str] = set()
        self._problems = problems
        self._warnings = warnings

    def hashed(self, text: str, path: Path) -> bytes | None:
        """The hash of a key; None when it cannot be one."""
        if " " in text:
            self._problems.add(path, "api key cannot contain spaces")
            return None
        if not text.isprintable():
            sentence = "api key cannot contain line breaks, tabs or other signs that are not seen"
            self._problems.add(path, sentence)
            return None
        if _ENV_REFERENCE in text:
            self._warnings.append(
                f"{dotted(path)} holds `{_ENV_REFERENCE}` as it is written, and is a key so: a variable's name has "
                "letters of ASCII, digits and `_` only, and a `}` behind it"
            )
        self.texts.add(text)
        return hashlib.sha256(text.encode()).digest()


def _simple_keys(written: object, hashing: _Hashing, problems: Problems, warnings: list[str]) -> dict[bytes, Path]:
    """Where each key of `apiKeys` stands, by its hash."""
    where: dict[bytes, Path] = {}
    for index, item in enumerate(_listed(written, "apiKeys", problems)):
        path: Path = ("apiKeys", index)
        text = as_text(item)
        if text is None or text == "":
            problems.add(path, _EMPTY.format(section="apiKeys"))
        elif not isinstance(text, str):
            problems.add(path, f"must be text, not {shown(text)}")
        elif (digest := hashing.hashed(text, path)) is not None:
            if digest in where:
                warnings.append(f"{dotted(path)} is the same key as {dotted(where[digest])}: one of them can go")
            where.setdefault(digest, path)
    return where


class _Reader:
    """Reads the entries one by one; knows what was there before."""

    def __init__(
        self,
        rules: ScoreRules,
        ids: Collection[str],
        owners: Mapping[str, str],
        hashing: _Hashing,
        problems: Problems,
        warnings: list[str],
    ) -> None:
        self._rules = rules
        self._ids = ids
        self._owners = owners
        self._hashing = hashing
        self._problems = problems
        self._warnings = warnings
        self._keys: dict[bytes, Key] = {}
        self._paths: dict[bytes, Path] = {}  #: of the entries, by the hash of their keys
        self._names: dict[str, Path] = {}
        self._waiting: dict[str, Allowance] = {}
        self._running: dict[str, int] = {}

    def found(self) -> Keys:
        """All keys read so far."""
        return Keys(
            keys=tuple(self._keys.values()),
            waiting=MappingProxyType(self._waiting),
            running=MappingProxyType(self._running),
            texts=frozenset(self._hashing.texts),
        )

    def add_simple(self, where: Mapping[bytes, Path]) -> None:
        """Add the keys of `apiKeys` that no entry of `keys` has replaced."""
        for digest, path in where.items():
            if digest not in self._keys:
                self._keys[digest] = Key(name=self._unique(dotted(path), path), digest=digest, admin=True)

    def read(self, index: int, written: object) -> None:
        """Add one entry of `keys`, unless something is wrong with it."""
        path: Path = ("keys", index)
        if not isinstance(written, dict):
            self._problems.add(path, "must be a mapping with a `key`, such as `{key: ..., member: ...}`")
            return
        entry = validated(KeyEntry, self._known(written, path), path, self._problems)
        digest = self._digest(entry.key, path)
        name = self._name(entry, path)
        key = Key(
            name=name,
            digest=digest or b"",
            member=entry.member or None,
            tier_bonus=self._tier_bonus(entry, path),
            max_priority=self._max_priority(entry, path),
            trust_member_header=entry.trust_member_header,
            admin=entry.admin,
            models=self._models(entry, path),
        )
        if digest is None:
            return
        self._keys[digest] = key
        self._paths[digest] = path
        if (waiting := allowance(entry.limits)) != Allowance():
            self._waiting[name] = waiting
        if entry.limits.running is not None:
            self._running[name] = entry.limits.running

    def _known(self, written: Mapping[str, object], path: Path) -> dict[str, object]:
        """The entry without keys that do not exist: a secret may stand there, so the problem does not repeat them."""
        known = KeyEntry.known_keys()
        for word in written.keys() - known.keys():
            sentence = f"unknown key; valid: {', '.join(known)}"
            self._problems.add((*path, word), sentence, at_key=True, near=(word, known))
        return {word: value for word, value in written.items() if word in known}

    def _digest(self, text: str, path: Path) -> bytes | None:
        """The hash of the key, as it is written or computed from its text; None when that is wrong."""
        where = (*path, "key")
        if not text:
            sentence = f"{_EMPTY.format(section='keys')}: give the key, or `{_HASH_PREFIX}` and its hash"
            self._problems.add(where, sentence)
            return None
        if text[: len(_HASH_PREFIX)].lower() == _HASH_PREFIX:
            given = text[len(_HASH_PREFIX) :]
            if not _HASH.fullmatch(given):
                self._problems.add(where, f"must have 64 hexadecimal digits after `{_HASH_PREFIX}`")
                return None
            digest = bytes.fromhex(given)
            if digest == _HASH_OF_NOTHING:
                self._problems.add(where, f"{_EMPTY.format(section='keys')}: this is the hash of an empty text")
                return None
        else:
            found = self._hashing.hashed(text, where)
            if found is None:
                return None
            digest = found
        if digest in self._paths:
            sentence = f"this is the key of {dotted(self._paths[digest])} too: each needs a key of its own"
            self._problems.add(where, sentence)
            return None
        return digest

    def _name(self, entry: KeyEntry, path: Path) -> str:
        """What the key is called; also checks the member, which is a name too."""
        for word, fault in (("name", name_fault(entry.name)), ("member", member_fault(entry.member))):
            if fault:
                self._problems.add((*path, word), fault)
        if not entry.name and not entry.member:
            self._warnings.append(
                f"{dotted(path)} has neither `name` nor `member`: it is called by its place in the file, and when that "
                "changes another key owns its jobs; give it a `name`"
            )
        named_by = "name" if entry.name else "member"
        where = (*path, named_by) if entry.name or entry.member else path
        return self._unique(entry.name or entry.member or dotted(path), where)

    def _unique(self, name: str, path: Path) -> str:
        if name in self._names:
            sentence = f"{dotted(self._names[name][:2])} is called `{name}` too: give this key a `name` of its own"
            self._problems.add(path, sentence)
        self._names.setdefault(name, path)
        return name

    def _tier_bonus(self, entry: KeyEntry, path: Path) -> int:
        tiers = self._rules.tiers
        if entry.tier and entry.tier not in tiers and not self._problems.within(("scheduling", "tiers")):
            sentence = f"there is no tier `{entry.tier}` under scheduling.tiers"
            self._problems.add((*path, "tier"), sentence, near=(entry.tier, tiers))
        return tiers.get(entry.tier, 0)

    def _max_priority(self, entry: KeyEntry, path: Path) -> int | None:
        """The greatest priority; a band's name on a trusted key covers the tiers that such a key's numbers carry."""
        written = entry.max_priority
        where = (*path, "max_priority")
        rules = self._rules
        if isinstance(written, str):
            if not is_band(written, where, rules, self._problems):
                return None
            value = next(band.value for band in rules.bands if band.name == written)
        elif written is None:
            return None
        else:
            value = written
        low, high = rules.priority_min, rules.priority_max
        if not low <= value <= high and not self._problems.within(("scheduling", "priority_limits")):
            sentence = f"{value} lies outside scheduling.priority_limits [{low}, {high}]: it would never take effect"
            self._problems.add(where, sentence)
        if isinstance(written, str) and entry.trust_member_header:
            value = min(value + max(rules.tiers.values(), default=0), high)
        return value

    def _models(self, entry: KeyEntry, path: Path) -> frozenset[str] | None:
        if entry.models is None:
            return None
        where = (*path, "models")
        if not entry.models:
            self._problems.add(where, "at least one model is needed; without `models` all are allowed")
        ids = set()
        for index, name in enumerate(entry.models):
            model_id = name if name in self._ids else self._owners.get(name)
            if model_id is None:
                known = (*self._ids, *self._owners)
                self._problems.add((*where, index), f'no model config for "{name}"', near=(name, known))
            else:
                ids.add(model_id)
        return frozenset(ids)
