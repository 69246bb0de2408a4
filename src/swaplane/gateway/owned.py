"""Whose stored things a caller may see, as the store is asked for them.

Decides nothing: `access.Caller.owns` does, and this is the same in the store's words. Called by the endpoints that
list or look up what is stored.
"""

from __future__ import annotations

from swaplane.gateway.access import Caller
from swaplane.store import Owner


def owner_of(caller: Caller) -> Owner | None:
    """What the store is to look among; None: among everything."""
    if caller.admin or caller.key is None:
        return None
    return Owner(key_name=caller.key.name, member=caller.key.member)
