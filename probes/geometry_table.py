"""Geometry of several models on the same captions: effective rank, always beside the simplex CV, and self-cosine."""

from collections.abc import Sequence
from typing import Any

from captionbert.artifacts.errors import InputError
from captionbert.consensus.encoder import Encoder
from captionbert.probes.compared import described, file_labels, table, vectors_of
from captionbert.probes.geometry import geometry
from captionbert.probes.texts import Sample

LEAST_ROWS = 5  # a simplex has five corners


def probe_geometry(
    encoders: Sequence[Encoder], samples: dict[str, Sample], *, seed: int = 0
) -> dict[str, Any]:
    """The JSON report: `geometry` of every model on the rows of every file, the same rows for all.

    Args:
        samples: by the word that names the file.
        seed: of the simplices.

    Raises:
        InputError: fewer than five distinct captions of a file.
    """
    blocks: dict[str, Any] = {}
    for label, (word, sample) in zip(file_labels(list(samples)), samples.items()):
        texts = list(dict.fromkeys(sample.texts))
        if len(texts) < LEAST_ROWS:
            raise InputError(f"{word}: {len(texts)} distinct captions; {LEAST_ROWS} or more are needed")
        blocks[label] = {
            **sample.as_dict(),
            "distinct": len(texts),
            "geometry": {e.name: geometry(vectors_of(e, texts), seed=seed).as_dict() for e in encoders},
        }
    return {"kind": "geometry-probe", "models": described(encoders), "seed": seed, "files": blocks}


def render(report: dict[str, Any]) -> str:
    """The report as a table for each file."""
    lines = []
    for word, block in report["files"].items():
        rows = [
            [
                name,
                f"{g['effective_rank']:.1f} of {g['width']}",
                f"{g['cv']:.3f}",
                f"{g['cv_random']:.3f}",
                f"{g['self_cosine']:+.3f}",
            ]
            for name, g in block["geometry"].items()
        ]
        lines.append(
            f"{word}: {block['distinct']:,} distinct captions of {block['of']:,} (seed {block['seed']})"
        )
        lines += table(["model", "effective rank", "CV", "CV of random unit vectors", "self-cosine"], rows)
    return "\n".join(lines)
