"""The verbs of a consensus folder: embed, fit, targets, audit. Each can be killed and run again.

    DIR/corpus/  DIR/teachers/<name>/  DIR/frame/  DIR/targets/  DIR/consensus.json  DIR/report.json
    DIR/control/ (optional) the same teachers on other text, to compare effective ranks with

The input-distribution report is written before the first teacher runs; one teacher is in memory at a time.
"""

import gc
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import folder_lock, probe_writable, publish_file, read_json, write_json
from captionbert.consensus.captions import Corpus, open_corpus, prepare_corpus
from captionbert.consensus.embedding import embed_corpus
from captionbert.consensus.frames import Frame, fit_frame, open_frame, open_teachers, relative_weights
from captionbert.consensus.packaged import PACKAGED
from captionbert.consensus.ratio import RatioGuard
from captionbert.consensus.shards import MANIFEST, SHARD_ROWS, ShardSet, is_complete
from captionbert.consensus.specs import TeacherSpec, parse_teacher
from captionbert.consensus.targets import build_targets, open_targets
from captionbert.consensus.teachers import Teacher, load_teacher
from captionbert.probes.geometry import distribution_shift, geometry, length_percentiles

SAMPLE_ROWS = 24_000  # rows the maps are fitted on, unless told otherwise
LENGTH_SAMPLE = 20_000  # captions whose tokens are counted for the input report
CONTROL_ROWS = 2048
REPORT_KIND, CONSENSUS_KIND = "consensus-report", "consensus"


def update_report(out: Path, **parts: Any) -> dict[str, Any]:
    """Merge `parts` into DIR/report.json and return the whole report."""
    path = out / "report.json"
    report = read_json(path, kind=REPORT_KIND) if path.is_file() else {"kind": REPORT_KIND}
    report.update(parts)
    write_json(path, report)
    return report


def input_distribution(corpus: Corpus) -> dict[str, Any]:
    """What the captions look like: rows, what was dropped, character lengths (p50, p90, p99, max)."""
    m = corpus.manifest
    return {
        "rows": corpus.rows,
        "digest": corpus.digest,
        "held_out_rows": m["held_out_rows"],
        "sources": [s[0] for s in m["inputs"]["sources"]],
        "counts": m["counts"],
        "characters": {k: v for k, v in m["lengths"].items() if k != "unit"},
    }


def _specs(teachers: Sequence[str | Teacher], folder: Path) -> list[TeacherSpec]:
    """The specs of `teachers`, whose shards are or will be below `folder`."""
    specs = [as_begun(parse_teacher(t), folder) if isinstance(t, str) else t.spec for t in teachers]
    names = [s.name for s in specs]
    if not names or len(set(names)) != len(names):
        raise InputError(f"expected one or more teachers of different names, found {names}")
    return specs


def as_begun(spec: TeacherSpec, teachers: Path) -> TeacherSpec:
    """The spec in the number type in which its shards below `teachers` were begun, perhaps on another machine."""
    manifest = teachers / spec.name / MANIFEST
    begun = (read_json(manifest).get("teacher") or {}) if manifest.is_file() else {}
    return replace(spec, dtype=begun.get("dtype", spec.dtype))


def check_held_out(held_out: int) -> None:
    """Refuse a consensus without held-out captions: no student could be judged on it.

    Raises:
        InputError: `held_out` is under 1.
    """
    if held_out < 1:
        raise InputError(
            f"--held-out {held_out}: expected 1 or more captions; training is judged on those it has not seen"
        )


