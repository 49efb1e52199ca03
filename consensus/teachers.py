"""Teachers: anything that turns captions into vectors, pinned so that the same name is the same function.

Kinds: a SentenceTransformer folder, a plain AutoModel folder (mean pooling), an ONNX graph with a tokenizer.
A teacher's fingerprint is the digest of its weights, tokenizer, pooling, prompt, maximum length and dtype:
what decides its vectors. Texts are sorted by token length and cut into batches of a token budget, so little
is padded; the transformer runs in `dtype`, pooling and everything after it in fp32. Legend: B batch, T
tokens, d width.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import digest_json, sha256_bytes, sha256_file
from captionbert.consensus.packaged import (
    load_tokenizer,
    packaged_folder,
    packaged_tokenizer,
    packaged_weights,
)
from captionbert.consensus.specs import KINDS, TeacherSpec, parse_teacher

__all__ = ["FunctionTeacher", "OnnxTeacher", "Teacher", "TeacherSpec", "TorchTeacher", "fingerprint_of"]
__all__ += ["load_teacher", "parse_teacher", "teacher_from_function"]  # the spec and its word: from specs

BATCH_TOKENS = 4096  # padded tokens of one batch
SAME_LENGTH_TOKENS = 1024  # a batch this full ends where the length changes: full rows need no mask
# Weights of the modules in subfolders (2_Dense) may be pickled: sentence-transformers reads those as well.
_IDENTITY_FILES = (
    "*.safetensors",
    "*.json",
    "*.txt",
    "*.model",
    "*.onnx",
    "*/*.bin",
    "*.codes",
    "*.tiktoken",
)


class Teacher(Protocol):
    """A loaded teacher: `encode` maps n captions to float32 [n, width]."""

    spec: TeacherSpec
    width: int
    fingerprint: str
    content: Any  # what `fingerprint_of` digests beside the spec

    @property
    def max_tokens(self) -> int | None:
        """Where texts are cut, special tokens included; None: unknown."""

    @property
    def tokenizer(self) -> Any | None:
        """The `tokenizers.Tokenizer` of the captions; None: it has none."""

    def encode(self, texts: list[str]) -> np.ndarray:
        """Vectors of the captions, in order: float32 [n, width]."""

    def token_lengths(self, texts: list[str]) -> np.ndarray:
        """Tokens of each caption before truncation, special ones included: int64 [n], or empty."""


def load_teacher(spec: TeacherSpec) -> Teacher:
    """Load a teacher after comparing its weights with the digest of the spec.

    Raises:
        InputError: files are missing, the digest differs, weights are not safetensors, or remote code is
            needed.
    """
    if spec.kind not in KINDS or spec.kind == "function":
        raise InputError(
            f"teacher {spec.name}: unknown kind {spec.kind!r}; expected one of {', '.join(KINDS[:3])}"
        )
    if spec.kind == "onnx":
        return OnnxTeacher(spec)
    folder = _model_folder(spec)
    if spec.kind == "sentence-transformer" and not (folder / "modules.json").is_file():
        spec = replace(spec, kind="auto-model", pooling="mean")
    return TorchTeacher(spec, folder)


def _model_folder(spec: TeacherSpec) -> Path:
    if spec.source.startswith("packaged:"):
        return packaged_folder(spec.source.removeprefix("packaged:"))
    if spec.revision is None:
        return Path(spec.source)
    from huggingface_hub import snapshot_download

    patterns = ["*.safetensors", "*.json", "*.txt", "*.model"]
    try:
        return Path(snapshot_download(spec.source, revision=spec.revision, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many classes, some of them its transport's
        raise InputError(
            f"teacher {spec.name}: cannot fetch {spec.source}@{spec.revision}: {error}"
        ) from error


def _check_weights(spec: TeacherSpec, weights: list[Path]) -> str:
    """SHA-256 of the weights (of the list of digests if there are several files), compared with the spec."""
    if not weights:
        raise InputError(
            f"teacher {spec.name}: no .safetensors weights in {spec.source}; pickled weights can run code "
            "and are not read"
        )
    digests = [sha256_file(w) for w in weights]
    found = digests[0] if len(digests) == 1 else digest_json(digests)
    if spec.digest is not None and found != spec.digest:
        raise InputError(
            f"teacher {spec.name}: {weights[0].name} has SHA-256 {found}, expected {spec.digest}; these are "
            "not the weights that were asked for: install or fetch them again, or correct the digest"
        )
    return found


def deciding_files(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a model folder that decides its vectors (weights, configs, tokenizer), by path in it."""
    files = sorted({p for pattern in _IDENTITY_FILES for p in folder.rglob(pattern) if p.is_file()})
    return {p.relative_to(folder).as_posix(): sha256_file(p) for p in files}


