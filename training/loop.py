"""The training loop: steps, gauges, checkpoints, signals. It knows no model class and no source of data.

After each update, in this order: log line, evaluation, checkpoint. A resumed run enters at the same point
with the same state, and everything inside a step is a function of (seed, step), so it goes on bit for bit.
Process 0 alone writes and decides when a checkpoint is due; the others are told.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tqdm.auto import tqdm

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.progress import progress
from captionbert.probes.lookup import finds
from captionbert.probes.word_records import LookupTargets
from captionbert.recipes import Recipe
from captionbert.training import checkpoints
from captionbert.training.batches import Loader
from captionbert.training.checkpoints import TrainingState
from captionbert.training.gauges import MetricsFiles, Validation, best_value, describe, evaluate
from captionbert.training.losses import ALWAYS
from captionbert.training.order import Plan, cut_by_tokens, step_seed
from captionbert.training.schedule import learning_rate, warmup_steps
from captionbert.training.step import (
    Encode,
    StepLoss,
    StepSettings,
    encode_part,
    precision_context,
    processes,
    take_step,
)

EVALUATIONS = 10  # of a run whose recipe does not say how often


@dataclass(frozen=True)
class LoopSettings:
    """How often things happen, and the learning-rate curve. Steps count from 1 after the first update."""

    warmup: int
    peak: float
    floor: float
    eval_every: int
    log_every: int
    checkpoint_seconds: float
    checkpoint_steps: int | None
    keep: int

    @classmethod
    def of(cls, recipe: Recipe, steps: int) -> "LoopSettings":
        """The part of a recipe that the loop of a run of `steps` reads."""
        schedule, checkpoint, gauges = recipe.schedule, recipe.checkpoint, recipe.gauges
        return cls(
            warmup=warmup_steps(schedule.warmup, steps),
            peak=schedule.learning_rate,
            floor=schedule.min_learning_rate,
            eval_every=gauges.eval_every or max(1, -(-steps // EVALUATIONS)),
            log_every=gauges.log_every,
            checkpoint_seconds=checkpoint.minutes * 60,
            checkpoint_steps=checkpoint.steps,
            keep=checkpoint.keep,
        )


@dataclass
class Session:
    """One process's side of a run: model, optimizer, data, and the state that checkpoints hold."""

    run: Path
    identity: str  # digest
    model: Any
    optimizer: torch.optim.Adam
    encode: Encode
    loader: Loader
    plan: Plan
    step_settings: StepSettings
    settings: LoopSettings
    validation: Validation
    device: torch.device
    is_main: bool = True
    log_scalars: Callable[[dict[str, float], int], None] | None = None  # a tracker, e.g. TensorBoard
    state: TrainingState = field(default_factory=TrainingState)

    @property
    def folder(self) -> Path:
        """Where checkpoints and metrics lie."""
        return self.run / "checkpoints"


@contextmanager
def noticed_signals() -> Iterator[list[int]]:
    """SIGTERM and SIGINT are noted, and the loop looks at step boundaries; a second one is obeyed."""
    seen: list[int] = []
    numbers: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}

    def note(number: int, frame: Any) -> None:
        seen.append(number)
        signal.signal(number, before[number])

    try:
        for number in numbers:
            signal.signal(number, note)
    except ValueError:  # not the main thread: signals are the caller's
        yield seen
        return
    try:
        yield seen
    finally:
        for number in numbers:
            signal.signal(number, before[number])


def restore(session: Session, folder: Path | None) -> None:
    """Bring model, optimizer, state and metric files to a checkpoint, or to step 0 when there is none."""
    if folder is not None:
        checkpoints.load_model_tensors(folder, session.model)
        checkpoints.load_optimizer(folder, session.model, session.optimizer)
        session.state = checkpoints.read_state(folder)
    if session.is_main:
        MetricsFiles(session.folder).start(session.state.step)


