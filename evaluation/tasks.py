"""The STS tasks by name, and their sentence pairs read from JSONL files.

A data file holds one JSON object a line: {"sentence1": text, "sentence2": text, "score": number}. Its name is
the task's key and the split: `stsb-test.jsonl`, `sickr-test.jsonl`, `sts12-test.jsonl` ... and
`stsb-dev.jsonl`. `sts8` are the eight test sets whose equal-weight mean is quoted; `stsb-dev` never enters
that mean.
"""

import difflib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import sha256_file

FIELDS = ("sentence1", "sentence2", "score")


@dataclass(frozen=True)
class StsTask:
    """One line of the result: its key here, mteb's name for the task, the split, the data file."""

    key: str
    mteb_name: str
    split: str = "test"

    @property
    def file_name(self) -> str:
        """Name of the data file in the `--data` folder."""
        return f"{self.key}.jsonl" if self.key.endswith("-dev") else f"{self.key}-{self.split}.jsonl"


@dataclass(frozen=True)
class PairFile:
    """A read data file: its pairs in file order, the gold scores, and the digest of its bytes."""

    path: Path
    sentence1: list[str]
    sentence2: list[str]
    scores: list[float]
    sha256: str


STS8 = (
    StsTask("stsb", "STSBenchmark"),
    StsTask("sickr", "SICK-R"),
    StsTask("sts12", "STS12"),
    StsTask("sts13", "STS13"),
    StsTask("sts14", "STS14"),
    StsTask("sts15", "STS15"),
    StsTask("sts16", "STS16"),
    StsTask("biosses", "BIOSSES"),
)
DEVELOPMENT = StsTask("stsb-dev", "STSBenchmark", "validation")
SUITES = {"sts8": STS8}


def choose_tasks(suite: str, names: list[str] | None) -> list[StsTask]:
    """The tasks of a suite, or those of `names` (keys such as `sts12`, or mteb names such as `SICK-R`).

    Raises:
        InputError: an unknown suite or task; the message lists the known ones.
    """
    if suite not in SUITES:
        raise InputError(f"suite {suite!r}: unknown; known suites: {', '.join(SUITES)}")
    if names is None:
        return list(SUITES[suite])
    known = {task.mteb_name.lower(): task for task in SUITES[suite]}
    known |= {task.key: task for task in (*SUITES[suite], DEVELOPMENT)}
    chosen = []
    for name in names:
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            keys = ", ".join(task.key for task in (*SUITES[suite], DEVELOPMENT))
            raise InputError(f"task {name!r}: unknown in suite {suite!r}{hint} Known tasks: {keys}")
        chosen.append(known[name.lower()])
    return list(dict.fromkeys(chosen))


def _check_row(row: Any, where: str) -> tuple[str, str, float]:
    """The three fields of one row, or an InputError that names the file, the line and the field."""
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected a JSON object, found {type(row).__name__}")
    for field in FIELDS:
        if field not in row:
            raise InputError(f"{where}: field {field!r} is missing; expected the fields {', '.join(FIELDS)}")
    for field in FIELDS[:2]:
        if not isinstance(row[field], str):
            raise InputError(f"{where}: field {field!r} must be text, found {type(row[field]).__name__}")
    score = row["score"]
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise InputError(f"{where}: field 'score' must be a finite number, found {score!r}")
    return row["sentence1"], row["sentence2"], float(score)


def read_pairs(path: Path) -> PairFile:
    """Read one data file.

    Raises:
        InputError: not UTF-8, not JSON, a missing or ill-typed field (file and line are named), fewer than
            two distinct scores (a rank correlation would be undefined).
    """
    rows = []
    with open(path, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row = json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise InputError(f"{where}: not UTF-8 ({error.reason} at byte {error.start})") from None
            except json.JSONDecodeError as error:
                raise InputError(f"{where}: not valid JSON ({error.msg}); is the line cut?") from None
            rows.append(_check_row(row, where))
    first, second, scores = [list(column) for column in zip(*rows)] if rows else ([], [], [])
    if len(set(scores)) < 2:
        raise InputError(
            f"{path}: {len(rows)} pairs with {len(set(scores))} distinct scores; a rank needs two or more"
        )
    return PairFile(path, first, second, scores, sha256_file(path))


def find_pairs(folder: Path, tasks: list[StsTask]) -> tuple[dict[str, PairFile], list[str]]:
    """The data files of `tasks` in `folder`, and the keys of the tasks that have none there.

    Raises:
        InputError: the folder does not exist, or holds no file of any of the tasks.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such folder; --data takes a folder with files such as {STS8[0].file_name}"
        )
    found = {
        task.key: read_pairs(folder / task.file_name) for task in tasks if (folder / task.file_name).is_file()
    }
    missing = [task.key for task in tasks if task.key not in found]
    if not found:
        wanted = ", ".join(task.file_name for task in tasks)
        raise InputError(f"{folder}: none of the data files is there; expected at least one of {wanted}")
    return found, missing
