"""Binding: exact accuracies of hand-made encoders, ties, the control in whole numbers, and refusals by line."""

import gzip
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.probes.binding import (
    CONTROL,
    BindingRow,
    probe_binding,
    read_binding,
    render,
    right_by_words,
    save_arrays,
)

sys.path.append(str(Path(__file__).parent))
HandMade = importlib.import_module("encoder_setup").HandMade
ROWS = [
    {"caption": "a1", "same_image": ["a2", "a3", "n9"], "negative": "n1"},
    {"caption": "a1", "same_image": ["n5"], "negative": "n2"},
]


def write(path: Path, rows: list) -> Path:
    text = "\n".join(json.dumps(row) for row in rows) + "\n\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def first_letter(text: str) -> tuple[float, float]:
    return (1.0, 0.0) if text[0] == "a" else (0.0, 1.0)


def test_a_row_counts_once_and_its_share_is_exact(tmp_path: Path) -> None:
    one = write(tmp_path / "swap.jsonl.gz", ROWS)
    other = write(tmp_path / "more.jsonl", [{**ROWS[0], "type": "named"}, "", ROWS[1]][::2])
    probe = probe_binding([HandMade("letters", first_letter)], [read_binding(one), read_binding(other)])
    scores = probe.report["accuracy"]["letters"]
    # a2 and a3 are nearer to a1, n9 and n5 are not: two thirds of the first row, nothing of the second
    assert scores["swap"]["accuracy"] == pytest.approx((2 / 3 + 0) / 2)
    assert scores["named"]["accuracy"] == pytest.approx(2 / 3)
    assert scores["more"]["accuracy"] == 0.0
    assert scores["overall"]["accuracy"] == pytest.approx((2 / 3 + 0 + 2 / 3 + 0) / 4)
    assert scores["overall"]["all_right"] == 0.0
    assert scores["named"]["low"] == scores["named"]["high"] == pytest.approx(2 / 3)  # one row has no spread
    assert scores["overall"]["low"] < scores["overall"]["accuracy"] < scores["overall"]["high"]
    assert probe.report["triples"] == {"swap": 4, "named": 3, "more": 1}
    np.testing.assert_allclose(probe.arrays["share_right"][0], [2 / 3, 0, 2 / 3, 0])
    assert probe.arrays["file_number"].tolist() == [0, 0, 1, 1]
    assert probe.arrays["line"].tolist() == [1, 2, 1, 2]
    save_arrays(probe, tmp_path / "b.npz")
    assert np.load(tmp_path / "b.npz")["names"].tolist() == ["letters", CONTROL]
    json.dumps(probe.report, allow_nan=False)
    assert "0.3333 [" in render(probe.report)


def test_a_tie_is_a_miss(tmp_path: Path) -> None:
    file = read_binding(write(tmp_path / "t.jsonl", ROWS))
    constant = HandMade("constant", lambda text: (1.0, 1.0))
    noisy = HandMade("noisy", lambda text: (1.0, 1.0 + 1e-9 * len(text)))  # rounding alone
    report = probe_binding([constant, noisy], [file]).report["accuracy"]
    assert report["constant"]["overall"]["accuracy"] == report["noisy"]["overall"]["accuracy"] == 0.0


def test_rows_that_say_nothing_are_refused(tmp_path: Path) -> None:
    for change, message in (
        ({"negative": "a1"}, r"line 2: field 'negative' is the caption itself"),
        ({"same_image": ["a2", "a1"]}, r"line 2: field 'same_image' holds the caption itself"),
        ({"type": "overall"}, r"line 2: 'overall' is the name of all types together"),
    ):
        with pytest.raises(InputError, match=message):
            read_binding(write(tmp_path / "t.jsonl", [ROWS[0], ROWS[1] | change]))
    with pytest.raises(InputError, match=r"line 1: 'overall' is the name"):
        read_binding(write(tmp_path / "overall.jsonl", ROWS))
    file = read_binding(write(tmp_path / "t.jsonl", ROWS))
    with pytest.raises(InputError, match="'bag of words' is the name of the control"):
        probe_binding([HandMade(CONTROL, first_letter)], [file])


def test_the_control_counts_words_and_nothing_else() -> None:
    def right(caption: str, negative: str, *others: str) -> float:
        return float(right_by_words([BindingRow(1, "t", caption, others, negative)])[0])

    assert right("a red cat", "a blue cat", "the RED one.") == 1.0
    assert right("dog bites man", "man bites dog", "a dog bites") == 0.0  # order is not seen: a tie
    assert right("a cat", "a cat", "a cat") == 0.0
    assert right("", "a", "b") == right("...", "b", "b") == 0.0
    # cosines 1/sqrt(2) and 2/sqrt(5): a word twice counts twice
    assert right("x x y", "x y", "x") == 1.0
    assert right("x y", "x x y", "x") == 0.0
    # 1/sqrt(3) against 2/sqrt(12), equal in whole numbers and not in floating point
    assert right("x y z", "x x y y z z", "x") == 0.0
    assert right("x x y y z z", "x y z", "x") == 0.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("[1]", "line 2: expected a JSON object, found list"),
        ("{", "line 2: not valid JSON"),
        (
            '{"caption": "a", "negative": "b"}',
            "line 2: field 'same_image' is missing; expected the fields caption",
        ),
        (
            '{"caption": "a", "same_image": [], "negative": "b"}',
            "line 2: field 'same_image' must be a list of one",
        ),
        (
            '{"caption": "a", "same_image": "x", "negative": "b"}',
            "line 2: field 'same_image' must be a list of one",
        ),
        (
            '{"caption": 7, "same_image": ["x"], "negative": "b"}',
            "line 2: field 'caption' must be text, found 7",
        ),
        (
            '{"caption": "a", "same_image": [null], "negative": "b"}',
            "line 2: field 'same_image' must be text",
        ),
        ('{"caption": "a", "same_image": ["x"], "negative": " "}', "line 2: field 'negative' must be text"),
        (
            '{"caption": "a", "same_image": ["x"], "negative": "b", "type": 1}',
            "line 2: field 'type' must be text",
        ),
        (
            '{"caption": "\\ud800", "same_image": ["x"], "negative": "b"}',
            "line 2: field 'caption' must be text",
        ),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, row: str, message: str) -> None:
    file = tmp_path / "w.jsonl"
    file.write_text(json.dumps(ROWS[0]) + "\n" + row + "\n")
    with pytest.raises(InputError, match=message):
        read_binding(file)


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").write_text("\n")
    with pytest.raises(InputError, match=r"e\.jsonl: holds no row"):
        read_binding(tmp_path / "e.jsonl")
    with pytest.raises(InputError, match="no such file; expected JSONL with caption"):
        read_binding(tmp_path / "none.jsonl")
