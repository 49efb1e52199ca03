"""`captionbert evaluate`: Spearman of the cosine on STS, through mteb, and whose score it is.

Online, mteb fetches its own pinned revisions; with `data`, the pairs come from a folder of JSONL files and no
socket is opened. Scores are computed each time: the result cache is a temporary folder, and the digest of the
model is the revision mteb files them under. A result holds what is needed to repeat it: digests, settings,
library versions.
"""

import importlib.metadata
import logging
import platform
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import mteb
import torch
from datasets import Dataset, DatasetDict

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import write_json
from captionbert.artifacts.progress import progress
from captionbert.evaluation.geometry import geometry_block
from captionbert.evaluation.measured import MeasuredEncoder, MeasuredModel, open_measured
from captionbert.evaluation.tasks import DEVELOPMENT, StsTask, choose_tasks, find_pairs
from captionbert.probes.scored_pairs import ScoredPairs

KIND = "captionbert-evaluation"
# mteb announces at each call that a later version of STSBenchmark exists; the suite names this one on
# purpose.
logging.getLogger("mteb.abstasks.abstask").setLevel(logging.ERROR)
_LIBRARIES = ("mteb", "sentence-transformers", "transformers", "torch", "datasets", "scipy", "numpy")


def evaluate(
    folder: str | Path,
    *,
    suite: str = "sts8",
    tasks: list[str] | None = None,
    data: Path | None = None,
    json: Path | None = None,
    batch_size: int = 32,
    dtype: str = "fp32",
    max_length: int | None = None,
) -> dict[str, Any]:
    """Score a SentenceTransformer folder, a teacher or a consensus on STS.

    Args:
        folder: an exported folder, any SentenceTransformer folder, `packaged:minilm` or another teacher's word, or
            `consensus:DIR`.
        tasks: keys or mteb names; None means the whole suite, plus `stsb-dev` where `data` has its file.
        data: folder of JSONL files; None lets mteb download its pinned revisions.
        json: where to write the result.
        dtype: "fp32", "bf16" or "fp16"; the weights are cast on load, whatever the folder stores.
        max_length: tokens a text is cut to (64 is the papers' convention); None means the model's own limit.

    Returns:
        {"kind", "model": {name, folder, digest}, "tasks": {key: {spearman, pairs, data ...}}, "development",
        "mean", "mean_over", "missing", "geometry", "settings", "versions", "seconds"}. Spearman lies in
        -1..1.

    Raises:
        InputError: unusable folder, data file, task name, dtype or length; no network and no `data`.
    """
    started = time.monotonic()
    if batch_size < 1:
        raise InputError(f"batch_size {batch_size}: must be at least 1")
    chosen, pairs, missing = _choose_data(suite, tasks, data)
    measured = open_measured(folder, dtype=dtype, max_length=max_length, batch_size=batch_size)
    identity = measured.identity
    lines = _run(measured, chosen, pairs)
    geometry = geometry_block(measured.encode_texts, next(iter(pairs.values()))) if pairs else None
    measured.check()
    result = {
        "kind": KIND,
        "suite": suite,
        "model": {"name": identity.name, "folder": str(folder), "digest": identity.digest},
        **_summary(lines, missing),
        "geometry": geometry,
        "settings": {
            "batch_size": batch_size,
            "dtype": dtype,
            **measured.settings(),
            "threads": torch.get_num_threads(),
        },
        "versions": versions(),
        "seconds": round(time.monotonic() - started, 1),
    }
    if json is not None:
        write_json(json, result)
    return result


def versions() -> dict[str, str]:
    """Versions of the libraries a score can depend on."""
    return {name: importlib.metadata.version(name) for name in _LIBRARIES} | {
        "python": platform.python_version()
    }


def _choose_data(
    suite: str, names: list[str] | None, data: Path | None
) -> tuple[list[StsTask], dict[str, ScoredPairs], list[str]]:
    """The tasks to run, their pairs where a data folder is given, and the keys left without a file."""
    chosen = choose_tasks(suite, names)
    if data is None:
        return chosen, {}, []
    data = Path(data)
    if names is None and (data / DEVELOPMENT.file_name).is_file():
        chosen.append(DEVELOPMENT)
    pairs, missing = find_pairs(data, chosen)
    return [task for task in chosen if task.key in pairs], pairs, missing


