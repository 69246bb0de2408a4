"""`jobs:` as what the gateway is told about jobs that it keeps on disk.

Decides which values make sense by themselves; whether the folder can be used is found out by who opens it. Called
by `load`.
"""

from __future__ import annotations

import base64
import binascii
import os
import re

from swaplane.config.problems import Problems
from swaplane.config.schema import JobsEntry
from swaplane.config.settings import JobsSettings

_SECRET_PREFIX = "whsec_"  # noqa: S105 - what a secret begins with is none
_SECRET_BYTES = range(24, 65)
_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_PORTS = range(1, 65536)


def jobs_of(entry: JobsEntry, problems: Problems) -> JobsSettings:
    """The settings of stored jobs; what is wrong becomes problems."""
    if entry.path and (not os.path.isabs(entry.path) or "\0" in entry.path):
        sentence = "must be the full path of a folder, such as /var/lib/swaplane"
        problems.add(("jobs", "path"), f'{sentence}, not "{entry.path}"')
    hosts = tuple(host.lower() for host in entry.webhook.hosts)
    for index, host in enumerate(hosts):
        found = _HOST.fullmatch(host)
        if not found or (found[1] and int(found[1]) not in _PORTS):
            sentence = f'must be a host or HOST:PORT, such as "hooks.example.org", not "{host}"'
            problems.add(("jobs", "webhook", "hosts", index), sentence)
    return JobsSettings(
        path=entry.path or None,
        keep_s=entry.keep,
        interrupted=entry.interrupted,
        webhook_hosts=hosts,
        webhook_secret=_secret(entry.webhook.secret, problems),
        replay_s=entry.replay,
    )


def _secret(written: str, problems: Problems) -> bytes:
    """The key in a secret of the Standard Webhooks; a problem does not show it."""
    if not written:
        return b""
    try:
        key = base64.b64decode(written.removeprefix(_SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not written.startswith(_SECRET_PREFIX) or len(key) not in _SECRET_BYTES:
        sentence = f"must be `{_SECRET_PREFIX}` and then 24 to 64 random bytes in base64"
        problems.add(("jobs", "webhook", "secret"), sentence)
    return key
