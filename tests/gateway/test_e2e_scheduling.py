"""Who runs when, in front of a real gateway: swaps, bursts, departures, lanes, slots."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from itertools import count

import pytest

from tests.support.gateway import GatewayProcess, stub_models
from tests.support.scene import Answer, Call, Scene, in_time
from tests.support.stub_client import stub_cmd


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    config = stub_models("mA", "mB", flags="--boot 0.2", extra='aliases: ["${MODEL_ID}-alias"]')
    config += f"""\
  slow:
    cmd: {stub_cmd("${PORT}", "slow")} --boot 1.5
  elsewhere:
    cmd: {stub_cmd("${PORT}", "elsewhere")}
    lane: cpu
  wide:
    cmd: {stub_cmd("${PORT}", "wide")}
    slots: 3
scheduling:
  lanes: {{cpu: 1}}
"""
    with GatewayProcess(tmp_path_factory.mktemp("scheduling"), config) as gateway:
        yield gateway


def boots(scene: Scene) -> list[str]:
    return [entry["name"] for entry in scene.journal("boot")]


def in_order_of_arrival(scene: Scene, answers: list[Answer], model: str) -> bool:
    """Whether the model got its requests in the order in which the gateway took them in."""
    arrival = {json.loads(answer.body)["rid"]: answer.arrival for answer in answers}
    numbers = [arrival[entry["rid"]] for entry in scene.journal("req_start") if entry["name"] == model]
    return numbers == sorted(numbers)


# Swaps.


def test_interleaved_requests_cost_one_swap_not_one_each(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        calls = [scene.send("mA", "first", stub={"dur": 0.5})]
        calls += [scene.send(("mA", "mB")[n % 2], f"{n}", stub={"dur": 0.05}) for n in range(12)]
        answers = [call.answer() for call in calls]
        assert {answer.status for answer in answers} == {200}
        assert boots(scene) == ["mA", "mB"]
        assert in_order_of_arrival(scene, answers, "mA")
        assert in_order_of_arrival(scene, answers, "mB")


@pytest.mark.parametrize("priority", ["0", "+100"])
def test_one_chat_among_many_images(gateway: GatewayProcess, priority: str) -> None:
    with Scene(gateway) as scene:
        images = [scene.send("mA", f"image-{n}", stub={"dur": 0.1 if n else 1}) for n in range(6)]
        scene.until_running("image-0")
        chat = scene.send("mB", "chat", headers={"X-LlamaSwap-Priority": priority})
        scene.until_waiting(6)
        first = gateway.queue()["waiting"][0]
        answers = [call.answer() for call in [*images, chat]]
        assert {answer.status for answer in answers} == {200}
        if priority == "0":
            assert boots(scene) == ["mA", "mB"], "no swap for a job that is worth no more"
            assert (first["model"], scene.ran()[-1]) == ("mA", "chat")
        else:
            assert boots(scene) == ["mA", "mB", "mA"], "there and back, once"
            assert (first["model"], scene.ran()[1]) == ("mB", "chat")
            assert "mA runs" in first["reason"]


# Bursts.


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_fifty_at_once_run_one_at_a_time(gateway: GatewayProcess, *, warm: bool) -> None:
    with Scene(gateway) as scene:
        answers = [scene.ask("mA", "warms")] if warm else []
        for number in range(2):
            calls = [scene.prepare("mA", f"{number}-{n}", stub={"dur": 0.01}) for n in range(50)]
            for call in calls:
                call.send()
            answers += [call.answer() for call in calls]
        assert {answer.status for answer in answers} == {200}
        assert in_order_of_arrival(scene, answers, "mA")
        assert boots(scene) == ["mA"]


def test_a_cold_model_is_started_once_whatever_it_is_called(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        calls = [scene.prepare(("mA", "mA-alias")[n % 2], f"{n}") for n in range(20)]
        for call in calls:
            call.send()
        assert {call.answer().status for call in calls} == {200}
        assert boots(scene) == ["mA"]


def test_every_member_has_its_turn(gateway: GatewayProcess) -> None:
    """Four members with two jobs waiting each, at all times: in eight starts each of them is served."""
    with Scene(gateway) as scene:
        scene.send("mA", "held", headers={"X-LlamaSwap-Member": "first"}, stub={"dur": 1})
        scene.until_running("held")
        numbers = count()

        def keep_asking(member: str) -> None:
            for _ in range(6):
                rid = f"{member}-{next(numbers)}"
                answer = scene.ask("mA", rid, headers={"X-LlamaSwap-Member": member}, stub={"dur": 0.03})
                assert answer.status == 200

        workers = [threading.Thread(target=keep_asking, args=[member]) for member in "abcd" * 2]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        served = [rid[0] for rid in scene.ran()[1:]]
        assert len(served) == 48
        for start in range(len(served) - 8 - 8):  # towards the end some have nothing left to ask
            assert set(served[start : start + 8]) == set("abcd"), "".join(served)


# Departures.


def streamed_words(answer: Answer) -> str:
    events = answer.body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events[:-2]]
    return "".join(delta.get("content", "") for delta in deltas)


def test_who_leaves_the_queue_does_not_touch_who_runs(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        stream = scene.send("mA", "streams", stub={"chunks": 40, "gap": 0.02}, stream=True)
        scene.until_running("streams")
        leaving = [scene.send("mA", f"leaves-{n}", stub={"dur": 5}) for n in range(4)]
        scene.until_waiting(4)
        for number, call in enumerate(leaving):
            call.leave(reset=number % 2 == 0)
        scene.until_waiting(0)
        answer = stream.answer()
        assert answer.whole
        assert streamed_words(answer) == "".join(f"w{n} " for n in range(40))
        assert scene.ran() == ["streams"]


def test_leaving_at_the_very_end_of_the_one_before(gateway: GatewayProcess) -> None:
    """Around the moment at which the place comes free, a departure ends one job and nothing else."""
    chance = random.Random(11)
    with Scene(gateway) as scene:
        for number in range(25):
            first = scene.send("mA", f"first-{number}", stub={"chunks": 5, "gap": 0.004}, stream=True)
            leaving = [scene.send("mA", f"leaves-{number}-{n}", stub={"dur": 0.002}) for n in range(2)]
            assert first.head() == 200
            time.sleep(chance.uniform(0, 0.02))
            for call in leaving:
                call.leave(reset=chance.random() < 0.5)
            answer = first.rest()
            assert answer.whole
            assert streamed_words(answer) == "w0 w1 w2 w3 w4 "
        assert scene.ask("mA", "last").status == 200


def test_who_caused_the_load_may_leave(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        first = scene.send("slow", "leaves")
        in_time(lambda: boots(scene), "it loads")
        others = [scene.send("slow", f"stays-{n}") for n in range(2)]
        scene.until_waiting(2)
        first.leave()
        scene.until_waiting(1)
        assert scene.journal("ready") == []
        assert [call.answer().status for call in others] == [200, 200]
        assert (boots(scene), scene.journal("sigterm")) == (["slow"], [])


def test_a_cut_stream_gives_its_place_back(gateway: GatewayProcess) -> None:
    with Scene(gateway) as scene:
        for number in range(20):
            stream = scene.send("mA", f"cut-{number}", stub={"chunks": 1000, "gap": 0.01}, stream=True)
            assert stream.head() == 200
            received = b""
            while received.count(b"\n\n") < 3:
                received += stream.piece()
            stream.leave(reset=number % 2 == 0)
            assert scene.ask("mA", f"next-{number}").status == 200
        assert len(scene.journal("client_gone")) == 20


def test_an_arrival_a_cancel_and_an_end_in_one_moment(gateway: GatewayProcess) -> None:
    chance = random.Random(26)
    with Scene(gateway) as scene:
        for number in range(30):
            running = scene.send("mA", f"runs-{number}", stub={"dur": 0.03})
            waiting = [
                scene.send("mA", f"waits-{number}-{n}", headers={"X-LlamaSwap-Label": f"{n}"}, stub={"dur": 0.002})
                for n in range(3)
            ]
            scene.until_running(f"runs-{number}")
            ids = scene.job_ids()
            time.sleep(chance.uniform(0, 0.02))
            victim = ids.get("1")
            late = scene.send("mA", f"late-{number}", headers={"X-LlamaSwap-Priority": chance.choice(["0", "100"])})
            cancelled = victim is not None and gateway.request("DELETE", f"/api/jobs/{victim}").status_code == 200
            statuses = [call.answer().status for call in [running, *waiting, late]]
            assert statuses[0] == statuses[1] == statuses[3] == statuses[4] == 200
            assert statuses[2] in ((410, 502, 200) if cancelled else (200,))


# Lanes and slots.


def test_a_load_holds_up_its_own_lane_only(gateway: GatewayProcess) -> None:
    with Scene(gateway, aside=["elsewhere"]) as scene:
        assert scene.ask("elsewhere", "warms").status == 200
        loads = scene.send("slow", "loads")
        in_time(lambda: "slow" in boots(scene), "it loads")
        assert scene.ask("elsewhere", "passes").status == 200
        assert loads.answer().status == 200
        (ready,) = (entry["t"] for entry in scene.journal("ready") if entry["name"] == "slow")
        assert scene.moment("req_end", "passes") < ready
        assert {name: lane["resident"] for name, lane in gateway.lanes().items()} == {
            "gpu": ["slow"],
            "cpu": ["elsewhere"],
        }


def test_three_slots_run_three_jobs_side_by_side(gateway: GatewayProcess) -> None:
    with Scene(gateway, places=3) as scene:
        calls = [scene.send("wide", f"{n}", stub={"dur": 1}) for n in range(4)]
        in_time(lambda: len(scene.ran()) == 3, "three run")
        lane = gateway.queue()
        assert (len(lane["running"]), lane["waiting_total"]) == (3, 1)
        assert {call.answer().status for call in calls} == {200}
        starts = [entry["t"] for entry in scene.journal("req_start")]
        ends = [entry["t"] for entry in scene.journal("req_end")]
        assert max(starts[:3]) < min(ends), "three side by side"
        assert starts[3] >= min(ends), "the fourth in the place of the first that ended"


def test_another_model_waits_for_all_slots_and_is_not_overtaken(gateway: GatewayProcess) -> None:
    with Scene(gateway, places=3) as scene:
        assert scene.ask("wide", "warms").status == 200
        first = [scene.send("wide", f"wide-{n}", stub={"dur": 1}) for n in range(2)]
        in_time(lambda: len(scene.ran()) == 3, "two run, and one slot is free")
        other = scene.send("mB", "other", headers={"X-LlamaSwap-Priority": "100"})
        scene.until_waiting(1)
        late = scene.send("wide", "late")
        scene.until_waiting(2)
        calls: list[Call] = [*first, other, late]
        assert {call.answer().status for call in calls} == {200}
        assert scene.ran()[-2:] == ["other", "late"]
        assert scene.moment("req_start", "other") > max(scene.moment("req_end", f"wide-{n}") for n in range(2))
