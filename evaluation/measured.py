"""What is measured: a folder, its digest, the SentenceTransformer loaded from it, and the object mteb sees.

Law 18: the harness takes a folder, never a live model, and shows that the tensors it measured are the tensors
in that folder's files: an adapter attached through the back door changes a tensor, adds one or hides behind a
hook, and each of the three is refused, before and after the run. The digest goes into the result file.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.similarity_functions import cos_sim, pairwise_cos_sim
from safetensors import safe_open
from sentence_transformers import SentenceTransformer

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import (
    ABOUT_EXPORT,
    EXPORT_KIND,
    EXPORT_RECORD,
    digest_json,
    read_json,
    sha256_file,
)
from captionbert.consensus.encoder import CONSENSUS, Encoder, open_fixed
from captionbert.consensus.packaged import HUB_PIN, PACKAGED, packaged_folder

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Identity:
    """Name, place and digest of a measured folder; `files` maps each file that counts to its SHA-256."""

    name: str
    folder: Path
    digest: str
    files: dict[str, str]


def identify(folder: str | Path) -> Identity:
    """Digest a SentenceTransformer folder, or that of a packaged teacher by name (`packaged:minilm`).

    The digest covers every file but the card and the manifests: weights, code, config, tokenizer, modules.

    Raises:
        InputError: not a folder, one without `modules.json`, or an export that was changed since.
    """
    if not isinstance(folder, str | Path):
        raise InputError(
            f"evaluate takes a folder, not a live {type(folder).__name__}: save the model and name the folder"
        )
    name = str(folder)
    path = packaged_folder(name.removeprefix("packaged:")) if name.startswith("packaged:") else Path(name)
    if not path.is_dir():
        raise InputError(f"{path}: no such folder; expected an exported model or packaged:NAME")
    if not (path / "modules.json").is_file():
        raise InputError(
            f"{path}: modules.json is missing: no SentenceTransformer folder; run `captionbert export` first"
        )
    files = {
        file.relative_to(path).as_posix(): sha256_file(file)
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in ABOUT_EXPORT and not _hidden(file.relative_to(path))
    }
    _check_record(path, files)
    label = name.removeprefix("packaged:") if name.startswith("packaged:") else path.resolve().name
    return Identity(label, path, digest_json(files), files)


def _check_record(folder: Path, files: dict[str, str]) -> None:
    """An export says what its files were; a changed one is refused before its code is run."""
    if not (folder / EXPORT_RECORD).is_file():
        return
    recorded = read_json(folder / EXPORT_RECORD, kind=EXPORT_KIND)["files"]
    for name in sorted(set(recorded) | set(files)):
        if recorded.get(name) != files.get(name):
            raise InputError(f"{folder / name}: differs from the record in {EXPORT_RECORD}; export again")


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def load(identity: Identity, *, dtype: str = "fp32", max_length: int | None = None) -> SentenceTransformer:
    """The folder as a SentenceTransformer on the CPU or the default device, from its own files only.

    Raises:
        InputError: unknown dtype, a length outside 2..limit, or loaded tensors that differ from the file's.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r}: unknown; choose one of {', '.join(DTYPES)}")
    model = SentenceTransformer(
        str(identity.folder),
        trust_remote_code=True,
        local_files_only=True,
        model_kwargs={"dtype": DTYPES[dtype]},
    )
    if max_length is not None:
        limit = model.max_seq_length or max_length
        if not 2 <= max_length <= limit:
            raise InputError(
                f"max_length {max_length}: outside 2..{limit}, the range {identity.folder} can read"
            )
        model.max_seq_length = max_length
    check_loaded(model, identity)
    return model.eval()


