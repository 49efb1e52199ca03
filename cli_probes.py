"""`captionbert probe NAME`: the probes of a corpus or of a frozen model. Thin, as cli.py is."""

import argparse
from pathlib import Path
from typing import Any

from captionbert.artifacts.errors import InputError
from captionbert.cli_options import (
    asymmetric_options,
    binding_options,
    coverage_options,
    documents_options,
    geometry_options,
    interventions_options,
    lookup_options,
    show_example,
    show_options,
    some,
    verb_parser,
)

OK = 0
Options = argparse.Namespace


def probe_options(parser: argparse.ArgumentParser) -> None:
    """Every probe, each with its options."""
    parser.description = (
        "Probes of a corpus, of frozen models side by side, or of one with structured positions."
    )
    show_example(parser, "probe lookup runs/cats/run --captions paragraphs.txt")
    kinds = parser.add_subparsers(dest="probe", metavar="PROBE", required=True)
    command = "probe coverage paragraphs.txt --json coverage.json"
    coverage_options(verb_parser(kinds, "coverage", probe_coverage, command))
    command = "probe lookup runs/cats/run --captions paragraphs.txt --search-heads --json lookup.json"
    lookup_options(verb_parser(kinds, "lookup", probe_lookup, command))
    command = "probe interventions runs/cats/run --captions paragraphs.txt --dev-pairs stsb-dev.jsonl"
    interventions_options(verb_parser(kinds, "interventions", probe_interventions, command))
    command = 'probe show "A dog runs. The dog sleeps." --model runs/cats/run --html dog.html'
    show_options(verb_parser(kinds, "show", probe_show, command))
    command = "probe binding swaps.jsonl --models runs/cats/model,packaged:minilm --json binding.json"
    binding_options(verb_parser(kinds, "binding", probe_binding, command))
    command = (
        "probe asymmetric stsb-dev.jsonl --queries runs/cats/model --documents packaged:mpnet --dims 64,256"
    )
    asymmetric_options(verb_parser(kinds, "asymmetric", probe_asymmetric, command))
    command = "probe documents cats.txt --models runs/cats/model,packaged:minilm --lengths 64,1024,8192"
    documents_options(verb_parser(kinds, "documents", probe_documents, command))
    command = "probe geometry cats.txt news.txt --models runs/cats/model,consensus:runs/cats/consensus"
    geometry_options(verb_parser(kinds, "geometry", probe_geometry, command))


def probe_coverage(options: Options) -> int:
    """Lengths, segments and repeated words of a corpus: what it offers to structured positions."""
    from captionbert.consensus.packaged import load_tokenizer
    from captionbert.probes.coverage import measure, render
    from captionbert.probes.texts import Captions

    tokenizer = load_tokenizer(options.tokenizer)
    captions = Captions(options.corpus, options.column)
    report = measure(captions.blocks(), tokenizer, options.max_length)
    report |= {"corpora": captions.identity, "tokenizer": options.tokenizer, "blank_rows": captions.skipped}
    return _save_and_show(options, report, render(report))


def probe_lookup(options: Options) -> int:
    """Does the designated head find the first occurrence of a repeated word?"""
    from captionbert.probes.lookup import parse_head, probe_lookup, render

    head = parse_head(options.head) if options.head is not None else None
    model, tokenizer = _open_model(options)
    rest = some(options, "max_length", "batch_tokens")
    sample = _draw_captions(options)
    probe = probe_lookup(model, tokenizer, sample, head=head, search=options.search_heads, **rest)
    if options.arrays is not None:
        from captionbert.probes.lookup import save_arrays

        save_arrays(probe, options.arrays)
    return _save_and_show(options, probe.report, render(probe.report))


def probe_interventions(options: Options) -> int:
    """Take one part of a trained model away at a time, and measure what falls."""
    from captionbert.probes.interventions import gather, probe_interventions, registered_seed, render
    from captionbert.probes.lookup import parse_head

    head = parse_head(options.head) if options.head is not None else None
    seed, note = options.seed_of_start, ""
    if seed is None:
        seed, note = registered_seed(options.model) or (None, "")
    model, tokenizer = _open_model(options)
    rest = some(options, "dev_pairs", "consensus", "max_length")
    material = gather(model, tokenizer, _draw_captions(options), head=head, **rest)
    report = probe_interventions(
        model, material, seed=seed, seed_note=note, batch_tokens=options.batch_tokens
    )
    return _save_and_show(options, report, render(report))


