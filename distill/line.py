"""The line that `captionbert distill` runs: captions and teachers in, an evaluated model out.

    corpus -> embed:<teacher> ... -> fit -> targets -> train -> export -> parity -> evaluate -> pairs

    DIR/consensus/  captions, teacher vectors, frame, targets     DIR/run/    training run
    DIR/model/      the exported encoder                          DIR/*.json  parity, evaluation, stages ...

Up to `train` a changed input is refused: hours of work hang on it. What comes after is made again.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import (
    MANIFEST,
    digest_json,
    read_json,
    recover_folder,
    sha256_file,
    verify_folder,
    write_json,
)
from captionbert.consensus import build
from captionbert.consensus.captions import open_corpus, prepare_corpus
from captionbert.consensus.frames import open_frame, relative_weights
from captionbert.consensus.readers import open_source
from captionbert.consensus.report import format_report
from captionbert.consensus.shards import ShardSet, is_complete
from captionbert.consensus.specs import TeacherSpec, parse_teacher
from captionbert.consensus.targets import open_targets
from captionbert.consensus.teachers import deciding_files
from captionbert.distill.stages import Say, Stage, run_stages
from captionbert.recipes import Recipe, binding, load_recipe

SUMMARY_KIND = "distill-summary"


@dataclass(frozen=True)
class Plan:
    """What the user asked for.

    Attributes:
        corpus: caption sources. teachers: words for `parse_teacher`; the first is the reference.
        out: folder of everything. recipe: a recipe's name or file. settings: "section.key=value" changes.
        minutes: training time, instead of the recipe's length. data: folder of STS files.
        weights: of teachers in the consensus, by name; see `relative_weights`.
        exclude, column, held_out: see `prepare_corpus`. force: go on with fewer than 10 fit rows a coordinate.
    """

    corpus: tuple[str, ...]
    teachers: tuple[str, ...]
    out: Path
    recipe: str = "mini"
    settings: tuple[str, ...] = ()
    minutes: float | None = None
    data: Path | None = None
    exclude: Path | None = None
    column: str | None = None
    held_out: int = 2000
    force: bool = False
    weights: Mapping[str, float] | None = None


def run_line(plan: Plan, *, say: Say = print, redo: str | None = None) -> dict[str, Any]:
    """Run every stage of `plan` that is not done; returns the summary (also DIR/summary.json).

    Raises:
        InputError: bad input of any stage, found before the first runs where possible; an input that changed.
        RuntimeError: the exported model differs from its checkpoint.
    """
    if plan.data is not None and not plan.data.is_dir():
        raise InputError(
            f"--data {plan.data}: no such folder; expected stsb-test.jsonl, sickr-test.jsonl ... in it"
        )
    build.check_held_out(plan.held_out)
    plan = dataclasses.replace(plan, out=plan.out.absolute())
    line = _Line(plan, say)
    records = run_stages(plan.out, line.stages(), say=say, redo=redo)
    return line.finish(records)


class _Line:
    """The stages of one plan, and what they share."""

    def __init__(self, plan: Plan, say: Say) -> None:
        self.plan, self.say = plan, say
        teachers = plan.out / "consensus" / "teachers"
        self.specs = [build.as_begun(parse_teacher(word), teachers) for word in plan.teachers]
        names = [spec.name for spec in self.specs]
        if not names or len(set(names)) != len(names):
            raise InputError(f"--teachers: expected one or more teachers of different names, found {names}")
        self.weights = relative_weights(plan.weights, names)
        self.recipe = _recipe(plan)
        self.consensus, self.run = plan.out / "consensus", plan.out / "run"
        self.model, self.final = plan.out / "model", plan.out / "run" / "checkpoints" / "final"

    def stages(self) -> list[Stage]:
        """All stages in order."""
        return [
            self._corpus(),
            *(self._embed(index) for index in range(len(self.specs))),
            self._fit(),
            self._targets(),
            self._train(),
            self._export(),
            self._parity(),
            self._evaluate(),
            self._pairs(),
        ]

    def _corpus(self) -> Stage:
        plan, folder = self.plan, self.consensus / "corpus"

        def inputs() -> dict[str, Any]:
            """Digest of each source and of the exclusion file, and how they are read."""
            if plan.exclude is not None and not plan.exclude.is_file():
                raise InputError(f"--exclude {plan.exclude}: no such file")
            exclude = sha256_file(plan.exclude) if plan.exclude else None
            sources: dict[str, str] = {}
            for name, identity in sorted(
                (s.name, f"{s.identity} {s.column or ''}") for s in map(open_source, plan.corpus)
            ):
                # Two sources may share a name; each must count.
                sources[name if name not in sources else f"{name} {len(sources) + 1}"] = identity.strip()
            return {"sources": sources, "column": plan.column, "exclude": exclude, "held_out": plan.held_out}

        def run() -> None:
            """Write consensus/corpus and tell what the captions look like."""
            corpus = prepare_corpus(list(plan.corpus), folder, **self._corpus_options())
            self._tell(format_report({"input": build.input_distribution(corpus)}))

        return Stage(
            "corpus",
            "read the captions",
            inputs,
            run,
            output=lambda: open_corpus(folder).digest,
            paths=(folder,),
            repeatable=False,
        )

    def _embed(self, index: int) -> Stage:
        spec = self.specs[index]
        folder = self.consensus / "teachers" / spec.name

        def inputs() -> dict[str, Any]:
            """Digest of the captions, and everything that decides the teacher's vectors."""
            return {
                "corpus": open_corpus(self.consensus / "corpus").digest,
                "teacher": _teacher_identity(spec),
            }

        def run() -> None:
            """Embed with the teachers up to this one, once the recipe is known to fit the captions."""
            self._check_recipe()
            self._embed_first(index + 1)

        def output() -> str:
            """Digest of the teacher's shards; InputError while some are missing."""
            if not is_complete(folder, open_corpus(self.consensus / "corpus").digest):
                raise InputError(f"{folder}: shards are missing")
            return ShardSet.open(folder).digest

        return Stage(
            f"embed:{spec.name}",
            f"embed the captions with {spec.name}",
            inputs,
            run,
            output,
            paths=(folder,),
            repeatable=False,
        )

    def _fit(self) -> Stage:
        folder = self.consensus / "frame"

        def inputs() -> dict[str, Any]:
            """Digest of each teacher's shards, whose coordinates the frame is, and unequal weights."""
            folders = {spec.name: self.consensus / "teachers" / spec.name for spec in self.specs}
            digests = {name: ShardSet.open(folder).digest for name, folder in folders.items()}
            # Absent where equal: a line that was begun without weights goes on.
            weights = {"weights": self.weights} if self.weights else {}
            return {"teachers": digests, "reference": self.specs[0].name, **weights}

        def run() -> None:
            """Fit the maps, publish consensus/frame and tell the scores."""
            # Nothing to embed, but the list of teachers may be shorter now.
            self._embed_first(len(self.specs))
            report = build.fit(self.consensus, force=self.plan.force, weights=self.weights or {})
            self._tell(format_report({key: value for key, value in report.items() if key != "input"}))

        return Stage(
            "fit",
            "align the teachers and fix the frame",
            inputs,
            run,
            output=lambda: open_frame(folder).frame_id,
            paths=(folder,),
            repeatable=False,
        )

    def _targets(self) -> Stage:
        folder = self.consensus / "targets"
        return Stage(
            "targets",
            "build the target of each caption",
            inputs=lambda: {"frame": open_frame(self.consensus / "frame").frame_id},
            run=lambda: build.targets(self.consensus),
            output=lambda: open_targets(folder).digest,
            paths=(folder,),
            repeatable=False,
        )

    def _train(self) -> Stage:
        def inputs() -> dict[str, Any]:
            """Digest of the targets, and every setting that decides the weights."""
            return {
                "targets": open_targets(self.consensus / "targets").digest,
                "recipe": binding(self.recipe),
            }

        def run() -> None:
            """Train to the end, from the newest checkpoint; a run that is already complete is left as it is."""
            from captionbert.train_accelerate import run as train

            # A kill between the last checkpoint and the record of this stage leaves a finished run.
            recover_folder(self.final)
            if not (self.final / MANIFEST).is_file():
                train(self.recipe, self.run)

        return Stage(
            "train", "train the student", inputs, run, self._checkpoint_digest, (self.run,), repeatable=False
        )

    def _export(self) -> Stage:
        from captionbert.export.folder import export_checkpoint

        return Stage(
            "export",
            "write the model folder",
            inputs=lambda: {"checkpoint": self._checkpoint_digest(), "code": _code_digest()},
            run=lambda: export_checkpoint(self.run, self.model, replace=True),
            output=lambda: self._model_identity()["model"],
            paths=(self.model,),
        )

    def _parity(self) -> Stage:
        path, cases = self.plan.out / "parity.json", self.plan.out / "parity.json.cases"

        def run() -> None:
            """Write parity.json; where it failed it is kept as parity-failed.json and RuntimeError is raised."""
            from captionbert.parity.report import render
            from captionbert.parity.run import run_parity

            report = run_parity(self.run, self.model, profile="everyday", json=path)
            lines = render(report).split("\n")
            self._tell("\n".join([lines[0], lines[-1]] if report["passed"] else lines))
            if not report["passed"]:
                kept = path.replace(path.with_name("parity-failed.json"))
                raise RuntimeError(f"{self.model}: is not equal to its checkpoint; see {kept}")

        title = "compare the model folder with the checkpoint"
        return Stage("parity", title, self._model_identity, run, _digest_of(path), (path, cases))

    def _evaluate(self) -> Stage:
        path, data = self.plan.out / "evaluation.json", self.plan.data

        def inputs() -> dict[str, Any]:
            """Digests of the model, the targets, and the files of --data."""
            files = {file.name: sha256_file(file) for file in sorted(data.glob("*.jsonl"))} if data else None
            targets = open_targets(self.consensus / "targets").digest
            return {**self._model_identity(), "targets": targets, "data": files}

        def run() -> None:
            """Write evaluation.json, tell its lines, and put the scores into the model's card."""
            from captionbert.distill.measure import held_out_gauges, sts_scores

            corpus = open_corpus(self.consensus / "corpus")
            gauges = held_out_gauges(
                self.model, corpus, open_targets(self.consensus / "targets", corpus=corpus)
            )
            self._tell("\n".join(gauges["lines"]))
            scores = sts_scores(self.model, data)
            self._tell("\n".join(scores["lines"]))
            model = self._model_identity()["model"]
            write_json(
                path, {"kind": "distill-evaluation", "model": model, "held_out": gauges, "sts": scores}
            )
            self._write_card(scores)

        return Stage("evaluate", "measure the model", inputs, run, _digest_of(path), (path,))

    def _write_card(self, scores: dict[str, Any]) -> None:
        """The model's README again, now with what was measured of exactly these files."""
        from captionbert.model_card.numbers import add_numbers, numbers_of
        from captionbert.model_card.render import write_card

        rows = numbers_of(read_json(self.plan.out / "parity.json"), "captionbert parity run model")
        if "skipped" not in scores:
            rows += numbers_of(scores, "captionbert evaluate model --data DIR")
        add_numbers(self.plan.out / "numbers.json", rows)
        write_card(self.model, numbers=self.plan.out / "numbers.json")

    def _pairs(self) -> Stage:
        path = self.plan.out / "pairs.json"

        def run() -> None:
            """Write pairs.json: the nearest pairs of a few sentences."""
            from captionbert.distill.measure import look

            write_json(path, {"kind": "distill-pairs", **look(self.model)})

        return Stage("pairs", "embed a few sentences", self._model_identity, run, _digest_of(path), (path,))

    def _checkpoint_digest(self) -> str:
        return digest_json(verify_folder(self.final)["files"])

    def _model_identity(self) -> dict[str, Any]:
        from captionbert.export.folder import verify_export

        return {"model": verify_export(self.model)["digest"]}

    def _corpus_options(self) -> dict[str, Any]:
        plan = self.plan
        return {"held_out": plan.held_out, "exclude": plan.exclude, "column": plan.column}

    def _check_recipe(self) -> None:
        """Refuse a recipe that cannot train on these captions: found now, not after hours of embedding."""
        from captionbert.train_accelerate import check_recipe

        width = build.known_width(self.plan.teachers[0], self.specs[0], self.consensus)  # of the reference
        check_recipe(self.recipe, open_corpus(self.consensus / "corpus"), width)

    def _embed_first(self, count: int) -> None:
        """Embed with the first `count` teachers; those done already are only looked at."""
        plan = self.plan
        build.embed(
            list(plan.corpus),
            plan.teachers[:count],
            self.consensus,
            reference=self.specs[0].name,
            force=plan.force,
            later=plan.teachers[count:],
            **self._corpus_options(),
        )

    def _tell(self, text: str) -> None:
        for line in text.split("\n"):
            self.say(f"    {line}")

    def finish(self, records: dict[str, Any]) -> dict[str, Any]:
        """Print the pairs and where everything lies; write the summary."""
        pairs = read_json(self.plan.out / "pairs.json", kind="distill-pairs")
        self._tell("\n".join(pairs["lines"]))
        places = {
            "consensus": (self.consensus, "captions, teacher vectors, frame, targets"),
            "run": (self.run, "recipe, checkpoints, metrics"),
            "model": (self.model, "the encoder: AutoModel, SentenceTransformer, captionbert embed"),
            "parity": (self.plan.out / "parity.json", "difference from the checkpoint"),
            "evaluation": (self.plan.out / "evaluation.json", "held-out gauges and scores"),
        }
        self.say("where everything lies:")
        for path, meaning in places.values():
            self.say(f"    {path}  {meaning}")
        self.say(f'try: captionbert embed --model {self.model} "a cat" "a kitten" "a truck"')
        seconds = {name: record["seconds"] for name, record in records.items() if "seconds" in record}
        summary = {
            "kind": SUMMARY_KIND,
            **{name: str(path) for name, (path, _) in places.items()},
            "seconds": seconds,
            "held_out": read_json(self.plan.out / "evaluation.json")["held_out"],
        }
        write_json(self.plan.out / "summary.json", summary)
        return summary


