"""CaptionBertModel: token states [B, T, D] and unit-length sentence vectors [B, E] from token ids.

    h = LayerNorm(token embedding (+ learned position, or + address values))
    h = h + Attention(LayerNorm(h));  h = h + FeedForward(LayerNorm(h))      for each layer (pre-norm)
    token states = LayerNorm(h);  vector = normalise(W2 gelu(W1 pool(token states)))

Pooling, projection and normalisation run in fp32 and return fp32 at any weight dtype. Nothing is written to the module
in forward, and no buffer holds angles: they come from the config at each call. This is a remote file.

Shapes: B captions, T tokens, D hidden, H heads, C head size, P = C/2 planes, E embedding, S tokens laid end to end,
Q pointer queries, K pointer heads.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.modeling_utils import PreTrainedModel

from .attention_captionbert import (
    Attend,
    PointerQueries,
    Pointers,
    affine,
    attend_packed,
    attend_padded,
    is_plain,
    linear,
)
from .configuration_captionbert import POSITION_IDENTITY, CaptionBertConfig
from .encoding_captionbert import encode
from .rotary_captionbert import (
    address_digits,
    decode_bitmap,
    key_hashes,
    key_turns,
    pairs_adjacent,
    record_positions,
    rotary_turns,
    rotate,
    segment_numbers,
    structured_turns,
    word_pieces,
)

# Token states [B, T, D], attention weights [B, H, T, T] if any, then log-probabilities [Q, T] of each pointer head.
# Flat: reentrant gradient checkpointing, which old versions of transformers use, loses gradients of nested outputs.
LayerOutput = tuple[torch.Tensor | None, ...]


@dataclass
class CaptionBertOutput(BaseModelOutputWithPooling):
    """The library's output and, when asked for, `pointer_log_probs` fp32 [K, Q, T]: see PointerQueries."""

    pointer_log_probs: torch.Tensor | None = None


class Positions(NamedTuple):
    """What attention knows of the places of tokens; all None with learned positions.

    Attributes:
        turns: complex64 [B or 1, T, P].
        bound_turns: the designated head's, [B, T, P], where a binding gives it key phases.
        records: bool [B, T]: tokens whose key in the designated head is brought to the config's record_norm.
    """

    turns: torch.Tensor | None = None
    bound_turns: torch.Tensor | None = None
    records: torch.Tensor | None = None


