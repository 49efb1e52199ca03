"""What the probes that set several models beside each other share: texts encoded once, what a report says of a model.

Legend: n texts, E width of a model's vectors.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from captionbert.artifacts.progress import progress
from captionbert.consensus.encoder import Encoder

WINDOW = 2048  # texts given to a model at a time, between two steps of the bar


def vectors_of(encoder: Encoder, texts: Sequence[str], *, window: int = WINDOW) -> np.ndarray:
    """float32 [n, E], unit rows; equal texts are encoded once, so their vectors are equal bit for bit."""
    distinct = list(dict.fromkeys(texts))
    place = {text: i for i, text in enumerate(distinct)}
    found = np.empty((len(distinct), encoder.width), dtype=np.float32)
    with progress(total=len(distinct), desc=encoder.name, unit="text") as bar:
        for start in range(0, len(distinct), window):
            part = distinct[start : start + window]
            found[start : start + len(part)] = encoder.encode(part)
            bar.update(len(part))
    return found[[place[text] for text in texts]]


def described(encoders: Sequence[Encoder]) -> dict[str, dict[str, Any]]:
    """The facts of each model, by name."""
    return {encoder.name: dict(encoder.facts) for encoder in encoders}


def file_labels(paths: Sequence[str | Path]) -> list[str]:
    """The name of each file; its whole path as given where two have one name."""
    names = [Path(path).resolve().name for path in paths]
    return [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return [
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths)))
        for row in (head, *rows)
    ]
