"""Shards: a killed or damaged run never mixes vectors, and finishing it gives the bytes of a quiet run."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import read_json, write_json
from captionbert.consensus.captions import Corpus, prepare_corpus
from captionbert.consensus.embedding import embed_corpus
from captionbert.consensus.shards import (
    ShardSet,
    ShardWriter,
    is_complete,
    shard_bytes,
    shard_name,
)
from captionbert.consensus.teachers import FunctionTeacher, teacher_from_function

WIDTH = 6


@pytest.fixture(scope="module")
def corpus(captions: list[str], tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "a.txt").write_text("\n".join(captions))
    return prepare_corpus([str(folder / "a.txt")], folder / "corpus")


def vectors_of(texts: list[str]) -> np.ndarray:
    """A fixed random vector a text."""
    seeds = [int.from_bytes(t.encode()[-8:].rjust(8), "little") % 2**32 + len(t) for t in texts]
    return np.stack([np.random.default_rng(s).standard_normal(WIDTH) for s in seeds]).astype(np.float32)


def toy(function=vectors_of, width: int = WIDTH, content: str = "toy") -> FunctionTeacher:
    return teacher_from_function("toy", width, function, content=content)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def test_vectors_come_back_by_row_id(corpus: Corpus, captions: list[str], tmp_path: Path) -> None:
    shards = embed_corpus(corpus, toy(), tmp_path / "s", shard_rows=48)
    expected = vectors_of(captions)
    rows = np.array([199, 0, 48, 47, 199])
    np.testing.assert_allclose(shards.read(rows), expected[rows], atol=2e-3)
    streamed = list(shards.stream())
    assert [start for start, _ in streamed] == [0, 48, 96, 144, 192]
    assert np.array_equal(np.concatenate([v for _, v in streamed]), shards.read(np.arange(200)))
    assert (shards.rows, shards.width, shards.corpus_digest) == (200, WIDTH, corpus.digest)
    assert shards.verify() == []
    record = shards.manifest["records"][0]
    assert record["min"] == pytest.approx(expected[:48].min())
    assert record["max"] == pytest.approx(expected[:48].max())
    with pytest.raises(InputError, match=r"row ids must lie in 0\.\.199, found 0\.\.200"):
        shards.read(np.array([0, 200]))


def test_bytes_do_not_depend_on_the_run(corpus: Corpus, tmp_path: Path) -> None:
    embed_corpus(corpus, toy(), tmp_path / "one", shard_rows=48)
    embed_corpus(corpus, toy(), tmp_path / "two", shard_rows=48)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")
    # more than one metadata key would be written in an order that changes from process to process
    assert shard_bytes(np.ones((2, 3)), {"b": 1, "a": 2})[8:].count(b'"__metadata__":{"shard":') == 1


def test_half_written_files_of_a_killed_process_are_removed(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / f".tmp-{shard_name(0, 48)}-abc").write_bytes(b"half")
    embed_corpus(corpus, toy(), tmp_path / "s", shard_rows=48)
    assert not list((tmp_path / "s").glob(".tmp-*"))


def test_resume_starts_at_the_first_missing_shard(corpus: Corpus, tmp_path: Path) -> None:
    calls: list[int] = []

    def stops_at_third(texts: list[str]) -> np.ndarray:
        calls.append(len(texts))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return vectors_of(texts)

    with pytest.raises(KeyboardInterrupt):
        embed_corpus(corpus, toy(stops_at_third), tmp_path / "s", shard_rows=48)
    with pytest.raises(InputError, match=r"rows 96 and on are not there yet \(2 shards, 200 rows wanted\)"):
        ShardSet.open(tmp_path / "s")
    assert not is_complete(tmp_path / "s", corpus.digest)
    calls[:] = [0] * 10
    embed_corpus(corpus, toy(stops_at_third), tmp_path / "s", shard_rows=48)
    assert calls[10:] == [48, 48, 8]
    embed_corpus(corpus, toy(), tmp_path / "quiet", shard_rows=48)
    assert bytes_of(tmp_path / "s") == bytes_of(tmp_path / "quiet")
    assert is_complete(tmp_path / "s", corpus.digest)


KILLED = """
    import sys, time
    import numpy as np
    from captionbert.consensus.captions import open_corpus
    from captionbert.consensus.embedding import embed_corpus
    from captionbert.consensus.teachers import teacher_from_function

    def encode(texts):
        time.sleep(float(sys.argv[3]))
        return np.array([[len(t), ord(t[-2]), i % 7, 1.0] for i, t in enumerate(texts)], dtype=np.float32)

    print("ready", flush=True)
    embed_corpus(open_corpus(sys.argv[1]), teacher_from_function("toy", 4, encode), sys.argv[2], shard_rows=4)
