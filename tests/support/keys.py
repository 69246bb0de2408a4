"""API keys of a gateway in tests, and how they are sent."""

from __future__ import annotations

import base64

OPERATOR = "sk-canary-operator"  #: may do everything
ADA, BEN = "sk-canary-ada", "sk-canary-ben"  #: members
BOT = "sk-canary-bot"  #: may say on whose behalf it asks
POOL = "sk-canary-pool"  #: one key for all who name nobody
NARROW = "sk-canary-narrow"  #: for the model mA alone
PLAIN = "sk-canary-plain"  #: of `apiKeys`

CONFIG = f"""\
apiKeys: [{PLAIN}]
keys:
  - {{key: {OPERATOR}, name: operator, admin: true}}
  - {{key: {ADA}, member: ada, tier: pro, max_priority: normal}}
  - {{key: {BEN}, member: ben}}
  - {{key: {BOT}, name: bot, trust_member_header: true, max_priority: interactive}}
  - {{key: {POOL}, name: pool}}
  - {{key: {NARROW}, name: narrow, models: [mA]}}
"""


def bearer(key: str) -> dict[str, str]:
    """The headers of a request with this key."""
    return {"Authorization": f"Bearer {key}"}


def basic(key: str, user: str = "me") -> dict[str, str]:
    """The same as browsers send it."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{key}".encode()).decode()}
