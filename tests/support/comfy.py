"""A model server with ComfyUI's routes: `python comfy.py --port P --name comfy`. Its files are real, its graphs no.

    POST /prompt            a graph, {"prompt": {node: {"class_type", "inputs"}}, prompt_id, number, front, client_id}
    GET  /prompt, /queue, /history, /history/ID, /view, /system_stats, /
    POST /queue, /history   {"delete": [id]}, {"clear": true}: of what waits; of what is over
    POST /interrupt         {"prompt_id"}; without one: whatever runs
    POST /upload/image, /free
    GET  /ws                websocket of status and progress; ?clientId

and the same below /api. There is no /api/jobs; a gateway's probe asks /system_stats.

A graph takes the sum of its nodes' inputs "seconds"; one that names none takes --seconds. The first input "fault" is
played, see `gpu_worker.py`; /queue and /history are what is deaf. It makes one file, in a folder beside $STUB_LOG: an
mp4 when the class of its last node has "video" in its name, else a PNG. The first input "text" is what it shows, the
first input "file" its name without suffix. A graph whose input "same_as" is the id of another is answered with that
id, and does nothing: as servers do that know work which they have already.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.comfy_socket import EventSocket
from tests.support.gpu_journal import Journal
from tests.support.gpu_server import Handler, Server, flags_for, serve
from tests.support.gpu_worker import BadFieldError, Job, paint_mp4, paint_png, read_fault, read_seconds

PAGE = "<!doctype html><title>{name}</title><h1>{name}</h1><script>new WebSocket('ws://'+location.host+'/ws')</script>"


class PromptError(Exception):
    """A graph that is refused; `kind` is ComfyUI's word for why."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ComfyServer(Server):
    def __init__(self, flags: argparse.Namespace, journal: Journal, handler: type[Handler]) -> None:
        self.folder = Path(os.environ["STUB_LOG"]).parent / f"comfy-{os.getpid()}"
        for kind in ("output", "input", "temp"):
            (self.folder / kind).mkdir(parents=True)
        self.sockets: dict[EventSocket, str] = {}  #: and the client's id
        self.number = 0
        self.lock = threading.Lock()
        super().__init__(flags, journal, handler)

    def paint(self, job: Job) -> bytes:
        content = paint_mp4(job) if job.details["is_video"] else paint_png(job)
        (self.folder / "output" / file_name(job)).write_bytes(content)
        return content

    def changed(self, job: Job) -> None:
        """Tell the websockets how the job is doing."""
        node, told, said = job.details["node"], job.details["told"], messages(job)
        events: list[Any] = said[told:]
        job.details["told"] = len(said)
        prompt = {"prompt_id": job.id}
        if told == 0:
            events.append(["executing", {"node": node, **prompt}])
        if job.state == "running":
            events.append(["progress", {"value": int(job.share * 100), "max": 100, "node": node, **prompt}])
        elif job.state == "done":
            events.insert(0, ["executed", {"node": node, "output": outputs(job)[node], **prompt}])
        if job.state != "running":
            events.append(["executing", {"node": None, **prompt}])
        for socket, client in self.sockets.copy().items():
            for kind, data in events if client == job.details["client_id"] else ():
                socket.send(kind, data)
        self.send_status()

    def send_status(self) -> None:
        """The length of the queue, to everybody."""
        for socket in tuple(self.sockets):
            socket.send("status", {"status": self.left()})

    def left(self) -> dict[str, Any]:
        return {"exec_info": {"queue_remaining": sum(map(len, self.queue()))}}

    def queue(self) -> tuple[list[Job], list[Job]]:
        """What runs and what waits, of what it has not forgotten."""
        with self.gpu.lock:
            running = [job for job in self.gpu.jobs.values() if job is self.gpu.running]
            return running, list(self.gpu.waiting)

    def over(self) -> dict[str, Job]:
        """What is in the history: a graph that was deleted while it waited is not."""
        jobs = self.gpu.jobs.copy()
        return {job.id: job for job in jobs.values() if job.over.is_set() and job.started is not None}


def file_name(job: Job) -> str:
    """Of a graph that names its `file`, that one: so a graph that is answered from the cache names a file again."""
    return f"{job.details['file'] or job.id}.{'mp4' if job.details['is_video'] else 'png'}"


