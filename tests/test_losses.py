"""The losses against values computed by hand, and law 1."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from captionbert.artifacts.errors import InputError
from captionbert.recipes import LossSection
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


# ---- terms over pairs and widths, against loops in fp64 ----

ROWS, WIDTH = 11, 12
GROUPS = [0, 1, 1, 3, 4, 5, 6, 1, 8, 9, 0]  # equal texts beside one another, apart, and across the cyclic end
EVERY = LossSection(
    symmetric=True,
    similarity_weight=3.0,
    ranking_weight=2.0,
    ranking_margin=0.1,
    matryoshka_weight=0.5,
    matryoshka_dims=[2, 7],
)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture
def batch() -> tuple[np.ndarray, np.ndarray]:
    """Student and target, unit float64 [11, 12]."""
    random = np.random.default_rng(5)
    return unit(random.standard_normal((ROWS, WIDTH))), unit(random.standard_normal((ROWS, WIDTH)))


def slow_contrast(s: np.ndarray, t: np.ndarray, temperature: float, *, symmetric: bool) -> float:
    total = []
    for one, other in ((s, t), (t, s)) if symmetric else ((s, t),):
        for i in range(len(s)):
            rivals = [j for j in range(len(s)) if j == i or GROUPS[j] != GROUPS[i]]
            top = math.exp(one[i] @ other[i] / temperature)
            total.append(-math.log(top / sum(math.exp(one[i] @ other[j] / temperature) for j in rivals)))
    return sum(total) / len(total)


def slow_similarity(s: np.ndarray, t: np.ndarray) -> float:
    n = range(len(s))
    values = [(s[i] @ s[j] - t[i] @ t[j]) ** 2 for i in n for j in n if i != j and GROUPS[i] != GROUPS[j]]
    return sum(values) / len(values)


def slow_ranking(s: np.ndarray, t: np.ndarray, margin: float) -> float:
    values = []
    for i in range(len(s)):
        for j in range(len(s)):
            k = (j + 1) % len(s)
            if len({GROUPS[i], GROUPS[j], GROUPS[k]}) < 3:
                continue
            near, far = (j, k) if t[i] @ t[j] > t[i] @ t[k] else (k, j)
            if t[i] @ t[near] - t[i] @ t[far] > margin:
                values.append(max(0.0, margin - (s[i] @ s[near] - s[i] @ s[far])))
    return sum(values) / len(values)


def slow_sentence(s: np.ndarray, t: np.ndarray, loss: LossSection) -> float:
    return (
        loss.contrast_weight * slow_contrast(s, t, loss.temperature, symmetric=loss.symmetric)
        + loss.mse_weight * ((s - t) ** 2).mean()
        + loss.similarity_weight * slow_similarity(s, t)
        + loss.ranking_weight * slow_ranking(s, t, loss.ranking_margin)
    )


def found_terms(batch: tuple[np.ndarray, np.ndarray], loss: LossSection, **options) -> dict[str, float]:
    student, target = (torch.from_numpy(x).float() for x in batch)
    terms = losses.sentence_terms(student, target, torch.tensor(GROUPS), loss, **options)
    return {name: float(value) for name, value in terms.items()}


@pytest.mark.parametrize("symmetric", [False, True])
def test_every_term_is_its_formula(batch, symmetric: bool) -> None:
    loss = replace(EVERY, symmetric=symmetric)
    s, t = batch
    expected = {
        "contrast": slow_contrast(s, t, loss.temperature, symmetric=symmetric),
        "mse": float(((s - t) ** 2).mean()),
        "similarity": slow_similarity(s, t),
        "ranking": slow_ranking(s, t, loss.ranking_margin),
        "matryoshka": sum(slow_sentence(unit(s[:, :d]), unit(t[:, :d]), loss) for d in (2, 7)) / 2,
    }
    assert found_terms(batch, loss) == pytest.approx(expected, rel=1e-5)
    assert losses.weighted(found_terms(batch, loss), loss) == pytest.approx(
        slow_sentence(s, t, loss) + 0.5 * expected["matryoshka"], rel=1e-5
    )


def test_rows_apart_sum_to_the_rows_together(batch) -> None:
    loss = LossSection(matryoshka_weight=1.0, matryoshka_dims=[3])
    student, target = (torch.from_numpy(x).float() for x in batch)
    whole = found_terms(batch, loss)
    sums = dict.fromkeys(whole, 0.0)
    for own in (torch.tensor([7, 0, 3]), torch.tensor([1, 2, 4, 5, 6, 8, 9, 10])):
        part = losses.sentence_terms(student[own], target, torch.tensor(GROUPS), loss, own)
        sums = {name: sums[name] + float(part[name]) for name in sums}
    assert sums == pytest.approx(whole, rel=1e-5)
    with pytest.raises(ValueError, match="need the whole batch at once"):
        losses.sentence_terms(student[:3], target, torch.tensor(GROUPS), EVERY, torch.arange(3))


def test_a_student_equal_to_its_targets_pays_nothing_but_contrast(batch) -> None:
    _, target = batch
    terms = found_terms((target, target), EVERY)
    assert [terms[name] for name in ("mse", "similarity", "ranking")] == [0.0, 0.0, 0.0]
    terms = found_terms((-target, target), EVERY)  # turned about: the same angles, other places
    assert (terms["similarity"], terms["ranking"]) == (0.0, 0.0)
    assert terms["mse"] > 0.1


def test_equal_texts_are_no_pairs(batch) -> None:
    groups, one = torch.tensor(GROUPS), torch.zeros(ROWS, dtype=torch.int64)
    distinct = losses.distinct_pairs(groups)
    assert not distinct[1, 2]
    assert not distinct[2, 7]
    assert not distinct.diagonal().any()
    assert int(distinct.sum()) == ROWS**2 - (9 + 4 + 6)
    none = losses.distinct_pairs(one)  # a batch of one text has no pair: 0, not nan
    pairs = [losses.similarities(torch.from_numpy(x).float()) for x in batch]
    assert float(losses.similarity_loss(*pairs, none)) == 0.0
    assert float(losses.ranking_loss(*pairs, none, 0.1)) == 0.0


def test_what_rounding_alone_tells_apart_has_no_order() -> None:
    random = np.random.default_rng(2)
    student, target = (unit(random.standard_normal((9, 5))) for _ in range(2))
    target[1::2] = target[:-1:2]  # columns 0 and 1, 2 and 3 ... are the same captions' to the teachers
    ours, theirs = (losses.similarities(torch.from_numpy(x).float()) for x in (student, target))
    theirs += (
        3e-8 * torch.from_numpy(random.standard_normal((9, 9))).float()
    )  # as another order of sums would
    values = []
    for i, j in itertools.product(range(9), (1, 3, 5, 7, 8)):  # the others differ by rounding
        k = (j + 1) % 9
        if len({i, j, k}) == 3:
            sign = float(torch.sign(theirs[i, j] - theirs[i, k]))
            values.append(max(0.0, -sign * float(ours[i, j] - ours[i, k])))
    found = losses.ranking_loss(ours, theirs, losses.distinct_pairs(torch.arange(9)), 0.0)
    assert float(found) == pytest.approx(np.mean(values), rel=1e-5)


def test_a_term_of_weight_0_is_neither_computed_nor_followed(batch) -> None:
    assert losses.term_names(LossSection()) == ("contrast", "mse", "lookup")
    assert set(found_terms(batch, LossSection())) == {"contrast", "mse"}
    assert losses.term_names(EVERY) == ("contrast", "mse", "lookup", "similarity", "ranking", "matryoshka")
    aligned = LossSection(contrast_weight=0.0)  # the manner of LEAF
    student = torch.from_numpy(batch[0]).float().requires_grad_()
    target = torch.from_numpy(batch[1]).float()
    terms = losses.sentence_terms(student, target, torch.tensor(GROUPS), aligned)
    losses.weighted(terms, aligned).backward()
    assert student.grad is not None
    assert torch.allclose(student.grad, 2 * (student - target).detach() / student.numel())


@pytest.mark.parametrize(
    ("loss", "coupled"),
    [
        (LossSection(), False),
        (LossSection(contrast_weight=0.0), False),
        (LossSection(matryoshka_weight=1.0, matryoshka_dims=[3]), False),
        (LossSection(symmetric=True), True),
        (LossSection(similarity_weight=1.0), True),
        (LossSection(ranking_weight=1.0), True),
    ],
)
def test_which_terms_couple_the_rows_of_a_batch(loss: LossSection, coupled: bool) -> None:
    assert losses.couples_rows(loss) == coupled


def test_widths_must_be_below_that_of_the_targets() -> None:
    losses.check_dims([1, 767], 768)
    with pytest.raises(InputError, match=r"loss\.matryoshka_dims names 768, the targets are 768 wide"):
        losses.check_dims([64, 768], 768)


def test_similarities_stay_fp32_inside_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        found = losses.similarities(TARGET)
    assert found.dtype == torch.float32
    assert torch.equal(found, TARGET @ TARGET.T)
