"""What the probes of several models share: equal texts once, tables in line."""

import importlib
import sys
from pathlib import Path

import numpy as np

from captionbert.probes.compared import described, file_labels, table, vectors_of

sys.path.append(str(Path(__file__).parent))
HandMade = importlib.import_module("encoder_setup").HandMade


def test_equal_texts_are_encoded_once_and_every_row_has_its_own() -> None:
    encoder = HandMade("x", lambda text: (1.0, len(text)))
    texts = ["ccc", "a", "bb", "a", "ccc", "dddd", "a"]
    found = vectors_of(encoder, texts, window=2)
    assert encoder.seen == ["ccc", "a", "bb", "dddd"]
    np.testing.assert_allclose(found[:, 1] / found[:, 0], [3, 1, 2, 1, 3, 4, 1], rtol=1e-6)
    assert described([encoder]) == {"x": {"is": "model", "digest": "x", "width": 2}}


def test_a_table_is_aligned() -> None:
    assert table(["model", "n"], [["a", "10"], ["longer", "7"]]) == ["model    n", "a       10", "longer   7"]


def test_files_are_called_by_name_unless_two_share_it() -> None:
    assert file_labels(["a/x.txt", "b/y.txt"]) == ["x.txt", "y.txt"]
    assert file_labels(["a/x.txt", "b/x.txt", "y.txt"]) == ["a/x.txt", "b/x.txt", "y.txt"]
