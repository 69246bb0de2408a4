"""How the words of a command line are read where Typer alone would read them otherwise.

Decides that `serve` takes llama-swap's flags as llama-swap spells them, which of those flags are refused for
now, and what a listen address means. Prints nothing and starts nothing. Called by `cli` only.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

LOOPBACK = "127.0.0.1"
ALL_INTERFACES = "0.0.0.0"  # noqa: S104 - what `:8080` asks for, as in llama-swap
DEFAULT_LISTEN = f"{LOOPBACK}:8080"

_FLAGS = frozenset({"config", "listen", "version", "help"})
_TLS = "let a reverse proxy in front of the gateway do TLS"
_NOT_YET = {
    "config-dir": "put everything into one file and give it with --config",
    "tls-cert-file": _TLS,
    "tls-key-file": _TLS,
    "watch-config": "after a change, send the gateway SIGHUP and it loads the file again",
}


class FlagNotAvailableError(Exception):
    """A flag of llama-swap that is not there yet; the text says what to do instead."""


def normalised(arguments: Sequence[str]) -> list[str]:
    """The arguments with llama-swap's flags after `serve` spelled with two dashes.

    Go's flags take one dash or two: `-config x`, `-config=x`, `--config x`. Raises FlagNotAvailableError for
    a flag of llama-swap that is not there yet.
    """
    if not arguments or arguments[0] != "serve":
        return list(arguments)
    return [arguments[0], *(_with_two_dashes(word) for word in arguments[1:])]


def _with_two_dashes(word: str) -> str:
    name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
    if not word.startswith("-"):
        return word
    if name in _NOT_YET:
        raise FlagNotAvailableError(f"-{name} is not available yet: {_NOT_YET[name]}.")
    return f"--{name}{equals}{value}" if name in _FLAGS else word


def listen_address(text: str) -> tuple[str, int]:
    """Host and port of a listen address: `host:port`, `[v6]:port`, `:port` or `port`.

    A bare port listens on this machine only, `:port` on all interfaces as in llama-swap. Raises ValueError,
    saying what is wrong, for anything else.
    """
    host, colon, port_text = text.rpartition(":")
    # isdecimal alone would take the digits of other scripts.
    port = int(port_text) if port_text.isascii() and port_text.isdecimal() and len(port_text) <= 5 else -1
    if not 0 <= port <= 65535:
        raise ValueError(f"`{text}` does not end in a port between 0 and 65535, such as {DEFAULT_LISTEN}")
    if not colon:
        return LOOPBACK, port
    if not host:
        return ALL_INTERFACES, port
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1])), port
        except ValueError:
            raise ValueError(f"`{host}` is not an IPv6 address in brackets, such as [::1]") from None
    if ":" in host:
        raise ValueError(f"`{text}`: an IPv6 address is written in brackets, such as [::1]:8080")
    return host, port


def who_can_reach(listen: str, host: str, *, keyed: bool) -> str:
    """One sentence for whoever starts a gateway there; empty where nothing is to be said.

    `keyed` is whether its file has API keys.
    """
    if not _is_loopback(host):
        if keyed:
            return ""
        return (
            f"Everybody who can reach {listen} may use, unload and cancel everything: the file has no keys "
            "(`swaplane key new` makes one)."
        )
    if listen == DEFAULT_LISTEN:
        return (
            f"{listen} can be reached from this machine only; llama-swap's default is all interfaces (--listen :8080)."
        )
    return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
