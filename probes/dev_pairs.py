"""Sentence pairs with a similarity score (STS-B dev) and the Spearman correlation of cosines with it.

Legend: n pairs, E width of a vector.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from captionbert.artifacts.errors import InputError
from captionbert.consensus.readers import text_lines


@dataclass(frozen=True)
class DevPairs:
    """Sentence pairs with a similarity score each, only ever measured, never trained on."""

    first: list[str]
    second: list[str]
    scores: np.ndarray  # [n]


def read_dev_pairs(path: str | Path) -> DevPairs:
    """Pairs from JSONL (gz allowed) with sentence1, sentence2, score.

    Raises:
        InputError: the file is missing, or a line is not UTF-8 or not such an object; the line is named.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"dev pairs {path}: no such file; expected JSONL with sentence1, sentence2, score")
    first, second, scores = [], [], []
    for number, _, line in text_lines(path):
        try:
            row = json.loads(line)
            first.append(str(row["sentence1"]))
            second.append(str(row["sentence2"]))
            scores.append(float(row["score"]))
            if not np.isfinite(scores[-1]):
                raise ValueError(f"the score is {scores[-1]}")
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}, line {number}: expected an object with sentence1, sentence2 and score ({error!r})"
            ) from None
    if len(scores) < 2:
        raise InputError(f"{path}: {len(scores)} pairs; a rank correlation needs at least 2")
    return DevPairs(first, second, np.asarray(scores))


def pair_spearman(vectors: np.ndarray, scores: np.ndarray) -> float:
    """Spearman of cosine with score; `vectors` [2n, E]: all first sentences, then all second."""
    from scipy.stats import spearmanr

    cosine = (vectors[: len(scores)] * vectors[len(scores) :]).sum(axis=1)
    value = float(spearmanr(cosine, scores).statistic)
    return value if np.isfinite(value) else 0.0  # a constant side has no order
