"""Turns and rotation against a slow float64 reference, at far positions and in half precision."""

import math

import pytest
import torch

from captionbert.rotary_captionbert import pairs_adjacent, rotary_frequencies, rotary_turns, rotate


def test_rotation_equals_complex_multiplication() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 10, dtype=torch.float64)
    positions = torch.tensor([0, 7, 8191])
    turned = rotate(pairs_adjacent(x, 5, -1), rotary_turns(positions, 5, 10_000.0))
    for row, position in enumerate(positions.tolist()):
        for plane in range(5):
            angle = position * 10_000.0 ** (-plane / 5)
            z = complex(x[row, plane], x[row, plane + 5]) * complex(math.cos(angle), math.sin(angle))
            assert complex(turned[row, 2 * plane], turned[row, 2 * plane + 1]) == pytest.approx(z, abs=2e-3)


def test_pairs_come_together_in_rows_and_in_activations() -> None:
    heads = torch.arange(2 * 6).float()  # two heads of 2P = 6
    expected = [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
    assert pairs_adjacent(heads, 3, 0).tolist() == expected
    assert pairs_adjacent(heads[:, None].expand(-1, 4), 3, 0)[:, 2].tolist() == expected
    assert pairs_adjacent(heads.expand(2, 3, -1), 3, -1)[1, 2].tolist() == expected


def test_scores_see_only_the_distance() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(1, 32), torch.randn(1, 32)

    def score(i: int, j: int) -> float:
        turns = [rotary_turns(torch.tensor([p]), 16, 10_000.0) for p in (i, j)]
        return float((rotate(query, turns[0]) * rotate(key, turns[1])).sum())

    assert score(3, 10) == pytest.approx(score(103, 110), abs=1e-4)
    assert abs(score(3, 10) - score(3, 11)) > 1e-3


@pytest.mark.parametrize("ambient", [torch.float32, torch.bfloat16, torch.float16])
def test_angles_are_fp32_at_any_default_dtype(ambient: torch.dtype) -> None:
    default = torch.get_default_dtype()
    torch.set_default_dtype(ambient)
    try:
        frequencies = rotary_frequencies(16, 10_000.0, torch.device("cpu"))
        turns = rotary_turns(torch.arange(8192), 16, 10_000.0)
    finally:
        torch.set_default_dtype(default)
    assert frequencies.dtype == torch.float32
    assert turns.dtype == torch.complex64
    exact = torch.cos(
        torch.arange(8192, dtype=torch.float64)[:, None] * 10_000.0 ** (-torch.arange(16).double() / 16)
    )
    assert float((turns.real.double() - exact).abs().max()) < 1e-3
    assert turns.real[:, 0].unique().numel() > 8000  # bf16 positions would leave 897


def test_half_precision_inputs_keep_their_dtype() -> None:
    turns = rotary_turns(torch.arange(4), 2, 100.0)
    assert rotate(torch.ones(4, 4, dtype=torch.bfloat16), turns).dtype == torch.bfloat16
