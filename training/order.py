"""The data order as a pure function: which rows a step sees, which of them a process takes, how they are
packed.

Nothing here has state. An epoch is a permutation of the training rows by a small Feistel network whose keys
come from (seed, epoch), so a step's rows cost O(batch) at any corpus size and a resumed run needs only its
step number. The ragged end of an epoch is dropped. The number of processes slices the global batch and
changes nothing else.

Legend: N training rows, B rows of the global batch, b rows of one process.
"""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from captionbert.artifacts.errors import InputError

_ROUNDS = 6


def _mix(values: np.ndarray) -> np.ndarray:
    """The 64-bit finaliser of splitmix64: each input bit reaches each output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _round_keys(seed: int, epoch: int) -> np.ndarray:
    digest = hashlib.sha512(f"captionbert order {seed} {epoch}".encode()).digest()
    return np.frombuffer(digest, dtype="<u8")[:_ROUNDS].astype(np.uint64)


def _feistel(values: np.ndarray, half_bits: int, keys: np.ndarray) -> np.ndarray:
    """A bijection of [0, 4^half_bits) onto itself."""
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & mask)
    return (left << shift) | right


def permuted(positions: np.ndarray, *, size: int, seed: int, epoch: int) -> np.ndarray:
    """Where `positions` [n] of the epoch's sequence point in 0..size-1; a permutation over all positions.

    Values that leave [0, size) are walked along their cycle until they return: at most four steps on average.
    """
    half_bits = max(1, (int(size - 1).bit_length() + 1) // 2)
    keys = _round_keys(seed, epoch)
    values = _feistel(positions.astype(np.uint64), half_bits, keys)
    while (outside := values >= np.uint64(size)).any():
        values[outside] = _feistel(values[outside], half_bits, keys)
    return values.astype(np.int64)


@dataclass(frozen=True)
class Plan:
    """The whole run's order: `rows` training rows in batches of `batch_size`, `steps` of them, by `seed`.

    Raises:
        InputError: fewer rows than one batch, or no step at all.
    """

    rows: int
    batch_size: int
    seed: int
    steps: int

    def __post_init__(self) -> None:
        if self.batch_size < 2:
            raise InputError(
                f"schedule.batch_size is {self.batch_size}; a contrastive loss needs at least 2 rows"
            )
        if self.rows < self.batch_size:
            raise InputError(
                f"the corpus has {self.rows} training rows, fewer than one batch of {self.batch_size}; "
                f"add captions or lower schedule.batch_size to {max(self.rows, 2)} or less"
            )
        if self.steps < 1:
            raise InputError(f"the schedule has {self.steps} steps; at least 1 is needed")

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the rows."""
        return self.rows // self.batch_size

    def epoch(self, step: int) -> int:
        """The pass, from 0, that `step` (from 0) belongs to."""
        return step // self.steps_per_epoch

    def positions(self, step: int) -> np.ndarray:
        """Positions among the training rows of the global batch of `step`, int64 [B], no row twice."""
        if not 0 <= step < self.steps:
            raise ValueError(f"step {step} is outside 0..{self.steps - 1}")
        first = (step % self.steps_per_epoch) * self.batch_size
        sequence = np.arange(first, first + self.batch_size)  # [B]
        return permuted(sequence, size=self.rows, seed=self.seed, epoch=self.epoch(step))  # [B]

    def describe(self) -> dict[str, Any]:
        """The plan as plain values, for the identity of a run."""
        return asdict(self)


def steps_of_epochs(rows: int, batch_size: int, epochs: float) -> int:
    """Steps of `epochs` passes, each without its ragged end."""
    return int(rows // batch_size * epochs)


def rank_slice(batch_size: int, rank: int, world: int) -> slice:
    """The part of a global batch that process `rank` of `world` takes.

    Raises:
        InputError: the batch does not divide by the number of processes.
    """
    if batch_size % world:
        raise InputError(
            f"schedule.batch_size {batch_size} does not divide by {world} processes; "
            f"use {batch_size - batch_size % world or world} or another number of processes"
        )
    share = batch_size // world
    return slice(rank * share, (rank + 1) * share)


def cut_by_tokens(lengths: np.ndarray, budget: int, *, padded: bool) -> list[np.ndarray]:
    """Indices of `lengths` [b], longest first, cut into runs of at most `budget` tokens.

    With `padded` a run costs rows x its longest caption, otherwise the sum of its lengths. A caption longer
    than the budget is a run of its own. Equal lengths keep their order, so the cut is a pure function of its
    arguments.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")  # [b]
    parts: list[np.ndarray] = []
    start, tokens = 0, 0
    for end, index in enumerate(order):
        cost = (end - start + 1) * int(lengths[order[start]]) if padded else tokens + int(lengths[index])
        if cost > budget and end > start:
            parts.append(order[start:end])
            start, tokens = end, 0
        tokens += int(lengths[index])
    parts.append(order[start:])
    return parts


def step_seed(seed: int, step: int) -> int:
    """A 63-bit seed for anything random inside one step: no generator state needs to be saved."""
    digest = hashlib.sha256(f"captionbert step {seed} {step}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
