"""Learning rate and run length."""

import pytest

from captionbert.artifacts.errors import InputError
from captionbert.training.schedule import learning_rate, steps_of_minutes, warmup_steps


def test_warm_up_peak_and_floor() -> None:
    rates = [learning_rate(s, steps=100, warmup=10, peak=6e-4, floor=1e-6) for s in range(100)]
    assert rates[0] == pytest.approx(6e-5)
    assert rates[9] == pytest.approx(6e-4)
    assert rates[10] == pytest.approx(6e-4)
    assert rates[99] == pytest.approx(1e-6)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    middle = learning_rate(10 + 89 // 2, steps=100, warmup=10, peak=6e-4, floor=1e-6)
    assert middle == pytest.approx(3e-4, rel=0.05)


def test_no_warm_up() -> None:
    assert learning_rate(0, steps=10, warmup=0, peak=1.0, floor=0.0) == 1.0


def test_warm_up_as_a_share_or_a_count() -> None:
    assert warmup_steps(0.05, 1000) == 50
    assert warmup_steps(200.0, 1000) == 200
    with pytest.raises(InputError, match=r"schedule\.warmup is 2000 steps but the run has only 100"):
        warmup_steps(2000, 100)


def test_minutes_leave_room_for_what_is_not_training() -> None:
    assert steps_of_minutes(10, seconds_per_step=2.0, fixed_seconds=100) == 250
    assert (
        steps_of_minutes(1, seconds_per_step=2.0, fixed_seconds=1000) == 15
    )  # never less than half of the time
    assert steps_of_minutes(0.01, seconds_per_step=2.0, fixed_seconds=0) == 2
