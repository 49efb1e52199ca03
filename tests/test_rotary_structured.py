"""Structured rotary positions against rotary_reference.py, the slow reference written apart from them.

A file of its own beside test_rotary_captionbert.py, which holds the plain rotary functions: these tests need the
reference, random id streams and, where they are present, real captions.
"""

import gzip
import importlib.util
import math
import random
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from captionbert import rotary_captionbert as rotary
from captionbert.artifacts.errors import InputError
from captionbert.configuration_captionbert import STRUCTURED_DEFAULTS, CaptionBertConfig

_spec = importlib.util.spec_from_file_location(
    "rotary_reference", Path(__file__).with_name("rotary_reference.py")
)
assert _spec is not None
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)  # type: ignore[union-attr]

BOUNDARY, SPECIAL = (999, 1012, 1025, 1029), (0, 100, 101, 102, 103)
PLANES = 16
VOCABULARY = 30_522
CPU = torch.device("cpu")
FREQUENCIES = (1.0, 0.01)


def continuations() -> torch.Tensor:
    """Which ids of BERT's vocabulary are `##` pieces, as every structured preset has it."""
    return rotary.decode_bitmap(STRUCTURED_DEFAULTS["continuation_bitmap"], CPU)


def rules(**changes: object):
    """The reference's rules for the real vocabulary and seed 2026."""
    pieces = frozenset(continuations().nonzero().flatten().tolist())
    return reference.Rules(**{"continuation": pieces, "seed": 2026, **changes})


def computed(ids: torch.Tensor, visible: torch.Tensor, seed: int = 2026) -> dict[str, np.ndarray]:
    """All that the functions under test say of a batch, as arrays by name."""
    words = rotary.word_pieces(ids, visible, SPECIAL, continuations())
    segments = rotary.segment_numbers(ids, visible, BOUNDARY, SPECIAL)
    digits = rotary.address_digits(segments, 8, 3)
    hashes = rotary.key_hashes(ids, words, seed, PLANES)
    found = {
        "piece": words.piece,
        "first": words.first,
        "last": words.last,
        "segments": segments,
        "digits": digits,
        "hashes": hashes,
        "records": rotary.record_positions(ids, words),
        "key turns": rotary.key_turns(hashes),
        "turns": rotary.structured_turns(
            torch.arange(ids.shape[1], device=CPU)[None],
            FREQUENCIES,
            digits,
            8,
            torch.Size((*ids.shape, PLANES)),
        ),
    }
    return {name: value.numpy() for name, value in found.items()}


def cis(angles: list[list[float]]) -> np.ndarray:
    """Angles as unit complex numbers."""
    return np.exp(1j * np.array(angles))


def expected(ids: list[int], visible: list[bool], seed: int = 2026) -> dict[str, np.ndarray]:
    """The same of one row by the reference."""
    law = rules(seed=seed)
    words = reference.words_of(ids, visible, law)
    length = len(ids)
    piece, first, last = np.zeros(length, bool), np.arange(length), np.arange(length)
    for word in words:
        piece[word], first[word], last[word] = True, word[0], word[-1]
    segments = reference.segments_of(ids, visible, law)
    hashes = reference.row_hashes(ids, words, law)
    records = np.zeros(length, bool)
    records[reference.records_of(ids, words)] = True
    return {
        "piece": piece,
        "first": first,
        "last": last,
        "segments": np.array([-1 if s is None else s for s in segments]),
        "digits": np.array([reference.address_of(s, law) for s in segments]),
        "hashes": np.array(hashes),
        "records": records,
        "key turns": cis([[reference.phase_of(h) for h in row] for row in hashes]),
        "turns": cis(reference.row_angles(ids, visible, law, designated=False)),
    }


