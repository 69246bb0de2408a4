"""A model server made of the standard library alone, run in its own process: `python stub.py --port P --name mA`.

It answers any POST like a small OpenAI-shaped server, misbehaves on request and keeps a journal of what reached
it. It decides nothing about the gateway; tests start it as a model's command and read its journal.

Scripting, per start (flags, see `parse_flags`) and per request (the JSON body's field "stub", or `?stub={...}`):

    dur                   seconds of work before the answer (streamed: spread over the chunks)
    chunks, gap           number of streamed chunks (default 3) and seconds before each
    status, set_headers   status code; extra header lines as [[name, value], ...]
    size                  answer with this many bytes instead of JSON
    echo_body, gzip       answer with the request's body; compress the answer
    raw                   exact bytes: [text (latin-1, one write each) or seconds (a pause), ...] in place of an answer
    die_at                end the process (--exit-code, default 1) before chunk N; 0: before anything is sent
    close_without_reply   close the connection in place of an answer
    close                 true: close after the answer; "rst": reset the connection after it
    spam                  bytes of log output written before the answer

A path ending in /ws is a websocket that echoes. The journal ($STUB_LOG) is JSON lines with CLOCK_MONOTONIC `t`,
`ev`, `name`, `pid`: boot, ready, req_start, send, req_end, client_gone, upload_gone, ws_open, ws_end, sigterm,
exit. Every req_start is followed by one req_end or client_gone, unless the process dies. Probes of the health
path are not written down.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import gzip
import hashlib
import json
import os
import signal
import socket
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import Any, NoReturn, cast
from urllib.parse import parse_qs, urlsplit

HIGH_WATER = 256 * 1024  # bytes held unread before the socket is paused
KEEP_BODY = 16 * 1024 * 1024  # longer bodies are hashed, but not parsed


class CallerGoneError(Exception):
    """The caller closed its side."""


def parse_flags(argv: list[str]) -> argparse.Namespace:
    flags = argparse.ArgumentParser()
    flags.add_argument("--port", type=int, required=True)
    flags.add_argument("--host", default="127.0.0.1")
    flags.add_argument("--name", default="stub")
    flags.add_argument("--health", default="/health", help="path of the health probe")
    flags.add_argument("--boot", type=float, default=0.0, help="seconds until ready; 503 before that")
    flags.add_argument("--term", choices=["obey", "ignore"], default="obey")
    flags.add_argument("--linger", type=float, default=0.0, help="on SIGTERM: stop listening, exit so much later")
    flags.add_argument("--spam", type=int, default=0, help="bytes of log output before ready, on both streams in turn")
    flags.add_argument("--spam-no-newline", action="store_true")
    flags.add_argument("--exit-after", type=float, help="exit by itself so many seconds after boot")
    flags.add_argument("--exit-code", type=int)
    flags.add_argument("--keepalive", type=float, help="close a connection idle for so many seconds")
    flags.add_argument(
        "--max-starts-file",
        type=Path,
        help="words, one used up per start: hang (never ready), exit (at once), work; none left: work",
    )
    return flags.parse_args(argv)


class Connection(asyncio.Protocol):
    """Bytes from and to one caller; knows at once when the caller has gone."""

    def __init__(self, stub: Stub) -> None:
        self.stub = stub
        self.buffer = bytearray()
        self.gone = asyncio.Event()
        self.news = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if sock := transport.get_extra_info("socket"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.task = asyncio.ensure_future(self.stub.serve(self))

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self.news.set()
        if len(self.buffer) > HIGH_WATER:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self._lost()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()

    def _lost(self) -> None:
        self.gone.set()
        self.news.set()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    async def more(self) -> None:
        """Wait for bytes beyond those in the buffer; CallerGoneError when none will come."""
        self.news.clear()
        if self.gone.is_set():
            raise CallerGoneError
        self.transport.resume_reading()
        await self.news.wait()

    async def until(self, mark: bytes) -> bytes:
        while (end := self.buffer.find(mark)) < 0:
            await self.more()
        return self.take(end + len(mark))

    async def exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            await self.more()
        return self.take(count)

    def take(self, count: int) -> bytes:
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    async def work(self, seconds: float) -> None:
        """Pretend to compute; CallerGoneError as soon as the caller has left."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.gone.wait(), seconds)
        if self.gone.is_set():
            raise CallerGoneError

    async def send(self, data: bytes) -> None:
        await self.writable.wait()
        if self.gone.is_set():
            raise CallerGoneError
        self.transport.write(data)


