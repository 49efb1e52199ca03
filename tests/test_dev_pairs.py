"""Sentence pairs with scores: read from a file, correlated with cosines."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.probes.dev_pairs import pair_spearman, read_dev_pairs


def test_spearman_of_cosines() -> None:
    first = np.array([[1.0, 0.0]] * 3)
    second = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    both = np.concatenate([first, second])
    assert pair_spearman(both, np.array([5.0, 3.0, 1.0])) == pytest.approx(1.0)
    assert pair_spearman(both, np.array([1.0, 3.0, 5.0])) == pytest.approx(-1.0)
    assert pair_spearman(np.concatenate([first, first]), np.array([1.0, 2.0, 3.0])) == 0.0


def test_dev_pairs_are_read_and_a_bad_line_is_named(tmp_path: Path) -> None:
    good = {"sentence1": "a", "sentence2": "b", "score": 2.5}
    file = tmp_path / "dev.jsonl.gz"
    with gzip.open(file, "wt") as stream:
        stream.write(json.dumps(good) + "\n" + json.dumps(good) + "\n")
    pairs = read_dev_pairs(file)
    assert (pairs.first, pairs.second, pairs.scores.tolist()) == (["a", "a"], ["b", "b"], [2.5, 2.5])
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps(good) + "\n" + '{"sentence1": "a"}\n')
    with pytest.raises(InputError, match=r"bad\.jsonl, line 2: expected an object"):
        read_dev_pairs(bad)
    with pytest.raises(InputError, match="no such file"):
        read_dev_pairs(tmp_path / "none.jsonl")
    bad.write_text(json.dumps(good) + "\n")
    with pytest.raises(InputError, match="1 pairs"):
        read_dev_pairs(bad)


def test_a_damaged_file_and_a_score_that_is_no_number_are_named(tmp_path: Path) -> None:
    good = json.dumps({"sentence1": "a", "sentence2": "b", "score": 2.5}) + "\n"
    file = tmp_path / "dev.jsonl"
    file.write_text(good + good.replace("2.5", "NaN"))
    with pytest.raises(InputError, match=r"dev\.jsonl, line 2: .*the score is nan"):
        read_dev_pairs(file)
    file.write_bytes(good.encode() + b'{"sentence1": "\xff"}\n')
    with pytest.raises(InputError, match=r"dev\.jsonl: line 2 is not UTF-8"):
        read_dev_pairs(file)
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(good.encode() * 50)[:-12])
    with pytest.raises(InputError, match=r"cut\.jsonl\.gz: cannot be read after line"):
        read_dev_pairs(cut)
