"""A websocket on a connection that http.server has already read a request from; called by `comfy.py`."""

from __future__ import annotations

import json
import threading
from typing import Any

from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from tests.support.gpu_server import Handler


class EventSocket:
    """Sends ComfyUI's events, from any thread."""

    def __init__(self, handler: Handler) -> None:
        """Answer the handshake that `handler` has read."""
        self._connection = handler.connection
        self._lock = threading.Lock()
        self._protocol = ServerProtocol()
        head = [handler.requestline, *(f"{name}: {value}" for name, value in handler.headers.items()), "", ""]
        self._protocol.receive_data("\r\n".join(head).encode())
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._protocol.send_response(self._protocol.accept(event))
        self._flush()

    def send(self, kind: str, data: dict[str, Any]) -> None:
        """Send one event; nothing when it is closed."""
        with self._lock:
            if self._protocol.state is OPEN:
                self._protocol.send_text(json.dumps({"type": kind, "data": data}).encode())
                self._flush()

    def listen(self) -> None:
        """Answer pings until the other side closes."""
        data = b"..."
        while data:
            try:
                data = self._connection.recv(65536)
            except OSError:
                data = b""
            with self._lock:
                if data:
                    self._protocol.receive_data(data)
                else:
                    self._protocol.receive_eof()
                self._protocol.events_received()
                self._flush()
                if self._protocol.close_expected():
                    return

    def _flush(self) -> None:
        try:
            for data in self._protocol.data_to_send():
                self._connection.sendall(data)
        except OSError:
            self._protocol.receive_eof()
