"""Captions a second of the coverage probe's own work, past tokenisation, beside the tokenizer's rate in the same run.

    python -m captionbert.benchmarks.coverage [--texts FILE] [--count 40000] [--rounds 3] [--json F]

Texts: one file of captions (the repo's generated scenes when none is given), as they are and joined by fives into
paragraphs, in which words repeat. Exit status 0 only when the probe counts at least 20,000 captions a second.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from captionbert.artifacts.files import write_json
from captionbert.benchmarks.encode import read_texts
from captionbert.benchmarks.machine import alternating_medians, surroundings
from captionbert.consensus.packaged import packaged_tokenizer
from captionbert.encoding_captionbert import token_ids
from captionbert.probes.coverage import Coverage
from captionbert.probes.word_records import Vocabulary

LEAST = 20_000  # captions a second
BLOCK = 4096
MAX_LENGTH = 256


def compare(
    name: str, texts: list[str], tokenizer: Any, vocabulary: Vocabulary, rounds: int
) -> dict[str, Any]:
    """Medians of tokenising and of counting the same texts, in turn."""
    blocks = [texts[start : start + BLOCK] for start in range(0, len(texts), BLOCK)]
    ids = [token_ids(tokenizer, block, MAX_LENGTH) for block in blocks]

    def count() -> Coverage:
        coverage = Coverage(vocabulary, MAX_LENGTH)
        for block in ids:
            coverage.add(block)
        return coverage

    def tokenize() -> None:
        for block in blocks:
            token_ids(tokenizer, block, MAX_LENGTH)

    seconds = alternating_medians({"tokenizer": tokenize, "coverage": count}, rounds)
    coverage = count()
    return {
        "text": name,
        "texts": len(texts),
        "tokens_a_text": round(coverage.lengths.mean, 1),
        "queries_a_text": round(coverage.queries / len(texts), 2),
        "coverage_per_s": round(len(texts) / seconds["coverage"]),
        "tokenizer_per_s": round(len(texts) / seconds["tokenizer"]),
        "ratio": round(seconds["tokenizer"] / seconds["coverage"], 2),
    }


def main() -> int:
    """Print a line a kind of text; 1 where single captions are counted too slowly."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, help="a file of captions, one a line, .gz or not")
    parser.add_argument("--count", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(packaged_tokenizer("minilm"))
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    captions = read_texts(options.texts, options.count)
    paragraphs = [" ".join(captions[start : start + 5]) for start in range(0, len(captions), 5)]
    rows = []
    for name, texts in (("captions", captions), ("paragraphs of five", paragraphs)):
        rows.append(compare(name, texts, tokenizer, vocabulary, options.rounds))
        print(json.dumps(rows[-1]))
    if options.json:
        write_json(options.json, {"kind": "benchmark-coverage", "surroundings": surroundings(), "rows": rows})
    return 0 if rows[0]["coverage_per_s"] >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
