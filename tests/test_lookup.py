"""The lookup probe: against attention weights, on a head that finds every record and on one that does not."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from captionbert.artifacts.errors import InputError
from captionbert.probes import lookup as probe
from captionbert.probes.lookup import parse_head, probe_lookup, read_queries, render, save_arrays, summarise
from captionbert.probes.texts import Sample
from captionbert.probes.word_records import Vocabulary, lookup_targets


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(tiny_tokenizer_dir)


@pytest.fixture(scope="module")
def drawn(captions: list[str]) -> Sample:
    """40 paragraphs; "zebraing" is a word of eight pieces, three paragraphs have more than 128 tokens."""
    texts = [
        " ".join(captions[i : i + 1 + i % 4]) + f" the zebraing {captions[i]} zebraing!" for i in range(37)
    ]
    texts += [" ".join(captions[i : i + 30]) for i in range(3)]
    return Sample(texts, np.arange(40) * 7 + 1, {"c.txt": "0" * 64}, of=300, seed=0)


def queries(tokenizer, drawn: Sample):
    ids = tokenizer(drawn.texts)["input_ids"]
    return ids, lookup_targets(ids, Vocabulary.from_tokenizer(tokenizer))


@pytest.mark.parametrize("preset", ["whole-key-lookup", "hierarchical", "relative-16"])
def test_readings_are_those_of_the_attention_weights(structured_model, tokenizer, drawn, preset: str) -> None:
    model = structured_model(preset)
    ids, targets = queries(tokenizer, drawn)
    heads = [(1, 1), (2, 0), (3, 1)]
    readings = read_queries(model, ids, targets, heads, batch_tokens=300)
    for k, (layer, head) in enumerate(heads):
        for q in range(0, len(targets), 17):
            row, position, record = (int(x[q]) for x in (targets.row, targets.position, targets.record))
            with torch.no_grad():
                output = model(torch.tensor([ids[row]]), output_attentions=True)
            weights = output.attentions[layer - 1][0, head, position].numpy()
            assert readings.probability[k, q] == pytest.approx(weights[record], abs=1e-5)
            assert readings.after[k, q] == pytest.approx(weights[record + 1], abs=1e-5)
            assert readings.top_one[k, q] == (weights[record] > np.delete(weights, record).max())
            assert readings.tokens[q] == len(ids[row])
    with torch.no_grad():
        alone = model(torch.tensor([ids[5]])).pooler_output[0].numpy()
    np.testing.assert_allclose(readings.vectors[5], alone, atol=1e-5)


def test_many_queries_take_several_passes_and_change_nothing(
    structured_model, tokenizer, drawn, monkeypatch
) -> None:
    model = structured_model()
    ids, targets = queries(tokenizer, drawn)
    whole = read_queries(model, ids, targets, [(2, 0), (1, 1)])
    monkeypatch.setattr(probe, "_MOST_NUMBERS", 500)
    parts = read_queries(model, ids, targets, [(2, 0), (1, 1)], batch_tokens=300)
    np.testing.assert_allclose(parts.probability, whole.probability, atol=1e-6)
    np.testing.assert_allclose(parts.vectors, whole.vectors, atol=1e-5)


def test_a_head_that_reads_records_is_seen_to(structured_model, tokenizer, drawn) -> None:
    result = probe_lookup(structured_model(reads=True), tokenizer, drawn, max_length=256)
    report = result.report
    table = report["lookup"]
    assert report["head"] == {"layer": 2, "head": 0, "chosen_by": "configured"}
    assert report["target_agreement"] == 1.0
    assert table["all"]["top_one"]["query_mean"] == 1.0
    assert table["all"]["probability"]["query_mean"] > 0.9
    assert table["all"]["probability_after"]["query_mean"] < 0.05
    json.dumps(report, allow_nan=False)


def test_the_table_is_that_of_the_raw_arrays(structured_model, tokenizer, drawn) -> None:
    result = probe_lookup(structured_model(), tokenizer, drawn, max_length=256)
    table, arrays = result.report["lookup"], result.arrays
    p, row = arrays["probability"][0], arrays["row"]
    chosen = {
        "all": p > -1,
        "ending": arrays["ending"],
        "non-ending": ~arrays["ending"],
        "continuation": arrays["continuation"],
        "over 128 tokens": arrays["tokens"] > 128,
    }
    for name, these in chosen.items():
        assert these.any()
        block = table[name]
        assert block["queries"] == these.sum()
        assert block["captions"] == len(set(row[these].tolist()))
        assert block["probability"]["query_mean"] == pytest.approx(p[these].mean(), abs=1e-6)
        assert block["probability"]["median"] == pytest.approx(np.median(p[these]), abs=1e-6)
        by_caption = [p[these & (row == r)].mean() for r in set(row[these].tolist())]
        assert block["probability"]["caption_mean"] == pytest.approx(np.mean(by_caption), abs=1e-6)
        assert block["uniform"]["query_mean"] == pytest.approx((1 / arrays["tokens"][these]).mean())
    assert set(row) <= set(drawn.rows)
    assert arrays["sample_rows"].tolist() == drawn.rows.tolist()


def test_chance_stays_near_uniform(structured_model, tokenizer, drawn) -> None:
    table = probe_lookup(structured_model("hierarchical"), tokenizer, drawn).report["lookup"]
    assert table["all"]["top_one"]["query_mean"] < 0.3
    assert table["all"]["probability"]["query_mean"] == pytest.approx(
        table["all"]["uniform"]["query_mean"], rel=0.3
    )


def test_a_tie_is_a_miss(structured_model, tokenizer, drawn) -> None:
    model = structured_model("hierarchical")
    with torch.no_grad():
        for parameter in model.layers[1].attention.qkv.parameters():
            parameter.zero_()  # all scores 0: the record has as much as every other token
    table = probe_lookup(model, tokenizer, drawn).report["lookup"]
    assert table["all"]["top_one"]["query_mean"] == 0.0
    assert table["all"]["probability"]["query_mean"] == pytest.approx(table["all"]["uniform"]["query_mean"])


def test_a_model_with_keys_at_endings_is_asked_there(structured_model, tokenizer, drawn) -> None:
    report = probe_lookup(structured_model("key-endings"), tokenizer, drawn).report
    assert (report["queries"], report["lookup"]["non-ending"]["queries"]) == ("endings", 0)
    pieces = probe_lookup(structured_model(), tokenizer, drawn).report
    assert pieces["queries"] == "pieces"
    assert pieces["lookup"]["ending"]["queries"] == report["lookup"]["all"]["queries"]
    assert pieces["lookup"]["non-ending"]["queries"] > 0


def test_a_model_of_nan_is_refused(structured_model, tokenizer, drawn) -> None:
    model = structured_model()
    with torch.no_grad():
        model.layers[0].feed_forward.up.weight[0, 0] = torch.nan
    with pytest.raises(InputError, match="the model's outputs are not finite: its weights hold NaN"):
        probe_lookup(model, tokenizer, drawn)


def test_a_model_with_other_records_does_not_agree(structured_model, tokenizer, drawn, monkeypatch) -> None:
    from captionbert import modeling_captionbert

    right = modeling_captionbert.record_positions
    monkeypatch.setattr(modeling_captionbert, "record_positions", lambda *given: right(*given).roll(1, 1))
    report = probe_lookup(structured_model(), tokenizer, drawn).report
    assert report["target_agreement"] < 1
    assert "must be 1" in render(report)


def test_a_search_reads_every_head_and_is_called_one(structured_model, tokenizer, drawn) -> None:
    result = probe_lookup(structured_model(reads=True), tokenizer, drawn, search=True)
    best = result.report["search"]["best_of_layer"]
    assert [b["layer"] for b in best] == [1, 2, 3]
    assert best[1]["head"] == 0
    assert best[1]["top_one"] == 1.0
    assert result.report["search"]["note"].startswith("search:")
    assert "not the configured head" in render(result.report)
    assert result.arrays["heads"].tolist() == [[1, 0], [1, 1], [2, 0], [2, 1], [3, 0], [3, 1]]
    assert result.arrays["configured"].tolist() == [False, False, True, False, False, False]
    assert result.report["lookup"]["all"]["top_one"]["query_mean"] == 1.0
    scores = result.arrays["top_one"].mean(axis=1)
    assert [b["top_one"] for b in best] == [max(scores[i : i + 2]) for i in (0, 2, 4)]


def test_a_model_without_a_designated_head_needs_one(structured_model, tokenizer, drawn) -> None:
    model = structured_model("relative-16")
    with pytest.raises(
        InputError, match=r"position_type 'rotary' has no designated head.*--head.*--search-heads"
    ):
        probe_lookup(model, tokenizer, drawn)
    report = probe_lookup(model, tokenizer, drawn, head=(3, 1)).report
    assert report["head"] == {"layer": 3, "head": 1, "chosen_by": "given"}
    assert report["target_agreement"] is None
    report = probe_lookup(model, tokenizer, drawn, search=True).report
    assert "lookup" not in report
    assert len(report["search"]["best_of_layer"]) == 3
    with pytest.raises(InputError, match=r"head 4:0: this model has layers 1\.\.3 with heads 0\.\.1"):
        probe_lookup(model, tokenizer, drawn, head=(4, 0))
    with pytest.raises(InputError, match=r"head '2': expected LAYER:HEAD"):
        parse_head("2")


def test_lengths_and_captions_are_checked(structured_model, tokenizer, drawn) -> None:
    with pytest.raises(InputError, match="max_length is 300: this model reads 2 to 256 tokens"):
        probe_lookup(structured_model(), tokenizer, drawn, max_length=300)
    plain = Sample(["a cat", "a dog"], np.arange(2), {"c.txt": ""}, 2, 0)
    with pytest.raises(InputError, match=r"c\.txt: none of 2 captions repeats"):
        probe_lookup(structured_model(), tokenizer, plain)


def test_the_query_variety_is_printed_before_the_numbers(structured_model, tokenizer, drawn) -> None:
    report = probe_lookup(structured_model(), tokenizer, drawn).report
    lines = render(report).splitlines()
    variety = next(i for i, line in enumerate(lines) if line.startswith("query variety: 40 rows; lengths"))
    table = next(i for i, line in enumerate(lines) if line.startswith("subset"))
    assert variety < table
    assert "effective rank" in lines[variety]
    assert "CV" in lines[variety]


def test_subsets_without_queries_are_shown_as_such(structured_model, tokenizer, captions) -> None:
    texts = [f"{c} {c}" for c in captions[:6]]
    short = Sample(texts, np.arange(6), {"c.txt": ""}, 6, 0)
    report = probe_lookup(structured_model(), tokenizer, short).report
    assert report["lookup"]["over 128 tokens"] == {"queries": 0, "captions": 0}
    assert any(
        line.startswith("over 128 tokens") and line.rstrip().endswith("-")
        for line in render(report).splitlines()
    )


def test_arrays_are_written_and_read_back(structured_model, tokenizer, drawn, tmp_path: Path) -> None:
    result = probe_lookup(structured_model(), tokenizer, drawn)
    save_arrays(result, tmp_path / "q.npz")
    with np.load(tmp_path / "q.npz") as found:
        assert set(found) == set(result.arrays)
        np.testing.assert_array_equal(found["record"], result.arrays["record"])


def test_summary_takes_the_head_that_is_asked_for(structured_model, tokenizer, drawn) -> None:
    ids, targets = queries(tokenizer, drawn)
    readings = read_queries(structured_model(reads=True), ids, targets, [(1, 0), (2, 0)])
    assert summarise(readings, 1)["all"]["top_one"]["query_mean"] == 1.0
    assert summarise(readings, 0)["all"]["top_one"]["query_mean"] < 0.5