"""


def test_sigkill_at_any_moment_then_a_rerun_gives_the_same_bytes(corpus: Corpus, tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(KILLED))

    def start(folder: str, pause: float) -> subprocess.Popen:
        command = [sys.executable, str(script), str(corpus.folder), str(tmp_path / folder), str(pause)]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    assert start("quiet", 0).wait() == 0
    for delay in (0.05, 0.13, 0.21):
        process = start("killed", 0.004)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start("killed", 0).wait() == 0
    quiet, killed = bytes_of(tmp_path / "quiet"), bytes_of(tmp_path / "killed")
    assert quiet == killed  # what the killed processes left half-written is gone too
    assert ShardSet.open(tmp_path / "killed").verify() == []


def test_every_flipped_bit_is_caught_and_only_that_shard_is_repaired(corpus: Corpus, tmp_path: Path) -> None:
    embed_corpus(corpus, toy(), tmp_path / "s", shard_rows=48)
    good = bytes_of(tmp_path / "s")
    path = tmp_path / "s" / shard_name(48, 96)
    for offset in np.linspace(0, path.stat().st_size - 1, 80).astype(int):
        data = bytearray(good[path.name])
        data[offset] ^= 1 << (offset % 8)
        path.write_bytes(data)
        with pytest.raises(
            InputError, match=rf"{path.name}: expected SHA-256 .* the shard is damaged: remove that file"
        ):
            ShardSet.open(tmp_path / "s").read(np.array([50]))
    assert np.isfinite(ShardSet.open(tmp_path / "s").read(np.array([0, 199]))).all()
    calls: list[int] = []
    with pytest.warns(UserWarning, match="replaced; its bytes differ"):
        embed_corpus(
            corpus, toy(lambda t: calls.append(len(t)) or vectors_of(t)), tmp_path / "s", shard_rows=48
        )
    assert calls == [48]
    assert bytes_of(tmp_path / "s") == good


def test_a_missing_or_cut_shard_is_not_done(corpus: Corpus, tmp_path: Path) -> None:
    embed_corpus(corpus, toy(), tmp_path / "s", shard_rows=48)
    path = tmp_path / "s" / shard_name(96, 144)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(
        InputError, match=f"expected {len(data)} bytes, found {len(data) - 1}; the shard was cut"
    ):
        ShardSet.open(tmp_path / "s").read(np.array([100]))
    path.unlink()
    assert not is_complete(tmp_path / "s", corpus.digest)
    with pytest.raises(InputError, match=rf"{path.name}: this shard \(rows 96\.\.143\) is missing"):
        ShardSet.open(tmp_path / "s").read(np.array([100]))
    embed_corpus(corpus, toy(), tmp_path / "s", shard_rows=48)
    assert path.read_bytes() == data


def test_two_shards_swapped_by_name_are_caught(corpus: Corpus, tmp_path: Path) -> None:
    embed_corpus(corpus, toy(), tmp_path / "s", shard_rows=50)
    first, second = (tmp_path / "s" / shard_name(a, a + 50) for a in (0, 50))
    manifest = read_json(tmp_path / "s" / "manifest.json")
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    # the manifest swapped as well: only the row range inside the file is left to tell
    a, b = manifest["records"][:2]
    for key in ("sha256", "size"):
        a[key], b[key] = b[key], a[key]
    write_json(tmp_path / "s" / "manifest.json", manifest)
    with pytest.raises(InputError, match="a shard of another place lies here"):
        ShardSet.open(tmp_path / "s").read(np.array([0]))


def test_another_teacher_corpus_or_format_is_refused(
    corpus: Corpus, captions: list[str], tmp_path: Path
) -> None:
    embed_corpus(corpus, toy(), tmp_path / "s", shard_rows=48)
    with pytest.raises(
        InputError, match=r"holds vectors of another teacher or frame \(weights, tokenizer, pooling"
    ):
        embed_corpus(corpus, toy(content="other weights"), tmp_path / "s", shard_rows=48)
    (tmp_path / "b.txt").write_text("\n".join(captions[::-1]))
    other = prepare_corpus([str(tmp_path / "b.txt")], tmp_path / "corpus")
    with pytest.raises(InputError, match=r"another corpus \(its captions differ\)"):
        embed_corpus(other, toy(), tmp_path / "s", shard_rows=48)
    with pytest.raises(InputError, match="another shard size: there 48, now 50"):
        embed_corpus(corpus, toy(), tmp_path / "s", shard_rows=50)
    manifest = tmp_path / "s" / "manifest.json"
    write_json(manifest, {**read_json(manifest), "version": 99})
    with pytest.raises(InputError, match="format version 99, this program reads 1"):
        ShardSet.open(tmp_path / "s")
    manifest.write_text(manifest.read_text()[:40])
    with pytest.raises(InputError, match="not valid JSON"):
        ShardSet.open(tmp_path / "s")


def refused(corpus: Corpus, out: Path, function, message: str, width: int = WIDTH) -> None:
    with pytest.raises(InputError, match=message):
        embed_corpus(corpus, toy(function, width), out, shard_rows=48)
    assert not list(out.glob("*.safetensors"))


def test_a_teacher_that_returns_nonsense_is_refused_before_a_shard_is_written(
    corpus: Corpus, tmp_path: Path
) -> None:
    def nan_at_five(texts: list[str]) -> np.ndarray:
        found = vectors_of(texts)
        if "two dogs runs on the beach." not in texts or len(texts) == 1:
            found[0] = np.nan
        found[[t == "two dogs runs on the beach." for t in texts]] = np.nan
        return found

    refused(corpus, tmp_path / "a", nan_at_five, "teacher toy: NaN or infinite vector for row 2")
    refused(
        corpus,
        tmp_path / "b",
        lambda t: np.ones((len(t), WIDTH)),
        r"same vector for all rows 0\.\.47: it does not",
    )
    refused(
        corpus,
        tmp_path / "c",
        vectors_of,
        r"expected 48 vectors of width 9 .* found shape \(48, 6\)",
        width=9,
    )
    refused(corpus, tmp_path / "d", lambda t: vectors_of(t)[1:], r"found shape \(47, 6\)")
    refused(corpus, tmp_path / "e", lambda t: vectors_of(t).astype(int), "floating point.* of int64")
    refused(corpus, tmp_path / "f", lambda t: vectors_of(t) * 1e6, "does not fit fp16 storage")
    refused(corpus, tmp_path / "g", lambda t: vectors_of(t) * 1e-7, "does not fit fp16 storage")


def test_a_row_that_fails_only_in_a_batch_is_tried_alone(
    corpus: Corpus, captions: list[str], tmp_path: Path
) -> None:
    def fails_in_batches(texts: list[str]) -> np.ndarray:
        found = vectors_of(texts)
        if len(texts) > 1:
            found[3] = np.inf
        return found

    shards = embed_corpus(corpus, toy(fails_in_batches), tmp_path / "s", shard_rows=48)
    np.testing.assert_allclose(shards.read(np.arange(200)), vectors_of(captions), atol=2e-3)


FULL = """
    import resource, signal, sys
    import numpy as np
    from captionbert.artifacts.errors import InputError
    from captionbert.consensus.captions import open_corpus
    from captionbert.consensus.embedding import embed_corpus
    from captionbert.consensus.teachers import teacher_from_function

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    calls = []

    def encode(texts):
        calls.append(1)
        if len(calls) == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        return np.random.default_rng(len(calls)).standard_normal((len(texts), 600)).astype(np.float32)

    try:
        teacher = teacher_from_function("toy", 600, encode)
        embed_corpus(open_corpus(sys.argv[1]), teacher, sys.argv[2], shard_rows=48)
    except InputError as error:
        print(error)
        sys.exit(2)
