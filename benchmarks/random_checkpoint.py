"""A checkpoint of a preset with seeded random weights: something to export and to run parity on without training.

    python -m captionbert.benchmarks.random_checkpoint --preset captionbert-8192-v2 --out DIR
    captionbert export DIR OUT && captionbert parity DIR OUT --profile longest --json parity.json

Weights are larger than at birth, so that a swapped or missing tensor shows in the vectors.
"""

import argparse
from pathlib import Path

import torch

from captionbert.artifacts.files import publish_folder
from captionbert.configuration_captionbert import CaptionBertConfig
from captionbert.consensus.packaged import load_tokenizer
from captionbert.modeling_captionbert import CaptionBertModel


def write_checkpoint(
    preset: str, out: Path, tokenizer: str, tokens: int | None = None, seed: int = 0
) -> None:
    """Write OUT/model/: config, weights and the files of a tokenizer spec (see `resolve_tokenizer`).

    `tokens` is the longest input that the model reads; None keeps the preset's.
    """
    torch.manual_seed(seed)
    fields = {} if tokens is None else {"max_position_embeddings": tokens}
    model = CaptionBertModel(CaptionBertConfig.from_preset(preset, **fields))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    with publish_folder(out) as folder:
        model.save_pretrained(folder / "model")
        load_tokenizer(tokenizer).save_pretrained(folder / "model")


def main() -> None:
    """Write one checkpoint."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="captionbert-mini", choices=CaptionBertConfig.presets())
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer", default="packaged:minilm")
    parser.add_argument(
        "--tokens",
        type=int,
        help="longest input; 512 makes parity in bf16 and fp16 short on a processor without such arithmetic",
    )
    options = parser.parse_args()
    write_checkpoint(options.preset, options.out, options.tokenizer, options.tokens)
    print(options.out)


if __name__ == "__main__":
    main()
