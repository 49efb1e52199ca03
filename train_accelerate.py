"""The training program: a recipe, captions and consensus targets in, a run folder out.

    python train_accelerate.py --recipe mini --set data.consensus=DIR --out RUN
    accelerate launch train_accelerate.py --recipe v2 --set data.consensus=DIR --out RUN      (several
    processes)

Run folder: config/ (recipe as resolved, every identity, tokenizer), checkpoints/ (steps, best, final,
metrics.json), tensorboard/. The same command goes on where a killed run stood, bit for bit; see
training/loop.py.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, broadcast_object_list

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import (
    folder_lock,
    publish_folder,
    read_json,
    recover_folder,
    sha256_bytes,
    sha256_file,
    write_json,
)
from captionbert.configuration_captionbert import CaptionBertConfig
from captionbert.consensus.captions import Corpus, open_corpus
from captionbert.consensus.packaged import load_tokenizer
from captionbert.consensus.targets import Targets, check_agreement, check_frame, open_targets
from captionbert.encoding_captionbert import token_ids
from captionbert.probes.scored_pairs import read_pairs
from captionbert.probes.word_records import FindLookups, Vocabulary, lookup_targets, queries_of
from captionbert.recipes import Recipe, binding, load_recipe, recipe_names, recipe_to_dict
from captionbert.training import checkpoints, loop
from captionbert.training.batches import Loader, check_lookups, split_rows
from captionbert.training.gauges import METRICS_KIND, Validation
from captionbert.training.identity import (
    check_same_run,
    environment_changes,
    identity_digest,
    make_identity,
    read_identity,
)
from captionbert.training.length import resolve_steps, stated_steps
from captionbert.training.losses import check_dims
from captionbert.training.order import Plan, rank_slice
from captionbert.training.precision import with_precision
from captionbert.training.schedule import warmup_steps
from captionbert.training.step import LossScale, StepSettings, adam
from captionbert.training.student import build_student, embedding_weights, pointing_encode, student_config


@dataclass(frozen=True)
class Inputs:
    """What a run reads: captions, their targets, and the tokenizer of the student."""

    captions: Corpus
    targets: Targets
    tokenizer: Any


def run(recipe: Recipe, out: str | Path, *, stop_after: int | None = None) -> Path:
    """Train by `recipe` into the run folder `out`, going on from its newest checkpoint if there is one.

    Args:
        stop_after: stop with a checkpoint after that many steps; the schedule stays that of the whole run.

    Returns:
        The folder checkpoints/final (or of the step stopped at).

    Raises:
        InputError: see open_inputs, prepare and training.loop.train.
        SystemExit: a signal asked for the end; a checkpoint was written.
    """
    return run_on(recipe, out, open_inputs(recipe), stop_after=stop_after)


def open_inputs(recipe: Recipe) -> Inputs:
    """Open the corpus, targets and tokenizer that a recipe names.

    Raises:
        InputError: the recipe names none, they are missing, or they disagree.
    """
    data = recipe.data
    base = Path(data.consensus) if data.consensus else None
    corpus = data.corpus or (base / "corpus" if base else None)
    targets = data.targets or (base / "targets" if base else None)
    if corpus is None or targets is None:
        raise InputError(
            f"recipe {recipe.name}: where are captions and targets? Give --set data.consensus=DIR (a folder "
            "made by "
            "`captionbert consensus`), or both data.corpus and data.targets"
        )
    captions = open_corpus(Path(corpus))
    return Inputs(captions, open_targets(Path(targets)), load_tokenizer(recipe.data.tokenizer))


def run_on(recipe: Recipe, out: str | Path, inputs: Inputs, *, stop_after: int | None = None) -> Path:
    """`run` on inputs that are already open."""
    run_folder = Path(out)
    check_agreement(inputs.captions, inputs.targets)
    check_frame(inputs.targets, recipe.data.frame_id, "that data.frame_id asks for")
    accelerator = _accelerator(recipe, run_folder)
    recipe = with_precision(recipe, run_folder)
    with ExitStack() as stack:
        if accelerator.is_main_process:
            stack.enter_context(folder_lock(run_folder))
        session, resume = prepare(recipe, run_folder, inputs, accelerator)
        loop.restore(session, resume)
        _start_tracker(recipe, accelerator, session)
        result = loop.train(session, stop_after)
        accelerator.wait_for_everyone()
        if recipe.gauges.tensorboard:
            accelerator.end_training()
    return result or run_folder / "checkpoints" / "final"


def check_rows(recipe: Recipe, captions: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """Training and held-out rows of a corpus (int64), after asking whether the recipe can train on it.

    Needs the captions alone, so that it can be asked before they are embedded.

    Raises:
        InputError: nothing is held out, fewer training rows than data.rows or than one batch, no whole step, or a
            warm-up as long as the run.
    """
    training, held_out = split_rows(captions, recipe.data.rows, recipe.data.sources)
    steps = stated_steps(recipe.schedule, len(training))
    Plan(len(training), recipe.schedule.batch_size, recipe.seed, 1 if steps is None else steps)
    if steps is not None:
        warmup_steps(recipe.schedule.warmup, steps)
    return training, held_out


def check_recipe(recipe: Recipe, captions: Corpus, width: int | None = None) -> None:
    """Everything that can be asked of a recipe and its captions before they are embedded.

    Args:
        width: of the targets to come, where it is known.

    Raises:
        InputError: see check_rows, check_dims, student_config and check_lookups.
    """
    if width is not None:
        check_dims(recipe.loss.matryoshka_dims, width)
    training, _ = check_rows(recipe, captions)
    tokenizer = load_tokenizer(recipe.data.tokenizer)
    config = student_config(recipe, tokenizer, recipe.model.overrides.get("projection_dim", 768))
    _check_lookups(recipe, config, captions, training, tokenizer)


def _check_lookups(
    recipe: Recipe, config: CaptionBertConfig, captions: Corpus, rows: np.ndarray, tokenizer: Any
) -> None:
    if find := _find_lookups(recipe, config, tokenizer):
        check_lookups(captions, rows, _tokenize(recipe, tokenizer), find)


def _accelerator(recipe: Recipe, run_folder: Path) -> Accelerator:
    """Device, process group and trackers. Precision is ours: Accelerate refuses fp16 on a CPU and casts
    outputs.
    """
    project = ProjectConfiguration(project_dir=str(run_folder), logging_dir=str(run_folder / "tensorboard"))
    trackers = "tensorboard" if recipe.gauges.tensorboard else None
    return Accelerator(mixed_precision="no", log_with=trackers, project_config=project)


def _start_tracker(recipe: Recipe, accelerator: Accelerator, session: loop.Session) -> None:
    if recipe.gauges.tensorboard:
        options = {
            "tensorboard": {"purge_step": session.state.step + 1}
        }  # points past the checkpoint are dropped
        accelerator.init_trackers("training", init_kwargs=options)
        session.log_scalars = lambda values, step: accelerator.log(values, step=step)


def prepare(
    recipe: Recipe, run_folder: Path, inputs: Inputs, accelerator: Accelerator
) -> tuple[loop.Session, Path | None]:
    """Everything before the first step: identity, config folder, model, data, and the checkpoint to go on
    from.

    Raises:
        InputError: the run is complete, was started with other settings or data, its checkpoints are all
            damaged, or the recipe does not fit the data or the number of processes.
    """
    config = student_config(recipe, inputs.tokenizer, inputs.targets.width)
    check_dims(recipe.loss.matryoshka_dims, inputs.targets.width)
    training, held_out = check_rows(recipe, inputs.captions)
    validation = _validation(recipe, config, inputs, held_out)
    new = identity_of(recipe, inputs, config, accelerator)

    def build(steps: int, identity: str = "none") -> loop.Session:
        plan = Plan(len(training), recipe.schedule.batch_size, recipe.seed, steps)
        return _session(recipe, run_folder, inputs, config, plan, training, validation, accelerator, identity)

    standing: list[Any] = [None]
    if accelerator.is_main_process:
        standing = [_standing(run_folder, new)]
    broadcast_object_list(standing)
    if standing[0] is not None:
        identity, steps, resume = standing[0]
        return build(steps, identity), resume
    if accelerator.is_main_process:
        if recipe.model.preset.startswith(("whole-key", "pointer")) and not recipe.loss.lookup_weight:
            print(
                f"warning: {recipe.model.preset} is meant to be trained with a lookup loss, and loss.lookup_weight is "
                "0 (the recipe whole-key-lookup has 0.1)",
                file=sys.stderr,
            )
        _check_lookups(recipe, config, inputs.captions, training, inputs.tokenizer)
    resolved = [resolve_steps(recipe.schedule, len(training), build)]
    broadcast_object_list(resolved)
    # Built before anything is written: a recipe that is refused here may be corrected and run again.
    session = build(resolved[0], identity_digest(new))
    if accelerator.is_main_process:
        _write_config(run_folder, recipe, new, resolved[0], inputs.tokenizer)
    accelerator.wait_for_everyone()
    return session, None


def _standing(run_folder: Path, new: dict[str, Any]) -> tuple[str, int, Path | None] | None:
    """(identity digest, steps, newest good checkpoint) of a run that was started; None for a new one."""
    recover_folder(run_folder / "config")
    if not (run_folder / "config" / "identity.json").is_file():
        strange = sorted(p.name for p in run_folder.iterdir() if not p.name.startswith("."))
        if strange:
            raise InputError(
                f"{run_folder}: holds {', '.join(strange[:3])} but no config/identity.json, so it is no run that could "
                "go on, and a new one would mix with it; choose another folder"
            )
        return None
    old = read_identity(run_folder)
    check_same_run(run_folder, old, new)
    if final := checkpoints.finished(run_folder):
        raise InputError(
            f"{run_folder}: this run is complete ({final}, {old['steps']} steps) and is not resumed; export "
            "it, or "
            "train into another folder"
        )
    resume, passed = checkpoints.newest_good(run_folder, old["digest"])
    for sentence in passed + [f"environment changed: {c}" for c in environment_changes(old, new)]:
        print(f"warning: {sentence}", file=sys.stderr)
    if resume is not None:
        print(f"going on from {resume}", file=sys.stderr)
    return old["digest"], old["steps"], resume


def identity_of(
    recipe: Recipe, inputs: Inputs, config: CaptionBertConfig, accelerator: Accelerator
) -> dict[str, Any]:
    """Every setting and digest that decides the weights of this run, and the environment it runs in."""
    source = recipe.model.init_embeddings_from
    data = {
        "captions_digest": inputs.captions.digest,
        "captions_rows": inputs.captions.rows,
        "targets_digest": inputs.targets.digest,
        "frame_id": inputs.targets.frame_id,
        "tokenizer_digest": sha256_bytes(inputs.tokenizer.backend_tokenizer.to_str().encode()),
        "dev_pairs_digest": sha256_file(recipe.gauges.dev_pairs) if recipe.gauges.dev_pairs else None,
        "init_embeddings_digest": sha256_file(embedding_weights(source)) if source else None,
    }
    model = {"vocab_size": config.vocab_size, "projection_dim": config.projection_dim}
    environment = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": accelerator.device.type,
        "processes": accelerator.num_processes,
        "threads": torch.get_num_threads(),
    }
    return make_identity(binding(recipe), data, model, environment)


def _write_config(
    run_folder: Path, recipe: Recipe, identity: dict[str, Any], steps: int, tokenizer: Any
) -> None:
    """config/: the recipe with minutes resolved to steps, the identity, the tokenizer's files."""
    resolved = replace(recipe, schedule=replace(recipe.schedule, steps=steps, epochs=None, minutes=None))
    with publish_folder(run_folder / "config") as folder:
        text = yaml.safe_dump(recipe_to_dict(resolved), sort_keys=False)
        (folder / "recipe.yaml").write_text(text, encoding="utf-8")
        write_json(
            folder / "identity.json", {**identity, "steps": steps, "digest": identity_digest(identity)}
        )
        tokenizer.save_pretrained(folder / "tokenizer")


