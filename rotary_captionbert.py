"""Rotary positions as pure functions: plain ones by distance, structured ones by segment address and word key.

Plane i of P is the coordinate pair (i, i + P) of a head of 2P coordinates (half-split convention, as in GPT-NeoX).
Plain positions turn it base^(-i/P) radians a token (Su et al. 2021, RoFormer). Structured positions give the first
planes the distance, leave the middle ones, and give the last ones the address of the token's segment: digit v of base b
turns its b/2 planes by 2 pi m v / (b + 1), m = 1..b/2, so that all b + 1 values are equally far from each other.
A word's key is the tuple of its token ids; its phases are sums of a counter-based hash over its pieces.

Angles and turns are fp32 at any weight dtype: in bf16 only 897 of 8,192 positions are distinct. Hashes are integers,
the same on every device. This is a remote file and keeps no state.

A row is one caption; or, with `starts`, several captions laid end to end: bool [B, T], True where one begins.

Shapes: B captions, T tokens, H heads, P planes, V vocabulary, S digits of an address.
"""

import base64
import math
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

_MASK32 = 0xFFFFFFFF
# Keys are compared by hashes of this seed, whatever the phases' own: a new phase draw must not move the records.
_IDENTITY_SEED = 0


def rotary_frequencies(planes: int, base: float, device: torch.device) -> torch.Tensor:
    """Radians a token of each plane: base^(-i/planes), [P] fp32."""
    # float64 first: the power of a large base loses digits in fp32, and the default dtype may be bf16 here.
    exponent = torch.arange(planes, dtype=torch.float64, device="cpu") / planes
    return torch.pow(float(base), -exponent).to(device=device, dtype=torch.float32)  # [P]


def rotary_turns(positions: torch.Tensor, planes: int, base: float) -> torch.Tensor:
    """The turn e^(i * position * frequency) of every position and plane.

    Args:
        positions: token positions, any shape [...], integer.
        planes: P, half the head size.
        base: the rotary base.

    Returns:
        [..., P] complex64, of length one.
    """
    frequencies = rotary_frequencies(planes, base, positions.device)
    angles = positions.to(torch.float32).unsqueeze(-1) * frequencies  # [..., P]
    return torch.complex(angles.cos(), angles.sin())


def pairs_adjacent(x: torch.Tensor, planes: int, dim: int) -> torch.Tensor:
    """Reorder one dimension, n heads of 2P coordinates, from the half-split convention to pairs side by side.

    Args:
        x: any tensor whose dimension `dim` has n * 2P entries: activations, or the rows of a projection.
        planes: P.
        dim: which dimension, 0 or -1.

    Returns:
        the same entries, each head's in the order (0, P, 1, P + 1, ...).
    """
    halves = x.unflatten(dim, (-1, 2, planes))  # the dimension becomes three: n, 2, P
    first = 1 if dim == 0 else -2
    swapped = halves.transpose(first, first + 1)
    return swapped.flatten(0, 2) if dim == 0 else swapped.flatten(-3)


