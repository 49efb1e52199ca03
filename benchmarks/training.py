"""Training speed against SentenceTransformerTrainer with MSELoss: same model, rows, batch and dtype, one run.

    python -m captionbert.benchmarks.training [--texts FILE] [--batch 512] [--steps 4] [--rounds 3]
        [--precision bf16] [--json F]

Both sides train a captionbert-mini of equal start on the same captions and the same random unit targets; ours
with the full step (InfoNCE + MSE, clipping, Adam), the peer with MSELoss, AdamW and its default collator.
Rounds alternate, the first step of each peer round is not counted. Sentences a second of both, their ratio,
and the plain-matmul rate.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.modules import InputModule
from sentence_transformers.sentence_transformer.losses import MSELoss
from transformers import TrainerCallback

from captionbert.artifacts.files import write_json
from captionbert.benchmarks.encode import read_texts
from captionbert.benchmarks.machine import matmul_rate, surroundings
from captionbert.configuration_captionbert import CaptionBertConfig
from captionbert.consensus.packaged import load_tokenizer
from captionbert.encoding_captionbert import batch_vectors, token_ids
from captionbert.modeling_captionbert import CaptionBertModel
from captionbert.recipes import LossSection
from captionbert.training.batches import StepBatch
from captionbert.training.step import DTYPES, LossScale, StepSettings, adam, take_step

MAX_LENGTH = 128


def make_model() -> CaptionBertModel:
    """A seeded captionbert-mini in fp32."""
    torch.manual_seed(0)
    return CaptionBertModel(CaptionBertConfig.from_preset("captionbert-mini")).float().train()


class OwnModule(InputModule):
    """The model as the one module of a SentenceTransformer: pads to the longest of the batch, as any ST model
    does.
    """

    def __init__(self, model: CaptionBertModel, tokenizer: Any) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self.tokenize_padded: Any = tokenizer

    def preprocess(self, inputs: Any, prompt: str | None = None, **options: Any) -> dict[str, Any]:
        """Texts to padded ids and mask."""
        return dict(
            self.tokenize_padded(
                inputs, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt"
            )
        )

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Adds the sentence vectors."""
        output = self.model(input_ids=features["input_ids"], attention_mask=features["attention_mask"])
        features["sentence_embedding"] = output.pooler_output
        return features

    def save(self, output_path: str, *options: Any, **more: Any) -> None:
        """Nothing is saved in a benchmark."""


class _StepTimes(TrainerCallback):
    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *options: Any, **more: Any) -> None:
        """Note the moment."""
        self.ends.append(time.perf_counter())


def peer_seconds(texts: list[str], targets: np.ndarray, batch: int, precision: str, tokenizer: Any) -> float:
    """Seconds a step of the peer, over all steps but the first."""
    model = SentenceTransformer(modules=[OwnModule(make_model(), tokenizer)], device="cpu")
    data = Dataset.from_dict({"text": texts, "label": targets.tolist()})
    times = _StepTimes()
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            per_device_train_batch_size=batch,
            learning_rate=1e-3,
            bf16=precision == "bf16",
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=data, loss=MSELoss(model), callbacks=[times]
        )
        trainer.train()
    return (times.ends[-1] - times.ends[0]) / (len(times.ends) - 1)


def our_seconds(
    texts: list[str], targets: np.ndarray, batch: int, precision: str, tokenizer: Any, budget: int
) -> float:
    """Seconds a step of ours, tokenising included, over all steps but the first."""
    model = make_model()
    optimizer = adam(list(model.parameters()), 1e-3)
    settings = StepSettings(LossSection(), 1.0, precision, budget, padded=False)
    ends = []
    for step in range(len(texts) // batch):
        rows = slice(step * batch, (step + 1) * batch)
        data = StepBatch(
            token_ids(tokenizer, texts[rows], MAX_LENGTH),
            torch.arange(batch),
            torch.from_numpy(targets[rows]),
            torch.arange(batch),
        )
        take_step(
            lambda ids: batch_vectors(model, ids),
            data,
            optimizer,
            settings,
            LossScale.start(precision),
            device=torch.device("cpu"),
            step=step,
            learning_rate=1e-3,
        )
        ends.append(time.perf_counter())
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def compare(
    texts: list[str], batch: int, steps: int, rounds: int, precision: str, budget: int
) -> dict[str, Any]:
    """Alternate both sides; medians over rounds."""
    tokenizer = load_tokenizer("packaged:minilm")
    order = np.random.default_rng(0).permutation(len(texts))[: batch * (steps + 1)]
    texts = [texts[i] for i in order]
    targets = np.random.default_rng(1).standard_normal((len(texts), 768)).astype(np.float32)
    targets /= np.linalg.norm(targets, axis=1, keepdims=True)
    ours, peer, rates = [], [], []
    for _ in range(rounds):
        rates.append(matmul_rate(DTYPES[precision]))
        ours.append(our_seconds(texts, targets, batch, precision, tokenizer, budget))
        peer.append(peer_seconds(texts, targets, batch, precision, tokenizer))
    return {
        "precision": precision,
        "batch": batch,
        "tokens_per_caption": float(np.mean([len(x) for x in token_ids(tokenizer, texts, MAX_LENGTH)])),
        "ours_sentences_per_second": batch / float(np.median(ours)),
        "peer_sentences_per_second": batch / float(np.median(peer)),
        "ratio": float(np.median(peer) / np.median(ours)),
        "ratio_by_round": [p / o for p, o in zip(peer, ours)],
        "matmul_gflops": float(np.median(rates)),
        "surroundings": surroundings(),
    }


def main(argv: list[str] | None = None) -> int:
    """Command line; 0 when the ratio is at least 1.5."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--texts", type=Path, help="captions, one a line (.gz or not); generated ones by default"
    )
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4, help="counted steps a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--micro-batch-tokens", type=int, default=8192)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    texts = read_texts(arguments.texts, max(10_000, arguments.batch * (arguments.steps + 1)))
    result = compare(
        texts,
        arguments.batch,
        arguments.steps,
        arguments.rounds,
        arguments.precision,
        arguments.micro_batch_tokens,
    )
    print(json.dumps(result, indent=1))
    if arguments.json:
        write_json(arguments.json, result)
    return 0 if result["ratio"] >= 1.5 else 1


if __name__ == "__main__":
    sys.exit(main())
