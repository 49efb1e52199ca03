"""The caption generator: distinct, seeded, a prefix of itself, one to six segments, readable English."""

import re
from random import Random

import pytest

from captionbert.artifacts.errors import InputError
from captionbert.distill import scene_words as words
from captionbert.distill import scenes as generator
from captionbert.distill.scenes import draw_caption, scenes, write_scenes


def segments(caption: str) -> list[str]:
    return [part for part in re.split(r"[.!?;]\s*", caption) if part]


def test_captions_are_distinct_and_seeded() -> None:
    first = list(scenes(3000))
    assert len(set(first)) == 3000
    assert list(scenes(3000)) == first
    assert set(first).isdisjoint(scenes(300, seed=1))


def test_fewer_captions_are_the_first_of_more() -> None:
    assert list(scenes(50, seed=3)) == list(scenes(400, seed=3))[:50]


def test_one_to_six_segments_each_ended() -> None:
    captions = list(scenes(2000))
    counts = {len(segments(caption)) for caption in captions}
    assert counts == {1, 2, 3, 4, 5, 6}
    assert all(caption[-1] in ".!?" for caption in captions)
    assert {end for caption in captions for end in ".!?;" if end in caption} == set(".!?;")


def test_words_repeat_inside_a_caption() -> None:
    long = [caption for caption in scenes(1000) if len(segments(caption)) >= 4]
    nouns = set(words.PEOPLE + words.ANIMALS + words.OBJECTS)
    repeated = [
        c for c in long if any(len(re.findall(rf"\b{re.escape(noun)}\b", c.lower())) > 1 for noun in nouns)
    ]
    assert len(repeated) > 0.9 * len(long)


def test_no_segment_is_said_twice() -> None:
    for caption in scenes(1000):
        parts = [part.lower() for part in segments(caption)]
        assert len(set(parts)) == len(parts)


def test_a_duplicate_draw_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [f"caption {i}." for i in range(5)]
    monkeypatch.setattr(generator, "draw_caption", lambda rng: rng.choice(few))
    assert sorted(scenes(5)) == few


def test_exhausted_words_and_negative_counts_are_input_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="0 or more"):
        list(scenes(-1))
    monkeypatch.setattr(generator, "draw_caption", lambda rng: "always this.")
    with pytest.raises(InputError, match="only 1 distinct"):
        list(scenes(2))


def test_a_failed_write_leaves_no_file(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "draw_caption", lambda rng: "always this.")
    with pytest.raises(InputError):
        write_scenes(tmp_path / "captions.txt", 2)
    assert list(tmp_path.iterdir()) == []


def test_written_file_has_one_caption_a_line(tmp_path) -> None:
    write_scenes(tmp_path / "captions.txt", 20, seed=5)
    assert (tmp_path / "captions.txt").read_text(encoding="utf-8").splitlines() == list(scenes(20, seed=5))


@pytest.mark.parametrize(
    ("rule", "word", "bent"),
    [
        (words.article, "old man", "an old man"),
        (words.article, "uniform", "a uniform"),
        (words.plural, "police officer", "police officers"),
        (words.plural, "loaf of bread", "loaves of bread"),
        (words.plural, "puppy", "puppies"),
        (words.plural, "monkey", "monkeys"),
        (words.plural, "fox", "foxes"),
        (words.third_person, "watch", "watches"),
        (words.third_person, "do a handstand", "does a handstand"),
        (words.third_person, "play chess", "plays chess"),
        (words.progressive, "run toward", "running toward"),
        (words.progressive, "chase", "chasing"),
        (words.progressive, "eat lunch", "eating lunch"),
    ],
)
def test_rules_bend_words(rule, word: str, bent: str) -> None:
    assert rule(word) == bent


def test_tables_have_no_blank_and_no_repeated_phrase() -> None:
    for name in dir(words):
        table = getattr(words, name)
        if name.isupper() and isinstance(table, tuple):
            assert all(phrase and phrase == phrase.strip() for phrase in table), name
            assert len(set(table)) == len(table), name


def test_no_wrong_article_is_written() -> None:
    text = " ".join(draw_caption(Random(seed)) for seed in range(500)).lower()
    assert re.search(r"\ba [aeio]", text) is None
    assert re.search(r"\ban [^aeiou]", text) is None
