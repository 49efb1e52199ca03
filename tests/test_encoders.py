"""Any model by one word: what is opened, names, duplicates, stretched positions, and clear refusals."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from captionbert.artifacts.errors import InputError
from captionbert.distill.encoders import OwnEncoder, is_own, open_encoder, open_encoders
from captionbert.export.load import load_encoder, stretched_base

TEXTS = ["a man runs.", "two dogs play in a park.", "a black cat sleeps at night"]


def save(folder: Path, config, tokenizer: Path) -> Path:
    from captionbert.modeling_captionbert import CaptionBertModel

    torch.manual_seed(0)
    CaptionBertModel(config).save_pretrained(folder)
    for file in tokenizer.iterdir():
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def folder(tiny_config, tiny_tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("cats") / "model", tiny_config, tiny_tokenizer_dir)


def test_an_own_model_encodes_as_the_model_does(folder: Path) -> None:
    encoder = open_encoder(str(folder), dtype="fp32")
    model, tokenizer = load_encoder(folder)
    np.testing.assert_array_equal(encoder.encode(TEXTS), model.encode(TEXTS, tokenizer))
    assert (encoder.width, encoder.max_tokens, encoder.trained_tokens, encoder.frame_id) == (
        24,
        128,
        None,
        None,
    )
    assert encoder.name.endswith("/model")  # "model" alone would say nothing
    assert encoder.facts["dtype"] == "float32"


def test_what_a_run_records_is_known(folder: Path, tmp_path: Path) -> None:
    lineage = {"recipe": {"data.max_length": 64}, "data": {"frame_id": "f" * 64}}
    copy = Path(shutil.copytree(folder, tmp_path / "m"))
    (copy / "captionbert.json").write_text(json.dumps({"kind": "captionbert-export", "lineage": lineage}))
    encoder = open_encoder(str(copy))
    assert (encoder.trained_tokens, encoder.frame_id) == (64, "f" * 64)
    assert (
        encoder.facts["digest"] == open_encoder(str(folder)).facts["digest"]
    )  # the record decides no vector


def test_a_stretched_model_reads_by_the_new_base_and_comes_back_bit_for_bit(folder: Path) -> None:
    plain, stretched = OwnEncoder(folder), open_encoder(str(folder), rotary_factor=4.0)
    before = plain.encode(TEXTS)
    base = plain.model.config.rotary_base
    planes = plain.model.config.head_size // 2
    # The slowest plane turns four times slower, the fastest as before.
    slowest = stretched.model.config.rotary_base ** (-(planes - 1) / planes)  # type: ignore[attr-defined]
    assert slowest == pytest.approx(base ** (-(planes - 1) / planes) / 4)
    assert not np.array_equal(stretched.encode(TEXTS), before)
    plain.stretch(4.0)
    np.testing.assert_array_equal(plain.encode(TEXTS), stretched.encode(TEXTS))
    plain.stretch(1.0)
    np.testing.assert_array_equal(plain.encode(TEXTS), before)
    assert stretched_base(10_000.0, 16, 1.0) == stretched_base(10_000.0, 1, 8.0) == 10_000.0
    for factor in (0.5, float("nan"), float("inf")):
        with pytest.raises(InputError, match="expected 1 or more"):
            plain.stretch(factor)


def test_positions_that_cannot_stretch_say_so(tiny_config, tiny_tokenizer_dir, tmp_path: Path) -> None:
    fields = {**tiny_config.to_dict(), "position_type": "learned"}
    learned = save(tmp_path / "m", type(tiny_config)(**fields), tiny_tokenizer_dir)
    assert not open_encoder(str(learned)).stretchable
    with pytest.raises(InputError, match="rotary factor 2: its positions are learned"):
        open_encoder(str(learned), rotary_factor=2.0)


def test_several_models_have_several_names(folder: Path, tmp_path: Path) -> None:
    one = Path(shutil.copytree(folder, tmp_path / "x" / "cats"))
    two = Path(shutil.copytree(folder, tmp_path / "y" / "cats"))
    run = tmp_path / "run7"
    shutil.copytree(folder, run / "checkpoints" / "final" / "model")
    found = open_encoders([str(one), str(run)])
    assert [e.name for e in found] == ["cats", "run7"]
    assert [e.name for e in open_encoders([str(one), str(two)])] == [str(one), str(two)]
    for twice in ([str(one), f"{one}/."], [str(run), str(run / "checkpoints" / "final")]):
        with pytest.raises(InputError, match="is given more than once"):
            open_encoders(twice)
    with pytest.raises(InputError, match="minilm: is given more than once"):
        open_encoders(["minilm", "packaged:minilm"])
    with pytest.raises(InputError, match="no model; give one or more"):
        open_encoders([])


def test_what_is_no_model_is_told(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "consensus.json").write_text("{}")
    (tmp_path / "half" / "checkpoints").mkdir(parents=True)
    assert is_own(tmp_path / "half")
    for word, message in (
        ("nowhere/at/all", "model nowhere/at/all: teacher .* not a folder, and not a pinned hub id"),
        ("packaged:maxilm", "not a packaged name"),
        (str(tmp_path / "empty"), "no model in it; expected an export, a run"),
        (str(tmp_path / "made"), "its embedding is named consensus:"),
        (str(tmp_path / "half"), "the run has no checkpoints/final yet"),
        (f"consensus:{tmp_path / 'empty'}", "no consensus there"),
    ):
        with pytest.raises(InputError, match=message):
            open_encoder(word)
