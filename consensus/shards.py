"""Vectors at rest: fp16 safetensors shards of fixed row ranges, and the manifest that says which are done.

A shard's name is a function of its row range, so a repeat overwrites and never appends. Inside it lie its row
range, corpus digest and fingerprint, so two shards swapped by name are caught. Done = manifest record + size
+ SHA-256. Shards are published whole (temporary file, fsync, rename), the record after them; a process killed
between the two repeats one shard, to the same bytes. Legend: N rows of the corpus, d width.
"""

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import (
    digest_json,
    probe_writable,
    publish_file,
    read_json,
    sha256_bytes,
    sha256_file,
    write_json,
)
from captionbert.artifacts.progress import progress
from captionbert.consensus.captions import grouped

MANIFEST, KIND, VERSION = "manifest.json", "vector-shards", 1
SHARD_ROWS = 8192
_MEANING = {
    "corpus_digest": "corpus (its captions differ)",
    "fingerprint": "teacher or frame (weights, tokenizer, pooling, prompt, length, dtype or maps differ)",
    "shard_rows": "shard size",
}
FP16_MAX = 65504.0
FP16_TINY = 6e-5  # vectors whose largest coordinate is below this lose most of their bits in fp16


def shard_name(start: int, stop: int) -> str:
    """File name of the shard of rows start..stop-1."""
    return f"rows-{start:010d}-{stop:010d}.safetensors"


def shard_bytes(vectors: np.ndarray, record: dict[str, Any]) -> bytes:
    """One shard as safetensors bytes: the same vectors and record give the same bytes.

    The record is one metadata value: safetensors writes several keys in no fixed order.
    """
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return save({"vectors": np.ascontiguousarray(vectors, dtype=np.float16)}, metadata={"shard": text})


def check_vectors(who: str, vectors: np.ndarray, rows: int, width: int, start: int) -> np.ndarray:
    """Vectors as float32 [rows, width], finite and storable in fp16.

    Raises:
        InputError: naming `who` and the row id of the first bad vector.
    """
    if vectors.ndim != 2 or vectors.shape != (rows, width) or not np.issubdtype(vectors.dtype, np.floating):
        raise InputError(
            f"{who}: expected {rows} vectors of width {width} (floating point) for rows "
            f"{start}..{start + rows - 1}, found shape {vectors.shape} of {vectors.dtype}"
        )
    vectors = vectors.astype(np.float32, copy=False)
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if bad.size:
        raise InputError(
            f"{who}: NaN or infinite vector for row {start + bad[0]} ({bad.size} such rows in this shard)"
        )
    largest = np.abs(vectors).max(axis=1)
    if largest.max() > FP16_MAX or largest.max() < FP16_TINY:
        raise InputError(
            f"{who}: rows {start}..{start + rows - 1}: largest value {largest.max():.3g} does not fit fp16 "
            f"storage ({FP16_TINY:g}..{FP16_MAX:g}); scale the teacher's output"
        )
    return vectors


