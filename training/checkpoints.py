"""Checkpoints that are whole or absent, found again, verified and pruned. No pickle anywhere.

    checkpoints/step-00000120/
        model/                 config.json, model.safetensors, tokenizer files: what `export` reads
        optimizer.safetensors  Adam's moments by parameter
        state.json             step, loss scale, curve, best
        manifest.json          SHA-256 of each file, written last
    checkpoints/best/          the same without the optimizer
    checkpoints/final/         the same as a step; its presence means that the run is complete

Resuming takes the newest step whose files all match its manifest, and says which it passed over and why.
"""

import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import publish_folder, read_json, recover_folder, verify_folder, write_json
from captionbert.training.step import LossScale

STATE_KIND = "training-state"
_STEP_NAME = re.compile(r"^step-(\d{8})$")
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass
class TrainingState:
    """All of a run that is not a tensor; it holds no clock. `step`: updates attempted so far."""

    step: int = 0
    loss_scale: LossScale = field(default_factory=LossScale)
    curve: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for state.json."""
        return {"kind": STATE_KIND, **asdict(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainingState":
        """The state that `to_dict` described."""
        return cls(values["step"], LossScale(**values["loss_scale"]), values["curve"], values["best"])


def step_name(step: int) -> str:
    """Folder name of the checkpoint after `step` updates."""
    return f"step-{step:08d}"


def write_checkpoint(
    folder: Path,
    model: Any,
    tokenizer_files: Path,
    state: TrainingState,
    optimizer: torch.optim.Optimizer | None,
    identity: str,
) -> None:
    """Publish one checkpoint folder: complete under its name, or not there.

    Args:
        folder: where it shall lie. identity: digest of the run's identity, kept in the manifest.
        tokenizer_files: folder whose files go beside the weights.
        optimizer: None leaves the optimizer out (`best`).

    Raises:
        InputError: the disk is full or not writable; earlier checkpoints are untouched.
    """
    try:
        with publish_folder(folder, extra={"identity": identity, "step": state.step}) as temporary:
            _write_model(temporary / "model", model)
            for file in sorted(tokenizer_files.iterdir()):
                shutil.copy(file, temporary / "model" / file.name)
            if optimizer is not None:
                save_file(optimizer_tensors(model, optimizer), temporary / "optimizer.safetensors")
            write_json(temporary / "state.json", state.to_dict())
    except (OSError, SafetensorError) as error:
        kept = ", ".join(p.name for p in _step_folders(folder.parent)) or "none"
        raise InputError(
            f"{folder}: the checkpoint could not be written ({error}); earlier ones are untouched ({kept}): "
            "free some space and run the same command again to go on from the newest"
        ) from error


def _write_model(folder: Path, model: Any) -> None:
    """config.json and model.safetensors as save_pretrained names them, without its progress bar."""
    folder.mkdir()
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Adam's state by parameter name: "exp_avg.<name>", "exp_avg_sq.<name>", "step.<name>"."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key in _MOMENTS:
            if key in optimizer.state.get(parameter, {}):
                tensors[f"{key}.{name}"] = optimizer.state[parameter][key].detach().contiguous()
    return tensors


def load_model_tensors(folder: Path, model: nn.Module) -> None:
    """Copy model/model.safetensors of a checkpoint into `model`, which must have exactly its tensors.

    Raises:
        InputError: a tensor is missing, extra, of another shape or dtype, or was trained with other positions.
    """
    file = folder / "model" / "model.safetensors"
    saved, own = load_file(file), model.state_dict()
    _same_tensors(
        file,
        {k: (v.shape, v.dtype) for k, v in saved.items()},
        {k: (v.shape, v.dtype) for k, v in own.items()},
    )
    try:
        model.load_state_dict(saved)
    except ValueError as error:  # the model's own refusal
        raise InputError(f"{file}: {error}") from None


def load_optimizer(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore Adam's moments and counters of a checkpoint.

    Raises:
        InputError: the file lacks a tensor, or has one that no parameter owns.
    """
    file = folder / "optimizer.safetensors"
    if not file.is_file():
        raise InputError(f"{file}: missing; training cannot go on exactly without it")
    saved = load_file(file)
    names = dict(model.named_parameters())
    expected: dict[str, Any] = {
        f"{k}.{n}": (p.shape, torch.float32) for n, p in names.items() for k in _MOMENTS[1:]
    }
    expected |= {f"step.{n}": (torch.Size([]), torch.float32) for n in names}
    if saved:  # a checkpoint before the first update has no moments yet
        _same_tensors(file, {k: (v.shape, v.dtype) for k, v in saved.items()}, expected)
        for name, parameter in names.items():
            state = {key: saved[f"{key}.{name}"].to(parameter.device) for key in _MOMENTS}
            optimizer.state[parameter] = state


def _same_tensors(file: Path, found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            describe = {
                k: f"{tuple(v[0])} {v[1]}" if v else "absent"
                for k, v in (("found", found.get(name)), ("expected", expected.get(name)))
            }
            raise InputError(
                f"{file}: tensor {name!r}: expected {describe['expected']}, found {describe['found']}"
            )


def _step_folders(checkpoints: Path) -> list[Path]:
    """Step folders that we wrote, newest first; links and foreign names are left alone."""
    if not checkpoints.is_dir():
        return []
    ours = [
        p for p in checkpoints.iterdir() if _STEP_NAME.match(p.name) and p.is_dir() and not p.is_symlink()
    ]
    return sorted(ours, key=lambda p: p.name, reverse=True)


def read_state(folder: Path) -> TrainingState:
    """state.json of a checkpoint. Raises InputError when it is missing or damaged."""
    return TrainingState.from_dict(read_json(folder / "state.json", kind=STATE_KIND))


def finished(run: Path) -> Path | None:
    """checkpoints/final of a complete run, else None."""
    final = run / "checkpoints" / "final"
    recover_folder(final)
    return final if (final / "manifest.json").is_file() else None


def newest_good(run: Path, identity: str) -> tuple[Path | None, list[str]]:
    """The newest step whose files match its manifest, and a sentence for each newer one that was passed over.

    (None, []) when the run has no checkpoint yet.

    Raises:
        InputError: there are checkpoints and none is good; training never starts over silently.
    """
    checkpoints = run / "checkpoints"
    passed: list[str] = []
    folders = _step_folders(checkpoints)
    for folder in folders:
        try:
            if verify_folder(folder).get("identity") != identity:
                raise InputError(f"{folder}: written by a run of another identity")
            read_state(folder)
        except InputError as error:
            passed.append(f"{folder.name} is not usable: {error}")
            continue
        return folder, passed
    if folders:
        raise InputError(
            f"{checkpoints}: none of {len(folders)} checkpoints is usable, and training does not start over "
            "by itself. " + "; ".join(passed) + ". Restore one, or remove the run folder to begin again"
        )
    return None, []


def prune(checkpoints: Path, keep: int, newest: Path | None = None) -> None:
    """Delete step folders beyond the newest `keep`, once the newest was read back and found whole.

    `newest` is the step just written; folders of later steps were passed over as damaged when the run was resumed
    and count for nothing. Never touches best, final, links or names that this module does not write.
    """
    folders = _step_folders(checkpoints)
    if newest is not None and newest in folders:
        folders = folders[folders.index(newest) :]
    if len(folders) > keep:
        verify_folder(folders[0])
        for folder in folders[keep:]:
            shutil.rmtree(folder)
