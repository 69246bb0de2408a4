from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from tests.support.async_servers import comfy_model, models, stub_model
from tests.support.gateway import GatewayProcess
from tests.support.renders import LONG_S, Render, Renders, message
from tests.support.scene import in_time

COMFY = "/upstream/comfy"
PNG = b"\x89PNG\r\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    config = models(
        comfy_model("comfy", extra="completion: comfyui"),
        comfy_model("hasty", extra="completion: {preset: comfyui, deadline: 1}"),
        comfy_model("nervous", extra="completion: {preset: comfyui, patience: 1}"),
        stub_model("mA"),
    )
    with GatewayProcess(tmp_path_factory.mktemp("comfy"), config) as gateway:
        yield gateway


def graph(class_type: str = "SaveImage", **inputs: Any) -> dict[str, Any]:
    return {"prompt": {"9": {"class_type": class_type, "inputs": inputs}}}


def queue_graph(renders: Renders, *, base: str = COMFY, client_id: str | None = None, **inputs: Any) -> Render:
    answer = renders.ask("POST", f"{base}/prompt", json={**graph(**inputs), "client_id": client_id})
    assert answer.status_code == 200, answer.text
    prompt = answer.json()["prompt_id"]
    return Render(id=prompt, job=answer.headers["X-LlamaSwap-Job"], path=f"{base}/history/{prompt}")


def history(renders: Renders, render: Render) -> Any:
    return renders.told(render).get(render.id)


def why(renders: Renders, render: Render) -> str:
    """The last thing that the history tells of a graph that did not succeed."""
    status = history(renders, render)["status"]
    assert (status["status_str"], status["completed"]) == ("error", False)
    event, details = status["messages"][-1]
    return str(details.get("exception_message", event))


@pytest.mark.parametrize(("kind", "base"), [("SaveImage", COMFY), ("SaveVideo", f"{COMFY}/api")])
def test_the_lane_is_held_to_the_graphs_end_and_what_it_made_outlives_its_server(
    renders: Renders, kind: str, base: str
) -> None:
    render = queue_graph(renders, base=base, seconds=0.5, class_type=kind)
    renders.until_rendering(render.id)
    assert renders.running()["id"] == render.job
    renders.chat(f"after-{render.id}")
    assert renders.chatted(f"after-{render.id}") > renders.freed(render.id)
    assert renders.outcome(render.job) == "completed"

    boots, jobs = len(renders.gateway.journal("boot")), renders.gateway.metric("swaplane_jobs_total")
    entry = renders.ask("GET", f"{COMFY}/history/{render.id}").json()[render.id]
    assert entry["status"]["status_str"] == "success"
    (image,) = entry["outputs"]["9"]["images"]
    view = renders.ask("GET", f"{COMFY}/view", params=image)
    assert view.headers["Content-Type"] == ("image/png" if kind == "SaveImage" else "video/mp4")
    assert view.content.startswith(PNG) is (kind == "SaveImage")
    part = renders.ask("GET", f"{COMFY}/view", params=image, headers={"Range": "bytes=0-3"})
    assert (part.status_code, part.content) == (206, view.content[:4])
    shuffled = {**dict(reversed(image.items())), "rand": "0.5"}
    assert renders.ask("GET", f"{COMFY}/api/view", params=shuffled).content == view.content, "as ComfyUI's page asks"
    for path in ("queue", "history", "system_stats", "history/unknown", "view?filename=unknown.png", "object_info"):
        answer = renders.ask("GET", f"{COMFY}/{path}")
        assert answer.status_code == 409, path
        assert message(answer) == "model comfy is not loaded; requests about its jobs do not load it"
    assert renders.ask("POST", f"{COMFY}/interrupt").status_code == 409
    assert len(renders.gateway.journal("boot")) == boots, "none of this loads a model"
    assert renders.gateway.metric("swaplane_jobs_total") == jobs, "none of this is a job"


def test_the_page_loads_the_model_and_a_refused_graph_is_over_at_once(renders: Renders) -> None:
    renders.swap()
    page = renders.ask("GET", f"{COMFY}/")
    assert (page.status_code, "X-LlamaSwap-Job" in page.headers) == (200, True)
    assert renders.gateway.states() == {"comfy": "ready"}
    answer = renders.ask("POST", f"{COMFY}/prompt", json={"prompt": {}})
    assert (answer.status_code, message(answer)) == (400, "Prompt has no outputs")
    assert renders.outcome(answer.headers["X-LlamaSwap-Job"]) == "completed"


