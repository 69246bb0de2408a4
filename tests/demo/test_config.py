from __future__ import annotations

import shlex
import socket
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from swaplane.demo.config import Gateway, GatewayFailedError, config_text, free_ports


def test_the_file_names_three_models_in_no_group() -> None:
    config = YAML(typ="safe").load(config_text(41000, Path("/tmp/jobs")))
    assert config["startPort"] == 41000
    assert set(config["models"]) == {"smollm2", "minilm", "video"}
    assert not config.keys() & {"groups", "matrix", "routing"}
    for model in config["models"].values():
        command = shlex.split(model["cmd"])
        assert command[0] == sys.executable
        assert "${PORT}" in command


def test_an_interpreter_in_a_folder_with_spaces_stays_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", '/opt/my "python"/bin/python')
    config = YAML(typ="safe").load(config_text(41000, Path("/tmp/jobs")))
    assert shlex.split(config["models"]["video"]["cmd"])[0] == '/opt/my "python"/bin/python'


def test_free_ports_are_free_and_in_a_row() -> None:
    first = free_ports(3)
    for port in range(first, first + 3):
        socket.create_server(("127.0.0.1", port)).close()


def test_a_port_that_is_taken_is_refused_by_number(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(GatewayFailedError, match=f"--port: {port} cannot be used"), Gateway(tmp_path, port):
            pass


def test_a_gateway_that_does_not_start_is_told_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho this is why; exit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(GatewayFailedError, match=r"ended with code 3(.|\n)*this is why"), Gateway(tmp_path, 0):
        pass
