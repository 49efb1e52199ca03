"""Teachers: the vectors of each kind against a plain computation, pins, fingerprints, and clear refusals."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from captionbert.artifacts.arithmetic import fast_dtype
from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import sha256_file
from captionbert.consensus import teachers as module
from captionbert.consensus.specs import TeacherSpec, parse_teacher
from captionbert.consensus.teachers import (
    fingerprint_of,
    load_teacher,
    teacher_from_function,
)


@pytest.fixture(scope="module")
def bert_folder(tiny_tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer BertModel with the tiny tokenizer."""
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("Tiny BERT")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_tokenizer_dir)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=40,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def st_folder(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as a SentenceTransformer that pools by [CLS] and projects to 10."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

    torch.manual_seed(1)
    modules = [Transformer(str(bert_folder)), Pooling(24, pooling_mode="cls"), Dense(24, 10), Normalize()]
    folder = tmp_path_factory.mktemp("st")
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))
    return folder


def mean_pooled(folder: Path, text: str, max_length: int = 40) -> np.ndarray:
    from transformers import AutoModel, AutoTokenizer

    batch = AutoTokenizer.from_pretrained(folder)(
        text, truncation=True, max_length=max_length, return_tensors="pt"
    )
    with torch.inference_mode():
        states = AutoModel.from_pretrained(folder).eval()(**batch).last_hidden_state
    return states[0].mean(0).numpy()


def test_auto_model_is_mean_pooled_in_the_order_given(bert_folder: Path, captions: list[str]) -> None:
    teacher = load_teacher(replace(parse_teacher(str(bert_folder)), dtype="fp32"))
    texts = [*captions[:40], captions[3] + " " + captions[4], "a " * 100]
    found = teacher.encode(texts)
    assert found.shape == (42, 24)
    assert found.dtype == np.float32
    expected = np.stack([mean_pooled(bert_folder, t) for t in texts])
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_sentence_transformer_modules_are_honoured(st_folder: Path, captions: list[str]) -> None:
    from sentence_transformers import SentenceTransformer

    teacher = load_teacher(replace(parse_teacher(str(st_folder)), dtype="fp32"))
    expected = SentenceTransformer(str(st_folder), device="cpu").encode(captions[:50])
    assert teacher.width == 10
    np.testing.assert_allclose(teacher.encode(captions[:50]), expected, atol=2e-6)


