"""The demo's models for real: llama.cpp serves what the packages carry."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray

from swaplane.demo.config import free_ports
from swaplane.demo.film import ask, plan
from swaplane.demo.minilm_gguf import cache_folder, minilm_gguf, read_safetensors
from swaplane.demo.packages import minilm_folder

Vector = NDArray[np.float64]
WORDS = {"cat": 4937, "kitten": 18401, "revenue": 6599}
CLS, SEP = 101, 102


@contextlib.contextmanager
def serving(model: str, cache: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_ports(1)
    log = cache / f"{model}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "swaplane.demo.chat_server", "--model", model, "--port", str(port)],
            stdout=output,
            stderr=output,
            env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        )
    try:
        address = f"http://127.0.0.1:{port}"
        give_up_at = time.monotonic() + 60
        with httpx2.Client(trust_env=False) as client:
            while True:
                with contextlib.suppress(httpx2.HTTPError):
                    if client.get(f"{address}/health").status_code == 200:
                        break
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < give_up_at, log.read_text()
                time.sleep(0.02)
        yield address, process
    finally:
        process.kill()
        process.wait()


def cosine(left: Vector, right: Vector) -> float:
    return float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))


def by_hand(weights: dict[str, NDArray[Any]], tokens: list[int]) -> Vector:
    """The embedding in plain arithmetic on the package's weights: BERT with six layers, mean of the tokens."""

    def normal(x: Vector, name: str) -> Vector:
        centred = x - x.mean(-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        scaled: Vector = centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]
        return scaled

    def linear(x: Vector, name: str) -> Vector:
        product: Vector = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        return product

    x: Vector = weights["embeddings.word_embeddings.weight"][tokens].astype(np.float64)
    x += weights["embeddings.position_embeddings.weight"][: len(tokens)]
    x += weights["embeddings.token_type_embeddings.weight"][0]
    x = normal(x, "embeddings.LayerNorm")
    for layer in range(6):
        block = f"encoder.layer.{layer}"
        query, key, value = (
            linear(x, f"{block}.attention.self.{part}").reshape(len(tokens), 12, 32).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        likeness = np.exp(query @ key.transpose(0, 2, 1) / math.sqrt(32))
        attended = (likeness / likeness.sum(-1, keepdims=True) @ value).transpose(1, 0, 2).reshape(len(tokens), 384)
        x = normal(x + linear(attended, f"{block}.attention.output.dense"), f"{block}.attention.output.LayerNorm")
        inner = linear(x, f"{block}.intermediate.dense")
        inner *= 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        x = normal(x + linear(inner, f"{block}.output.dense"), f"{block}.output.LayerNorm")
    mean: Vector = x.mean(0)
    return mean


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def minilm(cache: Path) -> Iterator[str]:
    with serving("minilm", cache) as (url, _):
        yield url


def embeddings(url: str, texts: list[str]) -> list[Vector]:
    response = httpx2.post(f"{url}/v1/embeddings", json={"model": "minilm", "input": texts}, trust_env=False)
    assert response.status_code == 200, response.text
    return [np.array(item["embedding"]) for item in response.json()["data"]]


def test_llama_cpp_gives_the_embeddings_of_the_original_weights(minilm: str) -> None:
    weights = read_safetensors(minilm_folder() / "model.safetensors")
    for served, token in zip(embeddings(minilm, list(WORDS)), WORDS.values(), strict=True):
        assert cosine(served, by_hand(weights, [CLS, token, SEP])) > 0.9999


def test_meaning_decides_which_sentences_are_near(minilm: str) -> None:
    cat, kitten, revenue = embeddings(
        minilm, ["The cat sat on the mat.", "A kitten rests on a rug.", "Quarterly revenue grew by ten percent."]
    )
    assert cosine(cat, kitten) == pytest.approx(0.62, abs=0.02)
    assert cosine(cat, revenue) == pytest.approx(-0.03, abs=0.02)


def test_parts_of_words_are_tokenised_as_the_vocabulary_has_them(minilm: str) -> None:
    question = {"content": "Kittens, unbelievably", "add_special": True, "with_pieces": True}
    tokens = httpx2.post(f"{minilm}/tokenize", json=question, trust_env=False).json()["tokens"]
    words = (minilm_folder() / "vocab.txt").read_text(encoding="utf-8").split("\n")
    assert [words[token["id"]] for token in tokens] == [
        "[CLS]", "kitten", "##s", ",", "un", "##bel", "##ie", "##va", "##bly", "[SEP]",
    ]  # fmt: skip


@pytest.mark.anyio
async def test_smollm2_chats_and_sigterm_ends_it_at_once(cache: Path) -> None:
    chat = next(arrival for arrival in plan(12) if arrival.model == "smollm2")
    with serving("smollm2", cache) as (url, process):
        async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            ended = await ask(client, chat)
        assert ended.error == ""
        assert len(ended.says.split()) > 5
        process.terminate()
        assert process.wait() == -signal.SIGTERM


def test_the_conversion_is_done_once(tmp_path: Path) -> None:
    first = minilm_gguf(minilm_folder(), tmp_path)
    before = first.stat()
    assert minilm_gguf(minilm_folder(), tmp_path) == first
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert list(tmp_path.iterdir()) == [first]


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("config.json", "vocab.txt"):
        shutil.copy(minilm_folder() / name, source)
    header = b'{"embeddings.other.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (source / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(ValueError, match=r"no name for the tensor embeddings\.other\.weight"):
        minilm_gguf(source, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_cache_is_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/swaplane")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "swaplane"
