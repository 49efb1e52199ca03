"""The model with structured positions against attention worked out by hand from rotary_reference.py.

Which head takes key phases, which keys are held to the record norm, what a pointer query reads, what moves no vector.
"""

import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from captionbert import attention_captionbert as attention
from captionbert.attention_captionbert import PointerQueries
from captionbert.configuration_captionbert import CaptionBertConfig, write_bitmap
from captionbert.modeling_captionbert import CaptionBertModel

_spec = importlib.util.spec_from_file_location(
    "rotary_reference", Path(__file__).with_name("rotary_reference.py")
)
assert _spec is not None
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)  # type: ignore[union-attr]

VOCABULARY, CLS, SEP = 60, 2, 3
SPECIAL, BOUNDARY, PIECES = range(5), (5, 6), range(40, 60)  # 7..39 are plain words
LAYER, HEAD = 2, 1  # the designated head: not the first of anything
HEADS = [(layer, head) for layer in (1, 2, 3) for head in (0, 1)]
FORMS = {
    "hierarchical": {"binding": "none"},
    "key-endings": {"binding": "endings", "record_norm": 2.18},
    "key-pieces": {"binding": "pieces", "record_norm": 2.18},
    "no-norm": {"binding": "pieces"},
    "zero-phases": {"binding": "pieces", "record_norm": 2.18, "lexical_phases": False},
    "still-addresses": {"binding": "endings", "record_norm": 1.0, "rotate_addresses": False},
    "base-four": {"binding": "pieces", "address_base": 4, "address_digits": 2, "position_frequencies": [0.5]},
}


def build(form: str = "key-pieces", **changes: object) -> CaptionBertModel:
    """A tiny seeded model of two heads of 32; weights larger than at birth, so that mistakes show."""
    torch.manual_seed(0)
    config = CaptionBertConfig(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "intermediate_size": 96,
            "projection_dim": 24,
            "max_position_embeddings": 2048,
            "position_type": "structured",
            "boundary_token_ids": list(BOUNDARY),
            "special_token_ids": list(SPECIAL),
            "continuation_bitmap": write_bitmap([i in PIECES for i in range(VOCABULARY)]),
            "hash_seed": 7,
            "lookup_layer": LAYER,
            "lookup_head": HEAD,
            **FORMS[form],
            **changes,
        }
    )
    model = CaptionBertModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model


def rules_of(config: CaptionBertConfig):
    """The reference's rules for the tiny vocabulary and a model's config as it is now."""
    position = tuple(config.position_frequencies)
    return reference.Rules(
        boundary=frozenset(BOUNDARY),
        special=frozenset(SPECIAL),
        continuation=frozenset(PIECES),
        frequencies=position,
        base=config.address_base,
        digits=config.address_digits,
        seed=config.hash_seed,
        content_planes=16 - len(position) - config.address_digits * config.address_base // 2,
        binding=config.binding,
        lexical_phases=config.lexical_phases,
        rotate_addresses=config.rotate_addresses,
    )


