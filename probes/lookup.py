"""Does a head find the record of a repeated word? The lookup probe, on a frozen model.

Targets come from exact token tuples (word_records), attention from the model's pointer queries. For each query: the
probability on the record, whether no other token has as much (a tie is a miss), the probability on the token after the
record, and 1/T, what uniform attention over the caption's T tokens would give.

Legend: B captions, T tokens, Q queries, K heads.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import publish_file
from captionbert.attention_captionbert import PointerQueries
from captionbert.encoding_captionbert import batch_vectors, pad_right, token_batches, token_ids
from captionbert.probes.coverage import LONG, Coverage, nothing_to_look_up
from captionbert.probes.geometry import variety
from captionbert.probes.texts import Sample
from captionbert.probes.word_records import LookupTargets, Vocabulary, lookup_targets, queries_of

Head = tuple[int, int]  # layer counted from 1, head from 0
# Pointer outputs of one pass, K * Q * T numbers: longer lists of queries take several passes.
_MOST_NUMBERS = 1 << 25
SEARCH_NOTE = (
    "search: the best head of each layer, chosen on these same queries; an upper bound, which one of many heads may "
    "reach by chance, and not the configured head"
)


@dataclass(frozen=True, eq=False)
class Readings:
    """What K heads gave to Q queries.

    Attributes:
        heads: the K heads. targets: the queries, rows numbered as the ids were given.
        probability, after: float32 [K, Q], on the record and on the token after it. top_one: bool [K, Q].
        tokens: int64 [Q], T of the query's caption. agrees: bool [Q], the model's own record of the query's word is
            this one; None for a model without word keys.
        vectors: float32 [B, E], the sentence vectors of the same passes.
    """

    heads: tuple[Head, ...]
    targets: LookupTargets
    probability: np.ndarray
    after: np.ndarray
    top_one: np.ndarray
    tokens: np.ndarray
    agrees: np.ndarray | None
    vectors: np.ndarray


def configured_head(config: Any) -> Head | None:
    """The designated head of a config, None where it has none."""
    layer = getattr(config, "lookup_layer", None)
    return None if layer is None else (layer, config.lookup_head)


def parse_head(text: str) -> Head:
    """LAYER:HEAD as two numbers. Raises InputError for anything else."""
    layer, _, head = text.partition(":")
    if not (layer.isdecimal() and head.isdecimal() and len(text) < 20):
        raise InputError(
            f"head {text[:30]!r}: expected LAYER:HEAD, the layer counted from 1, the head from 0"
        )
    return int(layer), int(head)


def check_head(head: Head, config: Any) -> Head:
    """The head itself. Raises InputError where the model has no such head."""
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    if not (1 <= head[0] <= layers and 0 <= head[1] < heads):
        raise InputError(
            f"head {head[0]}:{head[1]}: this model has layers 1..{layers} with heads 0..{heads - 1} each"
        )
    return head


def read_queries(
    model: Any, ids: list[list[int]], targets: LookupTargets, heads: Sequence[Head], batch_tokens: int = 4096
) -> Readings:
    """Run the model over all rows and read the heads at the queries.

    Args:
        model: in evaluation mode.
        ids: rows of token ids with special tokens, not padded, each within the model's limit.
        targets: of these rows.
        batch_tokens: tokens of one forward pass.

    Raises:
        InputError: the model's vectors are not finite.
    """
    queries, count = len(targets), len(heads)
    probability, after = (np.zeros((count, queries), dtype=np.float32) for _ in range(2))
    top_one = np.zeros((count, queries), dtype=bool)
    agrees = np.zeros(queries, dtype=bool) if _has_keys(model) else None
    vectors = np.empty((len(ids), model.config.projection_dim), dtype=np.float32)
    lengths = np.array([len(row) for row in ids], dtype=np.int64)
    with torch.inference_mode():
        for part in token_batches(lengths.tolist(), batch_tokens):
            batch = [ids[i] for i in part]
            row, own = targets.in_part(part, len(ids))
            if not len(own):
                vectors[part] = batch_vectors(model, batch).float().cpu().numpy()
                continue
            if agrees is not None:
                agrees[own] = own_records_agree(model, batch, row, targets.position[own], targets.record[own])
            step = max(1, _MOST_NUMBERS // (count * len(batch[0])))
            for start in range(0, len(own), step):
                some = own[start : start + step]
                found = _read(model, batch, row[start : start + step], targets, some, tuple(heads))
                vectors[part], probability[:, some], after[:, some], top_one[:, some] = found
    check_finite(vectors)
    return Readings(tuple(heads), targets, probability, after, top_one, lengths[targets.row], agrees, vectors)


def _read(
    model: Any, batch: list[list[int]], row: np.ndarray, targets: LookupTargets, own: np.ndarray, heads: Any
) -> tuple[np.ndarray, ...]:
    """Vectors [b, E] of a batch, and probability, after, top-one [K, q] of its queries `own`."""
    device = model.device
    at = PointerQueries(
        torch.from_numpy(row).to(device), torch.from_numpy(targets.position[own]).to(device), heads
    )
    vectors, log_probs = batch_vectors(model, batch, at)  # [K, q, T]
    record = torch.from_numpy(targets.record[own]).to(device).expand(len(heads), -1)[..., None]  # [K, q, 1]
    # A record lies before its query, so there is a token after it.
    after = log_probs.gather(2, record + 1)[..., 0].exp()
    found = vectors.float(), log_probs.gather(2, record)[..., 0].exp(), after, finds(log_probs, record)
    return tuple(x.cpu().numpy() for x in found)


def finds(log_probs: torch.Tensor, record: torch.Tensor) -> torch.Tensor:
    """Whether no other token has as much as the record: bool [..., Q] of [..., Q, T] and record places [..., Q, 1]."""
    others = log_probs.scatter(-1, record, -torch.inf).amax(dim=-1)
    return log_probs.gather(-1, record)[..., 0] > others


def check_finite(values: np.ndarray) -> None:
    """Refuse a model that gives NaN or infinity: no share or mean of it says anything.

    Raises:
        InputError: some of `values` are not finite.
    """
    if not np.isfinite(values).all():
        raise InputError(
            "the model's outputs are not finite: its weights hold NaN or infinity, or overflow at this number type; "
            "try --dtype fp32, and look at the training's metrics.jsonl"
        )


def _has_keys(model: Any) -> bool:
    return getattr(model.config, "continuation_bitmap", None) is not None


def own_records_agree(
    model: Any, batch: list[list[int]], row: np.ndarray, position: np.ndarray, record: np.ndarray
) -> np.ndarray:
    """Whether the model's hashes lead from each query to the same record as the token tuples: bool [q].

    The model's record of a query is the one token that it marks as a record and that has the query's key hashes.
    """
    # the code that this model runs, which may be its folder's and not this package's
    code = sys.modules[type(model).__module__]
    config = model.config
    ids, mask = pad_right(batch)
    visible = mask.bool()
    continuation = code.decode_bitmap(config.continuation_bitmap, ids.device)
    words = code.word_pieces(ids, visible, config.special_token_ids, continuation)
    records = code.record_positions(ids, words)  # [b, T]
    hashes = code.key_hashes(ids, words, config.hash_seed, 2)
    name = (hashes[..., 0] << 31) ^ hashes[..., 1]  # [b, T] int64
    agrees = np.zeros(len(row), dtype=bool)
    for start in range(0, len(row), 1024):
        some = slice(start, start + 1024)
        rows, places = torch.from_numpy(row[some]), torch.from_numpy(position[some])
        mine = records[rows] & (name[rows] == name[rows, places][:, None])  # [q, T]
        right = mine[torch.arange(len(rows)), torch.from_numpy(record[some])] & (mine.sum(dim=1) == 1)
        agrees[some] = right.numpy()
    return agrees


def subsets(readings: Readings) -> dict[str, np.ndarray]:
    """The subsets of the table by name: bool [Q] each."""
    targets = readings.targets
    return {
        "all": np.ones(len(targets), dtype=bool),
        "ending": targets.ending,
        "non-ending": ~targets.ending,
        "continuation": targets.continuation,
        f"over {LONG} tokens": readings.tokens > LONG,
    }


def _means(values: np.ndarray, rows: np.ndarray, *, median: bool = True) -> dict[str, float]:
    """Query mean, caption mean (each caption counts once) and median of values [q] of captions `rows` [q]."""
    _, caption = np.unique(rows, return_inverse=True)
    each = np.bincount(caption, weights=values) / np.bincount(caption)
    found = {"query_mean": float(values.mean(dtype=np.float64)), "caption_mean": float(each.mean())}
    return found | ({"median": float(np.median(values))} if median else {})


def summarise(readings: Readings, head: int = 0) -> dict[str, dict[str, Any]]:
    """The table of one head: a block a subset; a subset without queries has its counts alone."""
    table: dict[str, dict[str, Any]] = {}
    for name, chosen in subsets(readings).items():
        rows = readings.targets.row[chosen]
        block: dict[str, Any] = {"queries": len(rows), "captions": len(np.unique(rows))}
        if len(rows):
            block["top_one"] = _means(readings.top_one[head, chosen].astype(float), rows, median=False)
            block["probability"] = _means(readings.probability[head, chosen], rows)
            block["probability_after"] = _means(readings.after[head, chosen], rows)
            block["uniform"] = _means(1.0 / readings.tokens[chosen], rows)
        table[name] = block
    return table


def best_heads(readings: Readings, heads_a_layer: int) -> list[dict[str, Any]]:
    """Of each layer the head with the largest top-one share (then probability), of readings of all heads in order."""
    score = (
        readings.top_one.mean(axis=1, dtype=np.float64),
        readings.probability.mean(axis=1, dtype=np.float64),
    )
    best = []
    for start in range(0, len(readings.heads), heads_a_layer):
        number = max(range(start, start + heads_a_layer), key=lambda k: (score[0][k], score[1][k]))
        layer, head = readings.heads[number]
        best.append(
            {
                "layer": layer,
                "head": head,
                "top_one": float(score[0][number]),
                "probability": float(score[1][number]),
            }
        )
    return best


@dataclass(frozen=True, eq=False)
class LookupProbe:
    """A finished probe: the JSON report, and the arrays to look at it again."""

    report: dict[str, Any]
    arrays: dict[str, np.ndarray]


def chosen_heads(config: Any, head: Head | None, search: bool) -> tuple[Head | None, tuple[Head, ...]]:
    """The head that is reported, if any, and all heads to read.

    Raises:
        InputError: a model without a designated head, and neither a head nor a search was asked for.
    """
    own = configured_head(config) if head is None else check_head(head, config)
    if own is None and not search:
        raise InputError(
            f"a model with position_type {config.position_type!r} has no designated head: name one with --head "
            "LAYER:HEAD, or add --search-heads"
        )
    if not search:
        return own, (own,) if own else ()
    layers, heads = range(1, config.num_hidden_layers + 1), range(config.num_attention_heads)
    return own, tuple((layer, head) for layer in layers for head in heads)


def probe_lookup(
    model: Any,
    tokenizer: Any,
    sample: Sample,
    *,
    head: Head | None = None,
    search: bool = False,
    max_length: int | None = None,
    batch_tokens: int = 4096,
) -> LookupProbe:
    """The lookup probe of a model on a sample of captions.

    Args:
        head: the head to report instead of the configured one.
        search: also read every head and report the best of each layer.
        max_length: captions are cut at so many tokens; None cuts at 256, or at the model's limit if that is less.

    Raises:
        InputError: no designated head, a head or length out of range, or captions in which no word repeats.
    """
    own, heads = chosen_heads(model.config, head, search)
    length = checked_length(model.config, max_length)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    ids = token_ids(tokenizer, sample.texts, length)
    targets = require_targets(ids, vocabulary, sample, model.config)
    readings = read_queries(model, ids, targets, heads, batch_tokens)
    coverage = Coverage(vocabulary, length, boundary_tokens=())
    coverage.add(ids)
    lengths = np.array([len(row) for row in ids])
    report: dict[str, Any] = {
        "kind": "lookup-probe",
        "sample": sample.as_dict(),
        "max_length": length,
        "queries": queries_of(model.config),
        "lengths": {"mean": coverage.lengths.mean, **coverage.lengths.spread()},
        "query_variety": str(variety(lengths, readings.vectors)) if len(ids) >= 5 else None,
        "target_agreement": None if readings.agrees is None else float(readings.agrees.mean()),
    }
    if own is not None:
        by = "configured" if head is None else "given"
        report["head"] = {"layer": own[0], "head": own[1], "chosen_by": by}
        report["lookup"] = summarise(readings, heads.index(own))
    if search:
        best = best_heads(readings, model.config.num_attention_heads)
        report["search"] = {"note": SEARCH_NOTE, "best_of_layer": best}
    return LookupProbe(report, _arrays(readings, sample, own))


def checked_length(config: Any, max_length: int | None) -> int:
    """The length to cut at. Raises InputError where the model cannot read it."""
    limit = config.max_position_embeddings
    length = min(256, limit) if max_length is None else max_length
    if not 2 <= length <= limit:
        raise InputError(f"max_length is {length}: this model reads 2 to {limit} tokens")
    return length


def require_targets(
    ids: list[list[int]], vocabulary: Vocabulary, sample: Sample, config: Any
) -> LookupTargets:
    """The queries of a sample for a model of this config. Raises InputError where there are none."""
    targets = lookup_targets(ids, vocabulary, queries_of(config))
    if not len(targets):
        raise nothing_to_look_up(", ".join(sample.identity), len(ids))
    return targets


def _arrays(readings: Readings, sample: Sample, own: Head | None) -> dict[str, np.ndarray]:
    """Row numbers of the sample, and a column a query; `heads` [K, 2] names the first axis of [K, Q] arrays."""
    targets = readings.targets
    arrays = {
        "sample_rows": sample.rows,  # [B], number of each caption in its file
        "heads": np.array(readings.heads, dtype=np.int64),
        "configured": np.array([own == head for head in readings.heads], dtype=bool),
        "row": sample.rows[targets.row],
        "position": targets.position,
        "record": targets.record,
        "tokens": readings.tokens,
        "ending": targets.ending,
        "continuation": targets.continuation,
        "probability": readings.probability,
        "probability_after": readings.after,
        "top_one": readings.top_one,
        "uniform": 1.0 / readings.tokens,
    }
    return arrays if readings.agrees is None else arrays | {"agrees": readings.agrees}


def save_arrays(probe: LookupProbe, path: str | Path) -> None:
    """Write the arrays as .npz, whole or not at all."""
    arrays: dict[str, Any] = dict(probe.arrays)
    with publish_file(path) as temporary, open(temporary, "wb") as stream:
        np.savez_compressed(stream, **arrays)


def render(report: dict[str, Any]) -> str:
    """The report as printed: variety first, then the table, then the search under its own name."""
    sample, lengths = report["sample"], report["lengths"]
    lines = [
        f"{sample['rows']} of {sample['of']} captions (seed {sample['seed']}), cut at {report['max_length']} tokens: "
        f"mean {lengths['mean']:.1f}, p99 {lengths['p99']}, max {lengths['max']}",
        report["query_variety"] or "query variety: fewer than 5 captions",
        _agreement(report["target_agreement"]),
    ]
    if "head" in report:
        head = report["head"]
        lines += [
            f"{head['chosen_by']} head: layer {head['layer']}, head {head['head']}",
            *_table(report["lookup"]),
        ]
    if "search" in report:
        lines += ["", report["search"]["note"]]
        lines += [
            f"  layer {b['layer']:>2}  head {b['head']:>2}  top-one {b['top_one']:7.2%}  "
            f"probability {b['probability']:.4f}"
            for b in report["search"]["best_of_layer"]
        ]
    return "\n".join(lines)


def _agreement(share: float | None) -> str:
    if share is None:
        return "records: this model has no word keys of its own to compare with"
    fault = "" if share == 1 else "  <- must be 1: the model reads other records than the token tuples give"
    return f"records: the model's own agree with the token tuples on {share:.4%} of the queries{fault}"


_COLUMNS = ("top-one", "P(record)", "by caption", "median", "P(next)", "uniform")


def _table(table: dict[str, dict[str, Any]]) -> list[str]:
    lines = [f"{'subset':<16}{'queries':>9}{'captions':>10}" + "".join(f"{c:>12}" for c in _COLUMNS)]
    for name, block in table.items():
        start = f"{name:<16}{block['queries']:>9,}{block['captions']:>10,}"
        if not block["queries"]:
            lines.append(start + f"{'-':>12}" * len(_COLUMNS))
            continue
        p = block["probability"]
        numbers = (p["query_mean"], p["caption_mean"], p["median"], block["probability_after"]["query_mean"])
        cells = [f"{block['top_one']['query_mean']:.2%}", *(f"{x:.4f}" for x in numbers)]
        lines.append(start + "".join(f"{c:>12}" for c in (*cells, f"{block['uniform']['query_mean']:.4f}")))
    return lines