def fingerprint_of(spec: TeacherSpec, content: Any) -> str:
    """Digest of what decides a teacher's vectors: its content and how it is run, not its name or place."""
    ways = {
        k: v for k, v in asdict(spec).items() if k in ("kind", "pooling", "max_length", "prompt", "dtype")
    }
    return digest_json({"content": content, **ways})


def _batches(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Row numbers of each batch: sorted by length, at most BATCH_TOKENS padded tokens, or one row."""
    order = np.argsort(lengths, kind="stable")
    start = 0
    for stop in range(1, len(order) + 1):
        if stop < len(order):
            longest, padded = lengths[order[stop]], (stop - start + 1) * lengths[order[stop]]
            full = (stop - start) * lengths[order[stop - 1]] >= SAME_LENGTH_TOKENS
            if padded <= BATCH_TOKENS and not (full and longest != lengths[order[stop - 1]]):
                continue
        yield order[start:stop]
        start = stop


class _TokenTeacher:
    """What the tokenizing teachers share: prompt, tokens, batches by length, order restored."""

    spec: TeacherSpec
    width: int
    fingerprint: str
    content: Any
    _tokenizer: Any
    _max_length: int
    _own_prompt: str = ""  # what the model's files say comes before a text; a prompt of the spec replaces it

    @property
    def max_tokens(self) -> int | None:
        """Where texts are cut, special tokens included."""
        return self._max_length

    @property
    def tokenizer(self) -> Any | None:
        """The fast tokenizer's own object; None for a slow one."""
        return getattr(self._tokenizer, "backend_tokenizer", None)

    def token_lengths(self, texts: list[str]) -> np.ndarray:
        """Tokens of each caption before truncation: int64 [n]."""
        texts = self._prompted(texts)
        rows = self._tokenizer(texts, truncation=False, padding=False, verbose=False)["input_ids"]
        return np.array([len(r) for r in rows], dtype=np.int64)

    def _prompted(self, texts: list[str]) -> list[str]:
        prompt = self.spec.prompt or self._own_prompt
        return [prompt + t for t in texts] if prompt else texts

    def encode(self, texts: list[str]) -> np.ndarray:
        """float32 [n, width] in the order of `texts`. Raises InputError where a batch has another width."""
        if not texts:
            return np.zeros((0, self.width), dtype=np.float32)
        rows = self._tokenizer(
            self._prompted(texts), truncation=True, max_length=self._max_length, padding=False, verbose=False
        )["input_ids"]
        lengths = np.array([len(r) for r in rows], dtype=np.int64)
        out = np.empty((len(texts), self.width), dtype=np.float32)
        for places in _batches(lengths):
            longest = int(lengths[places].max())
            ids = np.full((len(places), longest), self._tokenizer.pad_token_id or 0, dtype=np.int64)  # [B, T]
            mask = np.arange(longest)[None, :] < lengths[places][:, None]  # [B, T]
            for i, place in enumerate(places):
                ids[i, : lengths[place]] = rows[place]
            vectors = self._encode_batch(ids, mask.astype(np.int64))
            if vectors.shape != (len(places), self.width):
                raise InputError(
                    f"teacher {self.spec.name}: expected vectors of shape {(len(places), self.width)}, "
                    f"found {vectors.shape}"
                )
            out[places] = vectors
        return out

    def _encode_batch(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        raise NotImplementedError


def _load_tokenizer(spec: TeacherSpec, folder: Path | None) -> Any:
    try:
        return load_tokenizer(str(folder) if spec.tokenizer is None else spec.tokenizer)
    except InputError as error:
        raise InputError(f"teacher {spec.name}: {error}") from None


class TorchTeacher(_TokenTeacher):
    """A SentenceTransformer or AutoModel folder run by torch."""

    def __init__(self, spec: TeacherSpec, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(f"teacher {spec.name}: no such folder {folder}")
        weights = _check_weights(spec, sorted(folder.glob("*.safetensors")))
        self.spec = spec
        self.content = {"weights": weights, "files": digest_json(deciding_files(folder))}
        self.fingerprint = fingerprint_of(spec, self.content)
        self._modules, self._tokenizer, own_length, self._own_prompt = _torch_modules(spec, folder)
        self._max_length = min(spec.max_length or own_length, own_length)
        self.width = self._encode_batch(np.ones((1, 2), np.int64), np.ones((1, 2), np.int64)).shape[1]

    def _encode_batch(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        import torch

        features: dict[str, Any] = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
        }
        device = next(self._modules[0].parameters()).device
        features = {k: v.to(device) for k, v in features.items()}
        with torch.inference_mode():
            for module in self._modules:
                features = module(features)
                features = {k: _to_float32(v) for k, v in features.items()}
        return features["sentence_embedding"].cpu().numpy()  # [B, d]


def _to_float32(value: Any) -> Any:
    """Half-precision tensors as fp32: only the transformer itself runs in the teacher's dtype."""
    import torch

    return value.float() if torch.is_tensor(value) and value.is_floating_point() else value


def _torch_modules(spec: TeacherSpec, folder: Path) -> tuple[list[Any], Any, int, str]:
    """(modules that pass a feature dict on, tokenizer, longest input in tokens, the model's own prompt)."""
    import torch
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[spec.dtype]
    try:
        if spec.kind == "sentence-transformer":
            return _sentence_transformer(folder, dtype, device)
        return _auto_model(spec, folder, dtype, device)
    except (OSError, ValueError, KeyError, ImportError) as error:
        if isinstance(error, ValueError) and "trust_remote_code" in str(error):
            raise InputError(
                f"teacher {spec.name}: its folder needs its own code, which is not run; export it to ONNX "
                "and give onnx:FILE:TOKENIZER"
            ) from None
        raise InputError(f"teacher {spec.name}: cannot be loaded from {folder}: {error}") from error


def _sentence_transformer(folder: Path, dtype: Any, device: str) -> tuple[list[Any], Any, int, str]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(
        str(folder), device=device, local_files_only=True, model_kwargs={"use_safetensors": True}
    ).eval()
    modules = [module.float() for module in model]
    if not hasattr(modules[0], "auto_model"):
        raise ValueError(f"its first module is {type(modules[0]).__name__}, expected a Transformer")
    modules[0].to(dtype)
    prompt = (model.prompts or {}).get(model.default_prompt_name or "") or ""
    return modules, model.tokenizer, int(model.max_seq_length or 512), prompt


def _auto_model(spec: TeacherSpec, folder: Path, dtype: Any, device: str) -> tuple[list[Any], Any, int, str]:
    from transformers import AutoModel

    model = (
        AutoModel.from_pretrained(folder, use_safetensors=True, local_files_only=True)
        .to(device, dtype)
        .eval()
    )
    tokenizer = _load_tokenizer(spec, folder)
    limits = [getattr(model.config, "max_position_embeddings", 512), tokenizer.model_max_length, 512]
    return [_MeanPooled(model)], tokenizer, int(min(limits)), ""


class _MeanPooled:
    """An AutoModel with masked mean pooling in fp32, shaped like a SentenceTransformer module."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.parameters = model.parameters

    def __call__(self, features: dict[str, Any]) -> dict[str, Any]:
        states = self._model(**features).last_hidden_state.float()  # [B, T, d]
        mask = features["attention_mask"].unsqueeze(-1).float()  # [B, T, 1]
        return {"sentence_embedding": (states * mask).sum(1) / mask.sum(1).clamp(min=1)}  # [B, d]


class OnnxTeacher(_TokenTeacher):
    """An ONNX graph over token ids; its rank-3 float output is mean-pooled, a rank-2 one taken as it is."""

    def __init__(self, spec: TeacherSpec) -> None:
        packaged = spec.source.removeprefix("packaged:") if spec.source.startswith("packaged:") else None
        file = packaged_weights(packaged) if packaged else Path(spec.source)
        if not file.is_file():
            raise InputError(f"teacher {spec.name}: no such ONNX file {file}")
        weights = _check_weights(spec, [file])
        self.spec = replace(spec, max_length=spec.max_length or 128)
        self._max_length = self.spec.max_length or 128
        self._tokenizer = _load_tokenizer(spec, packaged_tokenizer(packaged) if packaged else None)
        self.content = {"weights": weights, "tokenizer": sha256_bytes(_tokenizer_bytes(self._tokenizer))}
        self.fingerprint = fingerprint_of(self.spec, self.content)
        self._session = _onnx_session(spec, file)
        self._inputs = {i.name for i in self._session.get_inputs()}
        self._output = self._choose_output()
        self.width = self._encode_batch(np.ones((1, 2), np.int64), np.ones((1, 2), np.int64)).shape[1]

    def _feed(self, ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        unknown = self._inputs - set(given)
        if unknown:
            raise InputError(f"teacher {self.spec.name}: its graph wants unknown inputs {sorted(unknown)}")
        return {name: given[name] for name in self._inputs}

    def _choose_output(self) -> str:
        """Name of the token states (float, rank 3), else of pooled vectors (rank 2), seen on one row."""
        names = [o.name for o in self._session.get_outputs()]
        values = self._session.run(names, self._feed(np.ones((1, 3), np.int64), np.ones((1, 3), np.int64)))
        for rank in (3, 2):
            for name, value in zip(names, values):
                if np.ndim(value) == rank and np.issubdtype(value.dtype, np.floating):
                    return name
        raise InputError(
            f"teacher {self.spec.name}: its graph gives no float output of rank 3 or 2; outputs {names}"
        )

    def _encode_batch(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        states = self._session.run([self._output], self._feed(ids, mask))[0].astype(np.float32)
        if states.ndim == 2:
            return states  # [B, d]
        weights = mask[:, :, None].astype(np.float32)  # [B, T, 1]
        return (states * weights).sum(1) / weights.sum(1)  # [B, d]


def _tokenizer_bytes(tokenizer: Any) -> bytes:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return (backend.to_str() if backend is not None else str(sorted(tokenizer.get_vocab().items()))).encode()


def _onnx_session(spec: TeacherSpec, file: Path) -> Any:
    import torch

    try:
        import onnxruntime
    except ImportError:
        raise InputError(
            f"teacher {spec.name} needs onnxruntime; run: pip install 'captionbert[teachers]'"
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own exceptions share no base class
        raise InputError(f"teacher {spec.name}: {file} is not a readable ONNX graph: {error}") from None


class FunctionTeacher:
    """A teacher made of a Python function: for tests and for vectors computed elsewhere."""

    max_tokens = tokenizer = None

    def __init__(
        self, spec: TeacherSpec, width: int, function: Callable[[list[str]], np.ndarray], content: str
    ) -> None:
        self.spec, self.width, self._function, self.content = spec, width, function, content
        self.fingerprint = fingerprint_of(spec, content)

    def encode(self, texts: list[str]) -> np.ndarray:
        """What the function returns, as it is: its shape and values are checked where they are stored."""
        return np.asarray(self._function(texts))

    def token_lengths(self, texts: list[str]) -> np.ndarray:
        """No tokens: an empty array."""
        return np.zeros(0, dtype=np.int64)


def teacher_from_function(
    name: str, width: int, function: Callable[[list[str]], np.ndarray], *, content: str | None = None
) -> FunctionTeacher:
    """A teacher from `function` (captions -> [n, width]); `content` stands for its weights."""
    return FunctionTeacher(
        TeacherSpec(name, "function", name, dtype="fp32"), width, function, content or name
    )
