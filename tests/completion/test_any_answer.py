"""Whatever a server says or a client asks, no completion raises, and none contradicts itself."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swaplane.completion.presets import PRESETS
from swaplane.completion.rule import Answer, Completion, Report
from swaplane.completion.tree import written
from tests.completion.test_polled import LIGHTX2V, NESTED, SDCPP

ALL = [LIGHTX2V, NESTED, SDCPP, *(preset(7200, 300) for preset in PRESETS.values())]
every = pytest.mark.parametrize("completion", ALL)

KEYS = (
    *("id", "task_id", "prompt_id", "status", "progress", "error", "message", "data", "tasks", "state", "a"),
    *("queue_running", "queue_pending", "outputs", "status_str", "completed", "messages", "filename", "type"),
)
words = st.sampled_from(["a", "completed", "failed", "error", "execution_error", "execution_interrupted"]) | st.text()
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(), inner, max_size=6),
    max_leaves=25,
)
queues = st.fixed_dictionaries(
    {"queue_running": st.lists(trees, max_size=2), "queue_pending": st.lists(trees, max_size=2)}
)
entries = st.fixed_dictionaries({"a": st.fixed_dictionaries({"status": trees, "outputs": trees})})
bodies = st.binary() | (trees | queues | entries).map(lambda tree: json.dumps(tree).encode())
statuses = st.sampled_from([200, 202, 204, 307, 400, 404, 409, 410, 422, 429, 500, 502, 503])
said = st.builds(Answer, status=statuses, body=bodies)
ids = st.just("a") | st.text(min_size=1)
paths = st.text() | st.lists(
    st.sampled_from(["v1", "videos", "api", "a", "", "remix", "tasks", "%2F", "%zz", "jobs", "prompt", "history", "?"])
).map("/".join)
methods = st.sampled_from(["GET", "HEAD", "POST", "DELETE", "PUT", "get", ""])


def check(completion: Completion, server_id: str, answers: list[Answer]) -> None:
    report = completion.read(server_id, answers)
    assert isinstance(report, Report) or (report is None and len(answers) < len(completion.polls(server_id)))
    if report is not None:
        assert report.progress is None or 0 <= report.progress <= 100
        assert report.detail.isprintable()
    for target in completion.keeps(server_id, answers):
        assert target.startswith("/")
        assert target.isascii()
    if answers:
        told = completion.epitaph(server_id, answers[-1].body, "why")
        assert told is None or isinstance(json.loads(told), dict)


@every
@given(server_id=ids, answers=st.lists(said, max_size=2))
def test_any_answer_is_read(completion: Completion, server_id: str, answers: list[Answer]) -> None:
    if server_id.isprintable():
        check(completion, server_id, answers[: len(completion.polls(server_id))])


@every
@pytest.mark.parametrize("body", [b"[" * 100_000, b"9" * 5000, b'{"status":' * 50_000, b"\xff\xfe", b"\xef\xbb\xbf{}"])
def test_an_answer_meant_to_break_a_reader_is_read(completion: Completion, body: bytes) -> None:
    answers = [Answer(status=200, body=body)]
    check(completion, "a", answers)
    assert completion.id_of(answers[0]) is None


@every
@given(answer=said)
def test_any_id_can_be_put_into_paths(completion: Completion, answer: Answer) -> None:
    server_id = completion.id_of(answer)
    if server_id is not None:
        calls = (*completion.polls(server_id), *completion.cancels(server_id))
        assert all(call.path.startswith("/") and call.path.isascii() and " " not in call.path for call in calls)
        assert completion.frees_on_cancel(server_id) in {True, False}


@every
@given(method=methods, path=paths)
def test_no_request_is_both_a_submit_and_a_bystander(completion: Completion, method: str, path: str) -> None:
    assert not (completion.submits(method, path) and completion.is_bystander(method, path))
    found = completion.id_in(method, path)
    assert found is None or found


@every
def test_its_own_calls_are_bystanders_that_name_the_job_or_its_lists(completion: Completion) -> None:
    for call in (*completion.polls("a"), *completion.cancels("a")):
        path = call.path.partition("?")[0]
        assert completion.is_bystander(call.method, path)
        assert completion.id_in(call.method, path) in {"a", None}


def test_what_is_nested_too_deeply_is_not_written() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert written(deep) is None
    assert written([1, {"a": None}]) == b'[1, {"a": null}]'
