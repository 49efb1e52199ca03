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


def rotate(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Turn each coordinate pair (i, i + P) of `x` [..., 2P] by `turns` [..., P], in fp32.

    One complex product: three times as fast on a CPU as the usual sum of products of halves. The result holds each
    pair side by side, (0, P, 1, P + 1, ...): queries and keys are both turned here, and a permutation that they
    share changes no score.
    """
    first, second = x.float().chunk(2, dim=-1)  # [..., P] each
    turned = torch.complex(first, second).mul_(turns)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)  # [..., 2P]
