"""Captions for a probe: streamed from files and corpus folders, and a seeded sample of rows with their numbers.

A row's number is its place in the file, from 1, or its id in a corpus folder. Blank and null rows are left out and
counted, never renumbered: a sample can be found again by file and number.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from captionbert.artifacts.errors import InputError
from captionbert.consensus.captions import INFO, open_corpus
from captionbert.consensus.readers import is_text, open_source, read_source

_BLOCK = 4096


@dataclass
class Captions:
    """The captions of some files and folders, read again at each iteration.

    Attributes:
        words: what the user named. column: text column of JSONL or Parquet.
        identity: name and digest of each that has been read. skipped: rows that hold no text, of the last reading.
    """

    words: list[str]
    column: str | None = None
    identity: dict[str, str] = field(default_factory=dict)
    skipped: int = 0

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """(number of the row in its file, text).

        Raises:
            InputError: a file that cannot be read, or that holds no caption.
        """
        self.skipped = 0
        for word in self.words:
            found = False
            for number, text in self._rows(word):
                text = _clean(text)
                if not text:
                    self.skipped += 1
                    continue
                found = True
                yield number, text
            if not found:
                raise InputError(f"{word}: holds no caption; expected one a line or row")

    def blocks(self) -> Iterator[list[str]]:
        """The texts, some thousand at a time."""
        pending: list[str] = []
        for _, text in self:
            pending.append(text)
            if len(pending) == _BLOCK:
                yield pending
                pending = []
        if pending:
            yield pending

    def _identify(self, word: str, name: str, digest: str) -> None:
        """Note what was read, under its whole path where another file has its name."""
        self.identity[name if self.identity.get(name, digest) == digest else word] = digest

    def _rows(self, word: str) -> Iterator[tuple[int, str | None]]:
        folder = _corpus_folder(word)
        if folder is None:
            source = open_source(word)
            self._identify(word, source.name, source.identity)
            yield from read_source(source, self.column)
            return
        corpus = open_corpus(folder)
        self._identify(word, folder.name, corpus.digest)
        for start in range(0, corpus.rows, _BLOCK):
            rows = np.arange(start, min(start + _BLOCK, corpus.rows))
            yield from zip(rows.tolist(), corpus.texts(rows))


def _corpus_folder(word: str) -> Path | None:
    """The corpus folder that a word names: itself, or `corpus` inside a consensus; None for a file."""
    path = Path(word)
    if not path.is_dir():
        return None
    return path if (path / INFO).is_file() else path / "corpus"


def _clean(text: str | None) -> str:
    """The text without blanks around it; empty where a tokenizer could not read it (half a surrogate pair)."""
    text = (text or "").strip().strip("\0")
    return text if is_text(text) else ""


@dataclass(frozen=True)
class Sample:
    """Captions drawn from a file: texts, and the number of each row there, ascending.

    Attributes:
        identity: name and digest of the file. of: how many captions it holds. seed: of the draw.
    """

    texts: list[str]
    rows: np.ndarray
    identity: dict[str, str]
    of: int
    seed: int

    def as_dict(self) -> dict[str, Any]:
        """For a JSON report; the row numbers themselves are in the arrays file."""
        return {"captions": self.identity, "rows": len(self.texts), "of": self.of, "seed": self.seed}


def sample(word: str, rows: int, seed: int, column: str | None = None) -> Sample:
    """A uniform draw of at most `rows` captions without repeats, the same for the same file and seed.

    Every caption gets a random rank as it streams by, and those with the smallest ranks stay: no more than a few
    thousand captions are held beyond the sample.

    Raises:
        InputError: the file cannot be read, holds no caption, or `rows` is below 1.
    """
    if rows < 1:
        raise InputError(f"rows is {rows}; expected 1 or more")
    captions = Captions([word], column)
    random = np.random.default_rng(seed)
    kept: list[tuple[float, int, str]] = []
    of = 0
    for number, text in captions:
        of += 1
        kept.append((random.random(), number, text))
        if len(kept) >= 2 * rows + _BLOCK:
            kept = sorted(kept)[:rows]
    chosen = sorted((number, text) for _, number, text in sorted(kept)[:rows])
    numbers = np.array([number for number, _ in chosen], dtype=np.int64)
    return Sample([text for _, text in chosen], numbers, captions.identity, of, seed)
