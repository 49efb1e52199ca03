"""Repeated words and their records, by exact token tuples: what a lookup is trained on and scored against.

    record   last piece of the first occurrence of a word in its row
    query    a piece of a later occurrence (or its last piece alone); it should find the record

A word is a token that is not special and the `##` tokens directly after it; its key is the tuple of its token ids.
Keys are compared as tuples, never by a hash, and nothing here comes from the model's own code: the model computes its
records by hashes, so that an error there cannot hide behind the same error here. numpy only.

Legend: S tokens laid end to end, W words, V vocabulary, Q queries.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np

LEAST_CHARACTERS = 3
Queries = Literal["pieces", "endings"]
FindLookups = Callable[[Sequence[Sequence[int]]], "LookupTargets"]  # of rows of token ids
# Articles, pronouns, prepositions, conjunctions, auxiliaries, particles and the halves that an apostrophe leaves
# ("doesn ' t"): they repeat in any text and say nothing of what it is about. Content words and numbers stay.
FUNCTION_WORDS = frozenset(
    """
    a an the this that these those
    i me my mine myself we us our ours ourselves you your yours yourself yourselves
    he him his himself she her hers herself it its itself they them their theirs themselves one ones
    who whom whose which what whoever whatever someone somebody something anyone anybody anything
    everyone everybody everything nobody nothing none each every either neither both another other others
    some any all such same own several many much more most few less least enough
    of in on at by for with from to into onto upon about above across after against along amid among around as
    before behind below beneath beside besides between beyond down during except inside like near off out outside
    over past per since than through throughout till toward towards under until up via within without
    and or nor but so yet if then else because although though while whereas unless whether
    when where why how whenever wherever here there
    be am is are was were been being have has had having do does did doing done
    can could may might must shall should will would ought
    not no only just also too very even ever again once still rather quite
    don doesn didn isn aren wasn weren hasn hadn couldn wouldn shouldn ain
    """.split()  # noqa: SIM905 (a list of 215 quoted words reads worse)
)
_LONGEST_FUNCTION_WORD = max(map(len, FUNCTION_WORDS))


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What is known of every token id 0..V-1.

    Attributes:
        strings: the token without `##`, in lower case.
        special: bool [V], [CLS] and the like: in no word. continuation: bool [V], a `##` piece.
        letters: bool [V], has a letter. characters: int64 [V], length without `##`.
        function: bool [V], is a function word by itself.
    """

    strings: tuple[str, ...]
    special: np.ndarray
    continuation: np.ndarray
    letters: np.ndarray
    characters: np.ndarray
    function: np.ndarray

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> "Vocabulary":
        """Of a fast tokenizer of transformers, or a `tokenizers.Tokenizer`, in WordPiece form (`##`)."""
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        ids: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
        special |= set(getattr(tokenizer, "all_special_ids", ()))
        unknown = getattr(backend.model, "unk_token", None)
        special |= {ids[unknown]} if unknown in ids else set()
        return cls.from_tokens(ids, special)

    @classmethod
    def from_tokens(cls, ids: dict[str, int], special: set[int]) -> "Vocabulary":
        """Of the ids of all tokens, and which ids are special. A number that no token has counts as special."""
        size = max(ids.values(), default=-1) + 1
        tokens = [""] * size
        for token, i in ids.items():
            tokens[i] = token
        strings = tuple(token.removeprefix("##").lower() for token in tokens)
        return cls(
            strings=strings,
            special=np.array([i in special or not token for i, token in enumerate(tokens)], dtype=bool),
            continuation=np.array([token.startswith("##") for token in tokens], dtype=bool),
            letters=np.array([any(c.isalpha() for c in s) for s in strings], dtype=bool),
            characters=np.array([len(s) for s in strings], dtype=np.int64),
            function=np.array([s in FUNCTION_WORDS for s in strings], dtype=bool),
        )

    def __len__(self) -> int:
        return len(self.strings)


