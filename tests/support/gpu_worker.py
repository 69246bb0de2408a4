"""The GPU of a model server that renders: one worker, the jobs it knows, and what goes wrong on request.

It renders one job at a time, lowest `number` first. It mostly waits: a job takes its `seconds`, whatever it paints.
It knows nothing of HTTP and of the shape of answers. Called by the servers that `gpu_server.py` carries.

A job's `fault` goes wrong on purpose:

    fail            the render fails at its end
    never           it never ends
    forget          halfway the server forgets the job; the render goes on to its end
    restart         halfway the server forgets all jobs and ends the render, as when a worker inside is restarted
    crash           halfway the process exits with code 1
    deaf:N          for N seconds from the render's beginning, questions get 503 or a closed connection in turn
    slow_submit:N   the submit is answered after N seconds; the job goes ahead meanwhile
    slow_cancel:N   a cancelled render holds the GPU for N more seconds
    no_id           the submit is answered with 200, but without the job's id (videos only)
    content_503:N   what it made is refused N times with 503 (videos only)
    content_hang    what it made is never given out, and never refused (videos only)
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from tests.support.gpu_journal import BEAT_S, Journal

FAULTS = {"fail", "never", "forget", "restart", "crash", "no_id", "content_hang"}
TIMED_FAULTS = {"deaf", "slow_submit", "slow_cancel", "content_503"}
WIDTH, HEIGHT, FPS = 64, 48, 24


class BadFieldError(ValueError):
    """A field of the request makes no sense; the text says which and what is right."""


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One render and its fate. `state`: queued, running, then done, failed, cancelled or killed."""

    id: str
    number: float  #: lower goes first
    seconds: float  #: of rendering
    prompt: str = ""
    fault: str = ""
    fault_s: float = 0.0  #: the N of faults that have one
    details: dict[str, Any] = field(default_factory=dict)  #: whatever its server wants to remember
    state: str = "queued"
    created: float = field(default_factory=time.time)  #: these three: Unix time
    started: float | None = None
    ended: float | None = None
    share: float = 0.0  #: of the render that is done, 0 to 1
    cancelled_at: float | None = None  #: CLOCK_MONOTONIC
    product: bytes = b""  #: to be given out once it is done
    over: threading.Event = field(default_factory=threading.Event)


def read_fault(text: object) -> tuple[str, float]:
    """The fault's name and its N, 0 when it has none; raises `BadFieldError`."""
    name, _, number = str(text or "").partition(":")
    if name in TIMED_FAULTS:
        try:
            return name, float(number)
        except ValueError:
            raise BadFieldError(f"fault: {text!r} needs seconds, as in {name}:2") from None
    if number or (name and name not in FAULTS):
        raise BadFieldError(f"fault: {text!r} is none of {sorted(FAULTS)}, {sorted(f'{n}:N' for n in TIMED_FAULTS)}")
    return name, 0.0


def read_seconds(value: object, default: float) -> float:
    """Seconds of rendering; raises `BadFieldError`."""
    try:
        seconds = default if value is None else float(str(value))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise BadFieldError(f"seconds: {value!r} is not a number of seconds")
    return seconds