class CaptionBertEmbeddings(nn.Module):
    """Token embedding, plus a learned position row or the values of the address digits, then LayerNorm."""

    def __init__(self, config: CaptionBertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = (
            nn.Embedding(config.max_position_embeddings, config.hidden_size)
            if config.position_type == "learned"
            else None
        )
        self.address_values = (
            nn.Parameter(torch.empty(config.address_digits, config.address_base, config.hidden_size))
            if config.position_type == "structured"
            else None
        )
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self, embedded: torch.Tensor, positions: torch.Tensor, digits: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[B, T, D] token embeddings, their positions [B or 1, T] and address digits [B, T, digits] -> [B, T, D]."""
        if self.position_embeddings is not None:
            embedded = embedded + self.position_embeddings(positions)
        if self.address_values is not None and digits is not None:
            for values, digit in zip(self.address_values, digits.unbind(-1)):
                embedded = embedded + F.embedding(
                    digit, F.pad(values, (0, 0, 0, 1))
                )  # the row of null is zero
        return self.norm(embedded)


class CaptionBertAttention(nn.Module):
    """Bidirectional multi-head self-attention with one fused projection for query, key and value."""

    is_causal = False  # read by the library's attention functions
    num_key_value_groups = 1

    def __init__(self, config: CaptionBertConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_shape = (config.num_attention_heads, config.head_size)
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self,
        hidden: torch.Tensor,
        attend: Attend,
        positions: Positions,
        pointers: Pointers | None,
        residual: torch.Tensor,
    ) -> LayerOutput:
        """[B, T, D] -> [B, T, D] with the residual added, and what else attention gives: see LayerOutput."""
        rotary = positions.turns is not None
        qkv = self._project(hidden, rotary).unflatten(-1, (3, *self.head_shape))  # [B, T, 3, H, C]
        query_key, value = qkv.split((2, 1), dim=2)
        query, key = self._turned(query_key, positions).unbind(2)  # [B, T, H, C] each
        found = () if pointers is None else pointers.read(query, key, self.layer_idx + 1)
        context, weights = attend(
            self, query.transpose(1, 2), key.transpose(1, 2), value.squeeze(2).transpose(1, 2)
        )
        return linear(self.output, context.flatten(-2), residual=residual), weights, *found

    @property
    def is_designated(self) -> bool:
        """Whether this layer holds the head that a binding turns by key phases."""
        return self.config.lookup_layer == self.layer_idx + 1

    def _turned(self, query_key: torch.Tensor, positions: Positions) -> torch.Tensor:
        """Queries and keys [B, T, 2, H, C], pairs side by side, turned; the designated head by turns of its own."""
        if positions.turns is None:
            return query_key
        turned = rotate(query_key, positions.turns[:, :, None, None])
        if positions.bound_turns is not None and self.is_designated:
            # The head is written over: turns of every head would be as large as the activations.
            head = self.config.lookup_head
            own = rotate(query_key[..., head, :], positions.bound_turns[:, :, None])  # [B, T, 2, C]
            if positions.records is not None:
                own = torch.stack(
                    (own[:, :, 0], self._with_record_norm(own[:, :, 1], positions.records)), dim=2
                )
            turned[..., head, :] = own
        return turned

    def _with_record_norm(self, key: torch.Tensor, records: torch.Tensor) -> torch.Tensor:
        """Keys [B, T, C] of the designated head; at records [B, T] all pairs of coordinates get one length."""
        pairs = key.float().unflatten(-1, (-1, 2))
        normed = (F.normalize(pairs, dim=-1, eps=1e-6) * self.config.record_norm).flatten(-2).to(key.dtype)
        return torch.where(records[..., None], normed, key)

    def _project(self, hidden: torch.Tensor, rotary: bool) -> torch.Tensor:
        """[B, T, D] -> [B, T, 3D]; for rotary positions, queries and keys with their pairs side by side."""
        width, planes = 2 * self.qkv.in_features, self.head_shape[1] // 2
        if rotary and is_plain(self.qkv):
            # The weights are reordered, not the activations: the same few rows at any number of tokens.
            weight, bias = (
                torch.cat((pairs_adjacent(rows[:width], planes, 0), rows[width:]))
                for rows in (self.qkv.weight, self.qkv.bias)
            )
            return affine(hidden, weight, bias)
        qkv = linear(self.qkv, hidden)
        if not rotary:
            return qkv
        return torch.cat((pairs_adjacent(qkv[..., :width], planes, -1), qkv[..., width:]), dim=-1)


class CaptionBertFeedForward(nn.Module):
    """Linear -> exact GELU -> Linear."""

    def __init__(self, config: CaptionBertConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """[..., D] -> [..., D] with the residual added."""
        return linear(self.down, linear(self.up, hidden, gelu=True), residual=residual)


class CaptionBertLayer(GradientCheckpointingLayer):
    """One pre-norm transformer layer."""

    def __init__(self, config: CaptionBertConfig, layer_idx: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = CaptionBertAttention(config, layer_idx)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = CaptionBertFeedForward(config)

    def forward(
        self, hidden: torch.Tensor, attend: Attend, positions: Positions, pointers: Pointers | None
    ) -> LayerOutput:
        """[B, T, D] -> [B, T, D], and what else attention gives."""
        hidden, weights, *found = self.attention(
            self.attention_norm(hidden), attend, positions, pointers, residual=hidden
        )
        return self.feed_forward(self.feed_forward_norm(hidden), residual=hidden), weights, *found


class CaptionBertPooling(nn.Module):
    """One row a caption from its token states: masked mean, first token, or one learned query. fp32 in and out."""

    def __init__(self, config: CaptionBertConfig) -> None:
        super().__init__()
        self.mode = config.pooling
        self.query = nn.Parameter(torch.empty(config.hidden_size)) if config.pooling == "attention" else None

    def forward(self, states: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Token states [B, T, D] fp32 and visibility [B, T] bool, at least one True a row -> [B, D]."""
        if self.mode == "cls":
            first = visible.to(torch.uint8).argmax(dim=1)  # the left edge, unless its row is padded there
            return states.gather(1, first[:, None, None].expand(-1, 1, states.shape[-1]))[:, 0]
        if self.query is None:
            weights = visible.to(states.dtype)
            # Rows of hidden padding may hold anything, NaN included: they are replaced, not multiplied by zero.
            return states.masked_fill(~visible[..., None], 0.0).sum(1) / weights.sum(1, keepdim=True)
        scores = torch.einsum("btd,d->bt", states, self.query.float()) * states.shape[-1] ** -0.5
        weights = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1)  # [B, T]
        return torch.einsum("bt,btd->bd", weights, states.masked_fill(~visible[..., None], 0.0))


