from __future__ import annotations

import json

import pytest

from swaplane.completion.presets import PRESETS
from swaplane.completion.rule import Answer, Call, Report, Stage

COMFY = PRESETS["comfyui"](60, 6)
ID = "5f0c3a9e-8a55-4b62-9d0c-0c8f7b1a2d3e"
OTHER = "9f0c3a9e-8a55-4b62-9d0c-0c8f7b1a2d3e"


def answer(tree: object, status: int = 200) -> Answer:
    return Answer(status=status, body=json.dumps(tree).encode())


def item(number: float, prompt_id: str) -> list[object]:
    return [number, prompt_id, {"1": {"class_type": "X", "inputs": {}}}, {"client_id": "c"}, ["1"]]


def queue(running: list[object], pending: list[object]) -> Answer:
    return answer({"queue_running": running, "queue_pending": pending})


EMPTY = queue([], [])


def history(status: object, outputs: object = None) -> Answer:
    return answer({ID: {"prompt": item(1, ID), "outputs": outputs or {}, "status": status, "meta": {}}})


def failed(*messages: object) -> Answer:
    return history({"status_str": "error", "completed": False, "messages": list(messages)})


@pytest.mark.parametrize("path", ["/prompt", "/api/prompt", "/prompt/"])
def test_a_prompt_is_a_submit(path: str) -> None:
    assert COMFY.submits("POST", path)
    assert not COMFY.is_bystander("POST", path)
    assert not COMFY.submits("GET", path)


@pytest.mark.parametrize(
    ("method", "path", "prompt_id"),
    [
        ("GET", "/prompt", None),
        ("GET", "/queue", None),
        ("HEAD", "/api/queue", None),
        ("GET", "/history", None),
        ("GET", f"/history/{ID}", ID),
        ("GET", f"/api/history/{ID}", ID),
        ("GET", f"/api/jobs/{ID}", ID),
        ("GET", "/view", None),
        ("GET", "/assets/index.js", None),
        ("GET", "/ws", None),
        ("POST", "/interrupt", None),
        ("POST", "/api/interrupt", None),
        ("POST", "/queue", None),
        ("POST", "/api/queue", None),
        ("POST", "/history", None),
        ("POST", "/free", None),
        ("POST", "/api/free", None),
        ("POST", f"/api/jobs/{ID}/cancel", ID),
        ("POST", "/api/jobs/cancel", None),
    ],
)
def test_what_an_open_page_does_is_a_bystander(method: str, path: str, prompt_id: str | None) -> None:
    assert COMFY.is_bystander(method, path)
    assert not COMFY.submits(method, path)
    assert COMFY.id_in(method, path) == prompt_id


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", ""),
        ("HEAD", "/"),
        ("POST", "/upload/image"),
        ("POST", "/apix/queue"),
        ("DELETE", "/queue"),
    ],
)
def test_the_page_itself_and_uploads_load_the_model(method: str, path: str) -> None:
    assert not COMFY.is_bystander(method, path)
    assert not COMFY.submits(method, path)
    assert COMFY.id_in(method, path) is None


def test_the_id_is_that_of_an_accepted_prompt() -> None:
    assert COMFY.id_of(answer({"prompt_id": ID, "number": 3, "node_errors": {}})) == ID
    assert COMFY.id_of(answer({"error": {"type": "no_prompt"}, "node_errors": {}}, 400)) is None
    assert COMFY.id_of(answer({"prompt_id": ID}, 400)) is None
    assert COMFY.id_of(answer({})) is None


def test_the_queue_is_asked_before_the_history() -> None:
    assert COMFY.polls(ID) == (Call(method="GET", path="/queue"), Call(method="GET", path=f"/history/{ID}"))
    assert COMFY.read(ID, []) is None
    assert COMFY.read(ID, [EMPTY]) is None
    assert COMFY.read(ID, [queue([item(1, OTHER)], [item(2, OTHER)])]) is None


def test_a_prompt_in_the_queue_runs() -> None:
    running = COMFY.read(ID, [queue([item(1, ID)], [item(2, OTHER)])])
    assert running == Report(stage=Stage.RUNNING, detail="running")


