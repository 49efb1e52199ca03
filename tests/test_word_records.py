"""Word records: exact tuples against a slow reference, on captions and on random streams."""

import ast
import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from captionbert.probes import word_records
from captionbert.probes.word_records import FUNCTION_WORDS, Vocabulary, lookup_targets

CLS, SEP, DOG, CAT, RIVER, RIV, ER, THE, DOT, W, ITH, NUMBER, OX = range(13)
TOKENS = ["[CLS]", "[SEP]", "dog", "cat", "river", "riv", "##er", "the", ".", "w", "##ith", "1234", "ox"]
VOCABULARY = Vocabulary.from_tokens({t: i for i, t in enumerate(TOKENS)}, {CLS, SEP})


def reference(ids: list[list[int]], tokens: list[str], special: set[int], queries: str = "pieces") -> list:
    """(row, position, record, ending, continuation), one token at a time."""
    found = []
    for number, row in enumerate(ids):
        words: list[list[int]] = []
        for position, token in enumerate(row):
            if token in special:
                continue
            goes_on = tokens[token].startswith("##") and words and words[-1][-1] == position - 1
            if goes_on:
                words[-1].append(position)
            else:
                words.append([position])
        seen: dict[tuple[int, ...], int] = {}
        for word in words:
            key = tuple(row[p] for p in word)
            text = "".join(tokens[t].removeprefix("##") for t in key).lower()
            eligible = len(text) >= 3 and any(c.isalpha() for c in text) and text not in FUNCTION_WORDS
            if key not in seen:
                seen[key] = word[-1]
            elif eligible:
                asked = word if queries == "pieces" else word[-1:]
                found += [
                    (number, p, seen[key], p == word[-1], tokens[row[p]].startswith("##")) for p in asked
                ]
    return found


def listed(targets: word_records.LookupTargets) -> list:
    columns = (targets.row, targets.position, targets.record, targets.ending, targets.continuation)
    return [tuple(x.item() for x in entry) for entry in zip(*columns)]


def test_a_later_word_asks_for_the_last_piece_of_the_first() -> None:
    row = [CLS, RIV, ER, DOG, DOT, RIV, ER, DOG, DOT, DOG, SEP]
    assert listed(lookup_targets([row], VOCABULARY)) == [
        (0, 5, 2, False, False),
        (0, 6, 2, True, True),
        (0, 7, 3, True, False),
        (0, 9, 3, True, False),
    ]
    assert [e[1] for e in listed(lookup_targets([row], VOCABULARY, "endings"))] == [6, 7, 9]


@pytest.mark.parametrize("word", [[THE], [DOT], [NUMBER], [OX], [W, ITH]])
def test_function_words_marks_numbers_and_short_words_are_not_asked_for(word: list[int]) -> None:
    assert len(lookup_targets([[CLS, *word, DOG, *word, SEP]], VOCABULARY)) == 0


def test_equal_letters_with_other_pieces_are_other_words() -> None:
    assert len(lookup_targets([[CLS, RIVER, DOG, RIV, ER, SEP]], VOCABULARY)) == 0
    # a tuple is not the beginning of a longer one
    assert len(lookup_targets([[CLS, RIV, DOG, RIV, ER, SEP]], VOCABULARY)) == 0


def test_words_of_different_rows_do_not_meet_and_a_piece_does_not_reach_over_the_edge() -> None:
    assert len(lookup_targets([[DOG], [DOG], [RIV], [ER, DOG]], VOCABULARY)) == 0


def test_no_rows_and_empty_rows_give_nothing() -> None:
    for ids in ([], [[]], [[CLS, SEP], []]):
        targets = lookup_targets(ids, VOCABULARY)
        assert len(targets) == 0
        assert targets.row.dtype == targets.position.dtype == targets.record.dtype == np.int64
        assert targets.ending.dtype == targets.continuation.dtype == bool


def test_ids_outside_the_vocabulary_and_unknown_modes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.\.12, found 3\.\.13"):
        lookup_targets([[3, 13]], VOCABULARY)
    with pytest.raises(ValueError, match="'pieces' or 'endings'"):
        lookup_targets([[DOG]], VOCABULARY, "words")  # type: ignore[arg-type]


