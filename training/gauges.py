"""What is measured while training, and the files it goes to.

    checkpoints/metrics.json   the curve: target cosine, effective rank with CV, dev Spearman, held-out loss terms
    checkpoints/metrics.jsonl  a line each `log_every` steps: loss, learning rate, gradient norm
    checkpoints/timing.jsonl   sentences a second and the like: the only file that holds a clock

metrics.json and metrics.jsonl are bit-identical for a run that was killed and resumed: they hold no clock,
and lines past the checkpoint that a run resumes from are dropped.

Legend: n rows, E width of a vector.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import publish_file, write_json
from captionbert.probes.geometry import geometry, target_cosine
from captionbert.probes.scored_pairs import pair_spearman
from captionbert.probes.word_records import LookupTargets
from captionbert.recipes import LossSection
from captionbert.training.losses import OPTIONAL, sentence_terms, term_names

METRICS_KIND = "training-metrics"
_LEAST_ROWS = 8  # fewer rows have no meaningful spectrum
_MOST_ROWS = 4096  # of the held-out loss terms, which compare all pairs: a matrix of them is 64 MiB


@dataclass(frozen=True)
class Validation:
    """What each evaluation reads: held-out captions as ids, their targets [n, E], dev pairs if any."""

    ids: list[list[int]]
    targets: np.ndarray
    pair_ids: list[list[int]]  # first sentences, then second sentences
    scores: np.ndarray | None
    lookups: LookupTargets | None = None  # of `ids`, where a lookup loss is trained
    loss: LossSection | None = None  # its optional terms are measured too
    groups: np.ndarray | None = None  # text identity [n] of the captions; None: all differ


# Ids of n texts, and lookup queries if any, to float32 unit vectors [n, E] in order and how the queries were read.
Embed = Callable[[list[list[int]], LookupTargets | None], tuple[np.ndarray, dict[str, Any] | None]]


def evaluate(embed: Embed, validation: Validation, step: int) -> dict[str, Any]:
    """One point of the curve, after `step` updates."""
    vectors, lookup = embed(validation.ids, validation.lookups)  # [n, E]
    if not np.isfinite(vectors).all():
        raise InputError(f"step {step}: the student's vectors are not finite; lower schedule.learning_rate")
    point: dict[str, Any] = {"step": step, "target_cosine": target_cosine(vectors, validation.targets)}
    if len(vectors) >= _LEAST_ROWS:
        point["geometry"] = geometry(vectors).as_dict()
    if validation.scores is not None:
        point["dev_spearman"] = pair_spearman(embed(validation.pair_ids, None)[0], validation.scores)
    if lookup is not None:
        point["lookup"] = lookup
    if terms := held_out_terms(vectors, validation):
        point["terms"] = terms
    return point


def held_out_terms(vectors: np.ndarray, validation: Validation) -> dict[str, float]:
    """Similarity, ranking and matryoshka loss of the held-out captions as one batch, those that the recipe trains.

    Of more than 4,096 captions as many, spread evenly.

    Args:
        vectors: of the student, [n, E]. Their number is seldom that of a training batch, so matryoshka, which holds
            InfoNCE, is to be compared between evaluations and not with the training line.
    """
    loss = validation.loss
    wanted = [name for name in term_names(loss) if name in OPTIONAL] if loss else []
    if loss is None or not wanted:
        return {}
    groups = np.arange(len(vectors)) if validation.groups is None else validation.groups
    some = np.linspace(0, len(vectors) - 1, min(len(vectors), _MOST_ROWS)).astype(np.int64)
    student, target, texts = (torch.from_numpy(x[some]) for x in (vectors, validation.targets, groups))
    found = sentence_terms(student, target, texts, loss)
    return {name: float(found[name]) for name in wanted}


def best_value(point: dict[str, Any]) -> tuple[str, float]:
    """The gauge that `best` goes by, and its value: dev Spearman if there are pairs, else target cosine."""
    name = "dev_spearman" if "dev_spearman" in point else "target_cosine"
    return name, point[name]


def describe(point: dict[str, Any]) -> str:
    """One line for the terminal."""
    line = f"step {point['step']}: target cosine {point['target_cosine']:.4f}"
    if "geometry" in point:
        g = point["geometry"]
        line += f", effective rank {g['effective_rank']:.1f} (CV {g['cv']:.3f}, random {g['cv_random']:.3f})"
    if "dev_spearman" in point:
        line += f", dev Spearman {point['dev_spearman']:.4f}"
    if "lookup" in point:
        lookup = point["lookup"]
        line += f", lookup {lookup['top_one']:.1%} of {lookup['queries']} (probability {lookup['probability']:.3f})"
    for name, value in point.get("terms", {}).items():
        line += f", {name} {value:.4f}"
    return line


class MetricsFiles:
    """The three files of a run's measurements, in its `checkpoints/` folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines, self.timing, self.curve = (
            folder / n for n in ("metrics.jsonl", "timing.jsonl", "metrics.json")
        )

    def start(self, step: int) -> None:
        """Drop the lines of `metrics.jsonl` that are past `step` or were cut off by a kill."""
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = [line for line in self._whole_lines() if json.loads(line)["step"] <= step]
        with publish_file(self.lines) as temporary:
            temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")

    def _whole_lines(self) -> list[str]:
        if not self.lines.is_file():
            return []
        *lines, _torn = self.lines.read_text(encoding="utf-8").split("\n")
        return lines

    def log(self, values: dict[str, Any], timing: dict[str, Any]) -> None:
        """Append one line of measurements and one of timing."""
        for path, row in ((self.lines, values), (self.timing, timing)):
            with open(path, "a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")

    def sync(self) -> None:
        """Bring the lines to the disk: a checkpoint must not be newer than the lines before it."""
        if self.lines.is_file():
            with open(self.lines, "rb") as stream:
                os.fsync(stream.fileno())

    def write_curve(self, curve: list[dict[str, Any]], best: dict[str, Any] | None) -> None:
        """Write metrics.json."""
        write_json(self.curve, {"kind": METRICS_KIND, "curve": curve, "best": best})
