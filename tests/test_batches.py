"""Which corpus rows are trained on."""

from typing import Any

import numpy as np
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.training.batches import split_rows


class Held:
    """100 rows, every tenth held out; a.txt has 60, b.txt 30, c.txt 10."""

    held_out = np.arange(100) % 10 == 0
    sources = (("a.txt", 0, 60), ("b.txt", 60, 90), ("c.txt", 90, 100))


def rows_of(limit: int | None = None, shares: dict[str, float] | None = None) -> tuple[Any, Any]:
    training, held_out = split_rows(Held(), limit, shares)  # type: ignore[arg-type]
    assert held_out.tolist() == list(range(0, 100, 10))  # of every source, so that runs can be compared
    assert not Held.held_out[training].any()
    return training, held_out


def test_all_rows_or_the_first() -> None:
    assert len(rows_of()[0]) == len(rows_of(shares={})[0]) == 90
    assert rows_of(limit=12)[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13]


def test_shares_of_sources_are_spread_evenly() -> None:
    training, _ = rows_of(shares={"b.txt": 1, "a.txt": 0.1})
    assert training[-27:].tolist() == [row for row in range(60, 90) if row % 10]
    assert training[:-27].tolist() == [1, 15, 29, 44, 59]  # 5.4 of the 54 become 5
    assert rows_of(shares={"c.txt": 0.001})[0].tolist() == [91]  # never none
    assert rows_of(limit=3, shares={"c.txt": 1})[0].tolist() == [91, 92, 93]


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"data\.sources names \['d.txt'\]; the corpus has a.txt, b.txt, c.txt"
    ):
        rows_of(shares={"a.txt": 1, "d.txt": 1})


def test_a_source_without_training_rows_is_refused() -> None:
    class Empty(Held):
        sources = (*Held.sources, ("copies.txt", 100, 100))

    with pytest.raises(InputError, match=r"names \['copies.txt'\], of which no caption is trained on"):
        split_rows(Empty(), None, {"a.txt": 1, "copies.txt": 1})  # type: ignore[arg-type]

    class Twice(Held):
        sources = (*Held.sources, ("a.txt", 100, 100))  # a second a.txt, all of it copies

    assert len(split_rows(Twice(), None, {"a.txt": 1})[0]) == 54  # type: ignore[arg-type]


def test_more_rows_than_there_are() -> None:
    with pytest.raises(InputError, match=r"data\.rows asks for 91 training captions, the corpus has 90"):
        rows_of(limit=91)


def test_without_held_out_rows_there_is_no_judge() -> None:
    class None_(Held):
        held_out = np.zeros(100, dtype=bool)

    with pytest.raises(InputError, match="the corpus holds out no caption"):
        split_rows(None_(), None)  # type: ignore[arg-type]
