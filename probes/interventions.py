"""Frozen interventions: a trained model is measured intact and under every condition of conditions.py.

Digests of all tensors and of the config are compared before and after: no number counts unless they are equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.progress import progress
from captionbert.consensus.captions import open_corpus
from captionbert.consensus.targets import open_targets
from captionbert.encoding_captionbert import token_ids
from captionbert.probes.conditions import conditions, identity
from captionbert.probes.geometry import geometry, target_cosine
from captionbert.probes.lookup import (
    Head,
    check_head,
    checked_length,
    configured_head,
    read_queries,
    require_targets,
    summarise,
)
from captionbert.probes.scored_pairs import ScoredPairs, pair_spearman, read_pairs
from captionbert.probes.texts import Sample
from captionbert.probes.word_records import LookupTargets, Vocabulary

_LEAST_ROWS = 5  # fewer vectors span no simplex


def registered_seed(path: str | Path) -> tuple[int, str] | None:
    """The seed of a run and a note on its start, from config/recipe.yaml of the run that `path` is or lies in.

    None where there is no such file.

    Raises:
        InputError: the recipe has no whole seed.
    """
    path = Path(path).resolve()
    for folder in (path, *list(path.parents)[:3]):  # RUN/checkpoints/final/model is the deepest
        file = folder / "config" / "recipe.yaml"
        if not file.is_file():
            continue
        try:
            recipe = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InputError(f"{file}: not a YAML file ({error}); it is damaged") from None
        seed = recipe.get("seed") if isinstance(recipe, dict) else None
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
            raise InputError(f"{file}: expected a whole number from 0 to 2^63 - 1 as seed, found {seed!r}")
        section = recipe.get("model")
        source = section.get("init_embeddings_from") if isinstance(section, dict) else None
        note = f" (the run's token table began as {source}; here it is random)" if source else ""
        return seed, note
    return None


# ---- what is measured -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Material:
    """What each condition is measured on; everything but the captions may be absent.

    Attributes:
        ids, targets: the caption sample and its lookups; None where the model has no head to read.
        head: that is read.
        pair_ids, pairs: STS-B dev, first sentences, then second.
        held_ids, held_targets: held-out captions of a consensus and their target vectors [n, E].
        about: where all of it comes from, for the report.
    """

    ids: list[list[int]]
    targets: LookupTargets | None
    head: Head | None
    pair_ids: list[list[int]]
    pairs: ScoredPairs | None
    held_ids: list[list[int]]
    held_targets: np.ndarray | None
    about: dict[str, Any]


def gather(
    model: Any,
    tokenizer: Any,
    sample: Sample,
    *,
    head: Head | None = None,
    dev_pairs: Path | None = None,
    consensus: Path | None = None,
    max_length: int | None = None,
) -> Material:
    """Read and tokenise what the conditions are measured on.

    Raises:
        InputError: a missing or unfit file, captions in which no word repeats, a consensus without held-out rows or
            with targets of another width.
    """
    length = checked_length(model.config, max_length)
    own = configured_head(model.config) if head is None else check_head(head, model.config)
    ids = token_ids(tokenizer, sample.texts, length)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    targets = require_targets(ids, vocabulary, sample, model.config) if own else None
    about: dict[str, Any] = {"sample": sample.as_dict(), "max_length": length}
    pairs, pair_ids = None, []
    if dev_pairs is not None:
        pairs = read_pairs(dev_pairs)
        pair_ids = token_ids(tokenizer, pairs.first + pairs.second, length)
        about["dev_pairs"] = {pairs.path.name: pairs.sha256, "pairs": len(pairs.scores)}
    held_ids, held_targets = [], None
    if consensus is not None:
        texts, held_targets, about["held_out"] = _held_out(consensus, model.config.projection_dim)
        held_ids = token_ids(tokenizer, texts, length)
    return Material(ids, targets, own, pair_ids, pairs, held_ids, held_targets, about)


def _held_out(consensus: Path, width: int) -> tuple[list[str], np.ndarray, dict[str, Any]]:
    """Texts and targets [n, E] of the rows that a consensus keeps out of training."""
    corpus = open_corpus(consensus / "corpus")
    targets = open_targets(consensus, corpus=corpus)
    rows = np.flatnonzero(corpus.held_out)
    if len(rows) < _LEAST_ROWS:
        raise InputError(f"{consensus}: {len(rows)} held-out captions; a target cosine needs {_LEAST_ROWS}")
    if targets.width != width:
        raise InputError(
            f"{targets.folder}: targets of {targets.width} coordinates, the model's vectors have {width}; give the "
            "consensus that the model was trained on"
        )
    about = {"corpus": corpus.digest, "frame_id": targets.frame_id, "rows": len(rows)}
    return corpus.texts(rows), targets.vectors(rows), about


def measure(model: Any, material: Material, batch_tokens: int = 4096) -> dict[str, Any]:
    """The gauges of the model as it is now."""
    found: dict[str, Any] = {}
    none = LookupTargets(*(np.zeros(0, dtype=kind) for kind in (np.int64, np.int64, np.int64, bool, bool)))

    def vectors_of(ids: list[list[int]]) -> np.ndarray:
        return read_queries(model, ids, none, [(1, 0)], batch_tokens).vectors

    if material.targets is not None and material.head is not None:
        readings = read_queries(model, material.ids, material.targets, [material.head], batch_tokens)
        vectors = readings.vectors
        found["lookup"] = summarise(readings)
        agrees = readings.agrees
        found["target_agreement"] = None if agrees is None else float(agrees.mean())
    else:
        vectors = vectors_of(material.ids)
    if material.pairs is not None:
        found["dev_spearman"] = pair_spearman(vectors_of(material.pair_ids), material.pairs.scores)
    if material.held_targets is not None:
        vectors = vectors_of(material.held_ids)
        found["target_cosine"] = target_cosine(vectors, material.held_targets)
    if len(vectors) >= _LEAST_ROWS:
        found["geometry"] = geometry(vectors).as_dict()
    return found


def probe_interventions(
    model: Any,
    material: Material,
    *,
    seed: int | None,
    seed_note: str = "",
    batch_tokens: int = 4096,
) -> dict[str, Any]:
    """Measure the intact model and every condition; the JSON report.

    Raises:
        RuntimeError: tensors or config are not bit-identical afterwards.
    """
    before = identity(model)
    rows: list[dict[str, Any]] = [
        {"name": "intact", "applies": True, **measure(model, material, batch_tokens)}
    ]
    for condition in progress(conditions(seed, seed_note), desc="interventions", unit="condition"):
        row = {
            "name": condition.name,
            "removes": condition.removes,
            "also": condition.also,
            "refuted_by": condition.refuted_by,
        }
        missing = condition.missing(model.config)
        if missing is not None:
            rows.append(row | {"applies": False, "why_not": missing})
            continue
        with condition.apply(model):
            rows.append(row | {"applies": True, **measure(model, material, batch_tokens)})
        _require_same(before, identity(model), condition.name)
    return {
        "kind": "interventions",
        **material.about,
        "head": None if material.head is None else {"layer": material.head[0], "head": material.head[1]},
        "seed": seed,
        "conditions": rows,
        "identity": {"before": before, "after": identity(model)},
    }


def _require_same(before: dict[str, str], after: dict[str, str], name: str) -> None:
    if before != after:
        changed = [part for part in before if before[part] != after[part]]
        raise RuntimeError(
            f"after the condition {name!r} the model's {' and '.join(changed)} are not what they were; this is a fault "
            "of the probe, and no number of this run counts"
        )


# ---- printed ----------------------------------------------------------------------------------------------


def render(report: dict[str, Any]) -> str:
    """The report as a table, then what each condition removes."""
    head, sample = report["head"], report["sample"]
    where = "no head to read" if head is None else f"layer {head['layer']}, head {head['head']}"
    columns = ("top-one", "P(record)", "non-ending", "dev Spearman", "target cos", "eff. rank", "CV")
    lines = [
        f"{sample['rows']} of {sample['of']} captions (seed {sample['seed']}), cut at {report['max_length']} tokens; "
        f"lookup: {where}",
        f"{'condition':<17}" + "".join(f"{c:>13}" for c in columns),
    ]
    for row in report["conditions"]:
        if row["applies"]:
            lines.append(f"{row['name']:<17}" + "".join(f"{cell:>13}" for cell in _cells(row)))
        else:
            lines.append(f"{row['name']:<17}  does not apply: {row['why_not']}")
    random = next((r["geometry"]["cv_random"] for r in report["conditions"] if "geometry" in r), None)
    if random is not None:
        lines.append(f"CV of random unit vectors of this width: {random:.3f}")
    for row in report["conditions"][1:]:
        if row["applies"]:
            lines += ["", f"{row['name']}: removes {row['removes']}.", f"  With it: {row['also']}."]
            lines.append(f"  It would be refuted by: {row['refuted_by']}.")
    same = report["identity"]["before"] == report["identity"]["after"]
    lines += ["", f"model bit-identical afterwards: {'yes' if same else 'NO'}"]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> Sequence[str]:
    table, gauges = row.get("lookup", {}), row.get("geometry")
    whole, inner = (table.get(name, {}) for name in ("all", "non-ending"))

    def share(block: dict[str, Any]) -> str:
        return f"{block['top_one']['query_mean']:.2%}" if "top_one" in block else "-"

    return (
        share(whole),
        f"{whole['probability']['query_mean']:.4f}" if "probability" in whole else "-",
        share(inner),
        f"{row['dev_spearman']:.4f}" if "dev_spearman" in row else "-",
        f"{row['target_cosine']:.4f}" if "target_cosine" in row else "-",
        f"{gauges['effective_rank']:.1f}" if gauges else "-",
        f"{gauges['cv']:.3f}" if gauges else "-",
    )
