"""The slow reference of the structured rotary positions: one token at a time, plain Python, no torch and no numpy.

Written from SPEC section 3 and the contract of issue 3 alone, before and apart from rotary_captionbert.py, which
shares no line with it. The tests compare the two.

A row is a list of token ids and a list of booleans (visible or not), both of T entries; positions count from the left
edge. A word is the list of the positions of its pieces. Angles are float64 radians, hashes are ints below 2**32.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Rules:
    """What the config of a structured model says, with the SPEC's defaults.

    Attributes:
        boundary: ids that end a segment. special: ids that are never part of a word. continuation: ids of `##` pieces.
        frequencies: radians a token of the position planes. base, digits: of the address. seed: of the key hash.
        planes: of a head. content_planes: of them, those that never turn. binding: "none", "endings" or "pieces".
        lexical_phases: False gives every key the phase 0. rotate_addresses: False leaves the address planes still.
    """

    boundary: frozenset[int] = frozenset({999, 1012, 1025, 1029})
    special: frozenset[int] = frozenset({0, 100, 101, 102, 103})
    continuation: frozenset[int] = frozenset()
    frequencies: tuple[float, ...] = (1.0, 0.01)
    base: int = 8
    digits: int = 3
    seed: int = 0
    planes: int = 16
    content_planes: int = 2
    binding: str = "none"
    lexical_phases: bool = True
    rotate_addresses: bool = True


def words_of(ids: Sequence[int], visible: Sequence[bool], rules: Rules) -> list[list[int]]:
    """The words of a row, left to right.

    A visible token that is not special is a piece. A `##` piece goes on with the word whose last piece stands directly
    before it; any other piece begins a word, and so does a `##` piece with no piece before it.
    """
    found: list[list[int]] = []
    for position, token in enumerate(ids):
        if not visible[position] or token in rules.special:
            continue
        goes_on = token in rules.continuation and found and found[-1][-1] == position - 1
        if goes_on:
            found[-1].append(position)
        else:
            found.append([position])
    return found


def segments_of(ids: Sequence[int], visible: Sequence[bool], rules: Rules) -> list[int | None]:
    """Of each token the number of visible boundary tokens before it; None for special tokens and padding."""
    numbers: list[int | None] = []
    ended = 0
    for token, shown in zip(ids, visible):
        if not shown or token in rules.special:
            numbers.append(None)
        else:
            numbers.append(ended)
        if shown and token in rules.boundary:
            ended += (
                1  # after its own number was written: a boundary token belongs to the segment that it ends
            )
    return numbers


def address_of(segment: int | None, rules: Rules) -> list[int]:
    """The digits of a segment number, most significant first; the null digit `base` throughout where it has none."""
    if segment is None or segment >= rules.base**rules.digits:
        return [rules.base] * rules.digits
    digits = []
    for place in range(rules.digits - 1, -1, -1):
        digits.append(segment // rules.base**place % rules.base)
    return digits


def mix(x: int) -> int:
    """lowbias32 (Chris Wellons, 2018): a bijection of the 32-bit integers in which every bit reaches every bit."""
    x ^= x >> 16
    x = x * 0x7FEB352D & MASK
    x ^= x >> 15
    x = x * 0x846CA68B & MASK
    x ^= x >> 16
    return x


@cache
def piece_hash(seed: int, token: int, reverse_offset: int, plane: int) -> int:
    """h(s, t, o, p) in 0..2**32 - 1; the offset is 0 for the last piece of a word, 1 for the one before."""
    return mix(mix(mix(mix(seed) ^ token) ^ reverse_offset) ^ plane)


def key_hash(key: Sequence[int], seed: int, plane: int) -> int:
    """The hash of a whole key (token ids of a word's pieces, left to right) in one plane."""
    total = 0
    for place, token in enumerate(key):
        total += piece_hash(seed, token, len(key) - 1 - place, plane)
    return total & MASK


@cache
def key_hashes(key: tuple[int, ...], seed: int, planes: int) -> list[int]:
    """The hashes of a key in planes 0, 1, ..., kept for the next word with that key."""
    return [key_hash(key, seed, plane) for plane in range(planes)]


def phase_of(hashed: int) -> float:
    """The angle of a key hash: its upper 24 bits as a share of the full turn (24, so that fp32 holds it exactly)."""
    return 2 * math.pi * (hashed >> 8) / 2**24


def row_hashes(ids: Sequence[int], words: list[list[int]], rules: Rules) -> list[list[int]]:
    """[T][planes]: the key hash at every piece of every word, 0 elsewhere."""
    found = [[0] * rules.planes for _ in ids]
    for word in words:
        for position in word:
            found[position] = key_hashes(tuple(ids[p] for p in word), rules.seed, rules.planes)
    return found


def records_of(ids: Sequence[int], words: list[list[int]]) -> list[int]:
    """Positions of the records: the last piece of the first word with each key, left to right."""
    seen: set[tuple[int, ...]] = set()
    found = []
    for word in words:
        key = tuple(ids[p] for p in word)
        if key not in seen:
            seen.add(key)
            found.append(word[-1])
    return found


def bound_of(words: list[list[int]], rules: Rules) -> set[int]:
    """Positions that take the key phase in the designated head."""
    if rules.binding == "none":
        return set()
    if rules.binding == "endings":
        return {word[-1] for word in words}
    return {position for word in words for position in word}


def plain_angles(position: int, address: list[int], rules: Rules) -> list[float]:
    """[planes] radians of one token in every head but the designated: position planes, content planes, digit planes."""
    angles = [position * frequency for frequency in rules.frequencies]
    angles += [0.0] * rules.content_planes
    for digit in address:
        for multiple in range(1, rules.base // 2 + 1):  # 1..4 at base eight
            turn = 2 * math.pi * multiple * digit / (rules.base + 1)
            angles.append(turn if rules.rotate_addresses else 0.0)
    return angles


def row_angles(
    ids: Sequence[int], visible: Sequence[bool], rules: Rules, designated: bool
) -> list[list[float]]:
    """[T][planes] radians of every token, in the designated head or in another."""
    words = words_of(ids, visible, rules)
    hashes = row_hashes(ids, words, rules)
    bound = bound_of(words, rules)
    angles = []
    for position, segment in enumerate(segments_of(ids, visible, rules)):
        if designated and position in bound:
            phases = [phase_of(h) for h in hashes[position]]
            angles.append(phases if rules.lexical_phases else [0.0] * rules.planes)
        else:
            angles.append(plain_angles(position, address_of(segment, rules), rules))
    return angles


def value_sum(address: list[int], tables: Sequence[Sequence[Sequence[float]]], rules: Rules) -> list[float]:
    """What the value path adds to a token: tables[digit place][digit value] summed over places; a null adds nothing."""
    total = [0.0] * len(tables[0][0])
    for place, digit in enumerate(address):
        if digit == rules.base:
            continue
        for column, value in enumerate(tables[place][digit]):
            total[column] += value
    return total


def turned(head: Sequence[float], angles: Sequence[float]) -> list[float]:
    """A head of 2P coordinates turned: plane i is coordinates (i, i + P)."""
    planes = len(angles)
    result = [0.0] * (2 * planes)
    for i, angle in enumerate(angles):
        a, b = head[i], head[i + planes]
        result[i] = a * math.cos(angle) - b * math.sin(angle)
        result[i + planes] = a * math.sin(angle) + b * math.cos(angle)
    return result


def held(head: Sequence[float], length: float) -> list[float]:
    """A head with each of its coordinate pairs scaled to `length`."""
    planes = len(head) // 2
    result = [0.0] * len(head)
    for i in range(planes):
        size = math.hypot(head[i], head[i + planes])
        result[i], result[i + planes] = head[i] * length / size, head[i + planes] * length / size
    return result


def attention_row(
    query: Sequence[float], keys: Sequence[Sequence[float]], visible: Sequence[bool]
) -> list[float]:
    """[T] softmax of the scaled products of one turned query with all turned keys; 0 at keys that are padding."""
    scores = [sum(q * k for q, k in zip(query, key)) / math.sqrt(len(query)) for key in keys]
    top = max(s for s, shown in zip(scores, visible) if shown)
    weights = [math.exp(s - top) if shown else 0.0 for s, shown in zip(scores, visible)]
    total = sum(weights)
    return [w / total for w in weights]
