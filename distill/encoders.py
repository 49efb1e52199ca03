"""Any model by one word, frozen and ready to encode: what `embed` and the probes of models open.

    FOLDER             an exported folder, a run, a checkpoint; or a SentenceTransformer or AutoModel folder
    packaged:minilm    a teacher, and every other word for one (consensus/specs.py)
    consensus:DIR      the consensus itself: its teachers, mapped and averaged

Imports nothing heavy at the top: `embed` is meant to start quickly. Legend: n texts, E width.
"""

import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import read_json

if TYPE_CHECKING:
    import numpy as np

    from captionbert.consensus.encoder import Encoder

CONSENSUS = "consensus:"
# Folder names that say nothing about which model it is: the folder around it is named as well.
_COMMON = ("model", "run", "final", "best", "checkpoints", "export", "consensus")


class OwnEncoder:
    """A model of this package.

    Args:
        folder: exported folder, run, checkpoint or its `model` folder.
        dtype: number type of the weights; None: as stored.
        trust_remote_code: run the folder's own code where it differs from this package.
        device: "auto" (a GPU where there is one), "cpu" or "cuda".
        lean: load without the transformers machinery, on a processor.

    Raises:
        InputError: see load_encoder and find_model_folder.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        dtype: str | None = None,
        trust_remote_code: bool = False,
        device: str = "auto",
        lean: bool = False,
    ) -> None:
        from captionbert.export.load import load_encoder

        self.name = _label(Path(folder))
        self.folder = _model_folder(Path(folder))
        device = _device(device)
        self.model, self.tokenizer = load_encoder(
            self.folder, dtype=dtype, trust_remote_code=trust_remote_code, lean=lean and device == "cpu"
        )
        self.model.to(device)
        self._base = self.model.config.rotary_base

    @property
    def width(self) -> int:
        """E."""
        return self.model.config.projection_dim

    @property
    def max_tokens(self) -> int:
        """Where texts are cut."""
        return self.model.config.max_position_embeddings

    @property
    def trained_tokens(self) -> int | None:
        """`data.max_length` of its recipe, where its run is recorded."""
        return self._lineage.get("recipe", {}).get("data.max_length")

    @property
    def frame_id(self) -> str | None:
        """Of the targets it was trained on, where its run is recorded."""
        return self._lineage.get("data", {}).get("frame_id")

    @cached_property
    def _lineage(self) -> dict[str, Any]:
        from captionbert.export.source import read_lineage

        return read_lineage(self.folder)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """For a report; "digest" covers every file that decides a vector."""
        from captionbert.artifacts.files import ABOUT_EXPORT, digest_json
        from captionbert.consensus.teachers import deciding_files

        weights = next(self.model.parameters())
        files = {k: v for k, v in deciding_files(self.folder).items() if k not in ABOUT_EXPORT}
        return {
            "is": "model",
            "digest": digest_json(files),
            "dtype": str(weights.dtype).removeprefix("torch."),
            "width": self.width,
            "max_tokens": self.max_tokens,
            "trained_tokens": self.trained_tokens,
            "frame_id": self.frame_id,
        }

    @property
    def stretchable(self) -> bool:
        """Whether its positions are rotary by distance alone."""
        return self.model.config.position_type == "rotary"

    def stretch(self, factor: float) -> None:
        """Slow the rotary planes for texts longer than the training ones: see export.load.stretched_base.

        Args:
            factor: 1 or more; 1 brings the model back bit for bit.

        Raises:
            InputError: other positions, or a factor under 1.
        """
        from captionbert.export.load import stretched_base

        if not (math.isfinite(factor) and factor >= 1):
            raise InputError(f"rotary factor {factor:g}: expected 1 or more")
        if factor != 1 and not self.stretchable:
            kind = self.model.config.position_type
            raise InputError(
                f"{self.name}: rotary factor {factor:g}: its positions are {kind}, only rotary ones stretch"
            )
        planes = self.model.config.head_size // 2
        self.model.config.rotary_base = stretched_base(self._base, planes, factor)

    def encode(self, texts: list[str], **settings: Any) -> "np.ndarray":
        """float32 [n, E], unit rows; `settings` as of the model's own `encode` (batch_tokens, max_length ...)."""
        return self.model.encode(texts, self.tokenizer, **settings)


