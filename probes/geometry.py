"""Gauges of a set of vectors: numpy only, both sides always given as data. Legend: N rows, d width.

Effective rank is the participation ratio of the centred covariance spectrum, (sum l)^2 / sum l^2. It comes
only inside `Geometry`, beside the CV (std / mean) of the volumes of random 5-point simplices (Cayley-Menger)
and the CV of random unit vectors of the same width. Mimicry (does the student find its own target among n) is
never a task score: it has a type and a line of its own, and cannot be had without the variety of the rows it
was measured on.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

SIMPLICES = 1000
_BLOCK = 4096  # rows handled at a time: memory stays flat in N


@dataclass(frozen=True)
class Geometry:
    """Effective rank and simplex CV of one set of vectors; there is no way to have the one without the other.

    Attributes:
        effective_rank: 1..min(N - 1, d). cv: simplex CV. cv_random: CV of random unit vectors of this width.
        self_cosine: mean cosine over pairs of distinct rows, -1..1. width: d. rows: N.
    """

    effective_rank: float
    cv: float
    cv_random: float
    self_cosine: float
    width: int
    rows: int

    def as_dict(self) -> dict[str, float | int]:
        """The fields, for a JSON report."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"effective rank {self.effective_rank:.1f} of {self.width}, CV {self.cv:.3f} (random unit "
            f"vectors {self.cv_random:.3f}), self-cosine {self.self_cosine:+.3f}, {self.rows} rows"
        )


def geometry(x: np.ndarray, *, seed: int = 0) -> Geometry:
    """Effective rank with CV, and self-cosine, of the rows of x [N, d].

    Raises:
        ValueError: fewer than 5 rows, or values that are not finite.
    """
    x = _checked(x, least=5)
    return Geometry(
        effective_rank=_participation_ratio(x),
        cv=simplex_cv(x, seed=seed),
        cv_random=random_unit_cv(x.shape[1]),
        self_cosine=self_cosine(x),
        width=x.shape[1],
        rows=len(x),
    )


def _checked(x: np.ndarray, *, least: int) -> np.ndarray:
    x = np.asarray(x)
    if x.ndim != 2 or len(x) < least:
        raise ValueError(f"expected vectors [N, d] with at least {least} rows, found shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError(
            f"row {int(np.flatnonzero(~np.isfinite(x).all(axis=1))[0])} holds NaN or infinite values"
        )
    return x


def _covariance(x: np.ndarray) -> np.ndarray:
    """float64 [d, d] scatter about the mean, block by block."""
    mean = x.mean(axis=0, dtype=np.float64)
    total = np.zeros((x.shape[1], x.shape[1]))
    for start in range(0, len(x), _BLOCK):
        part = x[start : start + _BLOCK].astype(np.float64) - mean
        total += part.T @ part
    return total


def _participation_ratio(x: np.ndarray) -> float:
    # sum l = trace C and sum l^2 = |C|_F^2: no eigenvalues are needed
    covariance = _covariance(x)
    squares = float((covariance**2).sum())
    return float(np.trace(covariance) ** 2 / squares) if squares > 0 else 0.0


def simplex_volumes(points: np.ndarray) -> np.ndarray:
    """Volumes [S] of S simplices of 5 points, points [S, 5, d], by the Cayley-Menger determinant in float64.

    V^2 = (-1)^(k+1) det(B) / (2^k (k!)^2) with k = 4 edges a corner and B the bordered matrix of squared
    distances.
    """
    points = points.astype(np.float64)
    gram = points @ points.transpose(0, 2, 1)  # [S, 5, 5]
    squared = np.einsum("sii->si", gram)
    bordered = np.ones((len(points), 6, 6))
    bordered[:, 0, 0] = 0.0
    bordered[:, 1:, 1:] = np.maximum(squared[:, :, None] + squared[:, None, :] - 2 * gram, 0.0)
    volumes_squared = -np.linalg.det(bordered) / (2**4 * 24**2)
    return np.sqrt(np.maximum(volumes_squared, 0.0))


