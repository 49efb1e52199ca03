"""Caption sources: text, JSONL, Parquet files and Hub datasets at a pinned revision, read row by row.

A source is identified by content (SHA-256 of the file, or dataset id + 40-digit revision), never by where it
lies or when it was written. Reading streams: one line, or one Parquet batch, is in memory at a time. A row is
(number from 1, text or None); None is a null that the caller counts. Whatever cannot be read names its file,
line and byte.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import sha256_file

TEXT_COLUMNS = ("text", "caption", "sentence")
REVISION = re.compile(r"^[0-9a-f]{40}$")
Row = tuple[int, str | None]


@dataclass(frozen=True)
class Source:
    """One place that captions come from.

    Attributes:
        name: file name, or `datasets:<id>@<revision>:<split>`.
        identity: SHA-256 of the file, or the dataset name again (its revision fixes its content).
        path: the file; None for a dataset.
        column: the column given in a `datasets:` source, else None.
    """

    name: str
    identity: str
    path: Path | None = None
    column: str | None = None


def open_source(text: str) -> Source:
    """The source behind a command-line word.

    Raises:
        InputError: the file is missing or empty, its ending is unknown, or a dataset has no pinned revision.
    """
    if text.startswith("datasets:"):
        return _dataset_source(text)
    path = Path(text)
    if not path.is_file():
        raise InputError(f"{path}: no such caption file; give a .txt, .jsonl (or .gz) or .parquet file")
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the caption file is empty; expected one caption a line or row")
    _kind(path)
    return Source(path.name, sha256_file(path), path)


def _dataset_source(text: str) -> Source:
    name, _, rest = text.removeprefix("datasets:").partition("@")
    revision, _, rest = rest.partition(":")
    split, _, column = rest.partition(":")
    if not name or not REVISION.match(revision):
        raise InputError(
            f"{text}: a dataset needs its commit, 40 hex digits, so that its rows cannot move: "
            f"datasets:<id>@<revision>[:split[:column]], found revision {revision!r}"
        )
    pinned = f"datasets:{name}@{revision}:{split or 'train'}"
    return Source(pinned, pinned, None, column or None)


def _kind(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    for ending, kind in ((".txt", "text"), (".jsonl", "jsonl"), (".parquet", "parquet")):
        if name.endswith(ending) and not (kind == "parquet" and path.name.endswith(".gz")):
            return kind
    raise InputError(
        f"{path}: unknown kind of caption file; expected .txt, .txt.gz, .jsonl, .jsonl.gz or .parquet"
    )


def read_source(source: Source, column: str | None = None) -> Iterator[Row]:
    """The rows of a source in order.

    Raises:
        InputError: a line is not UTF-8 or not JSON, the column is missing or not text, or the file is cut
            short.
    """
    column = source.column or column
    if source.path is None:
        return _read_dataset(source, column)
    kind = _kind(source.path)
    if kind == "parquet":
        return _read_parquet(source.path, column)
    lines = text_lines(source.path)
    return _read_jsonl(source.path, lines, column) if kind == "jsonl" else ((n, text) for n, _, text in lines)


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else open(path, "rb")


def text_lines(path: Path) -> Iterator[tuple[int, int, str]]:
    """Lines of a UTF-8 text file, gz or not: (number from 1, byte offset in the uncompressed text, line without end).

    Raises:
        InputError: a line is not UTF-8, or the file is damaged or cut short.
    """
    offset = 0
    with _open(path) as stream:
        number = 0
        while raw := _next_line(path, stream, number, offset):
            number += 1
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path}: line {number} is not UTF-8: byte 0x{raw[error.start]:02x} at byte offset "
                    f"{offset + error.start} of the text; convert the file to UTF-8 and run again"
                ) from None
            yield number, offset, text.rstrip("\r\n")
            offset += len(raw)


def json_rows(path: Path) -> Iterator[tuple[int, str, Any]]:
    """Rows of a JSONL file, gz or not, blank lines left out: (line from 1, "FILE: line N" for messages, value).

    Raises:
        InputError: see text_lines; or a line is not JSON.
    """
    for number, _, line in text_lines(path):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        try:
            yield number, where, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not valid JSON ({error}); is the line cut?") from None


def _next_line(path: Path, stream: IO[bytes], number: int, offset: int) -> bytes:
    try:
        return stream.readline()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path}: cannot be read after line {number} (byte offset {offset} of the text): {error}; the "
            "file is damaged or was cut short: fetch it again"
        ) from None


def _read_jsonl(path: Path, lines: Iterator[tuple[int, int, str]], column: str | None) -> Iterator[Row]:
    for number, offset, line in lines:
        if not line.strip():
            yield number, ""
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{path}: line {number} (byte offset {offset}) is not valid JSON: {error}"
            ) from None
        yield number, _field(path, number, row, column)


def _field(path: Path, number: int, row: Any, column: str | None) -> str | None:
    if isinstance(row, str):
        return row
    if not isinstance(row, dict):
        raise InputError(
            f"{path}: line {number}: expected a JSON object or string, found {type(row).__name__}"
        )
    name = column or next((c for c in TEXT_COLUMNS if c in row), None)
    if name is None or name not in row:
        wanted = repr(column) if column else f"one of {', '.join(TEXT_COLUMNS)}"
        raise InputError(
            f"{path}: line {number}: no field {wanted}; found {sorted(row)}; name one with the column option"
        )
    value = row[name]
    if value is not None and not isinstance(value, str):
        raise InputError(f"{path}: line {number}: field {name!r} must be text, found {type(value).__name__}")
    return value


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    view = getattr(pa.types, "is_string_view", lambda _: False)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or view(kind)


def _text_column(name: str, schema: pa.Schema, column: str | None) -> str:
    """The caption column of a table, checked to hold text."""
    chosen = column or next((c for c in TEXT_COLUMNS if c in schema.names), None)
    texts = [field.name for field in schema if _is_text(field.type)]
    if chosen is None or chosen not in schema.names:
        wanted = f"column {column!r}" if column else f"column named {' or '.join(TEXT_COLUMNS)}"
        raise InputError(
            f"{name}: no {wanted}; its text columns are {texts}; name one with the column option"
        )
    kind = schema.field(chosen).type
    if not _is_text(kind):
        raise InputError(
            f"{name}: column {chosen!r} must hold text, found type {kind}; its text columns are {texts}"
        )
    return chosen


def _read_parquet(path: Path, column: str | None) -> Iterator[Row]:
    number = 0
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as table:
            name = _text_column(str(path), table.schema_arrow, column)
            for batch in table.iter_batches(batch_size=8192, columns=[name]):
                for value in batch.column(0).to_pylist():
                    number += 1
                    yield number, value
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: not a readable Parquet file after row {number} of it ({error}); {path.stat().st_size} "
            "bytes on disk: fetch it again"
        ) from None


def _read_dataset(source: Source, column: str | None) -> Iterator[Row]:
    import datasets  # here: slow to import, and only this kind of source needs it

    name, _, rest = source.name.removeprefix("datasets:").partition("@")
    revision, _, split = rest.partition(":")
    try:
        table = datasets.load_dataset(name, revision=revision, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{source.name}: the dataset cannot be loaded: {error}") from None
    chosen = _text_column(source.name, table.features.arrow_schema, column)
    for number, row in enumerate(table.select_columns([chosen]), start=1):
        yield number, row[chosen]


def is_text(value: str) -> bool:
    """Whether a string can be encoded: half a surrogate pair, which JSON can hold, cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
