"""The study of recipes: its file, its runs, what it calls a difference."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from captionbert.artifacts.errors import InputError
from captionbert.benchmarks import recipe_study

# By name: the test folder is no package.
sys.path.append(str(Path(__file__).parent))
setup = importlib.import_module("training_setup")


def write_study(folder: Path, variants: Any, **changes: Any) -> Path:
    file = folder / "study.yaml"
    values = {"recipe": "mini", "set": ["schedule.minutes=null", "schedule.steps=9"], "variants": variants}
    file.write_text(yaml.safe_dump(values | changes))
    return file


def point(step: int, spearman: float, cosine: float) -> dict[str, Any]:
    return {"curve": [{"step": 0}, {"step": step, "dev_spearman": spearman, "target_cosine": cosine}]}


def test_a_difference_inside_the_spread_of_the_seeds_is_marked() -> None:
    runs = {
        "base": point(9, 0.80, 0.70),
        "seed 1": point(9, 0.79, 0.71),
        "small batch": point(18, 0.805, 0.75),
    }
    rows = recipe_study.compare(runs)
    assert rows[2]["dev_spearman_difference"] == pytest.approx(0.005)
    assert [row["target_cosine_spread"] for row in rows] == pytest.approx([0.01] * 3)
    base, _, small = recipe_study.table(rows).splitlines()[1:]
    assert base.split() == ["base", "9", "0.8000", "0.7000"]
    assert small.split() == ["small", "batch", "18", "0.8050", "+0.0050", "~", "0.7500", "+0.0500"]
    alone = recipe_study.compare({"base": runs["base"], "small batch": runs["small batch"]})
    assert alone[1]["dev_spearman_spread"] is None
    assert "~" not in recipe_study.table(alone)


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ({"base": []}, "cannot be called 'base'"),
        ({"a b": [], "a-b": []}, "must differ in letters or digits"),
        ({"wide": ["loss.temperatur=1"]}, "variant 'wide': .*did you mean 'temperature'"),
        ({"wide": "seed=1"}, "each variant is a list"),
        (None, "expected recipe, set and variants"),
    ],
)
def test_a_study_is_checked_before_the_first_run(tmp_path: Path, variants: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        recipe_study.read_study(write_study(tmp_path, variants))


def test_runs_are_made_once_and_not_mixed(
    tmp_path: Path, captions: list[str], tiny_tokenizer_dir: Path
) -> None:
    consensus = setup.make_consensus(tmp_path / "consensus", captions)
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(yaml.safe_dump(setup.tiny_recipe(consensus, tiny_tokenizer_dir)))
    study = write_study(
        tmp_path, {"seed 4": ["seed=4"]}, recipe=str(recipe), set=["schedule.steps=6", "gauges.eval_every=6"]
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "captionbert.benchmarks.recipe_study", str(study)]
        files = ["--work", str(tmp_path / "work"), "--json", str(tmp_path / "study.json")]
        return subprocess.run([*program, *files, *words], capture_output=True, text=True)

    first = run()
    assert first.returncode == 0, first.stderr
    found = json.loads((tmp_path / "study.json").read_text())
    assert list(found["runs"]) == ["base", "seed 4"]
    assert found["runs"]["base"]["curve"] != found["runs"]["seed 4"]["curve"]
    assert found["rows"][0]["target_cosine_spread"] > 0
    weights = tmp_path / "work" / "base" / "checkpoints" / "final" / "model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    again = run()
    assert again.stdout.splitlines()[-2:] == first.stdout.splitlines()[-2:]
    assert weights.stat().st_mtime_ns == before
    study.write_text(study.read_text().replace("steps=6", "steps=7"))
    assert run("--only", "base").returncode == 2
    assert "choose another --work" in run("--only", "base").stderr
    assert "are not among" in run("--only", "no").stderr
