"""Frozen encoders behind one form, to be measured side by side: a teacher by itself, and the consensus of several.

The consensus as an encoder: every teacher embeds the texts, the fitted frame maps and averages them. For the captions
of its corpus these are the targets on disk, which differ by their fp16 storage alone. Legend: n texts, E width.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import read_json
from captionbert.consensus.build import CONSENSUS_KIND
from captionbert.consensus.frames import Frame, open_frame
from captionbert.consensus.specs import TeacherSpec, parse_teacher
from captionbert.consensus.teachers import Teacher, fingerprint_of, load_teacher

CONSENSUS = "consensus:"  # before a folder: the consensus itself is meant


class Encoder(Protocol):
    """A frozen encoder.

    Attributes:
        name: a short one for tables. width: E. facts: what it is, for a report; "digest" decides its vectors.
        max_tokens: where it cuts a text, special tokens included; None: unknown.
        trained_tokens: the longest text it was trained on; None: unknown.
        frame_id: of the consensus whose coordinates its vectors have; None: unknown, or its own.
        tokenizer: its `tokenizers.Tokenizer`; None: it has none.
        stretchable: whether `stretch` may be called.
    """

    name: str

    @property
    def width(self) -> int: ...
    @property
    def max_tokens(self) -> int | None: ...
    @property
    def trained_tokens(self) -> int | None: ...
    @property
    def frame_id(self) -> str | None: ...
    @property
    def tokenizer(self) -> Any | None: ...
    @property
    def stretchable(self) -> bool: ...
    @property
    def facts(self) -> dict[str, Any]: ...

    def encode(self, texts: list[str]) -> np.ndarray:
        """float32 [n, E], unit rows, in the order of `texts`."""

    def stretch(self, factor: float) -> None:
        """Stretch rotary positions `factor` times from here on; 1 brings the model back bit for bit."""


class _Fixed:
    """What teachers and consensus share: positions that stay, a training length that nobody recorded."""

    trained_tokens: int | None = None
    stretchable = False

    def stretch(self, factor: float) -> None:
        """Nothing can be stretched here.

        Raises:
            InputError: `factor` is not 1.
        """
        if factor != 1:
            raise InputError(
                f"rotary factor {factor:g}: only models of this package with rotary positions take one"
            )


class TeacherEncoder(_Fixed):
    """A teacher with its vectors at unit length."""

    frame_id: str | None = None

    def __init__(self, teacher: Teacher) -> None:
        self.name, self._teacher = teacher.spec.name, teacher

    @property
    def width(self) -> int:
        """E."""
        return self._teacher.width

    @property
    def max_tokens(self) -> int | None:
        """Where texts are cut."""
        return self._teacher.max_tokens

    @property
    def tokenizer(self) -> Any | None:
        """The teacher's tokenizer."""
        return self._teacher.tokenizer

    @property
    def facts(self) -> dict[str, Any]:
        """For a report."""
        return {
            "is": "teacher",
            "digest": self._teacher.fingerprint,
            "dtype": self._teacher.spec.dtype,
            "width": self.width,
            "max_tokens": self.max_tokens,
        }

    def encode(self, texts: list[str]) -> np.ndarray:
        """float32 [n, E], unit rows.

        Raises:
            InputError: a text's vector is not finite or has length 0.
        """
        vectors = np.asarray(self._teacher.encode(texts), dtype=np.float64)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        bad = np.flatnonzero(~(np.isfinite(norms[:, 0]) & (norms[:, 0] > 1e-8)))
        if bad.size:
            raise InputError(f"{self.name}: no direction in its vector of the text {texts[bad[0]][:60]!r}")
        return (vectors / norms).astype(np.float32)