def compare(ids: torch.Tensor, visible: torch.Tensor, seed: int = 2026) -> None:
    """Every row of a batch against the reference: integers exactly, turns to fp32 rounding."""
    found = computed(ids, visible, seed)
    for row in range(ids.shape[0]):
        for name, value in expected(ids[row].tolist(), visible[row].tolist(), seed).items():
            if "turns" in name:
                # 8,191 radians in fp32 are good to 2.5e-4 only where a frequency is no power of two
                np.testing.assert_allclose(found[name][row], value, atol=5e-4 if name == "turns" else 1e-6)
            else:
                np.testing.assert_array_equal(found[name][row], value, err_msg=f"{name}, row {row}")


def stream(kind: str, length: int, dice: random.Random) -> list[int]:
    """A random row of ids.

    "wide" is over the whole vocabulary, "narrow" over a few ids of every sort (words repeat, specials stand in the
    middle), "boundaries" nearly all boundary tokens, "pieces" nearly all `##` pieces.
    """
    pieces = [2015, 2075, 2953]  # ##s, ##ing, ##or
    pools = {
        "wide": range(VOCABULARY),
        "narrow": [2158, 3899, 14405, *pieces, *BOUNDARY, *SPECIAL],
        "boundaries": [*BOUNDARY * 8, 2158, 2015, 102],
        "pieces": [*pieces * 8, 2158, 1012, 102],
    }
    return [dice.choice(pools[kind]) for _ in range(length)]


def padded(kind: str, length: int, dice: random.Random) -> list[bool]:
    """Visibility of a row: "all", padding on the "right" or "left", or "holes" anywhere."""
    cut = dice.randrange(length + 1)
    if kind == "holes":
        return [dice.random() < 0.8 for _ in range(length)]
    return [
        kind == "all" or (kind == "right" and i < cut) or (kind == "left" and i >= cut) for i in range(length)
    ]


@pytest.mark.parametrize("length", [1, 2, 63, 512, 8192])
@pytest.mark.parametrize("kind", ["wide", "narrow", "boundaries", "pieces"])
def test_random_streams_agree_with_the_reference(length: int, kind: str) -> None:
    dice = random.Random(length)
    modes = ["all", "right", "left", "holes"]
    for seed in (2026, 0, 2**32 - 1) if length < 512 else (2026,):
        repeats = 8 if length < 512 else 1
        ids = torch.tensor([stream(kind, length, dice) for _ in modes * repeats])
        visible = torch.tensor([padded(mode, length, dice) for mode in modes * repeats])
        compare(ids, visible, seed)


def test_the_streams_hold_what_they_should() -> None:
    """The comparison above is worth something: its streams reach every case."""
    dice = random.Random(8192)
    ids = torch.tensor([stream("boundaries", 8192, dice)])
    found = computed(ids, torch.ones_like(ids, dtype=torch.bool))
    assert found["segments"].max() > 7000
    narrow = torch.tensor([stream("narrow", 512, dice)])
    found = computed(narrow, torch.ones_like(narrow, dtype=torch.bool))
    assert 20 < found["records"].sum() < (found["last"] == np.arange(512)).sum()
    assert (found["last"] - found["first"]).max() >= 4


def test_words_where_text_was_cut() -> None:
    man, s, ing, cls, sep = 2158, 2015, 2075, 101, 102
    ids = torch.tensor([[cls, s, ing, man, s, sep, ing, man, man, s]])
    visible = torch.ones_like(ids, dtype=torch.bool)
    visible[0, 8] = False
    words = rotary.word_pieces(ids, visible, SPECIAL, continuations())
    # a leading ## piece, one after a special token and one after a hidden token begin words of their own
    assert words.first.tolist() == [[0, 1, 1, 3, 3, 5, 6, 7, 8, 9]]
    assert words.last.tolist() == [[0, 2, 2, 4, 4, 5, 6, 7, 8, 9]]
    assert words.piece.int().tolist() == [[0, 1, 1, 1, 1, 0, 1, 1, 0, 1]]