def _validation(
    recipe: Recipe, config: CaptionBertConfig, inputs: Inputs, held_out: np.ndarray
) -> Validation:
    """Up to `held_out_rows` captions spread evenly over those held out, and the dev pairs if any."""
    count = min(recipe.gauges.held_out_rows, len(held_out))
    rows = held_out[np.linspace(0, len(held_out) - 1, count).astype(int)]
    tokenize = _tokenize(recipe, inputs.tokenizer)
    pairs = read_pairs(recipe.gauges.dev_pairs) if recipe.gauges.dev_pairs else None
    ids = tokenize(inputs.captions.texts(rows))
    find = _find_lookups(recipe, config, inputs.tokenizer)
    return Validation(
        ids=ids,
        targets=inputs.targets.vectors(rows),
        pair_ids=tokenize(pairs.first + pairs.second) if pairs else [],
        scores=np.asarray(pairs.scores) if pairs else None,
        lookups=find(ids) if find else None,
        loss=recipe.loss,
        groups=np.asarray(inputs.captions.groups)[rows],
    )


def _find_lookups(recipe: Recipe, config: CaptionBertConfig, tokenizer: Any) -> FindLookups | None:
    """What finds the queries of the lookup loss; None without one."""
    if not recipe.loss.lookup_weight:
        return None
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    return partial(lookup_targets, vocabulary=vocabulary, queries=queries_of(config))


