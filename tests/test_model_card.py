"""The model card: front matter, facts of the export, and measured numbers of this very digest only."""

import json
from pathlib import Path

import pytest
import yaml

from captionbert.artifacts.errors import InputError
from captionbert.model_card.numbers import add_numbers, numbers_of, read_numbers
from captionbert.model_card.render import render_card, write_card

DIGEST = "a" * 64
RECORD = {
    "kind": "captionbert-export",
    "digest": DIGEST,
    "parameters": 22_812_288,
    "dtype": "float32",
    "sentence_transformers_form": "own head",
    "lineage": {"frame_id": "f00d", "kind": "run", "nested": {"x": 1}},
}
CONFIG = {
    "num_hidden_layers": 6,
    "hidden_size": 384,
    "projection_dim": 768,
    "max_position_embeddings": 8192,
    "position_type": "rotary",
    "pooling": "mean",
}
VERSIONS = {"transformers": "5.24.0", "torch": "2.13.0", "python": "3.11"}
EVALUATION = {
    "kind": "captionbert-evaluation",
    "model": {"digest": DIGEST},
    "tasks": {"stsb": {"mteb_name": "STSBenchmark", "spearman": 0.76543, "pairs": 1379}},
    "mean": 0.76543,
    "mean_over": ["stsb"],
    "settings": {"dtype": "fp32", "max_length": 8192},
    "versions": VERSIONS,
}
PARITY = {
    "kind": "captionbert-parity",
    "model": {"digest": DIGEST},
    "passed": True,
    "max_difference": 0.0,
    "cases": [{}, {}],
    "dtypes": ["fp32"],
    "longest": 8192,
    "versions": VERSIONS,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An export as far as a card needs it."""
    (tmp_path / "captionbert.json").write_text(json.dumps(RECORD))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_front_matter_and_facts() -> None:
    card = render_card("my-model", RECORD, CONFIG, [])
    _, front, body = card.split("---\n", 2)
    fields = yaml.safe_load(front)
    assert fields["library_name"] == "sentence-transformers"
    assert "custom_code" in fields["tags"]
    for fact in (
        "22,812,288",
        "8,192 tokens",
        DIGEST,
        "f00d",
        'SentenceTransformer("my-model"',
        "Left and right",
    ):
        assert fact in body
    assert "$" not in body
    assert "| kind |" not in body


def test_no_figures_without_numbers(folder: Path) -> None:
    card = write_card(folder).read_text()
    assert "No figure was measured on this export yet" in card
    assert "Spearman" not in card


def test_figures_with_the_command_that_made_them(folder: Path, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    add_numbers(numbers, numbers_of(EVALUATION, "captionbert evaluate m --data sts"))
    add_numbers(numbers, numbers_of(PARITY, "captionbert parity c m"))
    card = write_card(folder, numbers=numbers).read_text()
    assert "| STSBenchmark | 0.7654 | 1379 pairs, fp32, at most 8192 tokens |" in card
    assert "| mean | 0.7654 | equal weights over stsb |" in card
    assert "| transformers 5.24.0, torch 2.13.0 | 0 | 2 cases, fp32, up to 8192 tokens |" in card
    assert "`captionbert evaluate m --data sts`" in card


def test_numbers_of_another_model_are_not_shown(folder: Path, tmp_path: Path) -> None:
    other = EVALUATION | {"model": {"digest": "b" * 64}}
    add_numbers(tmp_path / "numbers.json", numbers_of(other, "captionbert evaluate other"))
    assert "No figure was measured" in write_card(folder, numbers=tmp_path / "numbers.json").read_text()


def test_a_new_measurement_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    add_numbers(path, numbers_of(EVALUATION, "first"))
    add_numbers(path, numbers_of(EVALUATION | {"mean": 0.5}, "second"))
    rows = read_numbers(path)
    assert [row["value"] for row in rows if row["name"] == "mean"] == [0.5]
    assert len(rows) == 2


def test_a_failed_parity_is_not_quoted() -> None:
    with pytest.raises(InputError, match="did not pass"):
        numbers_of(PARITY | {"passed": False}, "captionbert parity c m")


def test_other_results_have_no_card_numbers() -> None:
    with pytest.raises(InputError, match="no card numbers in a result of kind 'recipe'"):
        numbers_of({"kind": "recipe"}, "x")


def test_a_damaged_numbers_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "numbers.json").write_text("{")
    with pytest.raises(InputError, match=r"numbers\.json: not valid JSON"):
        read_numbers(tmp_path / "numbers.json")


def test_first_token_pooling_says_how_to_pad() -> None:
    assert "left padding is refused" in render_card("m", RECORD, CONFIG | {"pooling": "cls"}, [])
