"""Paths of a model server with a place for a job's id.

Decides which paths belong to one, and how an id is put into and taken out of it. It knows no server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote

PLACEHOLDER = "{id}"
_READS = ("GET", "HEAD")
_LAYERS = 2  # of escapes within escapes, as far as they are followed
_LEADS_ELSEWHERE = re.compile(r"//|/\.{1,2}(?:/|\Z)|[\\\x00-\x1f\x7f\ufffd]")  # the last: escapes that are no UTF-8
_ENDS = re.compile(r"[;?#%]")  # what may be cut off with all that follows, or be decoded once more


def normal(path: str) -> str:
    """The path as servers compare it: decoded, without slashes at its end."""
    return unquote(path).rstrip("/") or "/"


def is_plain(path: str, *, names_below: re.Pattern[str] | None = None) -> bool:
    """Whether servers agree which path this is, however often they decode it, and whatever they join or cut off.

    Where `names_below` matches the beginning of the path, names of files follow: they may hold escaped slashes and
    what ends a path elsewhere.
    """
    once = decoded = unquote(path)
    for _ in range(_LAYERS):
        decoded = unquote(decoded)
    if unquote(decoded) != decoded or _LEADS_ELSEWHERE.search(decoded):
        return False
    if names_below is not None and names_below.match(once):
        return True
    return _ENDS.search(once) is None and "%2f" not in path.lower()


@dataclass(frozen=True, slots=True)
class Route:
    """A method and a path, in any case; `{id}` in the path or its query stands for a job's id."""

    method: str
    target: str
    _exact: re.Pattern[str] = field(init=False, repr=False, compare=False)
    _family: re.Pattern[str] = field(init=False, repr=False, compare=False)
    _listing: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        path = normal(self.target.partition("?")[0])
        before, _, after = path.partition(PLACEHOLDER)
        named = PLACEHOLDER in path
        job = re.escape(before) + ("(?P<id>[^/]+)" if named else "")
        object.__setattr__(self, "_exact", re.compile(job + re.escape(after), re.IGNORECASE))
        object.__setattr__(self, "_family", re.compile(f"{job}(/.*)?", re.DOTALL | re.IGNORECASE))
        object.__setattr__(self, "_listing", (before.rpartition("/")[0] if named else path).lower())

    def filled(self, server_id: str) -> str:
        """The target with this id."""
        return self.target.replace(PLACEHOLDER, quote(server_id, safe=""))

    def fits(self, method: str, path: str) -> bool:
        """Whether a request of this method and path is one of this route; HEAD counts as GET."""
        return self._same(method) and self._exact.fullmatch(normal(path)) is not None

    def id_in(self, method: str, path: str) -> str | None:
        """The id in such a request; None when it is none of this route or the path has no id."""
        return self._id(self._exact, method, path)

    def family_fits(self, method: str, path: str) -> bool:
        """Whether such a request reads the list of jobs, or anything at or below the path up to the id."""
        path = normal(path)
        return self._same(method) and (path.lower() == self._listing or self._family.fullmatch(path) is not None)

    def family_id_in(self, method: str, path: str) -> str | None:
        """The id in a request for anything at or below the path up to the id; None when there is none."""
        return self._id(self._family, method, path)

    def ids_in_query(self, method: str, target: str) -> tuple[str, ...]:
        """The ids that such a request has in its query, where this route has its own."""
        path, _, query = target.partition("?")
        own = parse_qsl(self.target.partition("?")[2])
        names = {name for name, value in own if value == PLACEHOLDER}
        found = parse_qsl(query, errors="replace") if names and self.fits(method, path) else ()
        return tuple(value for name, value in found if name in names)

    def _id(self, pattern: re.Pattern[str], method: str, path: str) -> str | None:
        found = pattern.fullmatch(normal(path)) if self._same(method) else None
        return found and found.groupdict().get("id")

    def _same(self, method: str) -> bool:
        return method == self.method or (method in _READS and self.method in _READS)
