"""What a step reads: captions of this process as token ids, targets and text groups of the whole batch.

Loading is a pure function of the step, so the next one is prepared in a background thread without harm.

Legend: N corpus rows, B rows of the global batch, b of this process, E width of a target.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from captionbert.artifacts.errors import InputError
from captionbert.probes.coverage import nothing_to_look_up
from captionbert.probes.word_records import FindLookups, LookupTargets
from captionbert.training.order import Plan

_SCAN_ROWS = 4096
Tokenize = Callable[[list[str]], list[list[int]]]


class Captions(Protocol):
    """The part of a corpus that training reads (consensus.captions.Corpus)."""

    def texts(self, rows: np.ndarray) -> list[str]:
        """Captions of corpus rows [n]."""

    @property
    def sources(self) -> list[tuple[str, int, int]]:
        """Name, first row and row after the last of each source; the rows of one lie together."""

    @property
    def groups(self) -> np.ndarray:
        """Text identity of each row, int64 [N]: equal numbers, equal text."""

    @property
    def held_out(self) -> np.ndarray:
        """Rows kept for validation, bool [N]."""


class TargetVectors(Protocol):
    """The part of consensus targets that training reads (consensus.targets.Targets)."""

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Unit targets of corpus rows, float32 [n, E]."""


@dataclass(frozen=True)
class StepBatch:
    """One step's data: `ids` of this process's b captions, their places among the B, targets, groups, word records."""

    ids: list[list[int]]
    own: Tensor  # [b]
    targets: Tensor  # [B, E]
    groups: Tensor  # [B]
    lookups: LookupTargets | None = None  # of `ids`; None where the recipe has no lookup loss

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each caption of this process, int64 [b]."""
        return np.asarray([len(row) for row in self.ids], dtype=np.int64)


def split_rows(
    captions: Captions, limit: int | None, shares: Mapping[str, float] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Training rows (the first `limit`, None for all) and held-out rows, int64 corpus row numbers.

    Args:
        shares: of each source's training rows, by its name, spread evenly over it; none or empty: all rows of all.
            Held-out rows are those of every source whatever the shares, so that runs can be compared.

    Raises:
        InputError: nothing is held out, fewer training rows than `limit`, a source that the corpus has not, or one
            without training rows.
    """
    held_out = np.asarray(captions.held_out)
    training, validation = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    if not len(validation):
        raise InputError(
            "the corpus holds out no caption, so training could not be judged; prepare it with held-out rows"
        )
    if shares:
        training = _of_sources(training, captions, shares)
    if limit is not None and len(training) < limit:
        raise InputError(
            f"data.rows asks for {limit} training captions, the corpus has {len(training)}; lower it"
        )
    return training[:limit], validation


def _of_sources(rows: np.ndarray, captions: Captions, shares: Mapping[str, float]) -> np.ndarray:
    """Of ascending corpus rows [n] the given share of each named source's, spread evenly; at least one of each."""
    known = [name for name, _, _ in captions.sources]
    if unknown := sorted(set(shares) - set(known)):
        raise InputError(f"data.sources names {unknown}; the corpus has {', '.join(sorted(set(known)))}")
    parts: list[np.ndarray] = []
    given: set[str] = set()
    for name, first, stop in captions.sources:
        own = rows[np.searchsorted(rows, first) : np.searchsorted(rows, stop)]
        if name in shares and len(own):
            count = max(1, round(len(own) * shares[name]))
            parts.append(own[np.linspace(0, len(own) - 1, count).astype(np.int64)])
            given.add(name)
    if bare := sorted(set(shares) - given):
        raise InputError(
            f"data.sources names {bare}, of which no caption is trained on: each stands in a source before it (they "
            "are read in the order of their names) or is held out; leave the name out"
        )
    return np.concatenate(parts)


def check_lookups(captions: Captions, rows: np.ndarray, tokenize: Tokenize, find: FindLookups) -> None:
    """Refuse a lookup loss that has nothing to look up; captions are read only until one has.

    Raises:
        InputError: none of the corpus rows [n] repeats an eligible word.
    """
    for start in range(0, len(rows), _SCAN_ROWS):
        ids = tokenize(captions.texts(rows[start : start + _SCAN_ROWS]))
        if len(find(ids)):
            return
    raise nothing_to_look_up("loss.lookup_weight", len(rows))


class Loader:
    """Loads the batch of any step.

    Args:
        captions, targets, tokenize: the sources.
        rows: corpus row of each training position, int64.
        plan: the order; share: this process's part of a global batch.
        find: repeated words and their records, for the lookup loss; None looks for none.
    """

    def __init__(
        self,
        captions: Captions,
        targets: TargetVectors,
        tokenize: Tokenize,
        rows: np.ndarray,
        plan: Plan,
        share: slice,
        find: FindLookups | None = None,
    ) -> None:
        self.find = find
        self.captions, self.targets, self.tokenize = captions, targets, tokenize
        self.rows, self.plan, self.share = rows, plan, share
        self.groups = np.asarray(captions.groups)

    def load(self, step: int) -> StepBatch:
        """The batch of `step`: a pure function of the step."""
        rows = self.rows[self.plan.positions(step)]  # [B]
        targets = self.targets.vectors(rows)  # [B, E]
        if not np.isfinite(targets).all():
            bad = int(rows[np.flatnonzero(~np.isfinite(targets).all(axis=1))[0]])
            raise InputError(
                f"step {step}: the target of caption {bad} is not finite; build the targets again"
            )
        ids = self.tokenize(self.captions.texts(rows[self.share]))
        return StepBatch(
            ids=ids,
            own=torch.arange(len(rows))[self.share],
            targets=torch.from_numpy(np.ascontiguousarray(targets, dtype=np.float32)),
            groups=torch.from_numpy(self.groups[rows]),
            lookups=self.find(ids) if self.find else None,
        )

    def ahead(self, first: int, stop: int) -> Iterator[StepBatch]:
        """Batches of steps first..stop-1 in order, the next one prepared while the caller uses this one."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="captionbert-loader") as pool:
            pending = pool.submit(self.load, first) if first < stop else None
            for step in range(first, stop):
                assert pending is not None
                batch = pending.result()
                pending = pool.submit(self.load, step + 1) if step + 1 < stop else None
                yield batch