def rotate(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Turn each adjacent coordinate pair of `x` [..., 2P] by `turns` [..., P], in fp32; the dtype of `x` is kept.

    One complex product over pairs that `pairs_adjacent` has brought together: several times as fast on a CPU as the
    usual sum of products of halves. Queries and keys share the order, so no score changes.
    """
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))  # [..., P]
    # A half-precision input was copied by the line above; an fp32 one is the caller's.
    turned = pairs * turns if x.dtype == torch.float32 else pairs.mul_(turns)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)  # [..., 2P]


class Words(NamedTuple):
    """The words of each caption. A word is a token and the continuation pieces directly after it.

    Attributes:
        piece: bool [B, T]: the token belongs to a word (it is visible and not special).
        first, last: int64 [B, T]: places of the first and last piece of the token's word; its own where it has none.
    """

    piece: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor


@torch.compiler.assume_constant_result  # a compiled graph takes the answer, not the decompression
def decode_bitmap(bitmap: str, device: torch.device) -> torch.Tensor:
    """The set of token ids written in `bitmap` (base64 of zlib of bits, first id in the highest bit): bool [V or more].

    Unpacked once a text: the answer is a constant.
    """
    return torch.from_numpy(_unpacked(bitmap)).to(device)


@lru_cache(maxsize=8)
def _unpacked(bitmap: str) -> np.ndarray:
    # No tensor is kept: one made while a graph is exported is a stand-in without values.
    return np.unpackbits(np.frombuffer(zlib.decompress(base64.b64decode(bitmap)), dtype=np.uint8)).astype(
        bool
    )


def _is_one_of(ids: torch.Tensor, members: Sequence[int]) -> torch.Tensor:
    """Whether each id is in a short list: bool, the shape of `ids`."""
    found = torch.zeros_like(ids, dtype=torch.bool)
    for member in members:  # a handful: cheaper than a search, and no memory beyond the answer
        found |= ids == member
    return found


def word_pieces(
    ids: torch.Tensor,
    visible: torch.Tensor,
    special_ids: Sequence[int],
    continuation: torch.Tensor,
    starts: torch.Tensor | None = None,
) -> Words:
    """The words of ids [B, T] under visibility bool [B, T].

    Args:
        special_ids: tokens that belong to no word ([CLS], [SEP], ...).
        continuation: bool [n]: the ids that continue a word (`##` pieces); ids from n on, tokens that were added later,
            do not. One that follows no piece starts a word of its own, as where a text was cut.
    """
    piece = visible & ~_is_one_of(ids, special_ids)
    after_piece = torch.nn.functional.pad(piece[:, :-1], (1, 0))
    if starts is not None:
        after_piece = after_piece & ~starts
    continues = continuation[ids.clamp(max=len(continuation) - 1)] & (ids < len(continuation))
    inner = piece & after_piece & continues  # not the first piece of its word
    place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    first = torch.where(inner, -1, place).cummax(dim=1).values
    before_inner = torch.nn.functional.pad(inner[:, 1:], (0, 1))
    ends = torch.where(before_inner, ids.shape[1], place)
    last = ends.flip(1).cummin(dim=1).values.flip(1)
    return Words(piece, first, last)


def segment_numbers(
    ids: torch.Tensor,
    visible: torch.Tensor,
    boundary_ids: Sequence[int],
    special_ids: Sequence[int],
    starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """How many boundary tokens stand before each token of ids [B, T]: int64, -1 for special tokens and padding.

    A boundary token (`. ! ? ;`) belongs to the segment that it ends.
    """
    boundary = visible & _is_one_of(ids, boundary_ids)
    before = boundary.cumsum(dim=1) - boundary.long()
    if starts is not None:  # counted from the token that its caption begins with
        place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        before = before - before.gather(1, torch.where(starts, place, 0).cummax(dim=1).values)
    return torch.where(visible & ~_is_one_of(ids, special_ids), before, -1)


def address_digits(segments: torch.Tensor, base: int, digits: int) -> torch.Tensor:
    """Segment numbers [B, T] as digits [B, T, S], most significant first.

    A missing segment (-1), or one past base^digits - 1, is `base` (null) in every digit.
    """
    powers = torch.tensor([base**k for k in range(digits - 1, -1, -1)], device=segments.device)
    values = segments[..., None].div(powers, rounding_mode="floor") % base
    addressed = (segments >= 0) & (segments < base**digits)
    return torch.where(addressed[..., None], values, base)


def address_turns(digits: torch.Tensor, base: int) -> torch.Tensor:
    """Turns of the address planes: digits [B, T, S] -> complex64 [B, T, S * base/2].

    Value v turns plane m of its digit by 2 pi m v / (base + 1), m = 1..base/2. The sum over m of the cosines of the
    difference of two values is base/2 for equal ones and -1/2 for any others (`base` even).
    """
    values, multiples = (
        torch.arange(start, stop, dtype=torch.float64, device="cpu")
        for start, stop in ((0, base + 1), (1, base // 2 + 1))
    )
    angles = 2 * math.pi / (base + 1) * torch.outer(values, multiples)
    table = torch.complex(angles.cos(), angles.sin())  # [base + 1, base/2]
    return table.to(dtype=torch.complex64, device=digits.device)[digits].flatten(-2)


def structured_turns(
    positions: torch.Tensor,
    frequencies: Sequence[float],
    digits: torch.Tensor | None,
    base: int,
    shape: torch.Size,
) -> torch.Tensor:
    """Turns of all planes of an ordinary head: complex64 [B, T, P] for `shape` (B, T, P).

    Args:
        positions: token positions [B or 1, T].
        frequencies: radians a token of the first planes.
        digits: addresses [B, T, S], turning the last S * base/2 planes; None turns none of them.
        base: base of the digits.
    """
    radians = torch.tensor(frequencies, dtype=torch.float32, device=positions.device)
    angles = positions.to(torch.float32).unsqueeze(-1) * radians  # [B or 1, T, planes of distance]
    turns = torch.ones(shape, dtype=torch.complex64, device=positions.device)
    turns[..., : len(frequencies)] = torch.complex(angles.cos(), angles.sin())
    if digits is not None:
        address = address_turns(digits, base)
        turns[..., shape[-1] - address.shape[-1] :] = address
    return turns


def _mix(x: torch.Tensor) -> torch.Tensor:
    """A bijection of 32-bit numbers (lowbias32: Chris Wellons, "Prospecting for hash functions", 2018) in int64."""
    # A product that overflows int64 wraps, and its lower 32 bits are still right.
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _MASK32
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _MASK32
    return x ^ (x >> 16)


def key_hashes(ids: torch.Tensor, words: Words, seed: int, planes: int) -> torch.Tensor:
    """The key of each piece's word as 32-bit numbers: int64 [B, T, planes], 0 where the token is in no word.

    For the key (t_1, ..., t_n) and plane p: the sum over j of h(seed, t_j, n - j, p) modulo 2^32, with
    h(s, t, o, p) = mix(mix(mix(mix(s) ^ t) ^ o) ^ p). All pieces of a word, and all words of one key, have the
    same numbers.
    """
    place = torch.arange(ids.shape[1], device=ids.device)
    seeded = _mix(torch.tensor(seed, dtype=torch.int64, device=ids.device))
    pieces = _mix(_mix(seeded ^ ids.long()) ^ (words.last - place))  # [B, T]
    hashes = _mix(pieces[..., None] ^ torch.arange(planes, device=ids.device))  # [B, T, planes]
    hashes = torch.where(words.piece[..., None], hashes, 0)
    upto = hashes.cumsum(dim=1)  # below 2^45 at 8,192 tokens
    at = (slice(None), slice(None), None)
    end = upto.gather(1, words.last[at].expand_as(upto))
    start = (upto - hashes).gather(1, words.first[at].expand_as(upto))
    return torch.where(words.piece[..., None], (end - start) & _MASK32, 0)


def key_turns(hashes: torch.Tensor) -> torch.Tensor:
    """32-bit numbers [..., P] as turns by hash * 2 pi / 2^32, complex64; the upper 24 bits count, which fp32 holds."""
    angles = (hashes >> 8).to(torch.float32) * (2 * math.pi / 2**24)
    return torch.complex(angles.cos(), angles.sin())


def record_positions(ids: torch.Tensor, words: Words, starts: torch.Tensor | None = None) -> torch.Tensor:
    """The last piece of the first occurrence of every key in its caption: bool [B, T].

    Keys are compared by 63 bits of hash: among the 8,192 words of the longest row two different ones are taken for one
    with a probability below 1e-11.
    """
    place = torch.arange(ids.shape[1], device=ids.device)
    ends = words.piece & (words.last == place)
    high, low = key_hashes(ids, words, _IDENTITY_SEED, 2).unbind(-1)
    names = torch.where(ends, (high >> 1 << 32) | low, -1)  # [B, T]
    ordered, order = names.sort(dim=1, stable=True)
    fresh = torch.ones_like(ends)
    if starts is not None:  # by caption, then by name, then by place
        caption, by_caption = starts.cumsum(dim=1).gather(1, order).sort(dim=1, stable=True)
        ordered, order = ordered.gather(1, by_caption), order.gather(1, by_caption)
        fresh[:, 1:] = caption[:, 1:] != caption[:, :-1]
        fresh[:, 1:] |= ordered[:, 1:] != ordered[:, :-1]
    else:
        fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.zeros_like(ends).scatter(1, order, fresh) & ends