class ConsensusEncoder(_Fixed):
    """The consensus of a fitted frame, computed for any text.

    Args:
        teachers: by name, those of the frame.
        fingerprints: what the frame was fitted on, by name.

    Raises:
        InputError: a teacher is missing, or is not the one that the frame was fitted on. Another dtype of the same
            weights is allowed: its vectors differ by rounding.
    """

    def __init__(
        self,
        name: str,
        frame: Frame,
        teachers: Mapping[str, Teacher],
        fingerprints: Mapping[str, str],
        dtypes: Mapping[str, str],
    ) -> None:
        for one in frame.teachers:
            if one not in teachers:
                raise InputError(f"{name}: the frame needs teacher {one}, there are {sorted(teachers)}")
            found = fingerprint_of(replace(teachers[one].spec, dtype=dtypes[one]), teachers[one].content)
            if found != fingerprints[one]:
                raise InputError(
                    f"{name}: teacher {one} has fingerprint {found}, the frame was fitted on {fingerprints[one]}; its "
                    "files, pooling or length have changed: put them back, or make the consensus anew"
                )
        self.name, self._frame, self._teachers = name, frame, dict(teachers)

    @property
    def width(self) -> int:
        """E of the reference."""
        return self._frame.width

    @property
    def frame_id(self) -> str | None:
        """Of the frame."""
        return self._frame.frame_id

    @property
    def max_tokens(self) -> int | None:
        """The shortest limit of the teachers: beyond it the consensus is of different texts."""
        known = [t.max_tokens for t in self._teachers.values() if t.max_tokens is not None]
        return min(known, default=None)

    @property
    def tokenizer(self) -> Any | None:
        """The reference's tokenizer."""
        return self._teachers[self._frame.reference].tokenizer

    @property
    def facts(self) -> dict[str, Any]:
        """For a report."""
        return {
            "is": "consensus",
            "digest": self._frame.frame_id,
            "frame_id": self._frame.frame_id,
            "reference": self._frame.reference,
            "teachers": {name: t.spec.dtype for name, t in self._teachers.items()},
            "width": self.width,
            "max_tokens": self.max_tokens,
        }

    def encode(self, texts: list[str]) -> np.ndarray:
        """float32 [n, E], unit rows. Raises InputError where a text has no direction."""
        if not texts:
            return np.zeros((0, self.width), dtype=np.float32)
        vectors = {name: np.asarray(self._teachers[name].encode(texts)) for name in self._frame.teachers}
        return self._frame.consensus(vectors).astype(np.float32)


def with_dtype(spec: TeacherSpec, dtype: str | None) -> TeacherSpec:
    """The spec in another number type; an ONNX graph keeps its own, and None changes nothing."""
    return spec if dtype is None or spec.kind in ("onnx", "function") else replace(spec, dtype=dtype)


def open_fixed(word: str, dtype: str | None = None) -> Encoder:
    """The consensus of `consensus:DIR`, or the teacher that any other word names.

    Raises:
        InputError: see open_consensus_encoder and open_teacher; the message begins with the word.
    """
    if word.startswith(CONSENSUS):
        return open_consensus_encoder(word.removeprefix(CONSENSUS), dtype)
    try:
        return open_teacher(word, dtype)
    except InputError as error:
        raise InputError(f"model {word}: {error}") from None


def open_teacher(word: str, dtype: str | None = None) -> TeacherEncoder:
    """The teacher that a word names (see parse_teacher).

    Raises:
        InputError: see parse_teacher and load_teacher.
    """
    return TeacherEncoder(load_teacher(with_dtype(parse_teacher(word), dtype)))


def open_consensus_encoder(folder: str | Path, dtype: str | None = None) -> ConsensusEncoder:
    """The consensus of a folder that `captionbert consensus fit` has finished.

    Args:
        dtype: number type of its torch teachers; None: the one that embedded the corpus.

    Raises:
        InputError: no fitted frame there; a teacher cannot be loaded, or is another one now.
    """
    folder = Path(folder)
    if not (folder / "consensus.json").is_file():
        raise InputError(f"{folder}: no consensus there; expected a folder of `captionbert consensus fit`")
    info = read_json(folder / "consensus.json", kind=CONSENSUS_KIND)
    frame = open_frame(folder / "frame")
    recorded = {
        r["name"]: TeacherSpec(**r["teacher"]) for r in info["teachers"] if r["name"] in frame.teachers
    }
    missing = [name for name in frame.teachers if name not in recorded]
    if missing:
        raise InputError(
            f"{folder}: the frame needs teacher {missing[0]}, consensus.json lacks it; run fit again"
        )
    fitted = {name: fingerprint for name, fingerprint, *_ in frame.info["inputs"]["teachers"]}
    teachers = {}
    for name, spec in recorded.items():
        try:
            teachers[name] = load_teacher(with_dtype(spec, dtype))
        except InputError as error:
            raise InputError(
                f"{folder}: the consensus is computed by its teachers, and one cannot be loaded: {error}; it must lie "
                "where it lay when the captions were embedded"
            ) from None
    dtypes = {name: spec.dtype for name, spec in recorded.items()}
    return ConsensusEncoder(f"{CONSENSUS}{folder.resolve().name}", frame, teachers, fitted, dtypes)
