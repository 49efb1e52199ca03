"""Gauges against hand-computed cases and the textbook, and the laws about how they may be reported."""

import dataclasses
import inspect

import numpy as np
import pytest

from captionbert.probes import geometry as module
from captionbert.probes.geometry import (
    Geometry,
    Variety,
    distribution_shift,
    geometry,
    random_unit_cv,
    recall_at_1,
    retrieval,
    self_cosine,
    simplex_cv,
    simplex_volumes,
    target_cosine,
    variety,
)


def noise(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width))


def test_effective_rank_of_a_known_spectrum() -> None:
    scales = np.array([3.0, 2.0, 1.0, 0.0])
    x = noise(40_000, 4) * scales + 100.0  # the mean must not count
    values = scales**2
    assert geometry(x).effective_rank == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=0.03)
    eigenvalues = np.linalg.eigvalsh(np.cov(x.T))
    assert geometry(x).effective_rank == pytest.approx(
        eigenvalues.sum() ** 2 / (eigenvalues**2).sum(), rel=1e-9
    )
    assert geometry(np.ones((10, 4))).effective_rank == 0.0


def test_simplex_volumes_against_the_determinant_of_edges() -> None:
    points = noise(5 * 20, 4).reshape(20, 5, 4)
    edges = points[:, 1:] - points[:, :1]
    np.testing.assert_allclose(simplex_volumes(points), np.abs(np.linalg.det(edges)) / 24, rtol=1e-9)
    regular = np.eye(5)[None]  # five points at distance sqrt(2): volume sqrt(5) / 24
    np.testing.assert_allclose(simplex_volumes(regular), np.sqrt(5) / 24, rtol=1e-12)
    flat = np.concatenate([noise(5, 3), np.zeros((5, 9))], axis=1)[None]
    np.testing.assert_allclose(simplex_volumes(flat), 0.0, atol=1e-6)


def test_cv_is_seeded_and_that_of_random_vectors_is_the_scale() -> None:
    x = noise(2000, 32)
    assert simplex_cv(x, seed=3) == simplex_cv(x, seed=3) != simplex_cv(x, seed=4)
    assert simplex_cv(x) == pytest.approx(random_unit_cv(32), rel=0.1)
    assert simplex_cv(x * 7.5) == pytest.approx(simplex_cv(x), rel=1e-9)
    assert random_unit_cv(512) < random_unit_cv(16)
    clustered = np.repeat(noise(10, 32), 200, axis=0) + 0.01 * noise(2000, 32)
    assert simplex_cv(clustered) > 3 * random_unit_cv(32)
    assert np.isfinite(simplex_cv(noise(5, 8)))


def test_effective_rank_never_comes_without_cv() -> None:  # law 4
    public = [n for n, f in inspect.getmembers(module, inspect.isfunction) if not n.startswith("_")]
    assert not [n for n in public if "rank" in n], "effective rank must only come inside Geometry"
    needed = {f.name for f in dataclasses.fields(Geometry) if f.default is dataclasses.MISSING}
    assert {"effective_rank", "cv", "cv_random"} <= needed
    found = geometry(noise(50, 8))
    line = str(found)
    assert "\n" not in line
    assert all(word in line for word in ("effective rank", "CV", "random unit vectors"))
    assert {"effective_rank", "cv", "cv_random"} <= set(found.as_dict())


def test_self_and_target_cosine_by_hand() -> None:
    x = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    assert self_cosine(x) == pytest.approx((0 + 1 + 0) * 2 / 6)
    assert target_cosine(x, np.array([[1.0, 0.0], [0.0, -5.0], [1.0, 1.0]])) == pytest.approx(
        (1 - 1 + 0.5**0.5) / 3
    )


def test_recall_counts_own_rows_and_ties_as_misses() -> None:
    x = noise(3000, 16)
    assert recall_at_1(x, x + 1e-3 * noise(3000, 16, 1)) == 1.0
    assert recall_at_1(x[:4], x[[0, 1, 3, 2]]) == 0.5
    assert recall_at_1(x, noise(3000, 16, 5)) < 0.01
    assert recall_at_1(np.ones((100, 4)), x[:100, :4]) <= 0.01
    assert recall_at_1(x[:100, :4], np.ones((100, 4))) == 0.0


def test_no_retrieval_number_without_the_variety_of_its_rows() -> None:  # law 2
    student, target = noise(60, 8), noise(60, 8, 1)
    for missing in (None, {"rows": 60}, 60):
        with pytest.raises(TypeError, match="needs the variety block of its query set"):
            retrieval(student, target, missing)  # type: ignore[arg-type]
    block = variety(["a caption"] * 59, student[:59])
    with pytest.raises(ValueError, match="describes 59 rows, the queries are 60"):
        retrieval(student, target, block)
    found = retrieval(student, target, variety(np.arange(60), student))
    text = str(found)
    assert text.index("query variety") < text.index("mimicry R@1")


def test_variety_shows_lengths_rank_and_cosine() -> None:
    texts = ["a" * n for n in range(1, 101)]
    block = variety(texts, noise(100, 8))
    assert isinstance(block, Variety)
    assert block.lengths == {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    assert sum(count for _, count in block.histogram) == 100
    assert all(word in str(block) for word in ("lengths p50", "effective rank", "self-cosine", "CV"))
    with pytest.raises(ValueError, match="3 texts or lengths for 100 vectors"):
        variety(texts[:3], noise(100, 8))


def test_gauges_take_both_sides_as_data() -> None:  # law 6: nothing is measured against itself
    x = noise(60, 8)
    block = variety(np.arange(60), x)
    for same in (x, x[:], x.view()):
        with pytest.raises(ValueError, match="both sides are the same data"):
            retrieval(x, same, block)
        with pytest.raises(ValueError, match="both sides are the same data"):
            target_cosine(x, same)
    names = inspect.signature(retrieval).parameters
    assert list(names) == ["student", "target", "variety"]  # no model, no function to invert


def test_mimicry_and_capability_share_neither_name_nor_line() -> None:  # law 7
    found = retrieval(noise(60, 8), noise(60, 8, 1), variety(np.arange(60), noise(60, 8)))
    numbers = [f.name for f in dataclasses.fields(found) if f.name not in ("chance", "variety")]
    assert numbers == ["mimicry_recall_at_1"]
    last = str(found).splitlines()[-1].lower()
    assert last.startswith("mimicry")
    assert not [w for w in ("sts", "spearman", "score", "accuracy") if w in last]


def test_shift_is_judged_on_the_tail_not_on_the_mean() -> None:  # law 19
    a = np.full(10_000, 12)
    b = a.copy()
    b[:120] = 400
    b[120:] = 7  # the mean is lower, the tail 30 times longer
    assert b.mean() < a.mean()
    found = distribution_shift(a, b)
    assert found.shifted
    assert found.p99_ratio > 30
    assert not distribution_shift(a, a + 1).shifted
    assert not any("mean" in f.name for f in dataclasses.fields(found))
    assert "p99 12 -> 400" in str(found)
    with pytest.raises(ValueError, match="found an empty one"):
        distribution_shift(a, a[:0])


def test_nonsense_is_refused() -> None:
    bad = noise(10, 4)
    bad[6, 1] = np.nan
    with pytest.raises(ValueError, match="row 6 holds NaN"):
        geometry(bad)
    with pytest.raises(ValueError, match="at least 5 rows"):
        geometry(noise(4, 4))
