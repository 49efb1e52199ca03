"""What does each choice of a recipe change? Short runs that differ from one base in a few settings each.

    python -m captionbert.benchmarks.recipe_study STUDY.yaml --work W [--dev-pairs F] [--only NAME ...] [--json F]

STUDY.yaml:

    recipe: mini                          # the base: a recipe's name or file
    set: [data.consensus=DIR, schedule.minutes=null, schedule.steps=200]
    variants:
      seed 1: [seed=1]                    # every variant whose name starts with "seed" measures the spread
      batch 128: [schedule.batch_size=128, schedule.steps=800]

Every run is the product's own `captionbert train` into W/NAME: killed, the same command goes on, and what is done is
skipped. A variant that fails does not stop the others; it is told at the end, and a rerun tries it again. With --only
the other runs that are done stand in the table and the report as well. A variant is held against the base by its last
STS-B dev Spearman (or whatever --dev-pairs holds) and held-out target cosine; a difference inside the spread of the
seeds says nothing, and the table marks it so. The test files are never read here.
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import read_json, sha256_file, write_json
from captionbert.recipes import binding, load_recipe
from captionbert.train_accelerate import finished, read_metrics
from captionbert.training.identity import read_identity
from captionbert.training.precision import with_precision

BASE = "base"
GAUGES = ("dev_spearman", "target_cosine")
KIND = "recipe-study"


@dataclass(frozen=True)
class Study:
    """A base recipe, settings of all runs, and the further settings of each variant by name."""

    recipe: str
    settings: list[str]
    variants: dict[str, list[str]]

    def settings_of(self, name: str) -> list[str]:
        """Everything that is set in the run `name`."""
        return [*self.settings, *self.variants.get(name, [])]


def read_study(file: Path) -> Study:
    """The study in a YAML file, every run's recipe checked.

    Raises:
        InputError: not of the form above, a variant called "base", or settings that no recipe takes.
    """
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        study = Study(values["recipe"], list(values.get("set") or []), dict(values["variants"]))
        settings = [study.settings, *study.variants.values()]
        if not all(isinstance(name, str) for name in study.variants):
            raise TypeError("the name of a variant is text: put it in quotes")
        if any(
            not isinstance(group, list) or not all(isinstance(s, str) for s in group) for group in settings
        ):
            raise TypeError("each variant is a list of section.key=value")
    except (OSError, yaml.YAMLError, UnicodeDecodeError, TypeError, KeyError, ValueError) as error:
        raise InputError(
            f"{file}: expected recipe, set and variants, see this program's --help ({error})"
        ) from None
    if BASE in study.variants:
        raise InputError(f"{file}: a variant cannot be called {BASE!r}, which is the recipe without one")
    folders = [folder_name(name) for name in [BASE, *study.variants]]
    if len(set(folders)) < len(folders) or not all(folders):
        raise InputError(
            f"{file}: names of variants must hold letters or digits of ASCII and differ in them, found "
            f"{list(study.variants)}"
        )
    for name in [BASE, *study.variants]:
        try:
            load_recipe(study.recipe, study.settings_of(name))
        except InputError as error:
            raise InputError(f"{file}: variant {name!r}: {error}") from None
    return study


def folder_name(name: str) -> str:
    """A variant's folder below the work folder."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")


def check_begun(study: Study, name: str, work: Path, dev_pairs: Path | None) -> None:
    """Refuse a run that was begun with other settings or other dev pairs: its figures are not this variant's.

    Raises:
        InputError: naming what differs.
    """
    run = work / folder_name(name)
    if not (run / "config" / "identity.json").is_file():
        return
    begun = read_identity(run)
    recipe = with_precision(load_recipe(study.recipe, study.settings_of(name)), run)
    now = {**binding(recipe), "dev pairs": sha256_file(dev_pairs) if dev_pairs else None}
    then = {**begun["recipe"], "dev pairs": begun["data"]["dev_pairs_digest"]}
    changed = [
        f"{key} was {then.get(key)!r}, is {now.get(key)!r}"
        for key in sorted({*now, *then})
        if now.get(key) != then.get(key)
    ]
    if changed:
        raise InputError(
            f"{run}: {name!r} was begun otherwise: {'; '.join(changed)}; choose another --work or delete this run"
        )


