"""The whole line on tiny teachers and a tiny student: runs, is skipped when done, refuses what changed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from captionbert.artifacts.errors import InputError
from captionbert.consensus import build
from captionbert.consensus.specs import parse_teacher
from captionbert.distill import line as line_module
from captionbert.distill import measure
from captionbert.distill.describe import describe
from captionbert.distill.line import Plan, run_line
from captionbert.distill.scenes import write_scenes
from captionbert.distill.stages import differences

STAGES = "corpus embed:large embed:small fit targets train export parity evaluate pairs".split()  # noqa: SIM905


def save_teacher(folder: Path, tokenizer: Path, width: int) -> None:
    import torch
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(width)
    words = PreTrainedTokenizerFast.from_pretrained(tokenizer)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
    )
    BertModel(config).save_pretrained(folder)
    words.save_pretrained(folder)


class Line:
    """A plan over tiny teachers; `go` runs it and returns the log."""

    def __init__(self, folder: Path, tokenizer: Path) -> None:
        self.folder = folder
        self.captions = folder / "captions.txt"
        write_scenes(self.captions, 700)
        for name, width in (("large", 24), ("small", 16)):
            save_teacher(folder / name, tokenizer, width)
        sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
        small = json.dumps({**sizes, "max_position_embeddings": 64})
        self.settings = (
            f"model.overrides={small}",
            "model.init_embeddings_from=null",
            f"data.tokenizer={tokenizer}",
            "data.max_length=64",
            "schedule.steps=3",
            "schedule.minutes=null",
            "schedule.batch_size=16",
            "compute.precision=fp32",
            "gauges.held_out_rows=20",
        )

    def go(self, *, redo: str | None = None, **changes: Any) -> list[str]:
        log: list[str] = []
        plan: dict[str, Any] = {"corpus": (str(self.captions),), "out": self.folder / "out"}
        plan["teachers"] = (str(self.folder / "large"), str(self.folder / "small"))
        plan |= {"settings": self.settings, "recipe": "demo", "held_out": 30} | changes
        self.summary = run_line(Plan(**plan), say=log.append, redo=redo)
        return log


def did(log: list[str]) -> list[str]:
    """Names of the stages that ran."""
    return [
        line.split("] ")[1].split(": ")[0] for line in log if line.startswith("[") and ": done in" in line
    ]


@pytest.fixture(scope="module")
def line(tiny_tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Line:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("captionbert.parity.run.run_parity", fake_parity)
        patch.setattr("captionbert.parity.report.render", lambda report: "parity: fake")
        made = Line(tmp_path_factory.mktemp("line"), tiny_tokenizer_dir)
        made.first = made.go()
    return made


def fake_parity(checkpoint: Path, folder: Path, *, json: Path, **_: Any) -> dict[str, Any]:
    """Parity has tests of its own, and takes minutes; here only its place in the line matters."""
    from captionbert.artifacts.files import write_json
    from captionbert.export.folder import read_record

    report = {
        "kind": "captionbert-parity",
        "passed": True,
        "max_difference": 0.0,
        "model": {"digest": read_record(folder)["digest"]},
        "versions": {"transformers": "0", "torch": "0"},
        "cases": [],
        "dtypes": ["fp32"],
        "longest": 8,
    }
    write_json(json, report)
    return report


@pytest.fixture(autouse=True)
def _without_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("captionbert.parity.run.run_parity", fake_parity)
    monkeypatch.setattr("captionbert.parity.report.render", lambda report: "parity: fake")


def test_every_stage_runs_once_and_is_then_skipped(line: Line) -> None:
    assert did(line.first) == STAGES
    again = line.go()
    assert did(again) == []
    assert [row for row in again if "skipped (done)" in row] == [
        f"[{i}/{len(STAGES)}] {name}: skipped (done)" for i, name in enumerate(STAGES, 1)
    ]


def test_unequal_weights_are_an_input_of_the_fit(line: Line) -> None:
    with pytest.raises(InputError, match=r"--weights: 'huge' is not among the teachers \['large', 'small'\]"):
        line.go(weights={"huge": 2.0})
    assert did(line.go(weights={"large": 3.0, "small": 3.0})) == []
    with pytest.raises(InputError, match=r"weights was absent, is \{'large': 1\.0, 'small': 0\.5\}"):
        line.go(weights={"large": 2.0})
    build.fit(line.folder / "out" / "consensus", weights={"large": 2.0})  # behind its back
    assert did(line.go()) == ["fit"]  # equal again, so that the targets and all that follows stay


def test_widths_that_the_reference_has_not_are_found_before_it_embeds(line: Line, tmp_path: Path) -> None:
    settings = (*line.settings, "loss.matryoshka_weight=1", "loss.matryoshka_dims=[384]")
    with pytest.raises(InputError, match="names 384, the targets are 384 wide"):
        line.go(teachers=("minilm",), out=tmp_path / "out", settings=settings, force=True)


def test_the_log_tells_the_gauges_and_where_everything_lies(line: Line) -> None:
    log = "\n".join(line.first)
    for words in (
        "target cosine: ",
        "query variety: ",
        "mimicry R@1 ",
        "STS: skipped (HF_HUB_OFFLINE is set",
    ):
        assert words in log
    assert log.index("query variety: ") < log.index("mimicry R@1 ")
    assert log.index("nearest pairs of a few sentences:") < log.index("where everything lies:")
    for name in ("consensus", "run", "model", "parity", "evaluation"):
        assert Path(line.summary[name]).exists()
    evaluation = json.loads(Path(line.summary["evaluation"]).read_text())
    assert "effective_rank" in evaluation["held_out"]["geometry"]["student"]
    assert "cv" in evaluation["held_out"]["geometry"]["student"]
    assert "mimicry" not in evaluation["sts"]
    card = (Path(line.summary["model"]) / "README.md").read_text()
    assert "Largest difference between the training checkpoint and this export" in card


def test_info_knows_every_folder_of_the_line(line: Line) -> None:
    out = line.folder / "out"
    kinds = {
        ".": "distill",
        "consensus": "consensus",
        "consensus/corpus": "corpus",
        "consensus/targets": "shards",
        "run": "training run",
        "run/checkpoints/final": "checkpoint",
        "model": "export",
    }
    for name, kind in kinds.items():
        facts = describe(out / name)
        assert facts["kind"] == kind, name
        assert facts["bytes"] > 0
    assert describe(out / "model")["parameters"] == describe(out / "run")["parameters"] > 1000
    assert set(describe(out / "consensus")["teachers"]) == {"large", "small"}
    assert describe(out / "consensus")["frame_id"] == describe(out / "consensus/targets")["frame_id"]
    with pytest.raises(InputError, match="is a file"):
        describe(line.captions)
    with pytest.raises(InputError, match="not a folder of this program"):
        describe(line.folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": ("schedule.steps=4",)}, r"stage 'train' .* recipe.schedule.steps was 3, is 4"),
        ({"held_out": 10}, r"stage 'corpus' was finished with other inputs: held_out was 30, is 10"),
        ({"data": Path("no-such-folder")}, r"--data no-such-folder: no such folder"),
        ({"recipe": "dem"}, r"no recipe called 'dem'"),
        ({"settings": ("schedule.stepz=4",)}, r"unknown key 'schedule.stepz'"),
        ({"teachers": ()}, r"--teachers: expected one or more teachers"),
        ({"held_out": 0}, r"--held-out 0: expected 1 or more captions"),
        ({"settings": ("schedule.batch_size=0",)}, r"schedule.batch_size must be 2 or more"),
    ],
)
def test_changed_or_bad_input_is_named(line: Line, changes: dict[str, Any], message: str) -> None:
    if "settings" in changes:
        changes = {"settings": line.settings + changes["settings"]}
    with pytest.raises(InputError, match=message):
        line.go(**changes)


@pytest.mark.parametrize(
    ("captions", "settings", "message"),
    [
        (19, (), r"the corpus has 19 distinct captions; at least 20 are needed"),
        (300, ("schedule.batch_size=286",), r"has 285 training rows, fewer than one batch of 286"),
        (300, ("data.rows=286",), r"data.rows asks for 286 training captions, the corpus has 285"),
        (300, (), r"teacher small: 228 fit rows for 24 dimensions, N/d = 9.5"),
    ],
)
def test_what_cannot_end_well_is_refused_before_a_caption_is_embedded(
    line: Line, tmp_path: Path, captions: int, settings: tuple[str, ...], message: str, monkeypatch
) -> None:
    monkeypatch.setattr("captionbert.consensus.build.embed_corpus", lambda *_, **__: pytest.fail("embedded"))
    source = tmp_path / "few.txt"
    source.write_text("\n".join(line.captions.read_text().splitlines()[:captions]))
    with pytest.raises(InputError, match=message):
        line.go(corpus=(str(source),), out=tmp_path / "out", settings=line.settings + settings)


def test_force_goes_on_with_few_fit_rows_a_coordinate(line: Line, tmp_path: Path, monkeypatch) -> None:
    seen: list[str] = []

    def embeds(corpus: Any, teacher: Any, *_: Any, **__: Any) -> None:
        seen.append(teacher.spec.name)
        raise KeyboardInterrupt

    monkeypatch.setattr("captionbert.consensus.build.embed_corpus", embeds)
    source = tmp_path / "few.txt"
    source.write_text("\n".join(line.captions.read_text().splitlines()[:300]))
    with pytest.raises(KeyboardInterrupt):
        line.go(corpus=(str(source),), out=tmp_path / "out", force=True)
    assert seen == ["large"]


def teacher_folder(folder: Path) -> Path:
    """The files of a SentenceTransformer folder, as far as their names go."""
    names = ("model.safetensors", "config.json", "tokenizer.json", "vocab.txt", "modules.json", "merges.txt")
    names += ("1_Pooling/config.json", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin", "README.md")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("first")
    return folder


def test_every_file_that_decides_vectors_is_part_of_a_teachers_identity(tmp_path: Path) -> None:
    folder = teacher_folder(tmp_path / "teacher")
    spec = parse_teacher(str(folder))
    first = line_module._teacher_identity(spec)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        path.write_text("changed")
        found = differences(first, line_module._teacher_identity(spec))
        path.write_text("first")
        name = path.relative_to(folder).as_posix()
        assert [f.split(" was ")[0] for f in found] == ([] if name == "README.md" else [f"files.{name}"])
    (folder / "2_Dense" / "model.safetensors").unlink()
    assert "is absent" in differences(first, line_module._teacher_identity(spec))[0]


def test_a_graph_its_weights_and_its_tokenizer_are_part_of_a_teachers_identity(tmp_path: Path) -> None:
    words = teacher_folder(tmp_path / "words")
    for name in ("m.onnx", "m.onnx.data", "other.onnx"):
        (tmp_path / name).write_text("first")
    spec = parse_teacher(f"onnx:{tmp_path / 'm.onnx'}:{words}")
    first = line_module._teacher_identity(spec)
    for path, changes in (
        (tmp_path / "m.onnx", ["files.m.onnx"]),
        (tmp_path / "m.onnx.data", ["files.m.onnx.data"]),
        (words / "tokenizer.json", ["tokenizer_files.tokenizer.json"]),
        (tmp_path / "other.onnx", []),
    ):
        path.write_text("changed")
        found = differences(first, line_module._teacher_identity(spec))
        path.write_text("first")
        assert [f.split(" was ")[0] for f in found] == changes


def test_a_changed_teacher_is_refused_by_file(line: Line) -> None:
    file = line.folder / "small" / "tokenizer_config.json"
    before = file.read_text()
    file.write_text(before + " ")
    with pytest.raises(
        InputError, match=r"stage 'embed:small' .*files.tokenizer_config.json was \w+, is \w+"
    ):
        line.go()
    file.write_text(before)
    assert did(line.go()) == []


def test_a_change_in_one_of_two_files_of_one_name_is_refused(line: Line, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.txt").write_text(f"{folder} cat\n")
    corpus = (str(tmp_path / "a" / "t.txt"), str(tmp_path / "b" / "t.txt"))

    def inputs() -> dict:
        plan = Plan(
            corpus=corpus, teachers=(str(line.folder / "large"),), out=tmp_path / "out", recipe="demo"
        )
        return line_module._Line(plan, lambda text: None).stages()[0].inputs()

    first = inputs()
    (tmp_path / "a" / "t.txt").write_text("another cat\n")
    assert inputs() != first


def test_a_changed_caption_file_is_refused(line: Line, tmp_path: Path) -> None:
    other = tmp_path / "captions.txt"
    other.write_text(line.captions.read_text() + "One more caption.\n")
    with pytest.raises(InputError, match=r"stage 'corpus' .* sources.captions.txt was \w+, is \w+"):
        line.go(corpus=(str(other),))


def test_a_damaged_export_is_written_again(line: Line) -> None:
    config = line.folder / "out" / "model" / "config.json"
    config.write_text(config.read_text().replace("gelu", "relu") + " ")
    assert did(line.go()) == ["export"]
    assert did(line.go()) == []


def test_a_failed_parity_stops_the_line_and_is_not_done(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def differs(*args: Any, **options: Any) -> dict[str, Any]:
        return {**fake_parity(*args, **options), "passed": False}

    monkeypatch.setattr("captionbert.parity.run.run_parity", differs)
    with pytest.raises(RuntimeError, match=r"is not equal to its checkpoint; see .*parity-failed\.json"):
        line.go(redo="parity")
    monkeypatch.setattr("captionbert.parity.run.run_parity", fake_parity)
    assert did(line.go()) == ["parity", "evaluate", "pairs"]


def test_training_again_takes_a_new_setting(line: Line, tmp_path: Path) -> None:
    shutil.copytree(line.folder / "out", tmp_path / "out")
    settings = (*line.settings, "schedule.steps=2")
    log = line.go(out=tmp_path / "out", settings=settings, redo="train")
    assert did(log) == STAGES[STAGES.index("train") :]


def test_online_is_tried_only_where_the_hub_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "no network" in measure.sts_scores(Path("model"), None)["skipped"]
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    assert measure.sts_scores(Path("model"), None)["skipped"] == "HF_DATASETS_OFFLINE is set"


def test_too_few_held_out_captions_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    corpus = type("Corpus", (), {"held_out": np.array([True, False, True])})()
    assert measure.held_out_gauges(Path("model"), corpus, None)["lines"] == [
        "held out: 2 captions, too few for a gauge (5 are needed)"
    ]
