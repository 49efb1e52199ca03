"""What does each choice of a recipe change? Short runs that differ from one base in a few settings each.

    python -m captionbert.benchmarks.recipe_study STUDY.yaml --work W [--dev-pairs F] [--only NAME ...] [--json F]

STUDY.yaml:

    recipe: mini                          # the base: a recipe's name or file
    set: [data.consensus=DIR, schedule.minutes=null, schedule.steps=200]
    variants:
      seed 1: [seed=1]                    # every variant whose name starts with "seed" measures the spread
      batch 128: [schedule.batch_size=128, schedule.steps=800]

Every run is the product's own `captionbert train` into W/NAME: killed, the same command goes on, and what is done is
skipped. A variant is held against the base by its last STS-B dev Spearman (or whatever --dev-pairs holds) and held-out
target cosine; a difference inside the spread of the seeds says nothing, and the table marks it so. The test files are
never read here.
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
from captionbert.artifacts.files import read_json, write_json
from captionbert.recipes import load_recipe
from captionbert.train_accelerate import read_metrics

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
    if len(set(folders)) < len(folders):
        raise InputError(
            f"{file}: names of variants must differ in letters or digits, found {list(study.variants)}"
        )
    for name in [BASE, *study.variants]:
        try:
            load_recipe(study.recipe, study.settings_of(name))
        except InputError as error:
            raise InputError(f"{file}: variant {name!r}: {error}") from None
    return study


def folder_name(name: str) -> str:
    """A variant's folder below the work folder."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def run_variant(study: Study, name: str, work: Path, dev_pairs: Path | None) -> dict[str, Any]:
    """Train one variant, or go on with it, or read it when it is done: its settings and its curve.

    Raises:
        InputError: it was begun with other settings, or its training ended in an error, which is shown above.
    """
    settings = study.settings_of(name) + ([f"gauges.dev_pairs={dev_pairs}"] if dev_pairs else [])
    run, record = work / folder_name(name), work / f"{folder_name(name)}.json"
    asked = {"recipe": study.recipe, "settings": settings}
    if record.is_file() and (done := read_json(record)) != asked:
        raise InputError(
            f"{run}: {name!r} was begun with recipe {done['recipe']} and {done['settings']}, now {asked['recipe']} and "
            f"{settings}; choose another --work or delete the run and {record.name}"
        )
    write_json(record, asked)
    if not (run / "checkpoints" / "final" / "manifest.json").is_file():
        words = ["train", "--recipe", study.recipe, "--out", str(run), "--set", *settings]
        if subprocess.run([sys.executable, "-m", "captionbert.cli", *words]).returncode:
            raise InputError(
                f"{run}: training {name!r} failed, see above; what is done is kept, a rerun goes on"
            )
    return {"settings": study.variants.get(name, []), "curve": read_metrics(run)["curve"]}


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
    try:
        study = read_study(options.study)
        names = options.only or [BASE, *study.variants]
        if unknown := set(names) - {BASE, *study.variants}:
            raise InputError(f"--only: {sorted(unknown)} are not among {[BASE, *study.variants]}")
        options.work.mkdir(parents=True, exist_ok=True)
        runs: dict[str, dict[str, Any]] = {}
        for name in names:
            runs[name] = run_variant(study, name, options.work, options.dev_pairs)
            if options.json:
                parts = {"recipe": study.recipe, "set": study.settings, "runs": runs}
                write_json(options.json, {"kind": KIND, **parts, "rows": compare(runs)})
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(compare(runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