def queue_item(job: Job) -> list[Any]:
    extra = {"client_id": job.details["client_id"], "create_time": int(job.created * 1000)}
    return [job.number, job.id, job.details["graph"], extra, [job.details["node"]]]


def outputs(job: Job) -> dict[str, Any]:
    if job.state != "done":
        return {}
    files: dict[str, Any] = {"images": [{"filename": file_name(job), "subfolder": "", "type": "output"}]}
    return {job.details["node"]: files | ({"animated": [True]} if job.details["is_video"] else {})}


def messages(job: Job) -> list[Any]:
    """What ComfyUI says of a graph that has begun, so far."""
    node = job.details["node"]
    prompt: dict[str, Any] = {"prompt_id": job.id}
    begun = int((job.started or 0) * 1000)
    said: list[Any] = [
        ["execution_start", {**prompt, "timestamp": begun}],
        ["execution_cached", {"nodes": [], **prompt, "timestamp": begun}],
    ]
    if job.ended is not None:
        prompt["timestamp"] = int(job.ended * 1000)
        where = {**prompt, "node_id": node, "node_type": job.details["node_type"], "executed": []}
        error = {"exception_type": "RuntimeError", "exception_message": "CUDA error", "traceback": []}
        if job.state == "done":
            said.append(["execution_success", prompt])
        elif job.state == "failed":
            said.append(["execution_error", {**where, **error, "current_inputs": {}, "current_outputs": []}])
        else:
            said.append(["execution_interrupted", where])
    return said


def history_entry(job: Job) -> dict[str, Any]:
    node, is_done = job.details["node"], job.state == "done"
    status = {"status_str": "success" if is_done else "error", "completed": is_done, "messages": messages(job)}
    meta = {node: {"node_id": node, "display_node": node, "parent_node": None, "real_node_id": node}}
    return {"prompt": queue_item(job), "outputs": outputs(job), "status": status, "meta": meta if is_done else {}}


