"""What the model servers that render have in common beside their GPU: HTTP, and a life as a process.

A server (`video_jobs.py`, `comfy.py`) brings its routes as a `Handler` and what it paints as a `Server`, and calls
`serve`. Such a program is run by its path, as a model's command. It journals as `gpu_journal.py` says.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlsplit

import python_multipart

from tests.support.gpu_journal import Journal
from tests.support.gpu_worker import BadFieldError, Gpu, Job, leave


class Handler(BaseHTTPRequestHandler):
    """One connection. A server's own handler brings `get` and `post`, and `delete` when it has one."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # an answer leaves as one piece
    server: Server

    def get(self) -> None:
        raise NotImplementedError

    def post(self) -> None:
        raise NotImplementedError

    def delete(self) -> None:
        self.answer_json(405, {"detail": "Method Not Allowed"})

    def do_GET(self) -> None:
        self._arrived()
        if self.path == "/health":
            self.answer_json(200 if self.server.is_ready else 503, {"status": "ok" if self.server.is_ready else "boot"})
        elif self._may_answer():
            self.get()

    def do_POST(self) -> None:
        self._arrived()
        if self._may_answer():
            self.post()

    def do_DELETE(self) -> None:
        self._arrived()
        if self._may_answer():
            self.delete()

    def _arrived(self) -> None:
        url = urlsplit(self.path)
        self.path, self.query = url.path, dict(parse_qsl(url.query))
        if self.path != "/health":
            headers = [f"{name}: {value}" for name, value in self.headers.items()]
            self.server.journal.note("http", method=self.command, path=self.path, headers=headers)
        self.body = self._read_body()

    def _may_answer(self) -> bool:
        if not self.server.is_ready:
            self.answer_json(503, {"detail": "starting"})
        return self.server.is_ready

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        body = bytearray()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return bytes(body)

    def fields(self) -> dict[str, Any]:
        """The fields of a JSON or multipart body; a file is (name, bytes). Raises `BadFieldError`."""
        kind = self.headers.get("Content-Type", "")
        if not kind.startswith("multipart/form-data"):
            try:
                fields = json.loads(self.body or b"{}")
            except ValueError as error:
                raise BadFieldError(f"Invalid request body: {error}") from None
            if not isinstance(fields, dict):
                raise BadFieldError("Invalid request body: not an object")
            return fields
        form: dict[str, Any] = {}

        def on_field(part: Any) -> None:
            form[part.field_name.decode()] = (part.value or b"").decode()

        def on_file(part: Any) -> None:
            part.file_object.seek(0)
            form[part.field_name.decode()] = (part.file_name.decode(), part.file_object.read())
            part.close()

        headers = {"Content-Type": kind.encode("latin-1"), "Content-Length": str(len(self.body)).encode()}
        python_multipart.parse_form(headers, io.BytesIO(self.body), on_field, on_file)
        return form

    def is_deaf(self) -> bool:
        """Whether this question gets a bad answer now; it has been given then."""
        deafness = self.server.gpu.deafness()
        if deafness == "503":
            self.answer_json(503, {"detail": "busy"})
        elif deafness:
            self.close_connection = True
        return bool(deafness)

    def answer_json(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        self.answer(status, json.dumps(content).encode(), "application/json", headers)

    def answer(self, status: int, body: bytes, kind: str = "", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """The journal has it."""


class Server(ThreadingHTTPServer):
    """Listens on 127.0.0.1 with a thread per connection."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, flags: argparse.Namespace, journal: Journal, handler: type[Handler]) -> None:
        self.flags, self.journal = flags, journal
        self.is_ready = False
        super().__init__(("127.0.0.1", flags.port), handler)
        self.gpu = Gpu(journal, self.paint, self.changed)

    def paint(self, job: Job) -> bytes:
        """The job's product."""
        raise NotImplementedError

    def changed(self, job: Job) -> None:
        """A job begins, goes on or has ended."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that leaves while it is answered is no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def flags_for(description: str) -> argparse.ArgumentParser:
    """The flags that all of these servers have."""
    flags = argparse.ArgumentParser(description=description)
    flags.add_argument("--port", type=int, required=True)
    flags.add_argument("--name", required=True, help="its name in the journal")
    flags.add_argument("--boot", type=float, default=0.0, help="seconds until ready; 503 before that")
    flags.add_argument("--seconds", type=float, default=0.3, help="of a render whose request names none")
    return flags


def serve(server: type[Server], handler: type[Handler], flags: argparse.Namespace) -> NoReturn:
    """Serve until SIGTERM or SIGINT, which end the render that is running."""
    # Threads inherit the mask, so that only the wait below takes these signals.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    journal = Journal(flags.name)
    journal.note("boot", port=flags.port, ppid=os.getppid(), stub_id=os.environ.get("STUB_ID"))
    try:
        running = server(flags, journal, handler)
    except OSError as error:
        print(f"{flags.name}: cannot listen: {error}", file=sys.stderr, flush=True)
        leave(journal, 98, "port")
    threading.Thread(target=running.serve_forever, daemon=True).start()
    print(f"{flags.name}: listening on {flags.port}", flush=True)
    if signal.sigtimedwait(ends, flags.boot) is None:
        running.is_ready = True
        journal.note("ready")
        signal.sigwait(ends)
    journal.note("sigterm")
    running.gpu.stop()
    leave(journal, 0, "signal")
