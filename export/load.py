"""Open an exported folder (or a checkpoint's model folder) to encode with it: `load_encoder`.

The folder's code files are run only where they are byte-equal to the installed package, which then runs
its own copy; anything else needs `trust_remote_code=True`. Weights come from safetensors alone.

The lean way serves `captionbert embed`: most of the seconds a command line takes go into importing
transformers' model machinery, none of which a forward pass needs. It runs the same model file, byte for
byte, over stand-ins for the five names that the file takes from transformers, and never imports
transformers.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import read_json

PACKAGE_ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = "model.safetensors"
# A private package over the same files: the lean classes never meet `captionbert.modeling_captionbert`.
LEAN_PACKAGE = "_captionbert_lean"
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_encoder(
    folder: str | Path, *, dtype: str | None = None, trust_remote_code: bool = False, lean: bool = False
) -> tuple[Any, Tokenizer]:
    """The model, in evaluation mode on the CPU, and the tokenizer of a folder.

    Args:
        folder: what `captionbert export` wrote, or the `model` folder of a checkpoint.
        dtype: "fp32", "bf16" or "fp16" (or torch's names for them); None keeps what the file holds.
        trust_remote_code: run the folder's own code where it differs from the installed package.
        lean: skip the transformers machinery where possible. The model then encodes on a CPU, no more.

    Raises:
        InputError: not such a folder, weights that do not fit its config, foreign code without permission,
            an unknown dtype.
    """
    folder = Path(folder)
    config = _read_config(folder)
    number_type = _number_type(dtype)
    tokenizer = load_tokenizer(folder, config)
    changed = changed_code(folder)
    if changed and not trust_remote_code:
        raise InputError(
            f"{folder / changed[0]}: differs from the installed package, so it would have to be run from the "
            "folder; pass --trust-remote-code (trust_remote_code=True) if you trust it, or export again"
        )
    if changed:
        return _load_remote(folder, number_type), tokenizer
    model = _load_lean(folder, config, number_type) if lean else None
    return model or _load_installed(folder, number_type), tokenizer


def stretched_base(base: float, planes: int, factor: float) -> float:
    """The rotary base at which the slowest plane turns `factor` times slower and the fastest as before.

    Plane i of p turns base^(-i/p) radians a token, so base' = base * factor^(p/(p-1)): the "NTK-aware" change of base
    (bloc97, 2023), here for texts longer than the training ones. Factor 1 gives `base` itself; so does a single plane.
    """
    return base if factor == 1 or planes == 1 else float(base * factor ** (planes / (planes - 1)))


def changed_code(folder: str | Path) -> list[str]:
    """Names of the folder's Python files that are not byte-equal to the installed package's."""
    return [
        file.name
        for file in sorted(Path(folder).glob("*.py"))
        if not (PACKAGE_ROOT / file.name).is_file()
        or file.read_bytes() != (PACKAGE_ROOT / file.name).read_bytes()
    ]


def load_tokenizer(folder: Path, config: dict[str, Any]) -> Tokenizer:
    """The folder's tokenizer.json, without padding, cutting at the model's longest input."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{path}: no such file; an exported folder has one: export the checkpoint again")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"{path}: not a tokenizer file ({error})") from None
    if tokenizer.get_vocab_size() > config["vocab_size"]:
        found = tokenizer.get_vocab_size()
        raise InputError(
            f"{path}: has {found} tokens, the model's vocabulary {config['vocab_size']}; it is not its own"
        )
    tokenizer.no_padding()
    tokenizer.enable_truncation(config["max_position_embeddings"])
    return tokenizer


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such folder; give the folder that `captionbert export` or `distill` wrote"
        )
    config = read_json(folder / "config.json")
    if config.get("model_type") != "captionbert":
        raise InputError(
            f"{folder / 'config.json'}: model_type is {config.get('model_type')!r}, expected 'captionbert'"
        )
    for name in ("vocab_size", "max_position_embeddings"):
        if not isinstance(config.get(name), int):
            raise InputError(
                f"{folder / 'config.json'}: {name} must be a whole number, found {config.get(name)!r}"
            )
    if not (folder / WEIGHTS).is_file():
        raise InputError(
            f"{folder / WEIGHTS}: no such file; only safetensors weights in one file are read (a sharded model: "
            "load it with AutoModel and save it again with max_shard_size='10GB')"
        )
    return config


def _number_type(dtype: str | None) -> torch.dtype | None:
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is not known; choose fp32, bf16 or fp16")
    return None if dtype is None else DTYPES[dtype]


