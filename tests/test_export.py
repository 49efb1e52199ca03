"""The exported folder: its content, loading without this package, what is refused, remote-file traps.

The loading tests run in a subprocess that first makes the package unimportable and forbids sockets.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import digest_json
from captionbert.configuration_captionbert import PRESETS, CaptionBertConfig, write_bitmap
from captionbert.evaluation.measured import identify
from captionbert.export.folder import (
    REMOTE_FILES,
    check_remote_files,
    export_checkpoint,
    identity_files,
    verify_export,
)
from captionbert.modeling_captionbert import CaptionBertModel

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ["a man runs on the beach.", "Two dogs sleep", "the old boat waits by the road at night, in snow", ""]


def write_checkpoint(folder: Path, config: CaptionBertConfig, tokenizer: Path, seed: int = 0) -> Path:
    """A checkpoint as training leaves it, with biases that are not zero."""
    torch.manual_seed(seed)
    model = CaptionBertModel(config)
    for value in model.parameters():
        if value.ndim == 1:
            torch.nn.init.normal_(value, std=0.5)
    model.save_pretrained(folder / "model")
    shutil.copy(tokenizer / "tokenizer.json", folder / "model")
    return folder


def changed(config: CaptionBertConfig, **fields: object) -> CaptionBertConfig:
    """The config with other values in some fields."""
    return CaptionBertConfig(
        **{k: v for k, v in config.to_dict().items() if k in CaptionBertConfig().__dict__} | fields
    )


@pytest.fixture
def checkpoint(tmp_path: Path, tiny_config: CaptionBertConfig, tiny_tokenizer_dir: Path) -> Path:
    """A tiny checkpoint folder."""
    return write_checkpoint(tmp_path / "checkpoint", tiny_config, tiny_tokenizer_dir)


@pytest.fixture
def exported(checkpoint: Path, tmp_path: Path) -> Path:
    """Its export."""
    return export_checkpoint(checkpoint, tmp_path / "exported")


def reference_vectors(checkpoint: Path) -> np.ndarray:
    """Vectors of TEXTS by the package's own classes, one text at a time."""
    from transformers import PreTrainedTokenizerFast

    model = CaptionBertModel(CaptionBertConfig.from_pretrained(checkpoint / "model")).eval()
    model.load_state_dict(load_file(checkpoint / "model" / "model.safetensors"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(checkpoint / "model" / "tokenizer.json"))
    with torch.inference_mode():
        rows = [model(torch.tensor([tokenizer(text)["input_ids"]])).pooler_output for text in TEXTS]
    return torch.cat(rows).numpy()


def run_python(*arguments: str) -> str:
    """Run a script in a fresh interpreter; its stdout, or a failure that shows its stderr."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


# ---- contents ----


def test_the_folder_holds_what_each_reader_needs(exported: Path) -> None:
    names = {path.relative_to(exported).as_posix() for path in exported.rglob("*") if path.is_file()}
    wanted = {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
        "README.md",
    }
    wanted |= {
        "modules.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "captionbert.json",
    }
    assert wanted | set(REMOTE_FILES) | {"1_Normalize/config.json", "special_tokens_map.json"} == names
    config = json.loads((exported / "config.json").read_text())
    assert config["auto_map"] == {
        "AutoConfig": "configuration_captionbert.CaptionBertConfig",
        "AutoModel": "modeling_captionbert.CaptionBertModel",
    }
    assert config["projection_dim"] == 24


def test_remote_files_are_byte_equal_to_the_package_s(exported: Path) -> None:
    for name in REMOTE_FILES:
        assert (exported / name).read_bytes() == (ROOT / name).read_bytes()


def test_weights_say_format_pt(exported: Path) -> None:
    from safetensors import safe_open

    with safe_open(exported / "model.safetensors", framework="pt") as stream:
        assert stream.metadata()["format"] == "pt"


def test_no_file_names_a_place_on_this_machine(exported: Path, checkpoint: Path) -> None:
    for path in exported.rglob("*.json"):
        assert str(checkpoint.parent) not in path.read_text()


def test_the_same_checkpoint_gives_the_same_digest(checkpoint: Path, exported: Path, tmp_path: Path) -> None:
    again = export_checkpoint(checkpoint, tmp_path / "again")
    assert verify_export(again)["digest"] == verify_export(exported)["digest"]


def test_export_and_evaluation_name_a_folder_alike(exported: Path) -> None:
    digest = identify(exported).digest
    assert digest == verify_export(exported)["digest"]
    (exported / "parity.json").write_text("{}")  # tells of the model, as its README does
    assert digest == identify(exported).digest == verify_export(exported)["digest"]


def test_a_second_export_replaces_the_first(
    exported: Path, tmp_path: Path, tiny_config: CaptionBertConfig, tiny_tokenizer_dir: Path
) -> None:
    first = verify_export(exported)["digest"]
    other = write_checkpoint(tmp_path / "other", tiny_config, tiny_tokenizer_dir, seed=1)
    export_checkpoint(other, exported)
    assert verify_export(exported)["digest"] != first


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_dtype_is_stored(checkpoint: Path, tmp_path: Path, dtype: str) -> None:
    out = export_checkpoint(checkpoint, tmp_path / "half", dtype=dtype)
    wanted = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    original = load_file(checkpoint / "model" / "model.safetensors")
    for name, value in load_file(out / "model.safetensors").items():
        assert torch.equal(value, original[name].to(wanted))
    assert json.loads((out / "config.json").read_text())["dtype"] == str(wanted).removeprefix("torch.")


def test_a_run_folder_means_its_final_checkpoint(
    tmp_path: Path, tiny_config: CaptionBertConfig, tiny_tokenizer_dir: Path
) -> None:
    run = tmp_path / "run"
    write_checkpoint(run / "checkpoints" / "final", tiny_config, tiny_tokenizer_dir)
    (run / "config" / "tokenizer").mkdir(parents=True)
    tokenizer = run / "checkpoints" / "final" / "model" / "tokenizer.json"
    tokenizer.rename(run / "config" / "tokenizer" / "tokenizer.json")
    (run / "config" / "identity.json").write_text('{"frame_id": "abc123"}')
    out = export_checkpoint(run, tmp_path / "out")
    assert verify_export(out)["lineage"] == {"frame_id": "abc123"}
    assert "abc123" in (out / "README.md").read_text()
    again = export_checkpoint(
        out, tmp_path / "half", dtype="bf16"
    )  # an export in another form has the same origin
    assert verify_export(again)["lineage"] == {"frame_id": "abc123"}


def test_an_export_of_another_run_is_replaced_only_when_asked(
    tmp_path: Path, tiny_config: CaptionBertConfig, tiny_tokenizer_dir: Path
) -> None:
    for name in ("one", "two"):
        write_checkpoint(tmp_path / name / "checkpoints" / "final", tiny_config, tiny_tokenizer_dir)
        (tmp_path / name / "config").mkdir()
        (tmp_path / name / "config" / "identity.json").write_text(json.dumps({"digest": name}))
    out = export_checkpoint(tmp_path / "one", tmp_path / "out")
    export_checkpoint(tmp_path / "one", out, dtype="bf16")
    with pytest.raises(InputError, match="an export of another run"):
        export_checkpoint(tmp_path / "two", out)
    assert verify_export(out)["lineage"] == {"digest": "one"}
    export_checkpoint(tmp_path / "two", out, replace=True)
    assert verify_export(out)["lineage"] == {"digest": "two"}


# ---- loading without the package ----

LOADER = """
import json, multiprocessing, os, socket, sys
sys.modules["captionbert"] = None
connect = socket.socket.connect
def refuse(*a, **k): raise AssertionError("a socket was opened")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
import numpy as np, torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, pipeline

def vectors(folder, texts):
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model, info = AutoModel.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert type(model).__module__.startswith("transformers_modules"), type(model).__module__
    rows = []
    with torch.inference_mode():
        for text in texts:
            rows.append(model.eval()(**tokenizer(text, return_tensors="pt")).pooler_output)
    return torch.cat(rows).numpy()

def in_worker(model, ids, queue):
    with torch.inference_mode():
        queue.put(model(ids).pooler_output.numpy())
"""

AUTO = (
    LOADER
    + """
if __name__ == "__main__":
    texts, expected = json.loads(sys.argv[1]), np.array(json.loads(sys.argv[2]), dtype=np.float32)
    for folder in sys.argv[3:]:
        assert np.array_equal(vectors(folder, texts), expected), folder
    folder = os.path.abspath(sys.argv[3])
    states = pipeline("feature-extraction", model=folder, trust_remote_code=True)(texts[0])
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    assert np.array(states).shape[-1] == config.hidden_size
    os.chdir(folder)
    for place in (".", "./"):  # from inside the folder
        assert np.array_equal(vectors(place, texts), expected), place
    model = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
    ids = torch.tensor([[2, 7, 8, 3]])
    socket.socket.connect = connect  # the worker's queue is a socket
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=in_worker, args=(model, ids, queue))
    process.start()
    found = queue.get(timeout=200)
    process.join()
    with torch.inference_mode():
        assert np.array_equal(found, model(ids).pooler_output.numpy())
    print("ok")
