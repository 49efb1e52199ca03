"""Search among long documents: which of N holds the caption? R@1, R@10 and MRR by model and length.

Three ways to give a document to a model: whole (cut at the model's limit), by the mean of the vectors of its chunks, by
the best of them. Rotary models may be stretched where documents are longer than their training texts; which factor is
best is read on the dev split. The rank of the right document is 1 + the others that are as near or nearer: ties are
misses. Legend: N documents, M queries, E width, C chunks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from captionbert.artifacts.errors import InputError
from captionbert.consensus.encoder import Encoder
from captionbert.probes.compared import described, vectors_of
from captionbert.probes.document_sets import DocumentSet, Task, chunks_of, plain_tokenizer
from captionbert.probes.geometry import variety

LEAST_QUERIES = 5  # fewer have no geometry to show beside a retrieval number
LEAST_CHUNK = 8
TIE = 1e-7  # cosines of fp32 vectors nearer than this are equal
Say = Callable[[str], None]
_ROW = "{:<24} {:>7}  {:<16} {:>7} {:>7} {:>7}  {}"


def check_settings(
    lengths: Sequence[int], factors: Sequence[float], chunk: int, encoders: Sequence[Encoder]
) -> None:
    """Refuse settings that no work could use.

    Raises:
        InputError: a length or a factor twice, chunks under 8 tokens, factors that no model takes.
    """
    for name, values in (("--lengths", lengths), ("--rotary-factors", factors)):
        for value in values:
            if list(values).count(value) > 1:
                raise InputError(f"{name} {value:g}: given more than once")
    if chunk < LEAST_CHUNK:
        raise InputError(f"--chunk {chunk}: expected {LEAST_CHUNK} tokens or more")
    if any(factor < 1 for factor in factors):
        raise InputError(f"--rotary-factors {min(factors):g}: expected 1 or more")
    if any(factor != 1 for factor in factors) and not any(e.stretchable for e in encoders):
        raise InputError("--rotary-factors: none of these models has rotary positions; leave it out")


def ranks_of(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Rank from 1 of the right document of each query: int64 [M], from scores [M, N] and right [M]."""
    own = scores[np.arange(len(right)), right]
    return (scores >= own[:, None] - TIE).sum(axis=1)  # its own place counts for the 1


def summary_of(ranks: np.ndarray) -> dict[str, float]:
    """R@1, R@10 and mean reciprocal rank, each 0..1."""
    return {
        "r1": float((ranks <= 1).mean()),
        "r10": float((ranks <= 10).mean()),
        "mrr": float((1 / ranks).mean()),
    }


def chance(documents: int) -> dict[str, float]:
    """The same of a random order of N documents."""
    reciprocal = float((1 / np.arange(1, documents + 1)).mean())
    return {"r1": 1 / documents, "r10": min(10, documents) / documents, "mrr": reciprocal}


