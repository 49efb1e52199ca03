"""The report of a consensus as text: input distribution, alignment table, geometry table.

Effective rank and CV of a set of vectors stand on one line. Recall of the maps is about teachers and
never shares a table with task scores.
"""

from typing import Any

from captionbert.artifacts.errors import InputError

_COLUMNS = (
    ("N/d", 7),
    ("R@1", 8),
    ("x chance", 10),
    ("in sample", 11),
    ("kept", 7),
    ("cosine", 9),
    ("shuffled", 10),
    ("constant", 10),
    ("dropped", 9),
)


def format_report(report: dict[str, Any]) -> str:
    """DIR/report.json as text for a terminal."""
    parts = []
    if "input" in report:
        parts.append(_input(report["input"]))
    if "alignment" in report:
        parts.append(_alignment(report["alignment"]))
    if "geometry" in report:
        parts.append(_geometry(report["geometry"]))
    if "shift" in report:
        s = report["shift"]
        verdict = "SHIFTED" if s["shifted"] else "alike"
        parts.append(
            f"Control corpus, characters: p99 {s['a']['p99']} -> {s['b']['p99']}, max {s['a']['max']} -> "
            f"{s['b']['max']}: {verdict}"
        )
    return "\n\n".join(parts)


def _input(block: dict[str, Any]) -> str:
    counts = ", ".join(f"{v} {k}" for k, v in block["counts"].items())
    lines = [f"Captions: {block['rows']} rows, {block['held_out_rows']} of them held out ({counts})"]
    for unit in ("characters", "tokens"):
        if unit in block:
            lengths = ", ".join(f"{k} {block[unit][k]}" for k in ("p50", "p90", "p99", "max"))
            by = f" (tokenizer of {block[unit]['tokenizer_of']})" if "tokenizer_of" in block[unit] else ""
            lines.append(f"  length in {unit}: {lengths}{by}")
    return "\n".join(lines)


def _alignment(block: dict[str, Any]) -> str:
    sample = block["sample"]
    heads = "".join(f"{head:>{width}}" for head, width in _COLUMNS)
    lines = [
        f"Alignment into the frame of {block['reference']} (frame {block['frame_id'][:12]}), fitted on "
        f"{sample['fit_rows']} rows, scored on {sample['score_rows']} others",
        f"  {'teacher':<18}{heads}",
    ]
    for name, row in block["teachers"].items():
        lines.append(f"  {name:<18}" + "".join(f"{v:>{w}}" for v, (_, w) in zip(_cells(row), _COLUMNS)))
        lines += [f"    warning: {w}" for w in row["warnings"]]
    lines.append("  cosines are centred; in sample is for comparison only")
    if "weights" in block:
        lines.append(
            "  weights of the mean: " + ", ".join(f"{name} {w:g}" for name, w in block["weights"].items())
        )
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> list[str]:
    """One teacher's cells under _COLUMNS."""
    out, inside, dropped = row["out_of_sample"], row["in_sample"], row["directions_dropped"]
    return [
        f"{row['rows_per_dimension']:.1f}",
        f"{out['recall_at_1']:.4f}",
        f"{out['chance_multiple']:.0f}",
        f"{inside['recall_at_1']:.4f}",
        f"{row['recall_kept']:.3f}",
        f"{out['centred_cosine']:.4f}",
        f"{row['shuffled']['centred_cosine']:.4f}",
        f"{row['constant']['centred_cosine']:.4f}",
        f"{dropped['teacher']}+{dropped['reference']}",
    ]


def _geometry(block: dict[str, Any]) -> str:
    lines = [
        "Geometry on the scored rows (effective rank beside simplex CV; CV of random unit vectors for scale)"
    ]
    lines.append(
        f"  {'vectors':<28}{'width':>6}{'rows':>7}{'eff. rank':>11}{'CV':>8}{'random':>8}{'self-cos':>10}"
    )
    for name, g in block.items():
        if ("effective_rank" in g) != ("cv" in g):
            raise InputError(f"geometry of {name}: effective rank and CV are reported together or not at all")
        lines.append(
            "  "
            f"{name:<28}{g['width']:>6}{g['rows']:>7}{g['effective_rank']:>11.1f}{g['cv']:>8.3f}{g['cv_random']:>8.3f}{g['self_cosine']:>10.3f}"
        )
    return "\n".join(lines)
