"""Geometry of several models: the gauges of the same rows, never one without the other."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.probes.geometry import geometry
from captionbert.probes.geometry_table import probe_geometry, render
from captionbert.probes.texts import sample

sys.path.append(str(Path(__file__).parent))
HandMade = importlib.import_module("encoder_setup").HandMade


def by_name(name: str, spread: float):
    def vector(text: str) -> np.ndarray:
        return np.random.default_rng([ord(c) for c in name + text]).standard_normal(8) * [1, *[spread] * 7]

    return HandMade(name, vector, width=8)


def test_each_model_has_the_gauges_of_the_same_distinct_rows(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("\n".join([f"cat {i}" for i in range(60)] + ["cat 1"] * 9))
    (tmp_path / "out.txt").write_text("\n".join(f"news {i}" for i in range(30)))
    words = [str(tmp_path / name) for name in ("in.txt", "out.txt")]
    models = [by_name("wide", 1.0), by_name("flat", 0.05)]
    report = probe_geometry(models, {word: sample(word, 40, 3) for word in words}, seed=3)
    block = report["files"]["in.txt"]
    assert (block["rows"], block["of"], block["seed"]) == (40, 69, 3)
    texts = list(dict.fromkeys(sample(words[0], 40, 3).texts))
    assert block["distinct"] == len(texts) < 40
    expected = geometry(by_name("flat", 0.05).encode(texts), seed=3)
    assert block["geometry"]["flat"] == expected.as_dict()
    assert block["geometry"]["flat"]["effective_rank"] < 2 < block["geometry"]["wide"]["effective_rank"]
    assert set(models[0].seen) == set(models[1].seen)
    assert {"effective_rank", "cv", "cv_random"} <= set(block["geometry"]["wide"])
    json.dumps(report, allow_nan=False)
    assert "CV of random unit vectors" in render(report)


def test_too_few_distinct_captions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("a\nb\nc\nd\na\n")
    with pytest.raises(InputError, match=r"few\.txt: 4 distinct captions; 5 or more are needed"):
        probe_geometry([by_name("x", 1.0)], {"few.txt": sample(str(tmp_path / "few.txt"), 9, 0)})
