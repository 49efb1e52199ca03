"""Which rows a map is fitted to and which it is scored on: stratified by chunk and caption length, seeded.

A stratum is one chunk of the corpus (a run of rows, one shard) crossed with one quarter of the caption
lengths. Both samples take from each stratum in proportion to its size. Only the first of equal captions is
eligible, so the two samples share neither a row nor a text; rows held out of training are never fitted.
Legend: N corpus rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from captionbert.artifacts.errors import InputError
from captionbert.consensus.captions import Corpus

LENGTH_BINS = 4
SCORE_ROWS = 4000


@dataclass(frozen=True)
class Sample:
    """Sorted row ids of the two samples, and how they were drawn (for the report)."""

    fit: np.ndarray
    score: np.ndarray
    how: dict[str, Any]


def apportion(sizes: np.ndarray, total: int) -> np.ndarray:
    """Split `total` over strata of these sizes by largest remainder: int64, at most what a stratum holds."""
    exact = sizes * (total / max(int(sizes.sum()), 1))
    shares = np.floor(exact).astype(np.int64)
    rest = total - int(shares.sum())
    shares[np.argsort(-(exact - shares), kind="stable")[:rest]] += 1
    return np.minimum(shares, sizes)


def eligible_rows(corpus: Corpus) -> np.ndarray:
    """int64 [eligible]: rows that may be sampled, the first of equal captions and none held out."""
    groups, held = corpus.groups, corpus.held_out
    return np.flatnonzero((groups == np.arange(corpus.rows)) & ~held[groups])


def sample_sizes(eligible: int, fit_rows: int) -> tuple[int, int]:
    """(rows of the fit, rows of the score) for so many eligible rows when `fit_rows` are asked for."""
    score = min(SCORE_ROWS, eligible // 5)
    return min(fit_rows, eligible - score), score


def captions_for(fit_rows: int) -> int:
    """The fewest eligible rows of which `sample_sizes` leaves so many for the fit."""
    return fit_rows + min(SCORE_ROWS, (fit_rows - 1) // 4)


def stratified_sample(corpus: Corpus, *, fit_rows: int, chunk_rows: int, seed: int = 0) -> Sample:
    """Draw the rows of the fit (at most `fit_rows`) and of the score (at most 4,000 or a fifth).

    Where the corpus has fewer rows the fit takes what is left beside the score; `how` says what was asked.

    Raises:
        InputError: fewer than 10 distinct captions outside the held-out part.
    """
    eligible = eligible_rows(corpus)
    if len(eligible) < 10 or fit_rows < 1:
        raise InputError(
            f"{corpus.folder}: {len(eligible)} distinct captions outside the held-out part, asked for "
            f"{fit_rows} fit rows; at least 10 captions and 1 fit row are needed"
        )
    fit_total, score_total = sample_sizes(len(eligible), fit_rows)
    strata = _strata(corpus.character_lengths()[eligible], eligible // chunk_rows)
    order, place, sizes = _shuffled_places(strata, seed)
    both = apportion(sizes, fit_total + score_total)
    for_fit = apportion(both, fit_total)
    stratum = strata[order]
    rows = eligible[order]
    fit = np.sort(rows[place < for_fit[stratum]])
    score = np.sort(rows[(place >= for_fit[stratum]) & (place < both[stratum])])
    how = {
        "asked": fit_rows,
        "fit_rows": len(fit),
        "score_rows": len(score),
        "eligible": len(eligible),
        "strata": int((sizes > 0).sum()),
        "chunk_rows": chunk_rows,
        "length_bins": LENGTH_BINS,
        "seed": seed,
    }
    return Sample(fit, score, how)


def _strata(lengths: np.ndarray, chunks: np.ndarray) -> np.ndarray:
    """int64 [eligible]: dense stratum numbers of (chunk, length quarter)."""
    edges = np.quantile(lengths, np.linspace(0, 1, LENGTH_BINS + 1)[1:-1])
    _, strata = np.unique(chunks * LENGTH_BINS + np.searchsorted(edges, lengths), return_inverse=True)
    return strata


def _shuffled_places(strata: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows sorted by stratum, random inside it; place of each of them in its stratum; stratum sizes)."""
    random = np.random.default_rng(seed).random(len(strata))
    order = np.lexsort((random, strata))
    sizes = np.bincount(strata)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return order, np.arange(len(strata)) - starts[strata[order]], sizes
