"""The corpus folder: cleaned captions with ids, groups and a held-out part, in one memory-mapped Arrow file.

    prepare_corpus(sources, out)  sources -> captions.arrow (id, text, group, held_out) + corpus.json +
    manifest.json open_corpus(out)              reading by row id, nothing loaded ahead

Two captions are equal when they agree up to case and spaces: an uncased encoder cannot tell them apart. A
group is the id of the first of its equals. Everything is a pure function of (sources, settings): a rerun
gives the same bytes.
Memory while preparing: 16 bytes a row (hashes and lengths), the text itself streams. Legend: N corpus rows.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import (
    digest_json,
    publish_folder,
    read_json,
    recover_folder,
    verify_folder,
    write_json,
)
from captionbert.artifacts.progress import progress
from captionbert.consensus.exclusion import exclusion_digest, read_exclusions
from captionbert.consensus.readers import Source, open_source, read_source
from captionbert.probes.geometry import length_percentiles

ARROW, INFO = "captions.arrow", "corpus.json"
VERSION = 1
BATCH = 16_384  # rows of one Arrow record batch: the unit of a random read
HELD_OUT_SHARE = 20  # at most one distinct caption in so many is held out
PLACES_KEPT = 1000  # quarantined rows listed by place; the rest are only counted
_SCHEMA = pa.schema(
    [("id", pa.int64()), ("text", pa.large_string()), ("group", pa.int64()), ("held_out", pa.bool_())]
)


def grouped(rows: np.ndarray, step: int) -> Iterator[tuple[int, np.ndarray]]:
    """(block number, places of `rows` that fall in it) for blocks of `step` rows, by one sort."""
    if len(rows) == 0:
        return
    blocks = rows // step
    order = np.argsort(blocks, kind="stable")
    cuts = np.flatnonzero(np.diff(blocks[order])) + 1
    for places in np.split(order, cuts):
        yield int(blocks[places[0]]), places


class Corpus:
    """An opened corpus folder. Row ids are 0..N-1.

    Attributes:
        folder: where it lies. rows: N. digest: SHA-256 over the captions in order. manifest: corpus.json.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_json(folder / INFO, kind="corpus")
        self.rows: int = self.manifest["rows"]
        self.digest: str = self.manifest["digest"]
        self._file = pa.ipc.open_file(pa.memory_map(str(folder / ARROW)))

    def texts(self, rows: np.ndarray) -> list[str]:
        """The captions of `rows` (ids in any order, repeats allowed), in that order.

        Raises:
            InputError: an id is outside 0..N-1.
        """
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= self.rows):
            raise InputError(
                f"{self.folder}: caption ids must lie in 0..{self.rows - 1}, found {rows.min()}..{rows.max()}"
            )
        found: list[str] = [""] * len(rows)
        for batch, places in grouped(rows, BATCH):
            column = self._file.get_batch(batch).column("text")
            taken = column.take(pa.array(rows[places] - batch * BATCH)).to_pylist()
            for place, text in zip(places.tolist(), taken):
                found[place] = text
        return found

    def _column(self, name: str) -> np.ndarray:
        batches = [self._file.get_batch(i).column(name) for i in range(self._file.num_record_batches)]
        return np.concatenate([b.to_numpy(zero_copy_only=False) for b in batches])  # [N]

    @property
    def sources(self) -> list[tuple[str, int, int]]:
        """(name, first row, row after the last) of each source: the rows of one lie together.

        Raises:
            InputError: the corpus was prepared before this was written down.
        """
        counts = self.manifest.get("source_rows")
        if counts is None:
            raise InputError(
                f"{self.folder}: prepared by an earlier version, which did not note the rows of each source; delete "
                "this folder and run `captionbert consensus embed` again: it prepares the same captions, and teachers' "
                "vectors are kept"
            )
        ends = np.cumsum(counts).tolist()
        names = [source[0] for source in self.manifest["inputs"]["sources"]]
        return list(zip(names, [0, *ends[:-1]], ends))

    @property
    def groups(self) -> np.ndarray:
        """int64 [N]: id of the first caption equal to this one."""
        return self._column("group")

    @property
    def held_out(self) -> np.ndarray:
        """bool [N]: rows kept out of training, whole groups at a time."""
        return self._column("held_out")

    def character_lengths(self) -> np.ndarray:
        """int32 [N]: characters of each caption."""
        import pyarrow.compute as pc

        parts = []
        for i in range(self._file.num_record_batches):
            parts.append(
                pc.utf8_length(self._file.get_batch(i).column("text")).to_numpy(zero_copy_only=False)
            )
        return np.concatenate(parts).astype(np.int32)  # [N]


def open_corpus(folder: str | Path) -> Corpus:
    """Open a corpus folder after comparing its files with their digests.

    Raises:
        InputError: it is missing, incomplete or changed.
    """
    folder = Path(folder)
    recover_folder(folder)
    if not (folder / INFO).is_file():
        raise InputError(
            f"{folder}: no corpus there ({INFO} is missing); prepare one with `captionbert consensus embed`"
        )
    verify_folder(folder)
    return Corpus(folder)