"""


def test_a_full_disk_leaves_the_earlier_shards(corpus: Corpus, tmp_path: Path) -> None:
    script = tmp_path / "full.py"
    script.write_text(textwrap.dedent(FULL))
    found = subprocess.run(
        [sys.executable, str(script), str(corpus.folder), str(tmp_path / "s")], capture_output=True, text=True
    )
    assert found.returncode == 2, found.stderr
    assert "cannot be written" in found.stdout
    assert "the 2 shards before it are intact" in found.stdout
    assert list(bytes_of(tmp_path / "s")) == ["manifest.json", shard_name(0, 48), shard_name(48, 96)]


def test_an_unwritable_folder_is_found_before_any_work(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    called: list[int] = []
    with pytest.raises(InputError, match=r"cannot be written .* choose another output folder"):
        embed_corpus(corpus, toy(lambda t: called.append(1) or vectors_of(t)), tmp_path / "file" / "s")
    assert called == []


def test_a_rename_across_file_systems_is_found_by_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exdev(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "replace", exdev)
    with pytest.raises(InputError, match="Invalid cross-device link"):
        ShardWriter(tmp_path / "s", rows=1, width=1, corpus_digest="c", fingerprint="f")


def test_rows_not_covered_exactly_once_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    embed_corpus(corpus, toy(), tmp_path / "s", shard_rows=50)
    manifest = read_json(tmp_path / "s" / "manifest.json")
    manifest["records"][1] = {**manifest["records"][1], "start": 40}
    write_json(tmp_path / "s" / "manifest.json", manifest)
    with pytest.raises(InputError, match="rows 50 and on are not there yet"):
        ShardSet.open(tmp_path / "s")


def test_reading_memory_does_not_grow_with_rows(corpus: Corpus, tmp_path: Path) -> None:
    shards = embed_corpus(corpus, toy(), tmp_path / "s", shard_rows=10)
    for _ in shards.stream():
        assert len(shards._mapped) <= 1
    shards.read(np.arange(200))
    shards.release()
    assert not shards._mapped
    shutil.rmtree(tmp_path / "s")
