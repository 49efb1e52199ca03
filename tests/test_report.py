"""The printed report: what stands on a line together, and what must not."""

import pytest

from captionbert.artifacts.errors import InputError
from captionbert.consensus.report import format_report

GEOMETRY = {
    "effective_rank": 31.9,
    "cv": 0.149,
    "cv_random": 0.032,
    "self_cosine": 0.09,
    "width": 384,
    "rows": 100,
}


def test_effective_rank_and_cv_stand_on_one_line() -> None:  # law 4
    text = format_report({"kind": "consensus-report", "geometry": {"minilm": GEOMETRY}})
    line = next(x for x in text.splitlines() if x.strip().startswith("minilm"))
    assert "31.9" in line
    assert "0.149" in line
    assert "0.032" in line
    for missing in ("cv", "effective_rank"):
        half = {k: v for k, v in GEOMETRY.items() if k != missing}
        with pytest.raises(
            InputError, match="minilm: effective rank and CV are reported together or not at all"
        ):
            format_report({"geometry": {"minilm": half}})


def test_tail_of_the_lengths_is_printed() -> None:
    lengths = {"p50": 14, "p90": 20, "p99": 26, "max": 333}
    block = {
        "rows": 5,
        "held_out_rows": 1,
        "counts": {"read": 7, "cut": 2},
        "characters": lengths,
        "tokens": {**lengths, "tokenizer_of": "minilm"},
    }
    text = format_report({"input": block})
    assert "2 cut" in text
    assert "length in tokens: p50 14, p90 20, p99 26, max 333 (tokenizer of minilm)" in text
    assert format_report({"kind": "consensus-report"}) == ""