@dataclass
class _Tally:
    """What happened to the rows while reading."""

    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("read", "empty", "duplicate", "excluded", "cut", "quarantined"), 0
        )
    )
    places: list[dict[str, Any]] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)  # rows handed on, of each source in turn

    def quarantine(self, source: Source, number: int, reason: str) -> None:
        self.counts["quarantined"] += 1
        if len(self.places) < PLACES_KEPT:
            self.places.append({"source": source.name, "row": number, "reason": reason})


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _clean(source: Source, number: int, text: str | None, char_cap: int, tally: _Tally) -> str | None:
    """The caption to keep, or None when the row was counted as empty or quarantined."""
    if text is None:
        tally.quarantine(source, number, "null")
        return None
    text = text.strip()
    if not text:
        tally.counts["empty"] += 1
        return None
    if not text.strip("\0 \t"):
        tally.quarantine(source, number, "only NUL characters")
        return None
    if _has_surrogate(text):  # tokenizers raise TypeError on it
        tally.quarantine(source, number, "lone surrogate")
        return None
    if len(text) > char_cap:
        tally.counts["cut"] += 1
        text = text[:char_cap].rstrip()
    return text


def _text_key(text: str) -> int:
    """64-bit hash of the caption up to case and spaces: equal keys mean equal captions."""
    return int.from_bytes(blake2b(" ".join(text.lower().split()).encode(), digest_size=8).digest(), "little")


def _read_all(
    sources: list[Source], column: str | None, char_cap: int, excluded: frozenset[str], tally: _Tally
) -> Iterator[str]:
    bar = progress(desc="read captions", unit="row")
    for source in sources:
        before = tally.counts["read"]
        tally.taken.append(0)
        for number, raw in read_source(source, column):
            tally.counts["read"] += 1
            bar.update()
            text = _clean(source, number, raw, char_cap, tally)
            if text is None:
                continue
            if excluded and exclusion_digest(text) in excluded:
                tally.counts["excluded"] += 1
                continue
            tally.taken[-1] += 1
            yield text
        if tally.counts["read"] == before:
            raise InputError(
                f"{source.path or source.name}: the caption file is empty; expected one caption a line or row"
            )
    bar.close()


def _spool(texts: Iterator[str], path: Path) -> tuple[np.ndarray, np.ndarray]:
    """First pass: texts to a temporary Arrow file; returns their keys uint64 and character lengths int32."""
    keys, lengths = array("Q"), array("i")
    schema = pa.schema([("text", pa.large_string())])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        pending: list[str] = []
        for text in texts:
            keys.append(_text_key(text))
            lengths.append(len(text))
            pending.append(text)
            if len(pending) == BATCH:
                writer.write_batch(pa.record_batch([pa.array(pending, pa.large_string())], schema=schema))
                pending = []
        if pending:
            writer.write_batch(pa.record_batch([pa.array(pending, pa.large_string())], schema=schema))
    return np.frombuffer(keys, np.uint64), np.frombuffer(lengths, np.int32)