def _recipe(plan: Plan) -> Recipe:
    """The recipe with the plan's settings and its folders."""
    settings = list(plan.settings)
    if plan.minutes is not None:
        settings += ["schedule.epochs=null", "schedule.steps=null", f"schedule.minutes={plan.minutes}"]
    recipe = load_recipe(plan.recipe, settings)
    recipe = dataclasses.replace(
        recipe,
        data=dataclasses.replace(
            recipe.data, consensus=str(plan.out / "consensus"), corpus=None, targets=None
        ),
    )
    development = plan.data / "stsb-dev.jsonl" if plan.data else None
    if development is not None and development.is_file() and recipe.gauges.dev_pairs is None:
        gauges = dataclasses.replace(recipe.gauges, dev_pairs=str(development))
        recipe = dataclasses.replace(recipe, gauges=gauges)
    return recipe


def _teacher_identity(spec: TeacherSpec) -> dict[str, Any]:
    """The spec, and for what lies here the digest of every file that decides vectors: no name notices a change."""
    identity = dataclasses.asdict(spec)
    source = Path(spec.source)
    if source.is_dir():
        identity["files"] = deciding_files(source)
    elif source.is_file():  # an ONNX graph; a large one keeps its weights in files named after it
        parts = [p for p in source.parent.iterdir() if p.name.startswith(source.name) and p.is_file()]
        identity["files"] = {file.name: sha256_file(file) for file in parts}
    if spec.tokenizer is not None and Path(spec.tokenizer).is_dir():
        identity["tokenizer_files"] = deciding_files(Path(spec.tokenizer))
    return identity


def _code_digest() -> str:
    from captionbert.export.folder import REMOTE_FILES

    root = Path(__file__).resolve().parent.parent
    return digest_json({name: sha256_file(root / name) for name in REMOTE_FILES})


def _digest_of(path: Path) -> Callable[[], str]:
    """A function that gives the digest of a JSON file."""

    def digest() -> str:
        """SHA-256 of the file; InputError while it is missing or torn."""
        read_json(path)
        return sha256_file(path)

    return digest