class ComfyHandler(Handler):
    server: ComfyServer

    def get(self) -> None:
        match self._route():
            case ["ws"] if self.headers.get("Upgrade", "").lower() == "websocket":
                self._websocket()
            case [""]:
                self.answer(200, PAGE.format(name="ComfyUI").encode(), "text/html")
            case ["prompt"]:
                self.answer_json(200, self.server.left())
            case ["system_stats"]:
                system = {"os": "linux", "comfyui_version": "0.3.75", "python_version": sys.version, "argv": sys.argv}
                self.answer_json(200, {"system": system, "devices": [{"name": "cuda:0", "type": "cuda", "index": 0}]})
            case ["view"]:
                self._view()
            case ["queue" | "history", *_] if self.is_deaf():
                pass
            case ["queue"]:
                running, waiting = self.server.queue()
                items = {"queue_running": running, "queue_pending": waiting}
                self.answer_json(200, {name: [queue_item(job) for job in jobs] for name, jobs in items.items()})
            case ["history", *only]:
                jobs = self.server.over()
                found = [jobs[job_id] for job_id in only or jobs if job_id in jobs]
                count = int(self.query.get("max_items", len(found)))
                self.answer_json(200, {job.id: history_entry(job) for job in found[max(len(found) - count, 0) :]})
            case _:
                self.answer(404, b"404: Not Found", "text/plain")

    def post(self) -> None:
        try:
            self._post(self.fields())
        except PromptError as error:
            details = {"type": error.kind, "message": str(error), "details": str(error), "extra_info": {}}
            self.answer_json(400, {"error": details, "node_errors": {}})
        except BadFieldError as error:
            self.answer(400, str(error).encode(), "text/plain")

    def _post(self, fields: dict[str, Any]) -> None:
        gpu = self.server.gpu
        match self._route():
            case ["prompt"]:
                self._submit(fields)
            case ["queue"]:
                for job in self.server.queue()[1]:
                    if fields.get("clear") or job.id in fields.get("delete", []):
                        gpu.cancel(job)
                self.server.send_status()
                self.answer(200, b"")
            case ["history"]:
                for job_id in self.server.over():
                    if fields.get("clear") or job_id in fields.get("delete", []):
                        gpu.jobs.pop(job_id, None)
                self.answer(200, b"")
            case ["interrupt"]:
                for job in self.server.queue()[0]:
                    if fields.get("prompt_id", job.id) == job.id:
                        gpu.cancel(job)
                self.answer(200, b"")
            case ["free"]:
                self.answer(200, b"")
            case ["upload", "image"] if isinstance(fields.get("image"), tuple):
                name, content = fields["image"]
                (self.server.folder / "input" / Path(name).name).write_bytes(content)
                self.answer_json(200, {"name": Path(name).name, "subfolder": "", "type": "input"})
            case ["upload", "image"]:
                self.answer(400, b"")
            case _:
                self.answer(404, b"404: Not Found", "text/plain")

    def _route(self) -> list[str]:
        return self.path.removeprefix("/api")[1:].split("/")

    def _submit(self, fields: dict[str, Any]) -> None:
        job = self._job(fields)
        known = next(
            (node["inputs"]["same_as"] for node in job.details["graph"].values() if "same_as" in node["inputs"]), ""
        )
        job = self.server.gpu.jobs.get(known, job)
        if not known:
            self.server.gpu.submit(job)
        self.server.send_status()
        if job.fault == "slow_submit":
            time.sleep(job.fault_s)
        self.answer_json(200, {"prompt_id": job.id, "number": job.number, "node_errors": {}})

    def _job(self, fields: dict[str, Any]) -> Job:
        graph, job_id = fields.get("prompt"), fields.get("prompt_id") or str(uuid.uuid4())
        if not isinstance(graph, dict):
            raise PromptError("no_prompt", "No prompt provided")
        if not graph:
            raise PromptError("prompt_no_outputs", "Prompt has no outputs")
        if not all(isinstance(node, dict) and isinstance(node.get("inputs", {}), dict) for node in graph.values()):
            raise PromptError("missing_node_type", "Cannot execute because a node is not an object with inputs")
        if not _is_canonical_uuid(job_id):
            raise PromptError("invalid_prompt_id", f"prompt_id must be a lowercase UUID, not {job_id!r}")
        with self.server.lock:
            number = self.server.number
            self.server.number += 1
        inputs = [node.get("inputs", {}) for node in graph.values()]
        seconds = [read_seconds(each["seconds"], 0.0) for each in inputs if "seconds" in each]
        fault, fault_s = read_fault(next((each["fault"] for each in inputs if each.get("fault")), ""))
        last, node_type = list(graph)[-1], str(list(graph.values())[-1].get("class_type", "SaveImage"))
        return Job(
            id=job_id,
            number=float(fields["number"]) if "number" in fields else -number if fields.get("front") else number,
            seconds=sum(seconds) if seconds else self.server.flags.seconds,
            prompt=next((str(each["text"]) for each in inputs if "text" in each), ""),
            fault=fault,
            fault_s=fault_s,
            details={
                "graph": graph,
                "client_id": fields.get("client_id"),
                "node": last,
                "node_type": node_type,
                "file": next((str(each["file"]) for each in inputs if "file" in each), ""),
                "is_video": "video" in node_type.lower(),
                "told": 0,  # how many of its messages the websockets have got
            },
        )

    def _view(self) -> None:
        name, kind = self.query.get("filename", ""), self.query.get("type", "output")
        if not name or name != Path(name).name or kind not in ("output", "input", "temp"):
            self.answer(400, b"")
            return
        file = self.server.folder / kind / name
        if file.is_file():
            self.answer(200, file.read_bytes(), "video/mp4" if name.endswith(".mp4") else "image/png")
        else:
            self.answer(404, b"")

    def _websocket(self) -> None:
        client = self.query.get("clientId") or uuid.uuid4().hex
        socket = EventSocket(self)
        socket.send("status", {"status": self.server.left(), "sid": client})
        self.server.sockets[socket] = client
        socket.listen()
        del self.server.sockets[socket]
        self.close_connection = True


def _is_canonical_uuid(text: object) -> bool:
    try:
        return str(uuid.UUID(str(text))) == text
    except ValueError:
        return False


def main() -> NoReturn:
    serve(ComfyServer, ComfyHandler, flags_for("Run graphs, one at a time, behind ComfyUI's routes.").parse_args())


if __name__ == "__main__":
    main()