def _mix(keys: np.ndarray, seed: int) -> np.ndarray:
    """splitmix64 of key xor seed: a fixed pseudo-random rank of each text, whatever the order of the rows."""
    z = keys ^ np.uint64((seed * 0x9E3779B97F4A7C15 + 0x1234567) % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _plan(
    keys: np.ndarray, held_out: int, seed: int, deduplicate: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which spooled rows stay, and of those the group ids int64 [N] and the held-out flags bool [N]."""
    unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    kept = np.sort(first) if deduplicate else np.arange(len(keys))
    new_id = np.full(len(keys), -1, dtype=np.int64)
    new_id[kept] = np.arange(len(kept))
    groups = new_id[first[inverse[kept]]]
    wanted = min(held_out, len(unique) // HELD_OUT_SHARE)
    chosen = np.zeros(len(unique), dtype=bool)
    if wanted > 0:
        chosen[np.argsort(_mix(unique, seed), kind="stable")[:wanted]] = True
    return kept, groups, chosen[inverse[kept]]


def _write_rows(spool: Path, target: Path, kept: np.ndarray, groups: np.ndarray, held: np.ndarray) -> str:
    """Second pass: the kept rows to their final file; returns the digest over the captions."""
    digest = sha256()
    with pa.memory_map(str(spool)) as memory, pa.OSFile(str(target), "wb") as sink:
        source = pa.ipc.open_file(memory)
        with pa.ipc.new_file(sink, _SCHEMA) as writer:
            for start in range(0, len(kept), BATCH):
                rows = kept[start : start + BATCH]
                texts = _spooled_texts(source, rows)
                for text in texts:
                    raw = text.encode()
                    digest.update(len(raw).to_bytes(8, "little") + raw)
                stop = start + len(rows)
                columns = [np.arange(start, stop), texts, groups[start:stop], held[start:stop]]
                arrays = [pa.array(c, type=f.type) for c, f in zip(columns, _SCHEMA)]
                writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
    return digest.hexdigest()


def _spooled_texts(source: Any, rows: np.ndarray) -> list[str]:
    """Texts of ascending spooled rows."""
    texts: list[str] = []
    for batch, places in grouped(rows, BATCH):
        texts.extend(
            source.get_batch(batch).column(0).take(pa.array(rows[places] - batch * BATCH)).to_pylist()
        )
    return texts


def _reusable(out: Path, inputs: dict[str, Any]) -> bool:
    """Whether `out` already holds the corpus of these inputs; anything else found there is an error."""
    recover_folder(out)
    if not out.exists() or not any(out.iterdir()):
        return False
    if not (out / INFO).is_file():
        raise InputError(f"{out}: not empty and not a corpus; choose another folder")
    info = read_json(out / INFO, kind="corpus")
    found = info["inputs"]
    changed = sorted(k for k in inputs if found.get(k) != inputs[k])
    capped = found["held_out"] > info["held_out_rows"] <= inputs["held_out"]
    if changed == ["held_out"] and capped:  # the corpus is so small that both hold out the same captions
        return True
    if changed:
        k = changed[0]
        raise InputError(
            f"{out}: holds a corpus made from other inputs; differs in {', '.join(changed)} ({k}: there "
            f"{found.get(k)!r}, now {inputs[k]!r}); choose another folder or remove this one"
        )
    return True


def prepare_corpus(
    sources: list[str],
    out: str | Path,
    *,
    held_out: int = 2000,
    seed: int = 0,
    char_cap: int = 65_536,
    exclude: str | Path | None = None,
    column: str | None = None,
    deduplicate: bool = True,
) -> Corpus:
    """Read caption sources into a corpus folder; with the same inputs an existing folder is reused.

    Sources are taken in the order of their names, so listing order does not matter.

    Args:
        sources: paths to .txt, .jsonl (or .gz), .parquet, or `datasets:<id>@<revision>[:split[:column]]`.
        held_out: captions kept out of training, at most 5 % of the distinct ones; 0 for text that no student is
            trained on.
        char_cap: longer captions are cut to this many characters, and counted.
        exclude: file of 16-hex digests of sentences to leave out (see `exclusion_digest`).
        column: caption column of JSONL and Parquet; None: text, caption or sentence.
        deduplicate: keep only the first of equal captions.

    Raises:
        InputError: unreadable input, no caption left, too few to hold one out, or `out` holds a corpus of other
            inputs.
    """
    if held_out < 0:
        raise InputError(f"held_out is {held_out}; expected 0 or more captions to keep out of training")
    if not sources:
        raise InputError("no caption source given; expected at least one file or dataset")
    out = Path(out)
    opened = sorted((open_source(s) for s in sources), key=lambda s: (s.name, s.identity))
    excluded = read_exclusions(Path(exclude) if exclude is not None else None)
    inputs = {
        "version": VERSION,
        "sources": [[s.name, s.identity, s.column] for s in opened],
        "held_out": held_out,
        "seed": seed,
        "char_cap": char_cap,
        "exclude": digest_json(sorted(excluded)) if excluded else None,
        "column": column,
        "deduplicate": deduplicate,
    }
    if not _reusable(out, inputs):
        tally = _Tally()
        with publish_folder(out) as temporary:
            texts = _read_all(opened, column, char_cap, excluded, tally)
            write_json(temporary / INFO, _build(texts, temporary, inputs, tally))
    return open_corpus(out)


def _refuse_none_held_out(distinct: int, held_out: int) -> None:
    """Captions can be held out only where there are enough: found here, before anything is made of them."""
    if held_out > 0 and distinct < HELD_OUT_SHARE:
        raise InputError(
            f"the corpus has {distinct} distinct captions; at least {HELD_OUT_SHARE} are needed, since one in "
            f"{HELD_OUT_SHARE} at most is held out and training is judged on those: give more captions"
        )


def _build(texts: Iterator[str], folder: Path, inputs: dict[str, Any], tally: _Tally) -> dict[str, Any]:
    """Write captions.arrow into `folder`; returns the content of corpus.json."""
    spool = folder / "spool.arrow"
    keys, lengths = _spool(texts, spool)
    if len(keys) == 0:
        raise InputError(
            f"no caption left of {tally.counts['read']} rows read: {tally.counts}; check the column and files"
        )
    distinct = len(np.unique(keys))
    _refuse_none_held_out(distinct, inputs["held_out"])
    kept, groups, held = _plan(keys, inputs["held_out"], inputs["seed"], inputs["deduplicate"])
    digest = _write_rows(spool, folder / ARROW, kept, groups, held)
    spool.unlink()
    # Without dropping, every later member of a group is still a duplicate to report.
    tally.counts["duplicate"] = len(keys) - distinct
    ends = np.searchsorted(kept, np.cumsum(tally.taken))  # kept rows before the end of each source
    return {
        "kind": "corpus",
        "rows": len(kept),
        "source_rows": np.diff(ends, prepend=0).tolist(),  # in the order of inputs.sources
        "digest": digest,
        "held_out_rows": int(held.sum()),
        "inputs": inputs,
        "counts": tally.counts,
        "quarantined": tally.places,
        "lengths": {"unit": "characters", **length_percentiles(lengths[kept])},
    }
