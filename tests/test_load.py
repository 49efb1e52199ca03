"""load_encoder: the lean way equals the full one, foreign code needs permission, misfits are refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from captionbert.artifacts.errors import InputError
from captionbert.export.folder import REMOTE_FILES
from captionbert.export.load import changed_code, load_encoder

TEXTS = ["a man runs.", "two dogs play in a park near the river.", "", "a black cat sleeps at night"]

LEAN = """
import sys
import numpy as np
from captionbert.export.load import load_encoder
for dtype in ("fp32", "bf16"):
    model, tokenizer = load_encoder(sys.argv[1], lean=True, dtype=dtype)
    assert type(model).__module__ == "_captionbert_lean.modeling_captionbert", type(model)
    np.save(f"{sys.argv[2]}/{dtype}.npy", model.encode(eval(sys.argv[3]), tokenizer))
for name in ("transformers", "sentence_transformers", "pandas", "pyarrow", "mteb", "datasets", "accelerate"):
    assert name not in sys.modules, name
import transformers  # the stand-ins are gone again
assert transformers.__version__
"""


@pytest.fixture
def folder(tiny_model, tiny_tokenizer_dir: Path, tmp_path: Path) -> Path:
    out = tmp_path / "encoder"
    tiny_model.save_pretrained(out)
    for file in tiny_tokenizer_dir.iterdir():
        shutil.copy(file, out)
    return out


@pytest.fixture
def remote_folder(folder: Path) -> Path:
    """With the code files and auto_map of an export."""
    root = Path(__file__).resolve().parent.parent
    for name in REMOTE_FILES:
        shutil.copy(root / name, folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {
        "AutoConfig": "configuration_captionbert.CaptionBertConfig",
        "AutoModel": "modeling_captionbert.CaptionBertModel",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_lean_vectors_are_bit_equal_and_need_no_transformers(folder: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", LEAN, folder, tmp_path, repr(TEXTS)], check=True)
    for dtype in ("fp32", "bf16"):
        model, tokenizer = load_encoder(folder, dtype=dtype)
        assert np.array_equal(np.load(tmp_path / f"{dtype}.npy"), model.encode(TEXTS, tokenizer))


def test_equal_code_runs_the_installed_package(remote_folder: Path) -> None:
    model, _ = load_encoder(remote_folder)
    assert type(model).__module__ == "captionbert.modeling_captionbert"
    assert not model.training


def test_changed_code_is_refused_without_permission_and_run_with_it(remote_folder: Path) -> None:
    expected = load_encoder(remote_folder)[0].encode(TEXTS, load_encoder(remote_folder)[1])
    with open(remote_folder / "rotary_captionbert.py", "a") as stream:
        stream.write("# another byte\n")
    assert changed_code(remote_folder) == ["rotary_captionbert.py"]
    for lean in (False, True):
        with pytest.raises(InputError, match=r"rotary_captionbert\.py: differs .* --trust-remote-code"):
            load_encoder(remote_folder, lean=lean)
    model, tokenizer = load_encoder(remote_folder, trust_remote_code=True, lean=True)
    assert type(model).__module__.startswith("transformers_modules.")
    assert np.array_equal(model.encode(TEXTS, tokenizer), expected)


def test_an_unknown_code_file_counts_as_changed(remote_folder: Path) -> None:
    (remote_folder / "surprise.py").write_text("")
    assert changed_code(remote_folder) == ["surprise.py"]


def test_dtype_is_as_stored_or_as_asked(folder: Path) -> None:
    assert load_encoder(folder)[0].dtype == torch.float32
    assert load_encoder(folder, dtype="bf16")[0].dtype == torch.bfloat16
    with pytest.raises(InputError, match="dtype 'int8' is not known"):
        load_encoder(folder, dtype="int8")


def test_long_texts_keep_their_last_special_token(folder: Path) -> None:
    model, tokenizer = load_encoder(folder)
    ids = tokenizer.encode("a man runs " * 200).ids
    assert len(ids) == model.config.max_position_embeddings
    assert ids[-1] == tokenizer.token_to_id("[SEP]")


def test_a_cut_file_and_a_wrong_config_are_input_errors(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole, config = weights.read_bytes(), (folder / "config.json").read_text()
    weights.write_bytes(whole[: len(whole) // 2])
    for lean in (False, True):
        with pytest.raises(InputError, match="encoder"):
            load_encoder(folder, lean=lean)
    weights.write_bytes(whole)
    for field, value in (("vocab_size", "30522"), ("max_position_embeddings", None), ("rotary_base", "x")):
        (folder / "config.json").write_text(json.dumps(json.loads(config) | {field: value}))
        with pytest.raises(InputError, match=f"{field}|cannot be loaded .TypeError"):
            load_encoder(folder)
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="not valid JSON"):
        load_encoder(folder)


def test_folders_that_are_none_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        load_encoder(tmp_path / "nothing")
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match="model_type is 'bert', expected 'captionbert'"):
        load_encoder(tmp_path / "bert")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"model\.safetensors: no such file; only safetensors"):
        load_encoder(folder)


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "projection_dim": 7}))
    with pytest.raises(InputError, match="cannot be loaded"):
        load_encoder(folder)


def test_a_tokenizer_that_does_not_belong_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 50}))
    with pytest.raises(InputError, match=r"tokenizer\.json: has \d+ tokens, the model's vocabulary 50"):
        load_encoder(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="not a tokenizer file"):
        load_encoder(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="export the checkpoint again"):
        load_encoder(folder)


@pytest.mark.parametrize("fault", ["missing", "unexpected"])
def test_weights_that_do_not_fit_are_refused(folder: Path, fault: str) -> None:
    weights = load_file(folder / "model.safetensors")
    if fault == "missing":
        del weights["final_norm.bias"]
    else:
        weights["final_norm.extra"] = torch.ones(3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=f"{fault} keys: .*final_norm"):
        load_encoder(folder)
