"""Where an export comes from: a checkpoint's config, tensors (checked one by one), tokenizer, lineage.

A checkpoint may be named by its run folder (then `checkpoints/final` is meant), by the checkpoint folder, or
by the `model/` folder inside. Only safetensors are opened; nothing is unpickled and nothing is initialised to
fill a gap.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import (
    EXPORT_RECORD,
    MANIFEST,
    digest_json,
    read_json,
    sha256_file,
    verify_folder,
)
from captionbert.configuration_captionbert import CaptionBertConfig
from captionbert.modeling_captionbert import CaptionBertModel

WEIGHTS = "model.safetensors"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Source:
    """A checkpoint that passed every check; `digest` names its config and weight bytes."""

    model_folder: Path
    config: CaptionBertConfig
    tensors: dict[str, torch.Tensor]
    tokenizer_file: Path
    lineage: dict[str, Any]
    digest: str


def find_model_folder(checkpoint: str | Path) -> Path:
    """The folder that holds `config.json` and the weights.

    Raises:
        InputError: nothing there, or a run that has not reached its final checkpoint.
    """
    path = Path(checkpoint)
    if not path.is_dir():
        raise InputError(f"{path}: no such folder; expected a run folder, a checkpoint, or its model/ folder")
    for candidate in (path / "checkpoints" / "final" / "model", path / "model", path):
        if (candidate / "config.json").is_file():
            return candidate
    if (path / "checkpoints").is_dir():
        raise InputError(
            f"{path}: the run has no checkpoints/final yet; finish it, or name one of its checkpoints"
        )
    raise InputError(
        f"{path}: no config.json in it, in model/ or in checkpoints/final/model/; not a checkpoint"
    )


def read_source(checkpoint: str | Path) -> Source:
    """Read and check a checkpoint.

    Raises:
        InputError: a damaged or changed file, weights that are not safetensors, a missing, unexpected,
            misshapen or non-finite tensor, a config outside its ranges, no tokenizer.
    """
    folder = find_model_folder(checkpoint)
    for published in (folder, folder.parent):
        if (published / MANIFEST).is_file():
            verify_folder(published)
            break
    config = read_config(folder)
    tensors = _read_tensors(folder)
    check_tensors(tensors, config, folder / WEIGHTS)
    return Source(
        folder, config, tensors, _tokenizer_file(folder), read_lineage(folder), source_digest(folder)
    )


def source_digest(folder: Path) -> str:
    """One digest over the bytes of the config and the weights."""
    return digest_json({name: sha256_file(folder / name) for name in ("config.json", WEIGHTS)})


def read_config(folder: Path) -> CaptionBertConfig:
    """The config of a model folder.

    Raises:
        InputError: another model type, or a field outside its range.
    """
    fields = read_json(folder / "config.json")
    if fields.get("model_type") != CaptionBertConfig.model_type:
        raise InputError(
            f"{folder / 'config.json'}: model_type is {fields.get('model_type')!r}, "
            f"expected {CaptionBertConfig.model_type!r}"
        )
    try:
        config: CaptionBertConfig = CaptionBertConfig.from_pretrained(folder)
    except (ValueError, TypeError) as error:
        raise InputError(f"{folder / 'config.json'}: {error}") from None
    config._name_or_path = ""
    return config


def _read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    if not (folder / WEIGHTS).is_file():
        other = [
            p.name for p in sorted(folder.iterdir()) if p.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt")
        ]
        found = (
            f"found {other[0]}, which is not opened because it can run code" if other else "no weights found"
        )
        raise InputError(f"{folder / WEIGHTS}: missing; {found}")
    try:
        return load_file(folder / WEIGHTS)
    except SafetensorError as error:
        raise InputError(
            f"{folder / WEIGHTS}: damaged ({error}); use another checkpoint of the run"
        ) from None


def check_tensors(tensors: dict[str, torch.Tensor], config: CaptionBertConfig, where: Path) -> None:
    """Compare names, shapes and values with what the config asks for.

    Raises:
        InputError: naming the first tensor that is missing, unexpected, misshapen or not finite.
    """
    with torch.device("meta"):
        expected = {name: tuple(value.shape) for name, value in CaptionBertModel(config).state_dict().items()}
    for name, shape in expected.items():
        if name not in tensors:
            raise InputError(
                f"{where}: tensor {name} {shape} is missing; the file does not belong to this config"
            )
        if tuple(tensors[name].shape) != shape:
            raise InputError(
                f"{where}: tensor {name} has shape {tuple(tensors[name].shape)}, the config asks for {shape}"
            )
    unexpected = sorted(set(tensors) - set(expected))
    if unexpected:
        raise InputError(
            f"{where}: unexpected tensor {unexpected[0]}; the file does not belong to this config"
        )
    for name, value in tensors.items():
        if not torch.isfinite(value).all():
            raise InputError(
                f"{where}: tensor {name} holds NaN or infinity; the run diverged, use an earlier checkpoint"
            )


def model_dtype(tensors: dict[str, torch.Tensor]) -> torch.dtype:
    """The dtype of the weights; integer buffers have their own."""
    return next(x.dtype for x in tensors.values() if x.is_floating_point())


def cast(tensors: dict[str, torch.Tensor], dtype: str | None) -> dict[str, torch.Tensor]:
    """The tensors in another dtype (None keeps theirs).

    Raises:
        InputError: an unknown dtype, or a value that the dtype cannot hold.
    """
    if dtype is None:
        return tensors
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r}: unknown; choose one of {', '.join(DTYPES)}")
    out = {name: x.to(DTYPES[dtype]) if x.is_floating_point() else x for name, x in tensors.items()}
    for name, value in out.items():
        if not torch.isfinite(value).all():
            raise InputError(
                f"tensor {name}: a value lies outside the range of {dtype}; export as fp32 or bf16"
            )
    return out


def _tokenizer_file(folder: Path) -> Path:
    places = [folder, folder.parent, folder.parent.parent.parent / "config" / "tokenizer"]
    for place in places:
        if (place / "tokenizer.json").is_file():
            return place / "tokenizer.json"
    raise InputError(
        f"{folder}: no tokenizer.json there or in the run's config/tokenizer; copy the training tokenizer in"
    )


def read_lineage(folder: Path) -> dict[str, Any]:
    """What the run says about itself: corpus, teachers, targets, recipe. Empty for a bare model folder."""
    if (folder / EXPORT_RECORD).is_file():  # an export, exported again in another form
        return read_json(folder / EXPORT_RECORD).get("lineage", {})
    identity = folder.parent.parent.parent / "config" / "identity.json"
    return read_json(identity) if identity.is_file() else {}
