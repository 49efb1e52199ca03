"""One optimizer step: gradients of the full-batch loss whatever the micro-batches and processes, clipping,
Adam.

A loss whose rows need only their own vector and all targets is taken micro-batch by micro-batch, forward and
backward.
Symmetric, similarity and ranking losses couple all students of the batch: their vectors are made first without a
graph, the gradient of the loss is taken with respect to them, and each micro-batch is run again and pulled back
through it (gradient caching). Each process ends with one flat all-reduce of its gradients; the loss is divided by the
global batch beforehand.

fp32 parameters; bf16 and fp16 through autocast, one weight cast a step. fp16 multiplies the loss by a scale
that is halved when a gradient overflows (that step changes nothing, and counts) and doubled after 2,000 good
steps.

Legend: B rows of the global batch, b of this process, m of a micro-batch, E width of a vector.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from captionbert.artifacts.errors import InputError
from captionbert.probes.word_records import LookupTargets
from captionbert.recipes import LossSection
from captionbert.training.batches import StepBatch
from captionbert.training.losses import (
    View,
    check_temperature,
    couples_rows,
    lookup_rows,
    refuse_shared_forward,
    sentence_terms,
    stored_targets,
    term_names,
    weighted,
)
from captionbert.training.order import cut_by_tokens

# Token ids of m captions, longest first, to unit vectors [m, E] with their graph. With a second argument, lookup
# queries (caption [Q], position [Q]), to the vectors and the designated head's log-probabilities [1, Q, T].
Encode = Callable[..., Any]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_GROWTH_STEPS = 2000
MAX_SKIPS = 20


@dataclass(frozen=True)
class LossScale:
    """The fp16 loss scale; for other precisions it stays 1. `skips` counts overflows in a row."""

    value: float = 1.0
    good_steps: int = 0
    skips: int = 0

    @classmethod
    def start(cls, precision: str) -> "LossScale":
        """2^16 for fp16, 1 otherwise."""
        return cls(65536.0 if precision == "fp16" else 1.0)

    def after(self, finite: bool) -> "LossScale":
        """The scale of the next step."""
        if not finite:
            return LossScale(self.value / 2, 0, self.skips + 1)
        if self.good_steps + 1 >= _GROWTH_STEPS:
            return LossScale(self.value * 2, 0, 0)
        return LossScale(self.value, self.good_steps + 1, 0)


@dataclass(frozen=True)
class StepSettings:
    """What a step needs from the recipe. `padded`: micro-batches are padded (accelerators), not packed."""

    loss: LossSection
    clip: float
    precision: str
    micro_batch_tokens: int
    padded: bool
    targets_digest: str = "unnamed"

    def __post_init__(self) -> None:
        check_temperature(self.loss.temperature)


@dataclass(frozen=True)
class StepLoss:
    """Means over the global batch: each computed term by its name (`losses.term_names`), and their weighted sum."""

    terms: dict[str, float]
    total: float


@contextmanager
def precision_context(device: str, precision: str) -> Iterator[None]:
    """Autocast to the recipe's precision; each weight is cast once while the context lasts."""
    with torch.autocast(device, DTYPES[precision], enabled=precision != "fp32"):
        yield


def backward_gradients(
    encode: Encode,
    batch: StepBatch,
    settings: StepSettings,
    *,
    device: torch.device,
    step: int = 0,
    scale: float = 1.0,
    parts: list[np.ndarray] | None = None,
) -> Tensor:
    """Add this process's part of scale x the gradient of the global-batch loss to the parameters' `.grad`.

    Args:
        parts: rows of each micro-batch, longest first; None cuts at the settings' token budget.

    Returns:
        fp64, this process's part of each term of `losses.term_names`; over processes they sum to the means.
    """
    if parts is None:
        parts = cut_by_tokens(batch.lengths, settings.micro_batch_tokens, padded=settings.padded)
    targets = stored_targets(batch.targets.to(device), settings.targets_digest)
    queries = _queries(batch, device)
    groups = batch.groups.to(device)
    work = _Pass(encode, batch, parts, targets, groups, settings, f"student step {step}", scale, queries)
    return _coupled(work) if couples_rows(settings.loss) else _one_way(work)


