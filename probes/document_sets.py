"""Documents that hold a given caption, for the search among long texts: drawn, of measured lengths, split in two.

A document is a concatenation of captions, no more than L tokens; every caption stands in one document of a length, and
no document but the right one holds a caption of a query's image. A query is the held caption itself or, with groups
(JSONL, the captions of one image a line), another caption of the same image. Units (an image, or a caption without one)
belong to the split dev or test by a digest of their first caption, whatever the seed: no text is ever in both. The
documents of all lengths hold the same queries' captions and share their other captions. Legend: N documents, M queries,
L tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import sha256_bytes, sha256_file
from captionbert.consensus.readers import is_text, json_rows
from captionbert.probes.texts import Captions

SPLITS = ("dev", "test")
_SPARE = 32  # tokens of captions beyond the longest document: something that fits is then nearly always there


@dataclass(frozen=True)
class Pool:
    """What documents are made of.

    Attributes:
        units: distinct captions of the file, together where they are of one image.
        others: of each unit, what may be a query: captions of its image, of the file or not; empty without groups.
        identity: name and digest of each file read.
    """

    units: list[list[str]]
    others: list[list[str]]
    identity: dict[str, str]


@dataclass(frozen=True)
class DocumentSet:
    """N documents of up to `length` tokens.

    Attributes:
        texts: the documents. tokens: int64 [N], measured, special tokens included. captions: int64 [N], in each.
    """

    length: int
    texts: list[str]
    tokens: np.ndarray
    captions: np.ndarray


@dataclass(frozen=True)
class Task:
    """Queries, the place of the right document of each (int64 [M]), and the documents by length."""

    queries: list[str]
    right: np.ndarray
    sets: list[DocumentSet]
    about: dict[str, Any]


def read_pool(captions: str, groups: str | None = None, column: str | None = None) -> Pool:
    """Distinct captions of a file or corpus folder, with groups by image. Texts equal but for case and blanks are one.

    Raises:
        InputError: a file that cannot be read; a group that is no list of texts, with its line.
    """
    source = Captions([captions], column)
    wanted = {_normal(text): text for _, text in reversed(list(source))}  # the first of equal ones stays
    wanted = dict(reversed(wanted.items()))
    units, others = [], []
    if groups is not None:
        seen: set[str] = set()
        for members in _read_groups(Path(groups)):
            fresh = {_normal(text): text for text in members if _normal(text) not in seen}
            seen |= set(fresh)
            if held := [wanted[key] for key in fresh if key in wanted]:
                units.append(held)
                others.append(list(fresh.values()))
        source.identity[Path(groups).name] = sha256_file(groups)
        if not units:
            raise InputError(
                f"{groups}: none of its captions is in {captions}; give the groups of these captions"
            )
        wanted = {key: text for key, text in wanted.items() if key not in seen}
    units += [[text] for text in wanted.values()]
    others += [[] for _ in wanted]
    return Pool(units, others, source.identity)


def _read_groups(path: Path) -> list[list[str]]:
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected JSONL, a list of the captions of one image a line")
    rows = []
    for _, where, row in json_rows(path):
        if not isinstance(row, list) or not all(isinstance(text, str) and is_text(text) for text in row):
            raise InputError(f"{where}: expected a list of captions of one image, found {repr(row)[:40]}")
        rows.append([text.strip() for text in row if text.strip()])
    if not rows:
        raise InputError(
            f"{path}: holds no group; expected JSONL, a list of the captions of one image a line"
        )
    return rows


def _normal(text: str) -> str:
    return " ".join(text.lower().split())


def split_of(unit: Sequence[str]) -> str:
    """dev or test, by the last bit of a digest of the unit's first caption."""
    return SPLITS[int(sha256_bytes(_normal(unit[0]).encode())[-1], 16) % 2]


