"""Asymmetric use: queries by a small model against documents embedded by a large one, in one frame.

On scored pairs, the Spearman correlation of cosine with score where sentence1 comes from the query model and sentence2
from the document model, the other way round, and the mean of the two; beside the query model alone and the document
model alone; at the full width and at each number of first coordinates, normalised again. Legend: n pairs, E width.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from captionbert.artifacts.errors import InputError
from captionbert.consensus.encoder import Encoder
from captionbert.probes.compared import described, file_labels, table, vectors_of
from captionbert.probes.scored_pairs import ScoredPairs, pair_spearman

SIDES = ("query_document", "document_query", "asymmetric", "query_query", "document_document")


def check_frames(queries: Encoder, documents: Encoder) -> None:
    """Refuse two models whose vectors provably have different coordinates: their cosine means nothing.

    Raises:
        InputError: another width, another recorded frame, two teachers, each of which has its own coordinates, or a
            consensus and one of its teachers that is not the reference.
    """
    pair = f"{queries.name} and {documents.name}"
    if queries.width != documents.width:
        raise InputError(
            f"{pair}: vectors of {queries.width} and {documents.width} coordinates cannot be compared; give a student "
            "and the reference it was trained towards, or that consensus"
        )
    frames = (queries.frame_id, documents.frame_id)
    if None not in frames and frames[0] != frames[1]:
        raise InputError(
            f"{pair}: of frame {frames[0]} and of frame {frames[1]}; their vectors cannot be compared"
        )
    one, other = queries.facts, documents.facts
    if one["is"] == other["is"] == "teacher" and one["digest"] != other["digest"]:
        raise InputError(
            f"{pair}: two teachers have each their own coordinates; give a student of one of them"
        )
    for consensus, teacher in ((one, documents.name), (other, queries.name)):
        if consensus["is"] == "consensus" and teacher in set(consensus["teachers"]) - {
            consensus["reference"]
        }:
            raise InputError(
                f"{pair}: the consensus has the coordinates of its reference {consensus['reference']}, {teacher} its "
                "own; give the reference, or a student"
            )


def check_dims(dims: Sequence[int], width: int) -> list[int]:
    """Numbers of coordinates to keep, ascending, the full width last.

    Raises:
        InputError: one outside 1..width, or twice.
    """
    for dim in dims:
        if not 1 <= dim <= width:
            raise InputError(f"--dims {dim}: these vectors have 1 to {width} coordinates")
        if list(dims).count(dim) > 1:
            raise InputError(f"--dims {dim}: given more than once")
    return sorted({*dims, width})


def cut(vectors: np.ndarray, dim: int) -> np.ndarray:
    """The first `dim` coordinates of rows [n, E], float64, at unit length again; a row of zeros stays one."""
    part = vectors[:, :dim].astype(np.float64)
    return part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12)


def probe_asymmetric(
    queries: Encoder, documents: Encoder, files: Sequence[ScoredPairs], *, dims: Sequence[int] = ()
) -> dict[str, Any]:
    """The JSON report: Spearman by file, dim and side, and the mean over files.

    Raises:
        InputError: see check_frames and check_dims.
    """
    check_frames(queries, documents)
    chosen = check_dims(dims, queries.width)
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for name, pairs in zip(file_labels([f.path for f in files]), files):
        texts = pairs.first + pairs.second
        q, d = vectors_of(queries, texts), vectors_of(documents, texts)  # [2n, E] each
        scores[name] = {str(dim): _sides(cut(q, dim), cut(d, dim), pairs.scores) for dim in chosen}
    mean = {
        str(dim): {side: float(np.mean([s[str(dim)][side] for s in scores.values()])) for side in SIDES}
        for dim in chosen
    }
    return {
        "kind": "asymmetric-probe",
        "models": described([queries, documents]),
        "queries": queries.name,
        "documents": documents.name,
        "files": {name: {"sha256": f.sha256, "pairs": len(f.scores)} for name, f in zip(scores, files)},
        "dims": chosen,
        "spearman": scores,
        "mean": mean,
    }


def _sides(q: np.ndarray, d: np.ndarray, scores: list[float]) -> dict[str, float]:
    """Spearman, -1..1, by which model gives which side."""
    n = len(scores)
    forth = pair_spearman(np.concatenate([q[:n], d[n:]]), scores)
    back = pair_spearman(np.concatenate([d[:n], q[n:]]), scores)
    values = (forth, back, (forth + back) / 2, pair_spearman(q, scores), pair_spearman(d, scores))
    return dict(zip(SIDES, values))


def render(report: dict[str, Any]) -> str:
    """The report as a table, one line a file and dim."""
    head = [
        "file",
        "dim",
        "query-document",
        "document-query",
        "mean of both",
        "query model",
        "document model",
    ]
    blocks = dict(report["spearman"])
    if len(blocks) > 1:
        blocks["mean of files"] = report["mean"]
    rows = [
        [name, dim, *(f"{sides[side]:.4f}" for side in SIDES)]
        for name, by_dim in blocks.items()
        for dim, sides in by_dim.items()
    ]
    about = f"Spearman; query model {report['queries']}, document model {report['documents']}"
    return "\n".join([about, *table(head, rows)])
