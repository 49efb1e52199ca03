"""The corpus folder: what is dropped is counted, ids never shift, and the same inputs give the same bytes."""

import json
from pathlib import Path

import numpy as np
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.consensus import captions as module
from captionbert.consensus.captions import grouped, open_corpus, prepare_corpus


def write(path: Path, rows: list[str]) -> str:
    path.write_text("".join(r + "\n" for r in rows), encoding="utf-8")
    return str(path)


def test_rows_groups_and_held_out(tmp_path: Path, captions: list[str]) -> None:
    source = write(tmp_path / "a.txt", captions)
    corpus = prepare_corpus([source], tmp_path / "corpus", held_out=6)
    assert corpus.rows == 200
    assert corpus.texts(np.array([7, 0, 199, 7])) == [captions[7], captions[0], captions[199], captions[7]]
    assert np.array_equal(corpus.groups, np.arange(200))
    assert corpus.held_out.sum() == 6
    assert list(corpus.character_lengths()) == [len(c) for c in captions]
    assert corpus.manifest["lengths"]["max"] == max(len(c) for c in captions)
    with pytest.raises(InputError, match=r"caption ids must lie in 0\.\.199, found -1\.\.3"):
        corpus.texts(np.array([3, -1]))


def test_held_out_is_at_most_five_percent_and_does_not_depend_on_order(
    tmp_path: Path, captions: list[str]
) -> None:
    one = prepare_corpus([write(tmp_path / "a.txt", captions)], tmp_path / "one", held_out=2000)
    two = prepare_corpus([write(tmp_path / "b.txt", captions[::-1])], tmp_path / "two", held_out=2000)
    assert one.held_out.sum() == 10
    held = [set(c.texts(np.flatnonzero(c.held_out))) for c in (one, two)]
    assert held[0] == held[1]
    other = prepare_corpus([str(tmp_path / "a.txt")], tmp_path / "three", held_out=2000, seed=1)
    assert set(other.texts(np.flatnonzero(other.held_out))) != held[0]


def test_a_request_that_holds_out_the_same_captions_finds_the_corpus(
    tmp_path: Path, captions: list[str]
) -> None:
    source, out = write(tmp_path / "a.txt", captions), tmp_path / "corpus"
    digest = prepare_corpus([source], out, held_out=2000).digest
    for held_out in (10, 11, 2000):
        assert prepare_corpus([source], out, held_out=held_out).digest == digest
    with pytest.raises(InputError, match="differs in held_out"):
        prepare_corpus([source], out, held_out=9)
    prepare_corpus([source], tmp_path / "few", held_out=9)
    with pytest.raises(InputError, match="differs in held_out"):  # the cap is 10: not the same captions
        prepare_corpus([source], tmp_path / "few", held_out=10)


def test_too_few_captions_to_hold_one_out_leave_no_folder(tmp_path: Path, captions: list[str]) -> None:
    rows = captions[:19] + [c.upper() for c in captions[:5]]  # 19 distinct ones
    source = write(tmp_path / "a.txt", rows)
    for options in ({}, {"held_out": 1}, {"deduplicate": False}):
        with pytest.raises(InputError, match=r"the corpus has 19 distinct captions; at least 20 are needed"):
            prepare_corpus([source], tmp_path / "corpus", **options)
    assert not (tmp_path / "corpus").exists()
    assert prepare_corpus([source], tmp_path / "control", held_out=0).rows == 19
    write(tmp_path / "a.txt", captions[:20])  # more captions, and the same command goes through
    assert prepare_corpus([source], tmp_path / "corpus").held_out.sum() == 1
    with pytest.raises(InputError, match=r"held_out is -1"):
        prepare_corpus([source], tmp_path / "other", held_out=-1)


def test_equal_captions_are_dropped_or_grouped_and_held_out_together(
    tmp_path: Path, captions: list[str]
) -> None:
    rows = captions + [c.upper() for c in captions[:50]] + [f"  {c}" for c in captions[:50]]
    source = write(tmp_path / "a.txt", rows)
    dropped = prepare_corpus([source], tmp_path / "dropped")
    assert dropped.rows == 200
    assert dropped.manifest["counts"]["duplicate"] == 100
    kept = prepare_corpus([source], tmp_path / "kept", deduplicate=False)
    assert kept.rows == 300
    assert np.array_equal(kept.groups, np.concatenate([np.arange(200), np.arange(50), np.arange(50)]))
    assert np.array_equal(kept.held_out, kept.held_out[kept.groups])


def test_unusable_rows_are_counted_and_named(tmp_path: Path) -> None:
    rows = [{"text": t} for t in ("good", None, "", "   ", "\0\0", "bad \ud800 half", "also good")]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    corpus = prepare_corpus([str(tmp_path / "a.jsonl")], tmp_path / "corpus", held_out=0)
    assert corpus.texts(np.arange(2)) == ["good", "also good"]
    assert corpus.manifest["counts"] == {
        "read": 7, "empty": 2, "duplicate": 0, "excluded": 0, "cut": 0, "quarantined": 3
    }  # fmt: skip
    assert corpus.manifest["quarantined"] == [
        {"source": "a.jsonl", "row": 2, "reason": "null"},
        {"source": "a.jsonl", "row": 5, "reason": "only NUL characters"},
        {"source": "a.jsonl", "row": 6, "reason": "lone surrogate"},
    ]


