"""Rotary positions as pure functions: frequencies, rotation tables, and the rotation itself.

Plane i of P is the coordinate pair (i, i + P) of a head of 2P coordinates (half-split convention, as in GPT-NeoX);
it turns base^(-i/P) radians a token (Su et al. 2021, RoFormer). Angles, cosines and sines are fp32 at any weight
dtype: in bf16 only 897 of 8,192 positions are distinct. This is a remote file and keeps no state.

Shapes: B captions, T tokens, H heads, P planes.
"""

import torch


def rotary_frequencies(planes: int, base: float, device: torch.device) -> torch.Tensor:
    """Radians a token of each plane: base^(-i/planes), [P] fp32."""
    # float64 first: the power of a large base loses digits in fp32, and the default dtype may be bf16 here.
    exponent = torch.arange(planes, dtype=torch.float64, device="cpu") / planes
    return torch.pow(float(base), -exponent).to(device=device, dtype=torch.float32)  # [P]


def rotary_tables(positions: torch.Tensor, planes: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every position and plane.

    Args:
        positions: token positions, any shape [...], integer.
        planes: P, half the head size.
        base: the rotary base.

    Returns:
        cos, sin: [..., P] fp32.
    """
    frequencies = rotary_frequencies(planes, base, positions.device)
    angles = positions.to(torch.float32).unsqueeze(-1) * frequencies  # [..., P]
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each coordinate pair (i, i + P) of `x` [..., 2P] by the angle whose cos and sin [..., P] are given.

    The tables are cast to the dtype of `x` here, after they were computed in fp32.
    """
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    first, second = x.chunk(2, dim=-1)  # [..., P] each
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
