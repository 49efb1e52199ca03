"""The student of a recipe: its config from preset, tokenizer and targets, and its seeded start."""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from captionbert.artifacts.errors import InputError
from captionbert.attention_captionbert import PointerQueries
from captionbert.configuration_captionbert import PRESETS, CaptionBertConfig, write_bitmap
from captionbert.consensus.packaged import packaged_folder
from captionbert.encoding_captionbert import batch_vectors
from captionbert.modeling_captionbert import CaptionBertModel
from captionbert.probes.word_records import Vocabulary
from captionbert.recipes import Recipe
from captionbert.training.step import Encode


def student_config(recipe: Recipe, tokenizer: Any, width: int) -> CaptionBertConfig:
    """The preset with the recipe's overrides, the targets' width and the tokenizer's vocabulary.

    Raises:
        InputError: unknown preset or field, a vocabulary too small, or data.max_length past the model's
            positions.
    """
    fields: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    if PRESETS.get(recipe.model.preset, {}).get("position_type") == "structured":
        fields |= vocabulary_fields(tokenizer, recipe.model.boundary_tokens)
    fields |= recipe.model.overrides
    if fields.setdefault("projection_dim", width) != width:
        raise InputError(
            f"model.overrides.projection_dim is {fields['projection_dim']}, the targets are {width} wide; "
            "leave it out"
        )
    try:
        config = CaptionBertConfig.from_preset(recipe.model.preset, **fields)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"recipe {recipe.name}, section model: {error}") from None
    if config.vocab_size < len(tokenizer):
        raise InputError(
            f"the tokenizer {recipe.data.tokenizer} has {len(tokenizer)} tokens, the model only "
            f"{config.vocab_size} embeddings; drop model.overrides.vocab_size"
        )
    if not 2 <= recipe.data.max_length <= config.max_position_embeddings:
        raise InputError(
            f"data.max_length is {recipe.data.max_length}; it must lie in "
            f"2..{config.max_position_embeddings}, the "
            "positions of this model"
        )
    if recipe.loss.lookup_weight and config.position_type != "structured":
        raise InputError(
            f"loss.lookup_weight is {recipe.loss.lookup_weight}, but {recipe.model.preset} has no designated head; "
            "use a structured preset, or set it to 0"
        )
    return config


def pointing_encode(model: CaptionBertModel) -> Encode:
    """What a training step runs: ids of captions to vectors, and with lookup queries to log-probabilities as well."""

    def encode(ids: list[list[int]], queries: tuple[torch.Tensor, torch.Tensor] | None = None) -> Any:
        return batch_vectors(model, ids, None if queries is None else PointerQueries(*queries))

    return encode


def vocabulary_fields(tokenizer: Any, boundary_tokens: list[str]) -> dict[str, Any]:
    """What structured positions must know of a tokenizer: its boundary and special tokens and `##` pieces.

    Raises:
        InputError: a boundary token is not in the vocabulary.
    """
    vocabulary = tokenizer.get_vocab()
    for token in boundary_tokens:
        if token not in vocabulary:
            raise InputError(
                f"model.boundary_tokens: {token!r} is not in the tokenizer's vocabulary, so it would never end a "
                "segment; take it out, or name a token of the vocabulary"
            )
    words = Vocabulary.from_tokenizer(
        tokenizer
    )  # special and continuing tokens as the lookup targets see them
    return {
        "boundary_token_ids": sorted(vocabulary[token] for token in boundary_tokens),
        "special_token_ids": sorted(i for i in vocabulary.values() if words.special[i]),
        "continuation_bitmap": write_bitmap(words.continuation.tolist()),
    }


def build_student(recipe: Recipe, config: CaptionBertConfig) -> CaptionBertModel:
    """A student with seeded weights, in fp32; its token table may start from another encoder's."""
    torch.manual_seed(recipe.seed)
    model = CaptionBertModel(config).float()
    if recipe.model.init_embeddings_from:
        start = token_table(embedding_weights(recipe.model.init_embeddings_from))
        own = model.get_input_embeddings().weight
        if start.shape != own.shape:
            raise InputError(
                f"model.init_embeddings_from {recipe.model.init_embeddings_from}: its table is "
                f"{tuple(start.shape)}, the "
                f"student's {tuple(own.shape)}; use a source of that size or set it to null"
            )
        with torch.no_grad():
            own.copy_(start)
    if recipe.compute.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def embedding_weights(source: str) -> Path:
    """model.safetensors of `packaged:NAME` or of a model folder. Raises InputError when it is not there."""
    folder = (
        packaged_folder(source.removeprefix("packaged:")) if source.startswith("packaged:") else Path(source)
    )
    file = folder / "model.safetensors"
    if not file.is_file():
        raise InputError(f"model.init_embeddings_from {source}: no model.safetensors there")
    return file


def token_table(file: Path) -> torch.Tensor:
    """The word-embedding table [V, D] in a safetensors file, fp32. Raises InputError when there is not
    exactly one.
    """
    with safe_open(file, "pt") as tensors:
        names = [name for name in tensors.keys() if name.endswith("word_embeddings.weight")]  # noqa: SIM118
        if len(names) != 1:
            raise InputError(
                f"{file}: expected one tensor ...word_embeddings.weight, found {names or 'none'}"
            )
        return tensors.get_tensor(names[0]).float()
