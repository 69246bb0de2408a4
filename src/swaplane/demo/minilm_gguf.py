"""MiniLM as a GGUF file: the weights of a package, written once in the form that llama.cpp reads.

It reads safetensors with numpy alone (a JSON header and one block of bytes) and names the tensors as
llama.cpp does for its BERT architecture. It knows this one model, not BERT models in general. Called by
`chat_server` before it starts the embedding model.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

#: Part of the file name: a change of what is written here must not meet a file of before.
REVISION = 1
#: Tensors of the training head, which embeddings do not pass through.
_UNUSED = ("embeddings.position_ids", "pooler.")
_SAFETENSORS_TYPES = {"F32": np.float32, "F16": np.float16, "I64": np.int64}


def cache_folder() -> Path:
    """Where converted weights are kept: `$XDG_CACHE_HOME/swaplane`, or `~/.cache/swaplane`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "swaplane"


def minilm_gguf(source: Path, folder: Path | None = None) -> Path:
    """The GGUF file of the model in `source`, converted on first use into `folder` (default: `cache_folder()`).

    The file appears under its name only when it is complete, so two processes may do this at the same time.
    Raises `OSError` when the folder cannot be written, `ValueError` when the weights are not as expected.
    """
    folder = folder if folder is not None else cache_folder()
    target = folder / f"all-MiniLM-L6-v2-f16-r{REVISION}.gguf"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=target.name, suffix=".partial", dir=folder)
    os.close(handle)
    try:
        _write(source, Path(partial))
        os.replace(partial, target)
    finally:
        Path(partial).unlink(missing_ok=True)
    return target


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """All tensors of a safetensors file, as read-only views of the mapped file."""
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
    data = np.memmap(path, mode="r", offset=8 + header_bytes)
    header.pop("__metadata__", None)
    tensors = {}
    for name, about in header.items():
        dtype = _SAFETENSORS_TYPES.get(about["dtype"])
        if dtype is None:
            raise ValueError(f"{path}: tensor {name} has type {about['dtype']}; expected F32, F16 or I64")
        begin, end = about["data_offsets"]
        tensors[name] = data[begin:end].view(dtype).reshape(about["shape"])
    return tensors


def _write(source: Path, target: Path) -> None:
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    layers = config["num_hidden_layers"]
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.BERT])
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _add_vocabulary(writer, source, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, layers)
    for name, tensor in read_safetensors(source / "model.safetensors").items():
        if name.startswith(_UNUSED):
            continue
        ours = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if ours is None:
            raise ValueError(f"{source}: llama.cpp has no name for the tensor {name}")
        # Norms, biases and the two small embedding tables are only read as 32 bits.
        small = tensor.ndim == 1 or ours.startswith(("position_embd", "token_types"))
        writer.add_tensor(ours, np.ascontiguousarray(tensor, dtype=np.float32 if small else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: gguf.GGUFWriter, source: Path, config: dict[str, Any]) -> None:
    words = (source / "vocab.txt").read_text(encoding="utf-8").split("\n")
    words = words[: config["vocab_size"]]
    if len(words) != config["vocab_size"]:
        raise ValueError(f"{source}/vocab.txt has {len(words)} words; config.json says {config['vocab_size']}")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    kinds = [gguf.TokenType.CONTROL if word in special else gguf.TokenType.NORMAL for word in words]
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([_as_llama_spells(word, kind) for word, kind in zip(words, kinds, strict=True)])
    writer.add_token_types(kinds)
    pad, unk, cls, sep, mask = (words.index(word) for word in special)
    writer.add_pad_token_id(pad)
    writer.add_unk_token_id(unk)
    writer.add_bos_token_id(cls)
    writer.add_sep_token_id(sep)
    writer.add_mask_token_id(mask)


def _as_llama_spells(word: str, kind: gguf.TokenType) -> str:
    """WordPiece marks what continues a word (`##ing`); llama.cpp marks what begins one (`▁run`)."""
    if kind == gguf.TokenType.CONTROL:
        return word
    return word[2:] if word.startswith("##") else "\u2581" + word
