"""A figure of show.py as one HTML file that needs nothing else: no network, no font, no library.

The page can be read without its script, which only adds that any word can be chosen to see where its head looks.
"""

import json
from html import escape
from typing import Any

import numpy as np

from captionbert.probes.show import Figure

TARGETS = 6  # places listed for a word


def page(figure: Figure, name: str) -> str:
    """The figure as one HTML document; `name` says which model it is."""
    layer, head = figure.head
    which = "the designated head" if figure.configured else "a head that was asked for"
    facts = f"{name}: layer {layer}, head {head} ({which})"
    note = " The text was longer; its beginning is shown." if figure.cut else ""
    if not figure.addressed:
        note += " This model does not read addresses; they are shown as a structured model would have them."
    return _PAGE.format(
        style=_STYLE,
        digits=escape(figure.digits),
        facts=escape(facts),
        note=escape(note.strip()),
        segments="\n".join(_segment(figure, places) for places in _segment_places(figure)),
        lookups=_lookups(figure),
        data=_script_json(_data(figure)),
        script=_SCRIPT,
    )


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(figure: Figure) -> dict[str, Any]:
    """What the script needs: shown names, and for every token the places that it looks at most, with per mille."""
    targets = []
    for row in figure.attention:
        best = np.argsort(-row, kind="stable")[:TARGETS]
        targets.append([[int(t), round(float(row[t]), 4)] for t in best])
    return {
        "names": [_plain(token) for token in figure.tokens],
        "targets": targets,
        "lookups": figure.lookups,
    }


def _plain(token: str) -> str:
    return token.removeprefix("##") if token != "##" else token


def _segment_places(figure: Figure) -> list[list[int]]:
    """The places of each line of the page: a segment, or the special tokens between segments."""
    lines: list[list[int]] = []
    for place, segment in enumerate(figure.segments):
        if lines and figure.segments[lines[-1][-1]] == segment:
            lines[-1].append(place)
        else:
            lines.append([place])
    return lines


def _segment(figure: Figure, places: list[int]) -> str:
    address, number = figure.addresses[places[0]], figure.segments[places[0]]
    if number < 0:
        label = '<span class="none">no address</span>'
    elif not address:
        label = f'<b>no address left</b><span class="none">segment {number}</span>'
    else:
        label = f'<b class="address">{address}</b><span class="none">segment {number}</span>'
    words = "".join(_word(figure, run) for run in _word_places(figure, places))
    return f'<li class="segment"><div class="label">{label}</div><div class="words">{words}</div></li>'


def _word_places(figure: Figure, places: list[int]) -> list[list[int]]:
    """The places of a segment, word by word."""
    words: list[list[int]] = []
    for place in places:
        if words and figure.first[place] == figure.first[words[-1][-1]]:
            words[-1].append(place)
        else:
            words.append([place])
    return words


def _word(figure: Figure, places: list[int]) -> str:
    return f'<span class="word">{"".join(_token(figure, place) for place in places)}</span>'


def _token(figure: Figure, place: int) -> str:
    kinds = ["token"]
    says = [f"token {place}"]
    if figure.special[place]:
        kinds.append("special")
    elif figure.first[place] != place:
        kinds.append("piece")
    if place in figure.lookups:
        kinds.append("query")
        says.append(f"a repeated word; its record is token {figure.lookups[place]}")
    elif figure.record[place] and place in figure.lookups.values():
        kinds.append("record")
        says.append("a record: the first occurrence of a word that comes again")
    title = escape("; ".join(says), quote=True)
    text = escape(_plain(figure.tokens[place]))
    return f'<button type="button" class="{" ".join(kinds)}" data-t="{place}" title="{title}">{text}</button>'


def _lookups(figure: Figure) -> str:
    """A line for every query: where it looks, and whether that is the record."""
    if not figure.lookups:
        return '<p class="empty">No word of three letters or more occurs twice, so there is nothing to look up.</p>'
    rows = "\n".join(_lookup(figure, query, record) for query, record in sorted(figure.lookups.items()))
    right = sum(_finds(figure, query) for query in figure.lookups)
    return (
        f'<p class="score"><b>{right}</b> of <b>{len(figure.lookups)}</b> repeated pieces look at the record first.</p>'
        f'<ul class="lookups">{rows}</ul>'
    )


