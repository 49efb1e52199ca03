"""Recipes: the published step counts, overrides, and the errors for what a recipe may not say."""

from pathlib import Path

import pytest
import yaml

from captionbert.artifacts.errors import InputError
from captionbert.configuration_captionbert import CaptionBertConfig
from captionbert.recipes import (
    binding,
    load_recipe,
    recipe_from_dict,
    recipe_names,
    recipe_to_dict,
)
from captionbert.training.order import steps_of_epochs


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_and_names_a_preset(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    CaptionBertConfig.from_preset(recipe.model.preset, **recipe.model.overrides)
    assert recipe_from_dict(recipe_to_dict(recipe)) == recipe


# (recipe, training rows, steps, warm-up): the table of the specification
PUBLISHED = [
    ("v2", 26_904_576, 52_548, 2000),
    ("v2-b", 31_905_616, 62_312, 2000),
    ("screen", 1_000_000, 1952, 200),
    ("larger", 4_000_000, 7808, 400),
    ("matched-exposure", 1_000_000, 7808, 400),
    ("readout-settle", 500_000, 488, 200),
]


@pytest.mark.parametrize(("name", "rows", "steps", "warmup"), PUBLISHED)
def test_published_schedules(name: str, rows: int, steps: int, warmup: int) -> None:
    recipe = load_recipe(name)
    schedule = recipe.schedule
    found = schedule.steps or steps_of_epochs(rows, schedule.batch_size, schedule.epochs or 0)
    assert found == steps
    assert recipe.data.rows in (None, rows)
    assert schedule.warmup == warmup
    assert (schedule.learning_rate, schedule.min_learning_rate, schedule.clip) == (6e-4, 1e-6, 1.0)
    assert (schedule.batch_size, recipe.loss.temperature, recipe.data.max_length) == (2048, 0.07, 256)
    assert recipe.loss.symmetric == (
        name in ("screen", "larger", "matched-exposure") or name.startswith("whole-key")
    )


def test_an_override_wins_and_is_typed() -> None:
    recipe = load_recipe(
        "mini", ["schedule.batch_size=64", "schedule.learning_rate=2e-4", "gauges.tensorboard=true"]
    )
    assert (recipe.schedule.batch_size, recipe.schedule.learning_rate) == (64, 2e-4)
    assert recipe.gauges.tensorboard is True
    assert (
        load_recipe("mini", ["model.overrides.num_hidden_layers=2"]).model.overrides["num_hidden_layers"] == 2
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("schedule.batchsize=4", r"unknown key 'schedule\.batchsize' \(did you mean 'batch_size'\?\)"),
        ("shedule.steps=4", r"unknown key 'shedule' \(did you mean 'schedule'\?\)"),
        ("loss.temperature=0", r"loss\.temperature must be a positive number, found 0"),
        (
            "data.sources={a.txt: 0}",
            r"data\.sources gives 'a\.txt' the share 0; expected a number over 0 and up to 1",
        ),
        ("data.sources={a.txt: true}", r"data\.sources gives 'a\.txt' the share True"),
        ("loss.temperature=-0.07", r"loss\.temperature must be a positive number"),
        ("loss.temperature=.nan", r"loss\.temperature must be a positive number"),
        ("schedule.batch_size=many", r"schedule\.batch_size must be int, found 'many'"),
        ("schedule.batch_size=0", r"schedule\.batch_size must be 2 or more .*found 0"),
        ("schedule.batch_size=1", r"schedule\.batch_size must be 2 or more .*found 1"),
        ("schedule.batch_size=2.5", r"schedule\.batch_size must be int, found 2.5"),
        ("gauges.tensorboard=3", r"gauges\.tensorboard must be bool, found 3"),
        ("compute.precision=fp8", r"compute\.precision must be one of auto, fp32, bf16, fp16, found 'fp8'"),
        ("schedule.steps=5", r"exactly one of .*found steps, minutes"),
        ("schedule.minutes=null", r"exactly one of .*found none"),
        ("loss.contrast_weight=-1", r"loss\.contrast_weight must be a number of 0 or more, found -1"),
        ("loss.ranking_margin=2", r"loss\.ranking_margin must be below 2"),
        ("loss={contrast_weight: 0, mse_weight: 0, lookup_weight: 1}", r"are all 0, so nothing would train"),
        (
            "loss.matryoshka_weight=1",
            r"loss\.matryoshka_weight is 1 and loss\.matryoshka_dims \[\]; .*needs both",
        ),
        ("loss.matryoshka_dims=[64]", r"loss\.matryoshka_weight is 0 and .*\[64\]; .*needs both"),
        ("loss={matryoshka_weight: 1, matryoshka_dims: [8, 8]}", r"names 8 more than once"),
        ("loss={matryoshka_weight: 1, matryoshka_dims: [8, 0]}", r"must be whole numbers .*found 0"),
        ("loss={matryoshka_weight: 1, matryoshka_dims: [8, 1]}", r"must be .* from 2 .*found 1"),
        ("loss={matryoshka_weight: 1, matryoshka_dims: [8.5]}", r"must be whole numbers .*found 8\.5"),
        ("loss.matryoshka_dims=64", r"loss\.matryoshka_dims must be list, found 64"),
        ("schedule.warmup=-1", r"schedule\.warmup must be a number of 0 or more"),
        ("seed.low=1", r"'seed' is a value, not a section"),
        (
            "data.sources={1: 1, a.txt: 1}",
            r"data\.sources names 1, which is no text; expected names of files",
        ),
        ("data.sources={a.txt: 1", r"--set 'data\.sources=.*cannot be read as YAML \(expected ','"),
        ("schedule.batch_size", r"expected section\.key=value"),
    ],
)
def test_what_a_recipe_may_not_say(override: str, message: str) -> None:
    base = ["seed=0"] if override.startswith("seed") else []
    with pytest.raises(InputError, match=message):
        load_recipe("mini", [*base, override])


