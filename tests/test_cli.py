"""The command line: exit codes, help, what each verb hands to its room, and all of `embed`."""

import gzip
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.cli import main

VERBS = ["embed", "consensus embed", "consensus fit", "consensus targets", "consensus audit"]
VERBS += ["export", "parity", "evaluate", "info", "distill", "scenes"]
VERBS += [
    "probe coverage",
    "probe lookup",
    "probe interventions",
    "probe show",
    "probe binding",
    "probe asymmetric",
    "probe documents",
    "probe geometry",
    "train",
    "consensus",
    "probe",
]
TEXTS = ["a man runs.", "two dogs play in a park.", "a black cat sleeps at night"]


@pytest.fixture(scope="module")
def folder(tiny_config: Any, tiny_tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from captionbert.modeling_captionbert import CaptionBertModel

    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("encoder")
    CaptionBertModel(tiny_config).save_pretrained(out)
    for file in tiny_tokenizer_dir.iterdir():
        shutil.copy(file, out)
    return out


@pytest.fixture
def embed(folder: Path):
    return lambda *words: main(["embed", "--model", str(folder), "--device", "cpu", *map(str, words)])


def vectors_of(folder: Path, texts: list[str], **options: Any) -> np.ndarray:
    from captionbert.export.load import load_encoder

    model, tokenizer = load_encoder(folder)
    return model.encode(texts, tokenizer, **options)


# ---- exit codes and help


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_each_verb_shows_an_example(verb: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*verb.split(), "--help"])
    assert caught.value.code == 0
    assert f"example:\n  captionbert {verb}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [[], ["frobnicate"], ["consensus"], ["probe"], ["export"], ["embed", "--no-such-option"]]
)
def test_wrong_arguments_exit_with_2(words: list[str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage: captionbert" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (InputError("captions.txt: line 3 is wrong"), 2, "captionbert: captions.txt: line 3 is wrong\n"),
        (RuntimeError("it broke"), 1, "captionbert: failed: RuntimeError: it broke (--debug shows where)\n"),
        (KeyboardInterrupt(), 130, "captionbert: interrupted; run the same command again to go on\n"),
    ],
)
def test_errors_become_one_line_and_a_status(error, status, message, monkeypatch, capsys) -> None:
    def run(*_: Any) -> None:
        raise error

    monkeypatch.setattr("captionbert.distill.scenes.write_scenes", run)
    assert main(["scenes", "--out", "x.txt"]) == status
    assert capsys.readouterr().err == message
    if status != 130:
        with pytest.raises(type(error)):
            main(["scenes", "--out", "x.txt", "--debug"])


def test_the_command_is_quick_to_start(folder: Path) -> None:
    """Cold start is import time: nothing of the transformers machinery is loaded to embed a text."""
    code = (
        "import sys; from captionbert.cli import main; status = main(sys.argv[1:]);"
        "heavy = {'transformers', 'sentence_transformers', 'pyarrow', 'pandas', 'scipy', 'mteb', 'datasets'};"
        "print(sorted(heavy & set(sys.modules)), status)"
    )
    command = [sys.executable, "-c", code, "embed", "--model", str(folder), "--device", "cpu", "a cat"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] 0", done.stdout
    assert done.stdout.startswith("1 vector of 24, unit length: ")


# ---- embed


def test_few_texts_show_their_nearest_pairs(embed, folder: Path, capsys) -> None:
    assert embed(*TEXTS) == 0
    lines = capsys.readouterr().out.splitlines()
    cosines = vectors_of(folder, TEXTS) @ vectors_of(folder, TEXTS).T
    best = max(((cosines[i, j], i, j) for i in range(3) for j in range(i)), key=lambda row: row[0])
    assert lines[0] == "3 vectors of 24; nearest pairs:"
    assert lines[1] == f"{best[0]:.4f}  {TEXTS[best[2]]!r}  {TEXTS[best[1]]!r}"
    assert len(lines) == 4


