from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.fake_gateway import QUEUE
from tests.cli.support import environment, swaplane
from tests.support.stub_client import free_port


def test_the_table_shows_each_term_of_the_score(url: str) -> None:
    done = swaplane("queue", "--once", "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    title, heading, running, waiting = done.stdout.splitlines()
    assert "gemma resident, 1 running, 1 waiting" in title
    assert {"base", "tier", "affin", "aging", "score"} <= set(heading.split())
    assert "alice" in running
    assert waiting.split()[:1] == ["live-2"]
    assert {"bob", "-100", "+2", "+10", "+0.50", "-87.50"} <= set(waiting.split())


def test_without_a_terminal_it_is_shown_once(url: str) -> None:
    assert swaplane("queue", SWAPLANE_URL=url).stdout == swaplane("queue", "--once", "--url", url).stdout


def test_json_is_the_gateways_own_document(url: str) -> None:
    done = swaplane("queue", "--json", "--url", f"{url}/")
    assert (done.returncode, json.loads(done.stdout)) == (0, QUEUE)


def test_on_a_terminal_it_follows_until_ctrl_c(url: str) -> None:
    shown = _shown_on_terminal(url, until="bob", times=2)
    assert shown.code == 0
    assert "Traceback" not in shown.text
    assert shown.text.endswith("\x1b[?25h"), "the cursor is visible again"


def _listen_to_ctrl_c() -> None:
    """Whoever runs these tests in the background has made their children deaf to it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class _Shown:
    def __init__(self, text: str, code: int) -> None:
        self.text = text
        self.code = code


def _shown_on_terminal(url: str, *, until: str, times: int) -> _Shown:
    """What `swaplane queue` writes to a terminal, interrupted once `until` was shown that many times."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "swaplane", "queue", "--url", url],
        env=environment(TERM="xterm"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_listen_to_ctrl_c,
    )
    os.close(theirs)
    text = ""
    try:
        deadline = time.monotonic() + 30
        while text.count(until) < times:
            assert time.monotonic() < deadline, text
            text += _read(ours)
        process.send_signal(signal.SIGINT)
        while process.poll() is None:  # it may still have something to write, which nobody else reads
            assert time.monotonic() < deadline + 30, text
            text += _read(ours)
        code = process.wait()
        while more := _read(ours):
            text += more
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return _Shown(text.rstrip("\r\n"), code)


def _read(terminal: int) -> str:
    ready, _, _ = select.select([terminal], [], [], 0.5)
    try:
        return os.read(terminal, 65536).decode() if ready else ""
    except OSError:  # how Linux says that the other side is closed
        return ""


def test_cancel_tells_about_each_job(url: str) -> None:
    done = swaplane("cancel", "live-1", "--url", url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "live-1: cancelled\n", "")

    done = swaplane("cancel", "live-1", "live-2", "--url", url)
    assert done.returncode == 1
    assert done.stdout == "live-2: cancelled\n"
    assert done.stderr == "live-1: not cancelled: there is no job live-1 now\n"


def test_cancel_in_json(url: str) -> None:
    done = swaplane("cancel", "--json", "live-3", "gone", "--url", url)
    assert done.returncode == 1
    assert json.loads(done.stdout) == {
        "jobs": [
            {"job_id": "live-3", "cancelled": True, "message": "cancelled"},
            {"job_id": "gone", "cancelled": False, "message": "not cancelled: there is no job gone now"},
        ]
    }


def test_an_id_cannot_reach_another_path(url: str) -> None:
    assert "no job ../queue now" in swaplane("cancel", "../queue", "--url", url).stderr


@pytest.mark.parametrize("words", [("queue",), ("queue", "--json"), ("cancel", "x"), ("cancel", "--json", "x")])
def test_no_gateway_is_one_sentence(words: tuple[str, ...]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    # A proxy of the environment is not asked for an address on this machine, nor for any other.
    done = swaplane(*words, SWAPLANE_URL=url, http_proxy="http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert url in done.stderr
    assert "swaplane serve" in done.stderr


@pytest.mark.parametrize("bad", ["nonsense", "ftp://127.0.0.1", "http://127.0.0.1:x"])
def test_an_address_that_is_none_is_one_sentence(bad: str) -> None:
    done = swaplane("queue", "--url", bad)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("--url: ")
    # What cannot be taken apart is not repeated: there may be a password in it.
    assert (bad in done.stderr) is (bad != "http://127.0.0.1:x")


def test_another_server_is_told_apart(url: str) -> None:
    assert "status 404: page not found" in swaplane("queue", "--url", f"{url}/nothing").stderr
    assert "as a Swaplane gateway does" in swaplane("queue", "--url", f"{url}/elsewhere").stderr