def encode_part(
    encode: Encode,
    ids: list[list[int]],
    part: np.ndarray,
    lookups: LookupTargets | None,
    device: torch.device,
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Vectors [m, E] of the texts `part` among `ids`, and how their lookup queries were read.

    The second is None where no query lies in the part; else the designated head's log-probabilities [Q, T] and the
    places of the records [Q].
    """
    texts = [ids[i] for i in part]
    if lookups is None:
        return encode(texts), None
    row, own = lookups.in_part(part, len(ids))
    if not len(own):
        return encode(texts), None
    rows, positions, records = (
        torch.from_numpy(x).to(device) for x in (row, lookups.position[own], lookups.record[own])
    )
    vectors, log_probs = encode(texts, (rows, positions))
    return vectors, (log_probs[0], records)


@dataclass(frozen=True)
class _Pass:
    """One batch on its way through the student, piece by piece."""

    encode: Encode
    batch: StepBatch
    parts: list[np.ndarray]
    targets: View
    groups: Tensor  # [B], on the device
    settings: StepSettings
    origin: str
    scale: float
    queries: int  # eligible lookup queries of the global batch

    @property
    def device(self) -> torch.device:
        return self.targets.vectors.device

    def forward(self, part: np.ndarray) -> tuple[Tensor, Tensor]:
        """Vectors [m, E] of a micro-batch and its share of the mean lookup loss, both with their graph."""
        vectors, read = encode_part(self.encode, self.batch.ids, part, self.batch.lookups, self.device)
        if read is None:
            return vectors, torch.zeros((), device=self.device)
        return vectors, lookup_rows(*read).sum() / self.queries

    def sentence_terms(self, vectors: Tensor, own: Tensor | None = None) -> dict[str, Tensor]:
        """See losses.sentence_terms; refuses students that are their own targets."""
        refuse_shared_forward(View(vectors, self.origin), self.targets)
        return sentence_terms(vectors, self.targets.vectors, self.groups, self.settings.loss, own)

    def sentence_loss(self, terms: dict[str, Tensor]) -> Tensor:
        return weighted(terms, self.settings.loss) * self.scale

    @property
    def lookup_scale(self) -> float:
        return self.settings.loss.lookup_weight * self.scale

    def sums(self, terms: dict[str, Tensor], lookup: Tensor) -> Tensor:
        """The terms in the order of `term_names`, fp64 on the CPU."""
        found = {**terms, "lookup": lookup}
        values = [found[name].detach() for name in term_names(self.settings.loss)]
        return torch.stack(values).double().cpu()


def _one_way(work: _Pass) -> Tensor:
    batch, device = work.batch, work.device
    sums = torch.zeros(len(term_names(work.settings.loss)), dtype=torch.float64)
    with precision_context(device.type, work.settings.precision):
        for part in work.parts:
            vectors, lookup = work.forward(part)
            own = batch.own[torch.from_numpy(part)].to(device)  # [m]
            # Disabled inside, not left: leaving the context would drop the weights that were already cast.
            with torch.autocast(device.type, enabled=False):
                terms = work.sentence_terms(vectors, own)
                (work.sentence_loss(terms) + lookup * work.lookup_scale).backward()
            sums += work.sums(terms, lookup)
    return sums


def _coupled(work: _Pass) -> Tensor:
    batch, device = work.batch, work.device
    keep_graph = len(work.parts) == 1  # one micro-batch: its graph fits, so it need not be run twice
    mine = torch.empty(len(batch.ids), work.targets.vectors.shape[1], device=device)  # [b, E]
    graphs: list[tuple[Tensor, Tensor]] = []
    with torch.set_grad_enabled(keep_graph), precision_context(device.type, work.settings.precision):
        for part in work.parts:
            graphs.append(work.forward(part))
            mine[torch.from_numpy(part).to(device)] = graphs[-1][0].detach()
    everyone = gather_rows(mine).requires_grad_()  # [B, E]
    terms = work.sentence_terms(everyone)
    work.sentence_loss(terms).backward()
    assert everyone.grad is not None
    gradient = everyone.grad[batch.own.to(device)]  # [b, E]
    # A new context: some versions of torch would reuse casts made without a graph where one is needed.
    with precision_context(device.type, work.settings.precision):
        for part, kept in zip(work.parts, graphs):
            vectors, lookup = kept if keep_graph else work.forward(part)  # [m, E]
            with torch.autocast(device.type, enabled=False):
                pulled = (vectors * gradient[torch.from_numpy(part).to(device)]).sum()
                (pulled + lookup * work.lookup_scale).backward()
    share = len(batch.ids) / len(everyone)  # every process has computed the whole mean of the sentence terms
    lookups = torch.stack([lookup.detach() for _, lookup in graphs]).sum()
    return work.sums({name: term.detach() * share for name, term in terms.items()}, lookups)


def _queries(batch: StepBatch, device: torch.device) -> int:
    """Eligible lookup queries of the global batch, at least 1."""
    if batch.lookups is None:
        return 1
    count = torch.tensor(len(batch.lookups.row), device=device)
    if processes() > 1:
        dist.all_reduce(count)
    return max(1, int(count))


def processes() -> int:
    """Processes of the group, 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather_rows(mine: Tensor) -> Tensor:
    """[b, E] of each process, laid one after another by rank: [B, E], without a graph."""
    if processes() == 1:
        return mine.clone()
    shares = [torch.empty_like(mine) for _ in range(processes())]
    dist.all_gather(shares, mine.contiguous())
    return torch.cat(shares)


def sum_over_processes(parameters: list[nn.Parameter], sums: Tensor) -> Tensor:
    """Sum gradients and the loss terms over processes, in one all-reduce. Returns the summed terms."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    if processes() == 1:
        return sums
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in gradients] + [sums.to(gradients[0])])
    dist.all_reduce(flat)
    offset = 0
    for gradient in gradients:
        gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
        offset += gradient.numel()
    return flat[offset:].double().cpu()


def clip_and_unscale(parameters: list[nn.Parameter], clip: float, scale: float) -> float:
    """Divide gradients by `scale` and shorten them to norm `clip`; returns the norm before clipping.

    A norm that is not finite leaves the gradients as they are: the caller must not use them.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = float(torch.nn.utils.get_total_norm(gradients)) / scale
    factor = min(1.0, clip / (norm + 1e-6)) / scale
    if np.isfinite(norm) and factor != 1.0:
        torch._foreach_mul_(gradients, factor)
    return norm


def adam(parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.Adam:
    """Pure Adam, no weight decay; one fused kernel a step."""
    return torch.optim.Adam(parameters, lr=learning_rate, weight_decay=0.0, fused=True)


def take_step(
    encode: Encode,
    batch: StepBatch,
    optimizer: torch.optim.Adam,
    settings: StepSettings,
    loss_scale: LossScale,
    *,
    device: torch.device,
    step: int,
    learning_rate: float,
) -> tuple[StepLoss, float, LossScale]:
    """Gradients, clipping and one Adam update.

    Returns:
        The losses, the gradient norm before clipping, and the loss scale of the next step.

    Raises:
        InputError: the norm is not finite without a loss scale, or for more than 20 fp16 steps in a row.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.zero_grad(set_to_none=True)
    sums = backward_gradients(encode, batch, settings, device=device, step=step, scale=loss_scale.value)
    terms = dict(zip(term_names(settings.loss), sum_over_processes(parameters, sums).tolist()))
    total = weighted(terms, settings.loss)
    norm = clip_and_unscale(parameters, settings.clip, loss_scale.value)
    finite = bool(np.isfinite(norm))
    if finite:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()
    elif settings.precision != "fp16":
        raise InputError(
            f"step {step}: the gradient norm is {norm} (loss {total}); the last checkpoint is intact: "
            "lower schedule.learning_rate or raise schedule.warmup, and start a new run"
        )
    scale = loss_scale.after(finite) if settings.precision == "fp16" else replace(loss_scale)
    if scale.skips > MAX_SKIPS:
        raise InputError(
            f"step {step}: {scale.skips} steps in a row overflowed in fp16 and the loss scale fell to "
            f"{scale.value:g}; "
            "use compute.precision=bf16 or fp32, or lower schedule.learning_rate"
        )
    return StepLoss(terms, total), norm, scale
