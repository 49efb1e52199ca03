"""A tiny consensus folder and recipe for the training tests: captions, bag-of-words targets, a two-layer
student.
"""

import multiprocessing
import os
import signal
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from captionbert import train_accelerate
from captionbert.consensus.captions import Corpus, prepare_corpus
from captionbert.consensus.shards import ShardWriter, fill

WIDTH = 24


def run_program(
    options: list[str], log: str, environment: dict[str, str], prepare: Callable[[], None] | None
) -> None:
    """The training program inside this process: output to `log`, then exit."""
    os.environ.update(environment)
    if prepare is not None:
        prepare()
    with open(log, "ab") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    sys.exit(train_accelerate.main(options))


def die_after_log_line(step: int) -> None:
    """Make this process kill itself (SIGKILL) once the metrics line of `step` is written."""
    from captionbert.training.gauges import MetricsFiles

    log = MetricsFiles.log

    def log_and_die(self: MetricsFiles, values: dict[str, Any], timing: dict[str, Any]) -> None:
        log(self, values, timing)
        if values["step"] == step:
            os.kill(os.getpid(), signal.SIGKILL)

    MetricsFiles.log = log_and_die  # type: ignore[method-assign]


def die_inside_checkpoint(step: int) -> None:
    """Make this process kill itself while it writes the optimizer of the checkpoint of `step`, half of it written."""
    from captionbert.training import checkpoints

    save = checkpoints.save_file

    def save_and_die(tensors: Any, file: Any, **options: Any) -> None:
        save(tensors, file, **options)
        if Path(file).name == "optimizer.safetensors" and f"step-{step:08d}" in str(file):
            os.truncate(file, Path(file).stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoints.save_file = save_and_die


class Child:
    """The training program in a process forked from a server that has imported the libraries once.

    `prepare` is called in it before training.
    """

    def __init__(
        self,
        options: list[str],
        log: Path,
        environment: dict[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["captionbert.train_accelerate", "captionbert.benchmarks.batch_equivalence"]
        )
        self.process = context.Process(
            target=run_program, args=(options, str(log), environment or {}, prepare)
        )
        self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid

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
