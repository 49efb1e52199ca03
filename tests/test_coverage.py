"""Corpus coverage: against a count one row at a time, and with flat memory."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from captionbert.artifacts.errors import InputError
from captionbert.probes.coverage import Coverage, measure, render
from captionbert.probes.word_records import Vocabulary, lookup_targets

TOKENS = ["[CLS]", "[SEP]", "dog", "cat", "##s", "the", ".", "!", "?", ";"]
CLS, SEP, DOG, CAT, S, THE, DOT = range(7)
VOCABULARY = Vocabulary.from_tokens({t: i for i, t in enumerate(TOKENS)}, {CLS, SEP})


def slow(ids: list[list[int]]) -> dict[str, list[int]]:
    """Length and largest segment (-1 for none) of each row, one token at a time."""
    found: dict[str, list[int]] = {"length": [], "segment": []}
    for row in ids:
        ended, largest = 0, -1
        for token in row:
            if token in (CLS, SEP):
                continue
            largest = ended
            ended += token >= DOT
        found["length"].append(len(row))
        found["segment"].append(largest)
    return found


def test_random_rows_agree_with_a_slow_count() -> None:
    random = np.random.default_rng(0)
    ids = [random.integers(0, len(TOKENS), size=random.integers(0, 300)).tolist() for _ in range(400)]
    ids += [[], [CLS, SEP], [DOT], [CLS, DOT, DOT, SEP], [DOG] + [DOT] * 520]
    coverage = Coverage(VOCABULARY, max_length=290)
    for start in range(0, len(ids), 37):
        coverage.add(ids[start : start + 37])
    coverage.add([])
    report, expected = coverage.report(), slow(ids)
    lengths, segments = np.array(expected["length"]), np.array(expected["segment"])
    assert report["rows"] == len(ids)
    assert report["tokens"]["mean"] == pytest.approx(lengths.mean())
    for name, values in (("tokens", lengths), ("largest_segment", segments[segments >= 0])):
        for key, share in (("median", 50), ("p90", 90), ("p99", 99), ("max", 100)):
            assert report[name][key] == np.percentile(values, share, method="inverted_cdf"), (name, key)
    assert report["rows_over_128"] == (lengths > 128).sum()
    assert report["rows_at_ceiling"] == (lengths >= 290).sum() > 0
    assert report["rows_without_segment"] == (segments < 0).sum() >= 2
    assert report["rows_reaching_8"] == (segments >= 8).sum()
    assert report["rows_reaching_64"] == (segments >= 64).sum() > 0
    assert report["rows_past_last_address"] == 1
    targets = lookup_targets(ids, VOCABULARY)
    assert report["query_positions"] == len(targets)
    assert report["rows_with_queries"] == len(set(targets.row.tolist()))


def test_a_tokenizer_and_texts(tiny_tokenizer_dir: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_tokenizer_dir)
    blocks = [["two dogs run. two dogs sleep!"], ["a cat", "the old boat. " * 9]]
    report = measure(blocks, tokenizer, max_length=20)
    assert report["rows"] == 3
    assert report["rows_at_ceiling"] == 1
    assert report["tokens"]["max"] == 20
    assert report["largest_segment"]["max"] == 4
    assert report["rows_with_queries"] == 2
    text = render(report)
    assert "rows with words to look up  2 (66.7%)" in text


def test_bad_measures_are_refused(tiny_tokenizer_dir: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_tokenizer_dir)
    assert measure([["a cat on the beach", "the the . ."]], tokenizer, max_length=20)["query_positions"] == 0
    with pytest.raises(InputError, match="max_length is 1"):
        measure([["a"]], tokenizer, max_length=1)
    with pytest.raises(InputError, match="boundary token '…' is not in the tokenizer's vocabulary"):
        measure([["a"]], tokenizer, max_length=9, boundary_tokens=["…"])


def test_memory_does_not_grow_with_the_corpus() -> None:
    random = np.random.default_rng(0)
    rows = [random.integers(0, len(TOKENS), size=40).tolist() for _ in range(200)]

    def peak(blocks: int) -> int:
        tracemalloc.start()
        coverage = Coverage(VOCABULARY, max_length=256)
        source: Iterator[list[list[int]]] = (rows for _ in range(blocks))
        for block in source:
            coverage.add(block)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(2)
    assert peak(40) < 1.1 * peak(4) + 20_000