def simplex_cv(x: np.ndarray, *, seed: int = 0, simplices: int = SIMPLICES) -> float:
    """std / mean of the volumes of random 5-point simplices of the unit-normalised rows of x [N, d].

    0 where every volume is 0 (rows that span less than 4 dimensions).
    """
    x = _checked(x, least=5)
    volumes = simplex_volumes(_unit(x)[_distinct_fives(len(x), simplices, seed)])
    return float(volumes.std() / volumes.mean()) if volumes.mean() > 0 else 0.0


def _distinct_fives(rows: int, simplices: int, seed: int) -> np.ndarray:
    """int64 [S, 5]: five distinct row numbers each; draws with a repeat are drawn again."""
    random = np.random.default_rng(seed)
    fives = random.integers(0, rows, size=(simplices, 5))
    while True:
        ordered = np.sort(fives, axis=1)
        repeated = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
        if not repeated.size:
            return fives
        fives[repeated] = random.integers(0, rows, size=(repeated.size, 5))


@lru_cache(maxsize=64)
def random_unit_cv(width: int, *, seed: int = 0, simplices: int = SIMPLICES) -> float:
    """The simplex CV of independent random unit vectors of this width: the scale to read a CV against."""
    points = np.random.default_rng(seed).standard_normal((simplices, 5, width))
    volumes = simplex_volumes(points / np.linalg.norm(points, axis=2, keepdims=True))
    return float(volumes.std() / volumes.mean()) if volumes.mean() > 0 else 0.0


def _unit(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30)


def self_cosine(x: np.ndarray) -> float:
    """Mean cosine over ordered pairs of distinct rows of x [N, d]: -1..1."""
    x = _unit(_checked(x, least=2))
    n = len(x)
    total = float((x.sum(axis=0) ** 2).sum())  # all pairs, each row with itself included
    return (total - float((x**2).sum())) / (n * (n - 1))


def target_cosine(student: np.ndarray, target: np.ndarray) -> float:
    """Mean cosine between each student row and its target row, both [N, d]: -1..1."""
    _refuse_one_side(student, target)
    return float((_unit(student) * _unit(target)).sum(axis=1).mean())


def _refuse_one_side(student: np.ndarray, target: np.ndarray) -> None:
    """A gauge of a thing against itself says nothing (it always passes)."""
    if student.shape != target.shape:
        raise ValueError(f"the two sides must have one shape, found {student.shape} and {target.shape}")
    if student is target or np.shares_memory(student, target):
        raise ValueError(
            "both sides are the same data; give the student's vectors and the targets' as computed apart"
        )


@dataclass(frozen=True)
class Variety:
    """How different the rows of a query set are from each other; printed before any retrieval number.

    Attributes:
        rows: N. lengths: p50, p90, p99, max. histogram: (upper length, rows) of eight equal bins.
        geometry: of the query vectors, self-cosine included.
    """

    rows: int
    lengths: dict[str, int]
    histogram: tuple[tuple[int, int], ...]
    geometry: Geometry

    def __str__(self) -> str:
        bars = " ".join(f"<={top}:{count}" for top, count in self.histogram)
        spread = " ".join(f"{k} {v}" for k, v in self.lengths.items())
        return f"query variety: {self.rows} rows; lengths {spread}; {bars}; {self.geometry}"


def length_percentiles(lengths: np.ndarray) -> dict[str, int]:
    """p50, p90, p99 and maximum: the smallest length that so many per cent of the rows do not exceed."""
    values = np.percentile(lengths, (50, 90, 99), method="inverted_cdf")
    return {"p50": int(values[0]), "p90": int(values[1]), "p99": int(values[2]), "max": int(np.max(lengths))}


def variety(texts_or_lengths: Sequence[str] | np.ndarray, x: np.ndarray, *, seed: int = 0) -> Variety:
    """The variety of a query set: its texts (or their lengths, in any unit) and its vectors x [N, d].

    Raises:
        ValueError: the two do not have the same number of rows.
    """
    if len(texts_or_lengths) != len(x):
        raise ValueError(f"{len(texts_or_lengths)} texts or lengths for {len(x)} vectors")
    lengths = np.array([len(t) if isinstance(t, str) else int(t) for t in texts_or_lengths])
    counts, edges = np.histogram(lengths, bins=8)
    histogram = tuple((int(np.floor(top)), int(count)) for top, count in zip(edges[1:], counts))
    return Variety(len(x), length_percentiles(lengths), histogram, geometry(x, seed=seed))


