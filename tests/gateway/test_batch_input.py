from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from swaplane.config.load import load
from swaplane.config.settings import Settings
from swaplane.gateway import batch_input
from swaplane.gateway.access import EVERYBODY
from swaplane.gateway.batch_input import Checked, check

ENDPOINT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    file = tmp_path_factory.mktemp("config") / "config.yaml"
    file.write_text(
        "models:\n  mA:\n    cmd: a ${PORT}\n    aliases: [a]\n  mB:\n    cmd: b ${PORT}\n    useModelName: real/b\n"
    )
    return load(str(file), {})


def line(number: int = 1, **changes: Any) -> dict[str, Any]:
    body = {"model": "mA", "messages": [], **changes.pop("body", {})}
    whole = {"custom_id": f"id-{number}", "method": "POST", "url": ENDPOINT, "body": body, **changes}
    return {key: value for key, value in whole.items() if value is not ...}


@pytest.fixture
def checked(tmp_path: Path, settings: Settings) -> Any:
    def run(*lines: dict[str, Any] | str | bytes, end: bytes = b"\n") -> Checked:
        texts = [
            each if isinstance(each, bytes) else each.encode() if isinstance(each, str) else json.dumps(each).encode()
            for each in lines
        ]
        path = tmp_path / "input.jsonl"
        path.write_bytes(end.join(texts))
        return check(path, ENDPOINT, settings, EVERYBODY, threading.Event())

    return run


def test_lines_keep_their_bytes_and_find_their_models(checked: Any) -> None:
    body = b'{"n": 1.50e3,  "model" : "a" , "x":"\\u00e9\xc3\xa9"}'
    odd = b'  {"url":"/v1/chat/completions", "body": ' + body + b',"method":"POST","custom_id":"\xc3\xa9"} '
    result = checked(line(1), "", odd, line(3, body={"model": "mB", "text": "model"}), end=b"\r\n")
    assert not result.faults
    first, second, third = result.lines
    assert [each.number for each in result.lines] == [1, 3, 4]
    assert (first.custom_id, first.model.id, json.loads(first.body)) == ("id-1", "mA", {"model": "mA", "messages": []})
    assert (second.custom_id, second.model.id) == ("é", "mA")
    assert second.body == body
    assert json.loads(third.body) == {"model": "real/b", "messages": [], "text": "model"}


@pytest.mark.parametrize(
    ("bad", "code", "param", "words"),
    [
        ("{", "invalid_json_line", None, "not JSON"),
        ("[1]", "invalid_json_line", None, "must be a JSON object"),
        ('{"custom_id": "a"} x', "invalid_json_line", None, "not JSON"),
        ('{"custom_id": "a", "body": {"model": "mA", "x": [tru]}}', "invalid_json_line", None, "not JSON"),
        (b'{"custom_id": "caf\xe9"}', "invalid_json_line", None, "line 2 is not UTF-8 text"),
        ('{"custom_id": "a"}'.encode("utf-16"), "invalid_json_line", None, "line 2 is not UTF-8 text"),
        ('{"url": "a", "url": "b"}', "invalid_json_line", "url", "`url` is given more than once"),
        (line(custom_id=...), "missing_required_parameter", "custom_id", "no `custom_id`"),
        (line(custom_id=5), "invalid_custom_id", "custom_id", "must be a string"),
        (line(custom_id=""), "invalid_custom_id", "custom_id", "1 to 512 characters"),
        (line(custom_id="x" * 513), "invalid_custom_id", "custom_id", "512 characters"),
        (line(custom_id="x" * 5000), "invalid_custom_id", "custom_id", "512 characters"),
        (line(custom_id="\ud800"), "invalid_custom_id", "custom_id", "must be a string"),
        (line(method=...), "missing_required_parameter", "method", "no `method`"),
        (line(method="GET"), "invalid_method", "method", "`method` is `GET`; it must be `POST`"),
        (line(url=...), "missing_required_parameter", "url", "no `url`"),
        (line(url="/v1/embeddings"), "invalid_url", "url", "it must be `/v1/chat/completions`"),
        ({**line(), "body": [1]}, "invalid_request", "body", "`body` must be an object"),
        (
            {key: value for key, value in line().items() if key != "body"},
            "missing_required_parameter",
            "body",
            "no `body`",
        ),
        (line(body={"model": "m"}), "model_not_found", "body.model", "no router for requested model `m`"),
        ({**line(), "body": {}}, "missing_required_parameter", "body.model", "no model id"),
        (
            '{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"mA","model":"mB"}}',
            "duplicate_model",
            "body",
            "more than once",
        ),
        (line(body={"stream": True}), "invalid_request", "body.stream", "cannot be streamed"),
        (line(body={"background": True}), "invalid_request", "body.background", "leave out `background`"),
    ],
)
def test_what_is_wrong_with_a_line(checked: Any, bad: Any, code: str, param: str | None, words: str) -> None:
    result = checked(line(1), bad, line(3))
    (fault,) = result.faults
    assert (fault.code, fault.line, fault.param) == (code, 2, param)
    assert words in fault.message


def test_each_line_needs_a_custom_id_of_its_own(checked: Any) -> None:
    (fault,) = checked(line(1), line(2), line(1)).faults
    assert (fault.code, fault.line) == ("duplicate_custom_id", 3)
    assert "`id-1`" in fault.message


def test_a_false_stream_is_none(checked: Any) -> None:
    result = checked(line(body={"stream": False, "background": False}))
    assert not result.faults
    assert json.loads(result.lines[0].body)["stream"] is False


def test_a_file_without_requests_is_at_fault(checked: Any) -> None:
    for lines in ((), ("", "  ", "")):
        (fault,) = checked(*lines).faults
        assert (fault.code, fault.line) == ("empty_file", None)


def test_a_long_line_is_one_like_others(checked: Any) -> None:
    text = "x" * (3 << 20)
    result = checked(line(body={"prompt": text, "model": "mB"}), b"\xef\xbb\xbf" + json.dumps(line(2)).encode())
    assert [fault.line for fault in result.faults] == [2], "a mark that belongs to the beginning of a file"
    assert json.loads(result.lines[0].body) == {"model": "real/b", "messages": [], "prompt": text}


def test_a_mark_of_utf_8_at_the_beginning_is_skipped(checked: Any) -> None:
    assert not checked(b"\xef\xbb\xbf" + json.dumps(line()).encode()).faults


def test_no_more_than_100_faults_are_told(checked: Any) -> None:
    result = checked(*["{"] * 250)
    assert [fault.line for fault in result.faults] == list(range(1, 101))


def test_files_of_more_than_the_limits_fail(checked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_input, "MOST_LINES", 3)
    assert not checked(*map(line, range(3))).faults
    (fault,) = checked(*map(line, range(4))).faults
    assert (fault.code, fault.line) == ("too_many_requests", 4)
    monkeypatch.setattr(batch_input, "MOST_BYTES", 50)
    (fault,) = checked(line()).faults
    assert (fault.code, fault.line) == ("file_too_large", None)


def test_a_check_that_is_given_up_ends(tmp_path: Path, settings: Settings) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text("\n".join(json.dumps(line(number)) for number in range(10)))
    given_up = threading.Event()
    given_up.set()
    assert not check(path, ENDPOINT, settings, EVERYBODY, given_up).lines
