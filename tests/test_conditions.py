"""Each condition changes the model in its own way and puts it back bit for bit, also after an error."""

import importlib.util
from pathlib import Path

import pytest
import torch
import yaml
from transformers import PreTrainedTokenizerFast

from captionbert.probes.conditions import (
    addresses_off,
    binding_off,
    changed_tensors,
    flat_values,
    fresh_start,
    identity,
    new_phases,
    record_norm_off,
    zero_phases,
)
from captionbert.probes.interventions import registered_seed

_spec = importlib.util.spec_from_file_location(
    "training_setup", Path(__file__).with_name("training_setup.py")
)
assert _spec is not None
assert _spec.loader is not None
setup = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(setup)
EVERY = [
    zero_phases,
    binding_off,
    record_norm_off,
    new_phases,
    addresses_off,
    flat_values,
    lambda m: fresh_start(m, 5),
]


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(tiny_tokenizer_dir)


@pytest.fixture
def model(reading_model):
    return reading_model


def vectors(model, tokenizer) -> torch.Tensor:
    ids = torch.tensor([tokenizer("two dogs. a black cat! two dogs play? the cat")["input_ids"]])
    with torch.no_grad():
        return model(ids).last_hidden_state


@pytest.mark.parametrize("intervene", EVERY)
def test_each_changes_the_model_and_restores_it_bit_for_bit(intervene, model, tokenizer) -> None:
    before, output, random = identity(model), vectors(model, tokenizer), torch.get_rng_state()
    pointers = {name: p.data_ptr() for name, p in model.named_parameters()}
    with intervene(model):
        assert identity(model) != before
        assert not torch.equal(vectors(model, tokenizer), output)
    assert identity(model) == before
    assert torch.equal(vectors(model, tokenizer), output)
    with pytest.raises(ZeroDivisionError), intervene(model):
        raise ZeroDivisionError
    assert identity(model) == before
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == pointers
    assert torch.equal(torch.get_rng_state(), random)


def test_an_error_half_way_restores_what_was_changed(model) -> None:
    before = identity(model)
    bad = {"final_norm.weight": torch.zeros(64), "final_norm.bias": torch.zeros(7)}
    with pytest.raises(RuntimeError), changed_tensors(model, bad):
        pass
    assert identity(model) == before


def test_digests_see_one_bit_and_every_field_of_the_config(model) -> None:
    before = identity(model)
    with torch.no_grad():
        model.final_norm.weight[3] = torch.nextafter(model.final_norm.weight[3], torch.tensor(9.0))
    assert identity(model)["tensors"] != before["tensors"]
    model.config.strict = True
    assert identity(model)["config"] != before["config"]


def test_what_each_condition_takes_away(model) -> None:
    config, values = model.config, model.embeddings.address_values
    seed = config.hash_seed
    with zero_phases(model):
        assert (config.lexical_phases, config.binding, config.record_norm) == (False, "pieces", 2.18)
    with binding_off(model):
        assert (config.binding, config.record_norm) == ("none", None)
    with record_norm_off(model):
        assert (config.binding, config.record_norm, config.lexical_phases) == ("pieces", None, True)
    with new_phases(model):
        assert config.hash_seed != seed
        assert 0 <= config.hash_seed < 2**32
    with addresses_off(model):
        assert not config.rotate_addresses
        assert config.position_frequencies == [1.0, 0.01]
    first = values[:, 0].clone()
    with flat_values(model):
        assert torch.equal(values, first[:, None].expand_as(values))
    assert not torch.equal(values[:, 1], first)


def test_a_fresh_start_is_the_start_of_training(tmp_path: Path, captions, tiny_tokenizer_dir) -> None:
    from captionbert import train_accelerate
    from captionbert.modeling_captionbert import CaptionBertModel
    from captionbert.recipes import load_recipe

    values = setup.tiny_recipe(setup.make_consensus(tmp_path / "consensus", captions), tiny_tokenizer_dir)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    recipe = load_recipe(tmp_path / "tiny.yaml", ["schedule.steps=3", "schedule.warmup=1"])
    run = tmp_path / "run"
    train_accelerate.run(recipe, run)
    assert registered_seed(run) == registered_seed(run / "checkpoints" / "final" / "model") == (3, "")
    from captionbert.training.student import build_student

    model = CaptionBertModel.from_pretrained(run / "checkpoints" / "final" / "model")
    start = build_student(recipe, model.config)
    with fresh_start(model, 3):
        for name, value in model.named_parameters():
            assert torch.equal(value, dict(start.named_parameters())[name]), name
