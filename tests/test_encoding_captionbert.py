"""encode(): order, batching, truncation, odd inputs, and agreement with plain forward calls."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from captionbert.encoding_captionbert import token_batches
from captionbert.modeling_captionbert import CaptionBertModel


@pytest.fixture
def tokenizer(tiny_tokenizer_dir: Path):
    return AutoTokenizer.from_pretrained(tiny_tokenizer_dir)


def test_batches_fill_a_token_budget_and_hold_each_text_once() -> None:
    lengths = [3, 9, 9, 1, 30, 2, 2]
    batches = list(token_batches(lengths, 18))
    assert sorted(np.concatenate(batches).tolist()) == list(range(7))
    assert batches[0].tolist() == [4]  # longer than the budget: alone
    for rows in batches[1:]:
        assert max(lengths[r] for r in rows) * len(rows) <= 18
    assert list(token_batches([], 18)) == []


@pytest.mark.parametrize("batch_tokens", [1, 40, 4096])
def test_vectors_equal_plain_forward_calls_in_the_order_given(
    tiny_model: CaptionBertModel, tokenizer, captions: list[str], batch_tokens: int
) -> None:
    texts = [*captions[:20], "", captions[3] + " " + captions[70], captions[0]]
    vectors = tiny_model.encode(texts, tokenizer, batch_tokens=batch_tokens)
    assert vectors.shape == (23, 24)
    assert vectors.dtype == np.float32
    with torch.no_grad():
        for text, vector in zip(texts, vectors):
            alone = tiny_model(**tokenizer(text, return_tensors="pt")).pooler_output[0].numpy()
            np.testing.assert_allclose(vector, alone, atol=2e-6)


def test_a_plain_tokenizers_tokenizer_serves_as_well(
    tiny_model: CaptionBertModel, tokenizer, tiny_tokenizer_dir: Path, captions: list[str]
) -> None:
    plain = Tokenizer.from_file(str(tiny_tokenizer_dir / "tokenizer.json"))
    plain.enable_padding(length=64)
    texts = [*captions[:9], "a man runs " * 400]  # the last one is cut, and must keep its [SEP]
    for limit in (128, 10):
        expected = tiny_model.encode(texts, tokenizer, max_length=limit)
        assert np.array_equal(tiny_model.encode(texts, plain, max_length=limit), expected)


def test_a_model_from_a_folder_finds_its_tokenizer(
    tiny_model: CaptionBertModel, tokenizer, captions: list[str], tmp_path: Path
) -> None:
    tiny_model.save_pretrained(tmp_path)
    loaded = CaptionBertModel.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"pass encode\(texts, tokenizer\)"):
        loaded.encode(captions[:3])
    tokenizer.save_pretrained(tmp_path)
    assert np.array_equal(loaded.encode(captions[:3]), tiny_model.encode(captions[:3], tokenizer))


def test_long_texts_are_cut_at_the_limit(tiny_model: CaptionBertModel, tokenizer) -> None:
    long = "a man runs " * 400
    cut = tiny_model.encode([long], tokenizer)
    exact = tiny_model.encode([long], tokenizer, max_length=128)
    assert np.array_equal(cut, exact)
    shorter = tiny_model.encode([long], tokenizer, max_length=16)
    assert np.abs(shorter - cut).max() > 1e-6
    with torch.no_grad():
        ids = tokenizer(long, truncation=True, max_length=16, return_tensors="pt")
        np.testing.assert_allclose(shorter[0], tiny_model(**ids).pooler_output[0].numpy(), atol=2e-6)


def test_truncated_vectors_are_unit_again(
    tiny_model: CaptionBertModel, tokenizer, captions: list[str]
) -> None:
    whole = tiny_model.encode(captions[:5], tokenizer)
    cut = tiny_model.encode(captions[:5], tokenizer, truncate_dim=8)
    assert cut.shape == (5, 8)
    np.testing.assert_allclose(np.linalg.norm(cut, axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(
        cut, whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True), atol=1e-6
    )


def test_odd_inputs(tiny_model: CaptionBertModel, tokenizer) -> None:
    assert tiny_model.encode([], tokenizer).shape == (0, 24)
    with pytest.raises(TypeError, match="wrap a single one"):
        tiny_model.encode("a man", tokenizer)
    with pytest.raises(TypeError, match=r"texts\[1\] is int"):
        tiny_model.encode(["a man", 3], tokenizer)
    for options in ({"max_length": 129}, {"max_length": 1}, {"truncate_dim": 25}, {"batch_tokens": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            tiny_model.encode(["a man"], tokenizer, **options)
    with pytest.raises(ValueError, match="at the same revision"):
        tiny_model.encode(["a man"])


def test_a_long_word_is_one_unknown_token_not_the_end(tiny_model: CaptionBertModel, tokenizer) -> None:
    text = "https" + "a" * 600 + " a cat"
    short = tiny_model.encode([text], tokenizer, max_length=16)
    with torch.no_grad():
        ids = tokenizer(text, truncation=True, max_length=16, return_tensors="pt")
        np.testing.assert_allclose(short[0], tiny_model(**ids).pooler_output[0].numpy(), atol=2e-6)


def test_half_a_surrogate_pair_is_named(tiny_model: CaptionBertModel, tokenizer) -> None:
    with pytest.raises(ValueError, match=r"texts\[1\] holds half a surrogate pair"):
        tiny_model.encode(["a man", "a\ud800"], tokenizer)


def test_each_modules_training_mode_is_restored(tiny_model: CaptionBertModel, tokenizer) -> None:
    tiny_model.train()
    tiny_model.layers[0].eval()
    tiny_model.encode(["a man"], tokenizer)
    assert tiny_model.training
    assert not tiny_model.layers[0].training


def test_the_training_mode_is_restored(tiny_model: CaptionBertModel, tokenizer) -> None:
    tiny_model.train()
    tiny_model.encode(["a man"], tokenizer)
    assert tiny_model.training