def open_encoder(
    word: str, *, dtype: str | None = None, trust_remote_code: bool = False, rotary_factor: float = 1.0
) -> "Encoder":
    """The encoder that a word names (see the head of this file).

    Args:
        dtype: number type of the weights; None: as stored, teachers as their spec says (bf16). ONNX graphs keep theirs.
        rotary_factor: see OwnEncoder.stretch.

    Raises:
        InputError: no such model; it cannot be loaded; a rotary factor for a model that takes none.
    """
    encoder = _open(word, dtype, trust_remote_code)
    encoder.stretch(rotary_factor)
    return encoder


def _open(word: str, dtype: str | None, trust_remote_code: bool) -> "Encoder":
    from captionbert.consensus.encoder import open_fixed

    if is_own(word):
        return OwnEncoder(word, dtype=dtype, trust_remote_code=trust_remote_code)
    path = Path(word)
    if (path / "consensus.json").is_file():
        raise InputError(f"{word}: is a consensus; its embedding is named {CONSENSUS}{word}")
    if path.is_dir() and not (path / "config.json").is_file() and not (path / "modules.json").is_file():
        raise InputError(
            f"{word}: no model in it; expected an export, a run, a checkpoint or a model's folder"
        )
    return open_fixed(word, dtype)


def open_encoders(
    words: list[str], *, dtype: str | None = None, trust_remote_code: bool = False
) -> list["Encoder"]:
    """Several encoders under names that differ: of two equal short names, both become the words given.

    Raises:
        InputError: none, or one twice; see open_encoder.
    """
    if not words:
        raise InputError(
            "--models: no model; give one or more, e.g. --models runs/mine/model,packaged:minilm"
        )
    places = [_place(word) for word in words]
    for word, place in zip(words, places):
        if places.count(place) > 1:
            raise InputError(f"model {word}: is given more than once; name each model once")
    encoders = [open_encoder(word, dtype=dtype, trust_remote_code=trust_remote_code) for word in words]
    names = [encoder.name for encoder in encoders]
    for encoder, word in zip(encoders, words):
        if names.count(encoder.name) > 1:
            encoder.name = word
    return encoders


def _place(word: str) -> str:
    """One text for all words of one model: its folder where it is one, a packaged teacher's short name."""
    kind, path = (CONSENSUS, word.removeprefix(CONSENSUS)) if word.startswith(CONSENSUS) else ("", word)
    if not kind and is_own(word):
        return str(_model_folder(Path(word)).resolve())
    return kind + str(Path(path).resolve()) if Path(path).is_dir() else word.removeprefix("packaged:")


def is_own(word: str | Path) -> bool:
    """Whether a word names a model of this package: an export, a run (finished or not) or a checkpoint."""
    path = Path(word)
    if any((path / part).is_dir() for part in ("checkpoints", "model")):
        return True
    config = path / "config.json"
    return config.is_file() and read_json(config).get("model_type") == "captionbert"


def _model_folder(folder: Path) -> Path:
    """The folder that holds config.json and the weights."""
    if (folder / "config.json").is_file() or not folder.is_dir():
        return folder
    from captionbert.export.source import find_model_folder

    return find_model_folder(folder)


def _label(path: Path) -> str:
    """A short name for a folder."""
    parts = path.resolve().parts
    common = next((i for i, part in enumerate(reversed(parts)) if part not in _COMMON), len(parts) - 1)
    return "/".join(parts[-common - 1 :]).lstrip("/")


def _device(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