def embed_ids(
    session: Session, ids: list[list[int]], lookups: LookupTargets | None = None
) -> tuple[np.ndarray, dict[str, Any] | None]:
    """float32 unit vectors [n, E] of texts given as ids, in order, at the training precision.

    With lookup queries, also how the designated head reads the records: their number, top-one share and mean
    probability.
    """
    settings, device = session.step_settings, session.device
    vectors = np.empty((len(ids), 0), dtype=np.float32)
    lengths = np.asarray([len(row) for row in ids])
    hits = probability = 0.0
    session.model.eval()
    with torch.no_grad(), precision_context(device.type, settings.precision):
        for part in cut_by_tokens(lengths, settings.micro_batch_tokens, padded=settings.padded):
            encoded, read = encode_part(session.encode, ids, part, lookups, device)
            found = encoded.float().cpu().numpy()  # [m, E]
            if not vectors.shape[1]:
                vectors = np.empty((len(ids), found.shape[1]), dtype=np.float32)
            vectors[part] = found
            if read is not None:
                log_probs, records = read
                hits += float(finds(log_probs, records[:, None]).sum())
                probability += float(log_probs.gather(1, records[:, None]).exp().double().sum())
    session.model.train()
    if lookups is None:
        return vectors, None
    count = max(1, len(lookups))
    return vectors, {"queries": len(lookups), "top_one": hits / count, "probability": probability / count}


def train(session: Session, stop_after: int | None = None) -> Path | None:
    """Run to the last step, or to `stop_after` without changing the schedule (for tests and benchmarks).

    Returns:
        checkpoints/final, or the step checkpoint at `stop_after`; None on processes that write nothing.

    Raises:
        SystemExit: a signal arrived; a checkpoint was written; the status is 128 + its number.
        InputError: see `take_step` and `write_checkpoint`; or no fp16 step of the whole run was of use.
    """
    last = session.plan.steps if stop_after is None else min(stop_after, session.plan.steps)
    session.model.train()
    with noticed_signals() as seen:
        if session.state.step == 0:
            _evaluate(session)
        saved, clock = session.state.step, _Clock()
        bar = progress(total=session.plan.steps, initial=session.state.step, desc="training", unit="step")
        for batch in session.loader.ahead(session.state.step, last):
            clock.add(batch.lengths)
            _update(session, batch, clock, bar)
            _evaluate(session)
            due, ending = _agree(session, clock.since_checkpoint(), bool(seen))
            if due or ending:
                _checkpoint(session)
                saved = session.state.step
                clock.checkpointed()
            if ending and session.state.step < last:
                raise SystemExit(_leave(session, seen))
        bar.close()
    if session.state.step < session.plan.steps:
        if saved != session.state.step:
            _checkpoint(session)
        return session.folder / checkpoints.step_name(session.state.step) if session.is_main else None
    if 0 < session.state.step <= session.state.loss_scale.skips:
        raise InputError(
            f"each of the {session.state.step} steps overflowed in fp16, so no weight was updated; use "
            "compute.precision=bf16 or fp32, or more steps: the loss scale halves at each"
        )
    return _finish(session)


class _Clock:
    """Wall time between log lines and checkpoints; nothing of it enters a checkpoint."""

    def __init__(self) -> None:
        self.logged = self.saved = time.monotonic()
        self.sentences = self.tokens = 0

    def add(self, lengths: np.ndarray) -> None:
        self.sentences += len(lengths)
        self.tokens += int(lengths.sum())

    def since_checkpoint(self) -> float:
        return time.monotonic() - self.saved

    def checkpointed(self) -> None:
        self.saved = time.monotonic()

    def lap(self) -> dict[str, float]:
        """Rates of this process since the last lap."""
        now = time.monotonic()
        seconds = max(now - self.logged, 1e-9)
        rates = {
            "sentences_per_second": round(self.sentences / seconds, 2),
            "tokens_per_second": round(self.tokens / seconds, 1),
            "seconds": round(seconds, 3),
        }
        self.logged, self.sentences, self.tokens = now, 0, 0
        return rates


