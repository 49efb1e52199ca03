"""Whitened-Procrustes maps from one teacher's coordinates into the reference's, and their honest score.

    map(x) = (x - mu_x) W_x Q W_r^-1 + mu_r

W whitens (float64 covariance, eigen-decomposition, ridge RIDGE times the mean eigenvalue; directions below
DROP times the largest are dropped and counted); Q is the semi-orthogonal Procrustes solution U V^T of the
whitened cross-covariance, so any width maps into any width without padding. A fitted map carries the row ids
it was fitted to and is scored only on others, centred, beside the same fit on shuffled pairs and beside a
constant. Legend: N rows, d width of the teacher, r width of the reference, k directions kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from captionbert.artifacts.errors import InputError
from captionbert.consensus.controls import SHUFFLED
from captionbert.consensus.sampling import captions_for
from captionbert.probes.geometry import recall_at_1

RIDGE = 1e-3  # times the mean eigenvalue, added to each: bounds the gain of weak directions
DROP = 1e-6  # times the largest eigenvalue: below it lies fp16 storage noise, not signal
MINIMUM_RANK = 2
MINIMUM_ROWS_PER_DIMENSION = 10
BLOCK = 4096


class Moments:
    """Running mean and scatter of row pairs (x, y) in float64, merged by Chan's rule.

    The result does not depend (beyond rounding) on the cut into blocks or on their order.
    """

    def __init__(self, width_x: int, width_y: int) -> None:
        self.count = 0
        self._split = width_x
        self.mean = np.zeros(width_x + width_y)
        self.scatter = np.zeros((width_x + width_y, width_x + width_y))  # of [x, y]: [d + r, d + r]

    def add(self, x: np.ndarray, y: np.ndarray) -> "Moments":
        """Add rows x [n, d] with y [n, r]."""
        z = np.concatenate([x, y], axis=1, dtype=np.float64)
        other = Moments(self._split, len(self.mean) - self._split)
        other.count = len(z)
        other.mean = z.mean(axis=0)
        z -= other.mean
        other.scatter = z.T @ z
        return self.merge(other)

    def merge(self, other: "Moments") -> "Moments":
        """Add another set of moments to this one."""
        if other.count == 0:
            return self
        total = self.count + other.count
        delta = other.mean - self.mean
        self.scatter += other.scatter + np.outer(delta, delta) * (self.count * other.count / total)
        self.mean += delta * (other.count / total)
        self.count = total
        return self

    @property
    def mean_x(self) -> np.ndarray:
        """float64 [d]."""
        return self.mean[: self._split]

    @property
    def mean_y(self) -> np.ndarray:
        """float64 [r]."""
        return self.mean[self._split :]

    def covariances(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Unbiased covariances (xx [d, d], xy [d, r], yy [r, r])."""
        c, s = self.scatter / max(self.count - 1, 1), self._split
        return c[:s, :s], c[:s, s:], c[s:, s:]


def moments_of(x: np.ndarray, y: np.ndarray) -> Moments:
    """Moments of the row pairs of x [N, d] and y [N, r], block by block."""
    moments = Moments(x.shape[1], y.shape[1])
    for start in range(0, len(x), BLOCK):
        moments.add(x[start : start + BLOCK], y[start : start + BLOCK])
    return moments


@dataclass(frozen=True)
class Whitening:
    """Eigen-directions kept of one covariance.

    Attributes:
        forward: [d, k], to unit covariance (but for the ridge). backward: [k, d], its inverse on the kept
            directions.
        dropped: directions left out.
    """

    forward: np.ndarray
    backward: np.ndarray
    dropped: int


def whitening(covariance: np.ndarray, who: str, *, ridge: float = RIDGE) -> Whitening:
    """Whiten a covariance [d, d] with a relative ridge.

    Raises:
        InputError: fewer than MINIMUM_RANK directions hold variance.
    """
    values, vectors = np.linalg.eigh(covariance)
    kept = values > DROP * max(values[-1], 0.0)
    if values[-1] <= 0 or kept.sum() < MINIMUM_RANK:
        raise InputError(
            f"{who}: its vectors vary in {int(kept.sum()) if values[-1] > 0 else 0} of {len(values)} "
            f"directions, at least {MINIMUM_RANK} are needed to fit a map; this teacher says nothing about "
            "these captions"
        )
    scale = np.sqrt(values[kept] + ridge * values[kept].mean())  # [k]
    basis = vectors[:, kept]  # [d, k]
    return Whitening(basis / scale, (basis * scale).T, int((~kept).sum()))


