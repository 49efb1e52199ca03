"""Geometry of the measured model's vectors on the sentences of one evaluation file."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from captionbert.probes.geometry import geometry
from captionbert.probes.scored_pairs import ScoredPairs

# Enough for a stable spectrum at 768 coordinates, few enough to be a small part of an evaluation.
MOST_SENTENCES = 4096


def geometry_block(encode: Callable[[list[str]], np.ndarray], pairs: ScoredPairs) -> dict[str, Any] | None:
    """Effective rank beside the simplex CV, and self-cosine, of the file's distinct sentences.

    Args:
        encode: texts to vectors [N, E].
        pairs: the file whose sentences are used; at most `MOST_SENTENCES`, in file order.

    Returns:
        The gauges, the file and `line`, the sentence a person reads; None under 5 sentences (no simplex).
    """
    texts = list(dict.fromkeys(pairs.first + pairs.second))[:MOST_SENTENCES]
    if len(texts) < 5:
        return None
    gauges = geometry(encode(texts))
    return {"file": pairs.path.name, **asdict(gauges), "line": f"geometry on {pairs.path.name}: {gauges}"}