class ShardWriter:
    """Writes the shards of one folder (one writer at a time); what is already there and whole is kept.

    Args:
        folder: created when missing. rows: N. width: d. corpus_digest, fingerprint: identity of what is
            stored.
        provenance: kept in the manifest as given; not compared.

    Raises:
        InputError: the folder holds vectors of another identity, or cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rows: int,
        width: int,
        corpus_digest: str,
        fingerprint: str,
        shard_rows: int = SHARD_ROWS,
        provenance: dict[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.identity: dict[str, Any] = {
            "version": VERSION,
            "rows": rows,
            "width": width,
            "shard_rows": shard_rows,
            "corpus_digest": corpus_digest,
            "fingerprint": fingerprint,
        }
        self._provenance = provenance or {}
        probe_writable(folder)
        for leftover in folder.glob(".tmp-*"):  # of a killed process; never read as data
            leftover.unlink()
        self._records: dict[int, dict[str, Any]] = {}
        if (folder / MANIFEST).is_file():
            self._records = {r["start"]: r for r in _load_manifest(folder, self.identity)["records"]}
            self._records = {s: r for s, r in self._records.items() if _is_whole(folder, r)}
        else:
            self._save_manifest()

    def ranges(self) -> list[tuple[int, int]]:
        """All row ranges of the folder in order."""
        rows, step = self.identity["rows"], self.identity["shard_rows"]
        return [(start, min(start + step, rows)) for start in range(0, rows, step)]

    def missing(self) -> list[tuple[int, int]]:
        """Row ranges without a whole shard, in order."""
        return [(start, stop) for start, stop in self.ranges() if start not in self._records]

    def commit(self, start: int, stop: int, vectors: np.ndarray) -> None:
        """Publish the shard of rows start..stop-1, then its record.

        Raises:
            InputError: the disk is full or the folder became read-only; earlier shards are intact.
        """
        identity = {k: self.identity[k] for k in ("corpus_digest", "fingerprint", "version")}
        data = shard_bytes(vectors, {"start": start, "stop": stop, **identity})
        path = self.folder / shard_name(start, stop)
        digest = sha256_bytes(data)
        if path.is_file() and sha256_file(path) != digest:
            warnings.warn(
                f"{path}: replaced; its bytes differ from this computation of the same rows", stacklevel=2
            )
        record = {"file": path.name, "start": start, "stop": stop, "size": len(data), "sha256": digest}
        record |= {"min": float(vectors.min()), "max": float(vectors.max())}
        try:
            with publish_file(path) as temporary:
                temporary.write_bytes(data)
            self._records[start] = record
            self._save_manifest()
        except OSError as error:
            raise InputError(
                f"{path}: cannot be written ({error}); the {len(self._records)} shards before it are "
                "intact: free some space and run the same command again"
            ) from None

    def _save_manifest(self) -> None:
        records = [self._records[s] for s in sorted(self._records)]
        write_json(
            self.folder / MANIFEST, {"kind": KIND, **self.identity, **self._provenance, "records": records}
        )


def _load_manifest(folder: Path, expected: dict[str, Any] | None = None) -> dict[str, Any]:
    manifest = read_json(folder / MANIFEST, kind=KIND)
    if manifest.get("version") != VERSION:
        raise InputError(
            f"{folder / MANIFEST}: format version {manifest.get('version')!r}, this program reads "
            f"{VERSION}; use the program that wrote it or choose another folder"
        )
    for key, value in (expected or {}).items():
        if manifest.get(key) != value:
            raise InputError(
                f"{folder}: holds vectors of another {_MEANING.get(key, key)}: there {manifest.get(key)!r}, "
                f"now {value!r}; the two are never mixed: choose another folder or remove this one"
            )
    return manifest


def _is_whole(folder: Path, record: dict[str, Any]) -> bool:
    path = folder / record["file"]
    return path.is_file() and path.stat().st_size == record["size"] and sha256_file(path) == record["sha256"]


def _as_mapped(path: Path, record: dict[str, Any], manifest: dict[str, Any]) -> np.ndarray:
    """float16 [rows, d] mapped from a shard, after its size, digest and inner identity were compared."""
    again = "remove that file and run the command that made it again: only this shard is computed anew"
    if not path.is_file():
        raise InputError(
            f"{path}: this shard (rows {record['start']}..{record['stop'] - 1}) is missing; {again}"
        )
    size = path.stat().st_size
    if size != record["size"]:
        raise InputError(f"{path}: expected {record['size']} bytes, found {size}; the shard was cut: {again}")
    found = sha256_file(path)
    if found != record["sha256"]:
        raise InputError(
            f"{path}: expected SHA-256 {record['sha256']}, found {found}; the shard is damaged: {again}"
        )
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
    inner = json.loads(header["__metadata__"]["shard"])
    wanted = {k: manifest[k] for k in ("corpus_digest", "fingerprint", "version")}
    wanted |= {"start": record["start"], "stop": record["stop"]}
    if inner != wanted:
        raise InputError(
            f"{path}: says it holds {inner}, expected {wanted}; a shard of another place lies here: {again}"
        )
    shape = tuple(header["vectors"]["shape"])
    if shape != (record["stop"] - record["start"], manifest["width"]) or header["vectors"]["dtype"] != "F16":
        raise InputError(
            f"{path}: holds {shape} of {header['vectors']['dtype']}; the shard is damaged: {again}"
        )
    return np.memmap(
        path, np.float16, "r", offset=8 + length + header["vectors"]["data_offsets"][0], shape=shape
    )


class ShardSet:
    """A complete folder of shards, read by row id. Each shard's digest is compared when it is first touched.

    Attributes:
        folder, manifest; rows: N; width: d; corpus_digest; fingerprint; digest: over all shard digests in
        order.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest
        self.rows: int = manifest["rows"]
        self.width: int = manifest["width"]
        self.corpus_digest: str = manifest["corpus_digest"]
        self.fingerprint: str = manifest["fingerprint"]
        self._step: int = manifest["shard_rows"]
        self._records: list[dict[str, Any]] = manifest["records"]
        identity = [self.rows, self.width, self.corpus_digest, self.fingerprint]
        self.digest = digest_json([identity, [[r["start"], r["stop"], r["sha256"]] for r in self._records]])
        self._mapped: dict[int, np.ndarray] = {}

    @classmethod
    def open(cls, folder: str | Path) -> "ShardSet":
        """Open a folder of shards.

        Raises:
            InputError: no manifest, another format version, or row ranges that do not cover 0..N-1 exactly
                once.
        """
        folder = Path(folder)
        manifest = _load_manifest(folder)
        expected = 0
        for record in manifest["records"]:
            if record["start"] != expected:
                break
            expected = record["stop"]
        if expected != manifest["rows"]:
            raise InputError(
                f"{folder}: rows {expected} and on are not there yet ({len(manifest['records'])} shards, "
                f"{manifest['rows']} rows wanted); run the command that makes it again: it goes on from "
                "there"
            )
        return cls(folder, manifest)

    def shard(self, number: int) -> np.ndarray:
        """float16 [rows of the shard, d], memory-mapped and checked."""
        if number not in self._mapped:
            record = self._records[number]
            self._mapped[number] = _as_mapped(self.folder / record["file"], record, self.manifest)
        return self._mapped[number]

    def read(self, rows: np.ndarray) -> np.ndarray:
        """float32 [n, d] of `rows` (ids in any order, repeats allowed). Raises InputError outside 0..N-1."""
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= self.rows):
            raise InputError(
                f"{self.folder}: row ids must lie in 0..{self.rows - 1}, found {rows.min()}..{rows.max()}"
            )
        out = np.empty((len(rows), self.width), dtype=np.float32)
        for number, places in grouped(rows, self._step):
            out[places] = self.shard(number)[rows[places] - number * self._step]
        return out

    def release(self) -> None:
        """Let go of the mapped files (they count as memory); each is checked again when next touched."""
        self._mapped.clear()

    def stream(self) -> Iterator[tuple[int, np.ndarray]]:
        """(first row id, float32 [rows, d]) shard by shard; one shard is in memory at a time."""
        for number, record in enumerate(self._records):
            yield record["start"], np.array(self.shard(number), dtype=np.float32)
            del self._mapped[number]  # a mapped file counts as memory until it is let go

    def verify(self) -> list[str]:
        """Every problem found by reading all shards; empty when all is well."""
        problems = []
        for number, record in enumerate(self._records):
            self._mapped.pop(number, None)
            try:
                values = self.shard(number)
                if not np.isfinite(values).all():
                    problems.append(f"{self.folder / record['file']}: holds NaN or infinite values")
            except InputError as error:
                problems.append(str(error))
            self._mapped.pop(number, None)
        return problems


def is_complete(folder: Path, corpus_digest: str) -> bool:
    """Whether `folder` holds every shard of this corpus, by record and size (no hashing, no model)."""
    if not (folder / MANIFEST).is_file():
        return False
    manifest = _load_manifest(folder)
    done = sum(
        r["stop"] - r["start"] for r in manifest["records"] if _has_size(folder / r["file"], r["size"])
    )
    return manifest["corpus_digest"] == corpus_digest and done == manifest["rows"]


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def fill(writer: ShardWriter, desc: str, compute: Callable[[int, int], np.ndarray]) -> None:
    """Compute and commit every missing shard, with a progress bar in rows."""
    missing = writer.missing()
    rows = writer.identity["rows"]
    done = rows - sum(stop - start for start, stop in missing)
    with progress(total=rows, initial=done, desc=desc, unit="row") as bar:
        for start, stop in missing:
            writer.commit(start, stop, compute(start, stop))
            bar.update(stop - start)
