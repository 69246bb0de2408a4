"""Whether a model's server answers, and whose process it is that listens there.

Decides what "healthy" means (status 200 and nothing else) and how often to ask. It starts and ends nothing.
`process` calls it during a start. Requests go straight to the address: no proxy settings of the environment apply.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil

from swaplane.processes import kill_tree

PROBE_S = 2.0  # the most one probe may take
CONNECT_S = 1.0  # the most it takes to see that nobody listens
FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 0.5


class HealthTimeoutError(Exception):
    """The server was not healthy in time."""

    def __init__(self, timeout_s: float, url: str, answer: str) -> None:
        self.message = f"health check timed out after {go_duration(timeout_s)}"  #: for everybody
        self.private = f": GET {url} must answer 200, last: {answer}"  #: what follows it
        super().__init__(self.message + self.private)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a model's server is asked for its health."""

    url: str
    host: str
    port: int
    tls: bool
    request: bytes  #: the whole GET

    @classmethod
    def of(cls, proxy: str, path: str) -> Endpoint:
        """The endpoint `path` below the URL `proxy`."""
        url = proxy.rstrip("/") + "/" + path.strip().lstrip("/")
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"GET {target} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}", "Accept: */*"]
        lines += ["User-Agent: swaplane", "Connection: close", "", ""]
        return cls(
            url=url,
            host=parts.hostname or "127.0.0.1",
            port=parts.port or (443 if tls else 80),
            tls=tls,
            request="\r\n".join(lines).encode(),
        )


async def somebody_listens(endpoint: Endpoint) -> bool:
    """Whether connections to the endpoint are accepted at this moment."""
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def wait_healthy(endpoint: Endpoint, timeout_s: float) -> None:
    """Ask until the answer is 200.

    Raises:
        HealthTimeoutError: it was not within `timeout_s` seconds.

    """
    answer = ""
    delay_s = FIRST_DELAY_S
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                await asyncio.sleep(delay_s)
                answer = "no answer"  # so far
                answer = await _probe(endpoint)
                if answer == "200":
                    return
                delay_s = min(delay_s * 1.5, LONGEST_DELAY_S)
    except TimeoutError:
        raise HealthTimeoutError(timeout_s, endpoint.url, answer) from None


async def _probe(endpoint: Endpoint) -> str:
    """The status of one GET as text, or what came instead of one."""
    writer = None
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(
                endpoint.host, endpoint.port, ssl=_unverified() if endpoint.tls else None
            )
            writer.write(endpoint.request)
            version, _, rest = (await reader.readline()).partition(b" ")
    except TimeoutError:
        return f"no answer within {go_duration(PROBE_S)}"
    except OSError as error:  # refused, reset, bad TLS, no file descriptor left
        return f"no connection ({error.strerror or error})"
    except ValueError:  # an endless first line
        return "not an HTTP answer"
    finally:
        if writer is not None:
            writer.transport.abort()
    if not version.startswith(b"HTTP/1."):
        return "not an HTTP answer"
    return rest[:3].decode("latin-1")


def _unverified() -> ssl.SSLContext:
    """Local servers have certificates of their own making."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A local process that listens at an endpoint."""

    pid: int
    name: str
    started: int  #: clock ticks since the machine started
    ancestors: frozenset[int]  #: pids, its own included

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name})"


def listeners(endpoint: Endpoint) -> list[Listener]:
    """The local processes that listen where connections to the endpoint arrive, as far as they can be found.

    Empty for an address that is not this machine's, and for processes of other users. It reads all of /proc,
    so it belongs in a thread.
    """
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        own = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
        wanted = {str(info[4][0]) for info in found}
        wanted = {ip for ip in wanted if ip in own or ipaddress.ip_address(ip.partition("%")[0]).is_loopback}
        if not wanted:
            return []
        bound = [
            (connection.laddr.ip.removeprefix("::ffff:"), connection.pid)
            for connection in psutil.net_connections("tcp")
            if connection.laddr and connection.status == psutil.CONN_LISTEN and connection.laddr.port == endpoint.port
        ]
    except (OSError, psutil.Error):
        return []
    # A socket bound to the very address gets the connection before one bound to all addresses.
    pids = {pid for ip, pid in bound if ip in wanted} or {pid for ip, pid in bound if ip in {"0.0.0.0", "::"}}  # noqa: S104
    return list(_look_up(pid for pid in pids if pid is not None))


def _look_up(pids: Iterable[int]) -> Iterable[Listener]:
    for pid in sorted(pids):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            ancestors = frozenset({pid, *(parent.pid for parent in process.parents())})
            if (seen := kill_tree.look(pid)) is not None:
                yield Listener(pid=pid, name=process.name(), started=seen.started, ancestors=ancestors)


def go_duration(seconds: float) -> str:
    """Seconds as Go prints a duration: "15s", "2m0s", "1h0m0s", "1.5s", "500ms"."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.6g}ms"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    text = f"{rest:.6g}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
