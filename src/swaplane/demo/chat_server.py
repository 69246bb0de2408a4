"""A real model server of the demo: llama.cpp's own HTTP server, out of the wheel `xllamacpp`.

    python -m swaplane.demo.chat_server --model smollm2|minilm --port PORT

`smollm2` chats, `minilm` makes embeddings. It knows nothing of the gateway, which starts it like any other
command. SIGTERM keeps its default action on purpose: the process ends at once, also in the middle of loading,
where Python could not run a handler, and there is nothing to save.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

import xllamacpp

from swaplane.demo.packages import minilm_folder, smollm2_file


def main() -> int:
    """Load the model and serve it on 127.0.0.1 until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="Serve one of the demo's models with llama.cpp.")
    parser.add_argument("--model", choices=("smollm2", "minilm"), required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    server = xllamacpp.Server(server_parameters(options.model, options.port))
    sys.stdout.write(f"{options.model} serves on {server.listening_address}\n")
    sys.stdout.flush()
    while True:
        signal.pause()


def server_parameters(model: str, port: int) -> xllamacpp.CommonParams:
    """llama.cpp's parameters for one of the demo's models; converts MiniLM on first use."""
    parameters = xllamacpp.CommonParams()
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_parallel = 1
    # llama.cpp's threads wait for each other by spinning: with one on every core, a busy machine stalls them all.
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = max((os.cpu_count() or 1) // 2, 1)
    parameters.offline = True
    parameters.ui = False
    parameters.model_alias = {model}
    if model == "minilm":
        from swaplane.demo.minilm_gguf import minilm_gguf  # what it imports would slow the other model's start

        parameters.model.path = str(minilm_gguf(minilm_folder()))
        parameters.n_ctx = 512
        parameters.embedding = True
    else:
        parameters.model.path = str(smollm2_file())
        parameters.n_ctx = 2048
    return parameters


if __name__ == "__main__":
    sys.exit(main())
