"""A model server of the demo: a small video renderer that is slow on purpose.

    python -m swaplane.demo.video_server --port PORT [--seconds-per-frame 0.25]

    POST /v1/videos/sync   {model, prompt, frames, fps, width, height, seed, shot} -> video/mp4, X-Frames
    GET  /progress         what is being rendered, and how many videos were finished and given up
    GET  /health

The mp4 is real; only its pace is made up. It renders one video at a time, as a GPU would, and stops as soon
as the client has gone. It knows nothing of the gateway, which starts it like any other command. SIGTERM keeps
its default action: there is nothing to save.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from swaplane.demo.frames import Mp4, paint

#: field -> (value when absent, smallest, largest)
_NUMBERS = {
    "frames": (12, 1, 1000),
    "fps": (12, 1, 60),
    "width": (320, 16, 1920),
    "height": (192, 16, 1080),
    "seed": (0, 0, 2**31),
    "shot": (1, 0, 100_000),
}
_MAX_BODY_BYTES = 1 << 20


class BadRequestError(ValueError):
    """The request cannot be rendered; the text names the field and what is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoRequest:
    """One video to render."""

    prompt: str  #: what it shows; here: which waves and colours
    frames: int  #: its length
    fps: int  #: frames per second of the result
    width: int  #: pixels, even
    height: int  #: pixels, even
    seed: int  #: another seed, another picture
    shot: int  #: the number drawn into the picture, and where in the film's time it begins

    @classmethod
    def from_json(cls, body: bytes) -> VideoRequest:
        """Raises `BadRequestError`. Fields that it does not know are passed over."""
        try:
            fields = json.loads(body)
        except ValueError as error:
            raise BadRequestError(f"the body is not JSON: {error}") from None
        if not isinstance(fields, dict) or not isinstance(fields.get("prompt"), str):
            raise BadRequestError("prompt: a text is required")
        numbers = {}
        for name, (default, least, most) in _NUMBERS.items():
            value = fields.get(name, default)
            if type(value) is not int or not least <= value <= most:
                raise BadRequestError(f"{name}: {value!r} is not a whole number from {least} to {most}")
            numbers[name] = value
        if numbers["width"] % 2 or numbers["height"] % 2:
            raise BadRequestError("width, height: both must be even")
        return cls(prompt=fields["prompt"], **numbers)


@dataclass(slots=True)
class Renderer:
    """Renders one video at a time. `progress` may be read from any thread."""

    seconds_per_frame: float  #: the least time that one frame takes
    finished: int = 0  #: videos delivered to their client's connection
    given_up: int = 0  #: videos whose client left before the end
    _now: dict[str, Any] | None = None
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def progress(self) -> dict[str, Any]:
        """What is being rendered now (`null` when nothing is) and the counts so far."""
        return {"rendering": self._now, "finished": self.finished, "given_up": self.given_up}

    def render(self, request: VideoRequest, client: socket.socket) -> bytes | None:
        """The mp4, or None as soon as `client` has gone. Waits for the video before it."""
        with self._one_at_a_time:
            try:
                video = self._render(request, client)
            finally:
                self._now = None
            if video is None:
                self.given_up += 1
                log(f"shot {request.shot}: the client has gone, stopped")
            else:
                self.finished += 1
            return video

    def _render(self, request: VideoRequest, client: socket.socket) -> bytes | None:
        video = Mp4(width=request.width, height=request.height, fps=request.fps)
        started = time.monotonic()
        for index in range(request.frames):
            if has_left(client, wait_s=started + index * self.seconds_per_frame - time.monotonic()):
                return None
            at_s = (request.shot * request.frames + index) / request.fps
            video.add(
                paint(
                    prompt=request.prompt,
                    seed=request.seed,
                    shot=request.shot,
                    at_s=at_s,
                    width=request.width,
                    height=request.height,
                )
            )
            self._now = {"prompt": request.prompt, "shot": request.shot, "frame": index + 1, "frames": request.frames}
            log(f"shot {request.shot}: frame {index + 1}/{request.frames}")
        if has_left(client, wait_s=started + request.frames * self.seconds_per_frame - time.monotonic()):
            return None
        return video.close()


def has_left(client: socket.socket, *, wait_s: float) -> bool:
    """Wait for `wait_s` seconds, or until the client closes its connection; True when it did."""
    wait_s = max(wait_s, 0.0)
    readable, _, _ = select.select([client], [], [], wait_s)
    if not readable:
        return False
    try:
        if not client.recv(1, socket.MSG_PEEK):
            return True
    except OSError:
        return True
    time.sleep(wait_s)  # it sent more than one request ahead; its departure shows when that is read
    return False


class Handler(BaseHTTPRequestHandler):
    """The three routes."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """`/health` and `/progress`."""
        if self.path == "/health":
            self._answer_json(200, {"status": "ok"})
        elif self.path == "/progress":
            self._answer_json(200, self.server.renderer.progress())
        else:
            self._answer_json(404, {"error": f"no such path: {self.path}"})

    def do_POST(self) -> None:
        """`/v1/videos/sync`."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or int(length) > _MAX_BODY_BYTES:
            self.close_connection = True
            self._answer_json(411, {"error": f"Content-Length: required, at most {_MAX_BODY_BYTES} bytes"})
            return
        body = self.rfile.read(int(length))
        if self.path != "/v1/videos/sync":
            self._answer_json(404, {"error": f"no such path: {self.path}"})
            return
        try:
            request = VideoRequest.from_json(body)
        except BadRequestError as error:
            self._answer_json(400, {"error": str(error)})
            return
        video = self.server.renderer.render(request, self.connection)
        if video is None:
            self.close_connection = True
            return
        self._answer(200, "video/mp4", video, {"X-Frames": str(request.frames)})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Requests are not logged; progress is."""

    def _answer_json(self, status: int, answer: dict[str, Any]) -> None:
        self._answer(status, "application/json", json.dumps(answer).encode(), {})

    def _answer(self, status: int, content_type: str, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """Listens on 127.0.0.1; port 0 takes a free one, see `server_port`."""

    daemon_threads = True

    def __init__(self, port: int, renderer: Renderer) -> None:
        self.renderer = renderer
        super().__init__(("127.0.0.1", port), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves while it is answered is no news; everything else is told as usual."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def log(line: str) -> None:
    """One line on standard output, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="Render videos slowly, one at a time.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds-per-frame", type=float, default=0.25)
    options = parser.parse_args()
    server = Server(options.port, Renderer(options.seconds_per_frame))
    log(f"the video renderer serves on http://127.0.0.1:{server.server_port}")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
