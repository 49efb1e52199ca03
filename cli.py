"""`captionbert VERB`: the command line. Thin: each verb is one function that imports what it needs and
calls a room.

Exit status: 0 done; 1 a check or a run failed; 2 bad input or bad arguments; 130 interrupted. A message
goes to stderr; --debug shows the traceback instead. Only argparse is imported before a verb is chosen:
`captionbert embed` is meant to start quickly.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from captionbert.artifacts.errors import InputError
from captionbert.cli_options import (
    consensus_options,
    distill_options,
    embed_options,
    evaluate_options,
    export_options,
    info_options,
    parity_options,
    scenes_options,
    show_example,
    some,
    verb_parser,
    word_list,
)
from captionbert.cli_probes import probe_options

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
Options = argparse.Namespace


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [word for word in arguments if word != "--debug"]  # it may stand before or after the verb
    if not sys.stderr.isatty():  # the libraries' own progress bars; ours are quiet by themselves
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        if arguments[:1] == ["train"]:  # its options are those of train_accelerate.py, help included
            return train(arguments[1:])
        options = build_parser().parse_args(arguments)
        _check_outputs(options)
        return options.run(options)
    except InputError as error:
        if debug:
            raise
        return _complain(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        return _complain("interrupted; run the same command again to go on", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if debug:
            raise
        return _complain(f"failed: {type(error).__name__}: {error} (--debug shows where)", FAILED)


def _check_outputs(options: Options) -> None:
    """Every file that a verb writes at its end is tried before its work, and may not be one that it reads.

    Raises:
        InputError: see check_output; an input or another output under the same name; a file in a folder that is read;
            an existing --json file that is no earlier report; --arrays without .npz.
    """
    given = {name: value for name, value in vars(options).items() if value}
    names = ("json", "arrays", "html", *(["out"] if options.verb == "embed" else []))
    outputs = {f"--{name}": given.pop(name) for name in names if isinstance(given.get(name), Path)}
    if not outputs:
        return
    from captionbert.artifacts.files import check_output, is_report

    words = [w for value in given.values() for w in (value if isinstance(value, list) else [value])]
    words = [w.removeprefix("consensus:") if isinstance(w, str) else w for w in words]  # a model's word
    inputs = [Path(word) for word in words if isinstance(word, str | Path) and os.path.exists(word)]
    for name, path in outputs.items():
        report = is_report(path)
        for other in inputs if os.path.exists(path) else []:
            if path.samefile(other):
                raise InputError(f"{name} {path}: is read as well; give another file")
            if other.is_dir() and path.resolve().is_relative_to(other.resolve()) and not report:
                raise InputError(f"{name} {path}: is a file of {other}, which is read; give another name")
        if name == "--arrays" and path.suffix != ".npz":
            raise InputError(f"{name} {path}: expected a name that ends in .npz")
        if name == "--json" and os.path.isfile(path) and os.path.getsize(path) and not report:
            raise InputError(f"{name} {path}: exists and is no earlier report; give another name")
        if sum(path.resolve() == other.resolve() for other in outputs.values()) > 1:
            raise InputError(f"{name} {path}: two outputs have this name; give each its own")
    for path in outputs.values():
        check_output(path)


def _complain(message: str, status: int) -> int:
    print(f"captionbert: {message}", file=sys.stderr)
    return status


# ---- verbs ------------------------------------------------------------------------------------------------


def embed(options: Options) -> int:
    """Texts to vectors: into a file, as JSON, or as the nearest pairs of a few."""
    from captionbert.distill.embedding import run_embed

    return _show(options, *run_embed(options))


def consensus_embed(options: Options) -> int:
    """Captions and teachers to embeddings on disk."""
    _embed_captions(options)
    return _show_consensus(options)


def consensus_fit(options: Options) -> int:
    """Alignment maps of the teachers into the reference's frame, with their scores."""
    _fit_maps(options)
    return _show_consensus(options)


def consensus_targets(options: Options) -> int:
    """The target of each caption."""
    from captionbert.consensus.build import targets as run

    if options.corpus or options.teachers or options.weights:
        _fit_maps(options)
    run(options.out)
    return _show_consensus(options)


def consensus_audit(options: Options) -> int:
    """Prove that every shard is there, whole and of this frame."""
    from captionbert.consensus.build import audit as run

    report = run(options.out)
    _show_facts(options, report)
    return OK if report["ok"] else FAILED


def _embed_captions(options: Options) -> None:
    if not options.corpus or not options.teachers:
        raise InputError(f"consensus {options.step}: give both --corpus and --teachers")
    from captionbert.consensus.build import embed as run

    names = ("reference", "held_out", "exclude", "column", "control", "sample_rows", "force", "weights")
    run(options.corpus, word_list(options.teachers), options.out, **some(options, *names))


def _fit_maps(options: Options) -> None:
    from captionbert.consensus.build import fit as run

    if options.corpus or options.teachers:
        _embed_captions(options)
    run(options.out, **some(options, "sample_rows", "force", "weights"))


def _show_consensus(options: Options) -> int:
    from captionbert.artifacts.files import read_json
    from captionbert.consensus.report import format_report

    report = read_json(options.out / "report.json", kind="consensus-report")
    return _show(options, report, format_report(report))


def train(arguments: list[str]) -> int:
    """Train a student: train_accelerate.py with the same arguments."""
    from captionbert.train_accelerate import main as run

    return run(arguments, "captionbert train") or OK


