"""The model's promises: masks, padding, dtypes, attention backends, packed batches, bad input, saving."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from captionbert.configuration_captionbert import CaptionBertConfig
from captionbert.modeling_captionbert import CaptionBertModel

VARIANTS = [
    ("rotary", "mean"),
    ("rotary", "cls"),
    ("rotary", "attention"),
    ("learned", "mean"),
    ("learned", "cls"),
    ("learned", "attention"),
]


def build(config: CaptionBertConfig, **overrides: object) -> CaptionBertModel:
    """A seeded model of `config` with fields changed; weights larger than at birth, so that mistakes show."""
    torch.manual_seed(0)
    fields = {k: v for k, v in config.to_dict().items() if k in CaptionBertConfig().__dict__} | overrides
    model = CaptionBertModel(CaptionBertConfig(**fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def batch(lengths: list[int], vocab: int, width: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids [B, T] without the padding id, padded on the right with it, and the mask."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.zeros(len(lengths), width or max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(5, vocab, (length,), generator=generator)
    return ids, (ids != 0).long()


@pytest.mark.parametrize(("position_type", "pooling"), VARIANTS)
def test_vectors_are_unit_fp32_and_do_not_depend_on_batch_mates_or_padding(
    tiny_config: CaptionBertConfig, position_type: str, pooling: str
) -> None:
    model = build(tiny_config, position_type=position_type, pooling=pooling)
    ids, mask = batch([9, 4, 6], model.config.vocab_size)
    with torch.no_grad():
        output = model(ids, mask)
        assert output.last_hidden_state.shape == (3, 9, 32)
        assert output.pooler_output.shape == (3, 24)
        assert output.pooler_output.dtype == torch.float32
        torch.testing.assert_close(output.pooler_output.norm(dim=1), torch.ones(3), atol=1e-6, rtol=0)
        alone = model(ids[1:2, :4]).pooler_output
        garbage = ids.clone()
        garbage[1, 4:] = 7  # hidden by the mask, so it must not matter at all
        assert torch.equal(model(garbage, mask).pooler_output, output.pooler_output)
        packed = model.forward_packed(ids[mask.bool()], [9, 4, 6])
    torch.testing.assert_close(alone, output.pooler_output[1:2], atol=2e-6, rtol=0)
    torch.testing.assert_close(packed, output.pooler_output, atol=2e-6, rtol=0)
    assert float((output.pooler_output[0] - output.pooler_output[1]).abs().max()) > 1e-2


@pytest.mark.parametrize("position", [-1, 128])
def test_positions_past_the_model_are_refused(tiny_model, position: int) -> None:
    ids = torch.tensor([[2, 9, 3]])
    with pytest.raises(ValueError, match=rf"position id {position} is outside 0\.\.127"):
        tiny_model(ids, position_ids=torch.tensor([[0, 1, position]]))


def test_loaded_weights_begin_where_torch_would_put_them(tiny_model, tmp_path) -> None:
    for pad in range(0, 64, 8):  # the length of the header shifts every tensor of the file
        tiny_model.save_pretrained(tmp_path / str(pad))
        file = tmp_path / str(pad) / "model.safetensors"
        save_file(load_file(file), file, metadata={"format": "pt", "pad": "x" * pad})
        loaded = type(tiny_model).from_pretrained(tmp_path / str(pad))
        assert all(weight.data_ptr() % 64 == 0 for weight in loaded.parameters())


def test_positions_of_another_shape_are_refused(tiny_model) -> None:
    ids = torch.tensor([[2, 9, 3], [2, 7, 3]])
    for shape in ((2, 1), (1, 2), (3, 3), (3,)):
        with pytest.raises(ValueError, match=r"position_ids has shape .* takes \(2, 3\) or \(1, 3\)"):
            tiny_model(ids, position_ids=torch.zeros(shape, dtype=torch.long))


def test_left_padding_with_its_own_positions_pools_the_first_visible_token(
    tiny_config: CaptionBertConfig,
) -> None:
    for position_type, pooling in VARIANTS:
        model = build(tiny_config, position_type=position_type, pooling=pooling)
        ids, mask = batch([5], model.config.vocab_size)
        left, left_mask = (torch.nn.functional.pad(x, (3, 0)) for x in (ids, mask))
        places = torch.tensor([[0, 0, 0, 0, 1, 2, 3, 4]])
        with torch.no_grad():
            found = model(left, left_mask, position_ids=places).pooler_output
            torch.testing.assert_close(found, model(ids).pooler_output, atol=2e-6, rtol=0)


def test_attention_looks_both_ways(tiny_config: CaptionBertConfig) -> None:
    # Without a mask the library's sdpa attends causally unless the module says otherwise.
    for implementation in ("sdpa", "eager"):
        model = build(tiny_config)
        model.set_attn_implementation(implementation)
        assert model.config._attn_implementation == implementation
        ids, _ = batch([8], model.config.vocab_size)
        changed = ids.clone()
        changed[0, -1] = ids[0, -1] - 1 if ids[0, -1] > 6 else ids[0, -1] + 1
        first, second = (model(x).last_hidden_state[0, 0] for x in (ids, changed))
        assert float((first - second).abs().max()) > 1e-4, implementation


@pytest.mark.parametrize("implementation", ["eager", "flex_attention"])
def test_attention_backends_agree(tiny_config: CaptionBertConfig, implementation: str) -> None:
    model = build(tiny_config)
    ids, mask = batch([9, 4], model.config.vocab_size)
    with torch.no_grad():
        expected = model(ids, mask).last_hidden_state
        model.set_attn_implementation(implementation)
        found = model(ids, mask).last_hidden_state
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], atol=1e-5, rtol=0)


def test_attentions_and_hidden_states(tiny_config: CaptionBertConfig) -> None:
    model = build(tiny_config)
    ids, mask = batch([9, 4], model.config.vocab_size)
    with torch.no_grad():
        output = model(ids, mask, output_attentions=True, output_hidden_states=True)
        plain = model(ids, mask)
    assert len(output.attentions) == 2
    assert output.attentions[0].shape == (2, 2, 9, 9)
    torch.testing.assert_close(output.attentions[0].sum(-1), torch.ones(2, 2, 9))
    assert float(output.attentions[0][1, :, :, 4:].max()) == 0.0
    assert len(output.hidden_states) == 3
    torch.testing.assert_close(model.final_norm(output.hidden_states[-1]), output.last_hidden_state)
    torch.testing.assert_close(output.pooler_output, plain.pooler_output, atol=1e-6, rtol=0)
    assert plain.attentions is None
    assert plain.hidden_states is None
    tuple_form = model(ids, mask, return_dict=False)
    assert torch.equal(tuple_form[1], plain.pooler_output)


def test_attention_weights_equal_half_split_rotation_by_hand(tiny_config: CaptionBertConfig) -> None:
    # The convention of the checkpoint: plane i of a head is coordinates (i, i + P), whatever is fast to compute.
    model = build(tiny_config)
    ids, _ = batch([7], model.config.vocab_size)
    with torch.no_grad():
        output = model(ids, output_attentions=True, output_hidden_states=True)
        layer = model.layers[0]
        qkv = layer.attention.qkv(layer.attention_norm(output.hidden_states[0]))[0].double()  # [7, 96]
        query, key = (x.reshape(7, 2, 16).transpose(0, 1) for x in qkv[:, :64].split(32, dim=1))  # [2, 7, 16]
        angles = torch.arange(7)[:, None] * 10_000.0 ** (-torch.arange(8).double() / 8)  # [7, 8]

        def turn(x: torch.Tensor) -> torch.Tensor:
            a, b = x[..., :8], x[..., 8:]
            return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)

        weights = (turn(query) @ turn(key).transpose(1, 2) / 4).softmax(-1)
    torch.testing.assert_close(output.attentions[0][0].double(), weights, atol=1e-5, rtol=0)


def test_a_replaced_or_hooked_projection_is_called(tiny_config: CaptionBertConfig) -> None:
    # The fast forms read weights; an adapter, a quantiser or offloading changes what a call does instead.
    class Doubled(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    ids, _ = batch([7], tiny_config.vocab_size)
    for dtype in (torch.float32, torch.bfloat16):
        model = build(tiny_config).to(dtype)
        with torch.no_grad():
            plain = model(ids).pooler_output
            calls: list[int] = []
            for layer in model.layers:
                for linear in (layer.attention.qkv, layer.attention.output, layer.feed_forward.up):
                    linear.register_forward_hook(lambda *_, calls=calls: calls.append(1))
            torch.testing.assert_close(
                model(ids).pooler_output, plain, atol=1e-6 if dtype == torch.float32 else 2e-2, rtol=0
            )
            assert len(calls) == 6
            for layer in model.layers:
                layer.attention.qkv.__class__ = layer.feed_forward.up.__class__ = Doubled
            assert float((model(ids).pooler_output - plain).abs().max()) > 1e-2


def test_a_replaced_head_layer_is_called(tiny_config: CaptionBertConfig) -> None:
    class Shifted(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 1

    ids, _ = batch([7], tiny_config.vocab_size)
    for dtype in (torch.float32, torch.bfloat16):
        model = build(tiny_config).to(dtype)
        with torch.no_grad():
            plain = model(ids).pooler_output
            model.projection.dense.__class__ = Shifted
            changed = model(ids).pooler_output
        assert changed.dtype == torch.float32
        assert float((changed - plain).abs().max()) > 1e-2


def test_added_scores_and_empty_rows_are_refused_as_masks(tiny_config: CaptionBertConfig) -> None:
    model = build(tiny_config)
    ids, mask = batch([5], model.config.vocab_size)
    with pytest.raises(ValueError, match="not added scores"):
        model(ids, (1.0 - mask.float()) * -1e9 - 1)
    assert torch.equal(model(ids, mask.float()).pooler_output, model(ids, mask).pooler_output)
    with pytest.raises(ValueError, match="an input of 0 rows of 5 tokens"):
        model(torch.zeros(0, 5, dtype=torch.long))
    with pytest.raises(ValueError, match="an input of 2 rows of 0 tokens"):
        model(torch.zeros(2, 0, dtype=torch.long))


def test_bf16_runs_on_processors_without_bf16_instructions(tmp_path: Path) -> None:
    code = (
        "import torch\n"
        "from captionbert.configuration_captionbert import CaptionBertConfig\n"
        "from captionbert.modeling_captionbert import CaptionBertModel\n"
        "config = CaptionBertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,\n"
        "    intermediate_size=64, projection_dim=24, max_position_embeddings=32, position_type='rotary')\n"
        "model = CaptionBertModel(config).bfloat16().eval()\n"
        "with torch.inference_mode(): model.forward_packed(torch.tensor([5, 6, 7]), [3])\n"
    )
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]


def test_a_mask_is_derived_from_the_padding_id(tiny_config: CaptionBertConfig) -> None:
    model = build(tiny_config)
    ids, mask = batch([9, 4], model.config.vocab_size)
    assert torch.equal(model(ids).pooler_output, model(ids, mask).pooler_output)


@pytest.mark.parametrize(("position_type", "pooling"), VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_all_padding_row_is_finite_and_leaves_the_others_alone(
    tiny_config: CaptionBertConfig, position_type: str, pooling: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = build(tiny_config, position_type=position_type, pooling=pooling).to(dtype)
    ids, mask = batch([9, 4, 5], model.config.vocab_size)
    mask[1] = 0
    with torch.no_grad():
        vectors = model(ids, mask).pooler_output
        others = model(ids[[0, 2]], mask[[0, 2]]).pooler_output
    assert torch.isfinite(vectors).all()
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(vectors[[0, 2]], others, atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=0)


def test_left_padding_is_equal_where_supported_and_refused_elsewhere(tiny_config: CaptionBertConfig) -> None:
    for position_type, pooling in VARIANTS:
        model = build(tiny_config, position_type=position_type, pooling=pooling)
        ids, mask = batch([5], model.config.vocab_size)
        left = torch.nn.functional.pad(ids, (3, 0))
        left_mask = torch.nn.functional.pad(mask, (3, 0))
        if model.config.supports_left_padding:
            torch.testing.assert_close(
                model(left, left_mask).pooler_output, model(ids).pooler_output, atol=2e-6, rtol=0
            )
        else:
            with pytest.raises(ValueError, match=r"left padding is not supported .* pad on the right"):
                model(left, left_mask)


def test_ids_and_lengths_are_checked_before_the_kernel(tiny_config: CaptionBertConfig) -> None:
    model = build(tiny_config)
    vocab = model.config.vocab_size
    for bad in (vocab, -1):
        with pytest.raises(ValueError, match=rf"token id {bad} is outside the vocabulary of {vocab}"):
            model(torch.tensor([[5, bad]]), torch.ones(1, 2))
    long = torch.full((1, 129), 5)
    for call in (lambda: model(long), lambda: model.forward_packed(long[0], [129])):
        with pytest.raises(ValueError, match=r"129 tokens is longer than the 128 positions .* truncate"):
            call()
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model()
    with pytest.raises(ValueError, match="attention_mask has shape"):
        model(torch.tensor([[5, 6]]), torch.ones(1, 3))
    with pytest.raises(ValueError, match="lengths must be positive"):
        model.forward_packed(torch.tensor([5, 6]), [1])


def test_embeddings_can_be_given_instead_of_ids(tiny_config: CaptionBertConfig) -> None:
    model = build(tiny_config)
    ids, _ = batch([6], model.config.vocab_size)
    embedded = model.get_input_embeddings()(ids)
    assert torch.equal(model(inputs_embeds=embedded).pooler_output, model(ids).pooler_output)


def test_attention_pooling_is_born_as_the_exact_mean(tiny_config: CaptionBertConfig) -> None:
    vectors = {}
    ids, mask = batch([9, 4], tiny_config.vocab_size)
    for pooling in ("mean", "attention"):
        torch.manual_seed(0)
        fields = {k: v for k, v in tiny_config.to_dict().items() if k in CaptionBertConfig().__dict__}
        model = CaptionBertModel(CaptionBertConfig(**fields | {"pooling": pooling})).eval()
        vectors[pooling] = model(ids, mask).pooler_output
        if pooling == "attention":
            assert not model.pooling.query.any()
            torch.nn.init.normal_(model.pooling.query)
            assert float((model(ids, mask).pooler_output - vectors["mean"]).abs().max()) > 1e-3
    torch.testing.assert_close(vectors["attention"], vectors["mean"], atol=1e-6, rtol=0)


def test_large_half_precision_states_pool_without_overflow(tiny_config: CaptionBertConfig) -> None:
    model = build(tiny_config, max_position_embeddings=8192)
    with torch.no_grad():
        model.final_norm.bias.fill_(12.0)  # 8,192 x 12 is past the fp16 range
        model.half()
        vectors = model(torch.full((1, 8192), 6)).pooler_output
    assert torch.isfinite(vectors).all()
    assert float(vectors.norm()) == pytest.approx(1.0, abs=1e-6)


def test_gradient_checkpointing_changes_no_gradient(tiny_config: CaptionBertConfig) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = build(tiny_config).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
            assert all(layer.gradient_checkpointing for layer in model.layers)
        ids, mask = batch([9, 4], model.config.vocab_size)
        model(ids, mask).pooler_output[:, 0].sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1])
    for a, b in zip(*gradients):
        assert torch.equal(a, b)


@pytest.mark.parametrize("short_row", [128, 5])
def test_packed_gradients_equal_padded_ones(
    tiny_config: CaptionBertConfig, monkeypatch: pytest.MonkeyPatch, short_row: int
) -> None:
    monkeypatch.setattr("captionbert.attention_captionbert.SHORT_ROW", short_row)
    model = build(tiny_config).train()
    ids, mask = batch([9, 9, 4, 2], model.config.vocab_size)
    gradients = []
    for vectors in (model(ids, mask).pooler_output, model.forward_packed(ids[mask.bool()], [9, 9, 4, 2])):
        model.zero_grad()
        (vectors * torch.linspace(-1, 1, vectors.numel()).view_as(vectors)).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected, atol=1e-5, rtol=1e-4, msg=name)


def test_forward_writes_nothing_to_the_module(tiny_config: CaptionBertConfig) -> None:
    model = build(tiny_config)
    ids, mask = batch([9, 4], model.config.vocab_size)

    def state() -> dict:
        return {name: {k: id(v) for k, v in m.__dict__.items()} for name, m in model.named_modules()}

    before, tensors = state(), {k: v.clone() for k, v in model.state_dict().items()}
    model(ids, mask)
    assert state() == before
    assert all(torch.equal(v, tensors[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_saved_model_comes_back_bit_equal(
    tiny_config: CaptionBertConfig, tmp_path: Path, dtype: torch.dtype
) -> None:
    model = build(tiny_config).to(dtype)
    model.save_pretrained(tmp_path)
    again, info = CaptionBertModel.from_pretrained(tmp_path, dtype=dtype, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    ids, mask = batch([9, 4], model.config.vocab_size)
    with torch.no_grad():
        assert torch.equal(again.eval()(ids, mask).pooler_output, model(ids, mask).pooler_output)


def test_half_precision_load_computes_angles_in_fp32(tiny_config: CaptionBertConfig, tmp_path: Path) -> None:
    # Frequencies made under a bf16 default dtype would move far positions by whole turns.
    model = build(tiny_config, max_position_embeddings=8192)
    model.save_pretrained(tmp_path)
    half = CaptionBertModel.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    ids = torch.randint(5, model.config.vocab_size, (1, 3000), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        cosine = float((half(ids).pooler_output * model(ids).pooler_output).sum())
    assert cosine > 0.999
