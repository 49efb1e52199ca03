"""How attention and linear layers are computed: padded batches, captions laid end to end, pointer readings.

The same functions in every form, to rounding. Padded batches go through the library's attention interface; captions
laid end to end take one unmasked call for each run of equal lengths, and linear layers the processor's fused form: that
makes a CPU fast. This is a remote file.

Shapes: B captions, T tokens, D hidden, H heads, C head size, S tokens laid end to end, Q pointer queries, K heads read.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


def _fused_linear() -> Any:
    """oneDNN's linear layer, bias and activation or sum applied to each tile as it is made; None without one."""
    operators = torch.ops.mkldnn
    if not torch.backends.mkldnn.is_available() or not hasattr(operators, "_linear_pointwise"):
        return None
    return operators._linear_pointwise if "binary" in operators._linear_pointwise.overloads() else None


def _computes_bf16() -> bool:
    # The fused call itself does not ask, and fails on processors without the instructions; plain layers do ask.
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is not None and supported()


_FUSED_LINEAR = _fused_linear()
_FUSES_BF16 = _FUSED_LINEAR is not None and _computes_bf16()
SHORT_ROW = 128  # tokens up to which plain attention serves a packed row with a graph
LONG_ROW = 256  # tokens from which the fused bf16 kernel gains more from contiguous rows than the copies cost
# What attends to what: takes query, key, value [B, H, T, C] and gives the context [B, T, H, C] and the weights, if any.
Attend = Callable[
    [nn.Module, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]
]


class PointerQueries(NamedTuple):
    """Where attention is to be read: query q is token `positions[q]` of caption `rows[q]`.

    The answer is the log of a head's attention probability over the T tokens of the query's caption, computed in fp32
    for these rows alone. A key that is padding has a finite value far below any other (probability 0).

    Attributes:
        rows, positions: int64 [Q], each pair once; a position counts from the left edge of its own caption.
        heads: K pairs (layer counted from 1, head counted from 0); None reads the config's designated head.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    heads: Sequence[tuple[int, int]] | None = None


class Pointers(NamedTuple):
    """Pointer queries in the order of the tokens in memory. R: captions with a query."""

    heads: Sequence[tuple[int, int]]
    queries: torch.Tensor  # [Q] places on the flattened token axis
    caption: torch.Tensor  # [Q] which of the R captions
    slot: torch.Tensor  # [Q] which of its caption's queries
    keys: torch.Tensor  # [R, T] places of the caption's tokens
    visible: torch.Tensor  # [R, T]

    @classmethod
    def of(
        cls, config: Any, queries: PointerQueries, places: torch.Tensor, visible: torch.Tensor
    ) -> "Pointers":
        """Queries, a plain tuple serves, sorted out by caption.

        Args:
            config: of the model, for its number of layers and heads and its designated head.
            places: int64 [B, T] of each token on the flattened token axis.
            visible: bool [B, T].

        Raises:
            ValueError: no head, one that the model does not have, or a query that is no visible token.
        """
        queries = PointerQueries(*queries)
        heads = queries.heads
        if heads is None:
            if config.lookup_layer is None:
                raise ValueError(
                    f"position_type {config.position_type!r} has no designated head: give "
                    "PointerQueries(heads=...)"
                )
            heads = ((config.lookup_layer, config.lookup_head),)
        heads = tuple((int(layer), int(head)) for layer, head in heads)
        if not heads:
            raise ValueError("pointer queries: no head is asked for; None asks for the designated one")
        for layer, head in heads:
            if not (1 <= layer <= config.num_hidden_layers and 0 <= head < config.num_attention_heads):
                raise ValueError(
                    f"pointer head ({layer}, {head}): layers count 1..{config.num_hidden_layers}, heads "
                    f"0..{config.num_attention_heads - 1}"
                )
        rows, positions = queries.rows, queries.positions
        inside = (rows >= 0) & (rows < visible.shape[0]) & (positions >= 0) & (positions < visible.shape[1])
        if (
            rows.shape != positions.shape
            or rows.dim() != 1
            or not bool(inside.all())
            or not bool(visible[rows, positions].all())
        ):
            raise ValueError(
                "pointer queries: rows and positions must be [Q] each and name visible tokens of the batch"
            )
        used, caption = rows.unique(return_inverse=True)
        counts = torch.bincount(caption, minlength=len(used))
        order = caption.argsort(stable=True)
        ranks = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[caption[order]]
        slot = torch.empty_like(order).scatter(0, order, ranks)
        return cls(heads, places[rows, positions], caption, slot, places[used], visible[used])

    def read(self, query: torch.Tensor, key: torch.Tensor, layer: int) -> tuple[torch.Tensor, ...]:
        """Log-probabilities [Q, T] of each asked-for head of this layer, from its q and k [B, T, H, C]."""
        return tuple(
            self._read_head(query[..., head, :].flatten(0, 1), key[..., head, :].flatten(0, 1))
            for wanted, head in self.heads
            if wanted == layer
        )

    def _read_head(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        width = query.shape[-1]
        # In fp32 at any precision: scores and mask must not overflow.
        with torch.autocast(query.device.type, enabled=False):
            asked = query.index_select(0, self.queries).float()  # [Q, C]
            own = key.index_select(0, self.keys.flatten()).float().unflatten(0, self.keys.shape)  # [R, T, C]
            # One product a caption: its queries are brought together, so that no key is copied once a query.
            most = int(self.slot.max()) + 1 if len(self.slot) else 0
            together = asked.new_zeros(len(own), most, width)
            together = together.index_put((self.caption, self.slot), asked)
            scores = (together @ own.transpose(1, 2))[self.caption, self.slot] * width**-0.5  # [Q, T]
            hidden = ~self.visible[self.caption]
            return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).log_softmax(-1)


def eager_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plain attention that can show its weights: context [B, T, H, C] and probabilities [B, H, T, T].

    The mask is boolean (True = visible) and is filled in once, so that no sum of two minima can become -inf.
    """
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling  # [B, H, T, T]
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def _visible_mask(implementation: str, visible: torch.Tensor | None) -> Any:
    """The key mask in the form that an attention implementation reads; None where every token is visible."""
    if visible is None:
        return None
    if "flash" in implementation:
        return visible  # [B, T]
    if implementation == "flex_attention":
        from torch.nn.attention.flex_attention import create_block_mask

        rows, length = visible.shape
        return create_block_mask(
            lambda b, h, q, k: visible[b, k], rows, None, length, length, str(visible.device)
        )
    return visible[
        :, None, None, :
    ]  # [B, 1, 1, T]: broadcast over heads and queries, no length-squared buffer