def _prepare(task: StsTask, pairs: ScoredPairs | None) -> Any:
    """The mteb task object, its data in place."""
    prepared = mteb.get_task(task.mteb_name, eval_splits=[task.split])
    if pairs is not None:
        rows = {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.scores}
        prepared.dataset = DatasetDict({task.split: Dataset.from_dict(rows)})
        prepared.data_loaded = True
        return prepared
    try:
        prepared.load_data()
    except Exception as error:  # whatever the hub client raises: the advice is the same
        source = prepared.metadata.dataset
        raise InputError(
            f"task {task.key}: could not fetch {source['path']} at {source['revision']} "
            f"({type(error).__name__}: {error}). Without a network give --data DIR with {task.file_name}"
        ) from error
    return prepared


def _run(
    measured: MeasuredModel | MeasuredEncoder, chosen: list[StsTask], pairs: dict[str, ScoredPairs]
) -> dict[str, dict[str, Any]]:
    """One result line a task, keyed by task."""
    lines: dict[str, dict[str, Any]] = {}
    options: Any = {"batch_size": measured.batch_size}
    with tempfile.TemporaryDirectory(prefix="captionbert-mteb-") as cache:
        for task in progress(chosen, desc="STS", unit="task"):
            prepared = _prepare(task, pairs.get(task.key))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outcome = mteb.evaluate(
                    measured,
                    prepared,
                    cache=mteb.ResultCache(cache),
                    overwrite_strategy="always",
                    encode_kwargs=options,
                    co2_tracker=False,
                    show_progress_bar=False,
                )
            lines[task.key] = _line(task, prepared, outcome, pairs.get(task.key))
    return lines


def _line(task: StsTask, prepared: Any, outcome: Any, pairs: ScoredPairs | None) -> dict[str, Any]:
    scores = outcome.task_results[0].scores[task.split][0]
    if pairs is not None:
        source: dict[str, Any] = {"file": pairs.path.name, "sha256": pairs.sha256}
    else:
        source = {
            "dataset": prepared.metadata.dataset["path"],
            "revision": prepared.metadata.dataset["revision"],
        }
    return {
        "mteb_name": task.mteb_name,
        "split": task.split,
        "spearman": float(scores["cosine_spearman"]),
        "pairs": len(prepared.dataset[task.split]),
        "data": source,
    }


def _summary(lines: dict[str, dict[str, Any]], missing: list[str]) -> dict[str, Any]:
    """Test lines with their equal-weight mean; the development line stands alone."""
    development = lines.pop(DEVELOPMENT.key, None)
    values = [line["spearman"] for line in lines.values()]
    return {
        "tasks": lines,
        "mean": sum(values) / len(values) if values else None,
        "mean_over": list(lines),
        "missing": missing,
        "development": {DEVELOPMENT.key: development} if development else {},
    }


def render(result: dict[str, Any]) -> str:
    """The result as the table a person reads."""
    settings = result["settings"]
    rows = [
        f"{result['model']['name']}  (digest {result['model']['digest'][:16]}, {settings['dtype']}, "
        f"cut at {settings['max_length']} tokens)",
        "Spearman of cosine, through mteb:",
    ]
    rows += [
        f"  {key:<10} {line['spearman']:.4f}  {line['pairs']:>6} pairs"
        for key, line in result["tasks"].items()
    ]
    if result["mean"] is not None:
        rows.append(
            f"  {'mean':<10} {result['mean']:.4f}  over {len(result['mean_over'])} tasks, equal weights"
        )
    if result["missing"]:
        rows.append(f"  missing, no data file: {', '.join(result['missing'])}")
    rows += [
        f"  {key:<10} {line['spearman']:.4f}  {line['pairs']:>6} pairs (development, not in the mean)"
        for key, line in result["development"].items()
    ]
    if result["geometry"]:
        rows.append(result["geometry"]["line"])
    return "\n".join(rows)
