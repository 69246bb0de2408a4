"""A gateway's management routes with fixed answers: `python fake_gateway.py`; prints its port, then serves.

Jobs whose id begins with "live" can be cancelled once. Below /elsewhere it answers like a server that is no
gateway.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import unquote

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


class Handler(BaseHTTPRequestHandler):
    cancelled: ClassVar[set[str]] = set()

    def do_GET(self) -> None:
        if self.path == "/api/queue":
            self.answer(200, QUEUE)
        elif self.path == "/elsewhere/api/queue":
            self.answer(200, {"hello": "world"})
        else:
            self.refuse(404, "page not found")

    def do_DELETE(self) -> None:
        job_id = unquote(self.path.rpartition("/")[2])
        if job_id.startswith("live") and job_id not in self.cancelled:
            self.cancelled.add(job_id)
            self.answer(200, {"id": job_id})
        else:
            self.refuse(404, f"there is no job {job_id} now")

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