def _file_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the root weights, sharded or not."""
    index = folder / f"{_WEIGHTS}.index.json"
    names = [_WEIGHTS]
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    for name in names:
        if Path(name).name != name:
            raise InputError(f"{index}: the weight file {name!r} lies outside the folder; refused")
        with safe_open(folder / name, framework="pt") as stream:
            for key in stream.keys():  # noqa: SIM118 - not a dict
                yield key, stream.get_tensor(key)


def check_loaded(model: SentenceTransformer, identity: Identity) -> None:
    """Compare the model in memory with the folder's weight file: same tensors, same values, no hooks.

    Raises:
        InputError: a tensor that the file lacks or that differs from it, or a forward hook (law 18).
    """
    base: Any = model[0].auto_model
    prefix = f"{base.base_model_prefix}."
    loaded = dict(base.named_parameters())
    seen = set()
    for key, value in _file_tensors(identity.folder):
        name = key if key in loaded else key.removeprefix(prefix)
        if name not in loaded:
            continue
        seen.add(name)
        if not torch.equal(value.to(loaded[name].dtype), loaded[name].detach().cpu()):
            raise InputError(
                f"{identity.folder}: tensor {name} in memory differs from {_WEIGHTS}; "
                "the score would not be this folder's"
            )
    extra = sorted(set(loaded) - seen)
    if extra:
        raise InputError(
            f"{identity.folder}: {len(extra)} tensors are in memory but not in {_WEIGHTS}, "
            f"first {extra[0]}; attach no adapter"
        )
    hooked = [name for name, part in base.named_modules() if part._forward_hooks or part._forward_pre_hooks]
    if hooked:
        raise InputError(
            f"{identity.folder}: a hook sits on {hooked[0] or 'the model'}; measure the bare folder"
        )


class _AsMteb:
    """A model as mteb calls it. Its revision is the digest, so no cached score can be another's."""

    def __init__(self, identity: Identity, *, batch_size: int, width: int | None, limit: int | None) -> None:
        self.identity, self.batch_size = identity, batch_size
        self._known: dict[str, np.ndarray] = {}  # the STS sets repeat their sentences; each is encoded once
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={
                "name": f"local/{identity.name}",
                "revision": identity.digest,
                "embed_dim": width,
                "max_tokens": limit,
                "framework": ["Sentence Transformers"],
                "similarity_fn_name": ScoringFunction.COSINE,
            }
        )

    def _vectors(self, texts: list[str]) -> np.ndarray:
        """Float32 vectors of distinct texts, in order."""  # [B, E]
        raise NotImplementedError

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        """Float32 vectors, in the order of `texts`."""  # [B, E]
        fresh = [text for text in dict.fromkeys(texts) if text not in self._known]
        if fresh:
            self._known.update(zip(fresh, self._vectors(fresh)))
        return np.stack([self._known[text] for text in texts])

    def encode(self, inputs: Any, **_: Any) -> np.ndarray:
        """mteb's entry: `inputs` is a loader whose batches hold a list of strings under "text"."""
        return self.encode_texts([text for batch in inputs for text in batch["text"]])

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosine of every pair."""
        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosine of row i with row i."""
        return pairwise_cos_sim(embeddings1, embeddings2)


class MeasuredModel(_AsMteb):
    """A SentenceTransformer folder."""

    def __init__(self, model: SentenceTransformer, identity: Identity, *, batch_size: int) -> None:
        self.model = model
        super().__init__(
            identity,
            batch_size=batch_size,
            width=model.get_embedding_dimension(),
            limit=model.max_seq_length,
        )

    def _vectors(self, texts: list[str]) -> np.ndarray:
        return self.model.encode(texts, batch_size=self.batch_size, show_progress_bar=False)

    def settings(self) -> dict[str, Any]:
        """How it ran, for the result."""
        return {"max_length": self.model.max_seq_length, "device": str(self.model.device)}

    def check(self) -> None:
        """After the run: the tensors and the folder are still what was loaded (see check_loaded)."""
        check_loaded(self.model, self.identity)
        if identify(self.identity.folder).digest != self.identity.digest:
            raise InputError(
                f"{self.identity.folder}: the folder changed while it was being measured; run again"
            )


class MeasuredEncoder(_AsMteb):
    """A teacher that is no SentenceTransformer folder, or the consensus: opened as the probes open it.

    Both are identified by digests that were compared when they were opened, and nothing can be attached to them.
    """

    def __init__(self, encoder: Encoder, word: str, *, batch_size: int) -> None:
        self._encoder = encoder
        identity = Identity(encoder.name, Path(word), encoder.facts["digest"], {})
        super().__init__(identity, batch_size=batch_size, width=encoder.width, limit=encoder.max_tokens)

    def _vectors(self, texts: list[str]) -> np.ndarray:
        return self._encoder.encode(texts)

    def settings(self) -> dict[str, Any]:
        """How it ran, for the result."""
        facts = self._encoder.facts
        found = (
            facts["teachers"].values() if "teachers" in facts else [facts["dtype"]]
        )  # a graph keeps its own
        dtype = ", ".join(sorted(set(found)))
        return {"max_length": self._encoder.max_tokens, "device": "default", "dtype": dtype}

    def check(self) -> None:
        """Nothing can have changed."""


def open_measured(
    word: str | Path, *, dtype: str, max_length: int | None, batch_size: int
) -> MeasuredModel | MeasuredEncoder:
    """What evaluation measures: a SentenceTransformer folder, a teacher's word, or `consensus:DIR`.

    Raises:
        InputError: see identify, load and open_fixed; `max_length` for what has no such setting.
    """
    if not (isinstance(word, str) and _is_fixed(word)):
        identity = identify(word)
        return MeasuredModel(
            load(identity, dtype=dtype, max_length=max_length), identity, batch_size=batch_size
        )
    if max_length is not None:
        raise InputError(f"max_length {max_length}: {word} reads up to its own limit; leave it out")
    return MeasuredEncoder(open_fixed(word, dtype), word, batch_size=batch_size)


def _is_fixed(word: str) -> bool:
    """Whether a word names a teacher that is no folder here, or a consensus."""
    name = word.removeprefix("packaged:")
    graph = word.startswith("packaged:") and name in PACKAGED and PACKAGED[name].kind == "onnx"
    return graph or word.startswith((CONSENSUS, "onnx:")) or (HUB_PIN.match(word) is not None)
