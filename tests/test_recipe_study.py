"""The study of recipes: its file, its runs, what it calls a difference."""

import importlib
import json
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
        ({"a b": [], "a-b": []}, "must hold letters or digits of ASCII and differ in them"),
        ({"..": []}, "must hold letters or digits"),
        ({"größe": [], "ß": []}, "must hold letters or digits"),
        ({128: ["schedule.batch_size=128"]}, "the name of a variant is text: put it in quotes"),
        ({"wide": ["loss.temperatur=1"]}, "variant 'wide': .*did you mean 'temperature'"),
        ({"wide": "seed=1"}, "each variant is a list"),
        (None, "expected recipe, set and variants"),
    ],
)
def test_a_study_is_checked_before_the_first_run(tmp_path: Path, variants: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        recipe_study.read_study(write_study(tmp_path, variants))


def test_runs_are_made_once_and_not_mixed(
    tmp_path: Path, captions: list[str], tiny_tokenizer_dir: Path, monkeypatch, capfd
) -> None:
    consensus = setup.make_consensus(tmp_path / "consensus", captions)
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(yaml.safe_dump(setup.tiny_recipe(consensus, tiny_tokenizer_dir)))
    wild = ["schedule.learning_rate=1e30", "schedule.warmup=0"]
    study = write_study(
        tmp_path,
        {"wild": wild, "seed 4": ["seed=4"]},
        recipe=str(recipe),
        set=["schedule.steps=6", "gauges.eval_every=6"],
    )

    def run(*words: str) -> tuple[int, str, str]:
        files = ["--work", str(tmp_path / "work"), "--json", str(tmp_path / "study.json")]
        monkeypatch.setattr(sys, "argv", ["recipe_study", str(study), *files, *words])
        return recipe_study.main(), *capfd.readouterr()

    status, table, errors = run()
    assert status == 1
    assert "error: training 'wild' failed, see above" in errors  # and the next variant was trained
    found = json.loads((tmp_path / "study.json").read_text())
    assert list(found["runs"]) == ["base", "seed 4"]
    assert found["failed"] == ["wild"]
    assert found["runs"]["base"]["curve"] != found["runs"]["seed 4"]["curve"]
    assert found["rows"][0]["target_cosine_spread"] > 0
    weights = tmp_path / "work" / "base" / "checkpoints" / "final" / "model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    status, again, _ = run("--only", "base")
    assert status == 0
    assert again.splitlines()[-2:] == table.splitlines()[-2:]  # what is done stays in table and report
    assert list(json.loads((tmp_path / "study.json").read_text())["runs"]) == ["base", "seed 4"]
    assert weights.stat().st_mtime_ns == before
    text = recipe.read_text()
    recipe.write_text(text.replace("learning_rate: 0.003", "learning_rate: 0.001"))
    status, _, errors = run("--only", "base")
    assert status == 2
    assert "schedule.learning_rate was 0.003, is 0.001; choose another --work" in errors
    recipe.write_text(text)
    (tmp_path / "study.json").write_text('{"kind": "mine"}')
    assert "expected kind 'recipe-study'" in run("--only", "base")[2]
    assert "are not among" in run("--only", "no")[2]
