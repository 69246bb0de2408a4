"""Whose rows are meant, in every table whose rows belong to somebody.

Such a table has the columns `key_name` and `member`. Used by the tables; made by the gateway for each caller that
may not see everything.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who has what came with an API key, and what runs on behalf of the key's member."""

    key_name: str
    member: str | None = None  #: None: the key is no member's


#: A condition on a row; `owned_by` has its parameters.
OWNED = "(:owner_key IS NULL OR key_name = :owner_key OR member = :owner_member)"


def owned_by(owner: Owner | None) -> dict[str, str | None]:
    """The parameters of `OWNED`; for None every row fits."""
    if owner is None:
        return {"owner_key": None, "owner_member": None}
    return {"owner_key": owner.key_name, "owner_member": owner.member}
