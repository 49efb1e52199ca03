"""Sentence pairs with a similarity score (STS) from JSONL, and the Spearman correlation of cosines with the score.

A line of a file: {"sentence1": text, "sentence2": text, "score": number}. Pairs are measured, never trained on.

Legend: n pairs, E width of a vector.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import sha256_file
from captionbert.consensus.readers import is_text, json_rows

FIELDS = ("sentence1", "sentence2", "score")


@dataclass(frozen=True)
class ScoredPairs:
    """The n pairs of a file in its order, their scores, and the digest of the file's bytes."""

    path: Path
    first: list[str]
    second: list[str]
    scores: list[float]
    sha256: str


def read_pairs(path: str | Path) -> ScoredPairs:
    """Read a file, gz or not; blank lines are left out.

    Raises:
        InputError: no such file; not UTF-8, not JSON, a missing or ill-typed field (file and line are named); fewer
            than two distinct scores (a rank correlation would be undefined).
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected JSONL with {', '.join(FIELDS)}")
    rows = [_check_row(row, where) for _, where, row in json_rows(path)]
    first, second, scores = [list(column) for column in zip(*rows)] if rows else ([], [], [])
    if len(set(scores)) < 2:
        raise InputError(
            f"{path}: {len(rows)} pairs with {len(set(scores))} distinct scores; a rank needs two or more"
        )
    return ScoredPairs(path, first, second, scores, sha256_file(path))


def _check_row(row: Any, where: str) -> tuple[str, str, float]:
    """The three fields of one row, or an InputError that names the file, the line and the field."""
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected a JSON object, found {type(row).__name__}")
    for field in FIELDS:
        if field not in row:
            raise InputError(f"{where}: field {field!r} is missing; expected the fields {', '.join(FIELDS)}")
    for field in FIELDS[:2]:
        if not isinstance(row[field], str):
            raise InputError(f"{where}: field {field!r} must be text, found {type(row[field]).__name__}")
        if not is_text(row[field]):
            raise InputError(f"{where}: field {field!r} holds half a surrogate pair, which is no text")
    score = row["score"]
    if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) <= sys.float_info.max:
        raise InputError(f"{where}: field 'score' must be a finite number, found {repr(score)[:30]}")
    return row["sentence1"], row["sentence2"], float(score)


def pair_spearman(vectors: np.ndarray, scores: np.ndarray | list[float]) -> float:
    """Spearman of cosine with score; `vectors` [2n, E]: all first sentences, then all second."""
    from scipy.stats import spearmanr

    cosine = (vectors[: len(scores)] * vectors[len(scores) :]).sum(axis=1)
    if np.ptp(cosine) == 0 or np.ptp(scores) == 0:
        return 0.0  # a constant side has no order
    value = float(spearmanr(cosine, scores).statistic)
    return value if np.isfinite(value) else 0.0
