"""What an export reads: each damaged, foreign or incomplete checkpoint is refused, and the fault named."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import publish_folder
from captionbert.configuration_captionbert import CaptionBertConfig
from captionbert.export.folder import export_checkpoint
from captionbert.modeling_captionbert import CaptionBertModel


@pytest.fixture
def checkpoint(tmp_path: Path, tiny_config: CaptionBertConfig, tiny_tokenizer_dir: Path) -> Path:
    """A tiny checkpoint folder."""
    folder = tmp_path / "checkpoint"
    CaptionBertModel(tiny_config).save_pretrained(folder / "model")
    shutil.copy(tiny_tokenizer_dir / "tokenizer.json", folder / "model")
    return folder


def change_tensors(checkpoint: Path, change: dict[str, torch.Tensor | None]) -> None:
    """Replace or (None) drop tensors of a checkpoint."""
    path = checkpoint / "model" / "model.safetensors"
    tensors = load_file(path) | {k: v for k, v in change.items() if v is not None}
    save_file(
        {k: v for k, v in tensors.items() if change.get(k, v) is not None}, path, metadata={"format": "pt"}
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"final_norm.weight": None}, r"tensor final_norm\.weight \(32,\) is missing"),
        ({"stray.weight": torch.zeros(2)}, r"unexpected tensor stray\.weight"),
        (
            {"final_norm.bias": torch.zeros(31)},
            r"final_norm\.bias has shape \(31,\), the config asks for \(32,\)",
        ),
        ({"final_norm.bias": torch.full((32,), float("nan"))}, r"final_norm\.bias holds NaN or infinity"),
    ],
)
def test_bad_tensors(checkpoint: Path, tmp_path: Path, change: dict, message: str) -> None:
    change_tensors(checkpoint, change)
    with pytest.raises(InputError, match=message):
        export_checkpoint(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_value_that_fp16_cannot_hold(checkpoint: Path, tmp_path: Path) -> None:
    change_tensors(checkpoint, {"final_norm.bias": torch.full((32,), 1e6)})
    with pytest.raises(InputError, match=r"final_norm\.bias: a value lies outside the range of fp16"):
        export_checkpoint(checkpoint, tmp_path / "out", dtype="fp16")


def test_unknown_dtype(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="dtype 'int4': unknown; choose one of fp32, bf16, fp16"):
        export_checkpoint(checkpoint, tmp_path / "out", dtype="int4")


def test_cut_weights(checkpoint: Path, tmp_path: Path) -> None:
    path = checkpoint / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="damaged"):
        export_checkpoint(checkpoint, tmp_path / "out")


def test_pickled_weights_are_not_opened(checkpoint: Path, tmp_path: Path) -> None:
    path = checkpoint / "model" / "model.safetensors"
    path.rename(path.with_name("pytorch_model.bin"))
    with pytest.raises(InputError, match=r"pytorch_model\.bin, which is not opened because it can run code"):
        export_checkpoint(checkpoint, tmp_path / "out")


def test_a_checkpoint_whose_manifest_disagrees(checkpoint: Path, tmp_path: Path) -> None:
    with publish_folder(tmp_path / "published") as folder:
        shutil.copytree(checkpoint / "model", folder / "model")
    path = tmp_path / "published" / "model" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match=r"model\.safetensors: expected SHA-256"):
        export_checkpoint(tmp_path / "published", tmp_path / "out")


def test_places_that_are_no_checkpoint(tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        export_checkpoint(tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(InputError, match="no checkpoints/final yet"):
        export_checkpoint(tmp_path / "run", tmp_path / "out")
    config = checkpoint / "model" / "config.json"
    config.write_text(config.read_text().replace('"captionbert"', '"bert"'))
    with pytest.raises(InputError, match="model_type is 'bert', expected 'captionbert'"):
        export_checkpoint(checkpoint, tmp_path / "out")


def test_a_config_out_of_range(checkpoint: Path, tmp_path: Path) -> None:
    config = checkpoint / "model" / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": -2'))
    with pytest.raises(InputError, match="num_hidden_layers must be a whole number of at least 1, not -2"):
        export_checkpoint(checkpoint, tmp_path / "out")


def edit_tokenizer(checkpoint: Path, edit) -> None:
    """Apply `edit` to the tokenizer's JSON."""
    path = checkpoint / "model" / "tokenizer.json"
    fields = json.loads(path.read_text())
    edit(fields)
    path.write_text(json.dumps(fields))


def test_tokenizers_that_do_not_belong(checkpoint: Path, tmp_path: Path) -> None:
    path = checkpoint / "model" / "tokenizer.json"
    good = path.read_text()
    edit_tokenizer(checkpoint, lambda f: f["model"]["vocab"].update(extra=9999))
    with pytest.raises(InputError, match="token id 9999 lies outside the model's vocabulary"):
        export_checkpoint(checkpoint, tmp_path / "out")
    path.write_text(good)
    edit_tokenizer(checkpoint, lambda f: f["model"].update(max_input_chars_per_word=1_000_000))
    with pytest.raises(InputError, match="max_input_chars_per_word is 1000000"):
        export_checkpoint(checkpoint, tmp_path / "out")
    path.write_text("{")
    with pytest.raises(InputError, match="not a tokenizer file"):
        export_checkpoint(checkpoint, tmp_path / "out")
    path.unlink()
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        export_checkpoint(checkpoint, tmp_path / "out")


def test_a_padding_id_that_is_not_the_model_s(checkpoint: Path, tmp_path: Path) -> None:
    config = checkpoint / "model" / "config.json"
    config.write_text(config.read_text().replace('"pad_token_id": 0', '"pad_token_id": 1'))
    with pytest.raises(InputError, match=r"\[PAD\] has id 0, the model's pad_token_id is 1"):
        export_checkpoint(checkpoint, tmp_path / "out")