class Request:
    """One request as it arrived: raw header lines, body, and what the test wants done with it."""

    def __init__(self, head: bytes) -> None:
        lines = head[:-4].split(b"\r\n")
        self.line = lines[0].decode("latin-1")
        self.raw_headers = [line.decode("latin-1") for line in lines[1:]]
        pairs = (line.partition(":") for line in self.raw_headers)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.method, target, self.version = self.line.split(" ", 2)
        url = urlsplit(target)
        self.path = url.path
        query = parse_qs(url.query)
        self.script: dict[str, Any] = json.loads(query["stub"][0]) if "stub" in query else {}
        self.rid: Any = query.get("rid", [None])[0] or self.script.get("rid")
        self.framing = "none"
        self.body = b""
        self.length = 0
        self.sha256 = ""
        self.json: dict[str, Any] = {}

    async def read_body(self, caller: Connection) -> None:
        kept, digest = bytearray(), hashlib.sha256()
        if self.headers.get("expect", "").lower() == "100-continue":
            await caller.send(b"HTTP/1.1 100 Continue\r\n\r\n")

        async def pull(count: int) -> None:
            while count:
                if not caller.buffer:
                    await caller.more()
                data = caller.take(min(count, len(caller.buffer)))
                count -= len(data)
                self.length += len(data)
                digest.update(data)
                if len(kept) <= KEEP_BODY or self.script.get("echo_body"):
                    kept.extend(data)

        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            self.framing = "chunked"
            while size := int((await caller.until(b"\r\n")).split(b";")[0], 16):
                await pull(size)
                await caller.exactly(2)
            while await caller.until(b"\r\n") != b"\r\n":
                pass
        elif "content-length" in self.headers:
            self.framing = "length"
            await pull(int(self.headers["content-length"]))
        caller.transport.resume_reading()  # paused at a long body; reading on is what shows that the caller leaves
        self.body, self.sha256 = bytes(kept), digest.hexdigest()
        if self.body[:1] == b"{" and self.length == len(self.body):
            with contextlib.suppress(ValueError):
                self.json = json.loads(self.body)
        self.script = {**self.script, **(self.json.get("stub") or {})}
        self.rid = self.json.get("rid", self.rid)


