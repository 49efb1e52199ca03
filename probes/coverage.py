"""What a corpus offers to structured positions: token lengths, segment addresses, repeated words to look up.

Streaming, with flat memory: quantiles come from exact counts of whole numbers. A quantile is the smallest value that
is not exceeded in at least that share of the rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from captionbert.artifacts.errors import InputError
from captionbert.probes.word_records import Tokens, Vocabulary, targets_of

BOUNDARY_TOKENS = (".", "!", "?", ";")
LONG = 128  # tokens
ADDRESS_STEPS = (8, 64)  # segment numbers from which a second and a third base-eight digit is needed
LAST_ADDRESS = 8**3 - 1


@dataclass
class _Counts:
    """How often each whole number from 0 occurred."""

    counts: np.ndarray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))

    def add(self, values: np.ndarray) -> None:
        found = np.bincount(values, minlength=len(self.counts))
        found[: len(self.counts)] += self.counts
        self.counts = found

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        return float((self.counts * np.arange(len(self.counts))).sum() / max(1, self.total))

    def quantile(self, share: float) -> int:
        # the share of a whole number of rows, without a rounding error that would move it by one row
        wanted = max(1, int(np.ceil(round(share * self.total, 6))))
        return int(np.searchsorted(np.cumsum(self.counts), wanted))

    def spread(self) -> dict[str, int]:
        """Median, p90, p99 and maximum; zeros where nothing was counted."""
        shares = {"median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
        return {name: self.quantile(share) if self.total else 0 for name, share in shares.items()}

    def reaching(self, value: int) -> int:
        return int(self.counts[value:].sum())


class Coverage:
    """Counts of the rows given to `add`.

    Args:
        vocabulary: of the tokenizer that made the ids.
        max_length: the ceiling at which rows were cut, in tokens.
        boundary_tokens: tokens that end a segment.

    Raises:
        InputError: a boundary token is not in the vocabulary.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        max_length: int,
        boundary_tokens: Sequence[str] = BOUNDARY_TOKENS,
    ) -> None:
        self.vocabulary, self.max_length = vocabulary, max_length
        self.lengths, self.segments = _Counts(), _Counts()
        self.rows = self.wordless = self.rows_with_queries = self.queries = 0
        self._boundary = (
            np.isin(np.array(vocabulary.strings), list(boundary_tokens)) & ~vocabulary.continuation
        )
        missing = [t for t in boundary_tokens if t not in vocabulary.strings]
        if missing:
            raise InputError(f"boundary token {missing[0]!r} is not in the tokenizer's vocabulary")

    def add(self, ids: Sequence[Sequence[int]]) -> None:
        """Count rows of token ids, special tokens included, without padding."""
        if not len(ids):
            return
        tokens = Tokens.of(ids)
        self.rows += tokens.rows
        self.lengths.add(np.bincount(tokens.row, minlength=tokens.rows))
        largest = largest_segments(tokens, self._boundary, self.vocabulary.special)
        self.wordless += int((largest < 0).sum())
        self.segments.add(largest[largest >= 0])
        targets = targets_of(tokens, self.vocabulary)
        self.queries += len(targets)
        self.rows_with_queries += len(np.unique(targets.row))

    def report(self) -> dict[str, Any]:
        """The table of SPEC 3, for JSON."""
        return {
            "kind": "corpus-coverage",
            "rows": self.rows,
            "max_length": self.max_length,
            "tokens": {"mean": self.lengths.mean, **self.lengths.spread()},
            "rows_over_128": self.lengths.reaching(LONG + 1),
            "rows_at_ceiling": self.lengths.reaching(self.max_length),
            "largest_segment": self.segments.spread(),
            "rows_without_segment": self.wordless,
            **{f"rows_reaching_{step}": self.segments.reaching(step) for step in ADDRESS_STEPS},
            "rows_past_last_address": self.segments.reaching(LAST_ADDRESS + 1),
            "rows_with_queries": self.rows_with_queries,
            "query_positions": self.queries,
        }


def largest_segments(tokens: Tokens, boundary: np.ndarray, special: np.ndarray) -> np.ndarray:
    """The number of the last segment of each row, from 0; -1 for a row of special tokens alone. int64 [rows].

    A token's segment is the number of boundary tokens before it; the largest is that of the last token that has one.

    Args:
        boundary, special: bool [V].
    """
    shown = np.flatnonzero(~special[tokens.ids])
    before = np.cumsum(boundary[tokens.ids]) - boundary[tokens.ids]  # [S], over all rows
    largest = np.full(tokens.rows, -1, dtype=np.int64)
    if not shown.size:
        return largest
    rows, first = np.unique(tokens.row[shown], return_index=True)
    last = np.append(first[1:], len(shown)) - 1
    largest[rows] = before[shown[last]] - before[shown[first]]
    return largest


def measure(
    blocks: Iterable[list[str]],
    tokenizer: Any,
    max_length: int,
    boundary_tokens: Sequence[str] = BOUNDARY_TOKENS,
) -> dict[str, Any]:
    """The coverage report of blocks of texts.

    Raises:
        InputError: `max_length` below 2, or a boundary token that the tokenizer does not know.
    """
    from captionbert.encoding_captionbert import token_ids  # brings torch, which the counting does not need

    if max_length < 2:
        raise InputError(f"max_length is {max_length}; even the empty text has 2 tokens")
    coverage = Coverage(Vocabulary.from_tokenizer(tokenizer), max_length, boundary_tokens)
    for block in blocks:
        coverage.add(token_ids(tokenizer, block, max_length))
    return coverage.report()


def render(report: dict[str, Any]) -> str:
    """The report as a printed table."""
    tokens, segment, rows = report["tokens"], report["largest_segment"], max(1, report["rows"])

    def share(name: str) -> str:
        return f"{report[name]:,} ({report[name] / rows:.1%})"

    per_row = f"{report['query_positions'] / rows:.2f} a row"
    lines = [
        ("rows", f"{report['rows']:,}"),
        (
            "tokens a row",
            f"mean {tokens['mean']:.1f}, median {tokens['median']}, p90 {tokens['p90']}, p99 {tokens['p99']}, "
            f"max {tokens['max']}",
        ),
        ("rows over 128 tokens", share("rows_over_128")),
        (f"rows at the ceiling of {report['max_length']}", share("rows_at_ceiling")),
        (
            "largest segment of a row",
            f"median {segment['median']}, p90 {segment['p90']}, p99 {segment['p99']}, max {segment['max']}",
        ),
        ("rows that reach segment 8", share("rows_reaching_8")),
        ("rows that reach segment 64", share("rows_reaching_64")),
        ("rows past the last address", share("rows_past_last_address")),
        ("rows with words to look up", share("rows_with_queries")),
        ("query positions", f"{report['query_positions']:,} ({per_row})"),
    ]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def nothing_to_look_up(name: str, rows: int) -> InputError:
    """The error for captions without a query."""
    return InputError(
        f"{name}: none of {rows} captions repeats an eligible word (three letters or more, no function word), so there "
        "is nothing to look up; use longer captions, e.g. several of one image joined (a recipe without it has "
        "loss.lookup_weight 0)"
    )
