"""The README of an exported folder: template, captionbert.json, config.json, the numbers of this digest."""

from pathlib import Path
from string import Template
from typing import Any

from captionbert.artifacts.files import publish_file, read_json
from captionbert.model_card.numbers import read_numbers

TEMPLATE = Path(__file__).with_name("template.md")
_NO_FIGURES = (
    "No figure was measured on this export yet; `captionbert evaluate` and `captionbert parity` do that. "
    "A figure appears here only with the command that made it."
)


def write_card(folder: Path, *, name: str | None = None, numbers: Path | None = None) -> Path:
    """Write README.md into an exported folder.

    Args:
        folder: the export; its `captionbert.json` and `config.json` are read.
        name: the model's name; None takes the folder's.
        numbers: a numbers file; only rows of this export's digest are shown.

    Raises:
        InputError: a missing or damaged JSON file.
    """
    record, config = read_json(folder / "captionbert.json"), read_json(folder / "config.json")
    rows = [row for row in read_numbers(numbers) if row["model_digest"] == record["digest"]]
    text = render_card(name or folder.resolve().name, record, config, rows)
    with publish_file(folder / "README.md") as temporary:
        temporary.write_text(text, encoding="utf-8")
    return folder / "README.md"


def render_card(name: str, record: dict[str, Any], config: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The card's text; `rows` are numbers as in numbers.json, already those of this model."""
    left = config["position_type"] == "rotary" and config["pooling"] != "cls"
    fields = {
        "name": name,
        "parameters": f"{record['parameters']:,}",
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "embedding": config["projection_dim"],
        "length": f"{config['max_position_embeddings']:,}",
        "tokens": config["max_position_embeddings"],
        "positions": config["position_type"],
        "pooling": config["pooling"],
        "dtype": record["dtype"],
        "digest": record["digest"],
        "form": record["sentence_transformers_form"],
        "requires": _requires(record),
        "left_padding": "Left and right padding give the same vector."
        if left
        else "Pad on the right; left padding is refused.",
        "lineage": _lineage(record["lineage"]),
        "figures": _figures(rows),
    }
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(fields)


def _requires(record: dict[str, Any]) -> str:
    own = record["sentence_transformers_form"] == "own head"
    return "sentence-transformers 5.4 or newer" if own else "also versions before 5.4"


def _lineage(lineage: dict[str, Any]) -> str:
    """The run's identities as a table; nested values are left to captionbert.json."""
    plain = {
        key: value for key, value in lineage.items() if isinstance(value, str | int | float) and key != "kind"
    }
    if not plain:
        return "The checkpoint carried no record of its training run."
    return "\n".join(
        ["| identity | value |", "|---|---|", *(f"| {key} | `{value}` |" for key, value in plain.items())]
    )


def _figures(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return _NO_FIGURES
    parts = []
    sts = [row for row in rows if row["group"] == "sts"]
    if sts:
        parts += ["Semantic textual similarity, Spearman correlation of the cosine, through mteb:", ""]
        parts += ["| task | Spearman | conditions |", "|---|---|---|"]
        parts += [f"| {row['name']} | {row['value']:.4f} | {row['note']} |" for row in sts]
        parts.append("")
    parity = [row for row in rows if row["group"] == "parity"]
    if parity:
        parts += ["Largest difference between the training checkpoint and this export, on one machine:", ""]
        parts += ["| environment | difference | cases |", "|---|---|---|"]
        parts += [f"| {row['name']} | {row['value']:g} | {row['note']} |" for row in parity]
        parts.append("")
    commands = dict.fromkeys(f"`{row['command']}` ({row['date']})" for row in rows)
    return "\n".join([*parts, "Measured by " + "; ".join(commands) + "."])
