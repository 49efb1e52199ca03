"""Rotary positions as pure functions: frequencies, turns, and the rotation itself.

Plane i of P is the coordinate pair (i, i + P) of a head of 2P coordinates (half-split convention, as in GPT-NeoX);
it turns base^(-i/P) radians a token (Su et al. 2021, RoFormer). Angles and turns are fp32 at any weight
dtype: in bf16 only 897 of 8,192 positions are distinct. This is a remote file and keeps no state.

Shapes: B captions, T tokens, H heads, P planes.
"""

import torch


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