def probe_show(options: Options) -> int:
    """One caption as a page: its words, addresses and records, and where the head looks."""
    from captionbert.artifacts.files import publish_file
    from captionbert.probes.lookup import parse_head
    from captionbert.probes.page import page
    from captionbert.probes.show import figure_of

    head = parse_head(options.head) if options.head is not None else None
    model, tokenizer = _open_model(options)
    figure = figure_of(model, tokenizer, options.text, head=head, max_length=options.max_length)
    with publish_file(options.html) as temporary:
        temporary.write_text(page(figure, options.model.resolve().name), encoding="utf-8")
    print(f"{options.html}: {len(figure.tokens)} tokens, {len(figure.lookups)} lookups; open it in a browser")
    return OK


def probe_binding(options: Options) -> int:
    """Does a vector tell a caption from a copy with one word or relation changed?"""
    from captionbert.probes.binding import probe_binding, read_binding, render, save_arrays

    _refuse_twice(options.files)
    files = [read_binding(file) for file in options.files]
    probe = probe_binding(_open_models(options), files, seed=options.seed)
    status = _save_and_show(options, probe.report, render(probe.report))
    if options.arrays is not None:
        save_arrays(probe, options.arrays)
    return status


def probe_asymmetric(options: Options) -> int:
    """Spearman with queries by one model and documents by another of the same frame."""
    from captionbert.probes.asymmetric import probe_asymmetric, render
    from captionbert.probes.scored_pairs import read_pairs

    _refuse_twice(options.files)
    files = [read_pairs(file) for file in options.files]
    given = [options.queries, options.documents]
    queries, documents = _open_models(options, given)
    report = probe_asymmetric(queries, documents, files, dims=options.dims)
    return _save_and_show(options, report, render(report))


def probe_documents(options: Options) -> int:
    """Which of many long documents holds a caption? By model, length and way of reading."""
    from captionbert.consensus.packaged import load_tokenizer
    from captionbert.probes.document_sets import draw_task, read_pool
    from captionbert.probes.documents import check_settings, probe_documents

    pool = read_pool(options.captions, options.groups, options.column)
    encoders = _open_models(options)
    lengths = sorted(options.lengths)
    check_settings(lengths, options.rotary_factors, options.chunk, encoders)
    tokenizer = (
        encoders[0].tokenizer
        if options.tokenizer is None
        else load_tokenizer(options.tokenizer).backend_tokenizer
    )
    if tokenizer is None:
        raise InputError(f"{encoders[0].name}: has no tokenizer to measure documents with; give --tokenizer")
    task = draw_task(
        pool,
        tokenizer,
        lengths=lengths,
        documents=options.documents,
        queries=options.queries or options.documents,
        grouped=options.groups is not None,
        **some(options, "seed", "split"),
    )
    # Hours of work are shown line by line: whatever happens then, what was measured stands above.
    report = probe_documents(
        encoders, task, tokenizer, chunk=options.chunk, factors=options.rotary_factors, say=_say
    )
    return _save(options, report)


def probe_geometry(options: Options) -> int:
    """Effective rank and CV of several models on the same captions."""
    from captionbert.probes.geometry_table import probe_geometry, render
    from captionbert.probes.texts import sample

    _refuse_twice(options.files)
    samples = {file: sample(file, options.rows, options.seed, options.column) for file in options.files}
    report = probe_geometry(_open_models(options), samples, seed=options.seed)
    return _save_and_show(options, report, render(report))


def _open_models(options: Options, words: list[str] | None = None) -> Any:
    """The models of --models, or those of `words`, frozen; all of them before any work."""
    from captionbert.distill.encoders import open_encoders

    return open_encoders(words or options.models, **some(options, "dtype", "trust_remote_code"))


def _refuse_twice(files: list[str]) -> None:
    """A file given twice would count twice."""
    places = [Path(file).resolve() for file in files]
    for file, place in zip(files, places):
        if places.count(place) > 1:
            raise InputError(f"{file}: given more than once; each file counts once")


def _say(line: str) -> None:
    print(line, flush=True)


def _open_model(options: Options) -> tuple[Any, Any]:
    """The frozen model and the tokenizer of a run, a checkpoint or an exported folder."""
    from captionbert.export.load import load_encoder
    from captionbert.export.source import find_model_folder

    folder = find_model_folder(options.model)
    return load_encoder(folder, dtype=options.dtype, trust_remote_code=options.trust_remote_code)


def _draw_captions(options: Options) -> Any:
    from captionbert.probes.texts import sample

    return sample(options.captions, options.rows, options.seed, options.column)


def _save_and_show(options: Options, report: dict[str, Any], text: str) -> int:
    """Print the text and, with --json F, write the report."""
    print(text)
    return _save(options, report)


def _save(options: Options, report: dict[str, Any]) -> int:
    """With --json F, write the report; it has been printed before."""
    if options.json is not None:
        from captionbert.artifacts.files import write_json

        try:
            write_json(options.json, report)
        except OSError as error:
            raise InputError(
                f"--json {options.json}: not written ({error}); the result stands above"
            ) from None
    return OK
