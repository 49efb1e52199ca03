"""The figure of one caption: words, segments, addresses, records, attention."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from captionbert.artifacts.errors import InputError
from captionbert.probes.show import figure_of

TEXT = "two dogs play. the cat waits; two dogs zebraing!"


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_tokenizer_dir / "tokenizer.json"))


def test_a_figure_has_the_words_segments_records_and_attention(structured_model, tokenizer) -> None:
    model = structured_model(reads=True)
    figure = figure_of(model, tokenizer, TEXT)
    two, dogs, dot = 1, 2, figure.tokens.index(".")
    assert figure.tokens[0] == "[CLS]"
    assert figure.special[0]
    assert figure.special[-1]
    assert not any(figure.special[1:-1])
    assert figure.segments[0] == -1
    assert (figure.addresses[0], figure.addresses[dogs], figure.addresses[dot]) == ("", "0 0 0", "0 0 0")
    assert figure.addresses[dot + 1] == "0 0 1"
    again = [t for t, token in enumerate(figure.tokens) if token == "dogs"][1]
    assert figure.lookups == {again - 1: two, again: dogs}
    assert figure.record[dogs]
    assert not figure.record[again]
    assert figure.attention.shape == (len(figure.tokens),) * 2
    np.testing.assert_allclose(figure.attention.sum(axis=1), 1, atol=1e-5)
    assert figure.attention[again].argmax() == dogs
    ids = torch.tensor([tokenizer.encode(TEXT).ids])
    with torch.no_grad():
        weights = model(ids, output_attentions=True).attentions[1][0, 0]
    np.testing.assert_allclose(figure.attention, weights.numpy(), atol=1e-5)
    assert (figure.head, figure.configured, figure.addressed, figure.cut) == ((2, 0), True, True, False)


def test_another_head_and_a_model_without_addresses(structured_model, tokenizer) -> None:
    figure = figure_of(structured_model(), tokenizer, TEXT, head=(3, 1))
    assert (figure.head, figure.configured) == ((3, 1), False)
    model = structured_model("relative-16")
    figure = figure_of(model, tokenizer, TEXT, head=(1, 0))
    assert not figure.addressed
    assert figure.addresses[figure.tokens.index(".") + 1] == "0 0 1"
    with pytest.raises(InputError, match="has no designated head"):
        figure_of(model, tokenizer, TEXT)
    with pytest.raises(InputError, match="head 9:0"):
        figure_of(model, tokenizer, TEXT, head=(9, 0))


def test_long_and_blank_texts(structured_model, tokenizer) -> None:
    figure = figure_of(structured_model(), tokenizer, TEXT * 3, max_length=12)
    assert len(figure.tokens) == 12
    assert figure.cut
    assert not figure_of(structured_model(), tokenizer, "a cat", max_length=4).cut
    assert len(figure_of(structured_model(), tokenizer, TEXT * 99).tokens) == 256
    with pytest.raises(InputError, match="the text is blank"):
        figure_of(structured_model(), tokenizer, " \n")
    with pytest.raises(InputError, match="max_length is 1"):
        figure_of(structured_model(), tokenizer, TEXT, max_length=1)
