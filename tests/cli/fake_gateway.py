"""A gateway's management routes with fixed answers: `python fake_gateway.py`; prints its port, then serves.

Jobs whose id begins with "live" can be cancelled once. Below /elsewhere it answers like a server that is no
gateway, below /two like a gateway with two lanes, below /keyed like one with keys: KEY may do everything, MEMBER may
not pause.
"""

from __future__ import annotations

import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import unquote

KEY, MEMBER = "sk-CANARY-schlüssel", "sk-CANARY-member"
JOB = {
    "id": "live-1", "model": "gemma", "member": "alice", "label": "shot=1/2", "priority": -98, "band": "batch",
    "base": -100, "tier_bonus": 2, "affinity": 10.0, "aging": 0.5, "score": -87.5, "waited_s": 30.0, "aging_s": 30.0,
    "position": None, "state": "running", "reason": "running for 1.0 s",
}  # fmt: skip
QUEUE = {
    "lanes": [
        {
            "name": "gpu",
            "size": 1,
            "paused": False,
            "resident": ["gemma"],
            "running": [JOB],
            "waiting": [
                {**JOB, "id": "live-2", "member": "bob", "position": 1, "state": "waiting", "reason": "next"},
            ],
            "waiting_total": 1,
        }
    ]
}
TWO = {"lanes": [*QUEUE["lanes"], {**QUEUE["lanes"][0], "name": "cpu", "running": [], "waiting": []}]}
MEMBERS = {
    "members": [
        {
            "member": "alice", "weight": 1, "running": 1, "waiting": 12, "gpu_s": 91.0, "share": 0.75,
            "hour_gpu_s": 61.0, "budget_left_s": None,
        },
        {
            "member": "bob", "weight": 1, "running": 0, "waiting": 0, "gpu_s": 30.0, "share": 0.25,
            "hour_gpu_s": 0.0, "budget_left_s": None,
        },
    ],
    "since_s": 7260.0,
}  # fmt: skip
KEYED = "/keyed"


class Handler(BaseHTTPRequestHandler):
    cancelled: ClassVar[set[str]] = set()

    def do_GET(self) -> None:
        if not self.is_let_in():
            return
        answers: dict[str, dict[str, Any]] = {
            "/api/queue": QUEUE,
            "/api/members": MEMBERS,
            "/two/api/queue": TWO,
            "/elsewhere/api/queue": {"hello": "world"},
            "/elsewhere/api/members": {"members": 5},
        }
        if self.path in answers:
            self.answer(200, answers[self.path])
        else:
            self.refuse(404, "page not found")

    def do_POST(self) -> None:
        if not self.is_let_in():
            return
        if self.caller == MEMBER:
            self.refuse(403, "this needs a key with `admin: true`")
        elif (match := re.fullmatch(r"(?:/two)?/api/lanes/(gpu|cpu)/(pause|resume)", self.path)) is not None:
            self.answer(200, {"lane": match[1], "paused": match[2] == "pause"})
        else:
            self.refuse(404, f"no lane in {self.path}; there is `gpu`")

    def do_DELETE(self) -> None:
        if not self.is_let_in():
            return
        job_id = unquote(self.path.rpartition("/")[2])
        if job_id.startswith("live") and job_id not in self.cancelled:
            self.cancelled.add(job_id)
            self.answer(200, {"id": job_id})
        else:
            self.refuse(404, f"there is no job {job_id} now")

    def is_let_in(self) -> bool:
        """Whether the caller's key is known, where one is asked for; else it is refused."""
        self.caller = ""
        if not self.path.startswith(KEYED):
            return True
        self.path = self.path.removeprefix(KEYED)
        # Headers are read as Latin-1; a key is UTF-8.
        scheme, _, key = self.headers.get("Authorization", "").encode("latin-1").decode().partition(" ")
        self.caller = key
        if scheme == "Bearer" and key in (KEY, MEMBER):
            return True
        self.refuse(401, "unauthorized: invalid or missing API key")
        return False

    def refuse(self, status: int, message: str) -> None:
        self.answer(status, {"error": {"message": message}})

    def answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass  # the port is all that may stand on standard output


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
