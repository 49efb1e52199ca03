"""Cold start: `captionbert embed "a cat"` against a sentence-transformers one-liner, whole processes.

    python benchmarks/cold_start.py [--model EXPORTED_FOLDER] [--runs 7] [--json F]

Runs alternate, so that a busy machine is busy for all of them; medians are compared. The peers are the
packaged all-MiniLM-L6-v2 and the same exported folder opened with trust_remote_code=True. Without --model a
random captionbert-mini is exported to a temporary folder: the time does not depend on the weights.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from captionbert.artifacts.files import write_json

BAR = 1.5
ONE_LINER = (
    "from sentence_transformers import SentenceTransformer; print(SentenceTransformer({}).encode('a cat'))"
)


def main() -> int:
    """Measure, print the table, and return 0 where the bar is met."""
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        model = options.model or _random_mini(Path(scratch))
        commands = _commands(model)
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(options.runs + 1):  # the first round fills the file cache and does not count
            for name, command in commands.items():
                seconds[name].append(_run(command))
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    ours = medians["captionbert embed"]
    print(f"{'whole process, median of ' + str(options.runs):<44}{'seconds':>9}{'ratio':>8}")
    for name, median in medians.items():
        print(f"{name:<44}{median:>9.2f}{median / ours:>8.2f}")
    ratio = medians["sentence-transformers, all-MiniLM-L6-v2"] / ours
    print(f"bar: {BAR} times faster than the sentence-transformers one-liner; measured {ratio:.2f}")
    if options.json:
        rounds = {name: times[1:] for name, times in seconds.items()}
        write_json(
            options.json, {"kind": "cold-start", "medians": medians, "ratio": ratio, "seconds": rounds}
        )
    return 0 if ratio >= BAR else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Cold start against sentence-transformers, whole processes.")
    parser.add_argument("--model", type=Path, help="exported folder [a random captionbert-mini]")
    parser.add_argument("--runs", type=int, default=7, help="rounds that count [7]")
    parser.add_argument("--json", type=Path, help="write the measurements to this file")
    return parser.parse_args()


def _commands(model: Path) -> dict[str, list[str]]:
    from captionbert.consensus.packaged import packaged_folder

    own = ONE_LINER.format(f"{str(model)!r}, trust_remote_code=True")
    peer = ONE_LINER.format(repr(str(packaged_folder("minilm"))))
    embed = [sys.executable, "-m", "captionbert.cli", "embed", "--model", str(model), "a cat"]
    return {
        "captionbert embed": embed,
        "sentence-transformers, all-MiniLM-L6-v2": [sys.executable, "-c", peer],
        "sentence-transformers, the same folder": [sys.executable, "-c", own],
    }


def _run(command: list[str]) -> float:
    """Seconds of one process, start to end; a failing one stops the benchmark."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}  # a look at the network would not be ours to measure
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - started


def _random_mini(scratch: Path) -> Path:
    """An exported captionbert-mini with random weights."""
    from transformers import AutoTokenizer

    from captionbert.configuration_captionbert import CaptionBertConfig
    from captionbert.consensus.packaged import packaged_tokenizer
    from captionbert.export.folder import export_checkpoint
    from captionbert.modeling_captionbert import CaptionBertModel

    checkpoint = scratch / "model"
    CaptionBertModel(CaptionBertConfig.from_preset("captionbert-mini")).save_pretrained(checkpoint)
    AutoTokenizer.from_pretrained(packaged_tokenizer("minilm")).save_pretrained(checkpoint)
    return export_checkpoint(checkpoint, scratch / "export")


if __name__ == "__main__":
    raise SystemExit(main())
