"""Caption sources: every format gives the same rows, and every unreadable one says where and why."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.consensus.readers import open_source, read_source

ROWS = ["a cat sleeps", "ein Mädchen läuft", "two dogs, one ball"]


def rows_of(path: Path, column: str | None = None) -> list[tuple[int, str | None]]:
    return list(read_source(open_source(str(path)), column))


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    lines = "\n".join(ROWS) + "\n"
    objects = "".join(json.dumps({"text": r}) + "\n" for r in ROWS)
    (tmp_path / "a.txt").write_text(lines, encoding="utf-8")
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbf" + lines.replace("\n", "\r\n").encode())
    (tmp_path / "b.jsonl").write_text(objects, encoding="utf-8")
    with gzip.open(tmp_path / "c.txt.gz", "wt", encoding="utf-8") as stream:
        stream.write(lines)
    pq.write_table(pa.table({"n": [1, 2, 3], "caption": ROWS}), tmp_path / "d.parquet")
    pq.write_table(pa.table({"caption": pa.array(ROWS).dictionary_encode()}), tmp_path / "e.parquet")
    expected = list(enumerate(ROWS, start=1))
    for name in ("a.txt", "windows.txt", "b.jsonl", "c.txt.gz", "d.parquet", "e.parquet"):
        assert rows_of(tmp_path / name) == expected, name


def test_identity_is_the_content_not_the_place(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("same\n")
    first, second = (open_source(str(tmp_path / f / "a.txt")) for f in ("x", "y"))
    assert (first.name, first.identity) == (second.name, second.identity)


def test_missing_and_empty_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.txt: no such caption file"):
        open_source(str(tmp_path / "gone.txt"))
    (tmp_path / "empty.txt").touch()
    with pytest.raises(InputError, match=r"empty\.txt: the caption file is empty"):
        open_source(str(tmp_path / "empty.txt"))
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(InputError, match="unknown kind of caption file"):
        open_source(str(tmp_path / "a.csv"))


@pytest.mark.parametrize("packed", [False, True])
def test_line_that_is_not_utf8_names_file_line_and_byte(tmp_path: Path, packed: bool) -> None:
    data = "ok\nça va\n".encode() + b"caf\xe9 au lait\n"
    path = tmp_path / ("a.txt.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(InputError, match=r"a\.txt.*: line 3 is not UTF-8: byte 0xe9 at byte offset 13"):
        rows_of(path)


def test_truncated_gzip_names_the_last_good_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress("".join(f"caption {i}\n" for i in range(5000)).encode())[:-2000])
    with pytest.raises(InputError, match=r"cannot be read after line \d+ .*cut short"):
        rows_of(path)


def test_jsonl_errors_name_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b"')
    with pytest.raises(InputError, match=r"line 2 \(byte offset 14\) is not valid JSON"):
        rows_of(path)
    path.write_text('{"words": "a"}\n')
    with pytest.raises(
        InputError, match=r"line 1: no field one of text, caption, sentence; found \['words'\]"
    ):
        rows_of(path)
    assert rows_of(path, "words") == [(1, "a")]
    path.write_text('{"text": ["a", "b"]}\n')
    with pytest.raises(InputError, match="line 1: field 'text' must be text, found list"):
        rows_of(path)
    path.write_text('["a", "b"]\n')
    with pytest.raises(InputError, match="expected a JSON object or string, found list"):
        rows_of(path)
    path.write_text('{"text": null}\n')
    assert rows_of(path) == [(1, None)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            pa.table({"text": [1, 2], "title": ["a", "b"]}),
            r"column 'text' must hold text, found type int64.*\['title'\]",
        ),
        (pa.table({"text": [["a"], ["b"]]}), r"column 'text' must hold text, found type list<"),
        (pa.table({"text": [{"en": "a"}]}), r"column 'text' must hold text, found type struct<"),
        (
            pa.table({"words": ["a"]}),
            r"no column named text or caption or sentence; its text columns are \['words'\]",
        ),
    ],
)
def test_parquet_column_of_the_wrong_type(tmp_path: Path, table: pa.Table, message: str) -> None:
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=message):
        rows_of(tmp_path / "a.parquet")


def test_parquet_nulls_and_truncation(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", None, "c"]}), path)
    assert rows_of(path) == [(1, "a"), (2, None), (3, "c")]
    with pytest.raises(InputError, match="no column 'nope'"):
        rows_of(path, "nope")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"a\.parquet: not a readable Parquet file"):
        rows_of(path)


def test_dataset_needs_a_commit_and_reads_its_split(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    with pytest.raises(InputError, match=r"needs its commit, 40 hex digits.*found revision 'main'"):
        open_source("datasets:owner/name@main")
    asked = {}

    def load(name: str, *, revision: str, split: str) -> datasets.Dataset:
        asked.update(name=name, revision=revision, split=split)
        return datasets.Dataset.from_dict({"words": ["a", "b"], "n": [1, 2]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    revision = "0123456789" * 4
    assert list(read_source(open_source(f"datasets:owner/name@{revision}:validation:words"))) == [
        (1, "a"),
        (2, "b"),
    ]
    assert asked == {"name": "owner/name", "revision": revision, "split": "validation"}
    with pytest.raises(InputError, match="column 'n' must hold text, found type int64"):
        list(read_source(open_source(f"datasets:owner/name@{revision}:train:n")))
