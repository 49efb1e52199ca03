"""What is this folder? Any folder of the line, told by its own files: `describe` for `captionbert info`.

Knows an export, a checkpoint, a training run, a consensus, a corpus, teacher shards, targets, and the
folder of a whole `distill`. Reads JSON and safetensors headers only: nothing is loaded, nothing is
verified but what is said to be.
"""

import json
import struct
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import digest_json, read_json, sha256_file

Facts = dict[str, Any]


def describe(folder: str | Path) -> Facts:
    """The facts about a folder: "kind", "folder", "bytes" and what belongs to its kind, identities included.

    Raises:
        InputError: there is no such folder, or it is none that this program writes.
    """
    folder = Path(folder)
    if not folder.exists():
        raise InputError(f"{folder}: no such folder")
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file; info takes a folder")
    for mark, kind, tell in _KINDS:
        if (folder / mark).is_file():
            return {"kind": kind, "folder": str(folder), "bytes": folder_bytes(folder), **tell(folder)}
    known = ", ".join(f"{kind} ({mark})" for mark, kind, _ in _KINDS)
    raise InputError(f"{folder}: not a folder of this program; it would hold one of: {known}")


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def tensor_facts(path: Path) -> Facts:
    """Parameters, tensors and dtypes of a safetensors file, from its header alone.

    Raises:
        InputError: the header is torn or is no JSON.
    """
    try:
        with open(path, "rb") as stream:
            (size,) = struct.unpack("<Q", stream.read(8))
            if size > path.stat().st_size:
                raise ValueError(f"a header of {size} bytes in a file of {path.stat().st_size}")
            header = json.loads(stream.read(size))
    except (struct.error, ValueError) as error:
        raise InputError(f"{path}: not a safetensors file ({error})") from None
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    return {
        "parameters": sum(prod(entry["shape"]) for entry in tensors.values()),
        "tensors": len(tensors),
        "dtypes": sorted({entry["dtype"] for entry in tensors.values()}),
    }


_SHAPE_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "projection_dim",
    "max_position_embeddings",
    "position_type",
    "pooling",
)


def _model(folder: Path) -> Facts:
    config = read_json(folder / "config.json")
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise InputError(f"{weights}: no such file; a model folder has its weights there")
    return {
        **tensor_facts(weights),
        "model_type": config.get("model_type"),
        "config": {name: config[name] for name in _SHAPE_FIELDS if name in config},
        "weights_sha256": sha256_file(weights),
        "config_digest": digest_json(config),
    }


def _export(folder: Path) -> Facts:
    record = read_json(folder / "captionbert.json")
    rest = {key: value for key, value in record.items() if key not in ("kind", "parameters")}
    return {**_model(folder), "code_files": sorted(path.name for path in folder.glob("*.py")), "record": rest}


def _checkpoint(folder: Path) -> Facts:
    facts = _model(folder / "model") if (folder / "model").is_dir() else {}
    state = read_json(folder / "state.json")
    plain = {key: value for key, value in state.items() if isinstance(value, str | int | float | bool)}
    return {**facts, "state": plain, "digest": _manifest_digest(folder)}


def _run(folder: Path) -> Facts:
    names = sorted(
        path.name for path in (folder / "checkpoints").glob("*") if (path / "state.json").is_file()
    )
    facts: Facts = {"identity": read_json(folder / "config" / "identity.json"), "checkpoints": names}
    facts["complete"] = "final" in names
    for name in ("final", *reversed(names)):
        if name in names:
            return {**facts, "shown": name, **_checkpoint(folder / "checkpoints" / name)}
    return facts


def _corpus(folder: Path) -> Facts:
    record = read_json(folder / "corpus.json", kind="corpus")
    wanted = ("rows", "digest", "held_out_rows", "counts", "lengths", "sources", "inputs")
    return {key: record[key] for key in wanted if key in record}


def _consensus(folder: Path) -> Facts:
    record = read_json(folder / "consensus.json")
    facts: Facts = {"corpus_digest": record["corpus_digest"], "reference": record["reference"]}
    facts["teachers"] = {
        t["name"]: {"width": t["width"], "fingerprint": t["fingerprint"]} for t in record["teachers"]
    }
    frame = folder / "frame" / "frame.json"
    if frame.is_file():
        fitted = read_json(frame)
        facts["frame_id"] = fitted.get("frame_id")
        for name, weight in fitted.get("weights", {}).items():  # only there where unequal
            facts["teachers"].get(name, {})["weight"] = weight
    if (folder / "targets" / "manifest.json").is_file():
        facts["targets"] = _shards(folder / "targets")
    return facts


def _shards(folder: Path) -> Facts:
    manifest = read_json(folder / "manifest.json")
    return {
        key: value
        for key, value in manifest.items()
        if isinstance(value, str | int | float | bool) and key != "kind"
    }


def _line(folder: Path) -> Facts:
    stages = read_json(folder / "stages.json", kind="distill-stages")["stages"]
    keep = ("state", "seconds", "output")
    return {"stages": {name: {k: record[k] for k in keep if k in record} for name, record in stages.items()}}


def _manifest_digest(folder: Path) -> str | None:
    path = folder / "manifest.json"
    return sha256_file(path) if path.is_file() else None


# The file that gives a folder away, tried in this order.
_KINDS: tuple[tuple[str, str, Callable[[Path], Facts]], ...] = (
    ("stages.json", "distill", _line),
    ("captionbert.json", "export", _export),
    ("config/identity.json", "training run", _run),
    ("state.json", "checkpoint", _checkpoint),
    ("consensus.json", "consensus", _consensus),
    ("corpus.json", "corpus", _corpus),
    ("config.json", "model", _model),
    ("manifest.json", "shards", _shards),
)


def render(facts: Facts, indent: str = "") -> str:
    """The facts as indented lines, one fact a line."""
    lines = []
    for key, value in facts.items():
        if isinstance(value, dict) and value:
            lines += [f"{indent}{key}:", render(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {_plain(value)}")
    return "\n".join(lines)


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value) or "none"
    return str(value)
