"""Asymmetric pairs: each side by its own model, cut and normalised again, and no vectors of two frames."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from captionbert.artifacts.errors import InputError
from captionbert.probes.asymmetric import check_dims, check_frames, cut, probe_asymmetric, render
from captionbert.probes.scored_pairs import read_pairs

sys.path.append(str(Path(__file__).parent))
HandMade = importlib.import_module("encoder_setup").HandMade


def random_model(name: str, width: int = 6, **options):
    """Vectors drawn by name and text."""
    return HandMade(
        name,
        lambda text: np.random.default_rng([ord(c) for c in name + text]).standard_normal(width),
        width=width,
        **options,
    )


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    file = tmp_path / "p.jsonl"
    rows = [{"sentence1": f"a{i}", "sentence2": f"b{i}", "score": (i * 7) % 11} for i in range(11)]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def by_hand(first, second, dim: int, pairs: Path) -> float:
    """Spearman of cosines, sentence1 by `first` and sentence2 by `second`, one pair at a time."""
    cosines, scores = [], []
    for row in map(json.loads, pairs.read_text().split("\n")):
        x, y = first.encode([row["sentence1"]])[0, :dim], second.encode([row["sentence2"]])[0, :dim]
        cosines.append(float(np.dot(x, y) / np.sqrt(np.dot(x, x) * np.dot(y, y))))
        scores.append(row["score"])
    return float(spearmanr(cosines, scores).statistic)


def test_every_side_is_what_it_says(pairs: Path) -> None:
    small, large = random_model("small"), random_model("large")
    report = probe_asymmetric(small, large, [read_pairs(pairs)], dims=[3])
    assert report["dims"] == [3, 6]
    for dim in (3, 6):
        found = report["spearman"]["p.jsonl"][str(dim)]
        forth, back = by_hand(small, large, dim, pairs), by_hand(large, small, dim, pairs)
        assert forth != back
        assert found["query_document"] == pytest.approx(forth)
        assert found["document_query"] == pytest.approx(back)
        assert found["asymmetric"] == pytest.approx((forth + back) / 2)
        assert found["query_query"] == pytest.approx(by_hand(small, small, dim, pairs))
        assert found["document_document"] == pytest.approx(by_hand(large, large, dim, pairs))
    json.dumps(report, allow_nan=False)
    assert "query model small, document model large" in render(report)


def test_several_files_have_a_mean(pairs: Path, tmp_path: Path) -> None:
    other = tmp_path / "q.jsonl"
    other.write_text(
        "\n".join(json.dumps({"sentence1": f"c{i}", "sentence2": f"d{i}", "score": i}) for i in range(9))
    )
    report = probe_asymmetric(random_model("s"), random_model("l"), [read_pairs(pairs), read_pairs(other)])
    values = [report["spearman"][name]["6"]["asymmetric"] for name in ("p.jsonl", "q.jsonl")]
    assert report["mean"]["6"]["asymmetric"] == pytest.approx(sum(values) / 2)
    assert "mean of files" in render(report)


def test_cut_vectors_have_unit_length_again() -> None:
    found = cut(np.array([[3.0, 4.0, 12.0], [0.0, 0.0, 1.0]], dtype=np.float32), 2)
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.0, 0.0]])


def test_dims_are_checked() -> None:
    assert check_dims([5, 2], 5) == [2, 5]
    with pytest.raises(InputError, match="--dims 9: these vectors have 1 to 5 coordinates"):
        check_dims([2, 9], 5)
    with pytest.raises(InputError, match="--dims 2: given more than once"):
        check_dims([2, 2], 5)


def test_vectors_of_two_frames_are_not_compared() -> None:
    with pytest.raises(InputError, match="small and large: vectors of 6 and 7 coordinates"):
        check_frames(random_model("small"), random_model("large", 7))
    with pytest.raises(InputError, match="of frame f1 and of frame f2"):
        check_frames(random_model("s", frame_id="f1"), random_model("l", frame_id="f2"))
    with pytest.raises(InputError, match="two teachers have each their own coordinates"):
        check_frames(random_model("s", kind="teacher"), random_model("l", kind="teacher"))
    for frames in ((None, "f2"), ("f1", None), ("f1", "f1")):  # not known to differ
        check_frames(
            random_model("s", frame_id=frames[0]), random_model("l", frame_id=frames[1], kind="teacher")
        )
    check_frames(random_model("t", kind="teacher"), random_model("t", kind="teacher"))


def test_a_teacher_that_is_not_the_reference_is_of_another_frame() -> None:
    consensus = random_model("consensus:c", kind="consensus")
    consensus.facts |= {"reference": "mpnet", "teachers": {"mpnet": "fp32", "minilm": "fp32"}}
    for pair in ((consensus, random_model("minilm", kind="teacher")), (random_model("minilm"), consensus)):
        with pytest.raises(InputError, match="the coordinates of its reference mpnet, minilm its own"):
            check_frames(*pair)
    check_frames(random_model("mpnet", kind="teacher"), consensus)
    check_frames(consensus, random_model("student"))
