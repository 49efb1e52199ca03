"""The parity report as a person reads it: one line a case with every dtype, then padding, memory, verdict."""

from typing import Any


def render(report: dict[str, Any]) -> str:
    """The text of a report of `run_parity`."""
    versions = report["versions"]
    head = (
        f"parity of {report['model']['digest'][:16]}: transformers {versions['transformers']}, "
        f"torch {versions['torch']}, {report['threads']} threads, {report['tensors']} tensors"
    )
    if report["other_code"]:
        head += f"\n  the export carries other code than this package: {', '.join(report['other_code'])}"
    return "\n".join(
        [head, *_table(report), *_movements(report), *_memory(report), *_left_out(report), *_verdict(report)]
    )


def _table(report: dict[str, Any]) -> list[str]:
    names = list(dict.fromkeys(row["name"] for row in report["cases"]))
    width = max((len(name) for name in names), default=4)
    cells = {(row["name"], row["dtype"]): _cell(row) for row in report["cases"]}
    lines = [" ".join([f"  {'maximum difference':<{width}}", *(f"{dtype:>9}" for dtype in report["dtypes"])])]
    for name in names:
        values = (cells.get((name, dtype), "left out") for dtype in report["dtypes"])
        lines.append(" ".join([f"  {name:<{width}}", *(f"{value:>9}" for value in values)]))
    return lines


def _cell(row: dict[str, Any]) -> str:
    if row["problems"]:
        return "FAILED"
    return "refused" if row.get("refused") else f"{row['max_difference']:.3g}"


def _movements(report: dict[str, Any]) -> list[str]:
    lines = []
    for row in report["cases"]:
        if "movement" in row:
            moved = row["movement"]
            lines.append(
                f"  {row['name']}, {row['dtype']}: moves a vector by at most {moved['sentence_vectors']:.2g} "
                f"and a token state by {moved['token_states']:.2g}, alike on both sides"
            )
        elif row.get("refused"):
            lines.append(f"  {row['name']}, {row['dtype']}: refused by both sides ({row['refused']})")
    return lines


def _memory(report: dict[str, Any]) -> list[str]:
    lines = []
    for block in report["memory"]:
        peaks = ", ".join(f"{row['peak_mb']:.0f} MB at {row['length']:,}" for row in block["lengths"])
        last = block["lengths"][-1]
        lines.append(
            f"  peak memory of one row, {block['dtype']}, over the weights: {peaks} tokens; "
            f"largest single result {last['largest_result_mb']:.0f} MB; "
            f"{'linear in length' if block['linear'] else 'NOT linear in length'}"
        )
    return lines


def _left_out(report: dict[str, Any]) -> list[str]:
    if not report["left_out"]:
        return []
    return ["  left out:", *(f"    {text}" for text in report["left_out"])]


def _verdict(report: dict[str, Any]) -> list[str]:
    if report["passed"]:
        return [f"PASSED: maximum difference 0 over {len(report['cases'])} comparisons"]
    shown = "not comparable" if report["max_difference"] is None else f"{report['max_difference']:.3g}"
    return [f"FAILED: maximum difference {shown}", *(f"  {text}" for text in report["problems"][:20])]
