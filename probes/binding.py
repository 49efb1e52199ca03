"""Binding: does a vector say which word belongs to which? Captions against copies with one thing changed.

A line of a file: {"caption": text, "same_image": [texts], "negative": text}; "type" is optional, else the file's name
is the type. Each text of same_image makes a triple, which is right when the caption's cosine to it is larger than the
negative's; a tie counts as a miss. A row counts once, whatever its number of triples: its share of right triples. The
accuracy is the mean over rows, so chance is 1/2. The interval is the 95 % percentile bootstrap over rows: the triples
of a row are no independent draws.

The control sees no order and no grammar: the cosine of word-count vectors (words: runs of letters and digits of the
lower-cased text), compared in whole numbers, so that a tie is a tie. Legend: n rows, E width.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import publish_file, sha256_file
from captionbert.consensus.encoder import Encoder
from captionbert.consensus.readers import is_text, json_rows
from captionbert.probes.compared import described, file_labels, table, vectors_of

FIELDS = ("caption", "same_image", "negative")
TIE = 1e-7  # cosines of fp32 vectors nearer than this are equal
CONTROL = "bag of words"
OVERALL = "overall"
CHANCE = 0.5
DRAWS = 2000
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class BindingRow:
    """One caption, what other people said of its image, and the changed copy; `line` of its file, from 1."""

    line: int
    type: str
    caption: str
    same_image: tuple[str, ...]
    negative: str


@dataclass(frozen=True)
class BindingFile:
    """The rows of a file in its order, and the digest of its bytes."""

    path: Path
    rows: list[BindingRow]
    sha256: str


@dataclass(frozen=True)
class BindingProbe:
    """The JSON report, and arrays: row shares by model beside file, line and type of each row."""

    report: dict[str, Any]
    arrays: dict[str, np.ndarray]


def read_binding(path: str | Path) -> BindingFile:
    """Read a file, gz or not.

    Raises:
        InputError: no such file, no row; a field is missing or is no text, a row whose negative or same_image repeats
            the caption, a type called "overall": named with its line.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected JSONL with {', '.join(FIELDS)}")
    type_of_file = path.name.removesuffix(".gz").removesuffix(".jsonl")
    rows = [_check_row(row, number, where, type_of_file) for number, where, row in json_rows(path)]
    if not rows:
        raise InputError(f"{path}: holds no row; expected JSONL with {', '.join(FIELDS)}")
    return BindingFile(path, rows, sha256_file(path))


def _check_row(row: Any, number: int, where: str, type_of_file: str) -> BindingRow:
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected a JSON object, found {type(row).__name__}")
    for field in FIELDS:
        if field not in row:
            raise InputError(f"{where}: field {field!r} is missing; expected the fields {', '.join(FIELDS)}")
    texts = row["same_image"]
    if not isinstance(texts, list) or not texts:
        raise InputError(
            f"{where}: field 'same_image' must be a list of one text or more, found {repr(texts)[:40]}"
        )
    kind = row.get("type", type_of_file)
    named = [("caption", row["caption"]), ("negative", row["negative"]), ("type", kind)]
    for field, value in named + [("same_image", text) for text in texts]:
        if not isinstance(value, str) or not value.strip() or not is_text(value):
            raise InputError(f"{where}: field {field!r} must be text, found {repr(value)[:40]}")
    if kind == OVERALL:
        raise InputError(
            f"{where}: {OVERALL!r} is the name of all types together; give the type another name"
        )
    if row["negative"] == row["caption"]:
        raise InputError(
            f"{where}: field 'negative' is the caption itself, which no model can tell apart; leave the row out"
        )
    if row["caption"] in texts:
        raise InputError(
            f"{where}: field 'same_image' holds the caption itself, which every model finds; leave that text out"
        )
    return BindingRow(number, kind, row["caption"], tuple(texts), row["negative"])


def right_by_vectors(encoder: Encoder, rows: Sequence[BindingRow]) -> np.ndarray:
    """Share of right triples of each row by an encoder: float64 [n], 0..1."""
    texts = list(dict.fromkeys(t for r in rows for t in (r.caption, r.negative, *r.same_image)))
    at = {text: i for i, text in enumerate(texts)}
    vectors = vectors_of(encoder, texts)  # [texts, E]
    shares = np.empty(len(rows))
    for number, row in enumerate(rows):
        difference = (vectors[at[row.caption]].astype(np.float64) - vectors[at[row.negative]]).T
        margins = vectors[[at[t] for t in row.same_image]].astype(np.float64) @ difference  # [triples]
        shares[number] = (margins > TIE).mean()
    return shares


