"""Losses as pure functions of (student, target) vectors; nothing here knows a model, a device or a process.

    one way    L_i = -log  exp(s_i . t_i / T) / sum_j exp(s_i . t_j / T)          j over the global batch
    symmetric  the mean of that and the same with s and t exchanged
    MSE        M_i = mean over the E coordinates of (s_i - t_i)^2 = (2 - 2 cos) / E for unit vectors
    step loss  (1 / B) sum_i (L_i + mse_weight * M_i)

Targets with the same text (equal group) as row i are no negatives of it. Logits are fp32, outside autocast.
Law 1: the two views of a contrastive loss may not come out of one forward pass; each says where it is from.

Legend: B rows of the global batch, b rows at hand, E width of a sentence vector.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from captionbert.artifacts.errors import InputError


class SharedForwardError(ValueError):
    """Both views of a contrastive loss were made by the same forward pass (law 1)."""


@dataclass(frozen=True)
class View:
    """Unit vectors [n, E] and the name of what made them, e.g. "student step 12" or "targets 3f9a..."."""

    vectors: Tensor
    origin: str


def stored_targets(vectors: Tensor, digest: str) -> View:
    """Targets read from disk as a view.

    Raises:
        SharedForwardError: they carry a gradient, so they were computed by a model and not read.
    """
    if vectors.requires_grad:
        raise SharedForwardError(
            "targets carry a gradient, so a model made them in this step; stored targets are labels: pass "
            "what consensus.targets reads from disk"
        )
    return View(vectors, f"targets {digest}")


def refuse_shared_forward(first: View, second: View) -> None:
    """Law 1. Same origin, same memory, same graph node or equal values are each a proof of one forward pass.

    Raises:
        SharedForwardError: naming the proof.
    """
    a, b = first.vectors, second.vectors
    proof = None
    if first.origin == second.origin:
        proof = f"both come from {first.origin!r}"
    elif a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr():
        proof = "they share memory (a detached copy of a view is still that view)"
    elif a.grad_fn is not None and a.grad_fn is b.grad_fn:
        proof = "they are outputs of one graph node"
    elif a.shape == b.shape and _equal_to_rounding(a, b):
        proof = "their values are equal"
    if proof:
        raise SharedForwardError(
            f"a contrastive loss whose two views share one forward pass is refused: {proof}; "
            "encode the views separately, or contrast with stored targets"
        )


def _equal_to_rounding(a: Tensor, b: Tensor) -> bool:
    # One model gives slightly other bits with a graph than without: its attention takes another kernel then.
    return torch.allclose(a.detach().to(b.dtype), b.detach(), rtol=0.0, atol=1e-5)


def check_temperature(temperature: float) -> None:
    """Raises InputError unless `temperature` is a positive finite number."""
    if not 0.0 < temperature < float("inf"):
        raise InputError(f"loss.temperature is {temperature}; it must be a positive number (0.07 is usual)")


def contrast_logits(student: Tensor, target: Tensor, temperature: float) -> Tensor:
    """fp32 similarities over the temperature, student [b, E] x target [B, E] -> [b, B]."""
    with torch.autocast(student.device.type, enabled=False):
        return student.float() @ target.float().T / temperature  # [b, B]


def mask_duplicates(logits: Tensor, own: Tensor, groups: Tensor) -> Tensor:
    """`logits` [b, B] with the targets whose text equals the row's text at -inf, the row's own target kept.

    Args:
        own: index [b] of each row's own target among the B.
        groups: text identity [B] of the global batch.
    """
    same = groups[own].unsqueeze(1) == groups.unsqueeze(0)  # [b, B]
    same[torch.arange(len(own), device=own.device), own] = False
    return logits.masked_fill(same, float("-inf"))


def one_way_rows(student: Tensor, target: Tensor, own: Tensor, groups: Tensor, temperature: float) -> Tensor:
    """InfoNCE of each student row against all targets, fp32 [b]; it needs no other student row, so it splits
    exactly.

    Args:
        student: unit vectors [b, E] of the rows at hand.
        target: unit vectors [B, E] of the global batch.
        own, groups: see `mask_duplicates`.
    """
    logits = mask_duplicates(contrast_logits(student, target, temperature), own, groups)  # [b, B]
    return torch.nn.functional.cross_entropy(logits, own, reduction="none")  # [b]


def symmetric_rows(student: Tensor, target: Tensor, groups: Tensor, temperature: float) -> Tensor:
    """Mean of student-to-target and target-to-student InfoNCE over the whole batch, fp32 [B].

    Both `student` and `target` are [B, E]: the second direction normalises over the students, so no row
    stands alone.
    """
    own = torch.arange(len(student), device=student.device)  # [B]
    logits = mask_duplicates(contrast_logits(student, target, temperature), own, groups)  # [B, B]
    cross_entropy = torch.nn.functional.cross_entropy
    there = cross_entropy(logits, own, reduction="none")  # [B]
    back = cross_entropy(logits.T, own, reduction="none")  # [B]
    return 0.5 * (there + back)


def lookup_rows(log_probs: Tensor, records: Tensor) -> Tensor:
    """Missing attention to the record, fp32 [Q]: the negative log-probability of its place.

    Args:
        log_probs: of the designated head over the keys of each query's caption, fp32 [Q, T].
        records: place of each query's record, [Q].
    """
    return -log_probs.gather(1, records[:, None])[:, 0]


def mse_rows(student: Tensor, target: Tensor) -> Tensor:
    """Mean squared difference per coordinate, fp32 [b], of unit vectors [b, E]; between 0 and 4 / E."""
    return (student.float() - target.float()).square().mean(dim=1)