class CaptionBertProjection(nn.Module):
    """Linear(D, D) -> exact GELU -> Linear(D, E), then L2 normalisation, in fp32 at any weight dtype."""

    def __init__(self, config: CaptionBertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.projection_dim)

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """[B, D] fp32 -> unit rows [B, E] fp32."""
        inner = F.gelu(self._in_fp32(self.dense, pooled))
        return F.normalize(self._in_fp32(self.output, inner), dim=-1)

    @staticmethod
    def _in_fp32(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        if is_plain(layer):
            return F.linear(x, layer.weight.float(), layer.bias.float())
        weight = getattr(
            layer, "weight", None
        )  # an adapter or a quantiser: its own arithmetic, its own dtype
        return layer(x.to(weight.dtype) if isinstance(weight, torch.Tensor) else x).float()


def _check_loaded_positions(module: Any, keys: Any) -> None:
    """After `load_state_dict` by hand: the same refusals as `from_pretrained`, with strict=False too."""
    missing = set(keys.missing_keys)
    # Whoever loads other parts of a model, without its attention, needs no identity.
    alone = [
        name
        for name in missing
        if name.split(".")[-1] == "position_identity"
        and name.removesuffix("position_identity") + "layers.0.attention.qkv.weight" not in missing
    ]
    left = [name for name in keys.unexpected_keys if name.split(".")[-1] == "position_identity"]
    if alone or left:
        raise ValueError(
            f"the weights {'do not carry' if alone else 'carry'} a position_identity, and the config's position_type "
            f"is {module.config.position_type!r}: they were trained with other positions; load them into a model with "
            "the config that belongs to them"
        )
    module.check_position_identity()


class CaptionBertModel(PreTrainedModel):
    """The encoder: `last_hidden_state` [B, T, D], and `pooler_output`, the unit-length sentence vector [B, E], fp32."""

    config_class = CaptionBertConfig
    base_model_prefix = "captionbert"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["CaptionBertLayer"]  # noqa: RUF012 - the library's form
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True

    def __init__(self, config: CaptionBertConfig) -> None:
        config.check_fields()
        super().__init__(config)
        self.embeddings = CaptionBertEmbeddings(config)
        self.layers = nn.ModuleList(CaptionBertLayer(config, i) for i in range(config.num_hidden_layers))
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.pooling = CaptionBertPooling(config)
        self.projection = CaptionBertProjection(config)
        self.position_identity: torch.Tensor
        if config.position_type == "structured":
            # In the checkpoint, so that weights are never read with other angles than they were trained with.
            # Bytes: averaging or casting a whole checkpoint leaves them as they are.
            self.register_buffer("position_identity", torch.empty(8, dtype=torch.uint8))
        self.register_load_state_dict_post_hook(_check_loaded_positions)
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As the library's, then `align_weights` and `check_position_identity`; weights that lack one are refused."""
        wants_info = kwargs.pop("output_loading_info", False)
        loaded: Any = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        model, info = loaded
        for fault, saying in (("missing_keys", "do not carry"), ("unexpected_keys", "carry")):
            if "position_identity" in set(info[fault]):
                raise ValueError(
                    f"the weights {saying} a position_identity, and the config's position_type is "
                    f"{model.config.position_type!r}: they were trained with other positions; restore the config.json "
                    "that belongs to them"
                )
        model.check_position_identity()
        model.align_weights()
        return (model, info) if wants_info else model

    def align_weights(self) -> None:
        """Copy weights that do not begin at a multiple of 64 bytes, as those mapped from a file may not.

        Some kernels sum in another order there, and the vectors would differ in the last bits between two copies of the
        same weights. Weights made by torch begin at such a multiple.
        """
        for weight in self.parameters():
            if weight.device.type == "cpu" and weight.data_ptr() % 64:
                weight.data = weight.data.clone()

    def check_position_identity(self) -> None:
        """Raises ValueError where the weights were trained with other segments, words or key phases."""
        if self.config.position_type != "structured" or self.position_identity.device.type == "meta":
            return
        found, expected = self.position_identity.tolist(), self.config.position_digest
        if found != expected:
            raise ValueError(
                f"the weights carry position_identity {found}, the config's fields give {expected}: one of "
                f"{', '.join(POSITION_IDENTITY)} is not what the weights were trained with; restore the config.json "
                "that belongs to them"
            )

    def _init_weights(self, module: nn.Module) -> None:
        """Normal weights, zero biases, unit norms; pooling query and address values zero, so that they start inert."""
        # Only torch.nn.init: the library makes these skip tensors that came from a file.
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=self.config.initializer_range)
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, CaptionBertPooling) and module.query is not None:
            nn.init.zeros_(module.query)
        if isinstance(module, CaptionBertEmbeddings) and module.address_values is not None:
            nn.init.zeros_(module.address_values)
        if isinstance(module, CaptionBertModel) and self.config.position_type == "structured":
            identity = module.position_identity
            if not getattr(identity, "_is_hf_initialized", False):  # else it came from a file
                with torch.no_grad():
                    identity.copy_(torch.tensor(self.config.position_digest, dtype=torch.uint8, device="cpu"))

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        # The library guesses this from the source text, by another pattern in each version.
        return True

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding table."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding table."""
        self.embeddings.word_embeddings = value  # type: ignore[assignment]

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        pointer_queries: PointerQueries | None = None,
        **kwargs: Any,
    ) -> CaptionBertOutput | tuple[torch.Tensor, ...]:
        """Encode a padded batch.

        Args:
            input_ids: [B, T] token ids, 0 <= id < vocab_size, T at most max_position_embeddings.
            attention_mask: [B, T], non-zero where a token is visible. None: every id but `pad_token_id` is visible.
                A row without a visible token is read as its first token alone, so that its vector is finite.
            token_type_ids: accepted because tokenizers send it, and not used: the family has one segment type.
            position_ids: [B, T] or [1, T]; None counts from the left edge.
            inputs_embeds: [B, T, D] instead of `input_ids`.
            output_attentions: also return one [B, H, T, T] tensor a layer (computed by plain attention).
            output_hidden_states: also return the embedding output and each layer's output, [B, T, D] each,
                the last one before the final LayerNorm.
            pointer_queries: also return `pointer_log_probs`, see PointerQueries.

        Raises:
            ValueError: both or neither of ids and embeddings, embeddings where positions are structured, an id outside
                the vocabulary, a position outside the model's, a row longer than max_position_embeddings, left padding
                where positions are learned, pooling is "cls" or a binding is strict, or a pointer query outside its
                caption.
        """
        embedded = self._embed_tokens(input_ids, inputs_embeds)  # [B, T, D]
        self._check_length(embedded.shape[1])
        visible = self._visibility(input_ids, embedded, attention_mask, position_ids is not None)  # [B, T]
        if position_ids is None:
            position_ids = torch.arange(embedded.shape[1], device=embedded.device)[None]  # [1, T]
        else:
            self._check_positions(position_ids, embedded)
        positions, digits = self._places(input_ids, visible, position_ids)
        pointers = None
        if pointer_queries is not None:
            places = torch.arange(visible.numel(), device=visible.device).view(visible.shape)
            pointers = Pointers.of(self.config, pointer_queries, places, visible)
        want_attentions = self._wanted("output_attentions", output_attentions)
        implementation = "eager" if want_attentions else (self.config._attn_implementation or "sdpa")
        attend = attend_padded(implementation, None if self._all_visible(visible) else visible)
        keep_states = self._wanted("output_hidden_states", output_hidden_states)
        states, all_states, all_weights, found = self._run_layers(
            self.embeddings(embedded, position_ids, digits), positions, attend, keep_states, pointers
        )
        output = CaptionBertOutput(
            last_hidden_state=states,
            pooler_output=self._sentence_vectors(states, visible),
            hidden_states=all_states,
            attentions=all_weights if want_attentions else None,
            pointer_log_probs=found,
        )
        wants_dict = getattr(self.config, "return_dict", True) if return_dict is None else return_dict
        return output if wants_dict else output.to_tuple()

    def forward_packed(
        self, input_ids: torch.Tensor, lengths: Sequence[int], pointer_queries: PointerQueries | None = None
    ) -> Any:
        """Sentence vectors of captions laid end to end: no padding is stored or computed.

        The same function of each caption as `forward`, to rounding. Fastest where equal lengths are adjacent: each run
        of them is one attention call. Made for CPUs, where small attention calls are cheap and padding is not.

        Args:
            input_ids: [S] ids of all captions, special tokens included.
            lengths: tokens of each caption, each at least 1, S in all.
            pointer_queries: see PointerQueries.

        Returns:
            [B, E] fp32 unit rows, in the order given; with pointer queries (vectors, log-probabilities [K, Q, T]), T
            the longest caption.
        """
        if sum(lengths) != input_ids.shape[0] or min(lengths, default=0) < 1:
            raise ValueError(
                f"lengths must be positive and sum to {input_ids.shape[0]} ids, not {sum(lengths)}"
            )
        self._check_length(max(lengths))
        embedded = self._embed_tokens(input_ids[None], None)  # [1, S, D]
        sizes = torch.tensor(lengths, device=input_ids.device)
        begins = sizes.cumsum(0) - sizes  # [B]
        columns = torch.arange(len(input_ids), device=input_ids.device) - begins.repeat_interleave(sizes)
        columns = columns[None]  # [1, S]
        positions, digits = self._places(
            input_ids[None], torch.ones_like(columns, dtype=torch.bool), columns, starts=columns == 0
        )
        pointers = None
        if pointer_queries is not None:
            within = torch.arange(max(lengths), device=input_ids.device)[None]  # [1, T]
            visible = within < sizes[:, None]  # [B, T]
            places = (begins[:, None] + within).clamp(max=len(input_ids) - 1)
            pointers = Pointers.of(self.config, pointer_queries, places, visible)
        states, _, _, found = self._run_layers(
            self.embeddings(embedded, columns, digits), positions, attend_packed(lengths), False, pointers
        )
        vectors = self._sentence_vectors_packed(states[0], lengths)
        return vectors if pointer_queries is None else (vectors, found)

    def encode(self, texts: Sequence[str], tokenizer: Any = None, **options: Any) -> np.ndarray:
        """Sentence vectors [B, E] of texts, in their order, at full speed: see `encoding_captionbert.encode`.

        Without `tokenizer`, the one in the local folder that this model was loaded from is used.
        """
        return encode(self, texts, tokenizer, **options)

    def _wanted(self, name: str, value: bool | None) -> bool:
        return bool(getattr(self.config, name, False) if value is None else value)

    def _embed_tokens(
        self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None
    ) -> torch.Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        if input_ids is None:
            assert inputs_embeds is not None
            return inputs_embeds
        if input_ids.numel() and not torch.compiler.is_compiling():
            low, high = (int(x) for x in input_ids.aminmax())
            if low < 0 or high >= self.config.vocab_size:
                raise ValueError(
                    f"token id {high if low >= 0 else low} is outside the vocabulary of {self.config.vocab_size} "
                    "(ids run from 0); the tokenizer does not belong to this model"
                )
        return self.embeddings.word_embeddings(input_ids)

    def _check_length(self, length: int) -> None:
        if length > self.config.max_position_embeddings:
            raise ValueError(
                f"an input of {length} tokens is longer than the {self.config.max_position_embeddings} positions of "
                "this model; truncate it, e.g. tokenizer(..., truncation=True, "
                f"max_length={self.config.max_position_embeddings})"
            )

    def _check_positions(self, position_ids: torch.Tensor, embedded: torch.Tensor) -> None:
        rows, length = embedded.shape[:2]
        if position_ids.shape not in ((rows, length), (1, length)):
            raise ValueError(
                f"position_ids has shape {tuple(position_ids.shape)}; an input of {rows} rows of {length} tokens takes "
                f"({rows}, {length}) or (1, {length})"
            )
        if torch.compiler.is_compiling() or not position_ids.numel():
            return
        low, high = (int(x) for x in position_ids.aminmax())
        if low < 0 or high >= self.config.max_position_embeddings:
            raise ValueError(
                f"position id {high if low >= 0 else low} is outside 0..{self.config.max_position_embeddings - 1}, the "
                "positions of this model"
            )

    def _visibility(
        self,
        input_ids: torch.Tensor | None,
        embedded: torch.Tensor,
        attention_mask: torch.Tensor | None,
        own_positions: bool,
    ) -> torch.Tensor:
        """[B, T] bool with at least one True a row."""
        if 0 in embedded.shape[:2]:
            raise ValueError(
                f"an input of {embedded.shape[0]} rows of {embedded.shape[1]} tokens; give at least one row, and even "
                "the empty text has [CLS] and [SEP]"
            )
        if attention_mask is not None:
            checked = attention_mask.is_floating_point() and not torch.compiler.is_compiling()
            if checked and bool(((attention_mask != 0) & (attention_mask != 1)).any()):
                raise ValueError(
                    "attention_mask must hold 1 for visible tokens and 0 for others, not added scores"
                )
            visible = attention_mask.to(torch.bool)
        elif input_ids is not None and self.config.pad_token_id is not None:
            visible = input_ids != self.config.pad_token_id
        else:
            visible = torch.ones(embedded.shape[:2], dtype=torch.bool, device=embedded.device)
        if visible.shape != embedded.shape[:2]:
            raise ValueError(
                f"attention_mask has shape {tuple(visible.shape)}, the input {tuple(embedded.shape[:2])}"
            )
        empty = ~visible.any(dim=1, keepdim=True)
        first = torch.arange(visible.shape[1], device=visible.device)[None] == 0
        visible = visible | (empty & first)
        if not own_positions:
            self._check_left_padding(visible)
        return visible

    def _check_left_padding(self, visible: torch.Tensor) -> None:
        """Refuse, or warn of, left padding where it moves vectors."""
        supported, bound = self.config.supports_left_padding, self.config.binding not in (None, "none")
        if (supported and not bound) or torch.compiler.is_compiling() or bool(visible[:, 0].all()):
            return
        if supported and not self.config.strict:
            warnings.warn(
                "left padding moves the vectors of a model with key phases slightly (key phases are absolute, the "
                "angles of special tokens are not): pad on the right as in training (tokenizer.padding_side = 'right')",
                stacklevel=4,
            )
            return
        raise ValueError(
            f"left padding is not supported with position_type={self.config.position_type!r}, "
            f"pooling={self.config.pooling!r}, binding={self.config.binding!r} and strict={self.config.strict!r}: pad "
            "on the right (tokenizer.padding_side = 'right')"
        )

    @staticmethod
    def _all_visible(visible: torch.Tensor) -> bool:
        # Reading the answer back would stall an accelerator or break a traced graph; there the mask is always passed.
        return visible.device.type == "cpu" and not torch.compiler.is_compiling() and bool(visible.all())

    def _places(
        self,
        ids: torch.Tensor | None,
        visible: torch.Tensor,
        position_ids: torch.Tensor,
        starts: torch.Tensor | None = None,
    ) -> tuple[Positions, torch.Tensor | None]:
        """Turns [B or 1, T, P] of ids [B, T] and their address digits [B, T, digits], as the config has them now.

        starts: where captions begin, if several lie in a row.
        """
        config = self.config
        if config.position_type == "learned":
            return Positions(), None
        if config.position_type == "rotary":
            return Positions(rotary_turns(position_ids, config.head_size // 2, config.rotary_base)), None
        if ids is None:
            raise ValueError("structured positions read the token ids: give input_ids, not inputs_embeds")
        planes = config.head_size // 2
        segments = segment_numbers(ids, visible, config.boundary_token_ids, config.special_token_ids, starts)
        digits = address_digits(segments, config.address_base, config.address_digits)
        turns = structured_turns(
            position_ids,
            config.position_frequencies,
            digits if config.rotate_addresses else None,
            config.address_base,
            torch.Size((*ids.shape, planes)),
        )
        if config.binding == "none":
            return Positions(turns), digits
        continuation = decode_bitmap(config.continuation_bitmap, ids.device)
        words = word_pieces(ids, visible, config.special_token_ids, continuation, starts)
        bound = words.piece
        if config.binding == "endings":
            bound = bound & (words.last == torch.arange(ids.shape[1], device=ids.device))
        hashes = key_hashes(ids, words, config.hash_seed, planes)
        keys = key_turns(hashes if config.lexical_phases else torch.zeros_like(hashes))
        records = record_positions(ids, words, starts) if config.record_norm is not None else None
        return Positions(turns, torch.where(bound[..., None], keys, turns), records), digits

    def _run_layers(
        self,
        hidden: torch.Tensor,
        positions: Positions,
        attend: Attend,
        keep_states: bool,
        pointers: Pointers | None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...] | None, tuple[torch.Tensor, ...], torch.Tensor | None]:
        """The trunk from the embedding output: normalised token states, states on the way, weights, pointers."""
        found: dict[tuple[int, int], torch.Tensor] = {}
        all_states, all_weights = [hidden], []
        for number, layer in enumerate(self.layers, start=1):
            hidden, weights, *read = layer(hidden, attend, positions, pointers)
            if pointers is not None:
                found.update(zip((head for head in pointers.heads if head[0] == number), read))
            if weights is not None:
                all_weights.append(weights)
            if keep_states:
                all_states.append(hidden)
        kept = tuple(all_states) if keep_states else None
        log_probs = None if pointers is None else torch.stack([found[head] for head in pointers.heads])
        return self.final_norm(hidden), kept, tuple(all_weights), log_probs

    def _sentence_vectors(self, states: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """[B, T, D] token states and [B, T] visibility -> [B, E] fp32 unit rows."""
        with torch.autocast(states.device.type, enabled=False):
            return self.projection(self.pooling(states.float(), visible))

    def _sentence_vectors_packed(self, states: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """[S, D] token states of captions laid end to end -> [B, E] fp32 unit rows."""
        runs = [(length, len(list(group))) for length, group in groupby(lengths)]
        pooled = []
        with torch.autocast(states.device.type, enabled=False):
            parts = states.float().split([length * rows for length, rows in runs])
            for (length, rows), part in zip(runs, parts):
                visible = torch.ones(rows, length, dtype=torch.bool, device=states.device)
                pooled.append(self.pooling(part.unflatten(0, (rows, length)), visible))
            return self.projection(torch.cat(pooled))
