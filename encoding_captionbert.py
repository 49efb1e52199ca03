"""Texts to sentence vectors at full speed: sort by length, fill batches by tokens, compute no padding.

Batches are cut at a budget of tokens instead of a number of texts, so that short captions and 8,192-token documents
both fill the processor. On a CPU the texts of a batch are laid end to end (`forward_packed`); elsewhere they are padded
to the longest of the batch, which sorting keeps close. This is a remote file.

Shapes: B texts, E embedding, S tokens laid end to end.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tqdm.auto import tqdm

# Texts tokenised at a time: enough to sort well, few enough that memory does not grow with the number of texts.
WINDOW = 16_384
# Tokenizers read the whole text before they truncate: 4 MB would take seconds, so a text is cut to a generous number of
# characters first. Only one that is mostly blanks or words of hundreds of letters could lose tokens by it.
CHARACTERS_A_TOKEN = 32
LEAST_CHARACTERS = 65_536


def _load_tokenizer(model: Any) -> Tokenizer:
    file = Path(model.config._name_or_path) / "tokenizer.json"
    if not model.config._name_or_path or not file.is_file():
        # A Hub id is not enough: its revision is no longer known here, and another one may tokenise differently.
        raise ValueError(
            "this model was not loaded from a local folder with a tokenizer.json: pass encode(texts, tokenizer), "
            "loaded from where the model came from, at the same revision"
        )
    return Tokenizer.from_file(str(file))


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise TypeError("encode takes a list of texts; wrap a single one: [text]")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{index}] is {type(text).__name__}, expected str")
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(
                f"texts[{index}] holds half a surrogate pair, which is no text; it was decoded wrongly"
            )


def token_ids(tokenizer: Any, texts: Sequence[str], max_length: int) -> list[list[int]]:
    """Ids of each text with special tokens, at most `max_length`, by a transformers or a tokenizers tokenizer.

    A `tokenizers.Tokenizer` has its truncation set to `max_length` and its padding switched off, and keeps that.
    """
    most = max(LEAST_CHARACTERS, max_length * CHARACTERS_A_TOKEN)
    cut = [text[:most] for text in texts]
    if not isinstance(tokenizer, Tokenizer):
        return tokenizer(cut, truncation=True, max_length=max_length, return_attention_mask=False)[
            "input_ids"
        ]
    if tokenizer.truncation is None or tokenizer.truncation["max_length"] != max_length:
        tokenizer.enable_truncation(max_length)
    if tokenizer.padding is not None:
        tokenizer.no_padding()
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(cut)]


def token_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[np.ndarray]:
    """Indices of texts, longest first, in batches of at most `batch_tokens` tokens (padding included), one at least."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    start = 0
    while start < len(order):
        rows = max(1, batch_tokens // lengths[order[start]])
        yield order[start : start + rows]
        start += rows


def pad_right(ids: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids, 0 where a text has ended, and the attention mask: int64 [B, T] both, T the longest text."""
    padded = torch.zeros(len(ids), max(map(len, ids)), dtype=torch.long)
    mask = torch.zeros_like(padded)
    for index, row in enumerate(ids):
        padded[index, : len(row)] = torch.tensor(row)
        mask[index, : len(row)] = 1
    return padded, mask


def batch_vectors(model: Any, ids: list[list[int]], pointer_queries: Any = None) -> Any:
    """[B, E] of a batch whose texts are sorted by length, longest first.

    With pointer queries, (vectors, log-probabilities [K, Q, T]): see `attention_captionbert.PointerQueries`.
    """
    device = model.device
    if device.type == "cpu":
        flat = torch.from_numpy(np.concatenate([np.asarray(row, dtype=np.int64) for row in ids]))
        return model.forward_packed(flat, [len(row) for row in ids], pointer_queries)
    padded, mask = pad_right(ids)
    output = model(padded.to(device), mask.to(device), pointer_queries=pointer_queries)
    return (
        output.pooler_output if pointer_queries is None else (output.pooler_output, output.pointer_log_probs)
    )


def encode(
    model: Any,
    texts: Sequence[str],
    tokenizer: Any = None,
    *,
    batch_tokens: int = 4096,
    max_length: int | None = None,
    truncate_dim: int | None = None,
    show_progress: bool = False,
) -> np.ndarray:
    """Unit-length sentence vectors of `texts`, [B, E] float32, in the order given.

    Args:
        model: a CaptionBertModel; its training mode is restored afterwards.
        texts: strings; an empty one is encoded as [CLS][SEP].
        tokenizer: a transformers tokenizer or a `tokenizers.Tokenizer`; None loads the one in the model's folder.
        batch_tokens: tokens of one forward pass.
        max_length: longest input in tokens, special tokens included; longer ones are cut. None: the model's limit.
        truncate_dim: keep the first coordinates and normalise again; None keeps all.
        show_progress: a bar on a terminal.

    Raises:
        TypeError: `texts` is a string, or an item is not one (the message names its index).
        ValueError: `batch_tokens`, `max_length` or `truncate_dim` is out of range.
    """
    _check_texts(texts)
    limit, width = model.config.max_position_embeddings, model.config.projection_dim
    max_length = limit if max_length is None else max_length
    if not 2 <= max_length <= limit:
        raise ValueError(f"max_length must lie in 2..{limit}, not {max_length}")
    if truncate_dim is not None and not 1 <= truncate_dim <= width:
        raise ValueError(f"truncate_dim must lie in 1..{width}, not {truncate_dim}")
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens must be at least 1, not {batch_tokens}")
    tokenizer = _load_tokenizer(model) if tokenizer is None else tokenizer
    vectors = np.empty((len(texts), width), dtype=np.float32)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with (
            torch.inference_mode(),
            tqdm(total=len(texts), unit="text", disable=None if show_progress else True) as bar,
        ):
            for start in range(0, len(texts), WINDOW):
                ids = token_ids(tokenizer, texts[start : start + WINDOW], max_length)
                for rows in token_batches([len(row) for row in ids], batch_tokens):
                    vectors[start + rows] = (
                        batch_vectors(model, [ids[row] for row in rows]).float().cpu().numpy()
                    )
                    bar.update(len(rows))
    finally:
        for module, training in modes:
            module.training = training
    if truncate_dim is None or truncate_dim == width:
        return vectors
    cut = vectors[:, :truncate_dim]
    return cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-12)
