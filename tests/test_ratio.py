"""N/d before embedding: judged as soon as a width is known, on the very number of rows that the fit will have."""

from pathlib import Path

import pytest

from captionbert.artifacts.errors import InputError
from captionbert.consensus.captions import prepare_corpus
from captionbert.consensus.ratio import RatioGuard
from captionbert.consensus.sampling import stratified_sample


@pytest.mark.parametrize("sample_rows", [24_000, 57])
def test_the_rows_are_those_of_the_fit(tmp_path: Path, captions: list[str], sample_rows: int) -> None:
    (tmp_path / "a.txt").write_text("\n".join([*captions, *captions[:30]]))
    corpus = prepare_corpus([str(tmp_path / "a.txt")], tmp_path / "c", deduplicate=False)
    guard = RatioGuard.of(corpus, "ref", sample_rows=sample_rows, force=False)
    assert guard.rows == len(stratified_sample(corpus, fit_rows=sample_rows, chunk_rows=64).fit)


@pytest.mark.parametrize(
    ("widths", "teacher"),
    [
        ({"ref": 10, "one": 11}, "one"),
        ({"ref": 11, "one": 10}, "one"),  # the wider of the two counts
        ({"ref": None, "one": 10, "two": 11}, "two"),
        ({"ref": 11, "one": None}, "one"),
    ],
)
def test_a_width_that_is_known_is_judged(widths: dict[str, int | None], teacher: str) -> None:
    with pytest.raises(InputError, match=rf"teacher {teacher}: 100 fit rows for 11 dimensions, N/d = 9\.1"):
        RatioGuard(100, "ref", widths=widths).check()
    RatioGuard(110, "ref", widths=widths).check()
    RatioGuard(100, "ref", force=True, widths=widths).check()


def test_a_width_is_judged_when_it_is_learnt() -> None:
    guard = RatioGuard(100, "ref", widths={"ref": None, "one": None})
    guard.check()
    guard.learn("ref", 10)
    with pytest.raises(InputError, match="teacher one: 100 fit rows for 11 dimensions"):
        guard.learn("one", 11)


def test_the_reference_alone_needs_no_map() -> None:
    RatioGuard(100, "ref", widths={"ref": 4096}).check()
