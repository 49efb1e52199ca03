"""`captionbert parity`: run every case on both sides, publish each comparison as it finishes, and sum up.

A case that is done is kept beside the report under a key of everything it depends on (both digests, the case,
dtype, versions, threads, processor, this code), so a killed full run continues where it stopped and a changed
export starts afresh. The verdict is "passed" only when nothing is missing and the maximum difference is 0.
"""

import platform
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import digest_json, read_json, sha256_file, write_json
from captionbert.artifacts.progress import progress
from captionbert.export.folder import REMOTE_FILES, verify_export
from captionbert.export.source import Source, read_source
from captionbert.parity.cases import DTYPES, PROFILES, Case, choose
from captionbert.parity.compare import compare_files, compare_hellos, padding_problems
from captionbert.parity.memory import measure_memory
from captionbert.parity.process import WORKER, Process, worker_environment

KIND = "captionbert-parity"
_PACKAGE_ROOT = Path(__file__).resolve().parent.parent
# Slow arithmetic does not change what is allocated, so memory is measured in the dtypes that are fast
# everywhere.
_MEMORY_DTYPES = ("fp32", "bf16")


def run_parity(
    checkpoint: str | Path,
    folder: str | Path,
    *,
    profile: str = "everyday",
    dtypes: Iterable[str] = DTYPES,
    json: Path | None = None,
    python: str | None = None,
    memory: bool = True,
) -> dict[str, Any]:
    """Compare an export with the checkpoint it came from.

    Args:
        checkpoint: as in `export_checkpoint`.
        folder: the exported folder.
        profile: "everyday" leaves out the long fp16 cases and says which; "longest" keeps one fp16
            row of the full length, "full" runs all.
        dtypes: of "fp32", "bf16", "fp16".
        json: where the report goes; finished cases are kept in a folder beside it and not run again.
        python: interpreter of both processes (another transformers version, say); None is this one. It needs
            torch, transformers and safetensors, not this package.
        memory: also measure peak memory at four lengths.

    Returns:
        The report: "passed", "max_difference" (None where a comparison was impossible), "cases", "left_out",
        "problems", "memory", "versions", "model" ...

    Raises:
        InputError: an unknown profile or dtype, a damaged folder, an export of another checkpoint.
        WorkerDied: a process ended without an answer.
    """
    dtypes = tuple(dtypes)
    _check_choices(profile, dtypes)
    source, record = read_source(checkpoint), verify_export(folder)
    if record["source_digest"] != source.digest:
        raise InputError(f"{folder}: was exported from another checkpoint than {checkpoint}; export again")
    folder = Path(folder).resolve()
    kept = json.with_name(json.name + ".cases") if json is not None else None
    with tempfile.TemporaryDirectory(prefix="captionbert-parity-") as name:
        bench = _Bench(source, record, folder, Path(name), kept, python)
        parts = [bench.compare_dtype(dtype, profile) for dtype in dtypes]
        measured = [bench.memory(dtype) for dtype in dtypes if memory and dtype in _MEMORY_DTYPES]
    report = _sum_up(parts, measured, record, profile, dtypes)
    if json is not None:
        write_json(json, report)
    return report


def _check_choices(profile: str, dtypes: tuple[str, ...]) -> None:
    if profile not in PROFILES:
        raise InputError(f"profile {profile!r}: unknown; choose one of {', '.join(PROFILES)}")
    unknown = [dtype for dtype in dtypes if dtype not in DTYPES]
    if unknown or not dtypes:
        raise InputError(f"dtypes {', '.join(dtypes) or '(none)'}: choose from {', '.join(DTYPES)}")


