from __future__ import annotations

import pytest

from swaplane.completion.paths import Route
from swaplane.completion.polled import Polled
from swaplane.completion.presets import PRESETS
from tests.config import test_documentation
from tests.config.reading import model, problems, settings

OWN = """
      submit: POST /v1/tasks/video
      id: task_id
      poll: /v1/tasks/{id}/status
      done: completed
      failed: [failed, cancelled]
"""


def with_completion(written: str) -> str:
    return f"models:\n  m:\n    cmd: run ${{PORT}}\n    completion: {written}"


def own(key: str, value: str | None) -> str:
    """The description of a server with one of its keys written otherwise, or left out."""
    lines = [line for line in OWN.splitlines() if line and not line.strip().startswith(f"{key}:")]
    return with_completion("\n" + "\n".join([*lines, *([f"      {key}: {value}"] if value is not None else [])]))


@pytest.mark.parametrize("written", ["", "response", "{preset: response}", "{preset: response, done: }"])
def test_a_job_ends_with_its_response_by_default(written: str) -> None:
    assert model(with_completion(written)).completion is None


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_is_chosen_by_name(name: str) -> None:
    assert model(with_completion(name)).completion == PRESETS[name](7200, 300)
    assert model(with_completion(f"{{preset: {name}}}")).completion == PRESETS[name](7200, 300)
    longer = model(with_completion(f"{{preset: {name}, deadline: 3600, patience: 60}}")).completion
    assert longer == PRESETS[name](3600, 60)
    assert longer is not None
    assert (longer.name, longer.deadline_s, longer.patience_s) == (name, 3600, 60)


def test_a_server_of_ones_own_is_described() -> None:
    assert model(with_completion(OWN)).completion == Polled(
        name="custom",
        submit=(Route("POST", "/v1/tasks/video"),),
        id_at="task_id",
        poll=Route("GET", "/v1/tasks/{id}/status"),
        done=("completed",),
        failed=("failed", "cancelled"),
    )


def test_every_key_of_a_description_arrives() -> None:
    text = """
      submit: [/a, "put /b/{id}", "GET  /c"]
      id: data.0.id
      poll: GET /jobs?id={id}
      status: data.state
      done: [2, true, "3"]
      failed: 1.50
      progress: data.done
      cancel: /jobs/{id}/stop
      result: /files/{id}.mp4
      deadline: 60
      patience: 0.5
"""
    assert model(with_completion(text)).completion == Polled(
        name="custom",
        submit=(Route("POST", "/a"), Route("PUT", "/b/{id}"), Route("GET", "/c")),
        id_at="data.0.id",
        poll=Route("GET", "/jobs?id={id}"),
        status_at="data.state",
        done=("2", "true", "3"),
        failed=("1.50",),
        progress_at="data.done",
        cancel=Route("POST", "/jobs/{id}/stop"),
        result=Route("GET", "/files/{id}.mp4"),
        deadline_s=60,
        patience_s=0.5,
    )


def test_macros_are_put_in() -> None:
    text = "macros: {base: /v2, word: ready}\n" + own("done", '[done, "${word}"]')
    read = model(text.replace("/v1/", "${base}/")).completion
    assert isinstance(read, Polled)
    assert read.poll == Route("GET", "/v2/tasks/{id}/status")
    assert read.done == ("done", "ready")
    (unknown,) = problems(own("poll", "${bas}/{id}"))
    assert "unknown macro '${bas}'" in unknown


def test_a_change_of_it_needs_no_restart() -> None:
    written = ("response", "openai-videos", "comfyui", "{preset: comfyui, deadline: 5}", OWN)
    models = [model(with_completion(text)) for text in written]
    assert len({model.completion for model in models}) == len(written)
    assert len({model.fingerprint for model in models}) == 1


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (
            "openai-video",
            '4:17: models.m.completion: unknown completion "openai-video" (valid: response, openai-videos, comfyui)'
            " (did you mean `openai-videos`?)",
        ),
        (
            "{preset: ComfyUI}",
            '4:26: models.m.completion.preset: unknown completion "ComfyUI" (valid: response, openai-videos, comfyui)'
            " (did you mean `comfyui`?)",
        ),
        (
            "[comfyui]",
            "4:17: models.m.completion: must be `response`, `openai-videos`, `comfyui` or a mapping, not a list",
        ),
        ("5", "4:17: models.m.completion: must be `response`, `openai-videos`, `comfyui` or a mapping, not 5"),
        (
            "{preset: [comfyui]}",
            "4:26: models.m.completion.preset: must be text, not a list",
        ),
        (
            "{preset: comfyui, poll: /x}",
            "4:35: models.m.completion.poll: `poll` means nothing beside the preset `comfyui`; remove one of them",
        ),
        (
            "{preset: response, deadline: 5}",
            "4:36: models.m.completion.deadline: `deadline` means nothing beside the preset `response`;"
            " remove one of them",
        ),
        ("{preset: comfyui, deadline: 0}", "4:45: models.m.completion.deadline: must be greater than 0, not 0"),
        (
            "{preset: comfyui, patience: 5m}",
            '4:45: models.m.completion.patience: must be a number, not the text "5m"',
        ),
        (
            "{preset: comfyui, dedline: 5}",
            "4:35: models.m.completion.dedline: unknown key `dedline` (did you mean `deadline`?)",
        ),
        (
            "{}",
            "4:5: models.m.completion: a server of one's own is described by `submit`, `id`, `poll`, `done` and"
            " `failed`: `submit`, `id`, `poll`, `done` and `failed` are missing; or choose a `preset`",
        ),
    ],
)
def test_what_cannot_be_chosen_is_named_with_its_place(written: str, problem: str) -> None:
    assert problems(with_completion(written)) == (f"c.yaml:{problem}",)


