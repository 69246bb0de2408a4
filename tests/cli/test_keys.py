"""API keys on the command line: how one is made, how it is sent, and that it is shown nowhere."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from swaplane.config.load import ConfigError, parse
from tests.cli.fake_gateway import KEY, MEMBER, MEMBERS, QUEUE
from tests.cli.support import swaplane
from tests.support.stub_client import free_port

COMMANDS = [("queue", "--once"), ("members",), ("cancel", "live-1"), ("pause",), ("resume", "gpu")]


# Sent.


@pytest.mark.parametrize("given", ["option", "environment"])
def test_a_key_is_sent_by_every_command(url: str, given: str) -> None:
    words = ("--key", KEY) if given == "option" else ()
    env = {"SWAPLANE_KEY": f"{KEY}\n"} if given == "environment" else {}  # as $(cat file) may leave it
    where = (*words, "--url", f"{url}/keyed")
    assert json.loads(swaplane("queue", "--json", *where, **env).stdout) == QUEUE
    assert json.loads(swaplane("members", "--json", *where, **env).stdout) == MEMBERS
    for command in (("cancel", f"live-{given}"), ("pause",), ("resume", "gpu")):
        done = swaplane(*command, *where, **env)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_key_is_one_sentence_that_says_how_to_give_it(url: str, command: tuple[str, ...]) -> None:
    done = swaplane(*command, "--url", f"{url}/keyed")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{url}/keyed asks for an API key: give it with SWAPLANE_KEY or --key.\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_key_is_one_sentence_without_the_key(url: str, command: tuple[str, ...]) -> None:
    done = swaplane(*command, "--url", f"{url}/keyed", SWAPLANE_KEY="sk-CANARY-wrong")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"{url}/keyed does not know this API key: ")
    assert "`swaplane key new`" in done.stderr
    assert "CANARY" not in done.stderr


def test_a_right_that_is_missing_is_told(url: str) -> None:
    done = swaplane("pause", "gpu", "--url", f"{url}/keyed", SWAPLANE_KEY=MEMBER)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{url}/keyed does not allow this: this needs a key with `admin: true`.\n"


@pytest.mark.parametrize("bad", ["sk-CANARY two", "sk-CANARY\nX-Evil: 1", "sk-CANARY\x7f", "\x01CANARY"])
def test_what_cannot_be_a_key_is_refused_before_it_is_sent(url: str, bad: str) -> None:
    done = swaplane("queue", "--url", f"{url}/keyed", "--key", bad)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "--key or SWAPLANE_KEY: an API key holds no spaces and no control characters\n"


# Shown nowhere.


@pytest.mark.parametrize("command", ["queue", "members", "cancel", "pause", "resume"])
def test_help_names_the_variable_and_not_what_is_in_it(command: str) -> None:
    done = swaplane(command, "--help", SWAPLANE_KEY="sk-CANARY")
    assert "SWAPLANE_KEY" in done.stdout
    assert "CANARY" not in done.stdout + done.stderr


def test_no_error_shows_a_key_or_a_password_in_the_address() -> None:
    url = f"http://user:pass-CANARY@127.0.0.1:{free_port()}"
    bad = ("http://me:CANARY@h:port", "http://me:CANARY", "http://[CANARY", "ftp://x:CANARY@y")
    addresses = (url, f"http://127.0.0.1:{free_port()}/x?api_key=CANARY#CANARY", *bad)
    for words in (("queue", "--nonsense"), *(("queue", "--url", each) for each in addresses)):
        done = swaplane(*words, SWAPLANE_KEY="sk-CANARY")
        assert done.returncode in (1, 2)
        assert done.stderr
        assert "CANARY" not in done.stdout + done.stderr


# Made.


def settings_with(entry: str) -> Any:
    return parse(f"models: {{m: {{cmd: 'm --port ${{PORT}}'}}}}\n{entry}", path="config.yaml", environ={})


def test_a_new_key_is_shown_once_and_its_entry_is_what_the_file_takes() -> None:
    words = ("--name", 'ann "x": #y', "--member", "änn", "--tier", "pro", "--admin")
    done = swaplane("key", "new", *words)
    assert (done.returncode, done.stderr) == (0, "")
    shown, _, entry = done.stdout.partition("keys:\n")
    (key,) = (word for word in shown.split() if word.startswith("sk-"))
    assert done.stdout.count(key) == 1
    assert len(key) > 40
    (read,) = settings_with("keys:\n" + entry).keys
    assert (read.name, read.member, read.tier_bonus, read.admin) == ('ann "x": #y', "änn", 1, True)
    assert read.digest == hashlib.sha256(key.encode()).digest()


def test_a_new_key_in_json_is_the_same_and_never_the_same_key() -> None:
    keys = set()
    for _ in range(3):
        document = json.loads(swaplane("key", "new", "--json", "--member", "ann").stdout)
        assert set(document) == {"key", "entry"}
        assert document["entry"] == {
            "key": f"sha256:{hashlib.sha256(document['key'].encode()).hexdigest()}",
            "member": "ann",
        }
        keys.add(document["key"])
    assert len(keys) == 3


def test_a_new_key_without_a_name_and_a_member_gets_a_name(tmp_path: Path) -> None:
    names = set()
    for _ in range(2):
        done = swaplane("key", "new")
        settings = settings_with("keys:\n" + done.stdout.partition("keys:\n")[2])
        (read,) = settings.keys
        assert (read.member, read.admin) == (None, False)
        assert re.fullmatch("key-[a-z]{6}", read.name)
        assert not any("neither" in warning for warning in settings.warnings)
        names.add(read.name)
    assert len(names) == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [("member", "anonymous"), ("member", " ann"), ("name", "a\tb"), ("name", "x" * 101), ("name", "")],
)
def test_what_the_file_would_refuse_is_refused_with_its_words(option: str, value: str) -> None:
    done = swaplane("key", "new", f"--{option}", value, COLUMNS="400")
    assert (done.returncode, done.stdout) == (2, "")
    if value:
        with pytest.raises(ConfigError) as refused:
            settings_with(f"keys: [{{key: k, {option}: {json.dumps(value)}}}]")
        assert str(refused.value).partition(f"{option}: ")[2] in done.stderr
