"""A video model server whose jobs outlive their answers: `python video_jobs.py --port P --name wan --flavour vllm`.

It speaks the OpenAI videos API, renders one real mp4 at a time and journals what it does; see `gpu_journal.py`.

    POST   /v1/videos               JSON or multipart; answers at once: queued
    GET    /v1/videos               the list; ?after, ?limit, ?order
    GET    /v1/videos/ID            the job; its progress is 0 to 100
    GET    /v1/videos/ID/content    the mp4; 404 until it is done
    DELETE /v1/videos/ID
    POST   /v1/videos/ID/remix      a new job of the same size and length; fields that are given replace those of ID
    POST   /v1/videos/edits, /extensions    the same of the video that the field `video` or `video_id` names
    POST   /v1/videos/sync          answers with the mp4; the render goes on when the caller leaves
    GET    /health

A clip of N `seconds` takes N seconds to render. Other fields: prompt (required), model, size, seed, num_frames
(default 5) and `fault`, see `gpu_worker.py`. Every flavour has all routes, though not every real server does. What
differs between them is told in `video_flavours.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.gpu_journal import Journal
from tests.support.gpu_server import Handler, Server, flags_for, serve
from tests.support.gpu_worker import Job, paint_mp4, read_fault, read_seconds
from tests.support.video_flavours import FLAVOURS


class VideoServer(Server):
    def __init__(self, flags: argparse.Namespace, journal: Journal, handler: type[Handler]) -> None:
        self.flavour = FLAVOURS[flags.flavour]()
        super().__init__(flags, journal, handler)

    def paint(self, job: Job) -> bytes:
        return paint_mp4(job, frames=job.details["frames"], seed=job.details["seed"])


class VideoHandler(Handler):
    server: VideoServer

    def get(self) -> None:
        flavour, job_id, tail = self.server.flavour, *self._target()
        if self.is_deaf():
            return
        if job_id == "":
            self._list()
        elif (job := self._find(job_id)) is None or tail not in ("", "content"):
            self.answer_json(*flavour.unknown())
        elif not tail:
            self.answer_json(*flavour.retrieve(job))
        elif job.state != "done":
            self.answer_json(*flavour.no_content(job))
        elif job.fault == "content_hang":
            threading.Event().wait()
        elif job.fault == "content_503" and job.fault_s > 0:
            job.fault_s -= 1
            self.answer_json(*flavour.error(503, "busy"))
        else:
            disposition = {"Content-Disposition": f'attachment; filename="{job.id}.mp4"'}
            self.answer(200, job.product, "video/mp4", disposition)

    def post(self) -> None:
        job_id, tail = self._target()
        try:
            if (job_id, tail) == ("", ""):
                self._create(self.fields(), {})
            elif (job_id, tail) == ("sync", ""):
                self._create_and_wait(self.fields())
            elif (source := self._source(job_id, tail)) and (origin := self._find(source)):
                self._create({**origin.details["fields"], **self.fields()}, {"remixed_from": origin.id})
            else:
                self.answer_json(*self.server.flavour.unknown())
        except ValueError as error:
            self.answer_json(*self.server.flavour.error(400, str(error)))

    def delete(self) -> None:
        job_id, tail = self._target()
        job = self.server.gpu.jobs.get(job_id or "")
        if job is None or tail:
            self.answer_json(*self.server.flavour.unknown())
        else:
            self.answer_json(*self.server.flavour.delete(job, self.server.gpu))

    def _target(self) -> tuple[str | None, str]:
        """The job's id, "" for all of them, None for a path beside them; and the rest of the path."""
        head, _, rest = self.path.partition("/v1/videos")
        if head or (rest and not rest.startswith("/")):
            return None, ""
        job_id, _, tail = rest[1:].partition("/")
        return job_id, tail

    def _find(self, job_id: str | None) -> Job | None:
        job = self.server.gpu.jobs.get(job_id or "")
        return None if job is None or job.state == "cancelled" else job

    def _source(self, job_id: str | None, tail: str) -> str | None:
        """The id of the job that a request goes on from."""
        if (job_id, tail) not in (("edits", ""), ("extensions", "")):
            return job_id if tail == "remix" else None
        fields = self.fields()
        source = fields.get("video") or fields.get("video[id]") or fields.get("video_id")
        return str(source.get("id") if isinstance(source, dict) else source)

    def _list(self) -> None:
        newest_first = self.query.get("order", "desc") == "desc"
        jobs = [job for job in self.server.gpu.jobs.copy().values() if job.state != "cancelled"]
        jobs = jobs[::-1] if newest_first else jobs
        if after := self.query.get("after"):
            ids = [job.id for job in jobs]
            jobs = jobs[ids.index(after) + 1 :] if after in ids else []
        limit = int(self.query.get("limit", len(jobs)))
        self.answer_json(200, self.server.flavour.page(jobs[:limit], has_more=len(jobs) > limit))

    def _job(self, job_id: str, fields: dict[str, Any], details: dict[str, Any]) -> Job:
        fault, fault_s = read_fault(fields.get("fault"))
        seconds = read_seconds(fields.get("seconds"), self.server.flags.seconds)
        details = {
            "fields": {name: value for name, value in fields.items() if name != "fault"},
            "model": fields.get("model") or self.server.flags.name,
            "size": fields.get("size", "64x48"),
            "seconds": str(fields.get("seconds", self.server.flags.seconds)),
            "seed": int(fields.get("seed", 0)),
            "frames": int(fields.get("num_frames", 5)),
            "remixed_from": None,
            **details,
        }
        prompt = str(fields["prompt"])
        return Job(id=job_id, number=0, seconds=seconds, prompt=prompt, fault=fault, fault_s=fault_s, details=details)

    def _create(self, fields: dict[str, Any], details: dict[str, Any]) -> None:
        flavour = self.server.flavour
        if not fields.get("prompt"):
            self.answer_json(*flavour.no_prompt())
            return
        job = self._job(flavour.new_id(), fields, details)
        queued = flavour.shape(job)
        self.server.gpu.submit(job)
        if job.fault == "slow_submit":
            time.sleep(job.fault_s)
        if job.fault == "no_id":
            del queued["id"]
        self.answer_json(200, queued)

    def _create_and_wait(self, fields: dict[str, Any]) -> None:
        flavour = self.server.flavour
        if not fields.get("prompt"):
            self.answer_json(*flavour.no_prompt())
            return
        job = self._job(f"video_sync-{uuid.uuid4()}", fields, {})
        self.server.gpu.submit(job, remember=False)
        job.over.wait()
        if job.state != "done":
            self.answer_json(*flavour.error(500, "Video generation failed: CUDA error"))
            return
        headers = {
            "X-Request-Id": job.id,
            "X-Model": job.details["model"],
            "X-Inference-Time-S": str(job.seconds),
            "X-Stage-Durations": json.dumps({}),
            "X-Peak-Memory-MB": "0.0",
        }
        self.answer(200, job.product, "video/mp4", headers)


def main() -> NoReturn:
    flags = flags_for("Render videos, one at a time, behind the OpenAI videos API.")
    flags.add_argument("--flavour", choices=sorted(FLAVOURS), default="openai")
    serve(VideoServer, VideoHandler, flags.parse_args())


if __name__ == "__main__":
    main()
