"""The probes that set models side by side, from the command line: reports, outputs, and refusals before any work."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from captionbert.cli import main


@pytest.fixture
def models(tiny_config: Any, tiny_tokenizer_dir: Path, tmp_path: Path) -> list[str]:
    """Two tiny models of one width."""
    import torch

    from captionbert.modeling_captionbert import CaptionBertModel

    for seed, name in enumerate(("first", "second")):
        torch.manual_seed(seed)
        CaptionBertModel(tiny_config).save_pretrained(tmp_path / name)
        for file in tiny_tokenizer_dir.iterdir():
            shutil.copy(file, tmp_path / name)
    return [str(tmp_path / "first"), str(tmp_path / "second")]


@pytest.fixture
def files(tmp_path: Path, captions: list[str]) -> dict[str, str]:
    """One input file of each form."""
    rows = {
        "swaps.jsonl": [
            {"caption": a, "same_image": [b, c], "negative": d}
            for a, b, c, d in zip(*[iter(captions[:40])] * 4)
        ],
        "pairs.jsonl": [
            {"sentence1": a, "sentence2": b, "score": i % 5}
            for i, (a, b) in enumerate(zip(captions, captions[9:49]))
        ],
        "groups.jsonl": [captions[i : i + 4] for i in range(0, 200, 4)],
    }
    for name, content in rows.items():
        (tmp_path / name).write_text("\n".join(map(json.dumps, content)))
    (tmp_path / "captions.txt").write_text("\n".join(captions))
    return {name: str(tmp_path / name) for name in (*rows, "captions.txt")}


def commands(models: list[str], files: dict[str, str]) -> dict[str, list[str]]:
    both = ["--models", ",".join(models)]
    documents = [
        "--lengths",
        "48,24",
        "--documents",
        "5",
        "--rotary-factors",
        "1,2",
        "--chunk",
        "12",
        "--groups",
    ]
    return {
        "binding-probe": ["probe", "binding", files["swaps.jsonl"], *both],
        "asymmetric-probe": [
            *["probe", "asymmetric", files["pairs.jsonl"], "--queries", models[0], "--documents", models[1]],
            *["--dims", "8,16"],
        ],
        "documents-probe": [
            "probe",
            "documents",
            files["captions.txt"],
            *both,
            *documents,
            files["groups.jsonl"],
        ],
        "geometry-probe": ["probe", "geometry", files["captions.txt"], *both, "--rows", "50"],
    }


@pytest.mark.parametrize("kind", ["binding-probe", "asymmetric-probe", "documents-probe", "geometry-probe"])
def test_each_probe_prints_and_writes_a_report_that_it_may_replace(
    kind, models, files, tmp_path, capsys
) -> None:
    words = [*commands(models, files)[kind], "--json", str(tmp_path / "r.json")]
    assert main(words) == main(words) == 0
    printed = capsys.readouterr()
    assert "first" in printed.out
    assert "second" in printed.out
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["kind"] == kind
    assert set(report["models"]) == {"first", "second"}
    assert len({facts["digest"] for facts in report["models"].values()}) == 2
    assert str(tmp_path) not in (tmp_path / "r.json").read_text()


def test_documents_are_measured_in_order_of_length_with_every_factor(models, files, tmp_path) -> None:
    words = commands(models, files)["documents-probe"]
    assert main([*words, "--json", str(tmp_path / "r.json")]) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    ways = ["whole", "whole, rotary x2", "mean of chunks", "best of chunks"]
    expected = [(m, n, way) for m in ("first", "second") for n in (24, 48) for way in ways]
    assert [(r["model"], r["length"], r["way"]) for r in report["results"]] == expected
    assert report["queries"] == 5
    assert (report["split"], report["query_is"]) == ("dev", "same image")


def test_binding_arrays_are_written(models, files, tmp_path) -> None:
    assert main([*commands(models, files)["binding-probe"], "--arrays", str(tmp_path / "b.npz")]) == 0
    assert np.load(tmp_path / "b.npz")["share_right"].shape == (3, 10)  # two models and the control


def test_wrong_input_is_told_before_a_model_is_opened(models, files, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("captionbert.distill.encoders.open_encoder", lambda *_, **__: pytest.fail("opened"))
    own = str(Path(models[0]) / "config.json")
    for kind, more, message in (
        ("binding-probe", ["--json", files["swaps.jsonl"]], "is read as well"),
        ("binding-probe", ["--json", own], "is a file of"),
        ("binding-probe", ["--arrays", str(tmp_path)], "expected a name that ends in .npz"),
        ("binding-probe", ["--arrays", str(tmp_path / "b.npy")], "expected a name that ends in .npz"),
        ("binding-probe", ["--models", ",".join([models[0]] * 2)], "is given more than once"),
        ("binding-probe", ["--models", ","], "--models: no model"),
        ("asymmetric-probe", ["--documents", models[0]], "is given more than once"),
        ("asymmetric-probe", ["--json", own], "is a file of"),
        ("geometry-probe", ["--json", files["captions.txt"]], "is read as well"),
        ("geometry-probe", ["--models", f"consensus:{models[0]}", "--json", own], "is a file of"),
        ("documents-probe", ["--json", files["groups.jsonl"]], "is read as well"),
    ):
        assert main([*commands(models, files)[kind], *more]) == 2, (kind, more)
        assert message in capsys.readouterr().err
    for probe, file in (("binding", "pairs.jsonl"), ("asymmetric", "swaps.jsonl")):
        given = (
            ["--models", models[0]]
            if probe == "binding"
            else ["--queries", *models[:1], "--documents", models[1]]
        )
        assert main(["probe", probe, files[file], *given]) == 2
        assert f"{files[file]}: line 1: field" in capsys.readouterr().err
    assert main(["probe", "geometry", *[files["captions.txt"]] * 2, "--models", models[0]]) == 2
    assert "given more than once; each file counts once" in capsys.readouterr().err


def test_what_needs_the_models_is_told_in_one_line(models, files, capsys) -> None:
    words = commands(models, files)
    for kind, more, message in (
        ("asymmetric-probe", ["--dims", "8,25"], "--dims 25: these vectors have 1 to 24 coordinates"),
        ("documents-probe", ["--chunk", "7"], "--chunk 7: expected 8 tokens or more"),
        ("documents-probe", ["--lengths", "24,24"], "--lengths 24: given more than once"),
        ("documents-probe", ["--lengths", "9000"], "need about"),
        ("binding-probe", ["--models", f"{models[0]},nowhere"], "model nowhere: teacher 'nowhere'"),
    ):
        assert main([*words[kind], *more]) == 2
        assert message in capsys.readouterr().err
    for more in (["--lengths", "24,x"], ["--rotary-factors", "0.5"], ["--rotary-factors", "1,y"]):
        with pytest.raises(SystemExit, match="2"):
            main([*words["documents-probe"], *more])
        assert "or more" in capsys.readouterr().err