def export(options: Options) -> int:
    """A checkpoint to a folder that loads without this package."""
    from captionbert.distill.describe import describe
    from captionbert.export.folder import export_checkpoint

    rest = some(options, "dtype", "fallback", "replace")
    out = export_checkpoint(options.checkpoint, options.out, **rest)
    return _show_facts(options, describe(out))


def parity(options: Options) -> int:
    """Compare an exported folder with its checkpoint, without this package on the other side."""
    from captionbert.parity.report import render
    from captionbert.parity.run import run_parity

    rest = some(options, "profile", "json", "python")
    dtypes = tuple(word_list(options.dtypes))
    report = run_parity(options.checkpoint, options.folder, dtypes=dtypes, **rest)
    print(render(report))
    return OK if report["passed"] else FAILED


def evaluate(options: Options) -> int:
    """STS scores and geometry of an exported folder."""
    from captionbert.evaluation.sts import evaluate as run
    from captionbert.evaluation.sts import render

    rest = some(options, "suite", "data", "json", "batch_size", "max_length")
    tasks = word_list(options.tasks) if options.tasks else None
    result = run(options.folder, tasks=tasks, dtype=options.dtype or "fp32", **rest)
    print(render(result))
    return OK


def info(options: Options) -> int:
    """What a folder of this program is."""
    from captionbert.distill.describe import describe

    return _show_facts(options, describe(options.folder))


def distill(options: Options) -> int:
    """The whole line, from captions to an evaluated model."""
    from captionbert.distill.line import Plan, run_line

    names = ("out", "recipe", "minutes", "data", "exclude", "column", "held_out", "force", "weights")
    teachers = tuple(word_list(options.teachers))
    plan = Plan(tuple(options.corpus), teachers, settings=tuple(options.set), **some(options, *names))
    # With --json the log goes to stderr, what the rooms print included, and stdout holds the summary alone.
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        summary = run_line(plan, say=_say, redo=options.redo)
    return _show(options, summary, f"summary: {options.out / 'summary.json'}")


def scenes(options: Options) -> int:
    """Generated captions, one a line."""
    from captionbert.distill.scenes import scenes as generate
    from captionbert.distill.scenes import write_scenes

    if options.out is None:
        for caption in generate(options.count, options.seed):
            print(caption)
        return OK
    write_scenes(options.out, options.count, options.seed)
    print(f"{options.out}: {options.count} distinct captions (seed {options.seed})")
    return OK


# ---- output -----------------------------------------------------------------------------------------------


def _say(line: str) -> None:
    print(line, flush=True)


def _show(options: Options, facts: dict[str, Any], text: str) -> int:
    print(json.dumps(facts, indent=1, default=str) if options.json else text)
    return OK


def _show_facts(options: Options, facts: dict[str, Any]) -> int:
    from captionbert.distill.describe import render

    return _show(options, facts, render(facts))


# ---- options ----------------------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = argparse.ArgumentParser(
        prog="captionbert",
        description="Compact sentence encoders trained on unlabelled text by teacher consensus.",
        epilog="`captionbert VERB --help` tells more. Exit: 0 done, 1 a check or run failed, 2 bad input.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    embed_options(
        verb_parser(verbs, "embed", embed, 'embed --model runs/cats/model "a cat" "a kitten" "a truck"')
    )
    _consensus_options(
        verbs.add_parser("consensus", help="embed, fit, targets, audit: targets from several teachers")
    )
    verbs.add_parser("train", help="train a student on targets; `captionbert train --help` lists its options")
    export_options(verb_parser(verbs, "export", export, "export runs/cats/run runs/cats/model"))
    parity_options(
        verb_parser(verbs, "parity", parity, "parity runs/cats/run runs/cats/model --json parity.json")
    )
    evaluate_options(
        verb_parser(verbs, "evaluate", evaluate, "evaluate runs/cats/model --data sts --json scores.json")
    )
    info_options(verb_parser(verbs, "info", info, "info runs/cats/model"))
    probe_options(
        verbs.add_parser(
            "probe", help="coverage, lookup, binding, documents ...: what a corpus or frozen models hold"
        )
    )
    distill_options(
        verb_parser(
            verbs,
            "distill",
            distill,
            "distill --corpus cats.txt --teachers minilm,paraphrase-l3 --out runs/cats",
        )
    )
    scenes_options(verb_parser(verbs, "scenes", scenes, "scenes --count 20000 --out captions.txt"))
    return parser


def _consensus_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Targets from the agreement of several teachers, in four resumable steps over one folder."
    )
    source = "--corpus cats.txt --teachers minilm,paraphrase-l3"
    show_example(parser, f"consensus targets {source} --out runs/cats/consensus")
    steps = parser.add_subparsers(dest="step", metavar="STEP", required=True)
    for name, run, example in (
        ("embed", consensus_embed, f"consensus embed {source} --out runs/cats/consensus"),
        ("fit", consensus_fit, "consensus fit --out runs/cats/consensus"),
        ("targets", consensus_targets, "consensus targets --out runs/cats/consensus"),
        ("audit", consensus_audit, "consensus audit --out runs/cats/consensus"),
    ):
        consensus_options(verb_parser(steps, name, run, example), first=name == "embed")


if __name__ == "__main__":
    raise SystemExit(main())
