"""Drawing of documents: exact lengths, each caption once, splits that never meet, queries that have one answer."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from captionbert.artifacts.errors import InputError
from captionbert.probes.document_sets import (
    SPLITS,
    Pool,
    Task,
    chunks_of,
    draw_task,
    plain_tokenizer,
    read_pool,
    split_of,
)


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> Tokenizer:
    made = Tokenizer.from_file(str(tiny_tokenizer_dir / "tokenizer.json"))
    made.enable_truncation(16)  # as a loaded model's is: documents must be measured without it
    return made


@pytest.fixture
def pool(captions: list[str], tmp_path: Path) -> Pool:
    (tmp_path / "c.txt").write_text("\n".join(captions))
    return read_pool(str(tmp_path / "c.txt"))


@pytest.fixture
def grouped(captions: list[str], tmp_path: Path) -> Pool:
    """Images of four captions, the last of which is not in the file."""
    rows = [captions[i : i + 4] for i in range(0, 160, 4)]
    (tmp_path / "g.jsonl").write_text("\n".join(map(json.dumps, rows)))
    outside = {row[3] for row in rows}
    (tmp_path / "c.txt").write_text("\n".join(c for c in captions if c not in outside))
    return read_pool(str(tmp_path / "c.txt"), str(tmp_path / "g.jsonl"))


def drawn(pool: Pool, tokenizer: Tokenizer, **changes: object) -> Task:
    settings = {
        "lengths": [24, 48],
        "documents": 5,
        "queries": 10,
        "seed": 1,
        "split": "dev",
        "grouped": False,
    }
    return draw_task(pool, tokenizer, **{**settings, **changes})  # type: ignore[arg-type]


def inside(document: str) -> list[str]:
    """The captions of a document: each ends in its own full stop."""
    return [part.strip() + "." for part in document.split(".") if part.strip()]


def test_documents_have_the_length_and_every_caption_stands_once(pool, tokenizer, captions) -> None:
    task = drawn(pool, tokenizer)
    assert len(task.queries) == len(set(task.queries)) == 10
    assert task.right.tolist() == [0, 1, 2, 3, 4] * 2
    for part in task.sets:
        held = [caption for text in part.texts for caption in inside(text)]
        assert len(held) == len(set(held)) == part.captions.sum()
        assert set(held) <= set(captions)
        plain = plain_tokenizer(tokenizer)
        assert part.tokens.tolist() == [len(plain.encode(text).ids) for text in part.texts]
        assert (
            part.length - 6 < part.tokens.min() <= part.tokens.max() <= part.length
        )  # captions: 6 to 8 tokens
        for query, right in zip(task.queries, task.right):
            assert [query in inside(text) for text in part.texts] == [d == right for d in range(5)]
    # the held captions are anywhere in their documents, not first
    assert {inside(task.sets[1].texts[d]).index(q) for q, d in zip(task.queries, task.right)} > {0, 1}


def test_one_document_is_no_search(pool, tokenizer) -> None:
    with pytest.raises(InputError, match="--documents 1: one document is always found; give 2 or more"):
        drawn(pool, tokenizer, documents=1)


def test_splits_never_share_a_caption_whatever_the_seed(pool, tokenizer) -> None:
    texts = {
        (split, seed): {
            caption
            for part in drawn(pool, tokenizer, split=split, seed=seed).sets
            for text in part.texts
            for caption in inside(text)
        }
        for split in SPLITS
        for seed in (1, 2)
    }
    for seed in (1, 2):
        for other in (1, 2):
            assert not texts["dev", seed] & texts["test", other]
    assert texts["dev", 1] != texts["dev", 2]
    assert drawn(pool, tokenizer).sets[0].texts == drawn(pool, tokenizer).sets[0].texts
    counts = [[split_of(unit) for unit in pool.units].count(split) for split in SPLITS]
    assert min(counts) > 70  # of 200


@pytest.mark.parametrize("seed", range(8))
def test_a_query_is_another_caption_of_an_image_that_one_document_holds(grouped, tokenizer, seed) -> None:
    images = {text: i for i, unit in enumerate(grouped.others) for text in unit}
    task = drawn(grouped, tokenizer, grouped=True, queries=5, seed=seed)
    assert task.about["query_is"] == "same image"
    for part in task.sets:
        for query, right in zip(task.queries, task.right):
            found = [
                (d, c)
                for d, text in enumerate(part.texts)
                for c in inside(text)
                if images.get(c) == images[query]
            ]
            assert len(found) == 1
            assert found[0][0] == right
            assert found[0][1] != query
    assert set(grouped.identity) == {"c.txt", "g.jsonl"}


def test_a_pool_has_each_text_once(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("A cat.\na  cat.\na dog.\na bird.\n")
    (tmp_path / "g.jsonl").write_text(
        '["a DOG.", "some dog."]\n["a dog.", "a bird.", "a wing."]\n["x", "y"]\n'
    )
    assert read_pool(str(tmp_path / "c.txt")).units == [["A cat."], ["a dog."], ["a bird."]]
    found = read_pool(str(tmp_path / "c.txt"), str(tmp_path / "g.jsonl"))
    # "a dog." is of the first image that names it; the third image has no caption in the file
    assert found.units == [["a dog."], ["a bird."], ["A cat."]]
    assert found.others == [["a DOG.", "some dog."], ["a bird.", "a wing."], []]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queries": 150}, "150 queries: the dev split has"),
        (
            {"lengths": [2000]},
            "5 documents of 2000 tokens need about 10,000 tokens of text; the dev split has",
        ),
        ({"lengths": [8, 48]}, "length 8: 2 held captions do not fit"),
        ({"split": "train"}, "split 'train': expected dev or test"),
        ({"grouped": True}, "10 queries: the dev split has 0 images with two captions or more"),
    ],
)
def test_what_cannot_be_drawn_is_told(pool, tokenizer, changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        drawn(pool, tokenizer, **changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["a"]\n{"a": 1}', "line 2: expected a list of captions of one image"),
        ('["a", 3]', "line 1: expected a list of captions"),
        ("[", "line 1: not valid JSON"),
        ("\n", "holds no group"),
        ('["other"]', "none of its captions is in"),
    ],
)
def test_wrong_groups_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.txt").write_text("a cat\n")
    (tmp_path / "g.jsonl").write_text(text)
    with pytest.raises(InputError, match=message):
        read_pool(str(tmp_path / "c.txt"), str(tmp_path / "g.jsonl"))
    with pytest.raises(InputError, match=r"none\.jsonl: no such file"):
        read_pool(str(tmp_path / "c.txt"), str(tmp_path / "none.jsonl"))


def test_chunks_hold_every_word_and_no_more_tokens_than_asked(tokenizer, captions) -> None:
    plain = plain_tokenizer(tokenizer)
    text = " ".join(captions[:9]) + " unbek " + captions[9]
    chunks = chunks_of(text, plain, 10)
    assert " ".join(chunks).replace(" .", ".").split() == text.split()
    sizes = [len(plain.encode(chunk).ids) for chunk in chunks]
    assert max(sizes) <= 10
    assert min(sizes[:-1]) > 2
    assert chunks_of("a man unbek.", plain, 8) == [
        "a man",
        "unbek.",
    ]  # room for six, the word has five pieces
    assert chunks_of("", plain, 10) == [""]
    assert len(chunks_of("abcdefghijklmnop", plain, 8)) == 3  # one word longer than a chunk is cut inside