def embed(
    sources: list[str],
    teachers: Sequence[str | Teacher],
    out: str | Path,
    *,
    reference: str | None = None,
    held_out: int = 2000,
    seed: int = 0,
    exclude: str | Path | None = None,
    column: str | None = None,
    char_cap: int = 65_536,
    shard_rows: int = SHARD_ROWS,
    control: list[str] | None = None,
    sample_rows: int = SAMPLE_ROWS,
    force: bool = False,
    weights: Mapping[str, float] | None = None,
    later: Sequence[str] = (),
) -> dict[str, Any]:
    """Prepare the corpus and embed it with every teacher; what is already done is kept.

    Args:
        sources, held_out, seed, exclude, column, char_cap: see prepare_corpus.
        teachers: words for parse_teacher, or loaded teachers.
        reference: name of the teacher whose coordinates are the frame; None: the first.
        shard_rows: rows of one shard, the work a kill can cost.
        control: sources of other text; up to 2,048 captions of it are embedded for the geometry table.
        sample_rows, force, weights: of the fit to come (see `fit`), so that what it would refuse is refused before
            the embedding.
        later: words of teachers that a later call will add; here only their widths matter.

    Returns:
        The report so far (also in DIR/report.json).

    Raises:
        InputError: see check_held_out, relative_weights, prepare_corpus, RatioGuard, load_teacher and embed_corpus.
    """
    out = Path(out)
    check_held_out(held_out)
    planned = [*teachers, *later]
    planned_specs = _specs(planned, out / "teachers")
    specs = planned_specs[: len(teachers)]
    relative_weights(weights, [s.name for s in planned_specs])
    reference = _reference(reference, [s.name for s in specs])
    probe_writable(out)
    with folder_lock(out):
        corpus = prepare_corpus(
            sources,
            out / "corpus",
            held_out=held_out,
            seed=seed,
            char_cap=char_cap,
            exclude=exclude,
            column=column,
        )
        _report_input(out, corpus)
        guard = RatioGuard.of(corpus, reference, sample_rows=sample_rows, force=force)
        guard.widths = {s.name: known_width(t, s, out) for t, s in zip(planned, planned_specs)}
        guard.check()
        places = [(corpus, out / "teachers")]
        if control:
            places.append((_control_corpus(control, out / "control"), out / "control" / "teachers"))
        records = [_embed_one(t, s, places, out, shard_rows, guard) for t, s in zip(teachers, specs)]
        write_json(
            out / "consensus.json",
            {
                "kind": CONSENSUS_KIND,
                "corpus_digest": corpus.digest,
                "reference": reference,
                "teachers": records,
            },
        )
        return update_report(out)


def _reference(name: str | None, teachers: list[str]) -> str:
    """The name of the reference, the first teacher unless one is named."""
    name = name or teachers[0]
    if name not in teachers:
        raise InputError(f"reference {name!r} is not among the teachers {teachers}")
    return name


def known_width(teacher: str | Teacher, spec: TeacherSpec, out: Path) -> int | None:
    """Width of a teacher's vectors if it is known without loading it; `out`: folder of the consensus."""
    if not isinstance(teacher, str):
        return teacher.width
    if spec.source.startswith("packaged:"):
        return PACKAGED[spec.source.removeprefix("packaged:")].width
    manifest = out / "teachers" / spec.name / MANIFEST  # of an earlier call, finished or not
    return read_json(manifest).get("width") if manifest.is_file() else None


def _report_input(out: Path, corpus: Corpus) -> None:
    """The input report, before any teacher runs; token lengths found by an earlier call are kept."""
    path = out / "report.json"
    before = read_json(path, kind=REPORT_KIND).get("input", {}) if path.is_file() else {}
    found = input_distribution(corpus)
    if before.get("digest") == corpus.digest and "tokens" in before:
        found["tokens"] = before["tokens"]
    update_report(out, input=found)


def _embed_one(
    teacher: str | Teacher,
    spec: TeacherSpec,
    places: list[tuple[Corpus, Path]],
    out: Path,
    shard_rows: int,
    guard: RatioGuard,
) -> dict[str, Any]:
    """Embed every corpus with one teacher, loaded only when something is missing, and let it go."""
    if not all(_already(corpus, folder / spec.name, spec) for corpus, folder in places):
        loaded = load_teacher(spec) if isinstance(teacher, str) else teacher
        guard.learn(spec.name, loaded.width)
        _report_tokens(out, places[0][0], loaded)
        for corpus, folder in places:
            embed_corpus(corpus, loaded, folder / spec.name, shard_rows=shard_rows)
        del loaded
        gc.collect()
    manifest = read_json(places[0][1] / spec.name / "manifest.json")
    return {"name": spec.name, **{k: manifest[k] for k in ("fingerprint", "width", "teacher")}}


