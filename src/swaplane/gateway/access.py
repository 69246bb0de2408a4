"""Who asks, and what they may do: API keys and the rights that come with them.

Decides which key a request carries, on whose behalf its jobs run, and whose jobs it may see. The rights of each
management route stand beside the route (`ApiRoute`); `edge` enforces them. Knows nothing of jobs' order. Called by
`app` for every request before its body is read, and by the endpoints that show or change jobs.

A key is presented in one of three forms. Of several the first in this order counts, right or wrong:

1. `Authorization: Basic`, base64 of `anything:KEY`; the key itself may hold colons.
2. `Authorization: Bearer KEY`.
3. `x-api-key: KEY`.

An `Authorization` header that holds no key, because it is of another scheme, empty or not base64, is passed over. Two
headers of one name that differ present nothing: whoever put one of them there may not have seen the other.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from swaplane.config.settings import Key, ModelSettings, Settings
from swaplane.gateway.errors import ModelNotAllowed, RawHeaders, Unauthorized

CALLER = "swaplane.caller"  #: where the app puts a request's `Caller`, in its scope's extensions

_AUTHORIZATION, _X_API_KEY = b"authorization", b"x-api-key"
_CREDENTIALS = frozenset((_AUTHORIZATION, _X_API_KEY, b"proxy-authorization"))
_SPACE = b" \t"


class Right(Enum):
    """Who may use a management route of a gateway with keys. Without keys everybody may use everything."""

    ANYBODY = "anybody"  #: no key needed
    MEMBER = "member"  #: any key; what is shown or changed is limited to what its holder may see
    ADMIN = "admin"  #: a key with `admin: true`


class ApiRoute(NamedTuple):
    """One route of the management API. A route that says nothing of rights is for admins."""

    method: str
    path: str
    endpoint: Callable[..., Any]
    right: Right = Right.ADMIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request."""

    key: Key | None = None  #: None: the gateway has no keys, and everything is allowed

    @property
    def admin(self) -> bool:
        """Whether everything may be seen and changed."""
        return self.key is None or self.key.admin

    @property
    def key_name(self) -> str:
        """The name of the key; empty without one."""
        return "" if self.key is None else self.key.name

    def owns(self, *, member: str, key: str) -> bool:
        """Whether something of this member, made with the key of this name, may be seen and ended.

        An admin owns everything; others what came with their key, or runs on behalf of their key's member.
        """
        if self.admin or self.key is None:
            return True
        return key == self.key.name or (self.key.member is not None and member == self.key.member)

    def renewed(self, settings: Settings) -> Caller | None:
        """The same caller by the keys that count now; None: there is no such key any more, or one is needed now."""
        if self.key is None:
            return None if settings.keys else self
        digest = self.key.digest
        return next((Caller(key=key) for key in settings.keys if key.digest == digest), None)

    def may_use(self, model: str) -> bool:
        """Whether jobs for the model of this id are allowed."""
        return self.key is None or self.key.models is None or model in self.key.models

    def check_model(self, model: ModelSettings, asked: str = "") -> None:
        """Raises ModelNotAllowed unless jobs for the model are allowed; it tells no name but the one `asked` for."""
        if not self.may_use(model.id):
            raise ModelNotAllowed(asked, self.key_name)

    def names_of_models(self, settings: Settings) -> list[str]:
        """The listed ids and aliases that may be told to the caller."""
        models = ((name, settings.resolve(name)) for name in settings.listed_names())
        return [name for name, model in models if model is not None and self.may_use(model.id)]


EVERYBODY = Caller()  #: whoever asks a gateway without keys


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """The caller that the app has put into a request's scope."""
    caller: Caller = scope["extensions"][CALLER]
    return caller


def caller_with(key_name: str, keys: tuple[Key, ...]) -> Caller | None:
    """Who holds the key of this name now; None: nobody any more. Without any keys it is everybody."""
    key = next((each for each in keys if each.name == key_name), None)
    if key is None:
        return None if keys and key_name else EVERYBODY
    return Caller(key=key)


def identify(raw_headers: Iterable[tuple[bytes, bytes]], keys: tuple[Key, ...]) -> Caller:
    """Who sent a request with these headers to a gateway with these keys. Raises Unauthorized.

    The time it takes says nothing about the keys: all of them are compared, by their hashes.
    """
    presented = _presented(raw_headers)
    if not presented:
        raise Unauthorized
    digest = hashlib.sha256(presented).digest()
    found = None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            found = key
    if found is None:
        raise Unauthorized
    return Caller(key=found)


def _presented(raw_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key that these headers present, as its bytes in UTF-8; empty when they present none."""
    values: dict[bytes, set[bytes]] = {_AUTHORIZATION: set(), _X_API_KEY: set()}
    for name, value in raw_headers:
        lowered = name.lower()
        if lowered in values:
            values[lowered].add(value.strip(_SPACE))
    authorizations, plain = values[_AUTHORIZATION], values[_X_API_KEY]
    if len(authorizations) > 1:
        return b""
    key = _key_in(*authorizations) if authorizations else b""
    return key or (plain.pop() if len(plain) == 1 else b"")


def _key_in(authorization: bytes) -> bytes:
    """The key in an Authorization header; empty when there is none."""
    scheme, _, rest = authorization.partition(b" ")
    rest = rest.strip(_SPACE)
    match scheme.lower():
        case b"bearer":
            return rest
        case b"basic":
            try:
                return base64.b64decode(rest, validate=True).partition(b":")[2]
            except binascii.Error:
                return b""
        case _:
            return b""


def without_credentials(raw_headers: RawHeaders) -> RawHeaders:
    """The headers without those in which a key is presented, here or on the way: nobody else may see it."""
    return [header for header in raw_headers if header[0].lower() not in _CREDENTIALS]