def test_a_caption_of_four_megabytes_is_cut_and_reported(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", ["short", "word " * 800_000])
    corpus = prepare_corpus([source], tmp_path / "corpus", held_out=0)
    assert corpus.manifest["counts"]["cut"] == 1
    assert corpus.manifest["inputs"]["char_cap"] == 65_536
    assert corpus.character_lengths().max() == 65_536
    assert corpus.manifest["lengths"]["max"] == corpus.character_lengths().max()


def test_listing_order_of_sources_does_not_matter(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.txt", ["one", "two"]), write(tmp_path / "b.txt", ["three"])
    first = prepare_corpus([b, a], tmp_path / "x", held_out=0)
    second = prepare_corpus([a, b], tmp_path / "y", held_out=0)
    assert first.texts(np.arange(3)) == ["one", "two", "three"]
    assert first.digest == second.digest
    assert (tmp_path / "x" / "captions.arrow").read_bytes() == (
        tmp_path / "y" / "captions.arrow"
    ).read_bytes()


def test_a_rerun_reuses_and_other_inputs_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", ["one", "two"])
    prepare_corpus([source], tmp_path / "corpus", held_out=0)
    written = (tmp_path / "corpus" / "captions.arrow").stat().st_mtime_ns
    prepare_corpus([source], tmp_path / "corpus", held_out=0)
    assert (tmp_path / "corpus" / "captions.arrow").stat().st_mtime_ns == written
    with pytest.raises(InputError, match=r"differs in seed \(seed: there 0, now 1\)"):
        prepare_corpus([source], tmp_path / "corpus", seed=1, held_out=0)
    write(tmp_path / "a.txt", ["one", "three"])
    with pytest.raises(InputError, match="made from other inputs; differs in sources"):
        prepare_corpus([source], tmp_path / "corpus", held_out=0)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="not empty and not a corpus"):
        prepare_corpus([write(tmp_path / "a.txt", ["one"])], tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_nothing_usable_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no caption left of 2 rows read"):
        prepare_corpus([write(tmp_path / "a.txt", ["  ", ""])], tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()
    with pytest.raises(InputError, match="no caption source given"):
        prepare_corpus([], tmp_path / "corpus")


def test_a_changed_corpus_file_is_noticed(tmp_path: Path) -> None:
    prepare_corpus([write(tmp_path / "a.txt", ["one", "two"])], tmp_path / "corpus", held_out=0)
    path = tmp_path / "corpus" / "captions.arrow"
    data = bytearray(path.read_bytes())
    data[data.index(b"onetwo")] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"captions\.arrow: expected SHA-256"):
        open_corpus(tmp_path / "corpus")
    with pytest.raises(InputError, match="no corpus there"):
        open_corpus(tmp_path / "elsewhere")


def test_many_batches_read_like_one(
    tmp_path: Path, captions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "a.txt", captions + captions[:20])
    one = prepare_corpus([source], tmp_path / "one")
    monkeypatch.setattr(module, "BATCH", 7)
    two = prepare_corpus([source], tmp_path / "two")
    rows = np.random.default_rng(0).integers(0, 200, 300)
    assert two.digest == one.digest
    assert two.texts(rows) == [captions[i] for i in rows]
    assert np.array_equal(one.held_out, two.held_out)


def test_grouped_covers_every_place_once() -> None:
    rows = np.array([9, 2, 14, 9, 0])
    found = {block: places.tolist() for block, places in grouped(rows, 5)}
    assert found == {0: [1, 4], 1: [0, 3], 2: [2]}
    assert list(grouped(np.array([], dtype=np.int64), 5)) == []


def test_the_rows_of_each_source_are_told(tmp_path: Path, captions: list[str]) -> None:
    one = write(tmp_path / "b.txt", [*captions[:50], "", captions[3]])
    two = write(tmp_path / "a.txt", captions[40:120])  # read first, by its name
    corpus = prepare_corpus([one, two], tmp_path / "corpus", held_out=0)
    assert corpus.sources == [("a.txt", 0, 80), ("b.txt", 80, 120)]  # ten of b.txt stand in a.txt
    assert corpus.texts(np.arange(80, 120)) == captions[:40]


def test_a_corpus_that_does_not_tell_its_sources(tmp_path: Path, captions: list[str]) -> None:
    corpus = prepare_corpus([write(tmp_path / "a.txt", captions)], tmp_path / "corpus")
    del corpus.manifest["source_rows"]  # as prepared before they were noted
    with pytest.raises(InputError, match="delete this folder and run"):
        _ = corpus.sources
