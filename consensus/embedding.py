"""Embedding a corpus with one teacher: shard by shard, resumable, and refused when the vectors make no sense.

A row that is not finite in a batch is encoded once more alone (some kernels fail in batches only); if it
stays so, or if a whole shard holds one vector, nothing is committed.
"""

from dataclasses import asdict
from pathlib import Path

import numpy as np

from captionbert.artifacts.errors import InputError
from captionbert.consensus.captions import Corpus
from captionbert.consensus.shards import SHARD_ROWS, ShardSet, ShardWriter, check_vectors, fill
from captionbert.consensus.teachers import Teacher

ENCODE_ROWS = 8192  # rows given to a teacher at a time; the whole of a default shard


def embed_corpus(
    corpus: Corpus, teacher: Teacher, out: str | Path, *, shard_rows: int = SHARD_ROWS
) -> ShardSet:
    """Embed every caption with `teacher` into `out`; goes on at the first missing shard.

    Raises:
        InputError: `out` belongs to another corpus or teacher; the teacher gives NaN, a constant or the wrong
            width.
    """
    writer = ShardWriter(
        Path(out),
        rows=corpus.rows,
        width=teacher.width,
        corpus_digest=corpus.digest,
        fingerprint=teacher.fingerprint,
        shard_rows=shard_rows,
        provenance={"teacher": asdict(teacher.spec)},
    )
    who = f"teacher {teacher.spec.name}"
    fill(
        writer,
        f"embed {teacher.spec.name}",
        lambda start, stop: _encode_rows(corpus, teacher, who, start, stop),
    )
    return ShardSet.open(out)


def _encode_rows(corpus: Corpus, teacher: Teacher, who: str, start: int, stop: int) -> np.ndarray:
    parts = []
    for first in range(start, stop, ENCODE_ROWS):
        last = min(first + ENCODE_ROWS, stop)
        texts = corpus.texts(np.arange(first, last))
        vectors = np.asarray(teacher.encode(texts))
        vectors = _retry_alone(teacher, texts, vectors)
        parts.append(check_vectors(who, vectors, last - first, teacher.width, first))
    vectors = np.concatenate(parts)
    _refuse_constant(who, vectors, start)
    return vectors


def _retry_alone(teacher: Teacher, texts: list[str], vectors: np.ndarray) -> np.ndarray:
    """The vectors, with rows that are not finite encoded once more by themselves."""
    if vectors.ndim != 2 or len(vectors) != len(texts) or np.isfinite(vectors).all():
        return vectors
    vectors = np.array(vectors)
    for place in np.flatnonzero(~np.isfinite(vectors).all(axis=1)):
        vectors[place] = np.asarray(teacher.encode([texts[place]]))[0]
    return vectors


def _refuse_constant(who: str, vectors: np.ndarray, start: int) -> None:
    """Distinct captions (the corpus has few equal ones) must not all have one vector."""
    if len(vectors) < 2:
        return
    spread = (vectors.max(axis=0) - vectors.min(axis=0)).max()
    if spread <= 1e-5 * np.abs(vectors).max():
        raise InputError(
            f"{who}: the same vector for all rows {start}..{start + len(vectors) - 1}: it does not look at "
            "its input; check its files and tokenizer"
        )