def test_the_place_in_the_queue_is_by_number_as_the_list_is_a_heap() -> None:
    waiting = COMFY.read(ID, [queue([item(1, OTHER)], [item(-5, OTHER), item(9, OTHER), item(4, ID)])])
    assert waiting == Report(stage=Stage.RUNNING, detail="place 2 of 3 in its queue")


@pytest.mark.parametrize(
    ("said", "stage", "detail"),
    [
        (history({"status_str": "success", "completed": True, "messages": []}), Stage.DONE, "success"),
        (history(None), Stage.DONE, "success"),
        (failed(["execution_start", {}], ["execution_interrupted", {"node_id": "3"}]), Stage.FAILED, "interrupted"),
        (
            failed(["execution_error", {"node_type": "KSampler", "exception_message": "out of memory\n"}]),
            Stage.FAILED,
            "KSampler: out of memory",
        ),
        (failed(["execution_error", None]), Stage.FAILED, ""),
        (failed(), Stage.FAILED, "error"),
        (history({"status_str": "error", "messages": None}), Stage.FAILED, "error"),
        (history({"status_str": "odd", "completed": False}), Stage.FAILED, "error"),
        (answer({}), Stage.GONE, "neither in its queue nor in its history"),
        (answer({OTHER: {}}), Stage.GONE, "neither in its queue nor in its history"),
        (answer([]), Stage.UNCLEAR, "answered 200 for its history"),
        (answer({}, 500), Stage.UNCLEAR, "answered 500 for its history"),
        (Answer(status=502, body=b"Bad Gateway"), Stage.UNCLEAR, "answered 502 for its history"),
    ],
)
def test_a_prompt_that_has_left_the_queue_is_as_the_history_says(said: Answer, stage: Stage, detail: str) -> None:
    assert COMFY.read(ID, [EMPTY, said]) == Report(stage=stage, detail=detail)


@pytest.mark.parametrize(
    ("said", "detail"),
    [
        (answer({}, 404), "answered 404 for its queue"),
        (Answer(status=200, body=b"<html>"), "answered 200 for its queue"),
        (answer({}), "answered no queue"),
        (answer({"queue_running": [], "queue_pending": None}), "answered no queue"),
    ],
)
def test_without_a_queue_nothing_is_known(said: Answer, detail: str) -> None:
    assert COMFY.read(ID, [said]) == Report(stage=Stage.UNCLEAR, detail=detail)


def test_a_cancel_takes_it_out_of_the_queue_and_then_interrupts_it() -> None:
    delete, interrupt = COMFY.cancels(ID)
    assert (delete.method, delete.path, json.loads(delete.body)) == ("POST", "/queue", {"delete": [ID]})
    assert (interrupt.method, interrupt.path, json.loads(interrupt.body)) == ("POST", "/interrupt", {"prompt_id": ID})
    assert COMFY.frees_on_cancel(ID)


def test_every_file_that_the_history_names_is_kept_once() -> None:
    video = {"filename": "film 1&2.mp4", "subfolder": "shots/7", "type": "output"}
    outputs = {
        "9": {"images": [video], "animated": [True]},
        "10": {"gifs": [{"filename": "b.webp", "subfolder": "", "type": "temp"}, video], "text": ["hello"]},
        "11": {"audio": [{"filename": "c.flac"}, {"filename": None}, 7], "odd": "x"},
        "12": [],
    }
    assert COMFY.keeps(ID, [EMPTY, history({"status_str": "success"}, outputs)]) == (
        f"/history/{ID}",
        "/view?filename=film+1%262.mp4&subfolder=shots%2F7&type=output",
        "/view?filename=b.webp&subfolder=&type=temp",
        "/view?filename=c.flac&subfolder=&type=output",
    )
    assert COMFY.keeps(ID, [EMPTY]) == COMFY.keeps(ID, []) == (f"/history/{ID}",)


def test_its_times_are_those_given() -> None:
    assert (COMFY.name, COMFY.deadline_s, COMFY.patience_s) == ("comfyui", 60, 6)


def test_what_is_told_of_a_prompt_that_cannot_be_asked_for_any_more_reads_as_failed() -> None:
    told = COMFY.epitaph(ID, b"anything", "the server ended")
    assert told is not None
    again = COMFY.read(ID, [EMPTY, Answer(status=200, body=told)])
    assert again == Report(stage=Stage.FAILED, detail="the server ended")
    assert not COMFY.abandons("POST", "/prompt")