def test_json_holds_the_vectors(embed, folder: Path, capsys) -> None:
    assert embed("--json", *TEXTS) == 0
    facts = json.loads(capsys.readouterr().out)
    assert np.allclose(facts["vectors"], vectors_of(folder, TEXTS), atol=1e-7)
    assert facts["texts"] == TEXTS
    assert len(facts["pairs"]) == 3


def test_a_file_becomes_an_array_row_by_row(embed, folder: Path, tmp_path: Path, capsys) -> None:
    rows = [TEXTS[0], "", TEXTS[1], "   ", TEXTS[2]]
    (tmp_path / "texts.txt").write_text("\n".join(rows) + "\n")
    assert embed("--file", tmp_path / "texts.txt", "--out", tmp_path / "v.npy") == 0
    found = np.load(tmp_path / "v.npy")
    assert found.dtype == np.float32
    assert np.allclose(found, vectors_of(folder, [row.strip() for row in rows]), atol=1e-6)
    assert "5 vectors of 24, 2 of them of a blank text" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["t.txt.gz", "t.jsonl"])
def test_other_files_become_parquet(embed, folder: Path, tmp_path: Path, name: str) -> None:
    if name.endswith("gz"):
        with gzip.open(tmp_path / name, "wt") as stream:
            stream.write("\n".join(TEXTS))
    else:
        (tmp_path / name).write_text("".join(json.dumps({"title": text}) + "\n" for text in TEXTS))
    column = ["--column", "title"] if name.endswith("jsonl") else []
    assert embed("--file", tmp_path / name, "--out", tmp_path / "v.parquet", *column) == 0
    table = pq.read_table(tmp_path / "v.parquet", page_checksum_verification=True)
    assert table.column("text").to_pylist() == TEXTS
    assert np.allclose(table.column("embedding").to_pylist(), vectors_of(folder, TEXTS), atol=1e-6)


@pytest.mark.parametrize("words", [["-"], ["--file", "-"]])
def test_standard_input(embed, monkeypatch, capsys, words: list[str]) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a man\na dog\n")))
    assert embed(*words) == 0
    assert "'a man'  'a dog'" in capsys.readouterr().out


def test_more_texts_than_a_window_keep_their_order(embed, folder: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("captionbert.distill.vectors.WINDOW", 2)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    assert embed("--file", tmp_path / "texts.txt", "--out", tmp_path / "v.npy") == 0
    assert np.allclose(np.load(tmp_path / "v.npy"), vectors_of(folder, TEXTS), atol=1e-6)


def test_options_change_the_vectors(embed, folder: Path, capsys) -> None:
    long = " ".join(TEXTS * 3)
    assert embed("--json", "--truncate-dim", 8, "--max-length", 6, "--batch-tokens", 7, long, TEXTS[0]) == 0
    found = np.array(json.loads(capsys.readouterr().out)["vectors"])
    assert found.shape == (2, 8)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    whole = vectors_of(folder, [long, TEXTS[0]], truncate_dim=8)
    assert not np.allclose(found, whole, atol=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give texts, or --file FILE"),
        (["a", "--file", "b.txt"], "and not both"),
        (["--file", "no-such.txt"], "no-such.txt: no such caption file"),
        (["a", "--out", "v.csv"], "v.csv: expected a name that ends in .npy or .parquet"),
        (["a", "--max-length", "1"], "--max-length 1: this model reads 2 to 128 tokens"),
        (["a", "--max-length", "129"], "--max-length 129"),
        (["a", "--truncate-dim", "25"], "--truncate-dim 25: this model's vectors have 1 to 24 coordinates"),
    ],
)
def test_bad_embed_input_is_one_sentence(embed, words: list[str], message: str, capsys) -> None:
    assert embed(*words) == 2
    assert message in capsys.readouterr().err


