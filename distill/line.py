"""The line that `captionbert distill` runs: captions and teachers in, an evaluated model out.

    corpus -> embed:<teacher> ... -> fit -> targets -> train -> export -> parity -> evaluate -> pairs

    DIR/consensus/  captions, teacher vectors, frame, targets     DIR/run/    training run
    DIR/model/      the exported encoder                          DIR/*.json  parity, evaluation, stages ...

Up to `train` a changed input is refused: hours of work hang on it. What comes after is made again.
"""

import dataclasses
from collections.abc import Callable
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
from captionbert.consensus.frames import open_frame
from captionbert.consensus.readers import open_source
from captionbert.consensus.report import format_report
from captionbert.consensus.shards import ShardSet, is_complete
from captionbert.consensus.specs import TeacherSpec, parse_teacher
from captionbert.consensus.targets import open_targets
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
        exclude, column, held_out: see `prepare_corpus`. force: fit maps on fewer than 10 rows a coordinate.
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
    plan = dataclasses.replace(plan, out=plan.out.absolute())
    line = _Line(plan, say)
    records = run_stages(plan.out, line.stages(), say=say, redo=redo)
    return line.finish(records)


class _Line:
    """The stages of one plan, and what they share."""

    def __init__(self, plan: Plan, say: Say) -> None:
        self.plan, self.say = plan, say
        self.specs = [parse_teacher(word) for word in plan.teachers]
        names = [spec.name for spec in self.specs]
        if not names or len(set(names)) != len(names):
            raise InputError(f"--teachers: expected one or more teachers of different names, found {names}")
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
            return {
                "corpus": open_corpus(self.consensus / "corpus").digest,
                "teacher": _teacher_identity(spec),
            }

        def output() -> str:
            if not is_complete(folder, open_corpus(self.consensus / "corpus").digest):
                raise InputError(f"{folder}: shards are missing")
            return ShardSet.open(folder).digest

        return Stage(
            f"embed:{spec.name}",
            f"embed the captions with {spec.name}",
            inputs,
            run=lambda: self._embed_first(index + 1),
            output=output,
            paths=(folder,),
            repeatable=False,
        )

    def _fit(self) -> Stage:
        folder = self.consensus / "frame"

        def inputs() -> dict[str, Any]:
            folders = {spec.name: self.consensus / "teachers" / spec.name for spec in self.specs}
            digests = {name: ShardSet.open(folder).digest for name, folder in folders.items()}
            return {"teachers": digests, "reference": self.specs[0].name}

        def run() -> None:
            self._embed_first(
                len(self.specs)
            )  # nothing to embed, but the list of teachers may be shorter now
            report = build.fit(self.consensus, force=self.plan.force)
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
            return {
                "targets": open_targets(self.consensus / "targets").digest,
                "recipe": binding(self.recipe),
            }

        def run() -> None:
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
            run=lambda: export_checkpoint(self.run, self.model),
            output=lambda: self._model_identity()["model"],
            paths=(self.model,),
        )

    def _parity(self) -> Stage:
        path, cases = self.plan.out / "parity.json", self.plan.out / "parity.json.cases"

        def run() -> None:
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
            files = {file.name: sha256_file(file) for file in sorted(data.glob("*.jsonl"))} if data else None
            targets = open_targets(self.consensus / "targets").digest
            return {**self._model_identity(), "targets": targets, "data": files}

        def run() -> None:
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

    def _embed_first(self, count: int) -> None:
        """Embed with the first `count` teachers; those done already are only looked at."""
        words, reference = self.plan.teachers[:count], self.specs[0].name
        build.embed(
            list(self.plan.corpus), words, self.consensus, reference=reference, **self._corpus_options()
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
    """The spec, and for a local folder the digest of its weights: a name would not notice a change."""
    identity = dataclasses.asdict(spec)
    folder = Path(spec.source)
    if spec.kind != "onnx" and folder.is_dir():
        identity["weights"] = {file.name: sha256_file(file) for file in sorted(folder.glob("*.safetensors"))}
    return identity


def _code_digest() -> str:
    from captionbert.export.folder import REMOTE_FILES

    root = Path(__file__).resolve().parent.parent
    return digest_json({name: sha256_file(root / name) for name in REMOTE_FILES})


def _digest_of(path: Path) -> Callable[[], str]:
    def digest() -> str:
        read_json(path)  # an InputError where it is missing or torn
        return sha256_file(path)

    return digest
