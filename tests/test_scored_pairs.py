"""Sentence pairs with scores: read from a file, correlated with cosines."""

import gzip
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import sha256_file
from captionbert.probes.scored_pairs import pair_spearman, read_pairs


def test_spearman_of_cosines() -> None:
    first = np.array([[1.0, 0.0]] * 3)
    second = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    both = np.concatenate([first, second])
    assert pair_spearman(both, np.array([5.0, 3.0, 1.0])) == pytest.approx(1.0)
    assert pair_spearman(both, np.array([1.0, 3.0, 5.0])) == pytest.approx(-1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # scipy's, which nobody could act on
        assert pair_spearman(np.concatenate([first, first]), np.array([1.0, 2.0, 3.0])) == 0.0


def test_pairs_are_read_in_order_and_blank_lines_left_out(tmp_path: Path) -> None:
    file = tmp_path / "dev.jsonl.gz"
    rows = [
        {"sentence1": "a", "sentence2": "b", "score": 2.5},
        {"sentence1": "c", "sentence2": "d", "score": 1},
    ]
    file.write_bytes(gzip.compress("\n\n".join(map(json.dumps, rows)).encode()))
    pairs = read_pairs(file)
    assert (pairs.first, pairs.second, pairs.scores) == (["a", "c"], ["b", "d"], [2.5, 1.0])
    assert pairs.sha256 == sha256_file(file)


def test_bad_rows_name_file_and_line(tmp_path: Path) -> None:
    good = '{"sentence1": "a", "sentence2": "b", "score": 1}\n'
    cases = {
        '{"sentence1": "a", "score": 1}': "line 2: field 'sentence2' is missing; expected the fields",
        '{"sentence1": "a", "sentence2": "b"}': "line 2: field 'score' is missing",
        '{"sentence1": 3, "sentence2": "b", "score": 1}': "line 2: field 'sentence1' must be text, found int",
        '{"sentence1": "a", "sentence2": "b", "score": "x"}': "'score' must be a finite number, found 'x'",
        '{"sentence1": "a", "sentence2": "b", "score": NaN}': "'score' must be a finite number, found nan",
        '{"sentence1": "a", "sent': r"line 2: not valid JSON .* is the line cut\?",
        '{"sentence1": "a", "sentence2": "b", "score": 1'
        + "0" * 400
        + "}": "must be a finite number, found 10",
        '{"sentence1": "a\\ud800", "sentence2": "b", "score": 1}': "field 'sentence1' holds half a surrogate pair",
        "[1]": "line 2: expected a JSON object, found list",
    }
    path = tmp_path / "stsb-test.jsonl"
    for row, message in cases.items():
        path.write_text(good + row + "\n")
        with pytest.raises(InputError, match=message) as caught:
            read_pairs(path)
        assert str(path) in str(caught.value)
    path.write_bytes(good.encode() + b'{"sentence1": "\xff"}\n')
    with pytest.raises(InputError, match="line 2 is not UTF-8"):
        read_pairs(path)
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(good.encode() * 50)[:-12])
    with pytest.raises(InputError, match=r"cut\.jsonl\.gz: cannot be read after line"):
        read_pairs(cut)
    with pytest.raises(InputError, match=r"none\.jsonl: no such file"):
        read_pairs(tmp_path / "none.jsonl")
    path.write_text("")
    with pytest.raises(InputError, match="0 pairs with 0 distinct scores"):
        read_pairs(path)
