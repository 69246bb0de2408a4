"""The configuration reference names every key that may be written, each with its default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from swaplane.config import schema
from tests.config.reading import problems, settings

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
SECTIONS: dict[str, tuple[type[schema.Section], ...]] = {
    "Top level": (schema.File,),
    "Upstream": (schema.Upstream,),
    "Models": (schema.ModelEntry,),
    "Completion": (schema.CompletionEntry,),
    "Groups": (schema.GroupEntry, schema.Routing, schema.Router, schema.RouterSettings),
    "Scheduling": (schema.SchedulingEntry, schema.LaneEntry),
    "Limits": (schema.LimitsEntry, schema.BudgetEntry),
    "Keys": (schema.KeyEntry, schema.KeyLimitsEntry),
    "Jobs": (schema.JobsEntry, schema.WebhookEntry),
}
ENVIRON = {
    "HOME": "/home/me",
    "WEBHOOK_SECRET": "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz",
    "ADMIN_KEY": "a",
    "ALICE_KEY": "b",
}
#: Defaults that the page puts in words.
IN_WORDS = {
    ("Models", "cmd"): "required",
    ("Models", "healthCheckTimeout"): "the top-level one",
    ("Models", "sendLoadingState"): "the top-level one",
    ("Models", "slots"): "from `concurrencyLimit`",
    ("Limits", "waiting_bytes"): "`4GiB`",
    ("Limits", "band"): "the highest",
    ("Keys", "key"): "required",
    ("Keys", "name"): "the member",
    **dict.fromkeys(
        (("Completion", key) for key in ("submit", "id", "poll", "done", "failed")), "needed without `preset`"
    ),
}


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> dict[str, list[str]]:
    """The table rows of a section by the key in their first cell."""
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| `")]
    return {row[0].split("`")[1]: [cell.strip() for cell in row] for row in cells}


def shown(default: object) -> str:
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, dict):
        return f"`{{{', '.join(f'{key}: {value}' for key, value in default.items())}}}`" if default else "none"
    if isinstance(default, list):
        joined = str(default) if default and isinstance(default[0], int) else "".join(default).replace("|", "\\|")
        return f"`{joined}`" if default else "none"
    if default is None or isinstance(default, schema.Section):
        return "none"
    return f"`{default}`" if default != "" else "empty"


@pytest.mark.parametrize(
    ("title", "key", "default"),
    [
        (title, info.alias or name, info.get_default())
        for title, kinds in SECTIONS.items()
        for kind in kinds
        for name, info in kind.model_fields.items()
    ],
)
def test_every_key_acted_on_is_described_with_its_default(title: str, key: str, default: object) -> None:
    _, _, documented, meaning = rows(section(title))[key]
    assert documented == IN_WORDS.get((title, key), shown(default))
    assert meaning


def test_every_key_not_honoured_is_listed_with_what_happens_instead() -> None:
    listed = rows(section("Accepted, not yet honoured"))
    for kind in (schema.File, schema.ModelEntry, schema.Routing):
        for key, later in kind.not_yet.items():
            name = f"routing.{key}" if kind is schema.Routing else key
            assert name in listed
            if later.effect:
                assert listed[name][1] in {later.effect, "nothing changes"}


def test_no_key_is_described_that_does_not_exist() -> None:
    for title, kinds in SECTIONS.items():
        keys = {info.alias or name for kind in kinds for name, info in kind.model_fields.items()}
        assert rows(section(title)).keys() == keys


def test_the_examples_are_valid() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 12
    for block in blocks:
        models = "models: {embed: {cmd: 'x ${PORT}'}, rerank: {cmd: 'x ${PORT}'}}\n" if "members" in block else ""
        settings((models if "models:" not in block else "") + block, ENVIRON)


def test_the_defaults_in_words_are_those_of_the_limits() -> None:
    assert settings("scheduling: {limits: {waiting_bytes: 4GiB}}").limits == settings("").limits
    budget = settings("scheduling: {interactive_budget: 10}").limits.budget
    assert budget is not None
    assert budget.band == settings("").rules.bands[-1].name


def test_the_errors_shown_are_the_errors_given() -> None:
    (bands,) = problems("scheduling:\n  bands: {normal: 0, hot: 10}")
    assert bands.removeprefix("c.yaml") in PAGE
    for found in problems('models:\n  chat:\n    cmd: run ${PORT}\n    ttl_s: 1\n    ttl: "300"'):
        assert found.partition(": ")[2] in PAGE
