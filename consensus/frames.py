"""The frame of a consensus: the reference's coordinates and a map from each other teacher into them.

    target(row) = normalise(sum over teachers of w * normalise(map(x)))      the reference enters as itself

The weights w are all 1 unless given. The frame id is the digest of the reference's fingerprint, of every map and of
unequal weights: targets of another frame are other targets. Written as DIR/frame/{frame.json, maps.safetensors}.
Legend: n rows of a block, d width of a teacher, E of the reference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import (
    digest_json,
    publish_folder,
    read_json,
    sha256_bytes,
    verify_folder,
    write_json,
)
from captionbert.consensus.alignment import (
    DROP,
    RIDGE,
    WhitenedMap,
    alignment_report,
    check_ratio,
    constant_score,
    fit_map,
    in_sample_score,
    score_map,
    shuffled_score,
)
from captionbert.consensus.captions import Corpus
from captionbert.consensus.sampling import Sample, stratified_sample
from captionbert.consensus.shards import ShardSet

FRAME_KIND, VERSION = "consensus-frame", 1
LEAST_WEIGHT = 1e-6  # of the heaviest teacher's; fp16 targets cannot show less
_FITTED = ("matrix", "mean_in", "mean_out", "singular_values")


@dataclass(frozen=True)
class Frame:
    """A fitted frame.

    Attributes:
        frame_id: 64 hex digits. reference: name. teachers: names in order, the reference among them.
        width: E. maps: by name, the reference has none. fit_rows, score_rows: int64, sorted.
        table: alignment report by name. info: frame.json.
        weights: of each teacher in the mean, see `relative_weights`; None: equal.
    """

    frame_id: str
    reference: str
    teachers: list[str]
    width: int
    maps: dict[str, WhitenedMap]
    fit_rows: np.ndarray
    score_rows: np.ndarray
    table: dict[str, Any]
    info: dict[str, Any]
    weights: dict[str, float] | None = None

    def mapped(self, name: str, x: np.ndarray) -> np.ndarray:
        """Vectors x [n, d] of a teacher in the frame, float64 [n, E]; the reference's come back unchanged."""
        return x.astype(np.float64) if name == self.reference else self.maps[name](x)

    def consensus(self, vectors: dict[str, np.ndarray]) -> np.ndarray:
        """Unit targets float64 [n, E] from every teacher's vectors [n, d] of the same rows.

        Raises:
            InputError: a teacher is missing (a smaller mean is another target), or a row has no direction.
        """
        if set(vectors) != set(self.teachers):
            raise InputError(f"the consensus needs vectors of {self.teachers}, found {sorted(vectors)}")
        weights = self.weights or dict.fromkeys(self.teachers, 1.0)  # times 1 changes no bit
        total = sum(
            weights[name] * _unit_rows(self.mapped(name, vectors[name]), name) for name in self.teachers
        )
        return _unit_rows(np.asarray(total), "consensus")


def _unit_rows(x: np.ndarray, who: str) -> np.ndarray:
    norms = np.linalg.norm(x, axis=1, keepdims=True)  # [n, 1]
    if norms.min() < 1e-8:
        raise InputError(
            f"{who}: the vector of place {int(norms.argmin())} in its block has length 0, so no direction"
        )
    return x / norms


def relative_weights(weights: Mapping[str, float] | None, teachers: Sequence[str]) -> dict[str, float] | None:
    """Weights of all `teachers` relative to the largest, which is 1; None where all are equal, as without weights.

    Args:
        weights: by name, positive, of any magnitude; a teacher that is not named weighs 1.

    Raises:
        InputError: a name that is no teacher's, a weight that is not a positive number, or one under a millionth of
            the largest.
    """
    given = dict(weights or {})
    for name, weight in given.items():
        if name not in teachers:
            raise InputError(f"--weights: {name!r} is not among the teachers {list(teachers)}")
        if not (math.isfinite(weight) and weight > 0):
            raise InputError(
                f"--weights: {name}={weight:g}; expected a positive number (leave a teacher out of --teachers to do "
                "without it)"
            )
    # Of the decimals as written: .2 and .1 are the frame of 2 and 1, which their binary quotients need not be.
    exact = {name: Fraction(repr(float(given.get(name, 1.0)))) for name in teachers}
    largest = max(exact.values())
    found = {name: float(weight / largest) for name, weight in exact.items()}
    if light := [name for name, weight in found.items() if weight < LEAST_WEIGHT]:
        raise InputError(
            f"--weights: {light[0]} weighs less than {LEAST_WEIGHT:g} of the heaviest, so its vectors would be as good "
            "as left out; leave it out of --teachers"
        )
    return None if len(set(found.values())) == 1 else found


