"""Small teachers that agree on what words mean, and captions made of those words, for the consensus tests."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from captionbert.consensus.teachers import FunctionTeacher, teacher_from_function

WORDS = ["cat", "dog", "man", "woman", "red", "blue", "runs", "sleeps", "park", "river", "tree", "snow"]


def encoder(name: str, width: int) -> Callable[[list[str]], np.ndarray]:
    """Texts to float32 [n, width]: word meanings shared by all, seen through `name`'s own projection and noise."""
    meanings = np.random.default_rng(99).standard_normal((len(WORDS), 8))
    seen = np.random.default_rng(sum(map(ord, name))).standard_normal((8, width))

    def encode(texts: list[str]) -> np.ndarray:
        counts = np.array([[t.split().count(w) for w in WORDS] for t in texts], dtype=float)
        private = np.stack(
            [np.random.default_rng([ord(c) for c in name + t]).standard_normal(width) for t in texts]
        )
        return (counts @ meanings @ seen + 0.3 * private + 1.0).astype(np.float32)

    return encode


def toy(name: str, width: int, content: str = "") -> FunctionTeacher:
    """A teacher made of `encoder(name, width)`; `content` stands for its weights."""
    return teacher_from_function(name, width, encoder(name, width), content=content or name)


def write_captions(path: Path, rows: int, *, seed: int = 5, longest: int = 9) -> str:
    """A file of `rows` distinct captions of 3 to `longest` - 1 words and a number; returns its path."""
    random = np.random.default_rng(seed)
    captions = (" ".join(random.choice(WORDS, random.integers(3, longest))) + f" {i}" for i in range(rows))
    path.write_text("\n".join(captions))
    return str(path)
