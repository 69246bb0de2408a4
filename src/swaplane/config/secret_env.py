"""Which variables of our environment hold API keys, so that model servers do not inherit them.

Decides by the keys' texts while the file is read; only names leave this module. Called by `load`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from swaplane.config.document import as_put_in

#: A shorter text stands in other texts by chance: to hold a variable back for that would take PATH from the servers.
_LONG_ENOUGH, _LONG_ENOUGH_PART = 8, 4  # characters


def secret_names(
    environ: Mapping[str, str], *, used: Collection[str], keys: Collection[str], digests: Collection[bytes]
) -> frozenset[str]:
    """The names of the variables that hold a key, more than one (`Bearer KEY`), or a part (`pre-${env.NAME}`).

    `used` are the names that the file uses: only they can be parts. `keys` are those that are known in plain text,
    `digests` the SHA-256 of all.
    """
    if not digests:
        return frozenset()

    def holds(name: str, value: str) -> bool:
        if hashlib.sha256(value.encode("utf-8", "surrogateescape")).digest() in digests:
            return True
        written = as_put_in(value)
        is_part = name in used and len(value) >= _LONG_ENOUGH_PART
        return any(
            (len(key) >= _LONG_ENOUGH and key in value) or (is_part and (value in key or written in key))
            for key in keys
        )

    return frozenset(name for name, value in environ.items() if holds(name, value))
