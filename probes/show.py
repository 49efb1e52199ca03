"""One caption as a page to look at: its words, segments, addresses and records, and where one head looks from each.

`figure_of` gathers what there is to show; page.py makes an HTML file of it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from captionbert import rotary_captionbert as rotary
from captionbert.artifacts.errors import InputError
from captionbert.attention_captionbert import PointerQueries
from captionbert.configuration_captionbert import STRUCTURED_DEFAULTS
from captionbert.consensus.readers import is_text
from captionbert.encoding_captionbert import batch_vectors, token_ids
from captionbert.probes.coverage import BOUNDARY_TOKENS
from captionbert.probes.lookup import Head, check_finite, check_head, checked_length, configured_head
from captionbert.probes.word_records import Vocabulary, lookup_targets, queries_of

MOST_TOKENS = 512  # a page of more is not looked at by anyone


@dataclass(frozen=True, eq=False)
class Figure:
    """What is shown of a caption of T tokens.

    Attributes:
        tokens: as the tokenizer writes them. special: those that belong to no word.
        segments: number of each token's segment, -1 for none. addresses: its digits as text, or "" for none.
        digits: how addresses are written.
        first: place of the first piece of each token's word. record: the token is a record.
        lookups: query place -> record place, for repeated eligible words.
        attention: float32 [T, T], of the head; row t is where token t looks.
        head: layer from 1, head from 0. configured: it is the model's designated head.
        addressed: whether the model reads addresses at all.
        cut: whether the caption was longer than what is shown.
    """

    tokens: list[str]
    special: list[bool]
    segments: list[int]
    addresses: list[str]
    digits: str
    first: list[int]
    record: list[bool]
    lookups: dict[int, int]
    attention: np.ndarray
    head: Head
    configured: bool
    addressed: bool
    cut: bool


def figure_of(
    model: Any, tokenizer: Any, text: str, *, head: Head | None = None, max_length: int | None = None
) -> Figure:
    """Read one caption.

    Args:
        tokenizer: a `tokenizers.Tokenizer`, or a fast tokenizer of transformers.
        head: instead of the configured one.

    Raises:
        InputError: a blank text, no designated head, a head or length out of range, attention that is not finite.
    """
    if not text.strip():
        raise InputError("the text is blank; give a caption, best one in which a word occurs twice")
    if not is_text(text):
        raise InputError("the text holds bytes that are not UTF-8; give it as UTF-8")
    own = configured_head(model.config)
    chosen = own if head is None else check_head(head, model.config)
    if chosen is None:
        raise InputError(
            f"a model with position_type {model.config.position_type!r} has no designated head: name one with --head "
            "LAYER:HEAD"
        )
    length = checked_length(model.config, min(MOST_TOKENS, model.config.max_position_embeddings))
    length = length if max_length is None else min(length, checked_length(model.config, max_length))
    ids = token_ids(tokenizer, [text], length)[0]
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    targets = lookup_targets([ids], vocabulary, queries_of(model.config))
    structure = _structure(model.config, vocabulary, ids)
    return Figure(
        tokens=_token_texts(tokenizer, ids),
        lookups=dict(zip(targets.position.tolist(), targets.record.tolist())),
        attention=_attention(model, ids, chosen),
        head=chosen,
        configured=chosen == own,
        addressed=model.config.position_type == "structured",
        cut=len(ids) == length
        and len(token_ids(tokenizer, [text], model.config.max_position_embeddings)[0]) > length,
        **structure,
    )


def _token_texts(tokenizer: Any, ids: list[int]) -> list[str]:
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    return [backend.id_to_token(i) for i in ids]


def _structure(config: Any, vocabulary: Vocabulary, ids: list[int]) -> dict[str, Any]:
    """Words, segments, addresses and records, as a structured model has them; by the tokenizer's marks for others."""
    special = [i for i in range(len(vocabulary)) if vocabulary.special[i]]
    fields: dict[str, Any] = {name: getattr(config, name, None) for name in STRUCTURED_DEFAULTS}
    if config.position_type != "structured":
        fields = {**STRUCTURED_DEFAULTS, "special_token_ids": special}
        fields["boundary_token_ids"] = [i for i, s in enumerate(vocabulary.strings) if s in BOUNDARY_TOKENS]
    row = torch.tensor([ids])  # [1, T]
    shown = torch.ones_like(row, dtype=torch.bool)
    words = rotary.word_pieces(
        row, shown, fields["special_token_ids"], torch.from_numpy(vocabulary.continuation)
    )
    segments = rotary.segment_numbers(row, shown, fields["boundary_token_ids"], fields["special_token_ids"])
    base = fields["address_base"]
    digits = rotary.address_digits(segments, base, fields["address_digits"])[0].tolist()
    return {
        "special": (~words.piece[0]).tolist(),
        "segments": segments[0].tolist(),
        "digits": f"{fields['address_digits']} digits of base {base}",
        "addresses": ["" if base in d else " ".join(map(str, d)) for d in digits],
        "first": words.first[0].tolist(),
        "record": rotary.record_positions(row, words)[0].tolist(),
    }


def _attention(model: Any, ids: list[int], head: Head) -> np.ndarray:
    """float32 [T, T]: attention of one head from every token."""
    places = torch.arange(len(ids), device=model.device)
    queries = PointerQueries(torch.zeros_like(places), places, (head,))
    with torch.inference_mode():
        _, log_probs = batch_vectors(model, [ids], queries)
    attention = log_probs[0].exp().float().cpu().numpy()
    check_finite(attention)
    return attention