def plain_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that neither cuts nor pads."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def draw_task(
    pool: Pool,
    tokenizer: Tokenizer,
    *,
    lengths: Sequence[int],
    documents: int,
    queries: int,
    seed: int,
    split: str,
    grouped: bool,
) -> Task:
    """The task of a split, the same for the same pool and settings.

    Args:
        lengths: L, ascending. documents: N. queries: M, spread evenly over the documents.
        grouped: a query is another caption of the image; False: the held caption itself.

    Raises:
        InputError: an unknown split; a single document; too few captions, or images with two, for so many documents
            and queries; held captions that do not fit into the shortest document.
    """
    if split not in SPLITS:
        raise InputError(f"split {split!r}: expected dev or test")
    if documents < 2:
        raise InputError(f"--documents {documents}: one document is always found; give 2 or more")
    random = np.random.default_rng(seed)
    units = [u for u in random.permutation(len(pool.units)) if split_of(pool.units[u]) == split]
    fit = [u for u in units if not grouped or len(pool.others[u]) > 1]
    if len(fit) < queries:
        kind = "images with two captions or more" if grouped else "captions"
        raise InputError(
            f"{queries} queries: the {split} split has {len(fit)} {kind}; ask for fewer, or give more text"
        )
    chosen = fit[:queries]
    held = [str(random.choice(pool.units[u])) for u in chosen]
    asked = [_query(pool.others[u], caption, random) for u, caption in zip(chosen, held)] if grouped else held
    others = set(chosen)
    fillers = [text for u in units if u not in others for text in pool.units[u]]
    fillers = [fillers[i] for i in random.permutation(len(fillers))]
    counter = plain_tokenizer(tokenizer)
    parts = [[held[q] for q in range(d, queries, documents)] for d in range(documents)]
    piles = _deal(parts, fillers, counter, max(lengths), split)
    sets = [_set_of(parts, piles, counter, length, [seed, number]) for number, length in enumerate(lengths)]
    about = {
        "captions": pool.identity,
        "split": split,
        "seed": seed,
        "query_is": "same image" if grouped else "held caption",
    }
    return Task(asked, np.arange(queries) % documents, sets, about)


def _query(captions: list[str], held: str, random: np.random.Generator) -> str:
    """A caption of the image other than the held one."""
    return str(random.choice([text for text in captions if _normal(text) != _normal(held)]))


def _sizes(texts: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Tokens of each text, without special ones."""
    return [len(e.ids) for e in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]


def _deal(
    parts: list[list[str]], fillers: list[str], tokenizer: Tokenizer, longest: int, split: str
) -> list[list[tuple[str, int]]]:
    """Captions with their tokens for each document, each caption in one, enough for the longest length."""
    sizes, piles, at = _sizes(fillers, tokenizer), [], 0
    for held in parts:
        start, room = at, longest + _SPARE - sum(_sizes(held, tokenizer))
        while room > 0:
            if at == len(fillers):
                raise InputError(
                    f"{len(parts)} documents of {longest} tokens need about {len(parts) * longest:,} tokens of text; "
                    f"the {split} split has {sum(sizes):,} beside the queries: ask for fewer or shorter documents, or "
                    "give more text"
                )
            room -= sizes[at]
            at += 1
        piles.append(list(zip(fillers[start:at], sizes[start:at])))
    return piles


def _set_of(
    parts: list[list[str]],
    piles: list[list[tuple[str, int]]],
    tokenizer: Tokenizer,
    length: int,
    seed: list[int],
) -> DocumentSet:
    random = np.random.default_rng(seed)
    texts, captions = [], []
    for held, pile in zip(parts, piles):
        room = length - tokenizer.num_special_tokens_to_add(False) - sum(_sizes(held, tokenizer))
        if room < 0:
            raise InputError(
                f"length {length}: {len(held)} held captions do not fit; fewer queries a document, or longer"
            )
        inside = list(held)
        for text, size in pile:
            if size <= room:
                inside.append(text)
                room -= size
        texts.append(" ".join(inside[i] for i in random.permutation(len(inside))))
        captions.append(len(inside))
    tokens = np.array([len(e.ids) for e in tokenizer.encode_batch_fast(texts)])
    if tokens.max() > length:
        raise InputError(
            f"length {length}: a document measures {tokens.max()} tokens; this tokenizer counts joined captions "
            "otherwise than single ones: give --tokenizer packaged:minilm"
        )
    return DocumentSet(length, texts, tokens, np.array(captions))


def chunks_of(text: str, tokenizer: Tokenizer, size: int) -> list[str]:
    """The text in pieces of at most `size` tokens, special ones included, cut between words.

    Args:
        tokenizer: one that neither cuts nor pads.
        size: 8 or more; a word longer than that is cut inside.
    """
    encoding = tokenizer.encode(text, add_special_tokens=False)
    words, spans = encoding.word_ids, encoding.offsets
    room, pieces, start = size - tokenizer.num_special_tokens_to_add(False), [], 0
    while start < len(spans):
        stop = min(start + room, len(spans))
        if stop < len(spans):
            back = stop
            while back > start and words[back] == words[back - 1]:
                back -= 1
            stop = back if back > start else stop
        pieces.append(text[spans[start][0] : spans[stop - 1][1]])
        start = stop
    return pieces or [text]
