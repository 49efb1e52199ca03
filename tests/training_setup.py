"""A tiny consensus folder and recipe for the training tests: captions, bag-of-words targets, a two-layer
student.
"""

import multiprocessing
import zlib
from pathlib import Path

import numpy as np

from captionbert.benchmarks.kill_resume import run_program
from captionbert.consensus.captions import Corpus, prepare_corpus
from captionbert.consensus.shards import ShardWriter, fill

WIDTH = 24


class Child:
    """The training program in a process forked from a server that has imported the libraries once."""

    def __init__(self, options: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["captionbert.train_accelerate", "captionbert.benchmarks.batch_equivalence"]
        )
        self.process = context.Process(target=run_program, args=(options, str(log), environment or {}))
        self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int:
        self.process.join()
        assert self.process.exitcode is not None
        return self.process.exitcode


def bag_of_words(texts: list[str]) -> np.ndarray:
    """Unit vectors [n, 24]: the sum of a fixed random vector a word, so that a student can learn them."""
    vectors = np.zeros((len(texts), WIDTH), dtype=np.float32)
    for row, text in enumerate(texts):
        for word in text.lower().rstrip(".").split():
            vectors[row] += np.random.default_rng(zlib.crc32(word.encode())).standard_normal(WIDTH)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_targets(folder: Path, corpus: Corpus, frame_id: str = "f" * 64) -> Path:
    """A targets folder for `corpus`."""
    writer = ShardWriter(
        folder,
        rows=corpus.rows,
        width=WIDTH,
        corpus_digest=corpus.digest,
        fingerprint=frame_id,
        shard_rows=64,
        provenance={"frame_id": frame_id, "reference": "words", "made_of": {}},
    )
    fill(writer, "targets", lambda start, stop: bag_of_words(corpus.texts(np.arange(start, stop))))
    return folder


def make_consensus(folder: Path, captions: list[str]) -> Path:
    """`folder` with corpus/ and targets/."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "captions.txt").write_text("\n".join(captions) + "\n", encoding="utf-8")
    corpus = prepare_corpus([str(folder / "captions.txt")], folder / "corpus", held_out=10)
    make_targets(folder / "targets", corpus)
    return folder


def tiny_recipe(consensus: Path, tokenizer: Path) -> dict:
    """Recipe values: 24 steps of 32 captions in fp32, checkpoints and evaluations on the way."""
    return {
        "name": "tiny",
        "seed": 3,
        "model": {
            "preset": "captionbert-mini",
            "overrides": {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "max_position_embeddings": 128,
            },
        },
        "data": {"consensus": str(consensus), "tokenizer": str(tokenizer), "max_length": 32},
        "schedule": {"steps": 24, "batch_size": 32, "learning_rate": 0.003, "warmup": 4},
        "compute": {"precision": "fp32", "micro_batch_tokens": 128},
        "checkpoint": {"steps": 4, "keep": 2},
        "gauges": {"eval_every": 8, "log_every": 1},
    }