def attend_padded(implementation: str, visible: torch.Tensor | None) -> Attend:
    """Attention over a padded batch through the library's attention interface."""
    mask = _visible_mask(implementation, visible)
    function = eager_attention if implementation == "eager" else ALL_ATTENTION_FUNCTIONS[implementation]

    def attend(
        module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One call of the chosen attention function over the batch."""
        # is_causal is said here as well: without a mask and without the flag, sdpa would attend causally.
        return function(module, query, key, value, mask, scaling=query.shape[-1] ** -0.5, is_causal=False)

    return attend


def _packed_attention(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """Unmasked attention [B, H, T, C] -> [B, T, H, C] in the form that is fastest on a CPU.

    The fused kernel's bf16 backward is some twenty times slower than its forward there (torch 2.13): with a graph,
    short rows take plain attention and long ones the fused kernel in fp32, which keeps no length-squared buffer.
    """
    if torch.is_grad_enabled() and query.shape[2] <= SHORT_ROW:
        return eager_attention(module, query, key, value, None, query.shape[-1] ** -0.5)[0]
    dtype = value.dtype
    if torch.is_grad_enabled():
        query, key, value = query.float(), key.float(), value.float()
    elif dtype == torch.bfloat16 and query.shape[2] >= LONG_ROW:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    with torch.autocast(query.device.type, enabled=False):
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).to(dtype)


def attend_packed(lengths: Sequence[int]) -> Attend:
    """Attention over captions laid end to end [1, H, S, C]: each run of equal lengths is one unmasked call."""
    runs = [(length, len(list(group))) for length, group in groupby(lengths)]
    sizes = [length * rows for length, rows in runs]

    def attend(
        module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One unmasked call a run of equal lengths; no weights."""
        contexts = []
        # split, not slices: its backward is one concatenation instead of a zero-filled tensor a run
        for (length, rows), *parts in zip(
            runs, *(x.squeeze(0).split(sizes, dim=1) for x in (query, key, value))
        ):
            # [H, rows * length, C] -> [rows, H, length, C], a view: the tokens of one caption are adjacent
            views = (part.unflatten(1, (rows, length)).transpose(0, 1) for part in parts)
            contexts.append(_packed_attention(module, *views).flatten(0, 1))  # [rows * length, H, C]
        joined = contexts[0] if len(contexts) == 1 else torch.cat(contexts)
        return joined.unsqueeze(0), None  # [1, S, H, C]

    return attend


def is_plain(linear: nn.Module) -> bool:
    """Whether reading the weights gives what calling the layer gives: no adapter, quantiser, hook or offloading."""
    hooks = (
        linear._forward_hooks,
        linear._forward_pre_hooks,
        linear._backward_hooks,
        linear._backward_pre_hooks,
    )
    hooked = any(hooks) or "forward" in linear.__dict__
    return type(linear) is nn.Linear and not hooked


def affine(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    gelu: bool = False,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """[..., in] -> [..., out]: a linear layer, then exact GELU if asked for, or `residual` [..., out] added.

    One pass where `_fuses`.
    """
    if _fuses(x, weight, gelu):
        if residual is not None and residual.dtype == x.dtype:
            return _FUSED_LINEAR.binary(x, residual, weight, bias, "add")
        y = _FUSED_LINEAR(x, weight, bias, *(("gelu", [], "none") if gelu else ("none", [], "")))
        return y if residual is None else residual + y
    return _finish(F.linear(x, weight, bias), gelu, residual)


def _fuses(x: torch.Tensor, weight: torch.Tensor, gelu: bool) -> bool:
    """Whether the fused linear layer is there and faster: without a graph, always in bf16, for GELU alone in fp32."""
    if _FUSED_LINEAR is None or x.device.type != "cpu" or x.dtype != weight.dtype:
        return False
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    if not getattr(torch.backends.mkldnn, "enabled", True):
        return False
    return (_FUSES_BF16 and x.dtype == torch.bfloat16) or (gelu and x.dtype == torch.float32)


def _finish(y: torch.Tensor, gelu: bool, residual: torch.Tensor | None) -> torch.Tensor:
    y = F.gelu(y) if gelu else y
    return y if residual is None else residual + y


def linear(
    layer: nn.Linear, x: torch.Tensor, gelu: bool = False, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """`affine` with the weights of `layer`, or the layer itself where a call of it does something else."""
    if is_plain(layer):
        return affine(x, layer.weight, layer.bias, gelu, residual)
    return _finish(layer(x), gelu, residual)