def test_the_default_prompt_of_a_model_is_used(st_folder: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "prompted"
    shutil.copytree(st_folder, folder)
    path = folder / "config_sentence_transformers.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "prompts": {"red": "the red car "}, "default_prompt_name": "red"}))
    plain, prompted = (
        load_teacher(replace(parse_teacher(str(f)), dtype="fp32")) for f in (st_folder, folder)
    )
    expected = plain.encode(["the red car sleeps at night."])
    np.testing.assert_allclose(prompted.encode(["sleeps at night."]), expected, atol=1e-6)
    other = load_teacher(replace(prompted.spec, prompt="a man "))
    np.testing.assert_allclose(other.encode(["runs"]), plain.encode(["a man runs"]), atol=1e-6)


def test_bf16_stays_close_and_is_another_fingerprint(st_folder: Path, captions: list[str]) -> None:
    spec = parse_teacher(str(st_folder))
    assert spec.dtype == fast_dtype()
    half, full = (load_teacher(replace(spec, dtype=dtype)) for dtype in ("bf16", "fp32"))
    cosines = (half.encode(captions) * full.encode(captions)).sum(axis=1)
    assert cosines.min() > 0.999
    assert half.fingerprint != full.fingerprint


def test_batches_cover_every_row_once_within_the_budget() -> None:
    lengths = np.random.default_rng(0).integers(2, 600, 3000)
    lengths[5] = 9000
    batches = list(module._batches(lengths))
    assert sorted(np.concatenate(batches).tolist()) == list(range(3000))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * lengths[rows].max() <= module.BATCH_TOKENS


def test_prompt_and_length_change_vectors_and_fingerprint(bert_folder: Path) -> None:
    spec = replace(parse_teacher(str(bert_folder)), dtype="fp32")
    plain = load_teacher(spec)
    prompted = load_teacher(replace(spec, prompt="the red car "))
    np.testing.assert_allclose(
        prompted.encode(["sleeps at night."]), plain.encode(["the red car sleeps at night."]), atol=1e-6
    )
    short = load_teacher(replace(spec, max_length=4))
    np.testing.assert_allclose(
        short.encode(["a man runs in a park"])[0], mean_pooled(bert_folder, "a man", 4), atol=1e-6
    )
    assert len({t.fingerprint for t in (plain, prompted, short)}) == 3
    assert plain.fingerprint == load_teacher(replace(spec, name="other")).fingerprint
    assert list(plain.token_lengths(["a man", "a " * 100])) == [4, 102]


def test_a_weights_digest_that_differs_is_refused(bert_folder: Path) -> None:
    digest = sha256_file(bert_folder / "model.safetensors")
    assert load_teacher(parse_teacher(f"{bert_folder}#{digest}")).width == 24
    with pytest.raises(InputError, match=rf"model\.safetensors has SHA-256 {digest}, expected {'0' * 64}"):
        load_teacher(parse_teacher(f"{bert_folder}#{'0' * 64}"))
    with pytest.raises(InputError, match="expected a SHA-256 of 64 hex digits, found 'abc'"):
        parse_teacher(f"{bert_folder}#abc")


def test_changed_weights_or_tokenizer_change_the_fingerprint(bert_folder: Path, tmp_path: Path) -> None:
    import shutil

    before = load_teacher(parse_teacher(str(bert_folder))).fingerprint
    copy = tmp_path / "copy"
    shutil.copytree(bert_folder, copy)
    assert load_teacher(parse_teacher(str(copy))).fingerprint == before
    config = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": 12}))
    assert load_teacher(parse_teacher(str(copy))).fingerprint != before


def test_what_is_not_a_teacher(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a hub model is given with its commit: owner/model@<40 hex digits>"):
        parse_teacher("owner/model@main")
    with pytest.raises(InputError, match="expected onnx:FILE:TOKENIZER"):
        parse_teacher("onnx:nothing.onnx")
    with pytest.raises(InputError, match="unknown kind 'magic'"):
        load_teacher(TeacherSpec("x", "magic", "x"))
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(InputError, match=r"no \.safetensors weights .* pickled weights can run code"):
        load_teacher(parse_teacher(str(tmp_path / "pickled")))


def test_a_pinned_hub_model_is_fetched_at_its_commit(
    bert_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked = {}

    def fetch(source: str, **options: object) -> str:
        asked.update(source=source, **options)
        return str(bert_folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    teacher = load_teacher(parse_teacher(f"owner/Some_Model@{'ab' * 20}"))
    assert (asked["source"], asked["revision"]) == ("owner/Some_Model", "ab" * 20)
    assert (teacher.spec.name, teacher.spec.kind) == ("owner-some_model", "auto-model")

    def fail(*_: object, **__: object) -> str:
        raise RuntimeError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(InputError, match=f"cannot fetch owner/model@{'ab' * 20}: no route"):
        load_teacher(parse_teacher(f"owner/model@{'ab' * 20}"))


def test_remote_code_is_not_run(bert_folder: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "remote"
    shutil.copytree(bert_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "unheard-of", "auto_map": {"AutoConfig": "c.C", "AutoModel": "m.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "c.py").write_text("raise SystemExit('ran')\n")
    with pytest.raises(InputError, match="needs its own code, which is not run"):
        load_teacher(parse_teacher(str(folder)))


def test_packaged_onnx_against_its_graph(captions: list[str]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    from transformers import AutoTokenizer

    from captionbert.consensus.packaged import packaged_tokenizer, packaged_weights

    try:
        teacher = load_teacher(parse_teacher("paraphrase-l3"))
    except InputError as error:
        pytest.skip(str(error))
    assert (teacher.width, teacher.spec.max_length, teacher.spec.dtype) == (384, 128, "fp32")
    texts = [captions[0], captions[1] + " " + captions[2], captions[3]]
    session = onnxruntime.InferenceSession(
        str(packaged_weights("paraphrase-l3")), providers=["CPUExecutionProvider"]
    )
    tokenizer = AutoTokenizer.from_pretrained(packaged_tokenizer("paraphrase-l3"))
    for text, vector in zip(texts, teacher.encode(texts)):
        ids = np.array([tokenizer(text, padding=False)["input_ids"]])
        states = [
            o
            for o in session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
            if o.ndim == 3
        ]
        np.testing.assert_allclose(vector, states[0][0].mean(0), atol=1e-4)


def test_an_onnx_file_that_is_none(tmp_path: Path, tiny_tokenizer_dir: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "a.onnx").write_bytes(b"not a graph")
    with pytest.raises(InputError, match=r"a\.onnx is not a readable ONNX graph"):
        load_teacher(parse_teacher(f"onnx:{tmp_path / 'a.onnx'}:{tiny_tokenizer_dir}"))
    with pytest.raises(InputError, match="expected 0000"):
        load_teacher(parse_teacher(f"onnx:{tmp_path / 'a.onnx'}#{'0' * 64}:{tiny_tokenizer_dir}"))


def test_function_teachers_differ_by_content() -> None:
    one, two = (teacher_from_function("f", 3, lambda t: np.zeros((len(t), 3)), content=c) for c in ("a", "b"))
    assert one.fingerprint != two.fingerprint
    assert one.fingerprint == fingerprint_of(one.spec, "a")
