"""The `openai` client against real models: SmolLM2 and MiniLM in llama.cpp's server, behind the gateway."""

from __future__ import annotations

import shlex
import sys
from collections.abc import AsyncIterator, Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from tests.support.gateway import GatewayProcess
from tests.support.scene import in_time

FRESH = {"cache_prompt": False}  # where two answers are compared, none builds on what an earlier request left
QUESTION: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("openai")
    models = "models:\n"
    for name in ("smollm2", "minilm"):
        words = [sys.executable, "-m", "swaplane.demo.chat_server", "--model", name]
        models += f"  {name}:\n    cmd: {shlex.join(words)} --port ${{PORT}}\n    proxy: http://127.0.0.1:${{PORT}}\n"
        models += f'    env: ["XDG_CACHE_HOME={folder}"]\n'
    with GatewayProcess(folder, models) as gateway:
        yield gateway


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", timeout=100, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(gateway: GatewayProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused", timeout=100, max_retries=0) as client:
        yield client


def test_the_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["minilm", "smollm2"]


def test_a_chat_and_what_became_of_its_priority(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="smollm2",
        messages=QUESTION,
        max_tokens=16,
        temperature=0,
        extra_headers={"X-LlamaSwap-Priority": "interactive", "X-LlamaSwap-Member": "alice"},
    )
    answer = raw.parse()
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 16
    assert raw.headers["X-LlamaSwap-Priority"] == "100"
    assert float(raw.headers["X-LlamaSwap-Wait"]) > 0, "it waited for the load"
    job = gateway.get(f"/api/jobs/{raw.headers['X-LlamaSwap-Job']}").json()
    assert (job["outcome"], job["band"], job["member"]) == ("completed", "interactive", "alice")


def test_a_streamed_chat_says_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="smollm2", messages=QUESTION, max_tokens=12, temperature=0, extra_body=FRESH
    )
    stream = client.chat.completions.create(
        model="smollm2", messages=QUESTION, max_tokens=12, temperature=0, extra_body=FRESH, stream=True
    )
    chunks = list(stream)
    assert len(chunks) > 5, "token by token"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content


def test_a_stream_that_is_closed_gives_its_place_back(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    with client.chat.completions.create(
        model="smollm2", messages=QUESTION, max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        assert next(iter(stream)).choices
        (job,) = gateway.queue()["running"]
    in_time(lambda: not gateway.queue()["running"], "the place is free")
    assert gateway.get(f"/api/jobs/{job['id']}").json()["outcome"] == "left_running"
    assert client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=2).choices


def test_embeddings_swap_the_model_in(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    texts = ["A cat sits on a mat.", "A kitten rests on a rug.", "Quarterly revenue grew."]
    answer = client.embeddings.create(model="minilm", input=texts)
    cat, kitten, revenue = (item.embedding for item in answer.data)
    assert len(cat) == 384
    likeness = [sum(a * b for a, b in zip(cat, other, strict=True)) for other in (kitten, revenue)]
    assert likeness[0] > 2 * likeness[1]
    assert gateway.queue()["resident"] == ["minilm"]


def test_errors_are_the_clients_own_kinds(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=r"no router for requested model `smolm2`; did you mean `smollm2`"):
        client.chat.completions.create(model="smolm2", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="context size"):  # the model server's own words
        client.completions.create(model="smollm2", prompt="word " * 3000, max_tokens=1)


@pytest.mark.anyio
async def test_the_asynchronous_client(async_client: openai.AsyncOpenAI, gateway: GatewayProcess) -> None:
    answer = await async_client.chat.completions.create(
        model="smollm2", messages=QUESTION, max_tokens=12, temperature=0, extra_body=FRESH
    )
    stream = await async_client.chat.completions.create(
        model="smollm2", messages=QUESTION, max_tokens=12, temperature=0, extra_body=FRESH, stream=True
    )
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    assert text == answer.choices[0].message.content
    embedded = await async_client.embeddings.create(model="minilm", input="hello")
    assert len(embedded.data[0].embedding) == 384
    assert gateway.metric("swaplane_jobs_total", outcome="gateway_error") == 0
