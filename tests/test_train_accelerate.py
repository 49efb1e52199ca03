"""The training program on a tiny consensus: exact resume, kills, refusals, signals, several processes."""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

from captionbert import train_accelerate
from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import folder_lock, sha256_file
from captionbert.benchmarks import kill_resume
from captionbert.benchmarks.batch_equivalence import free_port
from captionbert.consensus.captions import open_corpus, prepare_corpus
from captionbert.export.folder import export_checkpoint
from captionbert.export.load import load_encoder
from captionbert.modeling_captionbert import CaptionBertModel
from captionbert.recipes import Recipe, load_recipe
from captionbert.rotary_captionbert import decode_bitmap
from captionbert.training.step import LossScale

# By name, since processes that are started from it must find its functions again.
sys.path.append(str(Path(__file__).parent))
setup = importlib.import_module("training_setup")

COMPARED = (*kill_resume.COMPARED, "best/model/model.safetensors")


@pytest.fixture(scope="module")
def consensus(tmp_path_factory: pytest.TempPathFactory, captions: list[str]) -> Path:
    return setup.make_consensus(tmp_path_factory.mktemp("consensus"), captions)


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory, consensus: Path, tiny_tokenizer_dir: Path) -> Path:
    file = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    file.write_text(yaml.safe_dump(setup.tiny_recipe(consensus, tiny_tokenizer_dir)), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory, recipe_file: Path) -> Path:
    """A complete run that nothing disturbed."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    train_accelerate.run(load_recipe(recipe_file), run)
    return run


def digests(run: Path) -> dict[str, str]:
    return {name: sha256_file(run / "checkpoints" / name) for name in COMPARED}


def recipe_with(file: Path, *overrides: str) -> Recipe:
    return load_recipe(file, overrides)


def test_the_run_folder(whole_run: Path) -> None:
    resolved = yaml.safe_load((whole_run / "config" / "recipe.yaml").read_text())
    assert resolved["schedule"]["steps"] == 24
    identity = json.loads((whole_run / "config" / "identity.json").read_text())
    assert identity["data"]["frame_id"] == "f" * 64
    assert len(identity["data"]["captions_digest"]) == len(identity["data"]["tokenizer_digest"]) == 64
    names = {p.name for p in (whole_run / "checkpoints").iterdir()}
    assert {"final", "best", "metrics.json", "metrics.jsonl", "step-00000020"} <= names
    assert sum(name.startswith("step-") for name in names) == 2
    curve = train_accelerate.read_metrics(whole_run)["curve"]
    assert [point["step"] for point in curve] == [0, 8, 16, 24]
    assert curve[-1]["target_cosine"] > curve[0]["target_cosine"] + 0.2
    lines = [json.loads(x) for x in (whole_run / "checkpoints" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 25))
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert train_accelerate.finished(whole_run) == whole_run / "checkpoints" / "final"


def test_stopping_and_resuming_at_any_step_is_exact(
    tmp_path: Path, recipe_file: Path, whole_run: Path
) -> None:
    # 5 is inside epoch 0 (of 5 steps), 8 an evaluation, 9 right after, 13 inside epoch 2
    for step in (3, 5, 8, 9, 13):
        where = train_accelerate.run(load_recipe(recipe_file), tmp_path / "run", stop_after=step)
        assert where.name == f"step-{step:08d}"
    train_accelerate.run(load_recipe(recipe_file), tmp_path / "run")
    assert digests(tmp_path / "run") == digests(whole_run)


def test_a_kill_at_any_moment_is_exact(tmp_path: Path, recipe_file: Path, whole_run: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log.txt"
    options = ["--recipe", str(recipe_file), "--out", str(run)]
    moments = (
        partial(setup.die_after_log_line, 3),  # before the first checkpoint
        partial(setup.die_inside_checkpoint, 12),
        partial(setup.die_after_log_line, 21),  # one step after a checkpoint and between two evaluations
    )
    for moment in moments:
        assert setup.Child(options, log, prepare=moment).wait() == -signal.SIGKILL, log.read_text()
    assert list((run / "checkpoints").glob(".tmp-step-00000012*/optimizer.safetensors")) == []  # cleared away
    assert setup.Child(options, log).wait() == 0, log.read_text()
    assert digests(run) == digests(whole_run), log.read_text()


TERMS = "loss={similarity_weight: 20, ranking_weight: 5, matryoshka_weight: 0.5, matryoshka_dims: [6, 12]}"


def test_a_run_with_every_loss_term_learns_tells_them_and_resumes_exactly(
    tmp_path: Path, recipe_file: Path
) -> None:
    recipe = recipe_with(recipe_file, TERMS)
    train_accelerate.run(recipe, tmp_path / "whole")
    train_accelerate.run(recipe, tmp_path / "cut", stop_after=11)
    train_accelerate.run(recipe, tmp_path / "cut")
    assert digests(tmp_path / "whole") == digests(tmp_path / "cut")
    names = {"similarity", "ranking", "matryoshka"}
    first, *_, last = train_accelerate.read_metrics(tmp_path / "whole")["curve"]
    assert set(first["terms"]) == names
    assert all(last["terms"][name] < first["terms"][name] for name in names)
    lines = (tmp_path / "whole" / "checkpoints" / "metrics.jsonl").read_text().splitlines()
    line = json.loads(lines[-1])
    assert names | {"info_nce", "mse"} <= line.keys()
    parts = (1, "info_nce"), (1, "mse"), (20, "similarity"), (5, "ranking"), (0.5, "matryoshka")
    assert line["loss"] == pytest.approx(sum(weight * line[name] for weight, name in parts))


def test_a_run_without_the_later_terms_tells_what_it_always_told(whole_run: Path) -> None:
    line = json.loads((whole_run / "checkpoints" / "metrics.jsonl").read_text().splitlines()[-1])
    told = ["step", "loss", "info_nce", "mse", "learning_rate", "gradient_norm", "loss_scale", "skipped"]
    assert list(line) == told
    assert all("terms" not in point for point in train_accelerate.read_metrics(whole_run)["curve"])


def test_a_run_stored_before_the_later_loss_keys_goes_on(
    tmp_path: Path, recipe_file: Path, whole_run: Path
) -> None:
    run = tmp_path / "run"
    train_accelerate.run(load_recipe(recipe_file), run, stop_after=5)
    identity = json.loads((run / "config" / "identity.json").read_text())
    kept = {"temperature", "symmetric", "mse_weight", "lookup_weight"}
    assert {k.split(".")[1] for k in identity["recipe"] if k.startswith("loss.")} == kept  # as stored then
    file = run / "config" / "recipe.yaml"
    stored = yaml.safe_load(file.read_text())
    stored["loss"] = {key: stored["loss"][key] for key in kept}
    os.chmod(file, 0o644)
    file.write_text(yaml.safe_dump(stored))
    with pytest.raises(InputError, match=r"recipe\.loss\.ranking_weight: started with None, now 1\.0"):
        train_accelerate.run(recipe_with(recipe_file, "loss.ranking_weight=1"), run)
    train_accelerate.run(load_recipe(recipe_file), run)
    assert digests(run) == digests(whole_run)


@pytest.fixture(scope="module")
def paragraphs(tmp_path_factory: pytest.TempPathFactory, captions: list[str]) -> Path:
    """A consensus of captions that repeat their words."""
    texts = [f"{a} {b} {a}" for a, b in zip(captions[:150], captions[50:])]
    return setup.make_consensus(tmp_path_factory.mktemp("paragraphs"), texts)


def structured(recipe_file: Path, paragraphs: Path, *overrides: str) -> Recipe:
    heads = "model.overrides={hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 64}"
    return recipe_with(
        recipe_file,
        "model.preset=whole-key-lookup-mini",
        heads,
        f"data.consensus={paragraphs}",
        "loss={lookup_weight: 1.0, symmetric: true}",
        *overrides,
    )


def test_a_structured_run_learns_to_look_up_and_resumes_exactly(
    tmp_path: Path, recipe_file: Path, paragraphs: Path
) -> None:
    recipe = structured(recipe_file, paragraphs)
    final = train_accelerate.run(recipe, tmp_path / "whole")
    for step in (5, 11):
        train_accelerate.run(recipe, tmp_path / "cut", stop_after=step)
    train_accelerate.run(recipe, tmp_path / "cut")
    assert digests(tmp_path / "whole") == digests(tmp_path / "cut")
    first, *_, last = train_accelerate.read_metrics(tmp_path / "whole")["curve"]
    assert last["lookup"]["queries"] == first["lookup"]["queries"] > 20
    assert last["lookup"]["probability"] > first["lookup"]["probability"] + 0.1
    config = json.loads((final / "model" / "config.json").read_text())
    vocabulary = json.loads((final / "model" / "tokenizer.json").read_text())["model"]["vocab"]
    assert config["boundary_token_ids"] == sorted(vocabulary[token] for token in ".!?;")
    model = CaptionBertModel.from_pretrained(final / "model")
    flags = decode_bitmap(model.config.continuation_bitmap, torch.device("cpu"))
    assert {t for t, i in vocabulary.items() if flags[i]} == {t for t in vocabulary if t.startswith("##")}


@pytest.mark.parametrize(
    "preset",
    [
        *(f"{name}-mini" for name in ("hierarchical", "pointer-only", "key-endings", "key-pieces")),
        *(f"whole-key-lookup{form}-mini" for form in ("-no-norm", "-late")),
    ],
)
def test_every_other_structured_preset_resumes_exactly(
    tmp_path: Path, recipe_file: Path, paragraphs: Path, preset: str
) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 2, "intermediate_size": 64}
    recipe = structured(
        recipe_file,
        paragraphs,
        f"model.preset={preset}",
        f"model.overrides={sizes}",
        "schedule.steps=4",
        "schedule.warmup=1",
        f"loss.lookup_weight={0 if preset in ('hierarchical-mini', 'key-pieces-mini') else 1}",
    )
    train_accelerate.run(recipe, tmp_path / "whole")
    train_accelerate.run(recipe, tmp_path / "cut", stop_after=3)
    train_accelerate.run(recipe, tmp_path / "cut")
    assert digests(tmp_path / "whole") == digests(tmp_path / "cut")


def test_keys_at_endings_are_trained_at_endings(
    tmp_path: Path, recipe_file: Path, captions: list[str], capsys
) -> None:
    texts = [f"zebraing {a} zebraing" for a in captions[:150]]  # a word of eight pieces
    paragraphs = setup.make_consensus(tmp_path / "paragraphs", texts)
    counts = {}
    for preset in ("whole-key-lookup-mini", "key-endings-mini"):
        recipe = structured(recipe_file, paragraphs, f"model.preset={preset}")
        train_accelerate.run(recipe, tmp_path / preset, stop_after=1)
        counts[preset] = train_accelerate.read_metrics(tmp_path / preset)["curve"][0]["lookup"]["queries"]
    assert counts["whole-key-lookup-mini"] > 4 * counts["key-endings-mini"] > 0
    assert "meant to be trained" not in capsys.readouterr().err
    train_accelerate.run(
        structured(recipe_file, paragraphs, "loss.lookup_weight=0"), tmp_path / "no", stop_after=1
    )
    assert "whole-key-lookup-mini is meant to be trained with a lookup loss" in capsys.readouterr().err


def test_a_lookup_loss_needs_something_to_look_up(tmp_path: Path, recipe_file: Path, consensus: Path) -> None:
    with pytest.raises(
        InputError, match=r"loss.lookup_weight: none of 190 captions repeats an eligible word"
    ):
        train_accelerate.run(structured(recipe_file, consensus), tmp_path / "run")
    with pytest.raises(
        InputError, match=r"loss.lookup_weight is 0.1, but captionbert-mini has no designated head"
    ):
        train_accelerate.run(recipe_with(recipe_file, "loss.lookup_weight=0.1"), tmp_path / "run")


def test_a_boundary_token_must_be_in_the_vocabulary(
    tmp_path: Path, recipe_file: Path, paragraphs: Path
) -> None:
    recipe = structured(recipe_file, paragraphs, "model.boundary_tokens=['.', '<p>']")
    with pytest.raises(
        InputError, match=r"model.boundary_tokens: '<p>' is not in the tokenizer's vocabulary"
    ):
        train_accelerate.run(recipe, tmp_path / "run")


def test_a_checkpoint_of_other_positions_than_its_config_is_refused(
    tmp_path: Path, recipe_file: Path, paragraphs: Path
) -> None:
    step = train_accelerate.run(structured(recipe_file, paragraphs), tmp_path / "run", stop_after=2)
    model = step / "model"
    config = json.loads((model / "config.json").read_text())
    for name, value in (("hash_seed", 7), ("boundary_token_ids", [20])):
        (model / "config.json").write_text(json.dumps(config | {name: value}))
        with pytest.raises(
            ValueError, match=r"the weights carry position_identity .* restore the config.json"
        ):
            CaptionBertModel.from_pretrained(model)
        for lean in (False, True):
            with pytest.raises(InputError, match="position_identity"):
                load_encoder(model, lean=lean)
        shutil.copytree(model, tmp_path / name)
        with pytest.raises(InputError, match="position_identity"):
            export_checkpoint(tmp_path / name, tmp_path / "export")


def test_a_refused_recipe_leaves_no_run_behind(tmp_path: Path, recipe_file: Path, whole_run: Path) -> None:
    for wrong, message in (
        ("schedule.warmup=24", "schedule.warmup is 24 steps but the run has only 24"),
        (f"model.init_embeddings_from={whole_run / 'checkpoints' / 'final' / 'model'}", "its table is"),
    ):
        wrong_size = "model.overrides={hidden_size: 64, num_attention_heads: 2, num_hidden_layers: 1}"
        with pytest.raises(InputError, match=message):
            train_accelerate.run(recipe_with(recipe_file, wrong, wrong_size), tmp_path / "run")
        assert not (tmp_path / "run").exists()
    train_accelerate.run(load_recipe(recipe_file), tmp_path / "run", stop_after=1)


def test_fp16_resumes_with_its_loss_scale(tmp_path: Path, recipe_file: Path) -> None:
    recipe = recipe_with(recipe_file, "compute.precision=fp16", "schedule.steps=6", "loss.symmetric=true")
    train_accelerate.run(recipe, tmp_path / "whole")
    train_accelerate.run(recipe, tmp_path / "cut", stop_after=3)
    train_accelerate.run(recipe, tmp_path / "cut")
    assert digests(tmp_path / "whole") == digests(tmp_path / "cut")
    state = json.loads((tmp_path / "cut" / "checkpoints" / "final" / "state.json").read_text())
    assert state["loss_scale"]["good_steps"] == 6


def test_a_run_in_which_every_fp16_step_overflowed_is_no_final_model(
    tmp_path: Path, recipe_file: Path, monkeypatch
) -> None:
    recipe = recipe_with(recipe_file, "compute.precision=fp16", "schedule.steps=5")
    start = LossScale(2.0**100)
    monkeypatch.setattr(LossScale, "start", classmethod(lambda cls, precision: start))
    with pytest.raises(InputError, match="each of the 5 steps overflowed in fp16, so no weight was updated"):
        train_accelerate.run(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints" / "final").exists()


def test_a_complete_run_is_not_resumed(whole_run: Path, recipe_file: Path) -> None:
    before = digests(whole_run)
    with pytest.raises(InputError, match=r"this run is complete .*24 steps\) and is not resumed"):
        train_accelerate.run(load_recipe(recipe_file), whole_run)
    assert digests(whole_run) == before


def test_law_16_a_complete_run_is_not_taken_to_another_corpus(
    tmp_path: Path, whole_run: Path, recipe_file: Path, captions: list[str]
) -> None:
    other = setup.make_consensus(tmp_path / "other", captions[:150])
    with pytest.raises(InputError, match=r"data\.captions_digest: started with .*data\.targets_digest"):
        train_accelerate.run(recipe_with(recipe_file, f"data.consensus={other}"), whole_run)


def test_a_changed_recipe_corpus_or_frame_is_refused_by_field(
    tmp_path: Path, recipe_file: Path, consensus: Path, captions: list[str]
) -> None:
    run = tmp_path / "run"
    train_accelerate.run(load_recipe(recipe_file), run, stop_after=3)
    with pytest.raises(InputError) as error:
        train_accelerate.run(recipe_with(recipe_file, "loss.temperature=0.1", "seed=4"), run)
    assert "recipe.loss.temperature: started with 0.07, now 0.1" in str(error.value)
    assert "recipe.seed: started with 3, now 4" in str(error.value)
    frame = setup.make_targets(tmp_path / "targets", open_corpus(consensus / "corpus"), frame_id="e" * 64)
    with pytest.raises(InputError, match=r"data\.frame_id: started with 'ffff.*now 'eeee"):
        train_accelerate.run(recipe_with(recipe_file, f"data.targets={frame}"), run)
    other = setup.make_consensus(tmp_path / "other", captions[:150])
    with pytest.raises(InputError, match=r"data\.captions_rows: started with 200, now 150"):
        train_accelerate.run(recipe_with(recipe_file, f"data.consensus={other}"), run)


def test_captions_and_targets_that_disagree(
    tmp_path: Path, recipe_file: Path, consensus: Path, captions: list[str]
) -> None:
    fewer = setup.make_consensus(tmp_path / "fewer", captions[:150])
    recipe = recipe_with(recipe_file, f"data.targets={fewer / 'targets'}")
    with pytest.raises(InputError, match=r"targets: 150 targets for the 200 captions of .*corpus"):
        train_accelerate.run(recipe, tmp_path / "run")
    shuffled = tmp_path / "shuffled.txt"
    shuffled.write_text("\n".join(reversed(captions)) + "\n")
    prepare_corpus([str(shuffled)], tmp_path / "corpus", held_out=10)
    recipe = recipe_with(
        recipe_file, f"data.corpus={tmp_path / 'corpus'}", f"data.targets={consensus / 'targets'}"
    )
    with pytest.raises(InputError, match=r"targets: made for captions of digest \w+, .*corpus has"):
        train_accelerate.run(recipe, tmp_path / "run")


def test_law_17_targets_of_another_frame(tmp_path: Path, recipe_file: Path) -> None:
    with pytest.raises(
        InputError, match=r"targets of frame f+, the frame that data\.frame_id asks for is abc"
    ):
        train_accelerate.run(recipe_with(recipe_file, "data.frame_id=abc"), tmp_path / "run")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("schedule.batch_size=512", "fewer than one batch of 512"),
        ("loss={matryoshka_weight: 1, matryoshka_dims: [24]}", "names 24, the targets are 24 wide"),
        ("schedule={epochs: 0.1, batch_size: 32}", "the schedule has 0 steps"),
        ("data.rows=5000", r"data\.rows asks for 5000 training captions, the corpus has 190"),
        ("data.max_length=500", r"data\.max_length is 500; it must lie in 2\.\.128"),
        ("schedule.warmup=24", r"schedule\.warmup is 24 steps but the run has only 24"),
        ("model.preset=captionbert-maxi", "section model: .*captionbert-maxi"),
        ("model.overrides.projection_dim=32", "the targets are 24 wide"),
        ("model.overrides.vocab_size=20", "the model only 20 embeddings"),
        ("gauges.dev_pairs=nowhere.jsonl", "nowhere.jsonl: no such file"),
        ("model.init_embeddings_from=nowhere", "no model.safetensors there"),
        ("data.tokenizer=nowhere", "nowhere"),
        ("data.corpus=nowhere", "nowhere"),
    ],
)
def test_bad_input_is_refused_before_training(
    tmp_path: Path, recipe_file: Path, override: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        train_accelerate.run(recipe_with(recipe_file, override), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_batch_larger_than_the_corpus_does_not_bind_the_run_folder(
    tmp_path: Path, recipe_file: Path
) -> None:
    with pytest.raises(InputError, match="fewer than one batch of 512"):
        train_accelerate.run(recipe_with(recipe_file, "schedule.batch_size=512"), tmp_path / "run")
    assert not (tmp_path / "run" / "config").exists()
    train_accelerate.run(recipe_with(recipe_file, "schedule.batch_size=16"), tmp_path / "run", stop_after=1)


def test_a_recipe_without_data_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--set data\.consensus=DIR"):
        train_accelerate.run(load_recipe("mini"), tmp_path / "run")


def test_a_corrupt_newest_checkpoint_falls_back_and_says_so(
    tmp_path: Path, recipe_file: Path, whole_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train_accelerate.run(load_recipe(recipe_file), run, stop_after=8)
    victim = run / "checkpoints" / "step-00000008" / "model" / "model.safetensors"
    victim.write_bytes(victim.read_bytes()[:-100])
    train_accelerate.run(load_recipe(recipe_file), run)
    told = capsys.readouterr().err
    assert "step-00000008 is not usable" in told
    assert "going on from" in told
    assert "step-00000004" in told
    assert digests(run) == digests(whole_run)


def test_checkpoints_without_a_config_are_not_guessed_at(tmp_path: Path, recipe_file: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints" / "step-00000004").mkdir(parents=True)
    with pytest.raises(InputError, match=r"holds checkpoints but no config/identity\.json"):
        train_accelerate.run(load_recipe(recipe_file), run)


def test_a_run_does_not_move_into_a_folder_of_something_else(tmp_path: Path, recipe_file: Path) -> None:
    run = tmp_path / "consensus"
    (run / "corpus").mkdir(parents=True)
    (run / ".lock").touch()
    with pytest.raises(InputError, match="holds corpus but no"):
        train_accelerate.run(load_recipe(recipe_file), run)


def test_a_second_process_in_the_run_folder_is_refused(tmp_path: Path, recipe_file: Path) -> None:
    with folder_lock(tmp_path / "run"), pytest.raises(InputError, match=f"in use by process {os.getpid()}"):
        train_accelerate.run(load_recipe(recipe_file), tmp_path / "run")


def test_minutes_become_steps_once(tmp_path: Path, recipe_file: Path, capsys) -> None:
    recipe = recipe_with(recipe_file, "schedule.steps=null", "schedule.minutes=0.01", "schedule.warmup=0.1")
    train_accelerate.run(recipe, tmp_path / "run", stop_after=1)
    steps = yaml.safe_load((tmp_path / "run" / "config" / "recipe.yaml").read_text())["schedule"]["steps"]
    assert 2 <= steps < 50
    assert (
        f"0.01 minutes are {steps} steps; fewer than 50 teach a new model little" in capsys.readouterr().err
    )
    train_accelerate.run(recipe, tmp_path / "run")
    assert (
        json.loads((tmp_path / "run" / "checkpoints" / "final" / "state.json").read_text())["step"] == steps
    )


def test_token_embeddings_start_from_another_table(
    tmp_path: Path, recipe_file: Path, whole_run: Path
) -> None:
    source = whole_run / "checkpoints" / "final" / "model"
    recipe = recipe_with(recipe_file, f"model.init_embeddings_from={source}")
    inputs = train_accelerate.open_inputs(recipe)
    config = train_accelerate.student_config(recipe, inputs.tokenizer, inputs.targets.width)
    found = train_accelerate.build_student(recipe, config).get_input_embeddings().weight
    from safetensors.torch import load_file

    assert found.equal(load_file(source / "model.safetensors")["embeddings.word_embeddings.weight"])


def test_dev_pairs_choose_the_best_and_tensorboard_is_written(tmp_path: Path, recipe_file: Path) -> None:
    pairs = tmp_path / "dev.jsonl"
    rows = [
        ("a man runs", "a man sleeps", 3.0),
        ("two dogs", "a red car", 0.0),
        ("a child plays", "a child plays", 5.0),
    ]
    pairs.write_text(
        "".join(json.dumps(dict(zip(("sentence1", "sentence2", "score"), r))) + "\n" for r in rows)
    )
    recipe = recipe_with(
        recipe_file, f"gauges.dev_pairs={pairs}", "gauges.tensorboard=true", "schedule.steps=8"
    )
    train_accelerate.run(recipe, tmp_path / "run")
    metrics = train_accelerate.read_metrics(tmp_path / "run")
    assert metrics["best"]["gauge"] == "dev_spearman"
    assert all("dev_spearman" in point for point in metrics["curve"])
    assert list((tmp_path / "run" / "tensorboard").rglob("events.out.tfevents.*"))


def test_gradient_checkpointing_trains_the_same(tmp_path: Path, recipe_file: Path) -> None:
    losses = []
    for number, flag in enumerate(("false", "true")):
        recipe = recipe_with(recipe_file, f"compute.gradient_checkpointing={flag}", "schedule.steps=5")
        train_accelerate.run(recipe, tmp_path / str(number))
        lines = (tmp_path / str(number) / "checkpoints" / "metrics.jsonl").read_text().splitlines()
        losses.append(json.loads(lines[-1])["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_command_line(
    tmp_path: Path, recipe_file: Path, whole_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--recipe", str(recipe_file), "--out", str(tmp_path / "run")]
    assert train_accelerate.main([*options, "--set", "schedule.batchsize=4"]) == 2
    assert "did you mean 'batch_size'?" in capsys.readouterr().err
    assert train_accelerate.main([*options, "--stop-after", "2"]) == 0
    assert capsys.readouterr().out.strip().endswith("step-00000002")


def test_sigterm_leaves_a_checkpoint_and_the_same_command_goes_on(
    tmp_path: Path,
    recipe_file: Path,
    whole_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, update = tmp_path / "run", train_accelerate.loop._update

    def signalled(session, *others) -> None:
        update(session, *others)
        if session.state.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(train_accelerate.loop, "_update", signalled)
    with pytest.raises(SystemExit) as ended:
        train_accelerate.run(load_recipe(recipe_file), run)
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert "stopped by SIGTERM after step 6 of 24" in capsys.readouterr().out
    assert (run / "checkpoints" / "step-00000006" / "manifest.json").is_file()
    monkeypatch.undo()
    train_accelerate.run(load_recipe(recipe_file), run)
    assert digests(run) == digests(whole_run)


def test_two_processes_train_the_same(tmp_path: Path, recipe_file: Path, whole_run: Path) -> None:
    options = ["--recipe", str(recipe_file), "--out", str(tmp_path / "run"), "--stop-after", "6"]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {"GLOO_SOCKET_IFNAME": "lo", "ACCELERATE_USE_CPU": "true"}
    logs = [tmp_path / f"log-{rank}.txt" for rank in range(2)]
    children = [
        setup.Child(options, logs[r], {**shared, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(2)
    ]
    assert [child.wait() for child in children] == [0, 0], [log.read_text() for log in logs]
    identity = json.loads((tmp_path / "run" / "config" / "identity.json").read_text())
    assert identity["environment"]["processes"] == 2
    two, one = (
        [json.loads(x) for x in (r / "checkpoints" / "metrics.jsonl").read_text().splitlines()][:6]
        for r in (tmp_path / "run", whole_run)
    )
    assert [line["step"] for line in two] == [1, 2, 3, 4, 5, 6]
    for a, b in zip(two, one):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["learning_rate"] == b["learning_rate"]
    # Resuming with another number of processes is allowed: same rows, equal to rounding.
    where = train_accelerate.run(load_recipe(recipe_file), tmp_path / "run", stop_after=8)
    assert where.name == "step-00000008"


def test_the_program_runs_as_a_file(tmp_path: Path) -> None:
    program = Path(train_accelerate.__file__)
    done = subprocess.run(
        [sys.executable, str(program), "--help"], capture_output=True, text=True, check=True
    )
    assert "--recipe R" in done.stdout
