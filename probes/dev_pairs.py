"""Sentence pairs with a similarity score (STS-B dev) and the Spearman correlation of cosines with it.

Legend: n pairs, E width of a vector.
"""

import gzip
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from captionbert.artifacts.errors import InputError


@dataclass(frozen=True)
class DevPairs:
    """Sentence pairs with a similarity score each, only ever measured, never trained on."""

    first: list[str]
    second: list[str]
    scores: np.ndarray  # [n]


def read_dev_pairs(path: str | Path) -> DevPairs:
    """Pairs from JSONL (gz allowed) with sentence1, sentence2, score.

    Raises:
        InputError: the file is missing, or a line is not such an object; the line is named.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"dev pairs {path}: no such file; expected JSONL with sentence1, sentence2, score")
    first, second, scores = [], [], []
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    with io.StringIO(content.decode("utf-8")) as stream:
        for number, line in enumerate(stream, 1):
            try:
                row = json.loads(line)
                first.append(str(row["sentence1"]))
                second.append(str(row["sentence2"]))
                scores.append(float(row["score"]))
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{path}, line {number}: expected an object with sentence1, sentence2 and score "
                    f"({error!r})"
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