@dataclass(frozen=True, eq=False)
class LookupTargets:
    """The queries of some rows, by row and then by position; all arrays [Q].

    Attributes:
        row: number of the row among those given. position: of the query in its row. record: place of its record, in
            the same row and before it. int64.
        ending: bool, the query is its word's last piece. continuation: bool, the query token is a `##` piece.
    """

    row: np.ndarray
    position: np.ndarray
    record: np.ndarray
    ending: np.ndarray
    continuation: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    def in_part(self, part: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """The queries whose row is among `part`, int64 row numbers [m] of `rows` in all.

        Returns:
            their row's place in the part, and their own number, int64 [q] both.
        """
        place = np.full(rows, -1, dtype=np.int64)
        place[part] = np.arange(len(part))
        own = np.flatnonzero(place[self.row] >= 0)
        return place[self.row[own]], own


@dataclass(frozen=True, eq=False)
class Tokens:
    """Rows laid end to end: ids [S], and for each token its row [S] and its place in that row [S], int64."""

    ids: np.ndarray
    row: np.ndarray
    place: np.ndarray
    rows: int

    @classmethod
    def of(cls, ids: Sequence[Sequence[int]]) -> "Tokens":
        """Lay rows of ids end to end."""
        lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
        flat = np.fromiter(chain.from_iterable(ids), dtype=np.int64, count=int(lengths.sum()))
        row = np.repeat(np.arange(len(lengths)), lengths)
        starts = np.cumsum(lengths) - lengths
        return cls(flat, row, np.arange(len(flat)) - starts[row], len(lengths))


@dataclass(frozen=True, eq=False)
class _Words:
    """The words of `Tokens`, in order; all arrays [W], int64.

    Attributes:
        first: place of the first piece among the S tokens. pieces: how many. row: its row.
        key: equal for two words exactly where their token tuples are equal.
    """

    first: np.ndarray
    pieces: np.ndarray
    row: np.ndarray
    key: np.ndarray

    @property
    def last(self) -> np.ndarray:
        return self.first + self.pieces - 1


def queries_of(config: Any) -> Queries:
    """Which pieces of a repeated word ask for its record: those that the model's binding gives key phases."""
    return "endings" if getattr(config, "binding", None) == "endings" else "pieces"


def lookup_targets(
    ids: Sequence[Sequence[int]], vocabulary: Vocabulary, queries: Queries = "pieces"
) -> LookupTargets:
    """Every query of rows of token ids, and where its record is.

    Args:
        ids: rows as the model gets them, special tokens included, without padding. A word that a length limit cut
            counts as the tuple that is left.
        queries: each piece of a later occurrence, or ("endings") its last piece alone.

    Words are eligible that have a letter and three characters or more and are no function word. A row without a
    repeated eligible word has no entry.

    Raises:
        ValueError: an id outside the vocabulary, or another `queries`.
    """
    return targets_of(Tokens.of(ids), vocabulary, queries)


def targets_of(tokens: Tokens, vocabulary: Vocabulary, queries: Queries = "pieces") -> LookupTargets:
    """`lookup_targets` of rows that are laid end to end already."""
    if queries not in ("pieces", "endings"):
        raise ValueError(f"queries must be 'pieces' or 'endings', found {queries!r}")
    words = _words(tokens, vocabulary)
    record = words.last[_first_of_equals(words)]  # [W], a place among S
    asked = np.flatnonzero((record != words.last) & _plain_eligible(words, tokens, vocabulary))
    asked = asked[~_joined_function_words(asked, words, tokens, vocabulary)]
    counts = words.pieces[asked] if queries == "pieces" else np.ones(len(asked), dtype=np.int64)
    word = np.repeat(asked, counts)  # [Q]
    back = (
        np.repeat(np.cumsum(counts), counts) - 1 - np.arange(len(word))
    )  # pieces after this one in its word
    at = words.last[word] - back
    return LookupTargets(
        row=tokens.row[at],
        position=tokens.place[at],
        record=tokens.place[record[word]],
        ending=back == 0,
        continuation=vocabulary.continuation[tokens.ids[at]],
    )


def _words(tokens: Tokens, vocabulary: Vocabulary) -> _Words:
    """The words of all rows."""
    ids = tokens.ids
    if ids.size and (ids.min() < 0 or ids.max() >= len(vocabulary)):
        raise ValueError(f"token ids must lie in 0..{len(vocabulary) - 1}, found {ids.min()}..{ids.max()}")
    piece = ~vocabulary.special[ids]
    after = np.zeros_like(piece)  # the token before it, in the same row, is a piece
    after[1:] = piece[:-1] & (tokens.row[1:] == tokens.row[:-1])
    begins = piece & ~(after & vocabulary.continuation[ids])
    first = np.flatnonzero(begins)
    pieces = np.bincount(np.cumsum(begins)[piece] - 1, minlength=len(first)) if first.size else first
    return _Words(first, pieces, tokens.row[first], _tuple_keys(ids, first, pieces, len(vocabulary)))


def _tuple_keys(ids: np.ndarray, first: np.ndarray, pieces: np.ndarray, size: int) -> np.ndarray:
    """A number for each word, the same exactly for equal tuples: the tuple is read piece by piece.

    A prefix is numbered densely among the words still unread, so that (prefix, next piece) fits in 64 bits; words
    that end at a depth get numbers of their own range, so that no tuple meets a longer one.
    """
    key = np.zeros(len(first), dtype=np.int64)
    unread = np.arange(len(first))
    prefix = np.zeros(len(first), dtype=np.int64)
    used = depth = 0
    while unread.size:
        pairs = prefix * size + ids[first[unread] + depth]
        distinct, prefix = np.unique(pairs, return_inverse=True)
        ended = pieces[unread] == depth + 1
        key[unread[ended]] = used + prefix[ended]
        used += len(distinct)
        unread, prefix = unread[~ended], prefix[~ended]
        depth += 1
    return key


def _first_of_equals(words: _Words) -> np.ndarray:
    """For each word the number of the first one with its key in its row: int64 [W]."""
    pairs = words.row * (words.key.max(initial=0) + 1) + words.key
    _, first, same = np.unique(pairs, return_index=True, return_inverse=True)  # index of the first of equals
    return first[same]


def _plain_eligible(words: _Words, tokens: Tokens, vocabulary: Vocabulary) -> np.ndarray:
    """Bool [W]: long enough, with a letter, and no function word of one piece."""
    if not words.first.size:
        return np.zeros(0, dtype=bool)
    ends = words.first + words.pieces
    characters = np.concatenate([[0], np.cumsum(vocabulary.characters[tokens.ids])])
    letters = np.concatenate([[0], np.cumsum(vocabulary.letters[tokens.ids])])
    whole = (words.pieces == 1) & vocabulary.function[tokens.ids[words.first]]
    long = characters[ends] - characters[words.first] >= LEAST_CHARACTERS
    return long & (letters[ends] > letters[words.first]) & ~whole


def _joined_function_words(
    asked: np.ndarray, words: _Words, tokens: Tokens, vocabulary: Vocabulary
) -> np.ndarray:
    """Bool, one for each of `asked`: the pieces together spell a function word (in a small vocabulary they may)."""
    several = np.flatnonzero(words.pieces[asked] > 1)
    found = np.zeros(len(asked), dtype=bool)
    _, example, same = np.unique(words.key[asked[several]], return_index=True, return_inverse=True)
    spelled = np.zeros(len(example), dtype=bool)
    for number, word in enumerate(asked[several[example]]):  # distinct repeated words of several pieces: few
        pieces = tokens.ids[words.first[word] : words.first[word] + words.pieces[word]]
        if len(pieces) <= _LONGEST_FUNCTION_WORD:
            spelled[number] = "".join(vocabulary.strings[i] for i in pieces) in FUNCTION_WORDS
    found[several] = spelled[same]
    return found
