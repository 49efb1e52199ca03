"""Vectors in and out of files, for `captionbert embed`: texts read as a stream, .npy and .parquet written
as one.

Line i of the input is row i of the output, whatever it holds: a blank line or a null is the empty text,
which has a vector of its own. Memory is flat in the number of texts.

Shapes: N texts, E embedding.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import check_output, publish_file

WINDOW = 16_384  # texts encoded at a time: enough to sort by length, few enough to keep memory flat
FORMATS = (".npy", ".parquet")
_NPY_HEADER_BYTES = 128
Encode = Callable[[list[str]], np.ndarray]


def read_texts(source: str, column: str | None = None) -> Iterator[str]:
    """The texts of a file (.txt, .jsonl, either with .gz, .parquet), or of standard input for "-".

    Raises:
        InputError: at once, the file is missing, empty or of no known kind; while reading, a line not UTF-8
            or not what its format says. The message names file and line.
    """
    if source == "-":
        return _read_stdin()
    from captionbert.consensus.readers import open_source, read_source

    rows = read_source(open_source(source), column)
    return ((text or "").strip() for _, text in rows)


def _read_stdin() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise InputError(
                f"standard input: line {number} is not UTF-8 ({error.reason}); convert it first"
            ) from None


def check_out(path: Path) -> None:
    """Refuse an output that could not be written, before any work is done.

    Raises:
        InputError: its ending names no format, it is a folder, or its folder cannot be made or written.
    """
    if path.suffix not in FORMATS:
        raise InputError(f"--out {path}: expected a name that ends in .npy or .parquet")
    check_output(path)


def embed_to_file(
    texts: Iterable[str], encode: Encode, width: int, path: Path, bar: Any = None
) -> dict[str, int]:
    """Encode a stream of texts into `path`, whole or not at all.

    Args:
        encode: up to WINDOW texts -> float32 [n, E].
        width: E.
        path: .npy (float32 [N, E]) or .parquet (columns `text` and `embedding`, a list of E float32).
        bar: something with `.update(n)`, called as texts are done.

    Returns:
        {"texts": N, "blank": how many were empty}.
    """
    check_out(path)
    counts = {"texts": 0, "blank": 0}
    write = _write_npy if path.suffix == ".npy" else _write_parquet
    with publish_file(path) as temporary:
        write(_blocks(texts, encode, counts, bar), width, temporary)
        if not counts["texts"]:
            raise InputError("no texts: the input is empty")
    return counts


def _blocks(
    texts: Iterable[str], encode: Encode, counts: dict[str, int], bar: Any
) -> Iterator[tuple[list[str], np.ndarray]]:
    stream = iter(texts)
    while block := list(islice(stream, WINDOW)):
        vectors = encode(block)  # [n, E]
        counts["texts"] += len(block)
        counts["blank"] += sum(not text for text in block)
        if bar is not None:
            bar.update(len(block))
        yield block, vectors


def _write_npy(blocks: Iterator[tuple[list[str], np.ndarray]], width: int, path: Path) -> None:
    """A .npy file of unknown length: room for the header first, its text when the rows are counted."""
    rows = 0
    with open(path, "wb") as stream:
        stream.write(b" " * _NPY_HEADER_BYTES)
        for _, vectors in blocks:
            stream.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
            rows += len(vectors)
        stream.seek(0, os.SEEK_SET)
        stream.write(_npy_header(rows, width))


def _npy_header(rows: int, width: int) -> bytes:
    """Version 1.0 header of a float32 [rows, width] array, padded to 128 bytes (numpy.lib.format)."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    body = text.encode().ljust(_NPY_HEADER_BYTES - 11) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def _write_parquet(blocks: Iterator[tuple[list[str], np.ndarray]], width: int, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    vector = pa.list_(pa.float32(), width)
    schema = pa.schema([("text", pa.string()), ("embedding", vector)])
    with pq.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        for texts, vectors in blocks:
            flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1))
            column = pa.FixedSizeListArray.from_arrays(flat, type=vector)
            writer.write_table(pa.Table.from_arrays([pa.array(texts, pa.string()), column], schema=schema))


def nearest_pairs(vectors: np.ndarray, count: int = 10) -> list[tuple[int, int, float]]:
    """The `count` pairs of rows with the highest cosine: (i, j, cosine) with i < j, nearest first.

    Args:
        vectors: [N, E] unit rows; N is meant to be small (the cosines of all pairs are held).
    """
    cosines = vectors @ vectors.T  # [N, N]
    left, right = np.triu_indices(len(vectors), k=1)
    values = cosines[left, right]
    order = np.argsort(-values, kind="stable")[:count]
    return [(int(left[k]), int(right[k]), float(values[k])) for k in order]
