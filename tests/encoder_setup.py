"""A hand-made encoder for the probes of models: vectors by a function of the text."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class HandMade:
    """As `consensus.encoder.Encoder`. `function`: text -> vector, brought to unit length here."""

    def __init__(
        self,
        name: str,
        function: Callable[[str], Sequence[float]],
        *,
        width: int = 2,
        max_tokens: int | None = None,
        trained_tokens: int | None = None,
        frame_id: str | None = None,
        tokenizer: Any = None,
        stretchable: bool = False,
        kind: str = "model",
    ) -> None:
        self.name, self.width, self.max_tokens = name, width, max_tokens
        self.trained_tokens, self.frame_id, self.tokenizer = trained_tokens, frame_id, tokenizer
        self.stretchable, self._function, self.factor = stretchable, function, 1.0
        self.facts = {"is": kind, "digest": name, "width": width}
        self.seen: list[str] = []  # every text encoded, in order
        self.factors: list[float] = []  # every stretch

    def stretch(self, factor: float) -> None:
        assert factor == 1 or self.stretchable
        self.factors.append(factor)
        self.factor = factor

    def encode(self, texts: list[str]) -> np.ndarray:
        self.seen += texts
        vectors = np.array([self._function(text) for text in texts], dtype=np.float64).reshape(-1, self.width)
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
