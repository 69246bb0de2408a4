"""The output and the error file of a batch, line by line, out of the recorded answers of its jobs.

Decides what belongs into which file. The output file has the lines that were answered with a status of 200 to 299,
the error file the others: with the model's answer where there is one, else with the reason why there is none. An
answer that is not JSON, such as speech, becomes `{"content_type": ..., "base64": ...}`. Called by `batch_run`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

from swaplane.gateway.batch_record import Batch
from swaplane.gateway.errors import go_json
from swaplane.gateway.job_answers import CANCELLED, failure_words, is_whole, parsed, succeeded
from swaplane.store import StoredJob
from swaplane.store.jobs import JobTable

_PIECE = 768 << 10  # bytes; divisible by three, so that base64 can be written in pieces

#: (code, message) of lines that did not run, or not to their end, because of what became of their batch.
_ENDINGS = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was cancelled together with its batch."),
}


async def file_lines(jobs: JobTable, batch: Batch, *, errors: bool) -> AsyncIterator[bytes]:
    """The bytes of one of the files, in order of line. Raises OSError and StoreError."""
    held = bytearray()
    async for job in jobs.of_batch(batch.id):
        if succeeded(job) == errors:
            continue
        async for piece in _line(job, jobs.answer_path(job.id), batch):
            held += piece
            if len(held) >= _PIECE:
                yield bytes(held)
                held.clear()
    yield bytes(held)


async def _line(job: StoredJob, answer: Path, batch: Batch) -> AsyncIterator[bytes]:
    yield f'{{"id":{go_json("batch_req_" + job.id)},"custom_id":{go_json(job.custom_id)},'.encode()
    if not is_whole(job):
        code, message = str(job.outcome), ""
        if job.outcome in CANCELLED and batch.ending in _ENDINGS:
            code, message = _ENDINGS[batch.ending]
        message = message or await asyncio.to_thread(failure_words, job, answer)
        yield _without_answer(code, message)
        return
    try:
        whole, size = await asyncio.to_thread(_json_in, job, answer)
    except FileNotFoundError:
        yield _without_answer("answer_lost", "the recorded answer is gone from the gateway's disk")
        return
    yield b'"response":{"status_code":%d,"request_id":%b,"body":' % (job.status or 0, go_json(job.id).encode())
    if whole is not None:
        yield whole
    else:
        yield f'{{"content_type":{go_json(_content_type(job))},"base64":"'.encode()
        for at in range(0, size, _PIECE):
            yield await asyncio.to_thread(_base64, answer, at)
        yield b'"}'
    yield b'},"error":null}\n'


def _without_answer(code: str, message: str) -> bytes:
    return f'"response":null,"error":{go_json({"code": code, "message": message})}}}\n'.encode("utf-8", "replace")


def _content_type(job: StoredJob) -> str:
    headers = job.answer_headers or []
    return next((value.decode("latin-1") for name, value in headers if name.lower() == b"content-type"), "")


def _json_in(job: StoredJob, answer: Path) -> tuple[bytes | None, int]:
    """(the answer in one line if it is JSON, its length in bytes). Raises OSError."""
    size = answer.stat().st_size
    if "json" not in _content_type(job).lower():
        return None, size
    data = answer.read_bytes()
    try:
        parsed(data)
    except ValueError:
        return None, size
    # Strings hold no line ends as such, so these stand between the values only.
    return data.replace(b"\r", b" ").replace(b"\n", b" "), size


def _base64(answer: Path, at: int) -> bytes:
    with answer.open("rb") as file:
        file.seek(at)
        return base64.b64encode(file.read(_PIECE))