def _load_installed(folder: Path, dtype: torch.dtype | None) -> Any:
    from captionbert.modeling_captionbert import CaptionBertModel

    return _from_pretrained(CaptionBertModel, folder, dtype)


def _load_remote(folder: Path, dtype: torch.dtype | None) -> Any:
    from transformers import AutoModel

    return _from_pretrained(AutoModel, folder, dtype, trust_remote_code=True)


def _from_pretrained(loader: Any, folder: Path, dtype: torch.dtype | None, **options: Any) -> Any:
    """`loader.from_pretrained`, refusing tensors that are missing, left over or misshapen."""
    try:
        model, info = loader.from_pretrained(
            folder, dtype=dtype or "auto", output_loading_info=True, use_safetensors=True, **options
        )
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, OSError, SafetensorError) as error:
        raise InputError(f"{folder}: cannot be loaded ({type(error).__name__}: {error})") from None
    for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[fault]:
            raise InputError(
                f"{folder / WEIGHTS}: {fault.replace('_', ' ')}: {sorted(map(str, info[fault]))[:3]}"
            )
    return model.eval()


def _load_lean(folder: Path, config: dict[str, Any], dtype: torch.dtype | None) -> Any | None:
    """The model over stand-ins, or None where that is impossible (then the full way serves)."""
    if "transformers" in sys.modules and LEAN_PACKAGE not in sys.modules:
        return None  # already paid for
    try:
        modeling = _import_lean()
    except (ImportError, AttributeError):
        return None  # the model file takes a name from transformers that has no stand-in
    try:
        with _without_initialisation():
            model = modeling.CaptionBertModel(modeling.CaptionBertConfig(**config))
        weights = load_file(folder / WEIGHTS)
        if dtype is not None:
            weights = {name: x.to(dtype) if x.is_floating_point() else x for name, x in weights.items()}
        model.load_state_dict(weights, assign=True)
        model.align_weights()
    except (RuntimeError, ValueError, SafetensorError) as error:
        raise InputError(f"{folder}: the weights do not fit the config ({error})") from None
    return model.eval()


def _import_lean() -> Any:
    if LEAN_PACKAGE not in sys.modules:
        package = ModuleType(LEAN_PACKAGE)
        package.__path__ = [str(PACKAGE_ROOT)]
        with _stand_ins():
            sys.modules[LEAN_PACKAGE] = package
            try:
                importlib.import_module(f"{LEAN_PACKAGE}.modeling_captionbert")
            except BaseException:
                for name in [n for n in sys.modules if n.split(".")[0] == LEAN_PACKAGE]:
                    del sys.modules[name]
                raise
    return sys.modules[f"{LEAN_PACKAGE}.modeling_captionbert"]


class _Config:
    """Stands for PretrainedConfig: fields become attributes."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class _Model(torch.nn.Module):
    """Stands for PreTrainedModel: a module with a config, a device and a dtype."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def post_init(self) -> None:
        """Nothing to initialise: every tensor comes from the file."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype


# What the model file imports from transformers. No attention functions: packed attention, which `encode` uses
# on a CPU, needs none of them.
_STAND_INS: dict[str, dict[str, Any]] = {
    "transformers": {},
    "transformers.configuration_utils": {"PretrainedConfig": _Config},
    "transformers.modeling_layers": {"GradientCheckpointingLayer": torch.nn.Module},
    "transformers.modeling_outputs": {"BaseModelOutputWithPooling": dict},
    "transformers.modeling_utils": {"PreTrainedModel": _Model, "ALL_ATTENTION_FUNCTIONS": {}},
}


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Put the stand-ins where an import finds them, and take them away again."""
    try:
        for name, contents in _STAND_INS.items():
            module = ModuleType(name)
            module.__dict__.update(contents)
            sys.modules[name] = module
        yield
    finally:
        for name in _STAND_INS:
            sys.modules.pop(name, None)


@contextmanager
def _without_initialisation() -> Iterator[None]:
    """Leave new weights as they are: drawing random numbers that a file replaces takes half a second."""
    kinds = (torch.nn.Linear, torch.nn.Embedding, torch.nn.LayerNorm)
    originals = [(kind, kind.reset_parameters) for kind in kinds]
    try:
        for kind in kinds:
            kind.reset_parameters = lambda self: None  # type: ignore[method-assign]
        yield
    finally:
        for kind, original in originals:
            kind.reset_parameters = original  # type: ignore[method-assign]