def test_a_row_does_not_depend_on_its_batch() -> None:
    dice = random.Random(1)
    rows = [stream("narrow", 80, dice) for _ in range(12)]
    visible = [padded(mode, 80, dice) for mode in ["all", "right", "left", "holes"] * 3]
    together = computed(torch.tensor(rows), torch.tensor(visible))
    for i in range(12):
        alone = computed(torch.tensor(rows[i : i + 1]), torch.tensor(visible[i : i + 1]))
        for name, value in alone.items():
            assert value[0].tobytes() == together[name][i].tobytes(), name


def test_added_right_padding_changes_nothing() -> None:
    ids = torch.tensor([stream("narrow", 80, random.Random(2))])
    longer = torch.nn.functional.pad(ids, (0, 50), value=2158)
    visible = torch.arange(130)[None] < 80
    short, long = computed(ids, torch.ones_like(ids, dtype=torch.bool)), computed(longer, visible)
    for name, value in short.items():
        assert value.tobytes() == np.ascontiguousarray(long[name][:, :80]).tobytes(), name


def minilm_tokenizer():
    """The real uncased tokenizer of the packaged teacher; the test skips where the extra is not installed."""
    from captionbert.consensus.packaged import packaged_tokenizer

    try:
        folder = packaged_tokenizer("minilm")
    except InputError as error:
        pytest.skip(str(error))
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    return tokenizer


