"""Ports stay with their models over a reload."""

from __future__ import annotations

from swaplane.config.load import parse
from tests.config.reading import settings

BEFORE = "startPort: 6000\nmodels:\n  b:\n    cmd: serve ${PORT}\n  d:\n    cmd: serve ${PORT}\n"
AFTER = "models:\n  a:\n    cmd: serve ${PORT}\n  b:\n    cmd: serve ${PORT}\n  c:\n    cmd: serve ${PORT}\n"


def test_a_new_model_does_not_shift_its_neighbours() -> None:
    before = settings(BEFORE)
    assert before.ports == {"b": 6000, "d": 6001}
    after = parse("startPort: 6000\n" + AFTER, path="c.yaml", environ={}, previous=before)
    # The server of `d`, which is gone from the file, may still be ending: its port is not given out yet.
    assert after.ports == {"a": 6002, "b": 6000, "c": 6003}
    assert after.models["b"].fingerprint == before.models["b"].fingerprint
    later = parse(
        "startPort: 6000\n" + AFTER + "  e:\n    cmd: serve ${PORT}\n", path="c.yaml", environ={}, previous=after
    )
    assert later.ports["e"] == 6001


def test_another_first_port_moves_all() -> None:
    moved = parse("startPort: 7000\n" + AFTER, path="c.yaml", environ={}, previous=settings(BEFORE))
    assert moved.ports == {"a": 7000, "b": 7001, "c": 7002}