@pytest.mark.parametrize(
    ("key", "value", "where", "sentence"),
    [
        ("submit", "v1/tasks", "", 'must be a path that begins with `/`, such as `POST /v1/tasks`, not "v1/tasks"'),
        ("submit", "POST v1", "", 'must be a path that begins with `/`, such as `POST /v1/tasks`, not "POST v1"'),
        ("submit", "PSOT /", "", 'unknown method "PSOT" (valid: POST, PUT, PATCH, GET, DELETE) (did you mean `POST`'),
        ("submit", "[/v1, /v2?a=1]", "[1]", 'a submit is known by its path alone: leave out the query of "/v2?a=1"'),
        ("submit", "[]", "", "at least one is needed"),
        ("submit", "{a: b}", "", "must be a list, not a mapping"),
        ("submit", "[[/a]]", "[0]", "must be text, not a list"),
        ("submit", "/a/{task}", "", '`{id}` is the only placeholder there is, "/a/{task}" has another'),
        ("id", "a..b", "", 'must be names joined by dots, such as "data.task_id", not "a..b"'),
        ("id", "[a]", "", "must be text, not a list"),
        ("status", '""', "", 'must be names joined by dots, such as "data.task_id", not ""'),
        ("progress", "a b", "", 'must be names joined by dots, such as "data.task_id", not "a b"'),
        ("poll", "/v1/status", "", 'must contain `{id}` where the job\'s id goes, "/v1/status" does not'),
        ("poll", "POST /v1/{id}", "", 'unknown method "POST" (valid: GET)'),
        ("poll", "v1/{id}", "", 'must be a path that begins with `/`, such as `/v1/tasks/{id}/status`, not "v1/{id}"'),
        ("poll", "/{id}/{id}", "", '"/{id}/{id}" has `{id}` more than once'),
        ("poll", "/a/{id}/\u00fc", "", None),
        ("result", "/a", "", 'must contain `{id}` where the job\'s id goes, "/a" does not'),
        ("cancel", "DELETE /a", "", 'must contain `{id}` where the job\'s id goes, "/a" does not'),
        ("cancel", "GET /a/{id}", "", '"GET /a/{id}" only reads: it cannot be what stops a job'),
        ("done", "[]", "", "at least one is needed"),
        ("failed", "[]", "", "at least one is needed"),
        ("failed", "[failed, completed]", "[1]", "`completed` stands in `done` too"),
        ("failed", "completed", "", "`completed` stands in `done` too"),
        ("deadline", "-1", "", "must be greater than 0, not -1"),
        ("patience", "yes please", "", 'must be a number, not the text "yes please"'),
    ],
)  # fmt: skip
def test_a_bad_value_of_a_description_is_named(key: str, value: str, where: str, sentence: str | None) -> None:
    text = own(key, value)
    (found,) = problems(text)
    line = len(text.splitlines())
    assert found.startswith(f"c.yaml:{line}:")
    _, _, said = found.partition(f": models.m.completion.{key}{where}: ")
    assert said.startswith(sentence or "must be a path")


@pytest.mark.parametrize("key", ["submit", "id", "poll", "done", "failed"])
def test_what_is_missing_of_a_description_is_named(key: str) -> None:
    (found,) = problems(own(key, None))
    assert found.startswith("c.yaml:4:5: models.m.completion: ")
    assert f": `{key}` is missing; or choose a `preset`" in found
    assert problems(own(key, "")) == (found,)


def test_a_cancel_cannot_be_a_submit() -> None:
    text = own("submit", "[/v1/tasks, 'POST /v1/tasks/{id}/stop']") + "\n      cancel: /v1/tasks/{id}/stop"
    (found,) = problems(text)
    sentence = '"/v1/tasks/{id}/stop" stands in `submit` too: it cannot be what stops a job'
    assert found == f"c.yaml:10:15: models.m.completion.cancel: {sentence}"


def test_all_problems_of_a_description_are_told_at_once() -> None:
    text = own("poll", "/v1/status") + "\n      cancel: stop\n      result: /x"
    assert len(problems(text)) == 3


def test_the_examples_of_the_page_follow_the_jobs_of_their_servers() -> None:
    blocks = test_documentation.section("Completion").split("```yaml\n")[1:]
    read = [settings(block.partition("```")[0]) for block in blocks]
    found = {model.id: model.completion for each in read for model in each.models.values()}
    assert found.keys() == {"wan-omni", "wan-sglang", "comfy", "wan-lightx2v", "wan-sdcpp"}
    assert found["wan-omni"] == PRESETS["openai-videos"](7200, 300)
    assert found["wan-sglang"] == PRESETS["openai-videos"](3600, 300)
    assert found["comfy"] == PRESETS["comfyui"](7200, 300)
    light, sdcpp = found["wan-lightx2v"], found["wan-sdcpp"]
    assert light is not None
    assert light.submits("POST", "/v1/tasks/video/")
    assert light.frees_on_cancel("t")
    assert light.keeps("t", []) == ("/v1/tasks/t/status", "/v1/tasks/t/result")
    assert sdcpp is not None
    assert sdcpp.submits("POST", "/sdcpp/v1/vid_gen")
    assert sdcpp.is_bystander("POST", "/sdcpp/v1/jobs/j/cancel")
    assert sdcpp.keeps("j", []) == ("/sdcpp/v1/jobs/j",)
