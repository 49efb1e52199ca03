"""Maps: exact cases, float64 accuracy, degenerate teachers, and the rules of an honest score."""

import inspect

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes

from captionbert.artifacts.errors import InputError
from captionbert.consensus import alignment as module
from captionbert.consensus.alignment import (
    Moments,
    alignment_report,
    check_disjoint,
    constant_score,
    fit_map,
    in_sample_score,
    moments_of,
    score_map,
    shuffled_score,
)

RANDOM = np.random.default_rng(0)


def pair(
    rows: int, d: int, r: int, latent: int = 8, noise: float = 0.2, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Teacher [rows, d] and reference [rows, r] of one set of latent vectors, with offsets and noise."""
    random = np.random.default_rng(seed)
    z = random.standard_normal((rows, latent))
    x = (
        z @ random.standard_normal((latent, d))
        + random.standard_normal(d)
        + noise * random.standard_normal((rows, d))
    )
    y = (
        z @ random.standard_normal((latent, r))
        + random.standard_normal(r)
        + noise * random.standard_normal((rows, r))
    )
    return x.astype(np.float32), y.astype(np.float32)


def test_moments_equal_numpy_in_any_split_and_order() -> None:
    x = RANDOM.standard_normal((1000, 5)) + 100.0  # mean far from the spread: float32 sums would be 1 % off
    y = x[:, :3] @ RANDOM.standard_normal((3, 4)) + 100.0
    expected = np.cov(np.concatenate([x, y], axis=1).T)
    for cuts, order in (([1, 7, 500], [0, 1, 2, 3]), ([333, 666], [2, 0, 1]), ([], [0])):
        parts = list(zip(np.split(x, cuts), np.split(y, cuts)))
        moments = Moments(5, 4)
        for i in order:
            moments.merge(moments_of(*parts[i]))
        xx, xy, yy = moments.covariances()
        scale = np.abs(expected).max()
        np.testing.assert_allclose(xx, expected[:5, :5], atol=1e-12 * scale)
        np.testing.assert_allclose(xy, expected[:5, 5:], atol=1e-12 * scale)
        np.testing.assert_allclose(yy, expected[5:, 5:], atol=1e-12 * scale)
        np.testing.assert_allclose(moments.mean_x, x.mean(0), rtol=1e-14)
    assert moments.merge(Moments(5, 4)).count == 1000


def test_a_teacher_maps_to_itself_identically() -> None:
    x, _ = pair(400, 12, 6)
    fitted = fit_map(x, x, np.arange(400))
    assert np.abs(fitted(x) - x).max() < 1e-10


def test_a_rotation_is_recovered_and_agrees_with_scipy() -> None:
    x = RANDOM.standard_normal((500, 7)) * np.arange(1, 8)
    rotation = np.linalg.qr(RANDOM.standard_normal((7, 7)))[0]
    y = x @ rotation + 3.0
    fitted = fit_map(x, y, np.arange(500))
    np.testing.assert_allclose(fitted(x), y, atol=1e-9)
    white_x, white_y = (
        v @ module.whitening(np.cov(v.T), "v", ridge=0).forward for v in (x - x.mean(0), y - y.mean(0))
    )
    expected = white_x @ orthogonal_procrustes(white_x, white_y)[0]
    np.testing.assert_allclose(expected, white_y, atol=1e-9)


def test_whitened_procrustes_against_scipy_where_the_fit_is_not_exact() -> None:
    x, y = pair(600, 9, 9)
    fitted = fit_map(x, y, np.arange(600), ridge=0)
    x64, y64 = x.astype(float), y.astype(float)
    w_x, w_r = (module.whitening(np.cov(v.T), "v", ridge=0) for v in (x64, y64))
    q = orthogonal_procrustes((x64 - x64.mean(0)) @ w_x.forward, (y64 - y64.mean(0)) @ w_r.forward)[0]
    expected = (x64 - x64.mean(0)) @ w_x.forward @ q @ w_r.backward + y64.mean(0)
    np.testing.assert_allclose(fitted(x), expected, atol=1e-8)


@pytest.mark.parametrize(("d", "r"), [(6, 14), (14, 6), (10, 10)])
def test_any_width_maps_into_any_width(d: int, r: int) -> None:
    x, y = pair(700, d, r, latent=4)
    fit, held = np.arange(500), np.arange(500, 700)
    fitted = fit_map(x[fit], y[fit], fit)
    assert fitted(x).shape == (700, r)
    assert score_map(fitted, x[held], y[held], held).centred_cosine > 0.9
    # the middle factor is semi-orthogonal: its singular values are all 1
    w_x, w_r = (module.whitening(np.cov(v[fit].astype(float).T), "v") for v in (x, y))
    q = w_x.backward @ fitted.matrix @ w_r.forward
    np.testing.assert_allclose(np.linalg.svd(q, compute_uv=False), 1.0, atol=1e-6)


def test_row_order_does_not_change_the_map() -> None:
    x, y = pair(400, 8, 10)
    order = RANDOM.permutation(400)
    one, two = fit_map(x, y, np.arange(400)), fit_map(x[order], y[order], order)
    np.testing.assert_allclose(one(x), two(x), atol=1e-9)
    assert np.array_equal(one.rows, two.rows)


def test_equal_singular_values_leave_mapped_vectors_alone() -> None:
    # an isotropic pair has whole planes of equal singular values: U and V are arbitrary there, U V^T is not
    x = np.linalg.qr(RANDOM.standard_normal((300, 6)) - 0)[0]
    x -= x.mean(0)
    fitted = fit_map(x, x @ np.linalg.qr(RANDOM.standard_normal((6, 6)))[0], np.arange(300))
    assert fitted.gaps()["smallest_gap"] < 1e-6
    again = fit_map(x[::-1], (x @ fitted.matrix)[::-1], np.arange(300)[::-1])
    np.testing.assert_allclose(fitted(x) - fitted.mean_out, again(x) - again.mean_out, atol=1e-9)


def test_constant_and_duplicated_columns_are_dropped_and_counted() -> None:
    x, y = pair(600, 8, 8)
    x = np.concatenate([x, np.full((600, 2), 4.0), x[:, :1]], axis=1)
    fitted = fit_map(x, y, np.arange(600))
    assert (fitted.dropped_in, fitted.dropped_out) == (3, 0)
    assert np.isfinite(fitted.matrix).all()


def test_a_teacher_of_rank_one_or_none_is_refused() -> None:
    _, y = pair(600, 8, 8)
    line = np.outer(RANDOM.standard_normal(600), RANDOM.standard_normal(8))
    with pytest.raises(
        InputError, match="teacher t: its vectors vary in 1 of 8 directions, at least 2 are needed"
    ):
        fit_map(line, y, np.arange(600), who="teacher t")
    with pytest.raises(InputError, match="vary in 0 of 8 directions"):
        fit_map(np.ones((600, 8)), y, np.arange(600))


def test_fewer_rows_than_dimensions_even_forced_gives_no_nan() -> None:
    x, y = pair(20, 30, 40)
    fitted = fit_map(x, y, np.arange(20), force=True)
    assert np.isfinite(fitted(x)).all()
    assert fitted.dropped_in >= 11
    assert fitted.dropped_out >= 21


def test_under_ten_rows_a_dimension_is_an_error_unless_forced() -> None:
    x, y = pair(99, 6, 10)
    with pytest.raises(
        InputError, match=r"99 fit rows for 10 dimensions, N/d = 9\.9; at least 10 are needed \(100 rows\)"
    ):
        fit_map(x, y, np.arange(99))
    fit_map(x, y, np.arange(99), force=True)
    fit_map(*pair(100, 6, 10), np.arange(100))


def test_a_nan_row_is_named() -> None:
    x, y = pair(100, 4, 4)
    x[17, 2] = np.nan
    with pytest.raises(InputError, match="teacher t: its vector of row 5017 holds NaN"):
        fit_map(x, y, np.arange(5000, 5100), who="teacher t")


def test_fitted_rows_are_never_scored() -> None:  # law 3
    x, y = pair(300, 6, 6)
    fit, held = np.arange(200), np.arange(200, 300)
    fitted = fit_map(x[fit], y[fit], fit)
    rows = np.append(held, 7)
    with pytest.raises(InputError, match=r"1 of 101 scored rows were fitted \(first: row 7\)"):
        score_map(fitted, x[rows], y[rows], rows)
    groups = np.arange(300)
    groups[250] = 3  # the same caption as fitted row 3
    with pytest.raises(InputError, match="scored row 250 has the same caption as a fitted row"):
        score_map(fitted, x[held], y[held], held, groups=groups)
    with pytest.raises(InputError, match="row 250 was not fitted; an in-sample score takes fitted rows only"):
        in_sample_score(fitted, x[held], y[held], np.array([250]))
    check_disjoint(fit, held, "map", np.arange(300))
    assert "rows" in inspect.signature(score_map).parameters


def test_scores_are_centred_so_an_offset_earns_nothing() -> None:
    x, y = pair(3000, 10, 10, noise=0.1)
    y = y + 20.0
    unrelated = RANDOM.standard_normal((3000, 10))
    fit, held = np.arange(2000), np.arange(2000, 3000)
    good = score_map(fit_map(x[fit], y[fit], fit), x[held], y[held], held)
    bad = score_map(fit_map(unrelated[fit], y[fit], fit), unrelated[held], y[held], held)
    assert good.centred_cosine > 0.95
    assert abs(bad.centred_cosine) < 0.3
    assert bad.raw_cosine > 0.9, "the raw cosine is fooled by the offset: that is why it is not the score"
    assert good.recall_at_1 > 0.9
    assert good.chance_multiple == pytest.approx(good.recall_at_1 * 1000)
    constant = constant_score(y.mean(0), y[held])
    assert constant.centred_cosine == 0.0
    assert constant.recall_at_1 == 0.0
    assert constant.raw_cosine > 0.9


def report_of(x: np.ndarray, y: np.ndarray) -> dict:
    fit, held = np.arange(1000), np.arange(1000, 1300)
    fitted = fit_map(x[fit], y[fit], fit)
    scored = (x[held], y[held], held)
    return alignment_report(
        fitted,
        score_map(fitted, *scored),
        in_sample_score(fitted, x[:300], y[:300], fit[:300]),
        shuffled_score((x[fit], y[fit], fit), scored, seed=0),
        constant_score(fitted.mean_out, y[held]),
        ratio=100.0,
        who="teacher t",
    )


def test_shuffled_pairs_fail_the_fit() -> None:
    x, y = pair(1300, 10, 10, latent=10, noise=0.5)
    good = report_of(x, y)
    assert good["control"]["refuted"] is False
    assert good["control"]["claim"] > good["control"]["control"] + 0.3
    assert 0.8 < good["recall_kept"] <= 1.05
    wide = np.random.default_rng(1)
    x, y = (
        wide.standard_normal((1300, 64)),
        wide.standard_normal((1300, 64)),
    )  # rows that do not belong together
    with pytest.raises(
        InputError,
        match=r"not above that of the same fit on shuffled pairs .* do not belong to these captions",
    ):
        report_of(x, y)