class Gpu:
    """Renders one job at a time in a thread of its own.

    `jobs` is what the server remembers, in order of arrival. `paint` makes a job's product. `changed` is called in
    the worker's thread, without the lock, whenever a job begins, goes on or ends.
    """

    def __init__(self, journal: Journal, paint: Callable[[Job], bytes], changed: Callable[[Job], None]) -> None:
        self.jobs: dict[str, Job] = {}
        self.running: Job | None = None
        self.waiting: list[Job] = []
        self.lock = threading.Condition()
        self._journal, self._paint, self._changed = journal, paint, changed
        self._deaf_until = 0.0
        self._deaf_answers = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="gpu", daemon=True)
        self._thread.start()

    def submit(self, job: Job, *, remember: bool = True) -> None:
        """Queue a job. One that is not remembered can be waited for, but not found."""
        with self.lock:
            if remember:
                self.jobs[job.id] = job
            self.waiting.append(job)
            self.lock.notify_all()

    def cancel(self, job: Job) -> None:
        """Take it out of the queue, or tell the worker to end its render, which it does soon."""
        with self.lock:
            if job in self.waiting:
                self.waiting.remove(job)
                self._end(job, "cancelled")
            elif job.cancelled_at is None:
                job.cancelled_at = time.monotonic()
            self.lock.notify_all()

    def stop(self) -> None:
        """End the render, and the worker; returns when the journal has it."""
        with self.lock:
            self._stopping = True
            self.lock.notify_all()
        self._thread.join()

    def deafness(self) -> Literal["", "503", "hang up"]:
        """How a question must be answered now: as usual, or in one of two bad ways in turn."""
        with self.lock:
            if time.monotonic() >= self._deaf_until:
                return ""
            self._deaf_answers += 1
            return "503" if self._deaf_answers % 2 else "hang up"

    def _work(self) -> None:
        while True:
            with self.lock:
                self.lock.wait_for(lambda: self.waiting or self._stopping)
                if self._stopping:
                    return
                job = min(self.waiting, key=lambda waiting: waiting.number)
                self.waiting.remove(job)
                self.running, job.state, job.started = job, "running", time.time()
                self._journal.note("gpu_start", id=job.id, prompt=job.prompt)
            began_s = time.monotonic()
            if job.fault == "deaf":
                self._deaf_until = began_s + job.fault_s
            painter = threading.Thread(target=self._paint_into, args=(job,), daemon=True)
            painter.start()
            self._changed(job)
            how = self._spend(job, began_s, painter)
            with self.lock:
                # Written before anybody can see the job's end, so that whoever acts on it comes later in the journal.
                self._journal.note("gpu_end", id=job.id, how="killed" if how == "restart" else how)
                self.running = None
                self._end(job, "killed" if how == "restart" else how)
                if how == "restart":
                    self._forget_all()
            self._changed(job)

    def _paint_into(self, job: Job) -> None:
        job.product = self._paint(job)

    def _spend(self, job: Job, began_s: float, painter: threading.Thread) -> str:
        """Let the job's time pass; how it ended: a state, or "restart"."""
        half_s = began_s + job.seconds / 2
        end_s = math.inf if job.fault == "never" else began_s + job.seconds
        half_is_over = False
        while True:
            with self.lock:
                now_s = time.monotonic()
                if self._stopping:
                    return "killed"
                freed_s = job.fault_s if job.fault == "slow_cancel" else 0.0
                if job.cancelled_at is not None and now_s >= job.cancelled_at + freed_s:
                    return "cancelled"
                if now_s >= half_s and not half_is_over:
                    half_is_over = True
                    if job.fault == "restart":
                        return "restart"
                    self._halfway(job)
                if now_s >= end_s and job.cancelled_at is None and not painter.is_alive():
                    return "done" if job.product and job.fault != "fail" else "failed"
                job.share = min((now_s - began_s) / job.seconds, 0.99) if job.seconds else 0.0
                self.lock.wait(min(BEAT_S, end_s - now_s) if end_s > now_s else BEAT_S)
            self._journal.note("gpu_beat", id=job.id)
            self._changed(job)

    def _halfway(self, job: Job) -> None:
        if job.fault == "crash":
            self._journal.note("gpu_end", id=job.id, how="killed")
            leave(self._journal, 1, "crash")
        if job.fault == "forget":
            self.jobs.pop(job.id, None)

    def _forget_all(self) -> None:
        for waiting in self.waiting:
            self._end(waiting, "killed")
        self.waiting.clear()
        self.jobs.clear()

    def _end(self, job: Job, how: str) -> None:
        job.state, job.ended = how, time.time()
        job.over.set()


def paint_mp4(job: Job, *, frames: int = 5, seed: int = 0) -> bytes:
    """A real, tiny mp4 which shows the job's prompt."""
    # PyAV and numpy take their time to import. A server that never renders does without.
    from swaplane.demo.frames import Mp4, paint

    video = Mp4(width=WIDTH, height=HEIGHT, fps=FPS)
    for index in range(frames):
        video.add(paint(prompt=job.prompt, seed=seed, shot=1, at_s=index / FPS, width=WIDTH, height=HEIGHT))
    return video.close()


def paint_png(job: Job) -> bytes:
    """One real, tiny picture which shows the job's prompt."""
    from fractions import Fraction

    import av

    from swaplane.demo.frames import paint

    codec = av.CodecContext.create("png", "w")
    codec.width, codec.height, codec.pix_fmt, codec.time_base = WIDTH, HEIGHT, "rgb24", Fraction(1)
    pixels = paint(prompt=job.prompt, seed=0, shot=1, at_s=0, width=WIDTH, height=HEIGHT)
    return b"".join(bytes(packet) for packet in codec.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))


def leave(journal: Journal, code: int, why: str) -> NoReturn:
    """Write the journal's last line and end the process at once."""
    journal.note("exit", code=code, why=why)
    os._exit(code)