@dataclass(frozen=True)
class WhitenedMap:
    """A fitted map and what it was fitted to.

    Attributes:
        matrix: float64 [d, r], W_x Q W_r^-1. mean_in: [d]. mean_out: [r].
        rows: sorted ids of the rows of the fit, int64.
        dropped_in, dropped_out: directions left out on either side.
        singular_values: of the whitened cross-covariance, descending, each at most 1.
    """

    matrix: np.ndarray
    mean_in: np.ndarray
    mean_out: np.ndarray
    rows: np.ndarray
    dropped_in: int
    dropped_out: int
    singular_values: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Map x [n, d] to float64 [n, r]."""
        return (x.astype(np.float64) - self.mean_in) @ self.matrix + self.mean_out

    def gaps(self) -> dict[str, float]:
        """Singular values: largest, smallest, and the smallest gap of neighbours over the largest.

        A tiny gap leaves U and V free to turn within a plane, not U V^T: the mapped vectors stay the same.
        A smallest value near 0 does leave the map open in that direction.
        """
        s = self.singular_values
        gap = float(np.diff(s[::-1]).min() / s[0]) if len(s) > 1 and s[0] > 0 else 0.0
        return {"largest": float(s[0]), "smallest": float(s[-1]), "smallest_gap": gap}


def check_ratio(rows: int, width: int, who: str, *, force: bool = False) -> float:
    """N/d of a fit.

    Raises:
        InputError: under 10, unless forced: such a map fits its sample and nothing else.
    """
    ratio = rows / width
    if ratio < MINIMUM_ROWS_PER_DIMENSION and not force:
        needed = MINIMUM_ROWS_PER_DIMENSION * width
        raise InputError(
            f"{who}: {rows} fit rows for {width} dimensions, N/d = {ratio:.1f}; at least "
            f"{MINIMUM_ROWS_PER_DIMENSION} are needed ({needed} rows) for a map that holds out of sample: use "
            f"{captions_for(needed)} distinct captions or more beside the held-out ones, or force it (--force) and "
            "read the out-of-sample score"
        )
    return ratio


def _check_pairs(x: np.ndarray, y: np.ndarray, rows: np.ndarray, who: str) -> None:
    if not len(x) == len(y) == len(rows):
        raise InputError(f"{who}: {len(x)} teacher vectors, {len(y)} reference vectors, {len(rows)} row ids")
    for side, values in (("its", x), ("the reference's", y)):
        bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if bad.size:
            raise InputError(f"{who}: {side} vector of row {rows[bad[0]]} holds NaN or infinite values")


def fit_map(
    x: np.ndarray,
    y: np.ndarray,
    rows: np.ndarray,
    *,
    who: str = "map",
    force: bool = False,
    ridge: float = RIDGE,
) -> WhitenedMap:
    """Fit the map from a teacher's vectors x [N, d] to the reference's y [N, r] of the same rows.

    Args:
        rows: ids int64 [N] of these rows in the corpus; the map keeps them.
        who: name for messages.
        force: accept N/d under 10.
        ridge: relative to the mean kept eigenvalue, on both sides.

    Raises:
        InputError: N/d under 10, NaN rows, or a side without variance.
    """
    _check_pairs(x, y, rows, who)
    check_ratio(len(x), max(x.shape[1], y.shape[1]), who, force=force)
    moments = moments_of(x, y)
    xx, xy, yy = moments.covariances()
    w_x, w_r = whitening(xx, who, ridge=ridge), whitening(yy, f"{who}, reference side", ridge=ridge)
    u, s, vt = np.linalg.svd(w_x.forward.T @ xy @ w_r.forward, full_matrices=False)  # [k_x, m], [m], [m, k_r]
    matrix = w_x.forward @ (u @ vt) @ w_r.backward  # [d, r]
    return WhitenedMap(
        matrix, moments.mean_x.copy(), moments.mean_y.copy(), np.sort(rows), w_x.dropped, w_r.dropped, s
    )


@dataclass(frozen=True)
class Score:
    """How well mapped rows meet the reference's, out of 0..1 (recall) or -1..1 (cosines).

    Attributes:
        recall_at_1: nearest reference row is the own one, by centred cosine. chance_multiple: that times n.
        centred_cosine: mean cosine after the reference mean is taken off both sides. raw_cosine: without
            that, never a fit score by itself (a constant scores high). rows: n.
    """

    recall_at_1: float
    chance_multiple: float
    centred_cosine: float
    raw_cosine: float
    rows: int


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return (a * b).sum(axis=1) / np.maximum(norms, 1e-30)


def _score(mapped: np.ndarray, y: np.ndarray, centre: np.ndarray) -> Score:
    """Both sides as data: mapped rows [n, r] and the reference's own [n, r]."""
    y = y.astype(np.float64)
    a, b = mapped - centre, y - centre
    recall = recall_at_1(a, b)
    return Score(
        recall, recall * len(y), float(_cosines(a, b).mean()), float(_cosines(mapped, y).mean()), len(y)
    )


