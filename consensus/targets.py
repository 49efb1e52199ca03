"""Consensus targets: one unit vector a caption, fp16 on disk, built shard by shard and opened by row id.

A targets folder names the corpus it belongs to, its frame, and the digests of the teacher shards it was made
of. Opening it against another corpus or another frame is an error; so is a target of a frame that was fitted
anew since.
Legend: N corpus rows, E width of the reference.
"""

from pathlib import Path
from typing import Any

import numpy as np

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import read_json
from captionbert.consensus.captions import Corpus
from captionbert.consensus.frames import FRAME_KIND, Frame, open_teachers
from captionbert.consensus.shards import MANIFEST, ShardSet, ShardWriter, check_vectors, fill


class Targets:
    """Opened targets.

    Attributes:
        rows: N. width: E. frame_id, digest, corpus_digest: 64 hex digits each. folder, manifest.
    """

    def __init__(self, shards: ShardSet) -> None:
        self._shards = shards
        self.folder, self.manifest = shards.folder, shards.manifest
        self.rows, self.width = shards.rows, shards.width
        self.frame_id, self.digest, self.corpus_digest = (
            shards.fingerprint,
            shards.digest,
            shards.corpus_digest,
        )

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """float32 [n, E], unit rows, for row ids `rows`. Raises InputError for damaged shards and bad ids."""
        values = self._shards.read(rows)
        # fp16 storage leaves lengths within 1e-3 of 1: restored here
        values /= np.linalg.norm(values, axis=1, keepdims=True)
        return values

    def verify(self) -> list[str]:
        """Every problem found by reading all shards."""
        return self._shards.verify()


def build_targets(out: Path, info: dict[str, Any], corpus: Corpus, frame: Frame) -> Targets:
    """Compute DIR/targets from the teachers' shards and the frame; goes on at the first missing shard.

    Raises:
        InputError: the folder holds targets of another frame, corpus or state of the teachers' shards.
    """
    teachers = open_teachers(out, info, corpus)
    folder = out / "targets"
    made_of = {name: shards.digest for name, shards in teachers.items()}
    _refuse_stale(folder, made_of, frame.frame_id)
    writer = ShardWriter(
        folder,
        rows=corpus.rows,
        width=frame.width,
        corpus_digest=corpus.digest,
        fingerprint=frame.frame_id,
        shard_rows=teachers[frame.reference].manifest["shard_rows"],
        provenance={"frame_id": frame.frame_id, "reference": frame.reference, "made_of": made_of},
    )

    def compute(start: int, stop: int) -> np.ndarray:
        rows = np.arange(start, stop)
        vectors = {}
        for name, shards in teachers.items():
            vectors[name] = shards.read(rows)
            shards.release()
        return check_vectors("consensus", frame.consensus(vectors), stop - start, frame.width, start)

    fill(writer, "targets", compute)
    return Targets(ShardSet.open(folder))


def _refuse_stale(folder: Path, made_of: dict[str, str], frame_id: str) -> None:
    """Targets on disk must be of this frame and of the teacher shards as they are now, by digest."""
    if not (folder / MANIFEST).is_file():
        return
    found = read_json(folder / MANIFEST)
    if found.get("frame_id") != frame_id:
        raise InputError(
            f"{folder}: holds targets of frame {found.get('frame_id')}, the frame is now {frame_id}; remove "
            "that folder to build them anew (runs trained on the old targets cannot be resumed on the new)"
        )
    changed = [name for name, digest in made_of.items() if found.get("made_of", {}).get(name) != digest]
    if changed:
        raise InputError(
            f"{folder}: older than the vectors of {', '.join(changed)}; remove that folder to build it anew"
        )


def open_targets(folder: str | Path, *, corpus: Corpus | None = None, frame_id: str | None = None) -> Targets:
    """Open the targets of a consensus.

    Args:
        folder: DIR/targets or DIR.
        corpus: the captions they must belong to: row count and digest are compared.
        frame_id: the frame they must be of.

    Raises:
        InputError: missing or unfinished; other captions; another frame than asked for, or than DIR/frame
            holds now.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).is_file() and (folder / "targets").is_dir():
        folder = folder / "targets"
    if not (folder / MANIFEST).is_file():
        raise InputError(f"{folder}: no targets there; run `captionbert consensus targets` first")
    targets = Targets(ShardSet.open(folder))
    if corpus is not None:
        check_agreement(corpus, targets)
    check_frame(targets, frame_id, "asked for")
    beside = folder.parent / "frame" / "frame.json"
    if beside.is_file():
        check_frame(targets, read_json(beside, kind=FRAME_KIND)["frame_id"], f"in {beside.parent}")
    return targets


def check_agreement(corpus: Corpus, targets: Targets) -> None:
    """Refuse targets of other captions: row i would get another text's target.

    Raises:
        InputError: another number of rows, or the same number of other captions (by digest).
    """
    if targets.rows != corpus.rows:
        raise InputError(
            f"{targets.folder}: {targets.rows} targets for the {corpus.rows} captions of {corpus.folder}; "
            "captions and targets must come from one `captionbert consensus` folder"
        )
    if targets.corpus_digest != corpus.digest:
        raise InputError(
            f"{targets.folder}: made for captions of digest {targets.corpus_digest}, {corpus.folder} has "
            f"{corpus.digest}; captions and targets must come from one `captionbert consensus` folder"
        )


def check_frame(targets: Targets, frame_id: str | None, where: str) -> None:
    """Refuse targets of another frame than `frame_id` (None: any will do); `where` says who wants that frame.

    Raises:
        InputError: naming both frames.
    """
    if frame_id is not None and targets.frame_id != frame_id:
        raise InputError(
            f"{targets.folder}: targets of frame {targets.frame_id}, the frame {where} is {frame_id}; "
            "vectors of two frames cannot be compared: build the targets of that frame"
        )
