"""Sentences a second of captionbert-mini's `encode` against all-MiniLM-L6-v2 through sentence-transformers.

    python -m captionbert.benchmarks.encode [--texts FILE] [--count 2000] [--rounds 3] [--json F]

Both models have the same FLOPs a token (6 layers of width 384); the mini's weights are random, which costs the same.
The peer runs at the better of several batch sizes and at equal dtype. Texts: one file of captions (the repo's generated
scenes when none is given), and the same captions joined into texts of 512 tokens.
"""

import argparse
import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from captionbert.artifacts.files import write_json
from captionbert.benchmarks.machine import alternating_medians, matmul_rate, surroundings
from captionbert.configuration_captionbert import CaptionBertConfig
from captionbert.consensus.packaged import packaged_folder
from captionbert.distill.scenes import scenes
from captionbert.modeling_captionbert import CaptionBertModel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PEER_BATCHES = (4, 8, 16, 32, 64, 128)
OUR_BUDGETS = (1024, 2048, 4096, 8192)


def read_texts(path: Path | None, count: int) -> list[str]:
    """The first `count` lines of a text file (.gz or not), or generated captions."""
    if path is None:
        return list(scenes(count, seed=0))
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode().split("\n")
    return [line.strip() for line in lines if line.strip()][:count]


def long_texts(texts: list[str], tokenizer: Any, count: int, tokens: int = 512) -> list[str]:
    """`count` texts of at least `tokens` tokens, made of captions in order; both sides cut them at `tokens`."""
    joined, held, size = [], [], 0
    for text in texts * 50:
        held.append(text)
        size += len(tokenizer(text, add_special_tokens=False)["input_ids"])
        if size >= tokens:
            joined.append(" ".join(held))
            held, size = [], 0
            if len(joined) == count:
                break
    return joined


Run = Callable[[int, list[str]], Any]  # encode the texts with this batch size


def best(run: Run, texts: list[str], sizes: tuple[int, ...]) -> int:
    """The fastest batch size over a quarter of the texts, taken from the whole list so that lengths are alike."""
    sample = texts[:: 4 if len(texts) >= 400 else 2]
    seconds = alternating_medians({str(size): partial(run, size, sample) for size in sizes}, rounds=1)
    return int(min(seconds, key=lambda size: seconds[size]))


def compare(dtype: str, texts: list[str], max_length: int, rounds: int) -> dict[str, Any]:
    """Medians of both sides over the same texts, each at its better batch size, in one run."""
    torch.manual_seed(0)
    ours = CaptionBertModel(CaptionBertConfig.from_preset("captionbert-mini")).eval().to(DTYPES[dtype])
    peer = SentenceTransformer(str(packaged_folder("minilm")), device="cpu").to(DTYPES[dtype])
    peer.max_seq_length = max_length
    tokenizer = peer.tokenizer

    def run_ours(size: int, sample: list[str]) -> Any:
        return ours.encode(sample, tokenizer, batch_tokens=size, max_length=max_length)

    def run_peer(size: int, sample: list[str]) -> Any:
        return peer.encode(sample, batch_size=size, show_progress_bar=False)

    our_size, peer_size = best(run_ours, texts, OUR_BUDGETS), best(run_peer, texts, PEER_BATCHES)
    before = matmul_rate(DTYPES[dtype])
    both = {"ours": lambda: run_ours(our_size, texts), "peer": lambda: run_peer(peer_size, texts)}
    seconds = alternating_medians(both, rounds)
    after = matmul_rate(DTYPES[dtype])
    return {
        "dtype": dtype,
        "texts": len(texts),
        "max_length": max_length,
        "ours_per_s": round(len(texts) / seconds["ours"], 1),
        "ours_batch_tokens": our_size,
        "peer_per_s": round(len(texts) / seconds["peer"], 1),
        "peer_batch_size": peer_size,
        "ratio": round(seconds["peer"] / seconds["ours"], 3),
        "matmul_gflops": [round(before), round(after)],
    }


def main() -> None:
    """Print one line a comparison and, with --json, write all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, help="a file of captions, one a line, .gz or not")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--long-count", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    texts = read_texts(options.texts, options.count)
    tokenizer = SentenceTransformer(str(packaged_folder("minilm")), device="cpu").tokenizer
    long = long_texts(texts, tokenizer, options.long_count)
    rows = []
    for dtype in options.dtypes.split(","):
        for name, sample, limit in (("captions", texts, 256), ("512 tokens", long, 512)):
            row = {"text": name, **compare(dtype, sample, limit, options.rounds)}
            rows.append(row)
            print(json.dumps(row))
    if options.json:
        write_json(options.json, {"kind": "benchmark-encode", "surroundings": surroundings(), "rows": rows})


if __name__ == "__main__":
    main()
