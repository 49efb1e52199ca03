"""The stratified sample: disjoint, proportional to chunk and length, seeded, and never two equal captions."""

from pathlib import Path

import numpy as np
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.consensus.captions import Corpus, prepare_corpus
from captionbert.consensus.sampling import apportion, captions_for, sample_sizes, stratified_sample


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    short = [f"cat {i}" for i in range(600)]
    long = [f"a considerably longer caption about a dog number {i}" for i in range(400)]
    mixed = np.random.default_rng(0).permutation(short + long).tolist()
    (folder / "a.txt").write_text("\n".join(mixed + short[:50]))
    return prepare_corpus([str(folder / "a.txt")], folder / "c", held_out=30, deduplicate=False)


def test_samples_share_neither_row_nor_text_nor_held_out(corpus: Corpus) -> None:
    sample = stratified_sample(corpus, fit_rows=500, chunk_rows=100)
    assert (len(sample.fit), len(sample.score)) == (500, 194)
    assert not set(corpus.texts(sample.fit)) & set(corpus.texts(sample.score))
    assert not corpus.held_out[np.concatenate([sample.fit, sample.score])].any()
    assert np.array_equal(sample.fit, np.unique(sample.fit))


def test_strata_are_represented_in_proportion(corpus: Corpus) -> None:
    sample = stratified_sample(corpus, fit_rows=300, chunk_rows=250)
    eligible = np.flatnonzero((corpus.groups == np.arange(corpus.rows)) & ~corpus.held_out)
    lengths = corpus.character_lengths()
    for rows, total in ((sample.fit, 300), (sample.score, 194)):
        for part in (lambda r: r // 250, lambda r: lengths[r] > 20):
            wanted = np.bincount(part(eligible)) * total / len(eligible)
            # one row of rounding a stratum; an unstratified sample strays by six and more
            np.testing.assert_allclose(np.bincount(part(rows), minlength=len(wanted)), wanted, atol=3)


def test_sample_is_seeded(corpus: Corpus) -> None:
    one, two, other = (stratified_sample(corpus, fit_rows=200, chunk_rows=100, seed=s) for s in (1, 1, 2))
    assert np.array_equal(one.fit, two.fit)
    assert np.array_equal(one.score, two.score)
    assert not np.array_equal(one.fit, other.fit)


def test_a_small_corpus_gives_what_it_has_and_says_so(corpus: Corpus) -> None:
    sample = stratified_sample(corpus, fit_rows=24_000, chunk_rows=100)
    assert sample.how["asked"] == 24_000
    assert sample.how["fit_rows"] == len(sample.fit) == sample.how["eligible"] - sample.how["score_rows"]


def test_too_few_captions(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    small = prepare_corpus([str(tmp_path / "a.txt")], tmp_path / "c", held_out=0)
    with pytest.raises(InputError, match="2 distinct captions outside the held-out part"):
        stratified_sample(small, fit_rows=10, chunk_rows=100)


def test_sizes_by_hand() -> None:
    assert sample_sizes(100, 24_000) == (80, 20)  # a fifth is kept to score
    assert sample_sizes(50_000, 24_000) == (24_000, 4000)
    assert sample_sizes(25_000, 24_000) == (21_000, 4000)
    assert sample_sizes(10, 3) == (3, 2)


def test_captions_for_so_many_fit_rows() -> None:
    for rows in (1, 3, 80, 3840, 7680, 15_999, 16_000, 40_000):
        assert sample_sizes(captions_for(rows), rows)[0] == rows
        assert sample_sizes(captions_for(rows) - 1, 10**9)[0] < rows


def test_apportion_by_hand() -> None:
    assert apportion(np.array([10, 20, 70]), 10).tolist() == [1, 2, 7]
    assert apportion(np.array([1, 1, 1]), 2).tolist() == [1, 1, 0]
    assert apportion(np.array([3, 5]), 8).tolist() == [3, 5]
    random = np.random.default_rng(0)
    for _ in range(200):
        sizes = random.integers(1, 50, random.integers(1, 20))
        total = int(random.integers(0, sizes.sum() + 1))
        shares = apportion(sizes, total)
        assert shares.sum() == total
        assert (shares <= sizes).all()