def test_the_bitmap_is_that_of_the_real_vocabulary() -> None:
    vocabulary = minilm_tokenizer().get_vocab()
    flags = continuations()
    assert {i for token, i in vocabulary.items() if token.startswith("##")} == set(
        flags.nonzero().flatten().tolist()
    )
    assert len(flags) >= VOCABULARY
    assert [vocabulary[c] for c in "!.;?"] == list(BOUNDARY)
    assert sorted(vocabulary[t] for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")) == list(SPECIAL)


def captions_of(folder: Path, count: int) -> list[str]:
    """Real captions, a share from each file; every tenth joined with the nine before it, for repeats and segments."""
    texts: list[str] = []
    for name in ("multi30k-train", "coco-val2017", "cc3m-validation", "general-english"):
        with gzip.open(folder / f"{name}.txt.gz", "rt", encoding="utf-8") as lines:
            texts += [line.strip() for line in islice(lines, count // 4)]
    return [" ".join(texts[i - 9 : i + 1]) if i % 10 == 9 else text for i, text in enumerate(texts)]


def test_ten_thousand_real_captions_agree_with_the_reference(shared_data: Path) -> None:
    texts = captions_of(shared_data / "data/captions", 10_000)
    rows = sorted((e.ids for e in minilm_tokenizer().encode_batch(texts)), key=len)
    assert len(rows) == 10_000
    assert len(rows[-1]) > 128
    law, repeats, longer = rules(), 0, 0
    for start in range(0, len(rows), 500):  # rows of like length together: little padding
        block = rows[start : start + 500]
        ids = torch.tensor([row + [0] * (len(block[-1]) - len(row)) for row in block])
        pieces = rotary.word_pieces(ids, ids != 0, SPECIAL, continuations())
        first, last = pieces.first.numpy(), pieces.last.numpy()
        hashes = rotary.key_hashes(ids, pieces, law.seed, PLANES).numpy()
        records = rotary.record_positions(ids, pieces).numpy()
        digits = rotary.address_digits(rotary.segment_numbers(ids, ids != 0, BOUNDARY, SPECIAL), 8, 3).numpy()
        for i, row in enumerate(block):
            shown = [True] * len(row)
            words = reference.words_of(row, shown, law)
            assert records[i].nonzero()[0].tolist() == reference.records_of(row, words), row
            assert np.array_equal(hashes[i, : len(row)], reference.row_hashes(row, words, law)), row
            addresses = [reference.address_of(s, law) for s in reference.segments_of(row, shown, law)]
            assert np.array_equal(digits[i, : len(row)], addresses), row
            assert not hashes[i, len(row) :].any(), row
            assert (digits[i, len(row) :] == 8).all(), row
            spans = [(word[0], word[-1]) for word in words for _ in word]
            assert list(
                zip(first[i, 1 : len(row) - 1].tolist(), last[i, 1 : len(row) - 1].tolist())
            ) == spans or (
                100 in row  # [UNK] is in no word and has no span
            ), row
            repeats += len(words) - int(records[i].sum())
            longer += sum(len(word) > 1 for word in words)
    assert repeats > 10_000
    assert longer > 5_000


def test_segments_past_the_last_address_are_null() -> None:
    ids = torch.tensor([[1012, 2158] * 600])
    found = computed(ids, torch.ones_like(ids, dtype=torch.bool))
    numbers = found["segments"][0]
    assert numbers[[0, 1, 2, 1198, 1199]].tolist() == [0, 1, 1, 599, 600]
    digits = found["digits"][0]
    assert digits[numbers == 511].tolist() == [[7, 7, 7]] * 2
    assert (digits[numbers > 511] == 8).all()
    assert digits[numbers == 83].tolist() == [[1, 2, 3]] * 2
    null = rotary.address_digits(torch.tensor([[-1]]), 8, 3)
    assert null.tolist() == [[[8, 8, 8]]]
    assert rotary.address_digits(torch.tensor([[9, 15, 16]]), 4, 2).tolist() == [[[2, 1], [3, 3], [4, 4]]]


def test_digit_values_are_equidistant() -> None:
    values = torch.arange(9)[None, :, None].expand(1, 9, 3)
    turns = rotary.structured_turns(torch.zeros(1, 9), FREQUENCIES, values, 8, torch.Size((1, 9, PLANES)))[0]
    for digit in range(3):
        planes = turns[:, 4 + 4 * digit : 8 + 4 * digit].to(torch.complex128)  # [9, 4]
        table = (planes[:, None] * planes[None].conj()).real.sum(-1)
        np.testing.assert_allclose(table, 4.5 * np.eye(9) - 0.5, atol=1e-6)
    for delta in range(1, 9):  # and of the formula itself
        assert sum(math.cos(2 * math.pi * m * delta / 9) for m in (1, 2, 3, 4)) == pytest.approx(
            -0.5, abs=1e-12
        )


def test_content_planes_and_unturned_addresses_stay() -> None:
    digits = torch.randint(0, 9, (1, 50, 3))
    shape = torch.Size((1, 50, PLANES))
    places = torch.arange(50)[None]
    turned = rotary.structured_turns(places, FREQUENCIES, digits, 8, shape)
    still = rotary.structured_turns(places, FREQUENCIES, None, 8, shape)
    assert bool((turned[..., 2:4] == 1).all())
    assert bool((still[..., 2:] == 1).all())
    assert torch.equal(turned[..., :2], still[..., :2])


# h summed over the pieces of a key: (seed, key, plane) -> number. Computed by the reference, and never to be changed: a
# saved model has learned its phases, and another hash would silently be another model.
PINNED = [
    (0, (2158,), 0, 3596583739),
    (0, (2158,), 15, 903789366),
    (1, (2158,), 0, 3686027491),
    (4294967295, (2158,), 0, 1580820708),
    (0, (3899,), 0, 906751023),
    (0, (14405, 2015), 0, 1571939087),
    (0, (2015, 14405), 0, 354653661),
    (0, (1, 2, 3, 4, 5), 0, 4272242933),
    (1, (1, 2, 3, 4, 5), 7, 222765098),
    (4294967295, (14405, 2015), 7, 3523615262),
    (4294967295, (30521,), 1, 375004227),
    (4294967295, (1, 2, 3, 4, 5), 15, 604785357),
    (2026, (2158,), 0, 3430900030),
    (2026, (2158,), 15, 1413344045),
    (2026, (14405, 2015), 0, 2407652703),
    (2026, (1, 2, 3, 4, 5), 15, 2292317423),
]


@pytest.mark.parametrize(("seed", "key", "plane", "number"), PINNED)
def test_hashes_are_pinned(seed: int, key: tuple[int, ...], plane: int, number: int) -> None:
    ids = torch.tensor([key])
    continuing = torch.ones(
        VOCABULARY, dtype=torch.bool
    )  # the ids of a key are one word here, whatever they are
    words = rotary.word_pieces(ids, torch.ones_like(ids, dtype=torch.bool), (), continuing)
    assert rotary.key_hashes(ids, words, seed, PLANES)[0, :, plane].tolist() == [number] * len(key)
    assert reference.key_hash(key, seed, plane) == number


def test_phases_are_pinned() -> None:
    turns = rotary.key_turns(torch.tensor([0, 255, 256, 2**30, 2**31, 2**32 - 1]))
    exact = np.exp(2j * np.pi * np.array([0, 0, 1 / 2**24, 1 / 4, 1 / 2, 1 - 1 / 2**24]))
    np.testing.assert_allclose(turns.numpy(), exact, atol=3e-7)


def test_equal_keys_have_equal_phases_at_all_their_pieces() -> None:
    dice = random.Random(3)
    ids = torch.tensor([stream("narrow", 2000, dice), stream("narrow", 2000, dice)])
    visible = torch.ones_like(ids, dtype=torch.bool)
    turns = computed(ids, visible)["key turns"]
    phases: dict[tuple[int, ...], set[bytes]] = {}
    for row in range(2):
        for word in reference.words_of(ids[row].tolist(), visible[row].tolist(), rules()):
            key = tuple(ids[row, word].tolist())
            phases.setdefault(key, set()).update(turns[row, p].tobytes() for p in word)
    assert max(len(key) for key in phases) >= 4
    assert all(len(found) == 1 for found in phases.values())  # bit-equal, in either row and at every piece
    assert len({next(iter(found)) for found in phases.values()}) == len(phases)


def test_keys_of_equal_pieces_in_another_order_or_number_differ() -> None:
    man, s, ing = 2158, 2015, 2075
    keys = [(man,), (man, s), (man, s, s), (man, s, ing), (man, ing, s), (s,), (s, s), (s, s, s)]
    hashes = set()
    for key in keys:
        ids = torch.tensor([key])
        words = rotary.word_pieces(ids, torch.ones_like(ids, dtype=torch.bool), SPECIAL, continuations())
        hashes.add(tuple(rotary.key_hashes(ids, words, 2026, PLANES)[0, 0].tolist()))
    assert len(hashes) == len(keys)


def many_keys(count: int) -> torch.Tensor:
    """Hashes int64 [count, planes] of distinct words of one to three pieces, drawn over the real vocabulary."""
    flags = continuations()[:VOCABULARY]
    plain = (~flags).nonzero().flatten()[1000:]  # past the unused ids
    inner = flags.nonzero().flatten()
    generator = torch.Generator().manual_seed(0)
    third = count // 3 + 1
    heads = plain[torch.randint(len(plain), (3 * third,), generator=generator)]
    tails = inner[torch.randint(len(inner), (3 * third, 2), generator=generator)]
    short = plain[: min(third, len(plain))]
    rows = [
        short.unsqueeze(1),
        torch.cat((heads[:, None], tails[:, :1]), 1),
        torch.cat((heads[:, None], tails), 1),
    ]
    found = []
    for keys in rows:
        keys = keys.unique(dim=0)
        words = rotary.word_pieces(keys, torch.ones_like(keys, dtype=torch.bool), SPECIAL, flags)
        found.append(rotary.key_hashes(keys, words, 2026, PLANES)[:, 0])
    joined = torch.cat(found)
    return joined[torch.randperm(len(joined), generator=generator)[:count]]


def test_phases_are_uniform_over_a_hundred_thousand_keys() -> None:
    from scipy.stats import chi2

    hashes = many_keys(100_000)
    assert len(hashes) == 100_000
    top = (hashes >> 24).numpy()  # 256 equal arcs
    # A fair hash fails one test of 16 + 15 here once in 30,000 draws of the keys, and the keys are fixed.
    for plane in range(PLANES):
        counts = np.bincount(top[:, plane], minlength=256)
        assert chi2.sf(((counts - counts.mean()) ** 2 / counts.mean()).sum(), 255) > 1e-6, plane
        low = np.bincount((hashes[:, plane] >> 16 & 255).numpy(), minlength=256)
        assert chi2.sf(((low - low.mean()) ** 2 / low.mean()).sum(), 255) > 1e-6, plane
    for plane in range(PLANES - 1):  # neighbouring planes know nothing of each other: 16 x 16 arcs
        pairs = np.bincount((top[:, plane] // 16) * 16 + top[:, plane + 1] // 16, minlength=256)
        assert chi2.sf(((pairs - pairs.mean()) ** 2 / pairs.mean()).sum(), 255) > 1e-6, plane


def test_another_seed_is_another_draw() -> None:
    ids = torch.arange(1000, 3000)[:, None]
    words = rotary.word_pieces(ids, torch.ones_like(ids, dtype=torch.bool), (), continuations())
    draws = [rotary.key_hashes(ids, words, seed, PLANES)[:, 0] for seed in (2026, 2027)]
    assert not bool((draws[0] == draws[1]).any())
    turns = [rotary.key_turns(draw) for draw in draws]
    assert abs(complex((turns[0] * turns[1].conj()).mean())) < 0.02


def test_no_two_keys_of_the_vocabulary_collide() -> None:
    ids = torch.arange(VOCABULARY)[None]
    no_piece = torch.zeros(VOCABULARY, dtype=torch.bool)
    words = rotary.word_pieces(ids, torch.ones_like(ids, dtype=torch.bool), (), no_piece)
    for seed in (2026, 0):
        hashes = rotary.key_hashes(ids, words, seed, PLANES)[0]
        assert len(hashes.unique(dim=0)) == VOCABULARY
        # the phases themselves, which keep 24 bits of each plane
        assert len((hashes >> 8).unique(dim=0)) == VOCABULARY
    assert bool(rotary.record_positions(ids, words).all())
    again = torch.cat((ids, ids.flip(1)), 1)
    words = rotary.word_pieces(again, torch.ones_like(again, dtype=torch.bool), (), no_piece)
    assert rotary.record_positions(again, words)[0].tolist() == [True] * VOCABULARY + [False] * VOCABULARY


@pytest.mark.parametrize("ambient", [torch.bfloat16, torch.float16, torch.float64])
def test_results_are_the_same_at_any_default_dtype(ambient: torch.dtype) -> None:
    dice = random.Random(4)
    ids = torch.tensor([stream("narrow", 300, dice), stream("boundaries", 300, dice)])
    visible = torch.rand(ids.shape) < 0.9
    plain = computed(ids, visible)
    default = torch.get_default_dtype()
    torch.set_default_dtype(ambient)
    try:
        found = computed(ids, visible)
    finally:
        torch.set_default_dtype(default)
    for name, value in plain.items():
        assert found[name].dtype == value.dtype, name
        assert found[name].tobytes() == value.tobytes(), name
    assert found["turns"].dtype == found["key turns"].dtype == np.complex64


def test_results_are_the_same_at_any_default_device() -> None:
    """Inputs say where to compute: a default device of the caller (here one that holds no data) must not join in."""
    ids = torch.tensor([stream("narrow", 300, random.Random(5))])
    visible = torch.ones_like(ids, dtype=torch.bool)
    plain = computed(ids, visible)
    rotary._unpacked.cache_clear()
    with torch.device("meta"):
        found = computed(ids, visible)
    for name, value in plain.items():
        assert found[name].tobytes() == value.tobytes(), name


def test_a_graph_that_is_exported_first_leaves_no_tensor_without_values() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    rotary._unpacked.cache_clear()
    with FakeTensorMode():
        continuations()
    assert int(continuations().sum()) == 5828


def test_captions_laid_end_to_end_are_as_each_by_itself() -> None:
    """Rows of every length without special tokens between them, so that words, keys and segments could run over."""
    dice = random.Random(7)
    rows = [stream("narrow", length, dice) for length in (1, 2, 63, 512, 1, 40, 300)]
    rows = [[i for i in row if i not in SPECIAL] or [2003] for row in rows]
    rows[5][0] = int(continuations().nonzero()[0])  # a continuation piece right behind another caption
    rows[3][-1], rows[4] = 2003, [2003]  # one word twice, in two captions
    rows[2][9] = rows[3][100] = 1012
    flat = torch.tensor([[i for row in rows for i in row]])
    starts = torch.zeros_like(flat, dtype=torch.bool)
    starts[0, np.cumsum([0, *map(len, rows)])[:-1]] = True
    visible = torch.ones_like(starts)
    words = rotary.word_pieces(flat, visible, SPECIAL, continuations(), starts)
    found = {
        "segments": rotary.segment_numbers(flat, visible, BOUNDARY, SPECIAL, starts),
        "hashes": rotary.key_hashes(flat, words, 2026, PLANES),
        "records": rotary.record_positions(flat, words, starts),
        "piece": words.piece,
    }
    alone = [computed(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.bool)) for row in rows]
    for name, value in found.items():
        expected = np.concatenate([each[name][0] for each in alone])
        assert np.array_equal(value[0].numpy(), expected), name
    lasts = np.concatenate(
        [each["last"][0] + begin for each, begin in zip(alone, starts[0].nonzero().numpy())]
    )
    assert np.array_equal(words.last[0].numpy(), lasts)


def test_results_are_the_same_for_narrower_ids() -> None:
    ids = torch.tensor([stream("narrow", 300, random.Random(5))])
    visible = torch.ones_like(ids, dtype=torch.bool)
    plain, narrow = computed(ids, visible), computed(ids.int(), visible)
    for name, value in plain.items():
        assert np.array_equal(narrow[name], value), name


class Sizes(TorchDispatchMode):
    """Notes how many operations ran and the largest storage that any of them gave back, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.largest = max(self.largest, leaf.untyped_storage().nbytes())
        return result


def test_work_has_no_loop_over_tokens_and_memory_is_linear() -> None:
    calls = {}
    continuations()
    for length in (64, 1024, 8192):
        ids = torch.tensor([stream("narrow", length, random.Random(6))])
        visible = torch.ones_like(ids, dtype=torch.bool)
        with Sizes() as sizes:
            computed(ids, visible)
        calls[length] = sizes.calls
        # 16 planes of 8 bytes a token are the largest thing that is needed; the square would be 8,192 bytes a token
        assert sizes.largest <= 128 * length + VOCABULARY + 4096, length
    assert calls[64] == calls[1024] == calls[8192] < 300


def test_the_reference_knows_nothing_of_the_code() -> None:
    text = Path(reference.__file__).read_text(encoding="utf-8")
    imports = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert {line.split()[1].split(".")[0] for line in imports} == {
        "math",
        "collections",
        "dataclasses",
        "functools",
    }


def test_the_defaults_are_those_of_the_specification() -> None:
    config = CaptionBertConfig.from_preset("whole-key-lookup")
    law = reference.Rules()
    assert set(config.boundary_token_ids) == law.boundary == set(BOUNDARY)
    assert set(config.special_token_ids) == law.special == set(SPECIAL)
    assert tuple(config.position_frequencies) == law.frequencies
    assert (config.address_base, config.address_digits, config.head_size // 2) == (
        law.base,
        law.digits,
        law.planes,
    )
    assert (config.lookup_layer, config.lookup_head, config.binding, config.record_norm) == (
        4,
        0,
        "pieces",
        2.18,
    )
    assert config.hash_seed == 2026