def captions(
    lengths: list[int], width: int | None = None, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [B, T] with repeated words of several pieces and a few boundaries, [CLS] and [SEP] around; and visibility."""
    dice = np.random.default_rng(seed)
    words = [[7], [8, 40], [9, 41, 42], [8, 41], [40], [5], [6], [1]]  # a lone ## piece, boundaries, [UNK]
    ids = torch.zeros(len(lengths), width or max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        inner: list[int] = []
        while len(inner) < length - 2:
            inner += words[dice.integers(len(words))]
        ids[row, :length] = torch.tensor([CLS, *inner[: length - 2], SEP])
    return ids, ids != 0


def every_query(visible: torch.Tensor, heads: list[tuple[int, int]] | None = None) -> PointerQueries:
    """A pointer query at every visible token, in no order."""
    places = visible.nonzero()
    places = places[torch.randperm(len(places), generator=torch.Generator().manual_seed(0))]
    return PointerQueries(*places.unbind(1), heads)


def array(parameter: torch.Tensor) -> np.ndarray:
    """A parameter in float64."""
    return parameter.detach().double().numpy()


def normalised(x: np.ndarray, norm: torch.nn.LayerNorm) -> np.ndarray:
    """LayerNorm of [..., D] in float64."""
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + norm.eps)
    return x * array(norm.weight) + array(norm.bias)


def by_hand(model: CaptionBertModel, before: torch.Tensor, ids: list[int], layer: int) -> np.ndarray:
    """Attention [H, T, T] of one caption in `layer` (from 1), from that layer's input [T, D], in float64."""
    law = rules_of(model.config)
    block = model.layers[layer - 1]
    x = normalised(before.double().numpy(), block.attention_norm)
    qkv = x @ array(block.attention.qkv.weight).T + array(block.attention.qkv.bias)
    visible = [token != 0 for token in ids]
    records = reference.records_of(ids, reference.words_of(ids, visible, law))
    weights = []
    for head in (0, 1):
        designated = (layer, head) == (model.config.lookup_layer, model.config.lookup_head)
        angles = reference.row_angles(ids, visible, law, designated)
        queries, keys = qkv[:, 32 * head : 32 * head + 32], qkv[:, 64 + 32 * head : 96 + 32 * head]
        turned_keys = [reference.turned(k, a) for k, a in zip(keys.tolist(), angles)]
        if designated and model.config.record_norm is not None:
            for place in records:
                turned_keys[place] = reference.held(turned_keys[place], model.config.record_norm)
        turned_queries = [reference.turned(q, a) for q, a in zip(queries.tolist(), angles)]
        weights.append([reference.attention_row(q, turned_keys, visible) for q in turned_queries])
    return np.array(weights)


@pytest.mark.parametrize("form", FORMS)
def test_attention_of_every_head_is_that_worked_out_by_hand(form: str) -> None:
    model = build(form)
    ids, visible = captions([19, 12])
    with torch.no_grad():
        output = model(ids, visible, output_attentions=True, output_hidden_states=True)
    for layer in (1, 2, 3):
        for row in range(2):
            expected = by_hand(model, output.hidden_states[layer - 1][row], ids[row].tolist(), layer)
            found = output.attentions[layer - 1][row].double().numpy()
            shown = visible[row].numpy()
            np.testing.assert_allclose(
                found[:, shown], expected[:, shown], atol=2e-5, err_msg=f"layer {layer}"
            )


@pytest.mark.parametrize("form", FORMS)
def test_pointers_are_the_logarithm_of_attention(form: str) -> None:
    model = build(form)
    ids, visible = captions([19, 12, 5])
    queries = every_query(visible, HEADS)
    with torch.no_grad():
        output = model(ids, visible, output_attentions=True, pointer_queries=queries)
        fused = model(ids, visible, pointer_queries=queries).pointer_log_probs
        designated = model(ids, visible, pointer_queries=every_query(visible)).pointer_log_probs
    assert output.pointer_log_probs.shape == (6, len(queries.rows), 19)
    assert output.pointer_log_probs.dtype == torch.float32
    for k, (layer, head) in enumerate(HEADS):
        weights = output.attentions[layer - 1][queries.rows, head, queries.positions]
        torch.testing.assert_close(output.pointer_log_probs[k].exp(), weights, atol=2e-6, rtol=0)
    torch.testing.assert_close(fused.exp(), output.pointer_log_probs.exp(), atol=2e-5, rtol=0)
    assert designated.shape[0] == 1
    torch.testing.assert_close(designated[0], fused[HEADS.index((LAYER, HEAD))], atol=1e-5, rtol=0)
    hidden = ~visible[queries.rows]
    assert bool((fused[:, hidden] < -1e30).all())
    assert bool(fused.isfinite().all())


@pytest.mark.parametrize("form", FORMS)
def test_packed_agrees_with_padded(form: str) -> None:
    model = build(form)
    lengths = [19, 12, 12, 3, 2]
    ids, visible = captions(lengths)
    queries = every_query(visible, HEADS)
    queries = PointerQueries(queries.rows[:20], queries.positions[:20], HEADS)
    with torch.no_grad():
        padded = model(ids, visible, pointer_queries=queries)
        vectors, pointers = model.forward_packed(ids[visible], lengths, pointer_queries=queries)
        alone = model.forward_packed(ids[visible], lengths)
    torch.testing.assert_close(vectors, padded.pooler_output, atol=2e-6, rtol=0)
    assert torch.equal(alone, vectors)
    shown = visible[queries.rows]
    torch.testing.assert_close(pointers[:, shown], padded.pointer_log_probs[:, shown], atol=5e-5, rtol=0)
    assert bool((pointers[:, ~shown] < -1e30).all())
    assert bool(pointers.isfinite().all())


@pytest.mark.parametrize("field", ["hash_seed", "record_norm", "binding", "lexical_phases"])
def test_only_the_designated_head_is_touched(field: str) -> None:
    model = build()
    ids, visible = captions([19, 12])
    other = {"hash_seed": 8, "record_norm": None, "binding": "none", "lexical_phases": False}[field]
    with torch.no_grad():
        before = model(ids, visible, output_attentions=True).attentions
        setattr(model.config, field, other)
        if field == "binding":
            model.config.record_norm = None
        after = model(ids, visible, output_attentions=True).attentions
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1][:, 1 - HEAD], after[1][:, 1 - HEAD])
    assert float((before[1][:, HEAD] - after[1][:, HEAD]).abs().max()) > 1e-3


