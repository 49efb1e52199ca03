"""One step: the same loss and gradients however the batch is cut, and what fp16 does when a gradient
overflows.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from captionbert.artifacts.errors import InputError
from captionbert.benchmarks import batch_equivalence
from captionbert.encoding_captionbert import batch_vectors
from captionbert.probes.word_records import LookupTargets
from captionbert.recipes import LossSection
from captionbert.training.batches import StepBatch
from captionbert.training.losses import SharedForwardError
from captionbert.training.step import (
    MAX_SKIPS,
    LossScale,
    StepSettings,
    adam,
    backward_gradients,
    clip_and_unscale,
    take_step,
)
from captionbert.training.student import pointing_encode

CPU = torch.device("cpu")
SETTINGS = StepSettings(LossSection(), 1.0, "fp32", 64, padded=False)
SYMMETRIC = LossSection(symmetric=True)
LOSSES = pytest.mark.parametrize("loss", batch_equivalence.LOSSES.values(), ids=batch_equivalence.LOSSES)


@pytest.fixture
def pointing_model():
    """A seeded tiny model with a designated head."""
    return batch_equivalence.make_model("whole-key-lookup-mini", tiny=True)


def make_batch(rows: int, vocabulary: int, width: int) -> StepBatch:
    return batch_equivalence.make_batch(rows, vocabulary, width, slice(None))


def gradient_of(model, batch: StepBatch, settings: StepSettings, **options) -> torch.Tensor:
    model.zero_grad()
    sums = backward_gradients(pointing_encode(model), batch, settings, device=CPU, **options)
    return torch.cat([sums.float()] + [p.grad.reshape(-1) for p in model.parameters()])


@LOSSES
@pytest.mark.parametrize("padded", [False, True])
def test_micro_batches_do_not_change_loss_or_gradient(tiny_model, loss: LossSection, padded: bool) -> None:
    batch = make_batch(64, tiny_model.config.vocab_size, tiny_model.config.projection_dim)
    settings = replace(SETTINGS, loss=loss, padded=padded)
    whole = gradient_of(tiny_model, batch, replace(settings, micro_batch_tokens=1 << 20))
    cut = gradient_of(tiny_model, batch, settings)
    assert float((whole - cut).abs().max() / whole.abs().max()) < 1e-6


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_micro_batches_do_not_change_the_lookup_loss(pointing_model, symmetric: bool, padded: bool) -> None:
    config = pointing_model.config
    batch = batch_equivalence.make_batch(
        64, config.vocab_size, config.projection_dim, slice(None), lookup=True
    )
    loss = LossSection(symmetric=symmetric, lookup_weight=0.1)
    settings = replace(SETTINGS, loss=loss, padded=padded)
    whole = gradient_of(pointing_model, batch, replace(settings, micro_batch_tokens=1 << 20))
    cut = gradient_of(pointing_model, batch, settings)
    assert float((whole - cut).abs().max() / whole.abs().max()) < 1e-6
    assert float(whole[2]) > 1.0  # an untrained head spreads its attention
    without = gradient_of(pointing_model, batch, replace(settings, loss=replace(loss, lookup_weight=0.0)))
    assert float((whole[3:] - without[3:]).abs().max()) > 1e-4


def test_a_batch_without_eligible_words_still_trains_the_sentence_loss(pointing_model) -> None:
    config = pointing_model.config
    batch = batch_equivalence.make_batch(
        16, config.vocab_size, config.projection_dim, slice(None), lookup=True
    )
    assert batch.lookups is not None
    none = LookupTargets(*(x[:0] for x in vars(batch.lookups).values()))
    settings = replace(SETTINGS, loss=LossSection(lookup_weight=0.1))
    empty = gradient_of(pointing_model, replace(batch, lookups=none), settings)
    plain = gradient_of(pointing_model, replace(batch, lookups=None), settings)
    assert torch.equal(empty, plain)
    assert float(empty[2]) == 0.0


def test_bf16_replay_of_the_symmetric_loss_reaches_every_weight(tiny_model) -> None:
    # Casts cached by the pass without a graph must not serve the pass with one.
    batch = make_batch(64, tiny_model.config.vocab_size, tiny_model.config.projection_dim)
    settings = replace(SETTINGS, loss=SYMMETRIC, precision="bf16")
    whole = gradient_of(tiny_model, batch, replace(settings, micro_batch_tokens=1 << 20))
    cut = gradient_of(tiny_model, batch, settings)
    assert float((whole - cut).norm() / whole.norm()) < 0.03


def test_the_whole_batch_is_the_negative_set(tiny_model) -> None:
    # The mistake that accumulation makes: each piece contrasted with itself only.
    batch = make_batch(64, tiny_model.config.vocab_size, tiny_model.config.projection_dim)
    half = StepBatch(batch.ids[:32], batch.own[:32], batch.targets[:32], batch.groups[:32])
    whole = gradient_of(tiny_model, batch, SETTINGS)
    assert abs(float(whole[0]) - float(gradient_of(tiny_model, half, SETTINGS)[0])) > 0.1


@pytest.mark.parametrize("preset", ["captionbert-mini", "whole-key-lookup-mini"])
def test_one_and_two_processes_and_eight_pieces_agree(tmp_path: Path, capsys, preset: str) -> None:
    options = ["--tiny", "--rows", "256", "--preset", preset, "--work", str(tmp_path)]
    status = batch_equivalence.main(options)
    report = json.loads(capsys.readouterr().out)
    assert status == 0, report
    for name in batch_equivalence.LOSSES:
        assert set(report[name]) == {"8 x 32", "2 processes"}


def test_a_student_that_is_its_own_target_is_refused(tiny_model) -> None:
    batch = make_batch(8, tiny_model.config.vocab_size, tiny_model.config.projection_dim)
    longest_first = np.argsort(-batch.lengths, kind="stable")
    with torch.no_grad():
        own = batch_vectors(tiny_model, [batch.ids[i] for i in longest_first])
    with pytest.raises(SharedForwardError):
        gradient_of(tiny_model, replace(batch, targets=own), replace(SETTINGS, micro_batch_tokens=1 << 20))


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(InputError, match=r"loss\.temperature is 0"):
        replace(SETTINGS, loss=LossSection(temperature=0.0))


def test_clipping_shortens_to_the_norm_and_undoes_the_scale() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    parameter.grad = torch.tensor([30.0, 40.0, 0.0, 0.0])
    assert clip_and_unscale([parameter], clip=1.0, scale=10.0) == pytest.approx(5.0)
    assert parameter.grad.tolist() == pytest.approx([0.6, 0.8, 0.0, 0.0], abs=1e-5)


def test_loss_scale_halves_on_overflow_and_doubles_after_2000_good_steps() -> None:
    scale = LossScale.start("fp16")
    assert scale.value == 65536
    scale = scale.after(False).after(False)
    assert (scale.value, scale.skips, scale.good_steps) == (16384, 2, 0)
    for _ in range(2000):
        scale = scale.after(True)
    assert (scale.value, scale.skips, scale.good_steps) == (32768, 0, 0)
    assert LossScale.start("bf16").value == 1.0


def step_once(model, batch: StepBatch, optimizer, precision: str, scale: LossScale, rate: float = 1e-3):
    settings = replace(SETTINGS, precision=precision)
    return take_step(
        lambda ids: batch_vectors(model, ids),
        batch,
        optimizer,
        settings,
        scale,
        device=CPU,
        step=7,
        learning_rate=rate,
    )


def test_an_fp16_overflow_changes_nothing_but_the_scale(tiny_model) -> None:
    batch = make_batch(16, tiny_model.config.vocab_size, tiny_model.config.projection_dim)
    optimizer = adam(list(tiny_model.parameters()), 1e-3)
    before = [p.detach().clone() for p in tiny_model.parameters()]
    _, norm, scale = step_once(tiny_model, batch, optimizer, "fp16", LossScale(2.0**100))
    assert not np.isfinite(norm)
    assert (scale.value, scale.skips) == (2.0**99, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, tiny_model.parameters()))
    _, norm, scale = step_once(tiny_model, batch, optimizer, "fp16", LossScale(256.0, skips=3))
    assert np.isfinite(norm)
    assert scale.skips == 0
    assert not all(torch.equal(a, b) for a, b in zip(before, tiny_model.parameters()))


def test_too_many_fp16_overflows_in_a_row_stop_with_the_scale(tiny_model) -> None:
    batch = make_batch(16, tiny_model.config.vocab_size, tiny_model.config.projection_dim)
    optimizer = adam(list(tiny_model.parameters()), 1e-3)
    with pytest.raises(
        InputError, match=r"step 7: 21 steps in a row overflowed in fp16 .* scale fell to 6\.33"
    ):
        step_once(tiny_model, batch, optimizer, "fp16", LossScale(2.0**100, skips=MAX_SKIPS))


def test_a_gradient_that_is_not_finite_stops_other_precisions(tiny_model) -> None:
    batch = make_batch(16, tiny_model.config.vocab_size, tiny_model.config.projection_dim)
    with torch.no_grad():
        tiny_model.projection.dense.weight[0, 0] = float("nan")
    optimizer = adam(list(tiny_model.parameters()), 1e-3)
    with pytest.raises(InputError, match="step 7: the gradient norm is nan"):
        step_once(tiny_model, batch, optimizer, "fp32", LossScale())


def test_the_given_learning_rate_is_the_one_applied(tiny_model) -> None:
    batch = make_batch(16, tiny_model.config.vocab_size, tiny_model.config.projection_dim)
    optimizer = adam(list(tiny_model.parameters()), 1e-3)
    before = [p.detach().clone() for p in tiny_model.parameters()]
    step_once(tiny_model, batch, optimizer, "fp32", LossScale(), rate=0.0)
    assert all(torch.equal(a, b) for a, b in zip(before, tiny_model.parameters()))
    step_once(tiny_model, batch, optimizer, "fp32", LossScale(), rate=1e-3)
    moved = max(float((a - b).detach().abs().max()) for a, b in zip(before, tiny_model.parameters()))
    assert moved == pytest.approx(1e-3, rel=0.5)


def test_bf16_steps_learn(tiny_model) -> None:
    batch = make_batch(32, tiny_model.config.vocab_size, tiny_model.config.projection_dim)
    optimizer = adam(list(tiny_model.parameters()), 1e-3)
    losses = [step_once(tiny_model, batch, optimizer, "bf16", LossScale())[0].total for _ in range(12)]
    assert losses[-1] < losses[0]