class Stub:
    """The server: its state, its journal and how it answers."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags = flags
        self.is_ready = False
        self.journal = os.open(os.environ["STUB_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.requests = 0
        self.server: asyncio.Server | None = None

    def note(self, ev: str, **fields: Any) -> None:
        entry = {"t": time.monotonic(), "ev": ev, "name": self.flags.name, "pid": os.getpid(), **fields}
        os.write(self.journal, json.dumps(entry).encode() + b"\n")

    def exit(self, code: int, why: str) -> NoReturn:
        self.note("exit", code=code, why=why)
        os._exit(code)

    async def run(self) -> None:
        fate = self._fate()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        self.note("boot", port=self.flags.port, ppid=os.getppid(), stub_id=os.environ.get("STUB_ID"), fate=fate)
        try:
            self.server = await loop.create_server(
                lambda: Connection(self), self.flags.host, self.flags.port, backlog=16384, reuse_address=True
            )
        except OSError as error:
            print(f"stub {self.flags.name}: cannot listen: {error}", file=sys.stderr, flush=True)
            self.exit(98, "port")
        print(f"stub {self.flags.name}: listening on {self.flags.port}", flush=True)
        if self.flags.exit_after is not None:
            loop.call_later(self.flags.exit_after, self.exit, self.flags.exit_code or 0, "exit_after")
        if fate == "exit":
            print(f"stub {self.flags.name}: giving up", file=sys.stderr, flush=True)
            self.exit(1 if self.flags.exit_code is None else self.flags.exit_code, "max_starts_file")
        await self.spam(self.flags.spam)
        await asyncio.sleep(self.flags.boot)
        if fate != "hang":
            self.is_ready = True
            self.note("ready")
        await asyncio.Event().wait()

    def _fate(self) -> str:
        path: Path | None = self.flags.max_starts_file
        if path is None or not path.exists():
            return "work"
        first, *rest = path.read_text().split() or ["work"]
        path.write_text(" ".join(rest))
        return first

    def _signalled(self, number: int) -> None:
        self.note("sigterm" if number == signal.SIGTERM else "sigint")
        if self.flags.term == "ignore":
            return
        if not self.flags.linger:
            self.exit(self.flags.exit_code or 0, "signal")
        if self.server is not None:
            self.server.close()
        asyncio.get_running_loop().call_later(self.flags.linger, self.exit, self.flags.exit_code or 0, "signal")

    async def spam(self, count: int) -> None:
        """Write `count` bytes of log, some of them not UTF-8, on stdout and stderr in turn. Blocks as a log does."""
        line = b"spam \xff\xfe\xc3( " + b"x" * 84 + (b"x" if self.flags.spam_no_newline else b"\n")

        def write() -> None:
            left, block, stream = count, line * 80, 1
            while left > 0:
                left -= os.write(stream, block[: min(left, len(block))])
                stream = 3 - stream

        if count:
            await asyncio.to_thread(write)

    async def serve(self, caller: Connection) -> None:
        with contextlib.suppress(CallerGoneError, ConnectionError):
            while not caller.gone.is_set():
                try:
                    head = await asyncio.wait_for(caller.until(b"\r\n\r\n"), self.flags.keepalive)
                except TimeoutError:
                    break
                request = Request(head)
                if not await self.answer(request, caller):
                    break
        caller.transport.close()

    async def answer(self, request: Request, caller: Connection) -> bool:
        """Answer one request. False: the connection ends after it."""
        if request.path == self.flags.health:
            await self.reply(caller, request, 200 if self.is_ready else 503, b'{"status":"ok"}' * self.is_ready)
            return True
        self.requests += 1
        try:
            await request.read_body(caller)
        except CallerGoneError:
            self.note("upload_gone", line=request.line, length=request.length)
            raise
        self.note(
            "req_start",
            rid=request.rid,
            line=request.line,
            headers=request.raw_headers,
            framing=request.framing,
            sha256=request.sha256,
            length=request.length,
        )
        try:
            await self.perform(request, caller)
        except CallerGoneError:
            self.note("client_gone", rid=request.rid)
            raise
        self.note("req_end", rid=request.rid)
        if request.script.get("close") == "rst":
            sock = caller.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        closing = request.version == "HTTP/1.0" or request.headers.get("connection", "").lower() == "close"
        return not (closing or request.script.get("close") or request.script.get("close_without_reply"))

    async def perform(self, request: Request, caller: Connection) -> None:
        script = request.script
        if request.path.endswith("/ws") and "sec-websocket-key" in request.headers:
            await self.websocket(request, caller)
            return
        if request.path == "/v1/models" and not script:
            models = {"object": "list", "data": [{"id": self.flags.name, "object": "model"}]}
            await self.reply(caller, request, 200, json.dumps(models).encode())
            return
        if not self.is_ready:
            await self.reply(caller, request, 503, b'{"error":{"message":"Loading model","type":"unavailable_error"}}')
            return
        await self.spam(script.get("spam", 0))
        if request.json.get("stream") and not script.get("raw"):
            await self.stream(request, caller)
            return
        await caller.work(script.get("dur", 0))
        if "die_at" in script:
            self.exit(1 if self.flags.exit_code is None else self.flags.exit_code, "die_at")
        if script.get("close_without_reply"):
            return
        if "raw" in script:
            for part in script["raw"]:
                if isinstance(part, str):
                    await caller.send(part.encode("latin-1"))
                    self.note("send", rid=request.rid, bytes=len(part))
                else:
                    await caller.work(part)
            return
        if script.get("echo_body"):
            kind, body = request.headers.get("content-type", "application/octet-stream"), request.body
        elif "size" in script:
            kind, body = "application/octet-stream", b"\xa5" * script["size"]
        else:
            kind, body = "application/json", json.dumps(self._completion(request)).encode()
        await self.reply(caller, request, script.get("status", 200), body, kind)
        self.note("send", rid=request.rid, bytes=len(body))

    def _completion(self, request: Request) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.requests}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": request.json.get("model", self.flags.name),
            "served_by": self.flags.name,
            "rid": request.rid,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": f"answer of {self.flags.name} to {request.rid}"},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
        }

    async def reply(
        self, caller: Connection, request: Request, status: int, body: bytes, kind: str = "application/json"
    ) -> None:
        extra = list(request.script.get("set_headers", []))
        if request.script.get("gzip"):
            body = gzip.compress(body)
            extra.append(["Content-Encoding", "gzip"])
        head = self._head(status, [["Content-Type", kind], ["Content-Length", str(len(body))], *extra])
        await caller.send(head + (b"" if request.method == "HEAD" else body))

    @staticmethod
    def _head(status: int, headers: list[list[str]]) -> bytes:
        lines = [f"HTTP/1.1 {status} Stub", *(f"{name}: {value}" for name, value in headers)]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    async def stream(self, request: Request, caller: Connection) -> None:
        """Server-sent events; with "gzip" each event is flushed as its own piece of one gzip stream."""
        script = request.script
        count = script.get("chunks", 3)
        gap = script.get("gap", script.get("dur", 0) / max(count, 1))
        chunked = request.version != "HTTP/1.0"
        packer = zlib.compressobj(wbits=31)
        headers = [["Content-Type", "text/event-stream"], ["Cache-Control", "no-cache"]]
        headers += [["Transfer-Encoding", "chunked"]] * chunked + [["Content-Encoding", "gzip"]] * bool(
            script.get("gzip")
        )

        async def piece(data: bytes, *, last: bool = False) -> None:
            if script.get("gzip"):
                data = packer.compress(data) + packer.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
            await caller.send(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)

        base = {
            "id": f"chatcmpl-{self.requests}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": request.json.get("model", self.flags.name),
            "rid": request.rid,
        }
        for index in range(count + 1):
            if script.get("die_at") == index:
                # A model server that dies has usually handed its last bytes to the kernel already.
                await asyncio.sleep(0)
                self.exit(1 if self.flags.exit_code is None else self.flags.exit_code, "die_at")
            await caller.work(gap if index < count else 0)
            if index == 0:
                await caller.send(self._head(script.get("status", 200), headers + list(script.get("set_headers", []))))
            if index < count:
                choice = {"index": 0, "delta": {"content": f"w{index} "}, "finish_reason": None}
            else:
                choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
            await piece(b"data: " + json.dumps({**base, "choices": [choice]}).encode() + b"\n\n")
            self.note("send", rid=request.rid, chunk=index)
        await piece(b"data: [DONE]\n\n", last=True)
        if chunked:
            await caller.send(b"0\r\n\r\n")

    async def websocket(self, request: Request, caller: Connection) -> None:
        """Echo every frame as it is, answer pings, end with the caller's close frame."""
        key = request.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
        await caller.send("\r\n".join([*lines, f"Sec-WebSocket-Accept: {accept}", "", ""]).encode())
        self.note("ws_open", rid=request.rid)
        opcode = 0
        while opcode != 0x8:
            first, second = await caller.exactly(2)
            opcode, length = first & 0x0F, second & 0x7F
            if length == 126:
                (length,) = struct.unpack("!H", await caller.exactly(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", await caller.exactly(8))
            mask = await caller.exactly(4)
            masked = await caller.exactly(length)
            pad = int.from_bytes((mask * (length // 4 + 1))[:length])
            payload = (int.from_bytes(masked) ^ pad).to_bytes(length)
            if opcode == 0x9:
                first = 0x8A
            if length < 126:
                size = bytes([length])
            elif length <= 0xFFFF:
                size = b"\x7e" + struct.pack("!H", length)
            else:
                size = b"\x7f" + struct.pack("!Q", length)
            if opcode != 0xA:
                await caller.send(bytes([first]) + size + payload)
        self.note("ws_end", rid=request.rid)
        request.script["close"] = True


if __name__ == "__main__":
    os.environ.setdefault("STUB_LOG", os.devnull)
    asyncio.run(Stub(parse_flags(sys.argv[1:])).run())