def _lookup(figure: Figure, query: int, record: int) -> str:
    row = figure.attention[query]
    right, probability = _finds(figure, query), float(row[record])
    top = int(np.where(np.arange(len(row)) == record, -1, row).argmax())  # of the others
    verdict = (
        '<span class="mark" aria-label="right">✓</span>'
        if right
        else f'<span class="mark wrong">✗ looks at {_named(figure, top)} {float(row[top]):.3f}</span>'
    )
    return (
        f'<li class="{"hit" if right else "miss"}"><span class="pair">{_named(figure, query)} '
        f'<span aria-hidden="true">→</span> {_named(figure, record)}</span>'
        f'<span class="bar" role="img" aria-label="probability {probability:.3f}">'
        f'<i style="width:{probability:.1%}"></i></span>'
        f'<span class="number">{probability:.3f}</span>{verdict}</li>'
    )


def _finds(figure: Figure, query: int) -> bool:
    """Whether the query's record has more attention than any other token, as the lookup probe counts."""
    row, record = figure.attention[query], figure.lookups[query]
    return bool(row[record] > np.delete(row, record).max(initial=0))


def _named(figure: Figure, place: int) -> str:
    return f"<b>{escape(_plain(figure.tokens[place]))}</b><sub>{place}</sub>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Where the head looks</title>
<style>{style}</style>
</head>
<body>
<main>
<header>
<h1>Where the head looks</h1>
<p class="facts">{facts}</p>
<p class="note">{note}</p>
</header>
<section aria-labelledby="text">
<h2 id="text">The caption</h2>
<p class="hint">A line is a segment, with its address of {digits}. Choose a word to see where the head
looks from it.</p>
<ul class="legend"><li><span class="token record">word</span> record: last piece of a first occurrence</li>
<li><span class="token query">word</span> repeated word</li>
<li><span class="token piece">ing</span> later piece of a word</li></ul>
<ol class="segments">
{segments}
</ol>
<div id="panel" class="panel" aria-live="polite" hidden></div>
</section>
<section aria-labelledby="lookups">
<h2 id="lookups">Lookups</h2>
<p class="hint">From each piece of a repeated word: its record, and the attention probability on it. Small numbers count
tokens from 0.</p>
{lookups}
</section>
</main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""