def _already(corpus: Corpus, folder: Path, spec: TeacherSpec) -> bool:
    """Whether this very spec has embedded this corpus: then its model need not even be loaded."""
    if not is_complete(folder, corpus.digest):
        return False
    return read_json(folder / "manifest.json").get("teacher") == json.loads(json.dumps(asdict(spec)))


def _report_tokens(out: Path, corpus: Corpus, teacher: Teacher) -> None:
    """Token lengths of an even sample of the captions, once, by the first teacher that has tokens."""
    found = read_json(out / "report.json", kind=REPORT_KIND)["input"]
    if "tokens" in found:
        return
    rows = np.unique(np.linspace(0, corpus.rows - 1, min(LENGTH_SAMPLE, corpus.rows)).astype(np.int64))
    lengths = teacher.token_lengths(corpus.texts(rows))
    if len(lengths):
        sampled = {"tokenizer_of": teacher.spec.name, "rows_sampled": len(rows)}
        update_report(out, input={**found, "tokens": {**length_percentiles(lengths), **sampled}})


def _control_corpus(sources: list[str], folder: Path) -> Corpus:
    """A corpus of at most CONTROL_ROWS captions of other text, spread evenly over it."""
    full = prepare_corpus(sources, folder / "source", held_out=0)
    rows = np.unique(np.linspace(0, full.rows - 1, min(CONTROL_ROWS, full.rows)).astype(np.int64))
    sample = folder / "sample.jsonl"
    if not sample.is_file():
        lines = "".join(json.dumps({"text": t}) + "\n" for t in full.texts(rows))
        with publish_file(sample) as temporary:
            temporary.write_text(lines, encoding="utf-8")
    return prepare_corpus([str(sample)], folder / "corpus", held_out=0)


def open_consensus(out: str | Path) -> tuple[dict[str, Any], Corpus]:
    """consensus.json and the corpus of DIR, checked to belong together.

    Raises:
        InputError: `embed` has not finished there, or the corpus was replaced.
    """
    out = Path(out)
    if not (out / "consensus.json").is_file():
        raise InputError(f"{out}: no finished embedding there; run `captionbert consensus embed` on it first")
    info = read_json(out / "consensus.json", kind=CONSENSUS_KIND)
    corpus = open_corpus(out / "corpus")
    if corpus.digest != info["corpus_digest"]:
        raise InputError(
            f"{out}: the corpus has digest {corpus.digest}, the teachers embedded {info['corpus_digest']}; "
            "run `captionbert consensus embed` into a new folder"
        )
    return info, corpus