def _update(session: Session, batch: Any, clock: _Clock, bar: Any) -> None:
    """One optimizer step and, when due, its log line."""
    state, settings = session.state, session.settings
    torch.manual_seed(step_seed(session.plan.seed, state.step))
    rate = learning_rate(
        state.step, steps=session.plan.steps, warmup=settings.warmup, peak=settings.peak, floor=settings.floor
    )
    loss, norm, scale = take_step(
        session.encode,
        batch,
        session.optimizer,
        session.step_settings,
        state.loss_scale,
        device=session.device,
        step=state.step,
        learning_rate=rate,
    )
    skipped = scale.skips > 0
    state.loss_scale = scale
    state.step += 1
    bar.update()
    if not session.is_main or (state.step % settings.log_every and state.step != session.plan.steps):
        return
    values = {
        "step": state.step,
        "loss": loss.total,
        **_named(loss, looks_up=batch.lookups is not None),
        "learning_rate": rate,
        "gradient_norm": norm if np.isfinite(norm) else None,
        "loss_scale": scale.value,
        "skipped": skipped,
    }
    timing = {"step": state.step, "time": time.time(), **clock.lap()}
    MetricsFiles(session.folder).log(values, timing)
    added = "".join(f"{name} {value:.4f}, " for name, value in loss.terms.items() if name not in ALWAYS)
    bar.set_postfix_str(
        f"loss {loss.total:.3f}, {added}{timing['sentences_per_second']:.0f} sentences/s", refresh=False
    )
    if session.log_scalars:
        scalars = {key: float(v) for key, v in values.items() if v is not None and key != "step"}
        session.log_scalars(scalars | {"sentences_per_second": timing["sentences_per_second"]}, state.step)


def _named(loss: StepLoss, *, looks_up: bool) -> dict[str, float]:
    """The terms under the names that metrics.jsonl gives them; lookup only where the recipe trains it."""
    names = {"contrast": "info_nce"}
    return {names.get(n, n): value for n, value in loss.terms.items() if looks_up or n != "lookup"}


def _evaluate(session: Session) -> None:
    """A point of the curve at step 0, each `eval_every` steps and at the end; `best` is kept beside it."""
    state = session.state
    due = state.step % session.settings.eval_every == 0 or state.step == session.plan.steps
    measured = bool(state.curve) and state.curve[-1]["step"] == state.step
    if not session.is_main or not due or measured:
        return
    point = evaluate(partial(embed_ids, session), session.validation, state.step)
    state.curve.append(point)
    name, value = best_value(point)
    if state.best is None or value > state.best["value"]:
        state.best = {"gauge": name, "value": value, "step": state.step}
        if state.step:
            _write(session, "best", with_optimizer=False)
    MetricsFiles(session.folder).write_curve(state.curve, state.best)
    tqdm.write(describe(point))
    if session.log_scalars:
        flat = {
            k: float(v)
            for k, v in (
                point | point.get("geometry", {}) | point.get("lookup", {}) | point.get("terms", {})
            ).items()
            if isinstance(v, int | float)
        }
        session.log_scalars(
            {f"gauges/{k}": v for k, v in flat.items() if k not in ("step", "rows", "width")}, state.step
        )


def _agree(session: Session, since_checkpoint: float, signalled: bool) -> tuple[bool, bool]:
    """(checkpoint due, ending): process 0's clock decides the first, a signal to any process the second."""
    settings, step = session.settings, session.state.step
    by_steps = settings.checkpoint_steps is not None and step % settings.checkpoint_steps == 0
    due = by_steps or (session.is_main and since_checkpoint >= settings.checkpoint_seconds)
    if processes() > 1:
        flags = torch.tensor([int(due), int(signalled)], device=session.device)
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        due, signalled = bool(flags[0]), bool(flags[1])
    return due and step < session.plan.steps, signalled


def _write(session: Session, name: str, *, with_optimizer: bool = True) -> Path:
    folder = session.folder / name
    MetricsFiles(session.folder).sync()
    checkpoints.write_checkpoint(
        folder,
        session.model,
        session.run / "config" / "tokenizer",
        session.state,
        session.optimizer if with_optimizer else None,
        session.identity,
    )
    return folder


def _checkpoint(session: Session) -> None:
    if session.is_main:
        newest = _write(session, checkpoints.step_name(session.state.step))
        checkpoints.prune(session.folder, session.settings.keep, newest)


def _leave(session: Session, seen: list[int]) -> int:
    """Say where the run stands; the exit status."""
    number = seen[0] if seen else signal.SIGTERM
    if session.is_main:
        tqdm.write(
            f"stopped by {signal.Signals(number).name} after step {session.state.step} of "
            f"{session.plan.steps}; "
            f"a checkpoint is in {session.folder}: the same command goes on from it"
        )
    return 128 + number


def _finish(session: Session) -> Path | None:
    if not session.is_main:
        return None
    MetricsFiles(session.folder).write_curve(session.state.curve, session.state.best)
    return _write(session, "final")
