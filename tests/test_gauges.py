"""What is measured while training, and its files."""

import json
from pathlib import Path

import numpy as np
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.training.gauges import (
    MetricsFiles,
    Validation,
    best_value,
    describe,
    evaluate,
)


def unit(rows: int, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((rows, 6)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_a_point_of_the_curve_has_effective_rank_only_with_cv() -> None:
    vectors, pairs = unit(20, 0), unit(8, 1)
    validation = Validation([[1]] * 20, vectors.copy(), [[2]] * 8, np.arange(4.0))
    point = evaluate(lambda ids, _: (vectors if ids[0] == [1] else pairs, None), validation, 12)
    assert point["step"] == 12
    assert point["target_cosine"] == pytest.approx(1.0, abs=1e-6)
    assert {"effective_rank", "cv", "cv_random", "self_cosine"} <= point["geometry"].keys()
    assert "effective rank" in describe(point)
    assert "CV" in describe(point)
    assert best_value(point) == ("dev_spearman", point["dev_spearman"])
    del point["dev_spearman"]
    assert best_value(point)[0] == "target_cosine"


def test_vectors_that_are_not_finite_are_named_by_step() -> None:
    bad = unit(20, 0)
    bad[3] = np.nan
    with pytest.raises(InputError, match="step 7: the student's vectors are not finite"):
        evaluate(lambda ids, _: (bad, None), Validation([[1]] * 20, unit(20, 1), [], None), 7)


def test_lines_past_the_checkpoint_and_torn_lines_are_dropped(tmp_path: Path) -> None:
    files = MetricsFiles(tmp_path)
    files.start(0)
    for step in range(1, 6):
        files.log({"step": step, "loss": 0.1 * step}, {"step": step, "seconds": 1.0})
    files.sync()
    before = files.lines.read_bytes()
    with open(files.lines, "ab") as stream:
        stream.write(b'{"step": 6, "lo')
    files.start(5)
    assert files.lines.read_bytes() == before
    files.start(3)
    assert [json.loads(line)["step"] for line in files.lines.read_text().splitlines()] == [1, 2, 3]
    assert "seconds" not in files.lines.read_text()
