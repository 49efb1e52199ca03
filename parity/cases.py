"""What parity compares: text, batch sizes, lengths, padding, attention outputs, by name and dtype.

A case is data: rows of text, each cut to a number of tokens, and switches. Both processes get the same case
and make their own token ids from it with their own tokenizer, so the tokenizer is compared too. The text is
made of ordinary sentences; longer rows repeat them.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from captionbert.artifacts.arithmetic import has_bf16

LENGTHS = (1, 2, 7, 63, 512, 4095, 4096, 4097, 8191, 8192)
DTYPES = ("fp32", "bf16", "fp16")
PROFILES = ("everyday", "longest", "full")
# Many processors have no half-precision arithmetic: there, a long case takes ten minutes and more.
EVERYDAY_HALF_TOKENS = 512

SENTENCES = (
    "A man in a red jacket walks two dogs along the beach at sunset.",
    "Two children share one umbrella.",
    "The old ferry leaves the harbour; gulls follow it, and the gulls are loud!",
    "Is anyone sitting at the small table under the tree?",
    "A woman rides a bicycle past a row of parked cars while a boy waves from a window.",
    "Snow.",
    "A chef slices onions, a waiter carries plates, and the guests at table 12 wait for their soup.",
    "Café owners from São Paulo met in Zürich: 3 talks, 45 minutes each, no coffee left.",
)


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        rows: (text, tokens) of each row; tokens None keeps the text's own length, otherwise the row has
            exactly that many (a row of one token is the first special token alone).
        study: None, "right", "left" (64 columns of padding are added on that side), or "content" (the ids
            under the padding are replaced): run beside the plain batch, its movement is reported.
        empty_row: a row that is all padding is put in front.
        send_mask: whether the attention mask is passed; without it the model derives it from the padding id.
        attention: the attention implementation.
        outputs: extra outputs, of "hidden_states", "attentions" and "pointers" (log-probabilities of every token).
        through: "forward", or "encode" (the model's own batched encoding of the texts).
        may_refuse: the model may raise, if both sides raise the same.
    """

    name: str
    rows: tuple[tuple[str, int | None], ...]
    study: str | None = None
    empty_row: bool = False
    send_mask: bool = True
    attention: str = "sdpa"
    outputs: tuple[str, ...] = ()
    through: str = "forward"
    may_refuse: bool = False

    @property
    def tokens(self) -> int:
        """The longest row, in tokens; 64 stands for a row of natural length."""
        return max(length or 64 for _, length in self.rows)

    def as_json(self) -> dict[str, Any]:
        """The form that is sent to a process and put under a digest."""
        return asdict(self)


def _natural(count: int) -> tuple[tuple[str, int | None], ...]:
    return tuple((text, None) for text in SENTENCES[:count])


def _long(*lengths: int) -> tuple[tuple[str, int | None], ...]:
    """Rows of exact lengths; each starts with another sentence, so that no two are prefixes of each other."""
    rows = []
    for index, length in enumerate(lengths):
        turned = SENTENCES[index % len(SENTENCES) :] + SENTENCES[: index % len(SENTENCES)]
        text = " ".join(turned)
        rows.append((" ".join([text] * (length // 64 + 1)), length))
    return tuple(rows)


def all_cases() -> list[Case]:
    """Every case, short ones first."""
    mixed = _long(63, 7, 33)
    return [
        *(Case(f"batch of {n}", _natural(n)) for n in range(1, 9)),
        *(Case(f"length {n}", _long(n)) for n in LENGTHS),
        Case("lengths 7, 63, 512 and 130 in one batch", _long(7, 63, 512, 130)),
        Case("lengths 4096 and 512 in one batch", _long(4096, 512)),
        Case("a row that is all padding", mixed, empty_row=True),
        Case("padding found without a mask", mixed, send_mask=False),
        Case("padding added on the right", mixed, study="right"),
        Case("padding added on the left", mixed, study="left", may_refuse=True),
        Case("other ids under the padding", mixed, study="content"),
        Case("hidden states", mixed, outputs=("hidden_states",)),
        Case("attention weights", mixed, outputs=("attentions", "hidden_states"), attention="eager"),
        Case("pointers of every token", mixed, outputs=("pointers",)),
        Case("plain attention, length 512", _long(512), attention="eager"),
        Case("over 512 segments", ((" ".join(["a dog. a cat!"] * 500), 2048),)),
        Case("encode, without padding", (*_natural(8), *_long(63, 7, 300)), through="encode"),
    ]


def choose(profile: str, dtype: str, limit: int) -> tuple[list[Case], list[str]]:
    """The cases to run at a dtype for a model that reads `limit` tokens, and what is left out and why.

    A model with a smaller limit gets its own edge: rows of `limit` and `limit` - 1 tokens instead of the
    longer ones.
    """
    chosen, left_out = [], []
    for case in [*all_cases(), *_edge_cases(limit)]:
        if case.tokens > limit:
            left_out.append(f"{dtype}: {case.name} (the model reads {limit} tokens)")
        elif _too_slow(case, profile, dtype, limit):
            left_out.append(f"{dtype}: {case.name} (profile {profile}; slow without {dtype} arithmetic)")
        else:
            chosen.append(case)
    return chosen, left_out


def _too_slow(case: Case, profile: str, dtype: str, limit: int) -> bool:
    """Long cases in fp16, and in bf16 where it is imitated, run in profile "full" alone, but for one row of the full
    length in "longest".
    """
    slow = dtype == "fp16" or (dtype == "bf16" and not has_bf16())
    if profile == "full" or not slow or case.tokens <= EVERYDAY_HALF_TOKENS:
        return False
    return profile == "everyday" or case.name != f"length {limit}"


def _edge_cases(limit: int) -> list[Case]:
    if limit in LENGTHS:
        return []
    return [replace(Case("", _long(n)), name=f"length {n}") for n in (limit - 1, limit) if n > 0]
