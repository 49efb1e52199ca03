"""The page of a figure: whole without a network, escaped, and the same facts as the figure."""

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from captionbert.probes.page import TARGETS, page
from captionbert.probes.show import Figure, figure_of

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Text of buttons by place, every attribute, and whether the tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.buttons: dict[int, dict] = {}
        self.attributes: list[tuple[str, str, str | None]] = []
        self.counts: dict[str, int] = {}
        self._button: int | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "button":
            self._button = int(dict(attrs)["data-t"])
            self.buttons[self._button] = {"text": "", "class": dict(attrs)["class"].split()}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "button":
            self._button = None

    def handle_data(self, data):
        if self._button is not None:
            self.buttons[self._button]["text"] += data


@pytest.fixture
def figure(structured_model, tiny_tokenizer_dir: Path) -> Figure:
    tokenizer = Tokenizer.from_file(str(tiny_tokenizer_dir / "tokenizer.json"))
    return figure_of(
        structured_model(reads=True), tokenizer, "two dogs play. the cat waits; two dogs zebraing!"
    )


def data_of(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_page_shows_every_token_once_with_its_part(figure: Figure) -> None:
    reader = Reader(page(figure, "tiny"))
    assert reader.open == []
    assert [reader.buttons[t]["text"] for t in range(len(figure.tokens))] == [
        token.removeprefix("##") for token in figure.tokens
    ]
    for place, button in reader.buttons.items():
        assert ("query" in button["class"]) == (place in figure.lookups)
        assert ("record" in button["class"]) == (place in figure.lookups.values())
        assert ("special" in button["class"]) == figure.special[place]
        assert ("piece" in button["class"]) == (figure.first[place] != place)


def test_the_numbers_are_those_of_the_figure(figure: Figure) -> None:
    text = page(figure, "tiny")
    data = data_of(text)
    assert {int(q): r for q, r in data["lookups"].items()} == figure.lookups
    for place, targets in enumerate(data["targets"]):
        assert len(targets) == TARGETS
        shares = [share for _, share in targets]
        assert shares == sorted(shares, reverse=True)
        assert targets[0][0] == figure.attention[place].argmax()
        assert targets[0][1] == pytest.approx(figure.attention[place].max(), abs=1e-4)
    for query, record in figure.lookups.items():
        assert f">{figure.attention[query, record]:.3f}</span>" in text
    assert "<b>2</b> of <b>2</b> repeated pieces look at the record first" in text
    assert ">0 0 1<" in text
    assert "layer 2, head 0 (the designated head)" in text


def test_a_missed_record_says_where_the_head_looks(figure: Figure) -> None:
    query, record = next(iter(figure.lookups.items()))
    attention = figure.attention.copy()
    attention[query] = 0.0
    attention[query, 3] = 1.0
    text = page(dataclasses.replace(figure, attention=attention), "tiny")
    assert "<b>1</b> of <b>2</b> repeated pieces" in text
    assert f"looks at <b>{figure.tokens[3]}</b><sub>3</sub> 1.000" in text
    assert record != 3


def test_a_tie_is_a_miss_as_in_the_probe(figure: Figure) -> None:
    query, record = next(iter(figure.lookups.items()))
    attention = figure.attention.copy()
    attention[query] = 0.0
    attention[query, [record, record + 1]] = 0.5
    text = page(dataclasses.replace(figure, attention=attention), "tiny")
    assert "<b>1</b> of <b>2</b> repeated pieces" in text
    assert f"<sub>{record + 1}</sub> 0.500" in text


def test_nothing_comes_from_elsewhere_and_it_fits_a_phone(figure: Figure) -> None:
    text = page(figure, "tiny")
    reader = Reader(text)
    assert not any(name in ("src", "href", "action", "srcset") for _, name, _ in reader.attributes)
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttp", text)
    assert "width=device-width" in text
    assert "prefers-color-scheme:dark" in text
    assert {"html", "head", "main", "h1"} <= reader.counts.keys()


def test_text_is_escaped_wherever_it_stands(figure: Figure) -> None:
    bad = '</script><script>alert("x")</script>&amp;\u2028'
    tokens = [bad if i in (1, 3) else token for i, token in enumerate(figure.tokens)]
    text = page(dataclasses.replace(figure, tokens=tokens), '<img src=x onerror="y">')
    reader = Reader(text)
    assert reader.counts["script"] == 2
    assert "img" not in reader.counts
    assert reader.buttons[1]["text"] == reader.buttons[3]["text"] == bad
    assert data_of(text)["names"][1] == bad
    block = text.split('id="data">')[1].split("</script>")[0]
    assert not set("<>&\u2028") & set(block)  # "<!--<script" would reach past the end of the script too
    assert reader.open == []


def test_a_caption_without_a_repeated_word_and_one_that_was_cut(
    structured_model, tiny_tokenizer_dir: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_tokenizer_dir / "tokenizer.json"))
    text = page(figure_of(structured_model(), tokenizer, "a cat"), "tiny")
    assert "nothing to look up" in text
    text = page(
        figure_of(structured_model("relative-16"), tokenizer, "a cat " * 9, head=(1, 0), max_length=9), "tiny"
    )
    assert "The text was longer; its beginning is shown." in text
    assert "does not read addresses" in text
    assert "a head that was asked for" in text