def test_an_open_page_looks_on_and_takes_no_place(renders: Renders) -> None:
    renders.swap()
    where = f"ws://127.0.0.1:{renders.gateway.port}{COMFY}/ws?clientId=page"
    with pytest.raises(InvalidStatus) as refused:
        connect(where, proxy=None)
    assert refused.value.response.status_code == 409
    assert renders.gateway.states() == {"mA": "ready"}

    renders.ask("GET", f"{COMFY}/")
    with connect(where, proxy=None) as page:
        render = queue_graph(renders, seconds=0.4, client_id="page")
        assert [job["id"] for job in renders.gateway.queue()["running"]] in ([render.job], [])
        for path in ("queue", "history", "prompt", "system_stats"):
            assert renders.ask("GET", f"{COMFY}/{path}").status_code == 200
        renders.chat("after-page")
        seen = set()
        with contextlib.suppress(ConnectionClosedError):  # its server is stopped for the chat
            for text in page:
                seen.add(json.loads(text)["type"])
        assert {"status", "execution_start", "progress", "executed", "execution_success"} <= seen
    assert renders.chatted("after-page") > renders.freed(render.id)
    assert renders.outcome(render.job) == "completed"


@pytest.mark.parametrize("by", ["the gateway's client", "the page", "the page, of anything"])
def test_an_interrupted_graph_leaves_its_server_as_it_is(renders: Renders, by: str) -> None:
    render = queue_graph(renders, seconds=float(LONG_S))
    renders.until_rendering(render.id)
    if by == "the gateway's client":
        assert renders.ask("DELETE", f"/api/jobs/{render.job}").status_code == 200
    else:
        body = {"prompt_id": render.id} if by == "the page" else {}
        assert renders.ask("POST", f"{COMFY}/api/interrupt", json=body).status_code == 200
    cancelled = by == "the gateway's client"
    assert renders.outcome(render.job) == ("cancelled_running" if cancelled else "upstream_error")
    assert renders.how(render.id) == "cancelled"
    later = queue_graph(renders, seconds=0.1)
    assert renders.outcome(later.job) == "completed"
    assert renders.process(later.id) == renders.process(render.id)
    renders.swap()
    assert why(renders, render) == ("cancelled by request while it ran" if cancelled else "execution_interrupted")


def test_a_graph_that_lets_go_slowly_keeps_the_place_until_it_has(renders: Renders) -> None:
    render = queue_graph(renders, seconds=float(LONG_S), fault="slow_cancel:1.2")
    renders.until_rendering(render.id)
    renders.chat("after-slow")
    assert renders.ask("DELETE", f"/api/jobs/{render.job}").status_code == 200
    assert renders.chatted("after-slow") > renders.freed(render.id)
    assert (renders.how(render.id), renders.outcome(render.job)) == ("cancelled", "cancelled_running")


def test_a_client_that_leaves_during_the_submit_wants_no_graph(renders: Renders) -> None:
    call = renders.send(f"{COMFY}/prompt", graph(seconds=float(LONG_S), fault="slow_submit:0.7"))
    prompt = renders.until_rendering()
    job = renders.running()["id"]
    call.leave()
    assert (renders.outcome(job), renders.how(prompt)) == ("left_running", "cancelled")


@pytest.mark.parametrize(
    ("model", "fault", "outcome", "told"),
    [
        ("comfy", "fail", "upstream_error", "CUDA error"),
        ("comfy", "restart", "upstream_lost", "its server does not know the job any more"),
        ("comfy", "crash", "upstream_broken", "the model's server ended while it ran"),
        ("comfy", "deaf:1", "completed", ""),
        ("nervous", "deaf:600", "upstream_lost", "its server said nothing of the job for 1 s"),
        ("hasty", "never", "overdue", "it was not over by its model's deadline of 1 s"),
    ],
)
def test_what_goes_wrong_at_the_server(renders: Renders, model: str, fault: str, outcome: str, told: str) -> None:
    seconds = float(LONG_S) if fault == "deaf:600" else 0.6
    render = queue_graph(renders, base=f"/upstream/{model}", seconds=seconds, fault=fault)
    renders.until_rendering(render.id)
    renders.chat(f"after-{fault}")
    assert renders.outcome(render.job) == outcome
    assert renders.chatted(f"after-{fault}") > renders.freed(render.id)
    if told:
        assert told in why(renders, render)
    else:
        assert history(renders, render)["status"]["completed"] is True


def test_a_killed_server_breaks_its_graph(renders: Renders) -> None:
    render = queue_graph(renders, seconds=float(LONG_S))
    renders.until_rendering(render.id)
    os.kill(renders.process(render.id), signal.SIGKILL)
    assert renders.outcome(render.job) == "upstream_broken"
    assert why(renders, render) == "the model's server ended while it ran"


def test_an_unload_ends_a_graph(renders: Renders) -> None:
    render = queue_graph(renders, seconds=float(LONG_S))
    renders.until_rendering(render.id)
    assert renders.gateway.unload().status_code == 200
    in_time(lambda: renders.gateway.states() == {}, "nothing is loaded")
    assert renders.outcome(render.job) == "unloaded_running"
    assert why(renders, render) == "the model was unloaded while it ran"
