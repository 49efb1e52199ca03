"""What an exported student has learnt, measured on captions it was not trained on; and sentences to look at.

Mimicry (how near the student comes to its targets) and capability (STS) are separate blocks with separate
names. The geometry of student and targets is taken on the same held-out rows.

Shapes: N held-out captions, E embedding.
"""

import os
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from captionbert.artifacts.errors import InputError
from captionbert.consensus.captions import Corpus
from captionbert.consensus.targets import Targets
from captionbert.distill.vectors import nearest_pairs
from captionbert.export.load import load_encoder
from captionbert.probes.geometry import geometry, retrieval, target_cosine, variety

MOST_ROWS = 2000
SENTENCES = (
    "A man is playing a guitar on a stage.",
    "Someone plays music for a crowd.",
    "A dog runs along the beach.",
    "A puppy is running on the sand.",
    "Two children build a snowman in the garden.",
    "The kids are playing in the snow.",
    "A woman is slicing carrots in the kitchen.",
    "A chef prepares vegetables.",
    "The train leaves the station at night.",
    "A boat is tied to the dock.",
)


def held_out_gauges(folder: Path, corpus: Corpus, targets: Targets) -> dict[str, Any]:
    """Target cosine, mimicry with the variety of its queries, and geometry, on up to 2,000 held-out captions.

    Returns:
        {"rows", "target_cosine" (-1..1), "mimicry", "geometry": {"student", "targets"}, "lines": text}.
    """
    rows = np.flatnonzero(corpus.held_out)[:MOST_ROWS]
    if len(rows) < 5:
        return {
            "rows": len(rows),
            "lines": [f"held out: {len(rows)} captions, too few for a gauge (5 are needed)"],
        }
    texts = corpus.texts(rows)
    model, tokenizer = load_encoder(folder)
    student, target = model.encode(texts, tokenizer), targets.vectors(rows)  # [N, E] each
    cosine, own, theirs = target_cosine(student, target), geometry(student), geometry(target)
    mimicry = retrieval(student, target, variety(texts, student))
    lines = [f"held-out captions: {len(rows)}", f"target cosine: {cosine:.4f}", *str(mimicry).split("\n")]
    lines += [f"geometry of the student: {own}", f"geometry of the targets: {theirs}"]
    return {
        "rows": len(rows),
        "target_cosine": cosine,
        "mimicry": asdict(mimicry),
        "geometry": {"student": own.as_dict(), "targets": theirs.as_dict()},
        "lines": lines,
    }


def sts_scores(folder: Path, data: Path | None) -> dict[str, Any]:
    """The STS tasks from `data`, or from the network where there is one; else why they were skipped."""
    reason = None if data is not None else _offline_reason()
    if reason is None:
        from captionbert.evaluation.sts import evaluate, render

        try:
            result = evaluate(folder, data=data)
            return {**result, "lines": render(result).split("\n")}
        except InputError as error:
            if data is not None:
                raise
            reason = str(error)
    return {"skipped": reason, "lines": [f"STS: skipped ({reason}; --data DIR evaluates from files)"]}


def _offline_reason() -> str | None:
    """Why the tasks cannot be fetched, or None where the hub answers."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(name, "0").upper() not in ("0", "", "OFF", "NO", "FALSE"):
            return f"{name} is set"
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    try:
        # Three seconds settle it; the library itself would retry for minutes.
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname or "", port), timeout=3).close()
    except OSError as error:
        return f"no network: {error}"
    return None


def look(folder: Path, count: int = 8) -> dict[str, Any]:
    """The nearest pairs among a handful of sentences, and the farthest one for scale."""
    model, tokenizer = load_encoder(folder)
    pairs = nearest_pairs(model.encode(list(SENTENCES), tokenizer), count=len(SENTENCES) ** 2)
    shown = [*pairs[:count], pairs[-1]]
    lines = [f"{cosine:+.3f}  {SENTENCES[i]}  |  {SENTENCES[j]}" for i, j, cosine in shown]
    return {
        "sentences": list(SENTENCES),
        "pairs": [{"first": i, "second": j, "cosine": cosine} for i, j, cosine in pairs],
        "lines": [
            "nearest pairs of a few sentences:",
            *lines[:-1],
            f"the farthest pair, for scale:\n{lines[-1]}",
        ],
    }
