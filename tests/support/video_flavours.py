"""How servers of the OpenAI videos API differ: the shape of a job, what a failure answers, what DELETE does.

    openai    a failed job answers 200; DELETE: 409 while it renders, a queued job never begins
    vllm      ids video_gen_HEX; a failed job answers 500 and the job; progress stays 0 to the end; DELETE aborts the
              render and waits for that, 409 when it takes longer than CANCEL_WAIT_S
    sglang    ids are UUIDs; a job is queued, with progress 0, until it is over; DELETE only forgets: a queued job
              begins nevertheless, a render goes on

Called by `video_jobs.py`, which has the routes.
"""

from __future__ import annotations

import uuid
from typing import Any

from tests.support.gpu_worker import Gpu, Job

CANCEL_WAIT_S = 0.5  #: a real vLLM-Omni takes 2

Answer = tuple[int, dict[str, Any]]


class OpenAI:
    """The plain API, and what the other flavours change of it."""

    prefix = "video_"

    def new_id(self) -> str:
        return self.prefix + uuid.uuid4().hex

    def status(self, job: Job) -> str:
        return {"running": "in_progress", "done": "completed", "killed": "failed"}.get(job.state, job.state)

    def progress(self, job: Job) -> int:
        return 100 if job.state == "done" else int(job.share * 100)

    def failure(self, job: Job) -> dict[str, Any] | None:
        return {"code": "video_generation_failed", "message": "CUDA error"} if self.status(job) == "failed" else None

    def shape(self, job: Job) -> dict[str, Any]:
        """The job's JSON."""
        ended = int(job.ended) if job.ended and job.state == "done" else None
        return {
            "id": job.id,
            "object": "video",
            "model": job.details["model"],
            "status": self.status(job),
            "progress": self.progress(job),
            "created_at": int(job.created),
            "completed_at": ended,
            "expires_at": None,
            "prompt": job.prompt,
            "size": job.details["size"],
            "seconds": job.details["seconds"],
            "remixed_from_video_id": job.details["remixed_from"],
            "error": self.failure(job),
        }

    def error(self, status: int, message: str) -> Answer:
        kind = "invalid_request_error" if status < 500 else "server_error"
        return status, {"error": {"message": message, "type": kind, "param": None, "code": None}}

    def unknown(self) -> Answer:
        return self.error(404, "Video not found")

    def no_prompt(self) -> Answer:
        return self.error(400, "Missing required parameter: 'prompt'.")

    def no_content(self, job: Job) -> Answer:
        return self.error(404, "Video is not ready yet, use GET /v1/videos/{video_id} to check status.")

    def retrieve(self, job: Job) -> Answer:
        return 200, self.shape(job)

    def page(self, jobs: list[Job], *, has_more: bool) -> dict[str, Any]:
        data = [self.shape(job) for job in jobs]
        ids = {"first_id": jobs[0].id if jobs else None, "last_id": jobs[-1].id if jobs else None}
        return {"object": "list", "data": data, **ids, "has_more": has_more}

    def delete(self, job: Job, gpu: Gpu) -> Answer:
        if job.state == "running":
            return self.error(409, "Video is still being generated and cannot be deleted.")
        gpu.cancel(job)
        gpu.jobs.pop(job.id, None)
        return 200, {"id": job.id, "deleted": True, "object": "video.deleted"}


class VllmOmni(OpenAI):
    """As vLLM-Omni answers."""

    prefix = "video_gen_"

    def progress(self, job: Job) -> int:
        return 100 if job.state == "done" else 0

    def failure(self, job: Job) -> dict[str, Any] | None:
        return {"code": 500, "message": "CUDA error"} if self.status(job) == "failed" else None

    def shape(self, job: Job) -> dict[str, Any]:
        is_done = job.state == "done"
        return {
            **super().shape(job),
            "quality": "default",
            "media_type": "video/mp4",
            "file_name": f"{job.id}.mp4" if is_done else None,
            "inference_time_s": job.seconds if is_done else None,
            "stage_durations": {},
            "peak_memory_mb": 0.0,
            "action": None,
        }

    def error(self, status: int, message: str) -> Answer:
        return status, {"detail": message}

    def no_prompt(self) -> Answer:
        return 422, {"detail": [{"type": "missing", "loc": ["body", "prompt"], "msg": "Field required", "input": None}]}

    def no_content(self, job: Job) -> Answer:
        if self.status(job) == "failed":
            return self.error(422, "Video generation failed. Check job status for error details.")
        return self.error(404, "Generation is still in-progress")

    def retrieve(self, job: Job) -> Answer:
        return 500 if self.status(job) == "failed" else 200, self.shape(job)

    def delete(self, job: Job, gpu: Gpu) -> Answer:
        gpu.cancel(job)
        if not job.over.wait(CANCEL_WAIT_S):
            return self.error(409, "Cancellation in progress. Please try again later.")
        gpu.jobs.pop(job.id, None)
        return 200, {"id": job.id, "deleted": True, "object": "video.deleted"}


class Sglang(OpenAI):
    """As SGLang's diffusion server answers."""

    def new_id(self) -> str:
        return str(uuid.uuid4())

    def status(self, job: Job) -> str:
        return "queued" if job.state == "running" else super().status(job)

    def progress(self, job: Job) -> int:
        return 100 if job.state == "done" else 0

    def failure(self, job: Job) -> dict[str, Any] | None:
        return {"message": "CUDA error"} if self.status(job) == "failed" else None

    def shape(self, job: Job) -> dict[str, Any]:
        is_done = job.state == "done"
        shape = {
            **super().shape(job),
            "quality": "standard",
            "url": None,
            "file_path": f"outputs/{job.id}.mp4" if is_done else None,
            "peak_memory_mb": 0.0 if is_done else None,
            "inference_time_s": job.seconds if is_done else None,
        }
        del shape["prompt"]
        return shape

    def error(self, status: int, message: str) -> Answer:
        return status, {"detail": message}

    def no_prompt(self) -> Answer:
        return self.error(400, "prompt is required")

    def no_content(self, job: Job) -> Answer:
        return self.error(404, "Generation is still in-progress")

    def page(self, jobs: list[Job], *, has_more: bool) -> dict[str, Any]:
        return {"data": [self.shape(job) for job in jobs], "object": "list"}

    def delete(self, job: Job, gpu: Gpu) -> Answer:
        gpu.jobs.pop(job.id, None)
        return 200, {**self.shape(job), "status": "deleted"}


FLAVOURS: dict[str, type[OpenAI]] = {"openai": OpenAI, "vllm": VllmOmni, "sglang": Sglang}
