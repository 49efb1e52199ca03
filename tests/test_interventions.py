"""Frozen interventions: each does what it says, and leaves no trace."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from captionbert.artifacts.errors import InputError
from captionbert.probes import conditions as conditions_file
from captionbert.probes.conditions import conditions, identity, zero_phases
from captionbert.probes.interventions import gather, probe_interventions, registered_seed, render
from captionbert.probes.texts import Sample

_spec = importlib.util.spec_from_file_location(
    "training_setup", Path(__file__).with_name("training_setup.py")
)
assert _spec is not None
assert _spec.loader is not None
setup = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(setup)


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(tiny_tokenizer_dir)


@pytest.fixture(scope="module")
def drawn(captions: list[str]) -> Sample:
    texts = [f"{a} {b} {a} zebraing zebraing" for a, b in zip(captions[:30], captions[50:])]
    return Sample(texts, np.arange(30), {"c.txt": "0" * 64}, of=30, seed=0)


@pytest.fixture
def model(reading_model):
    return reading_model


def test_seeds_and_notes_come_from_the_recipe_of_the_run(tmp_path: Path) -> None:
    assert registered_seed(tmp_path) is None
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "recipe.yaml"
    file.write_text("seed: 11\nmodel: {init_embeddings_from: 'packaged:minilm'}\n")
    seed, note = registered_seed(tmp_path / "checkpoints" / "final")  # type: ignore[misc]
    assert seed == 11
    assert "began as packaged:minilm" in note
    assert "began as packaged:minilm" in conditions(seed, note)[-1].removes
    for text, message in (
        ("seed: soon\n", "expected a whole number from 0 to .* as seed, found 'soon'"),
        ("seed: true\n", "as seed, found True"),
        (f"seed: {2**63}\n", f"as seed, found {2**63}"),
        ("seed: [\n", "recipe.yaml: not a YAML file"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=message):
            registered_seed(tmp_path)
    file.write_text("seed: 3\nmodel: [1]\n")
    assert registered_seed(tmp_path) == (3, "")


def test_the_conditions_tell_a_reading_head_apart(model, tokenizer, drawn, tmp_path, captions) -> None:
    consensus = setup.make_consensus(tmp_path / "consensus", captions)
    pairs = [
        {"sentence1": a, "sentence2": b, "score": i} for i, (a, b) in enumerate(zip(captions, captions[9:]))
    ]
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, pairs[:20])))
    material = gather(model, tokenizer, drawn, dev_pairs=tmp_path / "dev.jsonl", consensus=consensus)
    report = probe_interventions(model, material, seed=3)
    json.dumps(report, allow_nan=False)
    rows = {row["name"]: row for row in report["conditions"]}
    top = {name: row["lookup"]["all"]["top_one"]["query_mean"] for name, row in rows.items()}
    assert top["intact"] == top["new phases"] == 1.0  # equality, not particular phases
    assert top["addresses off"] == top["flat values"] == 1.0  # this head was made without them
    for name in ("zero phases", "binding off", "record norm off", "fresh start"):
        assert top[name] < 0.5, name
    for row in rows.values():
        assert row["target_agreement"] == 1.0 or row["name"] == "binding off"
        assert -1 <= row["target_cosine"] <= 1
        assert -1 <= row["dev_spearman"] <= 1
        assert {"effective_rank", "cv", "cv_random"} <= row["geometry"].keys()  # never one without the other
        assert row["name"] == "intact" or (row["removes"] and row["also"] and row["refuted_by"])
    assert "record norm is bypassed too" in rows["binding off"]["also"]
    assert report["identity"]["before"] == report["identity"]["after"] == identity(model)
    text = render(report)
    assert "model bit-identical afterwards: yes" in text
    assert "CV of random unit vectors" in text
    assert "record norm is bypassed too" in text


def test_what_does_not_apply_is_said(structured_model, tokenizer, drawn) -> None:
    model = structured_model("hierarchical")
    report = probe_interventions(model, gather(model, tokenizer, drawn), seed=None)
    why = {row["name"]: row.get("why_not") for row in report["conditions"]}
    assert {name for name, reason in why.items() if reason is None} == {
        "intact",
        "addresses off",
        "flat values",
    }
    assert "binding is 'none'" in why["new phases"]
    assert "--seed-of-start" in why["fresh start"]
    assert "does not apply: no seed" in render(report)
    model = structured_model("whole-key-lookup-no-norm")
    report = probe_interventions(model, gather(model, tokenizer, drawn), seed=0)
    assert [row["name"] for row in report["conditions"] if not row["applies"]] == ["record norm off"]


def test_a_model_without_structure_has_a_fresh_start_alone(structured_model, tokenizer, drawn) -> None:
    model = structured_model("relative-16")
    report = probe_interventions(model, gather(model, tokenizer, drawn), seed=0)
    assert [row["name"] for row in report["conditions"] if row["applies"]] == ["intact", "fresh start"]
    assert report["head"] is None
    assert "lookup" not in report["conditions"][0]
    assert "no head to read" in render(report)
    report = probe_interventions(model, gather(model, tokenizer, drawn, head=(1, 1)), seed=0)
    assert "lookup" in report["conditions"][0]


def test_a_condition_that_leaves_a_trace_is_an_error(model, tokenizer, drawn, monkeypatch) -> None:
    material = gather(model, tokenizer, drawn)
    monkeypatch.setattr(conditions_file, "zero_phases", leaky)
    with pytest.raises(RuntimeError, match="after the condition 'zero phases' the model's config are not"):
        probe_interventions(model, material, seed=0)


def leaky(model):
    with zero_phases(model):
        pass
    model.config.record_norm = 3.0
    return zero_phases(model)


def test_a_consensus_that_does_not_fit_is_refused(
    structured_model, tokenizer, drawn, tmp_path, captions
) -> None:
    consensus = setup.make_consensus(tmp_path / "consensus", captions)
    model = structured_model(projection_dim=20)
    with pytest.raises(InputError, match="targets of 24 coordinates, the model's vectors have 20"):
        gather(model, tokenizer, drawn, consensus=consensus)
    few = setup.make_consensus(tmp_path / "few", captions[:40])
    with pytest.raises(InputError, match="2 held-out captions; a target cosine needs 5"):
        gather(structured_model(), tokenizer, drawn, consensus=few)