def run_variant(study: Study, name: str, work: Path, dev_pairs: Path | None) -> bool:
    """Train one variant, or go on with it; False where training ended in an error, which is shown above."""
    run = work / folder_name(name)
    if finished(run):
        return True
    pairs = [f"gauges.dev_pairs={dev_pairs}"] if dev_pairs else []
    words = ["train", "--recipe", study.recipe, "--out", str(run), "--set", *study.settings_of(name), *pairs]
    return subprocess.run([sys.executable, "-m", "captionbert.cli", *words]).returncode == 0


def done(study: Study, work: Path) -> dict[str, dict[str, Any]]:
    """Settings and curve of every run that is complete, in the order of the study."""
    return {
        name: {"settings": study.variants.get(name, []), "curve": read_metrics(run)["curve"]}
        for name in [BASE, *study.variants]
        if finished(run := work / folder_name(name))
    }


def compare(runs: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a run: last value of each gauge, its difference to the base, and the spread of base and seeds.

    The spread of a gauge is the largest difference between runs that differ in their seed alone; None with one seed.
    """
    last = {name: run["curve"][-1] for name, run in runs.items()}
    seeds = [name for name in runs if name == BASE or name.startswith("seed")]
    rows = []
    for name in runs:
        row: dict[str, Any] = {"name": name, "steps": last[name]["step"]}
        for gauge in GAUGES:
            value, base = last[name].get(gauge), last.get(BASE, {}).get(gauge)
            known = [last[seed][gauge] for seed in seeds if last[seed].get(gauge) is not None]
            row[gauge] = value
            row[f"{gauge}_difference"] = None if value is None or base is None else value - base
            row[f"{gauge}_spread"] = max(known) - min(known) if len(known) > 1 else None
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for a person; "~" marks a difference inside the spread of the seeds."""
    width = max(len(row["name"]) for row in rows)
    lines = [f"{'':<{width}}  steps  dev Spearman            target cosine"]
    for row in rows:
        cells = []
        for gauge in GAUGES:
            value, difference = row[gauge], row[f"{gauge}_difference"]
            spread = row[f"{gauge}_spread"]
            inside = spread is not None and difference is not None and abs(difference) <= spread
            change = (
                ""
                if difference is None or row["name"] == BASE
                else f"{difference:+.4f}{' ~' if inside else ''}"
            )
            cells.append(f"{'' if value is None else f'{value:.4f}':<8}{change:<16}")
        lines.append(f"{row['name']:<{width}}  {row['steps']:>5}  {''.join(cells)}".rstrip())
    return "\n".join(lines)


def main() -> int:
    """Print the table and, with --json, write curves and rows after every run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, metavar="STUDY.yaml")
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--dev-pairs", type=Path, help="JSONL of sentence1, sentence2, score")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these variants, and base if named")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    failed: list[str] = []
    runs: dict[str, dict[str, Any]] = {}
    try:
        study = read_study(options.study)
        names = options.only or [BASE, *study.variants]
        if unknown := set(names) - {BASE, *study.variants}:
            raise InputError(f"--only: {sorted(unknown)} are not among {[BASE, *study.variants]}")
        if options.dev_pairs and not options.dev_pairs.is_file():
            raise InputError(f"--dev-pairs {options.dev_pairs}: no such file")
        if options.json and options.json.is_file():
            read_json(options.json, kind=KIND)  # nothing but an earlier report is replaced
        for name in [BASE, *study.variants]:
            check_begun(study, name, options.work, options.dev_pairs)
        for name in names:
            if not run_variant(study, name, options.work, options.dev_pairs):
                failed.append(name)
            runs = done(study, options.work)
            if options.json and runs:
                parts = {"recipe": study.recipe, "set": study.settings, "runs": runs}
                write_json(options.json, {"kind": KIND, **parts, "rows": compare(runs), "failed": failed})
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if runs:
        print(table(compare(runs)))
    for name in failed:
        print(f"error: training {name!r} failed, see above; a rerun tries it again", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
