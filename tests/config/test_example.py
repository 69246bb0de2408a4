"""A realistic llama-swap file, read as it is."""

from __future__ import annotations

import hashlib

from swaplane.core.residency import Group
from tests.config.reading import settings

EXAMPLE = r"""
# yaml-language-server: $schema=config-schema.json
healthCheckTimeout: 300
logLevel: info
logTimeFormat: rfc3339
metricsMaxInMemory: 1000
captureBuffer: 15
startPort: 10001
sendLoadingState: true
includeAliasesInList: false
globalTTL: 0
unloadTimeout: 20
performance:
  every: 15s
ui: {activity: {session_id: [X-Session-ID]}}
upstream:
  ignorePaths:
    - '\.(js|json|css)$'
macros:
  "latest-llama": >
    /opt/llama/llama-server
    --host 127.0.0.1 --port ${PORT}
  "default_ctx": 4096
  "default_args": "--ctx-size ${default_ctx} --jinja"
  "models": "${env.MODELS_DIR}"
apiKeys:
  - "sk-one"
  - ${env.API_KEY}
models:
  "llama":
    cmd: |
      # ${latest-llama} is a macro
      ${latest-llama}
      --model "${models}/Llama 8B.gguf" \
      ${default_args} --temp ${temp}
    name: "llama 3.1 8B"
    description: "A small but capable model"
    env:
      - "CUDA_VISIBLE_DEVICES=0,1,2"
    macros:
      "default_ctx": 16384
      "temp": 0.70
    aliases:
      - "gpt-4o-mini"
      - "gpt-3.5-turbo"
    checkEndpoint: /custom-endpoint
    ttl: 60
    concurrencyLimit: 4
    useModelName: "meta:llama"
    filters:
      stripParams: "temperature, top_p, top_k"
      setParams: {stop: ["</s>"]}
    metadata:
      port: ${PORT}
      temperature: ${temp}
      note: "The ${MODEL_ID} is running on port ${PORT} temp=${temp}, context=${default_ctx}"
      an_array: ["${temp}", 100, "urls: http://localhost:${PORT}"]
    timeouts: {connect: 30, responseHeader: 0}
  "qwen-unlisted":
    unlisted: true
    cmd: llama-server --port ${PORT} -m qwen.gguf -ngl 0
  "docker-llama":
    proxy: "http://127.0.0.1:9790"
    cmd: |
      docker run --name dockertest
      --init --rm -p 9790:8080
      ghcr.io/ggml-org/llama.cpp:server
    cmdStop: docker stop dockertest
    ttl: 0
  "embed": {cmd: "${latest-llama} --embeddings", capabilities: {in: [text], context: 512}}
  "rerank": {cmd: "${latest-llama} --reranking", checkEndpoint: none}
groups:
  "group1": {swap: true, exclusive: true, members: [llama, qwen-unlisted]}
  "small":
    swap: false
    exclusive: false
    persistent: true
    members:
      - embed
      - "rerank"
hooks:
  on_startup:
    preload: [llama]
peers:
  openrouter:
    proxy: https://openrouter.ai/api
    apiKey: ${env.OPENROUTER_KEY}
    models: [meta-llama/llama-3.1-8b-instruct]
    filters: {setParams: {provider: {data_collection: "deny"}}}
"""


def test_a_full_file_reads_as_llama_swap_reads_it() -> None:
    read = settings(EXAMPLE, {"MODELS_DIR": "/srv/models", "OPENROUTER_KEY": "sk-1", "API_KEY": "20240101"})
    llama = read.models["llama"]
    server = ("/opt/llama/llama-server", "--host", "127.0.0.1", "--port")
    assert list(read.models) == ["docker-llama", "embed", "llama", "qwen-unlisted", "rerank"]
    assert llama.argv == (
        *server, "10002", "--model", "/srv/models/Llama 8B.gguf", "--ctx-size", "16384", "--jinja", "--temp", "0.7",
    )  # fmt: skip
    assert (llama.name, llama.use_model_name, llama.aliases) == (
        "llama 3.1 8B",
        "meta:llama",
        ("gpt-4o-mini", "gpt-3.5-turbo"),
    )
    assert (llama.env, llama.check_endpoint) == (("CUDA_VISIBLE_DEVICES=0,1,2",), "/custom-endpoint")
    assert (llama.ttl_s, llama.health_timeout_s, llama.unload_timeout_s, llama.slots) == (60, 300, 20, 4)
    assert llama.metadata == {
        "port": 10002,
        "temperature": 0.7,
        "note": "The llama is running on port 10002 temp=0.7, context=16384",
        "an_array": [0.7, 100, "urls: http://localhost:10002"],
    }
    assert llama.send_loading_state
    assert [key.digest for key in read.keys] == [hashlib.sha256(text).digest() for text in (b"sk-one", b"20240101")]
    docker = read.models["docker-llama"]
    assert (docker.proxy, docker.stop_argv, docker.ttl_s) == (
        "http://127.0.0.1:9790",
        ("docker", "stop", "dockertest"),
        None,
    )
    assert docker.argv[-1] == "ghcr.io/ggml-org/llama.cpp:server"
    assert read.models["embed"].argv == (*server, "10001", "--embeddings")
    assert read.models["qwen-unlisted"].unlisted
    assert read.models["qwen-unlisted"].proxy == "http://localhost:10003"
    assert (read.models["rerank"].check_endpoint, read.models["rerank"].proxy) == ("none", "http://localhost:10004")
    assert read.groups == (
        Group(name="group1", members=frozenset({"llama", "qwen-unlisted"})),
        Group(name="small", members=frozenset({"embed", "rerank"}), swap=False, exclusive=False, persistent=True),
    )
    assert [warning.partition(" is not honoured yet")[0] for warning in read.warnings] == [
        "captureBuffer",
        "hooks",
        "logTimeFormat",
        "metricsMaxInMemory",
        "peers",
        "performance",
        "ui",
        "models.llama.filters",
        "models.llama.timeouts",
        "models.embed.capabilities",
    ]
