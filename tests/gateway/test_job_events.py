"""What is told of a job while it waits, runs and ends: /api/events and /api/jobs/ID/why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.async_servers import models, stub_model, video_model
from tests.support.gateway import GatewayProcess
from tests.support.job_news import JobNews
from tests.support.stub_client import eventually


@contextmanager
def following(gateway: GatewayProcess) -> Iterator[JobNews]:
    follower = JobNews(gateway)
    try:
        yield follower
    finally:
        follower.close()


def test_events_and_why_tell_of_a_render_from_its_wait_to_its_end(tmp_path: Path) -> None:
    config = models(video_model("wan", flavour="openai", extra="completion: openai-videos"), stub_model("mA"))
    with GatewayProcess(tmp_path, config) as gateway, following(gateway) as told:
        chat = gateway.raw_chat("mA", "r1", stub={"dur": 1.0})
        eventually(lambda: gateway.journal("req_start"), "the chat runs")
        video = gateway.request(
            "POST",
            "/v1/videos",
            json={"model": "wan", "prompt": "x", "seconds": "1"},
            headers={"Prefer": "respond-async"},
        )
        job_id = video.json()["id"]
        why = gateway.get(f"/api/jobs/{job_id}/why").json()
        assert (why["state"], why["position"]) == ("waiting", 1)
        assert "ends (mA runs)" in why["text"]
        plain = gateway.request("GET", f"/api/jobs/{job_id}/why", headers={"Accept": "text/plain"})
        assert plain.headers["content-type"].startswith("text/plain")
        assert plain.text.startswith(f"Job {job_id} has waited for ")

        def in_mid_render() -> bool:
            answer = gateway.get(f"/api/jobs/{job_id}/why").json()
            return answer["state"] == "running" and 0 < (answer["progress"] or 0) < 100

        eventually(in_mid_render, "its progress shows")
        assert "% done" in gateway.get(f"/api/jobs/{job_id}/why").json()["text"]
        eventually(lambda: told.of(job_id) and told.of(job_id)[-1]["state"] == "ended", "its end is told")
        chat.close()

        states = [job["state"] for job in told.of(job_id)]
        assert states == sorted(states, key=["waiting", "running", "ended"].index)
        assert set(states) == {"waiting", "running", "ended"}
        steps = [job["progress"] for job in told.of(job_id) if job["progress"] is not None]
        assert steps == sorted(steps)
        assert len(set(steps)) > 1
        last = told.of(job_id)[-1]
        assert (last["outcome"], last["model"], last["band"]) == ("completed", "wan", "normal")
        assert gateway.get(f"/api/jobs/{job_id}/why").json()["text"].endswith("it ended as completed.")


def test_an_unknown_job_has_no_why(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, models(stub_model("mA"))) as gateway:
        answer = gateway.get("/api/jobs/nobody/why")
        assert answer.status_code == 404
        assert "no job `nobody` is known" in answer.json()["error"]["message"]


def test_a_follower_that_leaves_and_one_that_stays_do_not_keep_the_gateway_from_ending(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, models(stub_model("mA"))) as gateway:
        with following(gateway):
            assert gateway.chat("mA").status_code == 200
        stays = JobNews(gateway)
        assert gateway.chat("mA").status_code == 200
        eventually(lambda: any(job["state"] == "ended" for job in stays.jobs), "the end is told")
        assert gateway.stop() == 0
        stays.close()