def fit(
    out: str | Path,
    *,
    sample_rows: int = SAMPLE_ROWS,
    seed: int = 0,
    force: bool = False,
    weights: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Fit and score the maps, fix the frame, and add alignment and geometry to the report.

    Args:
        sample_rows: rows of the fit, at most.
        force: accept N/d under 10.
        weights: of the teachers in the mean, by name; see `frames.relative_weights`. They are part of the frame. None:
            those of the frame that is there, equal where there is none; {}: equal.

    Returns:
        The report (also in DIR/report.json; `report.format_report` prints it).

    Raises:
        InputError: see fit_frame.
    """
    out = Path(out)
    with folder_lock(out):
        info, corpus = open_consensus(out)
        _report_input(out, corpus)
        frame = fit_frame(out, info, corpus, sample_rows=sample_rows, seed=seed, force=force, weights=weights)
        alignment = {
            "frame_id": frame.frame_id,
            "reference": frame.reference,
            "sample": frame.info["sample"],
            "teachers": frame.table,
            **({"weights": frame.weights} if frame.weights else {}),
        }
        parts: dict[str, Any] = {
            "alignment": alignment,
            "geometry": _geometry_table(out, info, corpus, frame),
        }
        if (out / "control" / "corpus").is_dir():
            control = open_corpus(out / "control" / "corpus")
            parts["shift"] = distribution_shift(
                corpus.character_lengths(), control.character_lengths()
            ).as_dict()
        return update_report(out, **parts)


def _geometry_table(out: Path, info: dict[str, Any], corpus: Corpus, frame: Frame) -> dict[str, Any]:
    """Effective rank with CV of teachers and consensus, on the scored rows and on the control corpus."""
    shards = open_teachers(out, info, corpus)
    vectors = {name: s.read(frame.score_rows) for name, s in shards.items()}
    table = _with_consensus(vectors, frame, "")
    folders = {name: out / "control" / "teachers" / name for name in frame.teachers}
    if all((folder / MANIFEST).is_file() for folder in folders.values()):  # a later teacher may lack it
        control = {name: ShardSet.open(folder) for name, folder in folders.items()}
        table |= _with_consensus(
            {n: s.read(np.arange(s.rows)) for n, s in control.items()}, frame, "control: "
        )
    return table


def _with_consensus(vectors: dict[str, np.ndarray], frame: Frame, prefix: str) -> dict[str, Any]:
    table = {prefix + name: geometry(x).as_dict() for name, x in vectors.items()}
    table[prefix + "consensus"] = geometry(frame.consensus(vectors)).as_dict()
    return table


def targets(out: str | Path) -> dict[str, Any]:
    """Build DIR/targets; goes on at the first missing shard.

    Returns:
        {"rows", "width", "frame_id", "digest", "corpus_digest"} of the targets.

    Raises:
        InputError: see build_targets.
    """
    out = Path(out)
    with folder_lock(out):
        info, corpus = open_consensus(out)
        built = build_targets(out, info, corpus, open_frame(out / "frame"))
        found = {k: getattr(built, k) for k in ("rows", "width", "frame_id", "digest", "corpus_digest")}
        update_report(out, targets=found)
        return found


def audit(out: str | Path) -> dict[str, Any]:
    """Read everything in DIR and compare it with its digests: captions, every shard, frame, targets.

    Returns:
        {"ok": bool, "checked": [what was read], "problems": [messages that say what to run again]}.

    Raises:
        InputError: DIR holds no finished embedding at all.
    """
    out = Path(out)
    info, corpus = open_consensus(out)
    checked, problems = [f"corpus: {corpus.rows} captions"], []
    for record in info["teachers"]:
        problems += _audit_part(partial(_audit_teacher, out, record, corpus, checked))
    if (out / "frame").is_dir():
        problems += _audit_part(lambda: _audit_frame(out, info, checked))
    if (out / "targets" / MANIFEST).is_file():
        problems += _audit_part(lambda: _audit_targets(out, corpus, checked))
    return {"ok": not problems, "checked": checked, "problems": problems}


def _audit_part(check: Callable[[], list[str]]) -> list[str]:
    try:
        return check()
    except InputError as error:
        return [str(error)]


def _audit_teacher(out: Path, record: dict[str, Any], corpus: Corpus, checked: list[str]) -> list[str]:
    shards = ShardSet.open(out / "teachers" / record["name"])
    checked.append(f"teacher {record['name']}: rows 0..{shards.rows - 1}")
    if (shards.corpus_digest, shards.fingerprint) != (corpus.digest, record["fingerprint"]):
        return [f"{shards.folder}: belongs to another corpus or teacher; remove it and run embed again"]
    return shards.verify()


def _audit_frame(out: Path, info: dict[str, Any], checked: list[str]) -> list[str]:
    frame = open_frame(out / "frame")
    checked.append(f"frame {frame.frame_id[:12]}")
    if frame.teachers != [r["name"] for r in info["teachers"]] or frame.reference != info["reference"]:
        return [
            f"{out / 'frame'}: fitted for teachers {frame.teachers} in the frame of {frame.reference}; run "
            "fit again"
        ]
    return []


def _audit_targets(out: Path, corpus: Corpus, checked: list[str]) -> list[str]:
    opened = open_targets(out / "targets", corpus=corpus)
    checked.append(f"targets: rows 0..{opened.rows - 1}")
    return opened.verify()
