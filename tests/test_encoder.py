"""Teachers and the consensus as encoders: unit vectors, the targets on disk again, and no other teacher's."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import read_json
from captionbert.consensus import build
from captionbert.consensus.captions import open_corpus
from captionbert.consensus.encoder import (
    ConsensusEncoder,
    TeacherEncoder,
    open_consensus_encoder,
    open_teacher,
    with_dtype,
)
from captionbert.consensus.frames import open_frame
from captionbert.consensus.specs import TeacherSpec
from captionbert.consensus.targets import open_targets
from captionbert.consensus.teachers import teacher_from_function

sys.path.append(str(Path(__file__).parent))
setup = importlib.import_module("consensus_setup")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished consensus of two function teachers."""
    folder = tmp_path_factory.mktemp("made") / "d"
    source = setup.write_captions(folder.parent / "a.txt", 500)
    build.embed([source], [setup.toy("ref", 12), setup.toy("wide", 16)], folder, held_out=20, shard_rows=128)
    build.fit(folder)
    build.targets(folder)
    return folder


def opened(folder: Path, **changed: object) -> ConsensusEncoder:
    frame = open_frame(folder / "frame")
    teachers = {"ref": setup.toy("ref", 12), "wide": setup.toy("wide", 16), **changed}
    teachers = {name: teacher for name, teacher in teachers.items() if teacher is not None}
    prints = {name: fingerprint for name, fingerprint, *_ in frame.info["inputs"]["teachers"]}
    return ConsensusEncoder("consensus:d", frame, teachers, prints, dict.fromkeys(prints, "fp32"))


def test_the_consensus_of_a_corpus_row_is_its_target(made: Path) -> None:
    corpus, targets, encoder = open_corpus(made / "corpus"), open_targets(made), opened(made)
    rows = np.array([3, 499, 0, 77])
    found, stored = encoder.encode(corpus.texts(rows)), targets.vectors(rows)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6)
    # What is left is fp16 storage, of the teachers' vectors and of the targets: 2^-11 of a coordinate.
    np.testing.assert_allclose(found, stored, atol=5e-4)
    assert ((found * stored).sum(axis=1) > 1 - 1e-6).all()
    assert (encoder.width, encoder.frame_id) == (12, targets.frame_id)
    assert encoder.encode([]).shape == (0, 12)


def test_a_teacher_that_is_missing_or_another_is_refused(made: Path) -> None:
    with pytest.raises(InputError, match=r"the frame needs teacher wide, there are \['ref'\]"):
        opened(made, wide=None)
    with pytest.raises(InputError, match=r"teacher wide has fingerprint .* the frame was fitted on"):
        opened(made, wide=setup.toy("wide", 16, content="other weights"))


def test_a_teacher_gives_unit_vectors_or_says_which_text_has_none() -> None:
    def encode(texts: list[str]) -> np.ndarray:
        return np.array([[len(t), 0.0, 3.0 * bool(t)] for t in texts], dtype=np.float32)

    encoder = TeacherEncoder(teacher_from_function("lengths", 3, encode))
    np.testing.assert_allclose(
        encoder.encode(["abcd", "a"]), [[0.8, 0, 0.6], [0.1**0.5, 0, 0.9**0.5]], atol=1e-6
    )
    assert (encoder.name, encoder.width, encoder.frame_id, encoder.max_tokens) == ("lengths", 3, None, None)
    with pytest.raises(InputError, match="lengths: no direction in its vector of the text ''"):
        encoder.encode(["a", ""])
    with pytest.raises(InputError, match="rotary factor 2: only models of this package"):
        encoder.stretch(2.0)


@pytest.fixture(scope="module")
def bert_folder(tiny_tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("bert") / "tiny-bert"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_tokenizer_dir)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **sizes)).save_pretrained(
        folder
    )
    tokenizer.save_pretrained(folder)
    return folder


def test_a_consensus_folder_opens_with_its_recorded_teachers(
    bert_folder, captions, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("captionbert.artifacts.arithmetic.has_bf16", lambda: True)
    (tmp_path / "a.txt").write_text("\n".join(captions))
    build.embed([str(tmp_path / "a.txt")], [str(bert_folder)], tmp_path / "d", held_out=8)
    with pytest.raises(InputError, match="no frame there"):
        open_consensus_encoder(tmp_path / "d")
    build.fit(tmp_path / "d", force=True)
    build.targets(tmp_path / "d")
    encoder = open_consensus_encoder(tmp_path / "d", "fp32")  # another dtype of the same weights
    rows = np.arange(30)
    found = encoder.encode(open_corpus(tmp_path / "d" / "corpus").texts(rows))
    cosines = (found * open_targets(tmp_path / "d").vectors(rows)).sum(axis=1)
    assert (cosines > 0.999).all()  # the corpus was embedded in bf16
    assert encoder.name == "consensus:d"
    assert encoder.max_tokens == 40
    assert encoder.tokenizer is not None
    assert encoder.facts["teachers"] == {"tiny-bert": "fp32"}
    record = read_json(tmp_path / "d" / "consensus.json")
    assert record["teachers"][0]["teacher"]["dtype"] == "bf16"
    (bert_folder / "special.txt").write_text("another vocabulary")
    with pytest.raises(InputError, match="its files, pooling or length have changed"):
        open_consensus_encoder(tmp_path / "d")
    (bert_folder / "special.txt").unlink()
    gone = bert_folder.rename(bert_folder.with_name("elsewhere"))
    with pytest.raises(
        InputError, match=r"/d: the consensus is computed by its teachers, and one cannot be loaded"
    ):
        open_consensus_encoder(tmp_path / "d")
    gone.rename(bert_folder)
    with pytest.raises(InputError, match="no consensus there"):
        open_consensus_encoder(tmp_path)


def test_a_teacher_word_opens_in_the_number_type_asked_for(bert_folder: Path) -> None:
    encoder = open_teacher(str(bert_folder), "fp32")
    assert encoder.facts["dtype"] == "fp32"
    assert encoder.max_tokens == 40
    graph = TeacherSpec("g", "onnx", "g.onnx", dtype="fp32")
    assert with_dtype(graph, "bf16") is graph
    assert with_dtype(replace(graph, kind="auto-model"), "bf16").dtype == "bf16"