def _tokenize(recipe: Recipe, tokenizer: Any) -> Callable[[list[str]], list[list[int]]]:
    return lambda texts: token_ids(tokenizer, texts, recipe.data.max_length)


def _session(
    recipe: Recipe,
    run_folder: Path,
    inputs: Inputs,
    config: CaptionBertConfig,
    plan: Plan,
    training: np.ndarray,
    validation: Validation,
    accelerator: Accelerator,
    identity: str,
) -> loop.Session:
    """Model, optimizer and data of this process, at step 0."""
    device = accelerator.device
    model = build_student(recipe, config).to(device)
    share = rank_slice(plan.batch_size, accelerator.process_index, accelerator.num_processes)
    loader = Loader(
        inputs.captions,
        inputs.targets,
        _tokenize(recipe, inputs.tokenizer),
        training,
        plan,
        share,
        _find_lookups(recipe, config, inputs.tokenizer),
    )
    session = loop.Session(
        run=run_folder,
        identity=identity,
        model=model,
        optimizer=adam(list(model.parameters()), recipe.schedule.learning_rate),
        encode=pointing_encode(model),
        loader=loader,
        plan=plan,
        step_settings=step_settings(recipe, device, inputs.targets.digest),
        settings=loop.LoopSettings.of(recipe, plan.steps),
        validation=validation,
        device=device,
        is_main=accelerator.is_main_process,
    )
    session.state.loss_scale = LossScale.start(recipe.compute.precision)
    return session


