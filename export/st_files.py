"""The SentenceTransformer files of an export, in two forms that give the same vector.

Own head (sentence-transformers >= 5.4): one Transformer module that takes the model's `pooler_output`, then
Normalize. Fallback (older versions, servers): Transformer, Pooling of the token states, the projection head
as two Dense modules (exact GELU, then identity), Normalize. Without these files the library would silently
mean-pool the token states.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import write_json
from captionbert.configuration_captionbert import CaptionBertConfig

# The module names that every version from 2 to 6 resolves.
_MODULES = "sentence_transformers.models"
OWN_HEAD_SINCE = "5.4.0"
OWN_HEAD = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}},
    "module_output_name": "sentence_embedding",
    "unpad_inputs": False,
}


def write_own_head(out: Path) -> None:
    """modules.json and the settings that make the model's own vector the embedding."""
    _write_modules(out, [("", "Transformer"), ("1_Normalize", "Normalize")])
    write_json(out / "sentence_bert_config.json", OWN_HEAD)
    _write_common(out, OWN_HEAD_SINCE)


def write_fallback(out: Path, config: CaptionBertConfig, tensors: dict[str, torch.Tensor]) -> None:
    """The same head spelled as modules that old versions and servers know.

    Raises:
        InputError: attention pooling, which no stock module computes.
    """
    if config.pooling == "attention":
        raise InputError(
            "fallback form: pooling 'attention' has no stock sentence-transformers module; export without it"
        )
    names = ["1_Pooling", "2_Dense", "3_Dense", "4_Normalize"]
    _write_modules(out, [("", "Transformer"), *((name, name[2:]) for name in names)])
    write_json(
        out / "sentence_bert_config.json",
        {"max_seq_length": config.max_position_embeddings, "do_lower_case": False},
    )
    _write_pooling(out / names[0], config)
    _write_dense(out / names[1], tensors, "projection.dense", "torch.nn.modules.activation.GELU")
    _write_dense(out / names[2], tensors, "projection.output", "torch.nn.modules.linear.Identity")
    _write_common(out, None)


def _write_modules(out: Path, parts: list[tuple[str, str]]) -> None:
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"{_MODULES}.{kind}"}
        for i, (path, kind) in enumerate(parts)
    ]
    write_json(out / "modules.json", rows)
    for path, kind in parts:
        if kind == "Normalize":
            (out / path).mkdir()
            write_json(out / path / "config.json", {})


def _write_common(out: Path, oldest: str | None) -> None:
    # The library warns where it is older than the version named here: so it is the oldest that can read the form.
    settings: dict[str, Any] = {
        "model_type": "SentenceTransformer",
        **({"__version__": {"sentence_transformers": oldest}} if oldest else {}),
        "prompts": {"query": "", "document": ""},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    write_json(out / "config_sentence_transformers.json", settings)


def _write_pooling(out: Path, config: CaptionBertConfig) -> None:
    out.mkdir()
    modes = {"cls_token": config.pooling == "cls", "mean_tokens": config.pooling == "mean"}
    settings = {"word_embedding_dimension": config.hidden_size} | {
        f"pooling_mode_{k}": v for k, v in modes.items()
    }
    write_json(out / "config.json", settings)


def _write_dense(out: Path, tensors: dict[str, torch.Tensor], name: str, activation: str) -> None:
    out.mkdir()
    weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
    rows, columns = weight.shape
    settings = {"in_features": columns, "out_features": rows, "bias": True, "activation_function": activation}
    write_json(out / "config.json", settings)
    parts = {"linear.weight": weight.contiguous(), "linear.bias": bias.contiguous()}
    save_file(parts, out / "model.safetensors", metadata={"format": "pt"})
