"""How many steps a run has: as its schedule says, or as many as its minutes hold, measured once before it begins.

A step means the same at every length: from then on the schedule is a function of the step alone.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

from captionbert.recipes import ScheduleSection
from captionbert.training.gauges import evaluate
from captionbert.training.loop import EVALUATIONS, Session, embed_ids
from captionbert.training.order import steps_of_epochs
from captionbert.training.schedule import learning_rate, steps_of_minutes
from captionbert.training.step import take_step

_CALIBRATION_STEPS = 6
_FEW_STEPS = 50
_NO_LIMIT = 1 << 40


def resolve_steps(schedule: ScheduleSection, rows: int, build: Callable[[int], Session]) -> int:
    """Steps of a new run over `rows` captions; `build` makes a session of so many steps, to be measured and dropped."""
    if (stated := stated_steps(schedule, rows)) is not None:
        return stated
    assert schedule.minutes is not None
    session = build(_NO_LIMIT)
    seconds, fixed = calibrate(session)
    steps = steps_of_minutes(schedule.minutes, seconds, fixed)
    if session.is_main:
        few = f"; fewer than {_FEW_STEPS} teach a new model little: give more minutes"
        print(
            f"{seconds:.2f} s a step measured: {schedule.minutes:g} minutes are {steps} steps"
            + (few if steps < _FEW_STEPS else ""),
            file=sys.stderr,
        )
    return steps


def stated_steps(schedule: ScheduleSection, rows: int) -> int | None:
    """Steps that the schedule says for so many training rows; None where `minutes` leave them to be measured."""
    if schedule.epochs is not None:
        return steps_of_epochs(rows, schedule.batch_size, schedule.epochs)
    return schedule.steps


def calibrate(session: Session) -> tuple[float, float]:
    """(seconds of a step, seconds of all evaluations and of this) on a model that is thrown away."""
    begin, times = time.monotonic(), []
    for step, batch in enumerate(session.loader.ahead(0, _CALIBRATION_STEPS)):
        start = time.monotonic()
        rate = learning_rate(step, steps=_NO_LIMIT, warmup=_NO_LIMIT, peak=session.settings.peak, floor=0.0)
        take_step(
            session.encode,
            batch,
            session.optimizer,
            session.step_settings,
            session.state.loss_scale,
            device=session.device,
            step=step,
            learning_rate=rate,
        )
        times.append(time.monotonic() - start)
    start = time.monotonic()
    evaluate(partial(embed_ids, session), session.validation, 0)
    evaluations = (EVALUATIONS + 1) * (time.monotonic() - start)
    return median(times[1:]), evaluations + time.monotonic() - begin