def _kept_weights(folder: Path, teachers: Sequence[str]) -> dict[str, float] | None:
    """The weights of the frame in `folder`, None where they are equal or there is no frame yet.

    Raises:
        InputError: they are of other teachers than `teachers`.
    """
    if not (folder / "frame.json").is_file():
        return None
    kept: dict[str, float] | None = read_json(folder / "frame.json", kind=FRAME_KIND).get("weights")
    if kept is not None and set(kept) != set(teachers):
        weighed = ", ".join(f"{name}={weight:g}" for name, weight in kept.items())
        raise InputError(
            f"{folder}: weighs {weighed}, the teachers are now {', '.join(teachers)}; give --weights "
            f"({teachers[0]}=1 alone: all equal)"
        )
    return kept


def open_teachers(out: Path, info: dict[str, Any], corpus: Corpus) -> dict[str, ShardSet]:
    """The shards of every teacher, checked to cover this corpus.

    Raises:
        InputError: shards are missing, or belong to another corpus or teacher.
    """
    found = {}
    for record in info["teachers"]:
        shards = ShardSet.open(out / "teachers" / record["name"])
        if (shards.rows, shards.corpus_digest) != (corpus.rows, corpus.digest):
            raise InputError(
                f"{shards.folder}: {shards.rows} vectors of corpus {shards.corpus_digest}, the captions are "
                f"{corpus.rows} rows of {corpus.digest}; embed this corpus into a new folder"
            )
        if shards.fingerprint != record["fingerprint"]:
            raise InputError(
                f"{shards.folder}: not the teacher named in {out / 'consensus.json'}; run embed again"
            )
        found[record["name"]] = shards
    return found


def _map_digest(fitted: WhitenedMap) -> str:
    parts = [np.ascontiguousarray(v).tobytes() for v in (fitted.matrix, fitted.mean_in, fitted.mean_out)]
    return sha256_bytes(b"".join(parts))


def _fit_teacher(
    name: str, x_of: ShardSet, y_of: ShardSet, sample: Sample, groups: np.ndarray, *, force: bool, seed: int
) -> tuple[WhitenedMap, dict[str, Any]]:
    """Fit one teacher's map and score it: out of sample, in sample, shuffled, constant."""
    who = f"teacher {name}"
    fit = (x_of.read(sample.fit), y_of.read(sample.fit), sample.fit)
    scored = (x_of.read(sample.score), y_of.read(sample.score), sample.score)
    fitted = fit_map(*fit, who=who, force=force)
    # as many fitted rows as scored ones: recall among n depends on n
    some = np.linspace(0, len(sample.fit) - 1, min(len(sample.score), len(sample.fit))).astype(np.int64)
    report = alignment_report(
        fitted,
        score_map(fitted, *scored, who=who, groups=groups),
        in_sample_score(fitted, fit[0][some], fit[1][some], sample.fit[some], who=who),
        shuffled_score(fit, scored, seed=seed, who=who),
        constant_score(fitted.mean_out, scored[1]),
        ratio=check_ratio(len(sample.fit), max(x_of.width, y_of.width), who, force=force),
        who=who,
    )
    return fitted, report


