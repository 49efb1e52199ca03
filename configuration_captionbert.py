"""CaptionBertConfig: every size and switch of a CaptionBERT encoder, and the presets by name.

The config alone determines the model: there is no environment variable and no module-level switch. This is a remote
file: it travels to the Hub byte for byte and imports nothing but transformers.
"""

from typing import Any

from transformers.configuration_utils import PretrainedConfig

POSITION_TYPES = ("learned", "rotary")
POOLING_MODES = ("mean", "cls", "attention")
FEED_FORWARDS = ("dense",)


def ntk_base(base: float, planes: int, reference_planes: int) -> float:
    """The rotary base at which the slowest of `planes` turns as slowly as the slowest of `reference_planes` at `base`.

    Plane i of p turns base^(-i/p) radians a token, so the slowest turns base^(-(p-1)/p). Setting the two slowest
    equal gives base ** ((r-1)/r * p/(p-1)). This is the "NTK-aware" change of base (bloc97, 2023) with the number
    of planes, instead of the context length, as what changed.
    """
    exponent = (reference_planes - 1) / reference_planes * planes / (planes - 1)
    return float(base**exponent)


# What a preset changes from the defaults of CaptionBertConfig.__init__.
PRESETS: dict[str, dict[str, Any]] = {
    "captionbert-8192-v2": {},
    "relative-8": {"position_type": "rotary"},
    "relative-16": {
        "position_type": "rotary",
        "num_attention_heads": 16,
        "rotary_base": ntk_base(10_000.0, planes=16, reference_planes=32),
    },
    "captionbert-mini": {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
        "position_type": "rotary",
    },
    "pooling-mean": {"pooling": "mean"},
    "pooling-cls": {"pooling": "cls"},
    "pooling-attention": {"pooling": "attention"},
}


class CaptionBertConfig(PretrainedConfig):
    """Configuration of a CaptionBERT encoder. The defaults are the preset `captionbert-8192-v2`.

    Args:
        vocab_size: token ids run from 0 to vocab_size - 1 (BERT uncased WordPiece: 30,522).
        hidden_size: width D of the token states; a multiple of `num_attention_heads`.
        num_hidden_layers: pre-norm transformer layers.
        num_attention_heads: heads H; with rotary positions D / H must be even (two coordinates a plane).
        intermediate_size: hidden width of the feed-forward.
        projection_dim: width E of the sentence vector.
        max_position_embeddings: the longest input in tokens; longer ones are refused.
        position_type: "learned" (a table of `max_position_embeddings` rows) or "rotary".
        rotary_base: plane i of p turns rotary_base^(-i/p) radians a token (Su et al. 2021, RoFormer).
        pooling: "mean" over visible tokens, "cls" (the first token), or "attention" (one learned query).
        feed_forward: "dense"; the name leaves room for other trunks.
        layer_norm_eps: epsilon of every LayerNorm.
        initializer_range: standard deviation of the normal initialisation of weights.
        pad_token_id: the id that marks padding when no attention mask is given.

    Raises:
        ValueError: a value outside its range; the message names the field, its value and what it may be.
    """

    model_type = "captionbert"

    def __init__(
        self,
        vocab_size: int = 30_522,
        hidden_size: int = 512,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 8,
        intermediate_size: int = 2048,
        projection_dim: int = 768,
        max_position_embeddings: int = 8192,
        position_type: str = "learned",
        rotary_base: float = 10_000.0,
        pooling: str = "mean",
        feed_forward: str = "dense",
        layer_norm_eps: float = 1e-12,
        initializer_range: float = 0.02,
        pad_token_id: int = 0,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.projection_dim = projection_dim
        self.max_position_embeddings = max_position_embeddings
        self.position_type = position_type
        self.rotary_base = rotary_base
        self.pooling = pooling
        self.feed_forward = feed_forward
        self.layer_norm_eps = layer_norm_eps
        self.initializer_range = initializer_range
        self._check()
        super().__init__(**{"pad_token_id": pad_token_id, **kwargs})

    @classmethod
    def presets(cls) -> list[str]:
        """The names that `from_preset` knows."""
        return list(PRESETS)

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> "CaptionBertConfig":
        """The config of a preset, with any field overridden by keyword.

        Raises:
            ValueError: no preset has that name, or an override is not a field of this class.
        """
        if name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}; the presets are {', '.join(PRESETS)}")
        fields = cls().__dict__
        unknown = [key for key in overrides if key not in fields]
        if unknown:
            raise ValueError(f"unknown config field {unknown[0]!r} in the overrides of preset {name!r}")
        return cls(**{**PRESETS[name], **overrides})

    @property
    def head_size(self) -> int:
        """Coordinates of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def supports_left_padding(self) -> bool:
        """Whether a left-padded row has the vector of the right-padded one.

        Rotary positions only see distances, so padding on the left moves nothing; a learned table and the first-token
        pooling both count from the left edge.
        """
        return self.position_type == "rotary" and self.pooling != "cls"

    def _check(self) -> None:
        positive = (
            "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size projection_dim "
            "max_position_embeddings"
        )
        for name in positive.split():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        choices = {"position_type": POSITION_TYPES, "pooling": POOLING_MODES, "feed_forward": FEED_FORWARDS}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        if self.position_type == "rotary" and self.head_size % 2:
            raise ValueError(f"rotary positions need an even head size, not {self.head_size}")
        if not self.rotary_base > 1:
            raise ValueError(f"rotary_base must be above 1, not {self.rotary_base!r}")
