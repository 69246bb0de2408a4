from __future__ import annotations

import subprocess
import sys

import pytest

import swaplane as package
from tests.cli.support import environment, swaplane


def test_help_names_every_command() -> None:
    done = swaplane("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for command in ("serve", "check", "demo", "queue", "members", "cancel", "pause", "resume", "key"):
        assert f" {command} " in done.stdout
    assert "--install-completion" in done.stdout


def test_serve_help_says_where_it_listens_and_how_llama_swap_differs() -> None:
    text = " ".join(swaplane("serve", "-help").stdout.replace("│", " ").split())
    assert "[default: 127.0.0.1:8080]" in text
    assert "default of llama-swap" in text
    assert "SIGHUP" in text


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from swaplane.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'fastapi', 'uvicorn', 'httpx2', 'pydantic', 'ruamel', 'numpy', 'swaplane.gateway', 'swaplane.demo'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "serve" in done.stdout
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("words", [("--version",), ("serve", "-version"), ("serve", "--version")])
def test_version_begins_with_llama_swaps_word(words: tuple[str, ...]) -> None:
    done = swaplane(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"version: {package.__version__} ")


def test_completion_knows_the_commands() -> None:
    done = swaplane(_SWAPLANE_COMPLETE="complete_bash", COMP_WORDS="swaplane ca", COMP_CWORD="1")
    assert done.stdout.split() == ["cancel"]


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "-config", "x", "-listen", "nonsense"),
        ("serve", "-watch-config"),
        ("serve", "--nonsense"),
        ("check",),
        ("cancel",),
        ("pause", "gpu", "cpu"),
        ("key", "new", "--member", ""),
        ("key", "new", "--name", "x" * 101),
        ("key", "new", "--tier", "a\nb"),
        ("demo", "--shots", "0"),
        ("nonsense",),
    ],
)
def test_a_wrong_command_line_exits_with_2(words: tuple[str, ...]) -> None:
    done = swaplane(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr
    assert "Traceback" not in done.stderr
