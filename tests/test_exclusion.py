"""Sentences left out by digest."""

import json
from pathlib import Path

import numpy as np
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.consensus.captions import prepare_corpus
from captionbert.consensus.exclusion import exclusion_digest, normalise


def write(path: Path, rows: list[str]) -> str:
    path.write_text("".join(r + "\n" for r in rows), encoding="utf-8")
    return str(path)


def test_exclusion_follows_the_published_rule(tmp_path: Path) -> None:
    assert normalise("  Two  DOGS, run-fast!") == "two dogs runfast"
    (tmp_path / "exclude.txt").write_text(exclusion_digest("A cat sleeps.") + "\n")
    source = write(tmp_path / "a.txt", ["a CAT  sleeps!", "a dog sleeps"])
    corpus = prepare_corpus([source], tmp_path / "corpus", exclude=tmp_path / "exclude.txt", held_out=0)
    assert corpus.texts(np.arange(corpus.rows)) == ["a dog sleeps"]
    assert corpus.manifest["counts"]["excluded"] == 1
    (tmp_path / "exclude.txt").write_text("not a digest\n")
    with pytest.raises(InputError, match="expected 16 hex digits a line"):
        prepare_corpus([source], tmp_path / "other", exclude=tmp_path / "exclude.txt")
    with pytest.raises(InputError, match="no such exclusion file"):
        prepare_corpus([source], tmp_path / "other", exclude=tmp_path / "gone.txt")


def test_shared_exclusion_file_drops_evaluation_sentences(tmp_path: Path, shared_data: Path) -> None:
    first = json.loads((shared_data / "data/sts/stsb-test.jsonl").open().readline())["sentence1"]
    source = write(tmp_path / "a.txt", [first, "an entirely new sentence about seventeen purple llamas"])
    exclude = shared_data / "data/captions/exclude.txt.gz"
    assert (
        prepare_corpus([source], tmp_path / "corpus", exclude=exclude, held_out=0).manifest["counts"][
            "excluded"
        ]
        == 1
    )
