"""What the documentation points at exists, and the README's configuration is one."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from swaplane.config.load import parse

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "swaplane"
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    targets = [link for link in re.findall(r"\]\(([^)]+)\)", path.read_text()) if not link.startswith("https://")]
    assert [target for target in targets if not (path.parent / target.partition("#")[0]).exists()] == []


def test_the_architecture_page_names_only_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", text)) - {"tests/core/"}
    assert len(named) > 20
    assert [name for name in sorted(named) if not (PACKAGE / name).exists()] == []


def test_the_architecture_page_names_only_code_that_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| .+ \| `([\w.]+)` in `([\w/]+)\.py`", text, flags=re.MULTILINE)
    assert len(rows) >= 8
    for dotted, module in rows:
        found = importlib.import_module("swaplane." + module.replace("/", "."))
        for name in dotted.split("."):
            found = getattr(found, name)


def test_the_readmes_configurations_are_right() -> None:
    models, keys = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    settings = parse(models, path="config.yaml", environ={})
    assert list(settings.models) == ["gemma", "wan"]
    assert settings.warnings == ()
    whole = models + keys.replace("sha256:…", f"sha256:{'0' * 64}")
    settings = parse(whole, path="config.yaml", environ={"ADMIN_KEY": "sk-1", "BOT_KEY": "sk-2"})
    assert [(key.name, key.tier_bonus) for key in settings.keys] == [("me", 0), ("alice", 1), ("bot", 0)]
    assert settings.warnings == ()
