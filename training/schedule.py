"""Learning rate and run length: pure functions of the step number.

lr(s) = peak * (s + 1) / warm-up while warming up, then a half cosine from peak to the floor at the last step.
A step that an fp16 overflow skips counts: the schedule follows attempted steps.
"""

import math

from captionbert.artifacts.errors import InputError


def learning_rate(step: int, *, steps: int, warmup: int, peak: float, floor: float) -> float:
    """The rate of `step` (from 0) in a run of `steps`; `peak` and `floor` in the optimizer's own unit."""
    if step < warmup:
        return peak * (step + 1) / warmup
    share = (step - warmup) / max(1, steps - 1 - warmup)
    return floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, share)))


def warmup_steps(warmup: float, steps: int) -> int:
    """`warmup` as a number of steps: below 1 it is a share of the run, otherwise a count.

    Raises:
        InputError: the warm-up does not end before the run does.
    """
    count = round(warmup * steps) if warmup < 1 else int(warmup)
    if count >= steps:
        raise InputError(
            f"schedule.warmup is {count} steps but the run has only {steps}; lower it (a value below 1 is a "
            "share)"
        )
    return count


def steps_of_minutes(minutes: float, seconds_per_step: float, fixed_seconds: float) -> int:
    """Steps that fit into `minutes` at the measured rate, with `fixed_seconds` kept for evaluations and
    saving.
    """
    seconds = max(minutes * 60.0 - fixed_seconds, minutes * 30.0)
    return max(2, int(seconds / seconds_per_step))
