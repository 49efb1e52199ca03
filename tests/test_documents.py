"""Search among documents: exact ranks by hand-made encoders, ties, chunks, factors, and what is said when."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from captionbert.artifacts.errors import InputError
from captionbert.probes.document_sets import DocumentSet, Task
from captionbert.probes.documents import (
    chance,
    check_settings,
    factors_at,
    probe_documents,
    ranks_of,
    summary_of,
)

sys.path.append(str(Path(__file__).parent))
HandMade = importlib.import_module("encoder_setup").HandMade
WORDS = ["beach", "park", "river", "tree", "road", "night"]


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_tokenizer_dir / "tokenizer.json"))


def task_of(*documents: tuple[int, list[str]], queries: list[str] | None = None) -> Task:
    """Query i asks for document i."""
    sets = [
        DocumentSet(length, texts, np.full(len(texts), length), np.full(len(texts), 3))
        for length, texts in documents
    ]
    about = {"captions": {}, "split": "dev", "seed": 0, "query_is": "held caption"}
    return Task(queries or WORDS, np.arange(len(WORDS)), sets, about)


def counting(name: str, limit: int = 1000, **options) -> HandMade:
    """Counts of WORDS among the first `limit` words, and a little of everything."""

    def vector(text: str) -> list[float]:
        words = text.replace(".", " ").split()[:limit]
        return [0.01 + words.count(w) for w in WORDS]

    return HandMade(name, vector, width=len(WORDS), max_tokens=limit + 2, **options)


def test_ranks_count_ties_as_nearer() -> None:
    scores = np.array([[0.9, 0.1, 0.2], [0.5, 0.5, 0.1], [0.3, 0.2, 0.1]])
    ranks = ranks_of(scores, np.array([0, 1, 2]))
    assert ranks.tolist() == [1, 2, 3]
    assert summary_of(ranks) == {
        "r1": pytest.approx(1 / 3),
        "r10": 1.0,
        "mrr": pytest.approx((1 + 1 / 2 + 1 / 3) / 3),
    }
    assert ranks_of(np.ones((2, 4)), np.array([0, 3])).tolist() == [4, 4]  # a constant model finds nothing


def test_chance_is_that_of_a_random_order() -> None:
    assert chance(4) == {"r1": 0.25, "r10": 1.0, "mrr": pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)}
    assert chance(40)["r10"] == 0.25


def test_a_model_that_reads_the_start_fails_where_chunks_do_not(tokenizer: Tokenizer) -> None:
    # six words of nothing, then the word that the query asks for
    texts = [f"a man waits. a man {word}." for word in WORDS]
    said: list[str] = []
    report = probe_documents(
        [counting("short", 5), counting("long")], task_of((12, texts)), tokenizer, chunk=8, say=said.append
    )
    rows = {(row["model"], row["way"]): row for row in report["results"]}
    assert rows["long", "whole"]["r1"] == 1.0
    assert not rows["long", "whole"]["cut"]
    assert rows["short", "whole"]["r1"] == 0.0
    assert rows["short", "whole"]["cut"]
    assert rows["short", "best of chunks"]["r1"] == rows["short", "mean of chunks"]["r1"] == 1.0
    assert rows["short", "best of chunks"]["chunks"] == 12
    assert rows["short", "mean of chunks"][
        "cut"
    ]  # chunks of 8 tokens are cut as well by a model that reads 7
    assert report["chance"]["r1"] == pytest.approx(1 / 6)
    assert any("short" in line and "cut at 7 tokens" in line for line in said)
    # law 2: what the queries are like is said before any number of their retrieval
    first = next(i for i, line in enumerate(said) if line.startswith("short") and "whole" in line)
    assert any("query variety: 6 rows" in line for line in said[:first])
    json.dumps(report, allow_nan=False)


def test_mean_and_best_of_chunks_are_what_they_say(tokenizer: Tokenizer) -> None:
    # document 0: one chunk of its own word and three of the next one; the mean is nearer to the wrong query
    texts = [
        "a man beach. " + "a man park. " * 3,
        "a man park. a man park.",
        *(f"a man {w}." for w in WORDS[2:]),
    ]
    report = probe_documents([counting("m")], task_of((30, texts)), tokenizer, chunk=8)
    found = {row["way"]: row for row in report["results"]}
    assert found["best of chunks"]["r1"] < 1.0  # park is in documents 0 and 1 alike: a tie, so a miss
    assert found["mean of chunks"]["r1"] == found["whole"]["r1"] == 1.0


def test_the_best_chunk_decides(tokenizer: Tokenizer) -> None:
    # each word is a chunk of two documents, so the right one always shares the first place: a tie, rank 2
    texts = [f"a man waits {one}. a dog runs {two}." for one, two in zip(WORDS, WORDS[1:] + WORDS[:1])]
    report = probe_documents([counting("m")], task_of((14, texts)), tokenizer, chunk=8)
    best = next(row for row in report["results"] if row["way"] == "best of chunks")
    assert (best["r1"], best["mrr"], best["chunks"]) == (0.0, 0.5, 12)


def test_factors_are_tried_beyond_the_training_length_and_taken_back(tokenizer: Tokenizer) -> None:
    texts = [f"a man {word}." for word in WORDS]
    model, fixed = counting("m", stretchable=True, trained_tokens=64), counting("fixed")
    report = probe_documents(
        [model, fixed], task_of((64, texts), (256, texts)), tokenizer, factors=[1.0, 2.0, 4.0]
    )
    whole = [
        (row["model"], row["length"], row["factor"])
        for row in report["results"]
        if row["way"].startswith("whole")
    ]
    assert whole == [
        ("m", 64, 1.0), ("m", 256, 1.0), ("m", 256, 2.0), ("m", 256, 4.0), ("fixed", 64, 1.0), ("fixed", 256, 1.0),
    ]  # fmt: skip
    assert model.factor == 1.0
    assert factors_at(counting("m", stretchable=True), 8, [2.0]) == [
        1.0,
        2.0,
    ]  # no training length is recorded


def test_a_factor_is_taken_back_after_an_error(tokenizer: Tokenizer) -> None:
    class Failing(HandMade):  # type: ignore[valid-type, misc]
        def encode(self, texts: list[str]) -> np.ndarray:
            if self.factor != 1:
                raise RuntimeError("out of memory")
            return super().encode(texts)

    model = Failing("m", lambda text: [1.0, len(text)], stretchable=True)
    with pytest.raises(RuntimeError):
        probe_documents([model], task_of((64, WORDS)), tokenizer, factors=[2.0])
    assert model.factor == 1.0


def test_settings_are_checked(tokenizer: Tokenizer) -> None:
    models = [counting("m", stretchable=True)]
    for arguments, message in (
        (([64, 64], [1.0], 64, models), "--lengths 64: given more than once"),
        (([64], [2.0, 2.0], 64, models), "--rotary-factors 2: given more than once"),
        (([64], [0.5], 64, models), "--rotary-factors 0.5: expected 1 or more"),
        (([64], [1.0], 7, models), "--chunk 7: expected 8 tokens or more"),
        (([64], [2.0], 64, [counting("m")]), "none of these models has rotary positions"),
    ):
        with pytest.raises(InputError, match=message):
            check_settings(*arguments)
    few = task_of((12, WORDS[:3]), queries=WORDS[:3])
    with pytest.raises(InputError, match="--queries 3: 5 or more are needed"):
        probe_documents(models, few, tokenizer)