def step_settings(recipe: Recipe, device: torch.device, targets_digest: str) -> StepSettings:
    """The part of a recipe that one step reads."""
    return StepSettings(
        loss=recipe.loss,
        clip=recipe.schedule.clip,
        precision=recipe.compute.precision,
        micro_batch_tokens=recipe.compute.micro_batch_tokens,
        padded=device.type != "cpu",
        targets_digest=targets_digest,
    )


def read_metrics(run_folder: str | Path) -> dict[str, Any]:
    """{"curve": [...], "best": {...}} of a run: its evaluations and its best point. InputError: it has none."""
    return read_json(Path(run_folder) / "checkpoints" / "metrics.json", kind=METRICS_KIND)


def finished(run_folder: str | Path) -> Path | None:
    """checkpoints/final of a complete run, else None."""
    return checkpoints.finished(Path(run_folder))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this program, also of `captionbert train`."""
    parser.add_argument(
        "--recipe", required=True, help=f"a recipe file, or one of: {', '.join(recipe_names())}", metavar="R"
    )
    parser.add_argument("--out", help="run folder (default: runs/<name of the recipe>)", metavar="DIR")
    parser.add_argument(
        "--set",
        action="append",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="override a recipe key, e.g. data.consensus=DIR schedule.minutes=10",
    )
    parser.add_argument(
        "--stop-after",
        type=int,
        metavar="N",
        help="stop with a checkpoint after step N, without changing the schedule",
    )


def main(argv: list[str] | None = None, prog: str = "train_accelerate.py") -> int:
    """Command line. 0: trained; 2: bad input, said in one sentence; 128 + n: ended by signal n with a
    checkpoint.
    """
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Train a CaptionBERT encoder by a recipe. Killed or stopped, the same command goes on.",
        epilog="example:\n  captionbert train --recipe mini --set data.consensus=runs/cats/consensus",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    try:
        recipe = load_recipe(arguments.recipe, [text for group in arguments.set for text in group])
        result = run(recipe, arguments.out or Path("runs") / recipe.name, stop_after=arguments.stop_after)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