@dataclass(frozen=True)
class Mimicry:
    """How often the nearest of n targets is the student row's own. It has no place in a task table.

    Attributes:
        mimicry_recall_at_1: 0..1. chance: 1 / n. variety: of the query rows.
    """

    mimicry_recall_at_1: float
    chance: float
    variety: Variety

    @property
    def multiple_of_chance(self) -> float:
        """Recall over chance, 0..n."""
        return self.mimicry_recall_at_1 / self.chance

    def __str__(self) -> str:
        return (
            f"{self.variety}\nmimicry R@1 {self.mimicry_recall_at_1:.4f} among {round(1 / self.chance)} "
            f"({self.multiple_of_chance:.0f} x chance)"
        )


def recall_at_1(queries: np.ndarray, candidates: np.ndarray) -> float:
    """Share of rows of queries [N, d] whose largest cosine among candidates [N, d] is their own row: 0..1.

    A tie with the own row counts as a miss: a constant encoder then scores 0, not 1.
    """
    a, b = _unit(queries), _unit(candidates)
    hits = 0
    for start in range(0, len(a), 1024):
        scores = a[start : start + 1024] @ b.T  # [block, N]
        rows = np.arange(len(scores))
        own = scores[rows, start + rows].copy()
        scores[rows, start + rows] = -np.inf
        hits += int((own > scores.max(axis=1) + 1e-12).sum())
    return hits / len(a)


def retrieval(student: np.ndarray, target: np.ndarray, variety: Variety) -> Mimicry:
    """Mimicry of student [N, d] towards target [N, d]; `variety` describes these same rows.

    Raises:
        TypeError: no variety block. ValueError: it has other rows, both sides are one array, or fewer than 2
            rows.
    """
    if not isinstance(variety, Variety):
        raise TypeError(
            "a retrieval number needs the variety block of its query set: pass variety(texts, vectors)"
        )
    if variety.rows != len(student):
        raise ValueError(f"the variety block describes {variety.rows} rows, the queries are {len(student)}")
    _refuse_one_side(student, target)
    _checked(student, least=2)
    return Mimicry(recall_at_1(student, _checked(target, least=2)), 1 / len(student), variety)


@dataclass(frozen=True)
class Shift:
    """Lengths of two corpora, judged on p99 and maximum (a mean hides the tail that breaks a model).

    Attributes:
        a, b: p50, p90, p99, max. p99_ratio, max_ratio: b over a. shifted: either ratio is outside
            1/limit..limit.
    """

    a: dict[str, int]
    b: dict[str, int]
    p99_ratio: float
    max_ratio: float
    shifted: bool

    def as_dict(self) -> dict[str, Any]:
        """The fields, for a JSON report."""
        return asdict(self)

    def __str__(self) -> str:
        verdict = "SHIFTED" if self.shifted else "alike"
        return (
            f"lengths p99 {self.a['p99']} -> {self.b['p99']} (x{self.p99_ratio:.2f}), max {self.a['max']} "
            f"-> {self.b['max']} (x{self.max_ratio:.2f}): {verdict}"
        )


def distribution_shift(a: np.ndarray, b: np.ndarray, *, limit: float = 1.5) -> Shift:
    """Compare two sets of lengths on their p99 and maximum.

    Raises:
        ValueError: one of them is empty.
    """
    if len(a) == 0 or len(b) == 0:
        raise ValueError("a distribution shift needs lengths on both sides, found an empty one")
    first, second = length_percentiles(a), length_percentiles(b)
    ratios = [second[k] / max(first[k], 1) for k in ("p99", "max")]
    return Shift(first, second, ratios[0], ratios[1], any(not 1 / limit <= r <= limit for r in ratios))