def keys_seen(
    model: CaptionBertModel, ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> list[torch.Tensor]:
    """Lengths [B, H, T, planes] of the key pairs that each layer attends with."""
    seen, eager = [], attention.eager_attention

    def spy(module, query, key, *rest, **more):
        seen.append(key.unflatten(-1, (-1, 2)).norm(dim=-1))
        return eager(module, query, key, *rest, **more)

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(attention, "eager_attention", spy)
        model(ids, ids != 0, output_attentions=True)
    return seen


def test_record_norm_holds_record_keys_of_the_designated_head(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    ids, visible = captions([19, 12])
    records = torch.zeros_like(visible)
    for row in range(2):
        law = rules_of(model.config)
        words = reference.words_of(ids[row].tolist(), visible[row].tolist(), law)
        records[row, reference.records_of(ids[row].tolist(), words)] = True
    with_norm = keys_seen(model, ids, monkeypatch)
    model.config.record_norm = None
    without = keys_seen(model, ids, monkeypatch)
    held = with_norm[LAYER - 1][:, HEAD]
    assert 4 < records.sum() < visible.sum()
    torch.testing.assert_close(held[records], torch.full_like(held[records], 2.18), atol=1e-5, rtol=0)
    assert float((without[LAYER - 1][:, HEAD][records] - 2.18).abs().min(dim=1).values.max()) > 1e-3
    assert torch.equal(held[~records], without[LAYER - 1][:, HEAD][~records])
    assert torch.equal(with_norm[LAYER - 1][:, 1 - HEAD], without[LAYER - 1][:, 1 - HEAD])
    assert torch.equal(with_norm[0], without[0])


def test_value_addresses_start_inert() -> None:
    torch.manual_seed(0)
    model = CaptionBertModel(build().config).eval()
    assert model.embeddings.address_values.shape == (3, 8, 64)
    assert not bool(model.embeddings.address_values.any())
    ids, visible = captions([19, 12])
    with torch.no_grad():
        with_tables = model(ids, visible)
        model.embeddings.address_values = None
        without = model(ids, visible)
    assert torch.equal(with_tables.last_hidden_state, without.last_hidden_state)
    assert torch.equal(with_tables.pooler_output, without.pooler_output)


def test_value_addresses_are_added_to_tokens_with_a_segment_alone() -> None:
    model = build("hierarchical")
    embeddings, law = model.embeddings, rules_of(model.config)
    ids = torch.tensor([[CLS, *[5, 7] * 530, SEP, 0, 0]])  # more segments than addresses
    visible = ids != 0
    tables = embeddings.address_values.detach().double().tolist()
    with torch.no_grad():
        found = model(ids, visible, output_hidden_states=True).hidden_states[0][0]
        embeddings.address_values.zero_()
        bare = model(ids, visible, output_hidden_states=True).hidden_states[0][0]
    segments = reference.segments_of(ids[0].tolist(), visible[0].tolist(), law)
    addressed = torch.tensor([s is not None and s < 512 for s in segments])
    assert int(addressed.sum()) == 1023
    assert torch.equal(found[~addressed], bare[~addressed])
    assert float((found - bare)[addressed].abs().amax(1).min()) > 0.05
    words = array(embeddings.word_embeddings.weight)
    for place in (1, 2, 3, 100, 777, 1022, 1023, 1024, 1061):
        x = words[ids[0, place]] + np.array(
            reference.value_sum(reference.address_of(segments[place], law), tables, law)
        )
        np.testing.assert_allclose(
            found[place], normalised(x, embeddings.norm), atol=1e-5, err_msg=str(place)
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", ["hierarchical", "key-pieces"])
def test_pointers_are_finite_in_half_precision_with_padding(form: str, dtype: torch.dtype) -> None:
    model = build(form)
    ids, visible = captions([19, 12, 2], width=24)
    queries = every_query(visible, HEADS)
    with torch.no_grad():
        exact = model(ids, visible, pointer_queries=queries)
        model.to(dtype)
        for attentions in (False, True):
            output = model(ids, visible, pointer_queries=queries, output_attentions=attentions)
            found = output.pointer_log_probs
            assert found.dtype == torch.float32
            assert bool(found.isfinite().all())
            assert bool((found[:, ~visible[queries.rows]] < -1e30).all())
            torch.testing.assert_close(found.exp().sum(-1), torch.ones(found.shape[:2]), atol=1e-4, rtol=0)
            assert bool(output.pooler_output.isfinite().all())
            cosine = (output.pooler_output * exact.pooler_output).sum(-1)
            assert float(cosine.min()) > 0.995
            error = (found.exp() - exact.pointer_log_probs.exp()).abs()
            assert float(error.max()) < (0.02 if dtype == torch.float16 else 0.15)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_pointers_are_finite_under_autocast_with_their_gradients(dtype: torch.dtype) -> None:
    model = build()
    ids, visible = captions([19, 12], width=24)
    with torch.autocast("cpu", dtype=dtype):
        output = model(ids, visible, pointer_queries=every_query(visible))
    assert output.pointer_log_probs.dtype == torch.float32
    loss = -output.pointer_log_probs[0, :, 1].mean() + output.pooler_output.square().sum()
    loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("form", FORMS)
def test_added_right_padding_moves_nothing(form: str) -> None:
    model = build(form)
    ids, visible = captions([19, 12])
    wide = torch.nn.functional.pad(ids, (0, 40))
    garbage = wide.clone()
    garbage[:, 19:] = torch.tensor([7, 8, 40, 5] * 10)  # hidden boundaries and pieces must not count
    mask = torch.nn.functional.pad(visible, (0, 40))
    queries = every_query(visible)
    with torch.no_grad():
        short = model(ids, visible, pointer_queries=queries)
        for longer in (wide, garbage):
            long = model(longer, mask, pointer_queries=queries)
            torch.testing.assert_close(long.pooler_output, short.pooler_output, atol=2e-6, rtol=0)
            states = long.last_hidden_state[:, :19][visible]
            torch.testing.assert_close(states, short.last_hidden_state[visible], atol=2e-5, rtol=0)
            seen = long.pointer_log_probs[:, :, :19].exp()
            torch.testing.assert_close(seen, short.pointer_log_probs.exp(), atol=1e-5, rtol=0)
            assert not bool(long.pointer_log_probs[:, :, 19:].exp().any())


@pytest.mark.parametrize("form", FORMS)
def test_a_caption_alone_has_the_vector_that_it_has_in_a_batch(form: str) -> None:
    model = build(form)
    lengths = [19, 12, 7]
    ids, visible = captions(lengths)
    with torch.no_grad():
        together = model(ids, visible).pooler_output
        alone = torch.cat([model(ids[i : i + 1, :n]).pooler_output for i, n in enumerate(lengths)])
    torch.testing.assert_close(alone, together, atol=2e-6, rtol=0)
    assert float((together[0] - together[1]).abs().max()) > 1e-2


def left(ids: torch.Tensor, by: int) -> torch.Tensor:
    return torch.nn.functional.pad(ids, (by, 0))


def test_left_padding_warns_once_and_is_an_error_when_strict() -> None:
    model = build()
    ids, _ = captions([19])
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        right = model(ids).pooler_output
        assert not caught
        vectors = [model(left(ids, by)).pooler_output for by in (3, 3, 5)]
    assert [str(w.message).split(" ")[:2] for w in caught] == [["left", "padding"]]
    assert all(1e-6 < float((v - right).abs().max()) < 0.5 for v in vectors)
    model.config.strict = True
    with pytest.raises(ValueError, match="left padding"):
        model(left(ids, 3))


def test_left_padding_moves_nothing_without_a_binding() -> None:
    model = build("hierarchical", strict=True)
    ids, _ = captions([19])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        moved, right = model(left(ids, 7)).pooler_output, model(ids).pooler_output
    torch.testing.assert_close(moved, right, atol=2e-6, rtol=0)


def test_left_padding_moves_nothing_where_positions_are_given() -> None:
    model = build(strict=True)
    ids, _ = captions([19])
    places = (torch.arange(26)[None] - 7).clamp_min(0)
    with torch.no_grad():
        moved = model(left(ids, 7), position_ids=places).pooler_output
        right = model(ids).pooler_output
    torch.testing.assert_close(moved, right, atol=2e-6, rtol=0)


def test_embeddings_without_ids_are_refused() -> None:
    model = build("hierarchical")
    with pytest.raises(ValueError, match=r"structured positions read the token ids"):
        model(inputs_embeds=torch.zeros(1, 4, 64))


@pytest.mark.parametrize("form", ["hierarchical", "key-endings", "key-pieces"])
@pytest.mark.parametrize("reentrant", [False, True])  # True is the default of transformers 4
def test_gradient_checkpointing_gives_equal_gradients(form: str, reentrant: bool) -> None:
    ids, visible = captions([19, 12])
    gradients = []
    for checkpointing in (False, True):
        model = build(form).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        output = model(ids, visible, pointer_queries=every_query(visible))
        assert output.pointer_log_probs.requires_grad
        (output.pooler_output[:, 0].sum() - output.pointer_log_probs[0, :, 1].mean()).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient is not None, name
        assert torch.equal(gradient, gradients[1][name]), name


@pytest.mark.parametrize("ambient", [torch.bfloat16, torch.float64])
def test_the_default_dtype_changes_nothing(ambient: torch.dtype) -> None:
    model = build()
    ids, visible = captions([19, 12])
    queries, default = every_query(visible, HEADS), torch.get_default_dtype()
    with torch.no_grad():
        plain = model(ids, visible, pointer_queries=queries)
        torch.set_default_dtype(ambient)
        try:
            found = model(ids, visible, pointer_queries=queries)
        finally:
            torch.set_default_dtype(default)
    assert torch.equal(found.pooler_output, plain.pooler_output)
    assert torch.equal(found.pointer_log_probs, plain.pointer_log_probs)


def test_narrower_ids_give_the_same_vectors() -> None:
    model = build()
    ids, visible = captions([19, 12])
    with torch.no_grad():
        assert torch.equal(model(ids.int(), visible).pooler_output, model(ids, visible).pooler_output)


def test_no_query_is_an_answer_without_rows() -> None:
    model = build()
    ids, visible = captions([19, 12])
    none = torch.zeros(0, dtype=torch.long)
    output = model(ids, visible, pointer_queries=PointerQueries(none, none))
    assert output.pointer_log_probs.shape == (1, 0, 19)
    assert model.forward_packed(ids[visible], [19, 12], PointerQueries(none, none))[1].shape == (1, 0, 19)


def test_a_row_of_padding_alone_is_finite() -> None:
    model = build()
    ids, _ = captions([19, 12])
    ids[1] = 0
    with torch.no_grad():
        output = model(ids, torch.zeros_like(ids))
    assert bool(output.pooler_output.isfinite().all())
    torch.testing.assert_close(output.pooler_output.norm(dim=1), torch.ones(2), atol=1e-6, rtol=0)


def saved(folder: Path) -> CaptionBertModel:
    """A small whole-key model, saved in `folder`."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64}
    model = CaptionBertModel(CaptionBertConfig.from_preset("whole-key-lookup-mini", **sizes)).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"rotate_addresses": False}, "position_identity"),
        ({"lexical_phases": False}, "position_identity"),
        ({"record_norm": 9.0}, "position_identity"),
        ({"record_norm": -1.0}, "record_norm must be a positive length"),
        ({"position_frequencies": [float("nan"), 0.01]}, "position_frequencies holds nan"),
        ({"position_frequencies": [1e39, 0.01]}, "position_frequencies holds 1e"),
        ({"continuation_bitmap": "AAAA"}, "continuation_bitmap is not what write_bitmap gives"),
        ({"position_type": "rotary"}, "is read by structured positions only"),
        ({"strict": "yes"}, "strict must be true or false"),
    ],
)
def test_weights_are_refused_under_other_positions(tmp_path: Path, override: dict, message: str) -> None:
    saved(tmp_path)
    with pytest.raises(ValueError, match=message):
        CaptionBertModel.from_pretrained(tmp_path, **override)


def test_weights_without_a_position_identity_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["position_identity"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="do not carry a position_identity"):
        CaptionBertModel.from_pretrained(tmp_path)


def test_equal_meanings_have_one_identity_and_averaging_keeps_it(tmp_path: Path) -> None:
    model = saved(tmp_path)
    fields = model.config.to_dict() | {
        "boundary_token_ids": [1029, 1012, 999, 1025],
        "position_frequencies": [1, 0.01],
    }
    assert CaptionBertConfig(**fields).position_digest == model.config.position_digest
    averaged = {name: 0.5 * tensor + 0.5 * tensor for name, tensor in model.state_dict().items()}
    model.load_state_dict(averaged)
    other = CaptionBertModel(CaptionBertConfig(**fields | {"hash_seed": 5}))
    with pytest.raises(ValueError, match="position_identity"):
        other.load_state_dict(averaged)


def test_weights_without_their_identity_are_refused_by_hand_too(tmp_path: Path) -> None:
    model = saved(tmp_path)
    weights = model.state_dict()
    bare = {name: tensor for name, tensor in weights.items() if name != "position_identity"}
    for strict in (True, False):
        with pytest.raises(ValueError, match="the weights do not carry a position_identity"):
            model.load_state_dict(bare, strict=strict)
    whole = torch.nn.ModuleDict({"encoder": model, "head": torch.nn.Linear(2, 2)})
    with pytest.raises(ValueError, match="the weights do not carry a position_identity"):
        whole.load_state_dict({f"encoder.{name}": tensor for name, tensor in bare.items()}, strict=False)
    whole.load_state_dict(
        {"head.bias": torch.ones(2)}, strict=False
    )  # nothing of the encoder: nothing to refuse
    table = "embeddings.word_embeddings.weight"
    model.load_state_dict({table: weights[table]}, strict=False)
    plain = CaptionBertModel(CaptionBertConfig.from_preset("captionbert-mini", num_hidden_layers=1))
    weights = {"position_identity": weights["position_identity"], **plain.state_dict()}
    with pytest.raises(ValueError, match=r"the weights carry a position_identity.*'rotary'"):
        plain.load_state_dict(weights, strict=False)


def test_tokens_added_later_are_words_of_their_own(tmp_path: Path) -> None:
    model = saved(tmp_path)
    model.resize_token_embeddings(30_600)
    model.save_pretrained(tmp_path / "larger")
    again = CaptionBertModel.from_pretrained(tmp_path / "larger").eval()
    ids = torch.tensor([[101, 30_590, 2000, 30_590, 102]])
    assert torch.equal(again(ids).pooler_output, model(ids).pooler_output)
