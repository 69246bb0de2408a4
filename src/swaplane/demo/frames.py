"""The picture and the file format of the demo's films: one frame, one mp4 of frames, many mp4s joined.

A frame is a function of (prompt, seed, shot, second): the same request renders the same film. It knows
nothing of HTTP or of waiting. Called by `video_server`, which renders shots, and `film`, which joins them.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import av
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  #: height x width x 3, RGB

#: Digits of 3 x 5 dots, a row in three bits, from the top.
_DIGITS = {
    "0": (7, 5, 5, 5, 7), "1": (2, 6, 2, 2, 7), "2": (7, 1, 7, 4, 7), "3": (7, 1, 7, 1, 7), "4": (5, 5, 7, 1, 1),
    "5": (7, 4, 7, 1, 7), "6": (7, 4, 7, 5, 7), "7": (7, 1, 2, 2, 2), "8": (7, 5, 7, 5, 7), "9": (7, 5, 7, 1, 7),
}  # fmt: skip


def paint(*, prompt: str, seed: int, shot: int, at_s: float, width: int, height: int) -> Pixels:
    """One frame: plasma whose waves and colours come from prompt and seed, with the shot's number on it."""
    chance = np.random.default_rng(int.from_bytes(hashlib.sha256(f"{seed}:{prompt}".encode()).digest()[:8], "big"))
    across, down = np.meshgrid(np.linspace(0, 4, width, dtype=np.float32), np.linspace(0, 3, height, dtype=np.float32))
    waves = np.zeros((height, width), dtype=np.float32)
    for _ in range(4):
        along, sideways, speed, phase = chance.uniform(-2.5, 2.5, size=4)
        waves += np.sin(along * across + sideways * down + speed * at_s + phase)
    waves += np.sin(np.hypot(across - 2, down - 1.5) * 4 - 3 * at_s)
    tints = chance.uniform(0, 2 * np.pi, size=3)
    colours = 0.5 + 0.5 * np.cos(waves[..., None] + tints + 0.3 * at_s)
    pixels: Pixels = (colours * 255).astype(np.uint8)
    _stamp(pixels, str(shot))
    return pixels


def _stamp(pixels: Pixels, digits: str) -> None:
    """Draw a number into the lower left corner, white on a dark plate."""
    dot = max(pixels.shape[0] // 48, 1)
    plate = np.zeros((7, 4 * len(digits) + 1), dtype=bool)
    for place, digit in enumerate(digits):
        for row, bits in enumerate(_DIGITS[digit]):
            plate[row + 1, 4 * place + 1 : 4 * place + 4] = [bits & 4, bits & 2, bits & 1]
    lit = plate.repeat(dot, axis=0).repeat(dot, axis=1)[: pixels.shape[0], : pixels.shape[1]]
    corner = pixels[-lit.shape[0] :, : lit.shape[1]]
    corner[:] = np.where(lit[..., None], 255, corner // 4)


class Mp4:
    """An mp4 in memory that grows frame by frame. `close` gives its bytes."""

    def __init__(self, *, width: int, height: int, fps: int) -> None:
        self._buffer = io.BytesIO()
        self._container = av.open(self._buffer, "w", format="mp4")
        codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
        self._stream = cast("av.VideoStream", self._container.add_stream(codec, rate=fps))
        self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, "yuv420p"
        # Without frames that point forward, files can be joined packet by packet.
        self._stream.codec_context.max_b_frames = 0
        self._stream.codec_context.thread_count = 1

    def add(self, pixels: Pixels) -> None:
        """Encode one more frame."""
        self._container.mux(self._stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))

    def close(self) -> bytes:
        """End the file and return it."""
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._buffer.getvalue()


def join(shots: Iterable[bytes], target: Path) -> None:
    """Write one mp4 of several of the same size and codec, one after the other, without encoding again."""
    with av.open(str(target), "w", format="mp4") as film:
        stream: av.VideoStream | None = None
        offset = 0
        for shot in shots:
            with av.open(io.BytesIO(shot), "r") as source:
                template = source.streams.video[0]
                if stream is None:
                    stream = film.add_stream_from_template(template)
                ends_at = 0
                for packet in source.demux(template):
                    if packet.pts is None or packet.dts is None:
                        continue  # what demux gives at the end, to flush decoders
                    ends_at = max(ends_at, packet.pts + (packet.duration or 0))
                    packet.pts += offset
                    packet.dts += offset
                    packet.stream = stream
                    film.mux(packet)
                offset += ends_at


def count_frames(files: Sequence[Path | bytes]) -> int:
    """How many frames these mp4s decode to, in total."""
    total = 0
    for file in files:
        with av.open(io.BytesIO(file) if isinstance(file, bytes) else str(file), "r") as source:
            for _ in source.decode(video=0):
                total += 1  # one at a time: frames are a thousand times larger than their packets
    return total
