"""Captions for probes: numbers of rows, blank rows, and the draw."""

from pathlib import Path

import numpy as np
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.consensus.captions import prepare_corpus
from captionbert.probes.texts import Captions, sample


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def test_rows_keep_their_number_in_the_file(tmp_path: Path) -> None:
    captions = Captions([write(tmp_path / "c.txt", ["", "  a cat ", "\0", "a dog"])])
    assert list(captions) == [(2, "a cat"), (4, "a dog")]
    assert captions.skipped == 2
    (tmp_path / "c.jsonl").write_text('"a cat"\n{"text": null}\n"\\ud800"\n"a dog"\n', encoding="utf-8")
    captions = Captions([str(tmp_path / "c.jsonl"), str(tmp_path / "c.txt")])
    assert list(captions)[:2] == [(1, "a cat"), (4, "a dog")]
    assert captions.skipped == 4
    assert set(captions.identity) == {"c.jsonl", "c.txt"}
    assert sum(len(block) for block in captions.blocks()) == 4


def test_a_corpus_folder_is_read_by_id(tmp_path: Path) -> None:
    file = write(tmp_path / "c.txt", [f"caption {i}" for i in range(30)])
    corpus = prepare_corpus([file], tmp_path / "consensus" / "corpus", held_out=1)
    for word in (tmp_path / "consensus", tmp_path / "consensus" / "corpus"):
        captions = Captions([str(word)])
        assert list(captions)[3] == (3, "caption 3")
        assert captions.identity == {"corpus": corpus.digest}


def test_files_without_a_caption_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"blank\.txt: holds no caption"):
        list(Captions([write(tmp_path / "blank.txt", ["", " "])]))
    with pytest.raises(InputError, match="no such caption file"):
        list(Captions([str(tmp_path / "none.txt")]))
    with pytest.raises(InputError, match="rows is 0"):
        sample(write(tmp_path / "c.txt", ["a"]), 0, 0)


def test_a_draw_is_uniform_repeatable_and_found_again_by_number(tmp_path: Path) -> None:
    lines = ["" if i % 10 == 0 else f"caption {i}" for i in range(20_000)]  # the draw is cut down on the way
    file = write(tmp_path / "c.txt", lines)
    drawn = sample(file, 500, seed=1)
    assert len(drawn.texts) == len(set(drawn.texts)) == 500
    assert drawn.of == 18_000
    assert [lines[number - 1] for number in drawn.rows] == drawn.texts
    assert (np.diff(drawn.rows) > 0).all()
    assert abs(drawn.rows.mean() - 10_000) < 4 * 20_000 / np.sqrt(12 * 500)
    assert sample(file, 500, seed=1).texts == drawn.texts
    assert sample(file, 500, seed=2).texts != drawn.texts
    assert sample(file, 10**6, seed=2).texts == [line for line in lines if line]


def test_two_files_of_one_name_are_both_identified(tmp_path: Path) -> None:
    words = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "x.txt").write_text(f"caption {number}\n", encoding="utf-8")
        words.append(str(tmp_path / str(number) / "x.txt"))
    captions = Captions([*words, words[0]])
    assert len(list(captions)) == 3
    assert set(captions.identity) == {"x.txt", words[1]}
