"""Does a structured encoder learn to look words up? Five forms, one corpus, one recipe, one seed.

    python -m captionbert.benchmarks.lookup_study --groups multi30k-train.groups.jsonl.gz
        --validation multi30k-val.groups.jsonl.gz --work W [--dev-pairs F] [--steps N] [--only NAME ...] [--json F]

The text is paragraphs: the five captions of an image joined in random order (12,000 images), and single captions of
4,000 others. Every stage is the product's own command (consensus, train, probe lookup) and resumes; what is done is
skipped.

whole-key-lookup   key phases at all pieces, record norm, lookup loss
no-norm            the same without the record norm
pointer-only       the lookup loss without key phases
key-pieces         key phases and record norm without the lookup loss
hierarchical       addresses alone
"""

import argparse
import gzip
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from captionbert.artifacts.files import publish_file, read_json, write_json

PARAGRAPHS, SINGLES = 12_000, 4_000
RECIPE = "whole-key-lookup-mini"
OPTIONS = {  # name -> preset, weight of the lookup loss
    "whole-key-lookup": ("whole-key-lookup-mini", 0.1),
    "hierarchical": ("hierarchical-mini", 0.0),
    "no-norm": ("whole-key-lookup-no-norm-mini", 0.1),
    "pointer-only": ("pointer-only-mini", 0.1),
    "key-pieces": ("key-pieces-mini", 0.0),
}


def read_groups(file: Path) -> list[list[str]]:
    """The captions of each image: JSONL, gz allowed, a list of strings a line."""
    data = file.read_bytes()
    text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def paragraph(captions: list[str], dice: random.Random) -> str:
    """The captions in random order, as one text."""
    shuffled = list(captions)
    dice.shuffle(shuffled)
    return " ".join(shuffled)


def write_texts(groups: Path, validation: Path, work: Path) -> tuple[Path, Path]:
    """captions.txt (training) and val.txt, the same at every call."""
    dice, rows = random.Random(0), read_groups(groups)
    dice.shuffle(rows)
    texts = [paragraph(captions, dice) for captions in rows[:PARAGRAPHS]]
    texts += [dice.choice(captions) for captions in rows[PARAGRAPHS : PARAGRAPHS + SINGLES]]
    dice.shuffle(texts)
    held_out = [paragraph(captions, dice) for captions in read_groups(validation)]
    files = work / "captions.txt", work / "val.txt"
    for file, lines in zip(files, (texts, held_out)):
        if not file.is_file():
            with publish_file(file) as temporary:
                temporary.write_text(
                    "".join(line.replace("\n", " ") + "\n" for line in lines), encoding="utf-8"
                )
    return files


def command(*words: str | Path) -> None:
    """One verb of `captionbert`, its output shown; an error ends the study."""
    subprocess.run([sys.executable, "-m", "captionbert.cli", *map(str, words)], check=True)


def make_consensus(captions: Path, folder: Path) -> None:
    """Two packaged teachers; a finished consensus is left alone."""
    if not (folder / "targets" / "manifest.json").is_file():
        teachers = ("--teachers", "minilm,paraphrase-l3")
        command("consensus", "embed", "--out", folder, "--corpus", captions, *teachers, "--held-out", "600")
        command("consensus", "fit", "--out", folder)
        command("consensus", "targets", "--out", folder)


def train(name: str, work: Path, steps: int | None, dev_pairs: Path | None) -> Path:
    """Train one option, going on from its newest checkpoint; the folder of its final model."""
    preset, weight = OPTIONS[name]
    run = work / "runs" / name
    settings = [
        f"data.consensus={work / 'consensus'}",
        f"model.preset={preset}",
        f"loss.lookup_weight={weight}",
    ]
    settings += [f"schedule.steps={steps}"] if steps else []
    settings += [f"gauges.dev_pairs={dev_pairs}"] if dev_pairs else []
    final = run / "checkpoints" / "final"
    if not (final / "manifest.json").is_file():
        command("train", "--recipe", RECIPE, "--out", run, "--set", *settings)
    return final / "model"


def study(work: Path, names: list[str], steps: int | None, dev_pairs: Path | None) -> dict[str, Any]:
    """Train and probe each option; its last training point and its lookup report by name."""
    found = {}
    for name in names:
        model, report = train(name, work, steps, dev_pairs), work / f"lookup-{name}.json"
        if not report.is_file():
            command("probe", "lookup", model, "--captions", work / "val.txt", "--json", report)
        curve = json.loads((model.parent.parent / "metrics.json").read_text(encoding="utf-8"))["curve"]
        found[name] = {"preset": OPTIONS[name][0], "curve": curve, "lookup": read_json(report)}
    return found


def main() -> None:
    """Print a line an option and, with --json, write everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--groups", type=Path, required=True, help="training images: JSONL, five captions a line"
    )
    parser.add_argument("--validation", type=Path, required=True, help="held-out images, the same form")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--dev-pairs", type=Path)
    parser.add_argument("--steps", type=int, help="of each option; the recipe's number if not given")
    parser.add_argument("--only", nargs="+", choices=list(OPTIONS), default=list(OPTIONS), metavar="NAME")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    captions, _ = write_texts(options.groups, options.validation, options.work)
    make_consensus(captions, options.work / "consensus")
    found = study(options.work, options.only, options.steps, options.dev_pairs)
    for name, row in found.items():
        shares = (
            row["lookup"]["lookup"][subset]["top_one"]["query_mean"] for subset in ("all", "non-ending")
        )
        print(f"{name:<18} top-one {next(shares):7.2%}, of non-ending pieces {next(shares):7.2%}")
    if options.json:
        write_json(options.json, {"kind": "lookup-study", "options": found})


if __name__ == "__main__":
    main()
