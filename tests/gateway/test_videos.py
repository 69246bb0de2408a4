from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from swaplane.demo.frames import count_frames
from tests.support.async_servers import models, stub_model, video_model
from tests.support.gateway import GatewayProcess
from tests.support.renders import LONG_S, VIDEOS, Renders, message
from tests.support.scene import in_time
from tests.support.stub_client import eventually, leftovers

EXTRA = "completion: openai-videos\naliases: [sora-2]"
ASYNC = {"Prefer": "respond-async"}
SHORT: dict[str, Any] = {"prompt": "a night train", "seconds": "0.1"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    config = models(video_model("wan", flavour="vllm", extra=EXTRA), stub_model("mA"))
    with GatewayProcess(tmp_path_factory.mktemp("videos"), config) as gateway:
        yield gateway


def made(renders: Renders, **options: Any) -> Any:
    """A short video, made; the answer to its submit."""
    answer = renders.ask("POST", VIDEOS, **options)
    assert answer.status_code == 200, answer.text
    assert renders.outcome(answer.headers["X-LlamaSwap-Job"]) == "completed"
    return answer.json()


def listed(renders: Renders, query: str) -> tuple[list[str], bool]:
    page = renders.ask("GET", f"{VIDEOS}?{query}").json()
    ids = [video["id"] for video in page["data"]]
    assert (page["object"], page["first_id"], page["last_id"]) == ("list", ids[0] if ids else None, (ids or [None])[-1])
    return ids, page["has_more"]


def test_a_request_that_names_no_model_is_for_the_only_one_that_makes_videos(renders: Renders) -> None:
    assert made(renders, json=SHORT)["status"] == "queued"
    form = {name: (None, value) for name, value in SHORT.items()}
    assert made(renders, files=form)["prompt"] == "a night train"
    answer = renders.ask("POST", f"{VIDEOS}/sync", json=SHORT)
    assert (answer.status_code, count_frames([answer.content])) == (200, 5)
    chat = renders.ask("POST", "/v1/chat/completions", json={"messages": []})
    assert (chat.status_code, message(chat)) == (404, "no model id could be identified")


def test_where_several_make_videos_the_model_has_to_be_named(tmp_path: Path) -> None:
    config = models(
        video_model("wan", extra="completion: openai-videos"),
        video_model("hunyuan", extra="completion: openai-videos"),
        video_model("other"),
    )
    with GatewayProcess(tmp_path, config) as gateway:
        for path in (VIDEOS, f"{VIDEOS}/sync"):
            answer = gateway.request("POST", path, json=SHORT)
            assert answer.status_code == 404
            assert message(answer) == (
                "no model id could be identified; "
                "several models make videos: give the field `model`, one of `hunyuan`, `wan`"
            )
        assert gateway.states() == {}
        assert gateway.metric("swaplane_jobs_total") == 0


def test_a_remix_is_a_job_of_the_model_that_made_the_first(renders: Renders) -> None:
    first = made(renders, json=SHORT)
    remix = renders.ask("POST", f"{VIDEOS}/{first['id']}/remix", json={"prompt": "by day", "seconds": "0.4"})
    assert remix.status_code == 200, remix.text
    renders.chat("after-remix")
    assert remix.json()["remixed_from_video_id"] == first["id"]
    assert renders.chatted("after-remix") > renders.freed(remix.json()["id"])
    assert renders.outcome(remix.headers["X-LlamaSwap-Job"]) == "completed"
    assert renders.frames(f"{VIDEOS}/{remix.json()['id']}/content") == 5

    late = renders.ask("POST", f"{VIDEOS}/{first['id']}/remix", json={"prompt": "by day"})
    assert (late.status_code, late.json()) == (404, {"detail": "Video not found"}), "its server started anew"
    unknown = renders.ask("POST", f"{VIDEOS}/video_gen_0/remix", json={"prompt": "by day"})
    assert (unknown.status_code, "no video `video_gen_0` is known" in message(unknown)) == (404, True)


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
def test_the_list_has_pages_and_needs_no_model(renders: Renders) -> None:
    before = listed(renders, "limit=100")[0]
    ids = [made(renders, json=SHORT)["id"] for _ in range(3)]
    renders.swap()
    boots = len(renders.gateway.journal("boot"))
    newest, oldest = ids[::-1], before[::-1] + ids
    assert listed(renders, "limit=2") == (newest[:2], True)
    assert listed(renders, f"limit=2&after={newest[1]}")[0][:1] == newest[2:]
    assert listed(renders, f"order=asc&limit=100&after={ids[0]}") == (ids[1:], False)
    assert listed(renders, "order=asc&limit=100") == (oldest, False)
    assert listed(renders, "model=sora-2&limit=100") == (oldest[::-1], False)
    assert listed(renders, "after=unknown") == ([], False)
    with openai.OpenAI(base_url=f"{renders.gateway.url}/v1", api_key="unused", max_retries=0) as client:
        assert [video.id for video in client.videos.list(limit=2)] == oldest[::-1]
    for query, sentence in {
        "limit=0": "query parameter `limit` must be a whole number from 1 to 100, not `0`",
        "limit=101": "query parameter `limit` must be a whole number from 1 to 100, not `101`",
        "order=up": "query parameter `order` must be `asc` or `desc`, not `up`",
    }.items():
        answer = renders.ask("GET", f"{VIDEOS}?{query}")
        assert (answer.status_code, message(answer)) == (400, sentence)
    unknown = renders.ask("GET", f"{VIDEOS}?model=sora-3")
    assert (unknown.status_code, "did you mean `sora-2`" in message(unknown)) == (404, True)
    assert len(renders.gateway.journal("boot")) == boots


def test_other_methods_and_paths_are_refused(renders: Renders) -> None:
    assert renders.ask("PUT", VIDEOS).status_code == 405
    assert renders.ask("GET", f"{VIDEOS}/").status_code == 404
    assert renders.ask("GET", f"{VIDEOS}/..%2F..%2Fetc").status_code == 404


def test_a_video_that_nobody_waits_for_is_known_by_its_jobs_id(renders: Renders) -> None:
    blocks = renders.submit("wan", seconds=LONG_S)
    renders.until_rendering(blocks.id)
    accepted = [renders.ask("POST", VIDEOS, json={"model": "wan", **SHORT}, headers=ASYNC) for _ in range(2)]
    assert [answer.status_code for answer in accepted] == [202, 202]
    wanted, unwanted = (f"{VIDEOS}/{answer.json()['id']}" for answer in accepted)
    for path in (wanted, unwanted):
        waiting = renders.ask("GET", path).json()
        assert (waiting["object"], waiting["status"], waiting["model"]) == ("video", "queued", "wan")
        content = renders.ask("GET", f"{path}/content")
        assert (content.status_code, "it waits for its turn" in message(content)) == (404, True)
    assert renders.ask("DELETE", unwanted).json()["deleted"] is True
    assert renders.ask("GET", unwanted).status_code == 404
    assert renders.ask("GET", f"/api/jobs/{unwanted.rpartition('/')[2]}").status_code == 404
    assert renders.ask("DELETE", blocks.path).status_code == 200

    in_time(lambda: renders.ask("GET", wanted).json()["status"] == "completed", "it is made")
    renders.swap()
    assert renders.frames(f"{wanted}/content") == 5
    video = renders.ask("GET", wanted).json()["id"]
    assert renders.frames(f"{VIDEOS}/{video}/content") == 5
    assert renders.ask("DELETE", wanted).json()["deleted"] is True
    for path in (wanted, f"{VIDEOS}/{video}", f"{wanted}/content"):
        gone = renders.ask("GET", path)
        assert (gone.status_code, "is known: it was never made here" in message(gone)) == (404, True)


def test_a_running_video_that_nobody_waits_for_is_cancelled_by_its_jobs_id(renders: Renders) -> None:
    body = {"model": "wan", "prompt": "a", "seconds": LONG_S}
    job = renders.ask("POST", VIDEOS, json=body, headers=ASYNC).json()["id"]
    video = renders.until_rendering()
    in_time(lambda: renders.ask("GET", f"{VIDEOS}/{job}").json()["id"] == video, "its server's id is known")
    assert renders.ask("DELETE", f"{VIDEOS}/{job}").status_code == 200
    assert renders.outcome(job) == "cancelled_running"
    assert renders.how(video) == "cancelled"


def test_a_video_that_is_made_again_after_a_crash_has_not_failed(tmp_path: Path) -> None:
    config = models(video_model("wan", flavour="vllm", extra=EXTRA))
    first = GatewayProcess(tmp_path, config)
    with first.unguarded():
        renders = Renders(first)
        job = renders.ask("POST", VIDEOS, json={"prompt": "a", "seconds": "1"}, headers=ASYNC).json()["id"]
        cut = renders.until_rendering()
        first.process.kill()
        first.process.wait()
        eventually(lambda: not leftovers(first.stub_id), "its server ends with it")

    with GatewayProcess(tmp_path, config) as second:
        renders, told = Renders(second), []

        def made_again() -> bool:
            told.append(renders.ask("GET", f"{VIDEOS}/{job}").json()["status"])
            told.extend(video["status"] for video in renders.ask("GET", VIDEOS).json()["data"])
            assert len(listed(renders, "")[0]) == 1
            return bool(told[-1] == "completed")

        in_time(made_again, "it is made")
        assert "failed" not in told
        video = renders.ask("GET", f"{VIDEOS}/{job}").json()["id"]
        assert video != cut
        assert listed(renders, "limit=100") == ([video], False)
        assert renders.ask("GET", f"{VIDEOS}/{cut}").status_code == 404
        assert renders.frames(f"{VIDEOS}/{job}/content") == 5


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_the_list_has_each_once_those_that_wait_and_those_that_are_done(tmp_path: Path, order: Any) -> None:
    with GatewayProcess(tmp_path, models(video_model("wan", flavour="vllm", extra=EXTRA), stub_model("mA"))) as gateway:
        renders = Renders(gateway)
        done = [made(renders, json=SHORT)["id"] for _ in range(5)]
        blocks = renders.submit("wan", seconds=LONG_S)
        waiting = [renders.ask("POST", VIDEOS, json=SHORT, headers=ASYNC).json()["id"] for _ in range(25)]
        oldest = [*done, blocks.id, *waiting]
        wanted = oldest if order == "asc" else oldest[::-1]
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client:
            for limit in (1, 4, 7, 25, 26, 31, 100):
                assert [video.id for video in client.videos.list(limit=limit, order=order)] == wanted, limit
        assert listed(renders, f"order={order}&after=unknown") == ([], False)
        assert renders.ask("DELETE", f"{VIDEOS}/{waiting[3]}").status_code == 200
        assert listed(renders, f"order={order}&after={waiting[3]}") == ([], False)
        for video in waiting[:3] + waiting[4:]:
            assert renders.ask("DELETE", f"{VIDEOS}/{video}").status_code == 200
        assert sorted(listed(renders, "limit=100")[0]) == sorted([*done, blocks.id])
        assert renders.ask("DELETE", blocks.path).status_code == 200
        renders.assert_at_rest()


def test_a_page_goes_on_after_a_video_that_has_been_taken_meanwhile(renders: Renders) -> None:
    before = made(renders, json=SHORT)["id"]
    job = renders.ask("POST", VIDEOS, json=SHORT, headers=ASYNC).json()["id"]
    in_time(lambda: renders.ask("GET", f"{VIDEOS}/{job}").json()["status"] == "completed", "it is made")
    after = made(renders, json=SHORT)["id"]
    assert listed(renders, f"limit=1&after={job}")[0] == [before]
    assert listed(renders, f"order=asc&after={job}") == ([after], False)


@pytest.mark.parametrize(("flavour", "words"), [("vllm", "Field required"), ("sglang", "prompt is required")])
def test_a_video_that_its_server_refuses_has_failed_in_its_servers_words(
    tmp_path: Path, flavour: str, words: str
) -> None:
    with GatewayProcess(tmp_path, models(video_model("wan", flavour=flavour, extra=EXTRA))) as gateway:
        renders = Renders(gateway)
        accepted = renders.ask("POST", VIDEOS, json={"model": "wan", "prompt": ""}, headers=ASYNC)
        assert accepted.status_code == 202
        video = f"{VIDEOS}/{accepted.json()['id']}"
        in_time(lambda: renders.ask("GET", video).json()["status"] == "failed", "it is refused")
        assert renders.ask("GET", video).json()["error"] == {"code": "refused", "message": words}
        content = renders.ask("GET", f"{video}/content")
        assert (content.status_code, words in message(content)) == (404, True)
        assert renders.ask("DELETE", video).json()["deleted"] is True
        assert renders.ask("GET", video).status_code == 404


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
def test_a_remix_that_nobody_waits_for_is_a_video_from_the_moment_it_is_accepted(renders: Renders) -> None:
    first = made(renders, json=SHORT)
    with openai.OpenAI(
        base_url=f"{renders.gateway.url}/v1", api_key="unused", max_retries=0, default_headers=ASYNC
    ) as client:
        remix = client.videos.remix(first["id"], prompt="by day")
        assert (remix.object, remix.status, remix.model) == ("video", "queued", "wan")
        done = client.videos.poll(remix.id, poll_interval_ms=50)
        assert (done.status, done.remixed_from_video_id) == ("completed", first["id"])
        assert count_frames([client.videos.download_content(remix.id).content]) == 5
