"""Presets, exact parameter counts, ranges, and the config's way through a file."""

from pathlib import Path

import pytest
import torch

from captionbert.configuration_captionbert import PRESETS, CaptionBertConfig, ntk_base
from captionbert.modeling_captionbert import CaptionBertModel

PARAMETERS = {
    "captionbert-8192-v2": 58_308_864,
    "relative-8": 54_114_560,
    "relative-16": 54_114_560,
    "captionbert-mini": 22_812_288,
    "pooling-mean": 58_308_864,
    "pooling-cls": 58_308_864,
    "pooling-attention": 58_308_864 + 512,
}
STRUCTURED = (
    "hierarchical",
    "pointer-only",
    "key-endings",
    "key-pieces",
    "whole-key-lookup",
    "whole-key-lookup-no-norm",
    "whole-key-lookup-late",
)
PARAMETERS |= dict.fromkeys(STRUCTURED, 54_126_848)
PARAMETERS |= {f"{name}-mini": 22_812_288 + 3 * 8 * 384 for name in STRUCTURED}


def test_every_preset_has_a_pinned_size() -> None:
    assert set(PARAMETERS) == set(CaptionBertConfig.presets())


@pytest.mark.parametrize("preset", list(PRESETS))
def test_parameter_counts(preset: str) -> None:
    with torch.device("meta"):
        model = CaptionBertModel(CaptionBertConfig.from_preset(preset))
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[preset]
    # Nothing that a load on the meta device could leave uninitialised: the one buffer is in the checkpoint.
    structured = preset.removesuffix("-mini") in STRUCTURED
    assert [name for name, _ in model.named_buffers()] == ["position_identity"] * structured
    assert set(dict(model.named_buffers())) <= set(model.state_dict())


def test_relative_16_turns_its_slowest_plane_as_slowly_as_relative_8() -> None:
    base = CaptionBertConfig.from_preset("relative-16").rotary_base
    assert base == pytest.approx(10_000 ** (31 / 30))
    assert base ** -(15 / 16) == pytest.approx(10_000.0 ** -(31 / 32))
    assert ntk_base(10_000.0, planes=32, reference_planes=32) == pytest.approx(10_000.0)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown preset 'mini'; the presets are captionbert-8192-v2"):
        CaptionBertConfig.from_preset("mini")
    with pytest.raises(ValueError, match="unknown config field 'widht'"):
        CaptionBertConfig.from_preset("captionbert-mini", widht=3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be a whole number"),
        ({"hidden_size": 500}, "not a multiple of num_attention_heads"),
        ({"pooling": "max"}, "pooling must be one of mean, cls, attention"),
        ({"position_type": "alibi"}, "position_type must be one of"),
        ({"position_type": "rotary", "hidden_size": 24, "num_attention_heads": 8}, "even head size"),
        ({"rotary_base": 1.0}, "rotary_base must be above 1"),
        ({"rotary_base": "10000"}, "rotary_base must be above 1"),
        ({"rotary_base": 1e39}, "rotary_base must be above 1"),
        ({"layer_norm_eps": "x"}, "layer_norm_eps must be a positive number"),
        ({"initializer_range": -1}, "initializer_range must be a positive number"),
    ],
)
def test_values_out_of_range_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CaptionBertConfig(**fields)


def test_a_saved_config_comes_back_equal(tmp_path: Path) -> None:
    config = CaptionBertConfig.from_preset("relative-16", pooling="attention", layer_norm_eps=1e-6)
    config.save_pretrained(tmp_path)
    again = CaptionBertConfig.from_pretrained(tmp_path)
    for name in (
        "rotary_base",
        "pooling",
        "layer_norm_eps",
        "position_type",
        "num_attention_heads",
        "pad_token_id",
    ):
        assert getattr(again, name) == getattr(config, name), name