class _Bench:
    """Both sides of one parity run and the folder of finished comparisons."""

    def __init__(
        self,
        source: Source,
        record: dict[str, Any],
        folder: Path,
        scratch: Path,
        kept: Path | None,
        python: str | None,
    ) -> None:
        self.source, self.record, self.folder = source, record, folder
        self.scratch, self.kept, self.python = scratch, kept, python
        self.limit = source.config.max_position_embeddings

    def _settings(self, side: str, dtype: str) -> dict[str, Any]:
        return {
            "side": side,
            "dtype": dtype,
            "stored_dtype": {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[self.record["dtype"]],
            "folder": str(self.folder),
            "model_folder": str(self.source.model_folder.resolve()),
            "tokenizer_file": str(self.source.tokenizer_file.resolve()),
            "package_root": str(_PACKAGE_ROOT),
        }

    def compare_dtype(self, dtype: str, profile: str) -> dict[str, Any]:
        """All cases of a dtype: {"problems", "cases", "left_out", "versions", "threads", "tensors"}."""
        cases, left_out = choose(profile, dtype, self.limit)
        with (
            Process(
                self._settings("reference", dtype), scratch=self.scratch, python=self.python
            ) as reference,
            Process(self._settings("export", dtype), scratch=self.scratch, python=self.python) as export,
        ):
            problems = [f"{dtype}: {text}" for text in compare_hellos(reference.hello, export.hello)]
            common = {key: export.hello[key] for key in ("versions", "threads")}
            rows = [
                self._one(case, dtype, common, reference, export)
                for case in progress(cases, desc=f"parity {dtype}", unit="case")
            ]
        return {
            **common,
            "problems": problems,
            "cases": rows,
            "left_out": left_out,
            "tensors": len(export.hello["tensors"]),
        }

    def _one(
        self, case: Case, dtype: str, common: dict[str, Any], reference: Process, export: Process
    ) -> dict[str, Any]:
        """One comparison, from the kept ones or run now."""
        key = digest_json(
            {
                "source": self.source.digest,
                "export": self.record["digest"],
                "case": case.as_json(),
                "dtype": dtype,
                "worker": sha256_file(WORKER),
                "package": {name: sha256_file(_PACKAGE_ROOT / name) for name in REMOTE_FILES},
                "machine": [platform.machine(), platform.node(), _processor()],
                **common,
            }
        )
        place = self.kept / f"{key[:24]}.json" if self.kept is not None else None
        if place is not None and place.is_file():
            return read_json(place, kind="captionbert-parity-case")
        row: dict[str, Any] = {
            "kind": "captionbert-parity-case",
            "name": case.name,
            "dtype": dtype,
            "tokens": case.tokens,
        }
        row |= self._ask_both(case, reference, export)
        if case.study == "right" and dtype == "fp32" and "movement" in row:
            row["problems"] += padding_problems(row["movement"])
        if place is not None:
            write_json(place, row)
        return row

    def _ask_both(self, case: Case, reference: Process, export: Process) -> dict[str, Any]:
        files = [self.scratch / f"{side}.safetensors" for side in ("reference", "export")]
        left, right = (side.ask(case.as_json(), file) for side, file in zip((reference, export), files))
        if "refused" in left or "refused" in right:
            alike = left.get("refused") == right.get("refused") and case.may_refuse
            problem = [] if alike else [f"refused: {left.get('refused')!r} and {right.get('refused')!r}"]
            return {
                "max_difference": 0.0 if alike else None,
                "refused": right.get("refused"),
                "problems": problem,
            }
        result = compare_files(*files)
        for file in files:
            file.unlink()
        if result["max_difference"] == float(
            "inf"
        ):  # no JSON number; a value was not finite or of another form
            result |= {"max_difference": None, "mean_difference": None}
            result["problems"].append(f"{result['worst']}: not finite, or of another shape or dtype")
        return result

    def memory(self, dtype: str) -> dict[str, Any]:
        """Peak memory of the export at four lengths."""
        environment = worker_environment(self.scratch)
        return measure_memory(
            self.folder, dtype, self.limit, scratch=self.scratch, python=self.python, environment=environment
        )


def other_code(record: dict[str, Any]) -> list[str]:
    """Remote files of the export that differ from this package's: the likely cause of a difference."""
    return [name for name in REMOTE_FILES if record["files"].get(name) != sha256_file(_PACKAGE_ROOT / name)]


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def _sum_up(
    parts: list[dict[str, Any]],
    measured: list[dict[str, Any]],
    record: dict[str, Any],
    profile: str,
    dtypes: tuple[str, ...],
) -> dict[str, Any]:
    """The report. Every problem counts against "passed"; what was left out is named, not hidden."""
    cases = [row for part in parts for row in part["cases"]]
    problems = [text for part in parts for text in part["problems"]]
    problems += [f"{row['dtype']}: {row['name']}: {text}" for row in cases for text in row["problems"]]
    problems += [f"memory {row['dtype']}: {text}" for row in measured for text in row["problems"]]
    values = [row["max_difference"] for row in cases]
    largest = None if not values or None in values else max(values)
    return {
        "kind": KIND,
        "passed": largest == 0 and not problems,
        "max_difference": largest,
        "problems": problems,
        "profile": profile,
        "dtypes": list(dtypes),
        "longest": max((row["tokens"] for row in cases), default=0),
        "model": {
            "digest": record["digest"],
            "source_digest": record["source_digest"],
            "parameters": record["parameters"],
        },
        "other_code": other_code(record),
        "tensors": parts[0]["tensors"],
        "versions": parts[0]["versions"],
        "threads": parts[0]["threads"],
        "processor": _processor(),
        "cases": cases,
        "left_out": [text for part in parts for text in part["left_out"]],
        "memory": measured,
    }