def right_by_words(rows: Sequence[BindingRow]) -> np.ndarray:
    """Share of right triples of each row by the control: float64 [n], 0..1."""
    return np.array([np.mean([_nearer(r, other) for other in r.same_image]) for r in rows])


def _nearer(row: BindingRow, other: str) -> bool:
    """Whether the caption's words are nearer to the other's than the negative's are, in exact whole numbers."""
    caption, negative, words = (_counts(text) for text in (row.caption, row.negative, other))
    dot_c, dot_n = (sum(n * words[w] for w, n in side.items()) for side in (caption, negative))
    length_c, length_n = (sum(n * n for n in side.values()) for side in (caption, negative))
    # dot_c / sqrt(length_c) > dot_n / sqrt(length_n), both sides 0 or more
    return dot_c**2 * length_n > dot_n**2 * length_c


def _counts(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text.lower()))


def probe_binding(
    encoders: Sequence[Encoder], files: Sequence[BindingFile], *, seed: int = 0
) -> BindingProbe:
    """Measure every model and the control on the rows of all files.

    Args:
        seed: of the bootstrap.

    Raises:
        InputError: a model is called as the control is.
    """
    if CONTROL in [encoder.name for encoder in encoders]:
        raise InputError(f"{CONTROL!r} is the name of the control; rename the folder of this model")
    rows = [row for file in files for row in file.rows]
    labels = file_labels([f.path for f in files])
    types = list(dict.fromkeys(row.type for row in rows))
    shares = {encoder.name: right_by_vectors(encoder, rows) for encoder in encoders}
    shares[CONTROL] = right_by_words(rows)
    members = {kind: np.array([row.type == kind for row in rows]) for kind in types}
    scores = {
        name: {kind: _score(values[inside], seed) for kind, inside in members.items()}
        | {OVERALL: _score(values, seed)}
        for name, values in shares.items()
    }
    report = {
        "kind": "binding-probe",
        "files": {label: {"sha256": f.sha256, "rows": len(f.rows)} for label, f in zip(labels, files)},
        "triples": {kind: sum(len(r.same_image) for r in rows if r.type == kind) for kind in types},
        "chance": CHANCE,
        "interval": {"level": 0.95, "bootstrap_draws": DRAWS, "unit": "row", "seed": seed},
        "models": described(encoders),
        "accuracy": scores,
    }
    arrays = {
        "file_number": np.repeat(np.arange(len(files)), [len(f.rows) for f in files]),
        "line": np.array([row.line for row in rows]),
        "type": np.array([types.index(row.type) for row in rows]),
        "type_names": np.array(types),
        "names": np.array(list(shares)),
        "share_right": np.stack(list(shares.values())),  # [models and control, n]
    }
    return BindingProbe(report, arrays)


def _score(shares: np.ndarray, seed: int) -> dict[str, Any]:
    """Accuracy of some rows with its interval; `all_right`: rows whose every triple is right."""
    random = np.random.default_rng(seed)
    means = [shares[random.integers(0, len(shares), len(shares))].mean() for _ in range(DRAWS)]
    low, high = np.percentile(means, (2.5, 97.5))
    return {
        "rows": len(shares),
        "accuracy": float(shares.mean()),
        "low": float(low),
        "high": float(high),
        "all_right": float((shares == 1).mean()),
    }


def save_arrays(probe: BindingProbe, path: str | Path) -> None:
    """Write the arrays as .npz, whole or not at all."""
    arrays: dict[str, Any] = dict(probe.arrays)
    with publish_file(path) as temporary, open(temporary, "wb") as stream:
        np.savez_compressed(stream, **arrays)


def render(report: dict[str, Any]) -> str:
    """The report as a table: accuracy with its interval, and rows with all triples right."""
    kinds = list(next(iter(report["accuracy"].values())))
    head = ["accuracy [95 % interval] / all right", *kinds]
    rows = [
        [
            name,
            *(
                f"{s['accuracy']:.4f} [{s['low']:.3f}, {s['high']:.3f}] / {s['all_right']:.3f}"
                for s in scores.values()
            ),
        ]
        for name, scores in report["accuracy"].items()
    ]
    sizes = ", ".join(f"{kind} {report['accuracy'][CONTROL][kind]['rows']:,}" for kind in kinds)
    return "\n".join([*table(head, rows), f"chance {report['chance']:.2f}; rows: {sizes}; ties are misses"])
