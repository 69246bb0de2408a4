"""A streamed answer as it comes off a bare socket: comments and events, one after the other."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

from tests.support.gateway import GatewayProcess

PATIENCE_S = 60.0  # far longer than anything takes; only a hang reaches it
SHOW = b"X-LlamaSwap-Show-Wait: true\r\n"


class EventStream:
    """The answer to one request on a connection, read as it comes."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_S)
        self._answer = http.client.HTTPResponse(connection)
        self._answer.begin()
        self.status = self._answer.status
        self.headers = self._answer.headers
        self.blocks: list[str] = []  #: all that came so far, without the blank lines between

    @property
    def job(self) -> str:
        return str(self.headers["X-LlamaSwap-Job"])

    def close(self) -> None:
        """Let go of the connection, whose socket its owner closes."""
        self._answer.close()

    def next(self) -> str | None:
        """The next comment or event; None at the end of a whole answer. http.client.IncompleteRead for a broken one."""
        lines: list[str] = []
        while True:
            line = self._answer.readline()
            if not line:
                assert not lines, f"the stream ends inside an event: {lines}"
                return None
            if line == b"\n":
                if lines:
                    self.blocks.append("\n".join(lines))
                    return self.blocks[-1]
            else:
                lines.append(line.decode().removesuffix("\n"))

    def news(self) -> dict[str, Any]:
        """The next comment, read."""
        block = self.next()
        assert block is not None
        assert block.startswith(": queue "), block
        news: dict[str, Any] = json.loads(block.removeprefix(": queue "))
        return news

    def until(self, **wanted: object) -> dict[str, Any]:
        """The first comment from here on in which all of these stand."""
        while True:
            news = self.news()
            if all(news.get(key) == value for key, value in wanted.items()):
                return news

    def rest(self) -> list[str]:
        """Everything to the end."""
        before = len(self.blocks)
        while self.next() is not None:
            pass
        return self.blocks[before:]

    def events(self) -> list[str]:
        """What is no comment, of the whole answer."""
        self.rest()
        return [block for block in self.blocks if not block.startswith(":")]

    def error(self) -> dict[str, Any]:
        """The data of the one event that the rest holds."""
        *comments, event = self.rest()
        assert all(comment.startswith(":") for comment in comments), comments
        data: dict[str, Any] = json.loads(event.rpartition("data: ")[2])
        return data


def ask(
    gateway: GatewayProcess,
    path: str,
    body: dict[str, Any],
    *,
    headers: bytes = SHOW,
    connection: socket.socket | None = None,
    version: bytes = b"1.1",
    method: bytes = b"POST",
) -> socket.socket:
    """Send a JSON request; its connection, which the gateway's end closes."""
    content = json.dumps(body).encode()
    connection = connection or gateway.connection()
    head = b"%b %b HTTP/%b\r\nHost: gateway\r\nContent-Type: application/json\r\n" % (method, path.encode(), version)
    connection.sendall(head + headers + b"Content-Length: %d\r\n\r\n" % len(content) + content)
    return connection