"""
)

SENTENCE_TRANSFORMER = (
    LOADER
    + """
from sentence_transformers import SentenceTransformer
texts = json.loads(sys.argv[1])
for folder, rows in zip(sys.argv[2::2], sys.argv[3::2]):
    expected = np.array(json.loads(rows), dtype=np.float32)
    model = SentenceTransformer(folder, trust_remote_code=True, local_files_only=True)
    found = model.encode(texts)
    assert found.shape == expected.shape and found.dtype == np.float32, found.shape
    assert np.abs(found - expected).max() < 1e-6, (folder, np.abs(found - expected).max())
    assert model.max_seq_length == 128, model.max_seq_length
    assert model.get_embedding_dimension() == 24
print("ok")
"""
)


@pytest.fixture
def odd_paths(exported: Path, tmp_path: Path) -> list[str]:
    """The export under names with dots, dashes and spaces."""
    names = ["v1.2", "a-b-c", "with space", "mix-1.0 of all"]
    for name in names:
        shutil.copytree(exported, tmp_path / name)
    return [str(exported), *(str(tmp_path / name) for name in names)]


def test_auto_model_pipeline_and_spawned_worker_without_the_package(
    checkpoint: Path, odd_paths: list[str], tmp_path: Path
) -> None:
    """By path, from inside the folder, through a pipeline, in a spawned process: bit-equal vectors."""
    script = tmp_path / "load.py"
    script.write_text(AUTO)
    expected = reference_vectors(checkpoint).tolist()
    assert "ok" in run_python(str(script), json.dumps(TEXTS), json.dumps(expected), *odd_paths)


def test_sentence_transformer_own_head_and_fallbacks(
    checkpoint: Path, exported: Path, tmp_path: Path, tiny_config: CaptionBertConfig, tiny_tokenizer_dir: Path
) -> None:
    """The library's vectors are the model's own, in both forms, for mean and for first-token pooling."""
    config = changed(tiny_config, pooling="cls", position_type="learned")
    first_token = write_checkpoint(tmp_path / "cls", config, tiny_tokenizer_dir)
    pairs = [
        (exported, checkpoint),
        (export_checkpoint(checkpoint, tmp_path / "fallback", fallback=True), checkpoint),
        (export_checkpoint(first_token, tmp_path / "cls-fallback", fallback=True), first_token),
    ]
    arguments = [
        text
        for folder, source in pairs
        for text in (str(folder), json.dumps(reference_vectors(source).tolist()))
    ]
    script = tmp_path / "load.py"
    script.write_text(SENTENCE_TRANSFORMER)
    assert "ok" in run_python(str(script), json.dumps(TEXTS), *arguments)


def test_every_structured_preset_is_the_same_sentence_transformer(
    tmp_path: Path, tiny_tokenizer_dir: Path
) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 5, "intermediate_size": 64}
    presets = [
        name
        for name, fields in PRESETS.items()
        if fields.get("position_type") == "structured" and name.endswith("-mini")
    ]
    assert len(presets) == 7
    vocabulary = json.loads((tiny_tokenizer_dir / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = {
        "vocab_size": len(vocabulary),
        "boundary_token_ids": [vocabulary[token] for token in ".!?;"],
        "continuation_bitmap": write_bitmap([token.startswith("##") for token in vocabulary]),
    }
    arguments, vectors = [], set()
    for name in presets:
        config = CaptionBertConfig.from_preset(
            name, **sizes, **tokens, projection_dim=24, max_position_embeddings=128
        )
        source = write_checkpoint(tmp_path / name, config, tiny_tokenizer_dir)
        expected = reference_vectors(source)
        vectors.add(expected.tobytes())
        arguments += [str(export_checkpoint(source, tmp_path / f"{name}-out")), json.dumps(expected.tolist())]
    # Each form of positions gives its own; pointer-only and whole-key-lookup differ from a form in training alone.
    assert len(vectors) == 5
    script = tmp_path / "load.py"
    script.write_text(SENTENCE_TRANSFORMER)
    assert "ok" in run_python(str(script), json.dumps(TEXTS), *arguments)


def test_tokenizer_of_the_export(exported: Path, checkpoint: Path) -> None:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer = AutoTokenizer.from_pretrained(exported, trust_remote_code=True)
    source = PreTrainedTokenizerFast(tokenizer_file=str(checkpoint / "model" / "tokenizer.json"))
    texts = [*TEXTS, "A CAT", "Café", "zebra, 42!"]
    assert tokenizer(texts)["input_ids"] == source(texts)["input_ids"]
    assert tokenizer("A CAT Café")["input_ids"] == tokenizer("a cat cafe")["input_ids"]
    assert tokenizer.model_max_length == 128
    assert tokenizer.padding_side == "right"
    assert len(tokenizer("dog " * 300, truncation=True)["input_ids"]) == 128
    assert (exported / "vocab.txt").read_text().split("\n")[tokenizer.pad_token_id] == "[PAD]"


# ---- changed folders ----


def flip(path: Path, offset: int) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "name", ["model.safetensors", "modeling_captionbert.py", "tokenizer.json", "1_Normalize/config.json"]
)
def test_a_changed_byte_is_named(exported: Path, name: str) -> None:
    digest = verify_export(exported)["digest"]
    flip(exported / name, -3)
    with pytest.raises(
        InputError, match=rf"{re.escape(name)}: expected SHA-256 .* found .* content was changed"
    ):
        verify_export(exported, digest)


def test_a_changed_folder_with_a_changed_record_fails_the_digest(exported: Path) -> None:
    digest = verify_export(exported)["digest"]
    flip(exported / "model.safetensors", -3)
    record = json.loads((exported / "captionbert.json").read_text())
    record["files"] = identity_files(exported)
    record["digest"] = digest_json(record["files"])
    (exported / "captionbert.json").write_text(json.dumps(record))
    verify_export(exported)  # consistent with itself: only the written-down digest can tell
    with pytest.raises(InputError, match=f"expected digest {digest}, found {record['digest']}"):
        verify_export(exported, digest)


def test_an_added_file_is_refused(exported: Path) -> None:
    (exported / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(InputError, match=r"pytorch_model\.bin: not listed"):
        verify_export(exported)


def test_a_missing_file_is_named(exported: Path) -> None:
    (exported / "rotary_captionbert.py").unlink()
    with pytest.raises(InputError, match=r"rotary_captionbert\.py: missing"):
        verify_export(exported)


def test_a_new_card_keeps_the_digest(exported: Path) -> None:
    digest = verify_export(exported)["digest"]
    (exported / "README.md").write_text("# other\n")
    assert verify_export(exported, digest)["digest"] == digest


def test_verification_imports_nothing_of_the_folder(exported: Path) -> None:
    (exported / "modeling_captionbert.py").write_text("raise SystemExit('imported')\n")
    before = set(sys.modules)
    with pytest.raises(InputError, match="content was changed"):
        verify_export(exported)
    assert set(sys.modules) == before


def test_an_out_folder_with_other_things_in_it(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "precious"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="is not empty and is no earlier export"):
        export_checkpoint(checkpoint, out)
    assert (out / "thesis.txt").read_text() == "years of work"


def test_an_earlier_export_that_holds_more_is_not_replaced(checkpoint: Path, tmp_path: Path) -> None:
    out = export_checkpoint(checkpoint, tmp_path / "clone")
    (out / ".git").mkdir()
    (out / ".git" / "HEAD").write_text("ref")
    with pytest.raises(InputError, match=r"\.git/HEAD: was not written by an export"):
        export_checkpoint(checkpoint, out)
    assert (out / ".git" / "HEAD").is_file()
    shutil.rmtree(out / ".git")
    export_checkpoint(checkpoint, out)


def test_exporting_over_the_checkpoint(checkpoint: Path) -> None:
    for out in (checkpoint / "model", checkpoint):
        with pytest.raises(InputError, match="holds the checkpoint that is being exported"):
            export_checkpoint(checkpoint, out)


def test_fallback_of_attention_pooling_is_refused(
    tmp_path: Path, tiny_config: CaptionBertConfig, tiny_tokenizer_dir: Path
) -> None:
    checkpoint = write_checkpoint(
        tmp_path / "attention", changed(tiny_config, pooling="attention"), tiny_tokenizer_dir
    )
    with pytest.raises(InputError, match="pooling 'attention' has no stock"):
        export_checkpoint(checkpoint, tmp_path / "out", fallback=True)


def test_a_remote_file_that_was_not_copied_is_named(exported: Path) -> None:
    (exported / "rotary_captionbert.py").unlink()
    with pytest.raises(InputError, match=r"differ from the list .*: rotary_captionbert\.py"):
        check_remote_files(exported, ROOT)
