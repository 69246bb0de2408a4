"""Which models must leave for which: llama-swap's groups."""

from __future__ import annotations

import pytest

from swaplane.core.residency import DEFAULT_GROUP, Group, Residency


def group(name: str, *members: str, swap: bool = True, exclusive: bool = True, persistent: bool = False) -> Group:
    return Group(name=name, members=frozenset(members), swap=swap, exclusive=exclusive, persistent=persistent)


RESIDENCY = Residency(
    [
        group("side by side", "whisper", "piper", swap=False, exclusive=False),
        group("alone", "flux", "wan"),
        group("always", "embed", "rerank", swap=False, exclusive=False, persistent=True),
        group("polite", "ocr", exclusive=False),
    ]
)


@pytest.mark.parametrize(
    ("target", "running", "leaving"),
    [
        ("chat", ["chat"], []),  # itself
        ("chat", ["coder"], ["coder"]),  # models in no group share one that swaps
        ("flux", ["wan"], ["wan"]),  # one group that swaps
        ("whisper", ["piper"], []),  # one group that does not swap
        ("embed", ["rerank"], []),
        ("flux", ["chat", "whisper", "ocr"], ["chat", "whisper", "ocr"]),  # exclusive: all others ...
        ("flux", ["embed", "rerank", "chat"], ["chat"]),  # ... except persistent ones
        ("chat", ["embed", "flux"], ["flux"]),
        ("whisper", ["chat", "flux", "embed"], []),  # not exclusive: joins whoever is there
        ("ocr", ["flux"], []),  # one-sided: it joins an exclusive one,
        ("flux", ["ocr"], ["ocr"]),  # which makes it leave again
        ("flux", ["ocr", "chat", "wan", "flux"], ["ocr", "chat", "wan"]),  # in the order given
        ("flux", [], []),
    ],
)
def test_who_must_leave(target: str, running: list[str], leaving: list[str]) -> None:
    assert RESIDENCY.must_leave(target, running) == tuple(leaving)


def test_a_model_in_no_group_is_in_the_default_group() -> None:
    assert RESIDENCY.group_of("chat").name == DEFAULT_GROUP
    assert RESIDENCY.group_of("flux").name == "alone"


def test_without_groups_one_model_is_resident_at_a_time() -> None:
    assert Residency().must_leave("a", ["b", "a", "c"]) == ("b", "c")
