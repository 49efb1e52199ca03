"""What a teacher is called on the command line, and what is then asked for: source, pin, pooling, length,
dtype.

    minilm | mpnet | paraphrase-l3      packaged, digests pinned; or packaged:minilm ...
    FOLDER[#SHA256]                     SentenceTransformer or AutoModel folder, optional digest of its weights
    HUB-ID@REVISION                     40 hex digits
    onnx:FILE[#SHA256]:TOKENIZER        graph and tokenizer spec
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from captionbert.artifacts.arithmetic import fast_dtype
from captionbert.artifacts.errors import InputError
from captionbert.consensus.packaged import HUB_PIN, PACKAGED

KINDS = ("sentence-transformer", "auto-model", "onnx", "function")
_DIGEST = re.compile(r"^[0-9a-f]{64}$")


@dataclass(frozen=True)
class TeacherSpec:
    """What a user asked for.

    Attributes:
        name: short name, the folder of its shards.
        kind: one of KINDS.
        source: folder, hub id, or ONNX file.
        revision: 40 hex digits for a hub id, else None.
        digest: expected SHA-256 of the weights file; None: recorded, not compared.
        tokenizer: tokenizer spec (see resolve_tokenizer); None: the source's own.
        pooling: "model" (its own modules) or "mean".
        max_length: tokens; None: the model's own limit.
        prompt: text put before every caption.
        dtype: "bf16", "fp16" or "fp32" of the transformer's weights; bf16 where this machine computes in it.
    """

    name: str
    kind: str
    source: str
    revision: str | None = None
    digest: str | None = None
    tokenizer: str | None = None
    pooling: str = "mean"
    max_length: int | None = None
    prompt: str = ""
    dtype: str = field(default_factory=fast_dtype)


def parse_teacher(text: str) -> TeacherSpec:
    """A teacher from a command-line word.

    `minilm`, `mpnet`, `paraphrase-l3` | FOLDER[#SHA256 of its weights] | HUB-ID@REVISION |
    onnx:FILE[#SHA256]:TOKENIZER (a folder or tokenizer spec).

    Raises:
        InputError: none of these, or a hub id without a 40-digit revision.
    """
    if text.removeprefix("packaged:") in PACKAGED:
        return _packaged_spec(text.removeprefix("packaged:"))
    if text.startswith("onnx:"):
        return _onnx_spec(text)
    location, _, digest = text.partition("#")
    if pinned := HUB_PIN.match(location):
        _check_digest(text, digest)
        return TeacherSpec(
            _slug(pinned[1]),
            "sentence-transformer",
            pinned[1],
            revision=pinned[2],
            digest=digest or None,
            pooling="model",
        )
    if not Path(location).is_dir():
        raise InputError(
            f"teacher {text!r}: not a packaged name ({', '.join(PACKAGED)}), not a folder, and not a pinned "
            f"hub id; a hub model is given with its commit: {location.partition('@')[0]}@<40 hex digits>"
        )
    _check_digest(text, digest)
    own = (Path(location) / "modules.json").is_file()
    kind, pooling = ("sentence-transformer", "model") if own else ("auto-model", "mean")
    return TeacherSpec(
        _slug(Path(location).resolve().name), kind, location, digest=digest or None, pooling=pooling
    )


def _packaged_spec(name: str) -> TeacherSpec:
    entry = PACKAGED[name]
    onnx = entry.kind == "onnx"
    return TeacherSpec(
        name,
        entry.kind,
        f"packaged:{name}",
        digest=entry.digest,
        tokenizer=f"packaged:{name}",
        pooling="mean" if onnx else "model",
        max_length=entry.max_length,
        **({"dtype": "fp32"} if onnx else {}),
    )


def _onnx_spec(text: str) -> TeacherSpec:
    location, _, tokenizer = text.removeprefix("onnx:").partition(":")
    file, _, digest = location.partition("#")
    if not Path(file).is_file() or not tokenizer:
        raise InputError(
            f"teacher {text!r}: expected onnx:FILE:TOKENIZER, with an existing graph file and a tokenizer"
        )
    _check_digest(text, digest)
    return TeacherSpec(
        _slug(Path(file).stem),
        "onnx",
        file,
        digest=digest or None,
        tokenizer=tokenizer,
        max_length=128,
        dtype="fp32",
    )


def _check_digest(text: str, digest: str) -> None:
    if digest and not _DIGEST.match(digest):
        raise InputError(f"teacher {text!r}: after # expected a SHA-256 of 64 hex digits, found {digest!r}")


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.") or "teacher"