def probe_documents(
    encoders: Sequence[Encoder],
    task: Task,
    tokenizer: Any,
    *,
    chunk: int = 64,
    factors: Sequence[float] = (1.0,),
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Measure every model at every length; each line is said as soon as it is known.

    Args:
        tokenizer: the one that measured the documents; it cuts the chunks, the same texts for every model.
        factors: rotary factors, for lengths beyond a model's training length (all lengths where none is recorded).

    Raises:
        InputError: see check_settings; fewer than five queries.
    """
    check_settings([s.length for s in task.sets], factors, chunk, encoders)
    if len(task.queries) < LEAST_QUERIES:
        raise InputError(f"--queries {len(task.queries)}: {LEAST_QUERIES} or more are needed")
    cutter = plain_tokenizer(tokenizer)
    documents = len(task.sets[0].texts)
    varieties, rows = {}, []
    for line in head_lines(task):
        say(line)
    for encoder in encoders:
        queries = vectors_of(encoder, task.queries)  # [M, E]
        found = variety(task.queries, queries)
        varieties[encoder.name] = asdict(found)
        say(f"{encoder.name}: {found}")
        say(_ROW.format("model", "tokens", "way", "R@1", "R@10", "MRR", "").rstrip())
        for part in task.sets:
            for row in _measure(encoder, queries, task, part, cutter, chunk, factors):
                rows.append(row)
                say(_line(row))
    expected = chance(documents)
    say(_ROW.format("chance", "", "", *(f"{expected[k]:.4f}" for k in ("r1", "r10", "mrr")), "").rstrip())
    return {
        "kind": "documents-probe",
        **task.about,
        "documents": documents,
        "queries": len(task.queries),
        "chunk": chunk,
        "models": described(encoders),
        "query_variety": varieties,
        "lengths": {str(s.length): _spread(s) for s in task.sets},
        "results": rows,
        "chance": expected,
    }


def _measure(
    encoder: Encoder,
    queries: np.ndarray,
    task: Task,
    part: DocumentSet,
    cutter: Any,
    chunk: int,
    factors: Sequence[float],
) -> Iterator[dict[str, Any]]:
    """The result lines of one model at one length."""
    limit = encoder.max_tokens
    about = {"model": encoder.name, "length": part.length, "reads": limit}
    about["cut"] = limit is not None and bool(part.tokens.max() > limit)

    def scored(way: str, scores: np.ndarray, **more: Any) -> dict[str, Any]:
        return {**about, "way": way, **more, **summary_of(ranks_of(scores, task.right))}

    for factor in factors_at(encoder, part.length, factors):
        try:
            encoder.stretch(factor)
            asked = queries if factor == 1 else vectors_of(encoder, task.queries)
            whole = vectors_of(encoder, part.texts, window=8)  # [N, E]
        finally:
            encoder.stretch(1.0)
        yield scored("whole" if factor == 1 else f"whole, rotary x{factor:g}", asked @ whole.T, factor=factor)
    pieces = [chunks_of(text, cutter, chunk) for text in part.texts]
    starts = np.concatenate([[0], np.cumsum([len(p) for p in pieces])[:-1]]).astype(np.int64)  # [N]
    vectors = vectors_of(encoder, [p for document in pieces for p in document])  # [C, E]
    sums = np.add.reduceat(vectors.astype(np.float64), starts, axis=0)  # [N, E]
    means = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    # The whole text's limit does not touch its chunks, unless a chunk is longer than the model reads.
    about["cut"] = limit is not None and chunk > limit
    yield scored("mean of chunks", queries @ means.T, chunks=len(vectors))
    yield scored(
        "best of chunks", np.maximum.reduceat(queries @ vectors.T, starts, axis=1), chunks=len(vectors)
    )


def factors_at(encoder: Encoder, length: int, factors: Sequence[float]) -> list[float]:
    """The factors to try: 1 first, the others where the model takes them and its training texts were shorter."""
    trained = encoder.trained_tokens
    beyond = encoder.stretchable and (trained is None or length > trained)
    return [1.0, *(float(f) for f in factors if f != 1 and beyond)]


def _spread(part: DocumentSet) -> dict[str, float]:
    return {
        "tokens_mean": float(part.tokens.mean()),
        "tokens_min": int(part.tokens.min()),
        "tokens_max": int(part.tokens.max()),
        "captions_mean": float(part.captions.mean()),
    }


def head_lines(task: Task) -> list[str]:
    """What is searched, before any number."""
    asked = (
        "another caption of the same image"
        if task.about["query_is"] == "same image"
        else "the held caption itself"
    )
    count = len(task.sets[0].texts)
    drawn = f"{task.about['split']} split, seed {task.about['seed']}"
    lines = [f"{len(task.queries)} queries ({asked}) among {count} documents; {drawn}"]
    for part in task.sets:
        s = _spread(part)
        lines.append(
            f"documents of {part.length} tokens: {s['tokens_min']} to {s['tokens_max']}, mean {s['tokens_mean']:.1f}; "
            f"{s['captions_mean']:.1f} captions"
        )
    return lines


def _line(row: dict[str, Any]) -> str:
    note = f"cut at {row['reads']} tokens" if row["cut"] else ""
    numbers = (f"{row[k]:.4f}" for k in ("r1", "r10", "mrr"))
    return _ROW.format(row["model"], row["length"], row["way"], *numbers, note).rstrip()
