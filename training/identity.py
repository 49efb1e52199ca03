"""What a run is: each setting and digest that decides its weights, and the check a resumption passes."""

from pathlib import Path
from typing import Any

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import digest_json, read_json

IDENTITY_KIND = "training-identity"


def make_identity(
    recipe: dict[str, Any], data: dict[str, Any], model: dict[str, Any], environment: dict[str, Any]
) -> dict[str, Any]:
    """The identity of a run.

    Args:
        recipe: the binding settings, flat. data: digests of captions, targets, frame, tokenizer, dev pairs.
        model: sizes of the student.
        environment: library versions, threads, processes; recorded, and only warned about when they differ.
    """
    return {"kind": IDENTITY_KIND, "recipe": recipe, "data": data, "model": model, "environment": environment}


def identity_digest(identity: dict[str, Any]) -> str:
    """Digest over what must not change: everything but the environment and the resolved number of steps."""
    return digest_json({key: identity[key] for key in ("recipe", "data", "model")})


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{part}.{key}": value
        for part in ("recipe", "data", "model")
        for key, value in identity[part].items()
    }


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """A phrase for each binding field whose value is not the same in both."""
    before, now = _flat(old), _flat(new)
    return [
        f"{key}: started with {before.get(key)!r}, now {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]


def environment_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """A phrase for each part of the environment that differs: the run is then equal only to rounding."""
    before, now = old["environment"], new["environment"]
    return [
        f"{key} {before.get(key)} -> {now.get(key)}" for key in sorted(now) if before.get(key) != now.get(key)
    ]


def check_same_run(run: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Refuse to go on with a run under another recipe, corpus, frame or model.

    Raises:
        InputError: listing each field with both values.
    """
    changed = differences(old, new)
    if changed:
        raise InputError(
            f"{run}: this run was started with other settings or data and cannot go on with these. "
            + "; ".join(changed)
            + ". Use the original values, or another output folder for a new run"
        )


def read_identity(run: Path) -> dict[str, Any]:
    """config/identity.json of a run folder. Raises InputError when it is missing or damaged."""
    return read_json(run / "config" / "identity.json", kind=IDENTITY_KIND)
