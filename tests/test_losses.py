"""The losses against values computed by hand, and law 1."""

import math

import pytest
import torch

from captionbert.artifacts.errors import InputError
from captionbert.training import losses
from captionbert.training.losses import SharedForwardError, View

T = 0.5
STUDENT = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
TARGET = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
DISTINCT = torch.arange(3)


def test_one_way_rows_of_a_two_by_three_case() -> None:
    own = torch.tensor([0, 2])
    found = losses.one_way_rows(STUDENT, TARGET, own, DISTINCT, T)
    first = [math.exp(c / T) for c in (1.0, 0.0, 0.8)]
    second = [math.exp(c / T) for c in (0.6, 0.8, 0.96)]
    expected = [-math.log(first[0] / sum(first)), -math.log(second[2] / sum(second))]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_an_equal_text_is_no_negative() -> None:
    own = torch.tensor([0, 2])
    groups = torch.tensor([4, 9, 4])  # rows 0 and 2 are the same text
    found = losses.one_way_rows(STUDENT, TARGET, own, groups, T)
    first = [math.exp(1.0 / T), math.exp(0.0)]
    second = [math.exp(0.8 / T), math.exp(0.96 / T)]
    expected = [-math.log(first[0] / sum(first)), -math.log(second[1] / sum(second))]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_symmetric_is_the_mean_of_both_directions() -> None:
    target = TARGET[:2]
    own = torch.arange(2)
    there = losses.one_way_rows(STUDENT, target, own, own, T)
    back = losses.one_way_rows(target, STUDENT, own, own, T)
    assert torch.allclose(losses.symmetric_rows(STUDENT, target, own, T), (there + back) / 2)


def test_mse_is_per_coordinate() -> None:
    found = losses.mse_rows(STUDENT, TARGET[:2])
    cosine = (STUDENT * TARGET[:2]).sum(1)
    assert torch.allclose(found, (2 - 2 * cosine) / 2)
    assert found.tolist() == pytest.approx([0.0, 0.2])


def test_lookup_is_the_negative_log_probability_of_the_record() -> None:
    log_probs = torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.1, 0.8]]).log()
    found = losses.lookup_rows(log_probs, torch.tensor([1, 0]))
    assert found.tolist() == pytest.approx([0.693147, 2.302585], rel=1e-5)


def test_logits_stay_fp32_inside_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        logits = losses.contrast_logits(STUDENT, TARGET, 0.07)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, STUDENT @ TARGET.T / 0.07)


def test_law_1_one_origin() -> None:
    with pytest.raises(SharedForwardError, match="both come from 'student step 3'"):
        losses.refuse_shared_forward(
            View(STUDENT, "student step 3"), View(TARGET[:2].clone(), "student step 3")
        )


def test_law_1_a_detached_view() -> None:
    student = STUDENT.clone().requires_grad_() * 1.0
    with pytest.raises(SharedForwardError, match="share memory"):
        losses.refuse_shared_forward(View(student, "student"), losses.stored_targets(student.detach(), "abc"))


def test_law_1_equal_values() -> None:
    with pytest.raises(SharedForwardError, match="values are equal"):
        losses.refuse_shared_forward(View(STUDENT, "student"), losses.stored_targets(STUDENT.clone(), "abc"))


def test_law_1_two_outputs_of_one_node() -> None:
    first, second = torch.unbind((STUDENT.clone().requires_grad_() * 2.0).view(2, 1, 2))
    with pytest.raises(SharedForwardError, match=r"share memory|one graph node"):
        losses.refuse_shared_forward(View(first, "a"), View(second, "b"))


def test_law_1_targets_with_a_gradient() -> None:
    with pytest.raises(SharedForwardError, match="targets carry a gradient"):
        losses.stored_targets(TARGET.clone().requires_grad_(), "abc")


def test_law_1_honest_views_pass() -> None:
    losses.refuse_shared_forward(View(STUDENT, "student step 0"), losses.stored_targets(TARGET[:2], "abc"))


@pytest.mark.parametrize("temperature", [0.0, -0.07, float("nan"), float("inf")])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    with pytest.raises(InputError, match=r"loss\.temperature"):
        losses.check_temperature(temperature)
