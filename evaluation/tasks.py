"""The STS tasks by name, and their data files.

A data file's name is the task's key and the split: `stsb-test.jsonl`, `sickr-test.jsonl`, `sts12-test.jsonl` ... and
`stsb-dev.jsonl`. `sts8` are the eight test sets whose equal-weight mean is quoted; `stsb-dev` never enters that mean.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path

from captionbert.artifacts.errors import InputError
from captionbert.probes.scored_pairs import ScoredPairs, read_pairs


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


def find_pairs(folder: Path, tasks: list[StsTask]) -> tuple[dict[str, ScoredPairs], list[str]]:
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