@pytest.mark.parametrize("queries", ["pieces", "endings"])
@pytest.mark.parametrize("length", [1, 2, 63, 512, 8192])
def test_random_streams_agree_with_one_token_at_a_time(length: int, queries: str) -> None:
    random = np.random.default_rng(length)
    for share in (0.05, 0.5, 0.95):  # of continuation pieces: up to words of a hundred pieces
        rows = [random.integers(0, len(TOKENS), size=length) for _ in range(3)]
        for row in rows:
            row[random.random(length) < share] = ER
        ids = [row.tolist() for row in rows] + [[ER] * length]
        expected = reference(ids, TOKENS, {CLS, SEP}, queries)
        assert listed(lookup_targets(ids, VOCABULARY, queries)) == expected
    assert length < 512 or expected


def test_a_wide_vocabulary_agrees_too() -> None:
    # 30,000 tokens and words of many pieces: a prefix times the vocabulary would pass 64 bits if it were not dense
    random = np.random.default_rng(5)
    tokens = ["[CLS]", *(("##" if i % 3 else "") + f"q{i}" for i in range(1, 30_000))]
    vocabulary = Vocabulary.from_tokens({t: i for i, t in enumerate(tokens)}, {0})
    rare = random.integers(1, 30_000, size=12)
    ids = [
        np.where(random.random(900) < 0.9, rare[random.integers(0, 12, 900)], 0).tolist() for _ in range(20)
    ]
    assert listed(lookup_targets(ids, vocabulary)) == reference(ids, tokens, {0})


def test_a_tokenizer_gives_its_vocabulary(tiny_tokenizer_dir: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_tokenizer_dir)
    ids = tokenizer.get_vocab()
    for given in (tokenizer, tokenizer.backend_tokenizer):
        vocabulary = Vocabulary.from_tokenizer(given)
        assert len(vocabulary) == len(ids)
        assert set(np.flatnonzero(vocabulary.special)) == {0, 1, 2, 3, 4}
        assert {i for t, i in ids.items() if t.startswith("##")} == set(
            np.flatnonzero(vocabulary.continuation)
        )
        assert vocabulary.letters[ids["dogs"]]
        assert not vocabulary.letters[ids["."]]
        assert vocabulary.characters[ids["##ing"]] == 3
        assert vocabulary.function[ids["the"]]
        assert vocabulary.strings[ids["##s"]] == "s"


def test_captions_through_a_tokenizer(tiny_tokenizer_dir: Path, captions: list[str]) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_tokenizer_dir)
    texts = [" ".join(captions[i : i + 5]) + " zebraing" * 2 for i in range(0, 100, 5)]
    ids = tokenizer(texts)["input_ids"]
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    expected = reference(ids, tokens, set(tokenizer.all_special_ids))
    assert listed(lookup_targets(ids, Vocabulary.from_tokenizer(tokenizer))) == expected
    assert any(not ending for *_, ending, _ in expected)


def test_real_captions_agree_and_quickly(shared_data: Path) -> None:
    packaged = pytest.importorskip("captionbert.consensus.packaged")
    from transformers import AutoTokenizer

    from captionbert.artifacts.errors import InputError

    try:
        tokenizer = AutoTokenizer.from_pretrained(packaged.packaged_tokenizer("minilm"))
    except InputError as error:
        pytest.skip(str(error))
    file = shared_data / "data/captions/multi30k-val.groups.jsonl.gz"
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        texts = [" ".join(json.loads(line)) for line in lines]
    ids = tokenizer(texts, truncation=True, max_length=256)["input_ids"]
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    started = time.process_time()
    targets = lookup_targets(ids, vocabulary)
    seconds = time.process_time() - started
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert listed(targets) == reference(ids, tokens, set(tokenizer.all_special_ids))
    assert 10 < len(targets) / len(ids) < 15  # 12.5 a paragraph
    assert len(ids) / seconds > 5_000


def test_nothing_comes_from_the_model_or_torch() -> None:
    source = Path(word_records.__file__).read_text(encoding="utf-8")
    opened: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            opened |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            opened.add("." * node.level + (node.module or ""))
    assert opened == {"collections.abc", "dataclasses", "itertools", "typing", "numpy"}
    check = (
        "import sys, captionbert.probes.word_records; "
        "bad = [m for m in sys.modules if m.split('.')[0] == 'torch' or 'rotary' in m]; assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