def test_ranking_alone_needs_three_captions() -> None:
    alone = ["loss.contrast_weight=0", "loss.mse_weight=0", "loss.ranking_weight=1"]
    with pytest.raises(InputError, match=r"ranking_weight alone .*batch_size must be 3 or more, found 2"):
        load_recipe("mini", ["schedule.batch_size=2", *alone])
    load_recipe("mini", ["schedule.batch_size=3", *alone])
    load_recipe("mini", ["schedule.batch_size=2", *alone[1:]])


def test_an_unknown_recipe_names_the_near_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no recipe called 'mnii' \(did you mean 'mini'\?\)"):
        load_recipe("mnii")
    with pytest.raises(InputError, match="no such recipe file"):
        load_recipe(tmp_path / "none.yaml")


def test_a_file_that_is_no_mapping_or_no_yaml(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("- 1\n")
    with pytest.raises(InputError, match="expected a mapping"):
        load_recipe(file)
    file.write_text("a: [1\n")
    with pytest.raises(InputError, match="not a YAML file"):
        load_recipe(file)


def test_paths_may_differ_on_resumption_and_settings_may_not(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(yaml.safe_dump({"schedule": {"steps": 4}}))
    base = binding(load_recipe(file))
    assert binding(load_recipe(file, ["data.corpus=elsewhere", "checkpoint.minutes=1"])) == base
    assert binding(load_recipe(file, ["loss.symmetric=true"])) != base


# loss.* of a run stored before the terms of 2026-12; a new key must not change the identity of such a run.
FIRST_LOSS_KEYS = {"temperature", "symmetric", "mse_weight", "lookup_weight"}


@pytest.mark.parametrize("name", recipe_names())
def test_later_keys_enter_the_identity_only_when_they_say_something(name: str) -> None:
    base = binding(load_recipe(name))
    assert {key.removeprefix("loss.") for key in base if key.startswith("loss.")} == FIRST_LOSS_KEYS
    for change in ("contrast_weight=0.5", "similarity_weight=1", "ranking_weight=1", "ranking_margin=0.1"):
        key = f"loss.{change.split('=')[0]}"
        changed = binding(load_recipe(name, [f"loss.{change}"]))
        assert {k for k in changed if base.get(k) != changed[k]} == {key}
    assert "data.sources" not in base
    assert "data.sources" in binding(load_recipe(name, ["data.sources={a.txt: 0.5}"]))
    changed = binding(load_recipe(name, ["loss.matryoshka_weight=1", "loss.matryoshka_dims=[64]"]))
    assert changed["loss.matryoshka_dims"] == [64]