def check_disjoint(
    fit_rows: np.ndarray, rows: np.ndarray, who: str, groups: np.ndarray | None = None
) -> None:
    """Refuse scored rows that were fitted, or that are equal captions of fitted ones.

    Args:
        groups: int64 [corpus rows], id of the first equal caption; None: only ids are compared.

    Raises:
        InputError: naming the first such row.
    """
    shared = np.intersect1d(fit_rows, rows)
    if shared.size:
        raise InputError(
            f"{who}: {shared.size} of {len(rows)} scored rows were fitted (first: row {shared[0]}); a map "
            "is scored only on rows it has not seen"
        )
    if groups is None:
        return
    seen = np.isin(groups[rows], groups[fit_rows])
    if seen.any():
        raise InputError(
            f"{who}: scored row {rows[np.flatnonzero(seen)[0]]} has the same caption as a fitted row "
            f"({int(seen.sum())} such rows); leave equal captions out of the scored rows"
        )


def score_map(
    fitted: WhitenedMap,
    x: np.ndarray,
    y: np.ndarray,
    rows: np.ndarray,
    *,
    who: str = "map",
    groups: np.ndarray | None = None,
) -> Score:
    """Score a map on rows it was not fitted to: x [n, d] of the teacher, y [n, r] of the reference.

    Raises:
        InputError: a scored row, or an equal caption, was among the fitted ones.
    """
    _check_pairs(x, y, rows, who)
    check_disjoint(fitted.rows, rows, who, groups)
    return _score(fitted(x), y, fitted.mean_out)


def in_sample_score(
    fitted: WhitenedMap, x: np.ndarray, y: np.ndarray, rows: np.ndarray, *, who: str = "map"
) -> Score:
    """The score on rows of the fit, for comparison only; as many of them as are scored out of sample.

    Raises:
        InputError: a row is not one of the fitted ones.
    """
    outside = np.setdiff1d(rows, fitted.rows)
    if outside.size:
        raise InputError(f"{who}: row {outside[0]} was not fitted; an in-sample score takes fitted rows only")
    return _score(fitted(x), y, fitted.mean_out)


def shuffled_score(
    fit: tuple[np.ndarray, np.ndarray, np.ndarray],
    scored: tuple[np.ndarray, np.ndarray, np.ndarray],
    *,
    seed: int,
    who: str = "map",
) -> Score:
    """The control: fit to permuted pairs, score on true ones. (x, y, rows) each."""
    x, y, rows = fit
    order = np.random.default_rng(seed).permutation(len(y))
    fitted = fit_map(x, y[order], rows, who=f"{who}, shuffled", force=True)
    return score_map(fitted, *scored, who=f"{who}, shuffled")


def constant_score(mean: np.ndarray, y: np.ndarray) -> Score:
    """The other baseline: every row mapped to the reference mean [r], whose raw cosine is high too."""
    return _score(np.broadcast_to(mean, y.shape).astype(np.float64), y, mean)


def alignment_report(
    fitted: WhitenedMap,
    out_of_sample: Score,
    in_sample: Score,
    shuffled: Score,
    constant: Score,
    *,
    ratio: float,
    who: str,
) -> dict[str, Any]:
    """One teacher's line of the alignment table, after the shuffled control was passed.

    Raises:
        InputError: the map is not above the control.
    """
    control = SHUFFLED.require(out_of_sample.centred_cosine, shuffled.centred_cosine, who)
    kept = out_of_sample.recall_at_1 / in_sample.recall_at_1 if in_sample.recall_at_1 > 0 else 0.0
    return {
        "rows_per_dimension": ratio,
        "out_of_sample": vars(out_of_sample),
        "in_sample": vars(in_sample),
        "shuffled": vars(shuffled),
        "constant": vars(constant),
        "recall_kept": kept,
        "control": control,
        "directions_dropped": {"teacher": fitted.dropped_in, "reference": fitted.dropped_out},
        "singular_values": fitted.gaps(),
        "warnings": _warnings(fitted),
    }


def _warnings(fitted: WhitenedMap) -> Sequence[str]:
    gaps = fitted.gaps()
    if gaps["smallest"] < 1e-6 * gaps["largest"]:
        return [
            f"smallest singular value {gaps['smallest']:.2e}: the map is not determined in that direction"
        ]
    if gaps["smallest_gap"] < 1e-9:
        return [
            f"neighbouring singular values nearly equal (gap {gaps['smallest_gap']:.1e}): compare mapped "
            "vectors only"
        ]
    return []