def fit_frame(
    out: Path,
    info: dict[str, Any],
    corpus: Corpus,
    *,
    sample_rows: int = 24_000,
    seed: int = 0,
    force: bool = False,
    weights: Mapping[str, float] | None = None,
) -> Frame:
    """Fit every map of DIR and publish the frame; the same inputs and settings reuse what is there.

    Other weights alone keep the maps.

    Args:
        sample_rows: rows of the fit, at most; a smaller corpus gives what it has.
        force: accept N/d under 10.
        weights: see `relative_weights`; None: those of the frame that is there, equal where there is none.

    Raises:
        InputError: see fit_map, score_map, open_teachers, relative_weights; a map that is not above its shuffled
            control; or no weights given where a frame has those of other teachers.
    """
    folder, names = out / "frame", [record["name"] for record in info["teachers"]]
    relative = _kept_weights(folder, names) if weights is None else relative_weights(weights, names)
    shards = open_teachers(out, info, corpus)
    inputs = {
        "version": VERSION,
        "corpus_digest": corpus.digest,
        "reference": info["reference"],
        "teachers": [[r["name"], r["fingerprint"], shards[r["name"]].digest] for r in info["teachers"]],
        "sample_rows": sample_rows,
        "seed": seed,
        "ridge": RIDGE,
        "drop": DROP,
    }
    if (folder / "frame.json").is_file() and read_json(folder / "frame.json", kind=FRAME_KIND)[
        "inputs"
    ] == inputs:
        frame = open_frame(folder)
        for report in frame.table.values():  # the earlier fit may have been forced
            check_ratio(len(frame.fit_rows), report["dimensions"], "frame", force=force)
        if frame.weights != relative:
            sample = Sample(frame.fit_rows, frame.score_rows, frame.info["sample"])
            _publish(folder, info, inputs, sample, frame.maps, frame.table, shards, relative)
            return open_frame(folder)
        return frame
    chunk = shards[info["reference"]].manifest["shard_rows"]
    sample = stratified_sample(corpus, fit_rows=sample_rows, chunk_rows=chunk, seed=seed)
    maps, table = {}, {}
    for name in [n for n in shards if n != info["reference"]]:
        maps[name], table[name] = _fit_teacher(
            name, shards[name], shards[info["reference"]], sample, corpus.groups, force=force, seed=seed
        )
        table[name]["dimensions"] = max(shards[name].width, shards[info["reference"]].width)
    _publish(folder, info, inputs, sample, maps, table, shards, relative)
    return open_frame(folder)


def _publish(
    folder: Path,
    info: dict[str, Any],
    inputs: dict[str, Any],
    sample: Sample,
    maps: dict[str, WhitenedMap],
    table: dict[str, Any],
    shards: dict[str, ShardSet],
    weights: dict[str, float] | None,
) -> None:
    reference = shards[info["reference"]]
    digests = {name: _map_digest(fitted) for name, fitted in maps.items()}
    identity = [[s.fingerprint, digests.get(name, "itself")] for name, s in shards.items()]
    weighted = (
        {"weights": weights} if weights else {}
    )  # absent where equal: the id of a frame without weights
    by_place = {"weights": [weights[name] for name in shards]} if weights else {}
    frame = {
        "kind": FRAME_KIND,
        "frame_id": digest_json({"reference": reference.fingerprint, "teachers": identity, **by_place}),
        "reference": info["reference"],
        "teachers": list(shards),
        "width": reference.width,
        "maps": digests,
        "sample": sample.how,
        "table": table,
        "inputs": inputs,
        **weighted,
    }
    tensors = {"fit_rows": sample.fit, "score_rows": sample.score}
    for name, fitted in maps.items():
        tensors |= {f"{name}/{key}": np.ascontiguousarray(getattr(fitted, key)) for key in _FITTED}
    with publish_folder(folder) as temporary:
        save_file(tensors, temporary / "maps.safetensors")
        write_json(temporary / "frame.json", frame)


def open_frame(folder: str | Path) -> Frame:
    """Read a published frame after comparing its files with their digests.

    Raises:
        InputError: it is missing or damaged.
    """
    folder = Path(folder)
    if not (folder / "frame.json").is_file():
        raise InputError(f"{folder}: no frame there; run `captionbert consensus fit` first")
    verify_folder(folder)
    info = read_json(folder / "frame.json", kind=FRAME_KIND)
    tensors = load_file(folder / "maps.safetensors")
    maps = {}
    for name in info["maps"]:
        parts = {key: tensors[f"{name}/{key}"] for key in _FITTED}
        dropped = info["table"][name]["directions_dropped"]
        maps[name] = WhitenedMap(
            rows=tensors["fit_rows"], dropped_in=dropped["teacher"], dropped_out=dropped["reference"], **parts
        )
    return Frame(
        info["frame_id"],
        info["reference"],
        info["teachers"],
        info["width"],
        maps,
        tensors["fit_rows"],
        tensors["score_rows"],
        info["table"],
        info,
        info.get("weights"),
    )
