"""CaptionBertConfig: every size and switch of a CaptionBERT encoder, and the presets by name.

The config alone determines the model: there is no environment variable and no module-level switch. This is a remote
file: it travels to the Hub byte for byte and imports nothing but transformers.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from typing import Any

from transformers.configuration_utils import PretrainedConfig

POSITION_TYPES = ("learned", "rotary", "structured")
POOLING_MODES = ("mean", "cls", "attention")
FEED_FORWARDS = ("dense",)
BINDINGS = ("none", "endings", "pieces")


def ntk_base(base: float, planes: int, reference_planes: int) -> float:
    """The rotary base at which the slowest of `planes` turns as slowly as the slowest of `reference_planes` at `base`.

    Plane i of p turns base^(-i/p) radians a token, so the slowest turns base^(-(p-1)/p). Setting the two slowest
    equal gives base ** ((r-1)/r * p/(p-1)). This is the "NTK-aware" change of base (bloc97, 2023) with the number
    of planes, instead of the context length, as what changed.
    """
    exponent = (reference_planes - 1) / reference_planes * planes / (planes - 1)
    return float(base**exponent)


# Which ids of BERT's uncased vocabulary are `##` pieces, as `write_bitmap` gives it; a test compares it with the file.
BERT_CONTINUATIONS = (
    "eNrlV99vHFcVPvfuncmd8dq5O944k9RUdyYTd9ym7TqEyg0VurPeuNs0VBs3Dw7tw+aHqkBDleYBVUigO+uxu/lRtHbTdFsFtHajKg99"
    "MBKqQAJpkrjgUpBM4aGPTqgQQiCl4oU3OHed8ifwwso72pk5955zvvOd71wD/N9+iLlIAkuaHgRQhH/5gkGUCnxPQd63AqVlBOpLA7EI"
    "igEuOA1QYlABEjOKzyMQXKv/2pmlFfyGDgNeAakFvlLcOABu7AW0GFNoF+IDMN6AlBRQDZIC7e9B8e1wDHWoQt/GfJvM0QS4DSne1zQI"
    "auzYRY9QBh5o3Kl0f/n9fHAVu/+bsQZQE6EuGXcEgyAO3mU78NZiUrsmcZOyMjsJLax+ZF+Gw9GH6P+utF20Mp41NCQI1Y9ZMAYl8/yc"
    "WSaAFWLQ6FzwrT2cPjweYsO5cRBiZJLL+6H6BpSOokQBF4gp2rIOuPdL09ZoVzfLJcbID2BaoV9V+5iNDiXw+hb0MkZMEWctZAuUcYov"
    "DUimICv9RHT/D+oK3SlKC5rrrQwtiIXC1F3jZcsIYNxwQ3iYAqYKUxLogDKY5Bgq/AGj2CIJJHSjRajkPenLFYylgKFw866pG/1yc4SL"
    "xhzaFyRGGuM6KvsuBk19VATIlLKx1I2smimbaar34H1sANQac8FSEYO5toFyKhmLKtDmsia26IN84zKtabYfSGAMWZBKBJvEsppJoYQA"
    "iYU2oBBnAjir4SoL4WOmeKnZRN3HJ8NwwToZarAxRn5N86RGG+QOyBpDMk5vI33OTmPaJdyAl/rkpNwwRyDgaFMyRGtyqDJ2oQM9Vcq0"
    "mDM0oFxt8ZIwaJcQCz6kRCMWb+WkgvlLZkCjhBncdQ6zyRZ9mbmSfcBXTE3fUchMaCBdlcJU4To6hTQDuAFTfVDPVPtVkQ7ePYwFs3xI"
    "gOhFU6kZcBD8lojZ5K3qgu43L9GB9BADTkYI3FqVWu9GpNRh3jIFZlItNcmyobbSlFx3CMGNRQ9zRnLxPleF0CYmXu/7b6vPVdu1MEcV"
    "YeS1WHBVf8OUF4EhovSMa1tSm3wDDAwj0ODlRk1I7LNyxc+A9mTWJw6wLBiji4/w5k1hYE4q0mIJthzx/R4EfXjIGraH4keN65wYauGz"
    "NreFTTytsbgNkGJsVKxMEcJGwU991gRcK8cYsDbAOoqKm6AgqhBp0KIwrqAIvAZ4BdrU9AKqUjs/AMKW29wWbk9ZC0SRMq7JIyQRYQFJ"
    "hiaGFwJlwq96QC8DuRXKPFbETgyIIBBoeqivJcsIeurxtoCkr4dYX27ZH9V5bDTQyBBqA7QlcSIsQOEIsn90cxw6GLUVbEpV0EXITL1i"
    "IocKCJPu4CLd57cjMLuo0kA9Lgb1sbeLEnHtccYn38Tw3DWCCs5Owg553LAdlfOm05eAQkVOTJVpr/0p1BiG66blpnxSvgNal6flLMzX"
    "wV1+bgUbCZ0TPrSETS3jhiFsjdMrmPkl04hSRbaClta45fzhCiqYCmOoigKS50RGpVIpgYCqpqzwSUlvEagns3lPbuviQHiYWraTc5qI"
    "jLm20HwccCzsD2rzQAvAfuRL6GnsrXIjw3biV3ypEQsgotFD5ZI1/4Z4zHVre8QA5uaByhph+GaZUNTMDdix3ir4yOGfd2AkT5AlU7oG"
    "9og0ol5oet6rYHsPSJ1LHRn9P6OnGBxycHbBMdyavoSzykPee7pV7o3xCBYUCppuJIq1HCPqHb2HwEUUlDQKfcYKKRTQMQSujiUTh/SH"
    "z8Je2I0tn+BIpewIuuLrz5pBZLQDu6gTH1fzArya8GXkkvOkLJWbAzEtMhjIox7OxBbwjg/5ZmUFBURkmhdDgVtmitVrM4LEYpTD27TR"
    "CCj8FNQwaFrvwkNmCFl1r2FlhP82U9nZ5l95gLxgYjc8fx6KCjLdZLXhMfYsnSfkGTgRb96Gnd/GJsmgyimf2JSrJAIrKAx5A6OdAesp"
    "IUfVKPRyNaB4j4UcZLEyjX0ye3IRbtCqy66rTyREpWmr2bGWrihWRjlFeuRlON88c53CjaoSN8J6GwkFXwtFHWNEktLe3ibqSafrysYK"
    "iOeFSBdyAZsnDuVLa5YesIodUoceVHNnWEGDfB3ObcQ4TFU9RBhawkHuRPotT+FgI/VjeFAhOABlMMTelJ4lYIYT6Ujx68TjV4hXuq3p"
    "nfglta0F1WcQ2rDtkNE1xbwmjTfFUmUsvTnXtjV97DSHrvK+X2x8l3wIc/lFHLHJgcMFmAkUsDqhepl2o1HniZjtjs7CqRcIHWLhxlqx"
    "yiRzTpOKwsa02botEafloB0y8UaHTe7ytx/hq3S2nZZhD61aUI1svo37JOeXGopdJwNzvxLlcRx2MFSREgZu+E3sAwJD0Go1+YO5cOQL"
    "EjpWhYp8hnAh3vC1TIAvkYXOMohkv9W2lU7ny/r9pMXPcQdQizzXv3pEwiVUq/JqkKo4DuwwDW3BRyQwMTM+UoX6tcqcUKQoxmOaEbWX"
    "fGXgx9/Zw9ncu7CIOSik/fpfZi7aO66i3LRrHTxM1JuTqW/RnRMa9ocS3q/FmtBb1xIm1IyUf1RtKoqClCrdKRRQsnbUsts5o6jWeTGc"
    "u63qDp4CJP9zhur0sn7xwTy1ZymVSeRUsqxanHjUN31KaFDAw2MNyJnfz3/wG27ztbP3qrvei6F1EYqvGIYNbDsy+TjdN7H3kk5bJL34"
    "IvyAOhW4fQflsyfl4QREXG8W4cBYEuOpC468UnZQaHG6KyZL/DPpHi6Cuus6vaH0QmGYkR9msQRtdcQ3B+VHaQnzeLkV+udGG70TWvHN"
    "wQ67BTVojLWFhYnxaLRQxXPYMujrr66dADjdDD+rHF8TtT1+MTz4p0iMrm9n4ibplNjccHC5MpXei/AUVMaj7xTEx045q20yBx+/x1O4"
    "MVcYEXW+INhd8CI7usguwPZoFoZLHEan3NJsrKfxRJnG6iewOAFSyqPuSUgv/J1zeWDVb6I2htl64bIfwZCGoaeH2TUrO9Y9pA95HB6Z"
    "HLgL5bHuHiKKsrYpugF9au0UgyWcZA4b4qU1rwTMflrb/G5tU57iT3bAl/fyh8jA0DkUTVEvup05gpKsSvjvwGvd0mVNqyq0Hxd/Y/um"
    "9PTg2kCKZ/XTi7vSYqB5NykSKH6wKezzwY6NnncU6OBC8Lqdxm7h0BwepPYPF0YgeUewndeS4j905YvRQja1bVeBwckWL89rUtx4wg9n"
    "L7+ct39RkTpLF4dvnmEvTARfdXPWJCulnByHmyxC/fj8Z64MaoYvn/hp6Vs0HoNTsxV60LH1WA21TnVVFCQXNnnpl0/UP8ZDl6+cy0c3"
    "OlAn1tK75VoCTeEMRvwOfO/eS6ToJ1eXoRtz/7Wd+YHXVw9OfEM8ulCfwsN77wGhe97472rwxRX66aZL5ennstPkn13+qe+xtZsZo6ea"
    "4rV/qZa9KYbPbv/3//qT/wc7rsbX"
)

# The fields that structured positions read, with their defaults. Other position types hold None in each.
STRUCTURED_DEFAULTS: dict[str, Any] = {
    "boundary_token_ids": [999, 1012, 1025, 1029],  # ! . ; ? in BERT's uncased vocabulary
    "special_token_ids": [0, 100, 101, 102, 103],  # [PAD] [UNK] [CLS] [SEP] [MASK]
    "continuation_bitmap": BERT_CONTINUATIONS,
    "position_frequencies": [1.0, 0.01],  # 10,000^(-k/2), k = 0, 1
    "address_base": 8,
    "address_digits": 3,
    "rotate_addresses": True,
    "binding": "none",
    "lexical_phases": True,
    "hash_seed": 2026,
    "record_norm": None,
    "lookup_layer": 4,
    "lookup_head": 0,
    "strict": False,
}
# The fields that decide what structured attention does with a place: a checkpoint carries their digest.
POSITION_IDENTITY = tuple(name for name in STRUCTURED_DEFAULTS if name != "strict")
STRUCTURED_HEAD_SIZE = 32
RECORD_NORM = 2.18  # length of a record's key pairs in the source experiments


def write_bitmap(flags: Sequence[bool]) -> str:
    """A set of one token id or more as text: bit i, first id in the highest bit of a byte, compressed, in base64."""
    padded = [*flags, *[False] * (-len(flags) % 8)]
    packed = bytes(
        sum(int(flag) << (7 - bit) for bit, flag in enumerate(padded[start : start + 8]))
        for start in range(0, len(padded), 8)
    )
    return base64.b64encode(zlib.compress(packed, 9)).decode("ascii")


def _bitmap_bytes(bitmap: Any) -> bytes:
    try:
        return zlib.decompress(base64.b64decode(bitmap, validate=True))
    except (TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"continuation_bitmap is not what write_bitmap gives ({error})") from None


def _structured(**changes: Any) -> dict[str, Any]:
    return {"position_type": "structured", "num_attention_heads": 16, **STRUCTURED_DEFAULTS, **changes}


_PIECES = {"binding": "pieces", "record_norm": RECORD_NORM}
_STRUCTURED_PRESETS: dict[str, dict[str, Any]] = {
    "hierarchical": _structured(),
    "pointer-only": _structured(),  # differs in training: the lookup loss is on the head that reads no key phase
    "key-endings": _structured(binding="endings", record_norm=RECORD_NORM),
    "key-pieces": _structured(**_PIECES),
    "whole-key-lookup": _structured(**_PIECES),  # key-pieces and the lookup loss
    "whole-key-lookup-no-norm": _structured(binding="pieces"),
    "whole-key-lookup-late": _structured(**_PIECES, lookup_layer=8),
}
_MINI = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}

# What a preset changes from the defaults of CaptionBertConfig.__init__.
PRESETS: dict[str, dict[str, Any]] = {
    "captionbert-8192-v2": {},
    "relative-8": {"position_type": "rotary"},
    "relative-16": {
        "position_type": "rotary",
        "num_attention_heads": 16,
        "rotary_base": ntk_base(10_000.0, planes=16, reference_planes=32),
    },
    "captionbert-mini": {**_MINI, "position_type": "rotary"},
    "pooling-mean": {"pooling": "mean"},
    "pooling-cls": {"pooling": "cls"},
    "pooling-attention": {"pooling": "attention"},
    **_STRUCTURED_PRESETS,
    # Half the depth, half the layer: 4 of 12 is 2 of 6.
    **{
        f"{name}-mini": {**fields, **_MINI, "lookup_layer": fields["lookup_layer"] // 2}
        for name, fields in _STRUCTURED_PRESETS.items()
    },
}


def _is_positive(value: Any) -> bool:
    # Angles and lengths are computed in fp32, which ends at 3.4e38.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 3e38


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
        position_type: "learned" (a table of `max_position_embeddings` rows), "rotary" or "structured" (rotary by
            distance and segment address; heads of 32).
        rotary_base: plane i of p turns rotary_base^(-i/p) radians a token (Su et al. 2021, RoFormer).
        pooling: "mean" over visible tokens, "cls" (the first token), or "attention" (one learned query).
        feed_forward: "dense"; the name leaves room for other trunks.
        layer_norm_eps: epsilon of every LayerNorm.
        initializer_range: standard deviation of the normal initialisation of weights.
        pad_token_id: the id that marks padding when no attention mask is given.
        boundary_token_ids: tokens that end a segment. This and all that follow are for structured positions only, and
            None elsewhere; where they are left out, STRUCTURED_DEFAULTS has their values.
        special_token_ids: tokens that belong to no segment and no word.
        continuation_bitmap: which ids continue a word, as `write_bitmap` gives it.
        position_frequencies: radians a token of the first planes, one each.
        address_base, address_digits: a segment number is written in so many digits of this base (even); each
            digit turns base / 2 planes.
        rotate_addresses: False leaves the address planes unturned.
        binding: where the designated head takes key phases: "none", at word "endings", or at all "pieces".
        lexical_phases: False makes every key phase zero.
        hash_seed: seed of the key phases, 0..2^32 - 1.
        record_norm: length of each pair of a record's key in the designated head; None leaves it. Needs a binding.
        lookup_layer, lookup_head: the designated head: its layer counted from 1, its head from 0.
        strict: refuse left padding where a binding makes vectors depend on it; False warns once.

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
        boundary_token_ids: Sequence[int] | None = None,
        special_token_ids: Sequence[int] | None = None,
        continuation_bitmap: str | None = None,
        position_frequencies: Sequence[float] | None = None,
        address_base: int | None = None,
        address_digits: int | None = None,
        rotate_addresses: bool | None = None,
        binding: str | None = None,
        lexical_phases: bool | None = None,
        hash_seed: int | None = None,
        record_norm: float | None = None,
        lookup_layer: int | None = None,
        lookup_head: int | None = None,
        strict: bool | None = None,
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
        defaults = (
            STRUCTURED_DEFAULTS if position_type == "structured" else dict.fromkeys(STRUCTURED_DEFAULTS)
        )

        def resolved(name: str, value: Any) -> Any:
            value = defaults[name] if value is None else value
            return list(value) if isinstance(value, list | tuple) else value

        self.boundary_token_ids = resolved("boundary_token_ids", boundary_token_ids)
        self.special_token_ids = resolved("special_token_ids", special_token_ids)
        self.continuation_bitmap = resolved("continuation_bitmap", continuation_bitmap)
        self.position_frequencies = resolved("position_frequencies", position_frequencies)
        self.address_base = resolved("address_base", address_base)
        self.address_digits = resolved("address_digits", address_digits)
        self.rotate_addresses = resolved("rotate_addresses", rotate_addresses)
        self.binding = resolved("binding", binding)
        self.lexical_phases = resolved("lexical_phases", lexical_phases)
        self.hash_seed = resolved("hash_seed", hash_seed)
        self.record_norm = resolved("record_norm", record_norm)
        self.lookup_layer = resolved("lookup_layer", lookup_layer)
        self.lookup_head = resolved("lookup_head", lookup_head)
        self.strict = resolved("strict", strict)
        self.check_fields()
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

    def to_dict(self) -> dict[str, Any]:
        """The fields that count: those that only structured positions read are left out where they are None."""
        fields = super().to_dict()
        return {k: v for k, v in fields.items() if v is not None or k not in STRUCTURED_DEFAULTS}

    @property
    def head_size(self) -> int:
        """Coordinates of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def supports_left_padding(self) -> bool:
        """Whether a left-padded row has the vector of the right-padded one.

        Rotary positions only see distances, so padding on the left moves nothing; a learned table and the first-token
        pooling both count from the left edge. Key phases are no distances: under a binding vectors move slightly, which
        the model tells or, when strict, refuses.
        """
        return self.position_type != "learned" and self.pooling != "cls"

    @property
    def position_digest(self) -> list[int]:
        """Eight bytes, a digest of the POSITION_IDENTITY fields; structured positions only.

        Equal for equal meanings: the order of ids, 1 or 1.0, and how a set was compressed do not matter.
        """
        values = {name: getattr(self, name) for name in POSITION_IDENTITY}
        for name in ("boundary_token_ids", "special_token_ids"):
            values[name] = sorted(set(values[name]))
        values["continuation_bitmap"] = _bitmap_bytes(values["continuation_bitmap"]).rstrip(b"\0").hex()
        values["position_frequencies"] = [float(x) for x in values["position_frequencies"]]
        values["record_norm"] = None if values["record_norm"] is None else float(values["record_norm"])
        text = json.dumps(values, sort_keys=True)
        return list(hashlib.sha256(text.encode("utf-8")).digest()[:8])

    def check_fields(self) -> None:
        """Raises ValueError, naming the field, where a value is outside its range.

        The library sets overrides of `from_pretrained` after construction: the model asks again.
        """
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
        if not (_is_positive(self.rotary_base) and self.rotary_base > 1):
            raise ValueError(f"rotary_base must be above 1, not {self.rotary_base!r}")
        for name in ("layer_norm_eps", "initializer_range"):
            if not _is_positive(getattr(self, name)):
                raise ValueError(f"{name} must be a positive number, not {getattr(self, name)!r}")
        if self.position_type == "structured":
            self._check_structured()
            return
        for name in STRUCTURED_DEFAULTS:
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} is read by structured positions only, not by position_type {self.position_type!r}: "
                    "leave it out"
                )

    def _check_structured(self) -> None:
        for name in ("boundary_token_ids", "special_token_ids", "position_frequencies"):
            if not isinstance(getattr(self, name), list):
                raise ValueError(f"{name} must be a list, not {getattr(self, name)!r}")
        for name in ("rotate_addresses", "lexical_phases", "strict"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, not {getattr(self, name)!r}")
        for frequency in self.position_frequencies:
            if not _is_positive(frequency):
                raise ValueError(
                    f"position_frequencies holds {frequency!r}; expected positive radians a token"
                )
        if self.head_size != STRUCTURED_HEAD_SIZE:
            raise ValueError(
                f"structured positions need heads of {STRUCTURED_HEAD_SIZE}: hidden_size {self.hidden_size} takes "
                f"num_attention_heads {self.hidden_size / STRUCTURED_HEAD_SIZE:g}, not {self.num_attention_heads}; the "
                "structured presets are 512 / 16 and, as -mini, 384 / 12. Other head sizes go with position_type "
                "'rotary' (relative-8, relative-16) or 'learned'"
            )
        for name, least, most in (
            ("address_base", 2, 64),
            ("address_digits", 1, 16),
            ("hash_seed", 0, 2**32 - 1),
            ("lookup_layer", 1, self.num_hidden_layers),
            ("lookup_head", 0, self.num_attention_heads - 1),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise ValueError(f"{name} must be a whole number in {least}..{most}, not {value!r}")
        if self.address_base % 2:
            raise ValueError(f"address_base must be even (base / 2 planes a digit), not {self.address_base}")
        used = len(self.position_frequencies) + self.address_digits * self.address_base // 2
        if used > STRUCTURED_HEAD_SIZE // 2:
            raise ValueError(
                f"{len(self.position_frequencies)} position_frequencies and {self.address_digits} digits of "
                f"{self.address_base // 2} planes are {used} planes; a head has {STRUCTURED_HEAD_SIZE // 2}"
            )
        for name in ("boundary_token_ids", "special_token_ids"):
            for token in getattr(self, name):
                if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < self.vocab_size:
                    raise ValueError(
                        f"{name} holds {token!r}, which is no id of the vocabulary of {self.vocab_size}"
                    )
        if not _bitmap_bytes(self.continuation_bitmap):  # ids past its end continue no word
            raise ValueError("continuation_bitmap holds no id; write_bitmap([False]) is the empty set")
        self._check_binding()

    def _check_binding(self) -> None:
        if self.binding not in BINDINGS:
            raise ValueError(f"binding must be one of {', '.join(BINDINGS)}, not {self.binding!r}")
        if self.record_norm is None:
            return
        if not _is_positive(self.record_norm):
            raise ValueError(
                f"record_norm must be a positive length, or None for none, not {self.record_norm!r}"
            )
        if self.binding == "none":
            raise ValueError(
                f"record_norm {self.record_norm} needs a binding ('endings' or 'pieces'), which is 'none'"
            )