_STYLE = """
:root{--paper:#fbfaf7;--card:#fff;--ink:#1d1f23;--soft:#62666e;--line:#dcdad3;--query:#0b5cad;--query-bg:#e3effb;
--record:#9a5b00;--heat:214,120,0;--wrong:#b3261e}
@media (prefers-color-scheme:dark){:root{--paper:#15171a;--card:#1d2024;--ink:#e8e6e1;--soft:#9da2ab;--line:#34383f;
--query:#8cc2ff;--query-bg:#17324d;--record:#ffc069;--heat:255,170,60;--wrong:#ff8a80}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:60rem;margin:0 auto;padding:1.25rem 1rem 3rem}
h1{font-size:1.5rem;line-height:1.2;margin:0 0 .25rem}
h2{font-size:1.1rem;margin:1.75rem 0 .25rem}
p{margin:.25rem 0}
.facts,.hint,.note,.none{color:var(--soft)}
.facts,.note{overflow-wrap:anywhere}
.note:empty{display:none}
.hint{font-size:.9rem}
ul,ol{list-style:none;padding:0;margin:.5rem 0}
.legend{display:flex;flex-wrap:wrap;gap:.35rem 1.1rem;font-size:.85rem;color:var(--soft);align-items:center}
.legend .token{min-height:0}
.segment{display:grid;grid-template-columns:6.5rem 1fr;gap:.25rem .75rem;padding:.5rem 0;
border-top:1px solid var(--line)}
.label{display:flex;flex-direction:column;font-size:.8rem;line-height:1.3;padding-top:.3rem}
.address{font:600 1rem/1.3 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:nowrap}
.words{display:flex;flex-wrap:wrap;gap:.3rem .35rem;min-width:0}
.token{font:inherit;color:inherit;background:rgba(var(--heat),var(--p,0));border:1px solid transparent;
border-radius:.4rem;padding:.1rem .4rem;min-height:2rem;min-width:1.5rem;max-width:100%;overflow-wrap:anywhere;
display:inline-block}
button.token{cursor:pointer}
button.token:hover{border-color:var(--soft)}
button.token:focus-visible{outline:2px solid var(--query);outline-offset:1px}
.token.special{color:var(--soft);font-size:.8rem}
.word{display:inline-flex;flex-wrap:wrap;min-width:0;max-width:100%}
.token.piece{border-left:1px dashed var(--soft);
border-top-left-radius:0;border-bottom-left-radius:0}
.token.record{border-color:var(--record);box-shadow:inset 0 -3px 0 var(--record)}
.token.query{color:var(--query);background:linear-gradient(rgba(var(--heat),var(--p,0)),rgba(var(--heat),var(--p,0))),
var(--query-bg)}
.token[aria-pressed=true]{outline:2px solid var(--ink);outline-offset:1px}
.panel{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:.6rem .8rem;margin:.75rem 0;
position:sticky;bottom:.5rem}
.panel h3{font-size:1rem;margin:0 0 .3rem;overflow-wrap:anywhere}
.panel li,.lookups li{display:grid;grid-template-columns:minmax(0,14rem) minmax(5rem,12rem) 3.2rem;
gap:.15rem .6rem;align-items:center;padding:.2rem 0}
.lookups li{grid-template-columns:minmax(0,14rem) 12rem 3.2rem minmax(1.5rem,1fr);border-top:1px solid var(--line)}
.pair{overflow-wrap:anywhere}
sub{color:var(--soft);font-size:.7rem;margin-left:.1rem}
.bar{height:.6rem;border-radius:.3rem;background:var(--line);overflow:hidden;display:block}
.bar i{display:block;height:100%;background:rgb(var(--heat))}
.number{font-variant-numeric:tabular-nums;text-align:right;font-size:.9rem}
.mark{color:var(--soft);font-size:.9rem;overflow-wrap:anywhere}
.wrong{color:var(--wrong)}
.empty{color:var(--soft)}
@media (max-width:40rem){.panel li{grid-template-columns:minmax(0,1fr) 5rem 2.8rem}
.segment{grid-template-columns:1fr}
.label{flex-direction:row;gap:.6rem;align-items:baseline;padding:0}
.lookups li{grid-template-columns:minmax(0,1fr) 5rem 2.8rem 1.2rem}
.lookups li.miss .mark{grid-column:1/-1}
.token{min-height:2.25rem}}
@media print{.panel{position:static}}
"""

_SCRIPT = """
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const panel = document.getElementById("panel");
  const buttons = [...document.querySelectorAll("button[data-t]")];
  const make = (tag, text, kind) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (kind) node.className = kind;
    return node;
  };
  const named = (node, place) => {
    node.append(make("b", data.names[place]), make("sub", String(place)));
    return node;
  };
  let chosen = -1;
  const clear = () => {
    for (const b of buttons) { b.style.removeProperty("--p"); b.setAttribute("aria-pressed", "false"); }
  };
  const choose = (place) => {
    clear();
    if (chosen === place) { chosen = -1; panel.hidden = true; return; }
    chosen = place;
    buttons[place].setAttribute("aria-pressed", "true");
    const list = make("ul");
    for (const [target, share] of data.targets[place]) {
      buttons[target].style.setProperty("--p", String(0.08 + 0.42 * share));
      const line = make("li");
      const bar = make("span", undefined, "bar"), inner = make("i");
      inner.style.width = (100 * share) + "%";
      bar.append(inner);
      const name = named(make("span", undefined, "pair"), target);
      if (data.lookups[place] === target) name.append(make("span", " its record", "none"));
      line.append(name, bar, make("span", share.toFixed(3), "number"));
      list.append(line);
    }
    panel.replaceChildren(named(make("h3", "From "), place), list);
    panel.hidden = false;
  };
  for (const b of buttons) b.addEventListener("click", () => choose(Number(b.dataset.t)));
  const first = Object.keys(data.lookups)[0];
  if (first !== undefined) choose(Number(first));
})();
"""
