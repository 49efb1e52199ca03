"""Stages that are done once: a list of named steps, each with the identities of its inputs and a finished
artefact.

A stage is done when `stages.json` records it as finished, its inputs are those recorded, and its artefact
still has the recorded digest. A second run says `skipped (done)`. A killed run goes on at the stage it was
in, which resumes by itself. When an input changed, a cheap stage is made again; one that holds hours of
work, or on which such work was built, is refused with a sentence that names what changed. `redo` names the
stage from which on all is made again.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import folder_lock, read_json, write_json

RECORD = "stages.json"
KIND = "distill-stages"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Stage:
    """One step of the line.

    Attributes:
        name: key in `stages.json` and word for `redo`.
        title: what it does, for the reader of the log.
        inputs: identities of everything that decides its result: JSON values, called when its turn comes.
        run: does the work; called again after a kill, it continues or starts over.
        output: digest of the finished artefact; raises InputError while it is missing, torn or changed.
        paths: files and folders that belong to this stage alone; removed before it is made again.
        repeatable: whether changed inputs are simply made again, instead of refused.
    """

    name: str
    title: str
    inputs: Callable[[], dict[str, Any]]
    run: Callable[[], Any]
    output: Callable[[], str]
    paths: tuple[Path, ...] = ()
    repeatable: bool = True


def run_stages(
    out: Path, stages: Sequence[Stage], *, say: Say = print, redo: str | None = None
) -> dict[str, Any]:
    """Run every stage that is not done, in order, and return the records by name.

    Args:
        out: folder of `stages.json`; held by one process at a time.
        say: takes each line of the log.
        redo: name of a stage: it and all after it are made again.

    Raises:
        InputError: `redo` names no stage; an input of a stage that is not repeatable changed; another process
            works in `out`; or a stage raised it.
    """
    if redo is not None and redo not in [stage.name for stage in stages]:
        raise InputError(
            f"--redo {redo}: no such stage; the stages are {', '.join(stage.name for stage in stages)}"
        )
    with folder_lock(out):
        records = _read_records(out)
        if redo is not None:
            _forget(out, stages, records, redo)
        for number, stage in enumerate(stages, start=1):
            _run_one(out, stage, records, f"[{number}/{len(stages)}] {stage.name}", say)
    return records


def _read_records(out: Path) -> dict[str, Any]:
    path = out / RECORD
    return read_json(path, kind=KIND)["stages"] if path.is_file() else {}


def _write_records(out: Path, records: dict[str, Any]) -> None:
    write_json(out / RECORD, {"kind": KIND, "stages": records})


def _forget(out: Path, stages: Sequence[Stage], records: dict[str, Any], first: str) -> None:
    """Drop the records and artefacts of stage `first` and of all after it.

    The records go first: a kill in between leaves artefacts without a record, never taken for finished.
    """
    names = [stage.name for stage in stages]
    later = stages[names.index(first) :]
    for stage in later:
        records.pop(stage.name, None)
    _write_records(out, records)
    for stage in later:
        _remove(stage)


def _remove(stage: Stage) -> None:
    for path in stage.paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _run_one(out: Path, stage: Stage, records: dict[str, Any], label: str, say: Say) -> None:
    inputs = stage.inputs()
    record = records.get(stage.name)
    changed = differences(record["inputs"], inputs) if record else []
    # A stage that failed before it made anything has nothing to protect.
    if record and changed and not stage.repeatable and any(path.exists() for path in stage.paths):
        raise InputError(_refusal(out, stage, record, changed))
    reason = ""
    if changed:
        reason = f" (again: {changed[0]})"
        _remove(stage)
    elif record and record["state"] == "done":
        fault = _fault(stage, record)
        if fault is None:
            say(f"{label}: skipped (done)")
            return
        reason = f" (again: {fault})"
    elif record:
        reason = " (goes on)"
    say(f"{label}: {stage.title}{reason}")
    records[stage.name] = {"state": "started", "inputs": inputs}
    _write_records(out, records)
    started = time.monotonic()
    stage.run()
    seconds = round(time.monotonic() - started, 1)
    records[stage.name] = {"state": "done", "inputs": inputs, "output": stage.output(), "seconds": seconds}
    _write_records(out, records)
    say(f"{label}: done in {seconds:.1f} s")


def _fault(stage: Stage, record: dict[str, Any]) -> str | None:
    """Why the artefact of a finished stage cannot be used, or None."""
    try:
        found = stage.output()
    except InputError as error:
        return str(error)
    if found == record["output"]:
        return None
    return f"its artefact has digest {found[:16]}, recorded was {record['output'][:16]}"


def _refusal(out: Path, stage: Stage, record: dict[str, Any], changed: list[str]) -> str:
    verb = "finished" if record["state"] == "done" else "started"
    return (
        f"{out}: stage {stage.name!r} was {verb} with other inputs: {'; '.join(changed)}. Give another "
        f"--out, put the input back, or pass --redo {stage.name} to make this stage and all after it again"
    )


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """One phrase for each field in which two identities differ: "minutes was 3, is 5"."""
    lines = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            lines += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            lines.append(f"{prefix}{key} was {_short(before)}, is {_short(after)}")
    return lines


def _short(value: Any) -> str:
    text = str(value)
    return "absent" if value is None else text if len(text) <= 72 else text[:69] + "..."
