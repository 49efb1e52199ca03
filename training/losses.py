"""Losses as pure functions of (student, target) vectors; nothing here knows a model, a device or a process.

    contrast    one way    L_i = -log  exp(s_i . t_i / T) / sum_j exp(s_i . t_j / T)      j over the global batch
                symmetric  the mean of that and the same with s and t exchanged
    mse         M_i = mean over the E coordinates of (s_i - t_i)^2 = (2 - 2 cos) / E for unit vectors
    similarity  mean over ordered pairs i != j of (s_i . s_j - t_i . t_j)^2
    ranking     mean over i, j and k = j + 1 (cyclic) of max(0, m - g (s_i . s_j - s_i . s_k)) where the teachers'
                difference t_i . t_j - t_i . t_k has sign g and is larger than the margin m
    sentence    sum of weight x term of the four (contrast and mse: their mean over the batch)
    matryoshka  mean over widths d of the sentence loss of s and t cut to d coordinates and made unit again
    step loss   sentence + matryoshka_weight x matryoshka + lookup_weight x lookup

Rows of equal text (equal group) are no negatives, no pair and no part of a triple of one another. Logits and
similarities are fp32, outside autocast.

Sources: contrast and mse are this project's own (InfoNCE: arXiv 1807.03748); mse alone is how LEAF aligns.
Similarity and ranking are the second and third loss of Jasper and Stella (arXiv 2412.19048). Ours leave out the
diagonal and equal texts. Theirs compares any two pairs of the batch, B^4 of them, and wants a margin wherever the
teachers' similarities differ at all; ours compares two pairs that share the anchor i, in one cyclic pairing of the
columns, so that time and memory are those of one [B, B] matrix (the batch order is random: each step draws other
triples), and takes only those that the teachers tell apart by more than the margin: a student equal to its targets
pays nothing. Matryoshka: arXiv 2205.13147; cutting the targets is right because they and the student share one frame.

Law 1: the two views of a contrastive loss may not come out of one forward pass; each says where it is from.

Legend: B rows of the global batch, b rows at hand, E width of a sentence vector.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from captionbert.artifacts.errors import InputError
from captionbert.recipes import LossSection

ALWAYS = ("contrast", "mse", "lookup")  # terms that are computed whatever their weight, in this order
OPTIONAL = ("similarity", "ranking", "matryoshka")
# Cosines of fp32 vectors nearer than this are equal: what rounding alone tells apart has no order.
_TIE = 1e-6


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


def similarities(vectors: Tensor) -> Tensor:
    """fp32 cosines of unit vectors [B, E] with one another, [B, B]."""
    with torch.autocast(vectors.device.type, enabled=False):
        return vectors.float() @ vectors.float().T


def distinct_pairs(groups: Tensor) -> Tensor:
    """bool [B, B]: rows i and j differ in text; never so for i = j. `groups`: text identity [B]."""
    return groups.unsqueeze(1) != groups.unsqueeze(0)


def similarity_loss(student: Tensor, target: Tensor, distinct: Tensor) -> Tensor:
    """Mean squared difference of two similarity matrices over the pairs that count, fp32 scalar in 0..4; see the top.

    Args:
        student, target: from `similarities`, [B, B].
        distinct: from `distinct_pairs`, [B, B]; no such pair at all gives 0.
    """
    squares = (student - target).square() * distinct  # [B, B]
    return squares.sum() / distinct.sum().clamp(min=1)


def ranking_loss(student: Tensor, target: Tensor, distinct: Tensor, margin: float) -> Tensor:
    """Mean shortfall of the student's margin in the teachers' order, fp32 scalar in 0..2 + margin; see the top.

    Args:
        student, target: from `similarities`, [B, B]: row i holds the similarities to anchor i.
        distinct: from `distinct_pairs`, [B, B].
        margin: cosine, 0 or more; no triple that the teachers tell apart by more than it (and by more than rounding)
            gives 0.
    """

    def next_column(x: Tensor) -> Tensor:
        return x.roll(-1, dims=1)

    difference = target - next_column(target)  # [B, B]: t_i . t_j - t_i . t_k
    # diagonal(): whether the texts of j and of k themselves differ
    distinct = distinct & next_column(distinct) & next_column(distinct).diagonal()
    counted = distinct & (difference.abs() > max(margin, _TIE))  # [B, B]
    shortfall = (margin - difference.sign() * (student - next_column(student))).clamp(min=0)
    return (shortfall * counted).sum() / counted.sum().clamp(min=1)


def prefix(vectors: Tensor, width: int) -> Tensor:
    """The first `width` coordinates of vectors [n, E], fp32 of unit length again, [n, width]."""
    return torch.nn.functional.normalize(vectors.float()[:, :width], dim=1)


def check_dims(dims: list[int], width: int) -> None:
    """Raises InputError unless each of `dims` (loss.matryoshka_dims) is below `width`, that of the targets."""
    if wide := [d for d in dims if d >= width]:
        raise InputError(
            f"loss.matryoshka_dims names {wide[0]}, the targets are {width} wide; use widths from 2 to {width - 1} "
            "(the full width is trained by the other terms)"
        )


def couples_rows(loss: LossSection) -> bool:
    """Whether the loss of a row depends on the students of other rows, so that a batch cannot be cut up freely."""
    return loss.symmetric or bool(loss.similarity_weight or loss.ranking_weight)


def term_names(loss: LossSection) -> tuple[str, ...]:
    """The terms that are computed: ALWAYS, and those of OPTIONAL whose weight is positive."""
    return *ALWAYS, *(name for name in OPTIONAL if getattr(loss, f"{name}_weight"))


def weighted(terms: dict[str, Any], loss: LossSection) -> Any:
    """Sum of weight x term over `terms` by name, tensors or numbers; a term of weight 0 is left out."""
    weights = {name: getattr(loss, f"{name}_weight") for name in terms}
    return sum(weight * terms[name] for name, weight in weights.items() if weight)


def sentence_terms(
    student: Tensor, target: Tensor, groups: Tensor, loss: LossSection, own: Tensor | None = None
) -> dict[str, Tensor]:
    """The parts of the sentence loss by name, fp32 scalars: each the given rows' share of the mean over the batch.

    Args:
        student: unit vectors of the rows at hand, [b, E].
        target: unit vectors of the global batch, [B, E]. groups: text identity [B].
        own: index [b] of each row's own target; None: the rows are the whole batch in order, which terms that couple
            rows need (`couples_rows`).
    """
    terms = _terms_at_one_width(student, target, groups, loss, own)
    if loss.matryoshka_weight:
        parts = [
            weighted(
                _terms_at_one_width(prefix(student, d), prefix(target, d), groups, loss, own),
                loss,
            )
            for d in loss.matryoshka_dims
        ]
        terms["matryoshka"] = torch.stack(parts).mean()
    return terms


def _terms_at_one_width(
    student: Tensor, target: Tensor, groups: Tensor, loss: LossSection, own: Tensor | None
) -> dict[str, Tensor]:
    if own is None:  # mean(), not sum() / B: they may differ in the last bit, and stored runs go on exactly
        if loss.symmetric:
            contrast = symmetric_rows(student, target, groups, loss.temperature).mean()
        else:
            everyone = torch.arange(len(target), device=target.device)
            contrast = one_way_rows(student, target, everyone, groups, loss.temperature).mean()
        return {
            "contrast": contrast,
            "mse": mse_rows(student, target).mean(),
            **_pair_terms(student, target, groups, loss),
        }
    if couples_rows(loss):
        raise ValueError("symmetric, similarity and ranking losses need the whole batch at once: own=None")
    contrast = one_way_rows(student, target, own, groups, loss.temperature).sum() / len(target)
    return {"contrast": contrast, "mse": mse_rows(student, target[own]).sum() / len(target)}


def _pair_terms(student: Tensor, target: Tensor, groups: Tensor, loss: LossSection) -> dict[str, Tensor]:
    if not loss.similarity_weight and not loss.ranking_weight:
        return {}
    pairs = similarities(student), similarities(target), distinct_pairs(groups)  # [B, B] each
    terms = {}
    if loss.similarity_weight:
        terms["similarity"] = similarity_loss(*pairs)
    if loss.ranking_weight:
        terms["ranking"] = ranking_loss(*pairs, loss.ranking_margin)
    return terms
