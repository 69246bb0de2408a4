from __future__ import annotations

import itertools
from pathlib import Path

import av
import numpy as np

from swaplane.demo.frames import Mp4, Pixels, count_frames, join, paint


def mp4(frames: list[Pixels]) -> bytes:
    height, width, _ = frames[0].shape
    video = Mp4(width=width, height=height, fps=12)
    for pixels in frames:
        video.add(pixels)
    return video.close()


def grey(value: int) -> Pixels:
    return np.full((48, 64, 3), value, dtype=np.uint8)


def small(**changes: object) -> Pixels:
    return paint(**{"prompt": "a train", "seed": 1, "shot": 1, "at_s": 0.5, "width": 64, "height": 48, **changes})  # type: ignore[arg-type]


def test_a_joined_film_has_every_frame_of_its_shots_in_order_and_evenly_spaced(tmp_path: Path) -> None:
    shots = [mp4([grey(20)] * 3), mp4([grey(120)] * 5), mp4([grey(220)] * 2)]
    film = tmp_path / "film.mp4"
    join(shots, film)
    with av.open(str(film), "r") as container:
        frames = list(container.decode(video=0))
    brightness = [round(float(frame.to_ndarray(format="gray").mean()), -1) for frame in frames]
    assert brightness[0] < brightness[3] < brightness[8]
    assert brightness == [brightness[0]] * 3 + [brightness[3]] * 5 + [brightness[8]] * 2
    steps = {after.pts - before.pts for before, after in itertools.pairwise(frames)}  # type: ignore[operator]
    assert len(steps) == 1
    assert count_frames([film]) == count_frames(shots) == 10


def test_the_same_request_paints_the_same_picture() -> None:
    assert np.array_equal(small(), small())


def test_everything_asked_for_shows_in_the_picture() -> None:
    pictures = [small(), small(prompt="a ship"), small(seed=2), small(shot=2), small(at_s=0.6)]
    assert len({picture.tobytes() for picture in pictures}) == len(pictures)


def test_a_number_wider_than_the_picture_is_cut() -> None:
    assert small(shot=99999, width=16, height=16).shape == (16, 16, 3)
