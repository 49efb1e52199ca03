"""numbers.json: the only place where a measured number is written, each with the command that made it.

    {"kind": "captionbert-numbers", "numbers": [
        {"model_digest", "group", "name", "value", "note", "command", "date", "versions"}]}

A number belongs to one model digest: the card of another export never shows it. The file is written by
commands; the repository ships none with made-up figures.
"""

import datetime
from pathlib import Path
from typing import Any

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import read_json, write_json

KIND = "captionbert-numbers"


def read_numbers(path: Path | None) -> list[dict[str, Any]]:
    """The numbers in a file; none where there is no file. Raises InputError on a damaged one."""
    if path is None or not Path(path).is_file():
        return []
    return list(read_json(path, kind=KIND)["numbers"])


def numbers_of(result: dict[str, Any], command: str) -> list[dict[str, Any]]:
    """The numbers of one result of `evaluate` or `parity`.

    Raises:
        InputError: a result of another kind, or one that did not pass (a card must not quote it).
    """
    readers = {"captionbert-evaluation": _evaluation_rows, "captionbert-parity": _parity_rows}
    kind = str(result.get("kind"))
    if kind not in readers:
        raise InputError(
            f"no card numbers in a result of kind {kind!r}; expected one of {', '.join(readers)}"
        )
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    common = {
        "model_digest": result["model"]["digest"],
        "command": command,
        "date": today,
        "versions": result["versions"],
    }
    return [{**common, **row} for row in readers[kind](result)]


def add_numbers(path: Path, rows: list[dict[str, Any]]) -> None:
    """Put numbers into a file; one with the same model, group and name replaces the earlier one."""
    fresh = {_key(row) for row in rows}
    kept = [row for row in read_numbers(path) if _key(row) not in fresh]
    write_json(path, {"kind": KIND, "numbers": kept + rows})


def _key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["model_digest"], row["group"], row["name"]


def _evaluation_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    settings = result["settings"]
    note = f"{settings['dtype']}, at most {settings['max_length']} tokens"
    rows = [
        {
            "group": "sts",
            "name": line["mteb_name"],
            "value": line["spearman"],
            "note": f"{line['pairs']} pairs, {note}",
        }
        for line in result["tasks"].values()
    ]
    if result["mean"] is not None:
        over = ", ".join(result["mean_over"])
        rows.append(
            {"group": "sts", "name": "mean", "value": result["mean"], "note": f"equal weights over {over}"}
        )
    return rows


def _parity_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    if not result["passed"]:
        raise InputError(
            "this parity report did not pass: its export is not to be published, so no card quotes it"
        )
    versions = result["versions"]
    return [
        {
            "group": "parity",
            "name": f"transformers {versions['transformers']}, torch {versions['torch']}",
            "value": result["max_difference"],
            "note": f"{len(result['cases'])} cases, {', '.join(result['dtypes'])}, "
            f"up to {result['longest']} tokens",
        }
    ]