def test_empty_input_writes_nothing(embed, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"")))
    assert embed("-", "--out", tmp_path / "v.npy") == 2
    assert embed("-") == 2
    assert capsys.readouterr().err.count("no texts: the input is empty") == 2
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_is_not_utf8_is_named_and_writes_nothing(
    embed, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"fine\n\xff\xfe\n")))
    assert embed("-", "--out", tmp_path / "v.npy") == 2
    assert "standard input: line 2 is not UTF-8" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written_is_refused_before_the_model_is_loaded(
    embed, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(
        "captionbert.export.load.load_encoder", lambda *_, **__: pytest.fail("a model was loaded")
    )
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    below = tmp_path / "texts.txt" / "new"  # a file in the way
    assert embed("--file", tmp_path / "texts.txt", "--out", below / "v.npy") == 2
    assert f"{below}: cannot be written" in capsys.readouterr().err
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    assert embed("--file", tmp_path / "texts.txt", "--out", tmp_path / "v.npy") == 2
    assert "Read-only file system" in capsys.readouterr().err


def test_many_texts_need_a_file(embed, monkeypatch, capsys) -> None:
    monkeypatch.setattr("captionbert.distill.embedding.FEW_TEXTS", 2)
    assert embed(*TEXTS) == 2
    assert "3 texts: more than 2 go into a file: add --out" in capsys.readouterr().err


def test_without_a_model_the_message_says_how_to_give_one(
    monkeypatch, folder: Path, tmp_path: Path, capsys
) -> None:
    monkeypatch.delenv("CAPTIONBERT_MODEL", raising=False)
    monkeypatch.setattr("captionbert.distill.embedding.SHIPPED", tmp_path / "absent")
    assert main(["embed", "a"]) == 2
    assert "give --model FOLDER" in capsys.readouterr().err
    monkeypatch.setenv("CAPTIONBERT_MODEL", str(folder))
    assert main(["embed", "a"]) == 0


def test_the_shipped_model_is_the_last_resort(monkeypatch, folder: Path, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr("captionbert.distill.embedding.SHIPPED", folder)
    monkeypatch.delenv("CAPTIONBERT_MODEL", raising=False)
    assert main(["embed", "a"]) == 0
    monkeypatch.setenv("CAPTIONBERT_MODEL", str(tmp_path / "absent"))
    assert main(["embed", "a"]) == 2  # what the user names is never replaced


# ---- the other verbs hand over


class Recorder:
    """Stands for a room's function: keeps what it was given."""

    def __init__(self, result: Any = None) -> None:
        self.result = result
        self.args: tuple = ()
        self.kwargs: dict[str, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.args, self.kwargs = args, kwargs
        return self.result


def test_train_passes_its_arguments_and_status_through(monkeypatch) -> None:
    run = Recorder(2)
    monkeypatch.setattr("captionbert.train_accelerate.main", run)
    assert main(["train", "--recipe", "mini", "--set", "a.b=1", "--help"]) == 2
    assert run.args == (["--recipe", "mini", "--set", "a.b=1", "--help"], "captionbert train")


@pytest.mark.parametrize("passed", [True, False])
def test_parity_exit_status_is_its_verdict(monkeypatch, capsys, passed: bool) -> None:
    run = Recorder({"passed": passed})
    monkeypatch.setattr("captionbert.parity.run.run_parity", run)
    monkeypatch.setattr("captionbert.parity.report.render", lambda report: "the table")
    assert main(["parity", "run", "model", "--dtypes", "fp32,bf16", "--json", "p.json"]) == (
        0 if passed else 1
    )
    assert run.args == (Path("run"), Path("model"))
    expected = {"dtypes": ("fp32", "bf16"), "profile": "everyday", "json": Path("p.json"), "python": None}
    assert run.kwargs == expected
    assert capsys.readouterr().out == "the table\n"


def test_evaluate_hands_over_its_options(monkeypatch, capsys) -> None:
    run = Recorder({})
    monkeypatch.setattr("captionbert.evaluation.sts.evaluate", run)
    monkeypatch.setattr("captionbert.evaluation.sts.render", lambda result: "scores")
    assert (
        main(["evaluate", "packaged:minilm", "--tasks", "stsb, sickr", "--data", "sts", "--max-length", "64"])
        == 0
    )
    assert run.args == ("packaged:minilm",)
    assert run.kwargs["tasks"] == ["stsb", "sickr"]
    assert (run.kwargs["data"], run.kwargs["max_length"], run.kwargs["dtype"]) == (Path("sts"), 64, "fp32")
    assert capsys.readouterr().out == "scores\n"


@pytest.mark.parametrize(("step", "calls"), [("embed", "e"), ("fit", "ef"), ("targets", "eft")])
def test_consensus_steps_do_the_steps_before_them_when_told_of_the_input(
    monkeypatch, tmp_path, capsys, step, calls
):
    from captionbert.artifacts.files import write_json

    write_json(tmp_path / "report.json", {"kind": "consensus-report"})
    done: list[str] = []
    for name in ("embed", "fit", "targets"):
        monkeypatch.setattr(
            f"captionbert.consensus.build.{name}", lambda *a, name=name, **k: done.append(name[0])
        )
    words = ["consensus", step, "--out", str(tmp_path), "--json"]
    assert main([*words, "--corpus", "a.txt", "--corpus", "b.txt", "--teachers", "minilm,mpnet"]) == 0
    assert "".join(done) == calls
    assert json.loads(capsys.readouterr().out)["kind"] == "consensus-report"
    if step != "embed":
        done.clear()
        assert main(words) == 0
        assert "".join(done) == calls[-1]
        assert main([*words, "--corpus", "a.txt"]) == 2


def test_consensus_embed_is_told_of_the_fit_to_come(monkeypatch, tmp_path: Path) -> None:
    from captionbert.artifacts.files import write_json

    write_json(tmp_path / "report.json", {"kind": "consensus-report"})
    run = Recorder()
    monkeypatch.setattr("captionbert.consensus.build.embed", run)
    words = ["consensus", "embed", "--corpus", "a.txt", "--teachers", "minilm", "--out", str(tmp_path)]
    assert main([*words, "--force", "--sample-rows", "9", "--held-out", "7"]) == 0
    assert (run.kwargs["force"], run.kwargs["sample_rows"], run.kwargs["held_out"]) == (True, 9, 7)


@pytest.mark.parametrize("sound", [True, False])
def test_audit_exit_status_is_its_verdict(monkeypatch, sound: bool) -> None:
    monkeypatch.setattr("captionbert.consensus.build.audit", Recorder({"ok": sound, "problems": []}))
    assert main(["consensus", "audit", "--out", "x"]) == (0 if sound else 1)


def test_distill_makes_a_plan_of_its_options(monkeypatch, capsys) -> None:
    made: dict[str, Any] = {}

    def run(plan: Any, *, say: Any, redo: str | None) -> dict[str, Any]:
        made.update(plan=plan, redo=redo)
        say("a line of the log")
        return {"kind": "distill-summary"}

    monkeypatch.setattr("captionbert.distill.line.run_line", run)
    words = "distill --corpus a.txt --corpus b.jsonl --teachers minilm,mpnet --out d --minutes 3 --set a.b=1"
    assert main([*words.split(), "--redo", "fit", "--json"]) == 0
    plan = made["plan"]
    assert (plan.corpus, plan.teachers, plan.out) == (("a.txt", "b.jsonl"), ("minilm", "mpnet"), Path("d"))
    assert (plan.minutes, plan.settings, plan.recipe) == (3.0, ("a.b=1",), "mini")
    assert made["redo"] == "fit"
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"kind": "distill-summary"}
    assert shown.err == "a line of the log\n"


def test_scenes_go_to_the_screen_or_a_file(tmp_path: Path, capsys) -> None:
    assert main(["scenes", "--count", "4", "--seed", "2"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert main(["scenes", "--count", "4", "--seed", "2", "--out", str(tmp_path / "c.txt")]) == 0
    assert (tmp_path / "c.txt").read_text().splitlines() == printed


def test_info_tells_a_model_folder(folder: Path, capsys) -> None:
    assert main(["info", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["kind"] == "model"
    assert facts["config"]["hidden_size"] == 32
    assert main(["info", str(folder)]) == 0
    assert "kind: model" in capsys.readouterr().out
    assert main(["info", str(folder / "nothing")]) == 2


# ---- probes


@pytest.fixture
def structured_folder(structured_model, tiny_tokenizer_dir: Path, tmp_path: Path) -> Path:
    out = tmp_path / "structured"
    structured_model(reads=True).save_pretrained(out)
    for file in tiny_tokenizer_dir.iterdir():
        shutil.copy(file, out)
    return out


@pytest.fixture
def paragraphs(tmp_path: Path, captions: list[str]) -> str:
    lines = [f"{a} {a} {b}" for a, b in zip(captions[:20], captions[20:])]
    (tmp_path / "paragraphs.txt").write_text("\n".join(lines), encoding="utf-8")
    return str(tmp_path / "paragraphs.txt")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["embed", "a", "--batch-tokens", "0"],
            "--batch-tokens: expected a whole number of 1 or more, found '0'",
        ),
        (["scenes", "--count", "-1"], "--count: expected a whole number of 1 or more, found '-1'"),
        (["scenes", "--seed", "9" * 19], "--seed: expected a whole number of 0 or more"),
        (["embed", "a", "--max-length", "9" * 30], "--max-length: expected a whole number of 1 or more"),
        (["scenes", "--seed", "-1"], "--seed: expected a whole number of 0 or more, found '-1'"),
        (
            ["probe", "lookup", "r", "--captions", "c", "--rows", "x"],
            "--rows: expected a whole number of 1 or more",
        ),
    ],
)
def test_numbers_out_of_range_are_told_before_anything_else(words: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert message in capsys.readouterr().err


def test_probe_coverage_prints_a_table_and_writes_json(
    tiny_tokenizer_dir: Path, paragraphs: str, tmp_path: Path, capsys
) -> None:
    words = ["probe", "coverage", paragraphs, paragraphs, "--tokenizer", str(tiny_tokenizer_dir)]
    assert main([*words, "--max-length", "12", "--json", str(tmp_path / "c.json")]) == 0
    assert "rows at the ceiling of 12" in capsys.readouterr().out
    report = json.loads((tmp_path / "c.json").read_text())
    assert report["kind"] == "corpus-coverage"
    assert report["rows"] == 40
    assert set(report["corpora"]) == {"paragraphs.txt"}
    assert main([*words, "--max-length", "1"]) == 2
    assert main(["probe", "coverage", "none.txt", "--tokenizer", str(tiny_tokenizer_dir)]) == 2
    assert main(["probe", "coverage", paragraphs, "--tokenizer", "nowhere"]) == 2


def test_probe_lookup_reports_draws_and_refuses(
    structured_folder: Path, folder: Path, paragraphs: str, tmp_path: Path, capsys
) -> None:
    words = ["probe", "lookup", str(structured_folder), "--captions", paragraphs, "--rows", "9"]
    files = ["--json", str(tmp_path / "l.json"), "--arrays", str(tmp_path / "l.npz")]
    assert main([*words, "--search-heads", *files]) == 0
    out = capsys.readouterr().out
    assert "9 of 20 captions" in out
    assert "100.00%" in out
    assert "search: " in out
    report = json.loads((tmp_path / "l.json").read_text())
    assert report["lookup"]["all"]["top_one"]["query_mean"] == 1.0
    assert len(np.load(tmp_path / "l.npz")["sample_rows"]) == 9
    for bad, message in (
        (["--head", "7:0"], "head 7:0: this model has layers 1..3"),
        (["--head", "one"], "expected LAYER:HEAD"),
        (["--head", ""], "expected LAYER:HEAD"),
        (["--max-length", "999"], "this model reads 2 to 256 tokens"),
        (["--json", str(tmp_path)], "is a folder; give a file name"),
        (["--arrays", f"{paragraphs}/l.npz"], "cannot be written"),
    ):
        assert main([*words, *bad]) == 2
        assert message in capsys.readouterr().err
    assert main(["probe", "lookup", str(folder), "--captions", paragraphs]) == 2
    assert "no designated head" in capsys.readouterr().err
    assert main(["probe", "lookup", str(tmp_path / "none"), "--captions", paragraphs]) == 2


def test_an_output_is_tried_before_the_work(monkeypatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr(
        "captionbert.cli_probes._open_model", lambda options: pytest.fail("the model was opened")
    )
    captions = ["--captions", str(tmp_path / "c.txt")]
    assert main(["probe", "lookup", "runs/x", *captions, "--json", str(tmp_path)]) == 2
    assert main(["probe", "interventions", "runs/x", *captions, "--json", str(tmp_path)]) == 2
    assert main(["probe", "show", "a cat", "--model", "runs/x", "--html", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("is a folder; give a file name") == 3


def test_an_output_may_not_be_an_input(
    structured_folder: Path, paragraphs: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(
        "captionbert.cli_probes._open_model", lambda options: pytest.fail("the model was opened")
    )
    monkeypatch.setattr("captionbert.distill.embedding.run_embed", lambda options: pytest.fail("embedded"))
    model, dev = str(structured_folder), tmp_path / "dev.jsonl"
    dev.write_text("{}")
    lookup = ["probe", "lookup", model, "--captions", paragraphs]
    interventions = ["probe", "interventions", model, "--captions", paragraphs, "--dev-pairs", str(dev)]
    own = str(structured_folder / "tokenizer.json")
    (tmp_path / "recipe.yaml").write_text("seed: 4\n")
    (tmp_path / "corpus.json").write_text('{"kind": "corpus"}')
    for words, message in (
        (["probe", "coverage", paragraphs, "--json", paragraphs], "is read as well"),
        ([*lookup, "--json", f"{tmp_path}/./paragraphs.txt"], "is read as well"),
        ([*lookup, "--arrays", paragraphs], "is read as well"),
        ([*lookup, "--json", own], f"is a file of {model}, which is read"),
        ([*lookup, "--json", str(structured_folder / "config.json")], f"is a file of {model}"),
        (
            [*lookup, "--json", f"{tmp_path}/x.npz", "--arrays", f"{tmp_path}/x.npz"],
            "two outputs have this name",
        ),
        ([*interventions, "--json", str(dev)], "is read as well"),
        (["probe", "show", "a cat", "--model", model, "--html", own], "is a file of"),
        (["embed", "--file", str(dev), "--out", str(dev)], "is read as well"),
        ([*lookup, "--json", f"{tmp_path}/recipe.yaml"], "exists and is no earlier report"),
        ([*lookup, "--json", f"{tmp_path}/corpus.json"], "exists and is no earlier report"),
        ([*lookup, "--json", f"{tmp_path}/{'x' * 300}"], "give a shorter name"),
    ):
        before = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
        assert main(words) == 2, words
        assert message in capsys.readouterr().err
        assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == before


def test_an_earlier_report_in_the_model_folder_may_be_replaced(
    structured_folder: Path, paragraphs: str, capsys
) -> None:
    report = structured_folder / "lookup.json"
    words = ["probe", "lookup", str(structured_folder), "--captions", paragraphs, "--json", str(report)]
    assert main(words) == main(words) == 0
    assert json.loads(report.read_text())["kind"] == "lookup-probe"


def test_coverage_takes_the_tokenizer_of_an_export_without_asking_to_run_its_code(
    tiny_tokenizer_dir: Path, paragraphs: str, tmp_path: Path, capsys, caplog
) -> None:
    out = tmp_path / "export"
    shutil.copytree(tiny_tokenizer_dir, out)
    code = {"AutoConfig": "configuration_x.X", "AutoModel": "modeling_x.X"}
    (out / "config.json").write_text(json.dumps({"model_type": "captionbert", "auto_map": code}))
    (out / "configuration_x.py").write_text("raise RuntimeError('this was run')\n")
    assert main(["probe", "coverage", paragraphs, "--tokenizer", str(out)]) == 0
    printed = capsys.readouterr()
    assert "query positions" in printed.out
    assert printed.err == ""
    assert not caplog.records


def test_probe_interventions_writes_what_it_prints(
    structured_folder: Path, paragraphs: str, tmp_path: Path, capsys
) -> None:
    words = ["probe", "interventions", str(structured_folder), "--captions", paragraphs]
    assert main([*words, "--json", str(tmp_path / "i.json")]) == 0
    assert "fresh start        does not apply: no seed" in capsys.readouterr().out
    (structured_folder / "config").mkdir()  # a run has its recipe beside its checkpoints
    (structured_folder / "config" / "recipe.yaml").write_text("seed: 4\n")
    assert main([*words, "--json", str(tmp_path / "i.json")]) == 0
    assert "model bit-identical afterwards: yes" in capsys.readouterr().out
    report = json.loads((tmp_path / "i.json").read_text())
    assert report["seed"] == 4
    assert [row["name"] for row in report["conditions"] if row["applies"]][-1] == "fresh start"
    assert main([*words, "--seed-of-start", "5", "--json", str(tmp_path / "i.json")]) == 0
    assert json.loads((tmp_path / "i.json").read_text())["seed"] == 5


def test_probe_show_writes_a_page(structured_folder: Path, folder: Path, tmp_path: Path, capsys) -> None:
    words = ["probe", "show", "two dogs. two dogs play", "--html", str(tmp_path / "p.html"), "--model"]
    assert main([*words, str(structured_folder)]) == 0
    assert "11 tokens, 2 lookups" in capsys.readouterr().out
    assert "<!doctype html>" in (tmp_path / "p.html").read_text(encoding="utf-8")
    assert main([*words, str(folder)]) == 2
    assert main([*words, str(folder), "--head", "1:1"]) == 0


def test_consensus_weights_reach_the_fit_and_imply_it(monkeypatch, tmp_path: Path) -> None:
    from captionbert.artifacts.files import write_json

    write_json(tmp_path / "report.json", {"kind": "consensus-report"})
    runs = {name: Recorder() for name in ("embed", "fit", "targets")}
    for name, run in runs.items():
        monkeypatch.setattr(f"captionbert.consensus.build.{name}", run)
    words = ["consensus", "targets", "--out", str(tmp_path), "--weights", "mpnet=2, minilm=.5"]
    assert main(words) == 0
    assert runs["fit"].kwargs["weights"] == {"mpnet": 2.0, "minilm": 0.5}
    assert main([*words, "--corpus", "a.txt", "--teachers", "mpnet,minilm"]) == 0
    assert runs["embed"].kwargs["weights"] == {"mpnet": 2.0, "minilm": 0.5}


@pytest.mark.parametrize("text", ["mpnet", "mpnet=much", "=2", "mpnet=1,mpnet=2", ""])
def test_consensus_weights_that_cannot_be_read(text: str, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        main(["consensus", "fit", "--out", str(tmp_path), "--weights", text])
    assert end.value.code == 2
    assert "expected NAME=NUMBER,NAME=NUMBER, each name once" in capsys.readouterr().err
