"""The data order: a permutation, a pure function of (seed, epoch, step), sliced and cut without change."""

import numpy as np
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.training.order import Plan, cut_by_tokens, permuted, rank_slice, step_seed, steps_of_epochs


@pytest.mark.parametrize("size", [1, 2, 3, 64, 65, 1000, 40_001])
def test_each_epoch_is_a_permutation(size: int) -> None:
    found = permuted(np.arange(size), size=size, seed=7, epoch=3)
    assert np.array_equal(np.sort(found), np.arange(size))


def test_a_part_of_the_sequence_does_not_depend_on_what_else_is_asked() -> None:
    whole = permuted(np.arange(1000), size=1000, seed=1, epoch=0)
    assert np.array_equal(permuted(np.arange(300, 340), size=1000, seed=1, epoch=0), whole[300:340])


def test_seeds_and_epochs_give_other_orders_and_neighbours_are_scattered() -> None:
    orders = [permuted(np.arange(5000), size=5000, seed=s, epoch=e) for s, e in ((0, 0), (0, 1), (1, 0))]
    for one in range(3):
        assert abs(np.corrcoef(np.arange(5000), orders[one])[0, 1]) < 0.1
        assert (orders[one] == orders[one - 1]).mean() < 0.01


def test_the_order_is_pinned() -> None:
    # A change of this sequence would make every resumed run another run.
    assert permuted(np.arange(6), size=1000, seed=0, epoch=0).tolist() == [902, 250, 938, 579, 564, 912]


def test_an_epoch_shows_each_row_once_and_drops_its_ragged_end() -> None:
    plan = Plan(rows=107, batch_size=10, seed=5, steps=25)
    assert plan.steps_per_epoch == 10
    for epoch in range(2):
        seen = np.concatenate([plan.positions(s) for s in range(epoch * 10, epoch * 10 + 10)])
        assert len(set(seen.tolist())) == 100
    assert [plan.epoch(s) for s in (0, 9, 10, 24)] == [0, 0, 1, 2]


def test_a_step_past_the_plan_is_refused() -> None:
    with pytest.raises(ValueError, match=r"step 4 is outside 0\.\.3"):
        Plan(rows=10, batch_size=5, seed=0, steps=4).positions(4)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_processes_only_slice_the_global_batch(world: int) -> None:
    plan = Plan(rows=100, batch_size=16, seed=2, steps=6)
    for step in range(6):
        parts = [plan.positions(step)[rank_slice(16, rank, world)] for rank in range(world)]
        assert np.array_equal(np.concatenate(parts), plan.positions(step))  # unsorted: order counts


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="batch_size 10 does not divide by 4 processes; use 8"):
        rank_slice(10, 0, 4)


def test_fewer_rows_than_one_batch_is_refused() -> None:
    with pytest.raises(InputError, match="5 training rows, fewer than one batch of 8"):
        Plan(rows=5, batch_size=8, seed=0, steps=1)


def test_a_batch_of_one_and_a_run_of_no_step_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2 rows"):
        Plan(rows=5, batch_size=1, seed=0, steps=1)
    with pytest.raises(InputError, match="0 steps"):
        Plan(rows=5, batch_size=2, seed=0, steps=0)


@pytest.mark.parametrize("padded", [False, True])
def test_micro_batches_hold_every_row_once_within_the_budget(padded: bool) -> None:
    lengths = np.random.default_rng(0).integers(3, 60, 200)
    parts = cut_by_tokens(lengths, 256, padded=padded)
    order = np.concatenate(parts)
    assert np.array_equal(np.sort(order), np.arange(200))
    assert (np.diff(lengths[order]) <= 0).all()
    for part in parts:
        assert (len(part) * lengths[part[0]] if padded else lengths[part].sum()) <= 256
    assert len(parts) < len(cut_by_tokens(lengths, 64, padded=padded))


def test_a_caption_longer_than_the_budget_stands_alone() -> None:
    parts = cut_by_tokens(np.array([5, 90, 5, 80]), 40, padded=False)
    assert [p.tolist() for p in parts] == [[1], [3], [0, 2]]


def test_step_seeds_differ_by_seed_and_step() -> None:
    assert len({step_seed(seed, step) for seed in range(3) for step in range(50)}) == 150


def test_epochs_to_steps() -> None:
    assert steps_of_epochs(107, 10, 4) == 40
    assert steps_of_epochs(107, 10, 0.5) == 5
