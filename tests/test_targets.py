"""Targets: unit vectors of one corpus and one frame, refused everywhere else."""

import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.consensus import build
from captionbert.consensus.captions import open_corpus, prepare_corpus
from captionbert.consensus.embedding import embed_corpus
from captionbert.consensus.frames import open_frame
from captionbert.consensus.shards import ShardSet, shard_name
from captionbert.consensus.targets import open_targets
from captionbert.consensus.teachers import FunctionTeacher

# By name: the test folder is no package.
sys.path.append(str(Path(__file__).parent))
setup = importlib.import_module("consensus_setup")
toy = setup.toy


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return setup.write_captions(tmp_path_factory.mktemp("text") / "a.txt", 500)


@pytest.fixture(scope="module")
def made_once(source: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "d"
    build.embed([source], [toy("ref", 12), toy("wide", 16)], folder, held_out=20, shard_rows=128)
    build.fit(folder)
    build.targets(folder)
    return folder


@pytest.fixture
def done(made_once: Path, tmp_path: Path) -> Path:
    """A copy of a finished consensus folder, to damage."""
    return Path(shutil.copytree(made_once, tmp_path / "d"))


def test_targets_are_the_consensus_of_their_rows(done: Path) -> None:
    targets = open_targets(done, corpus=open_corpus(done / "corpus"))
    rows = np.array([499, 0, 130, 130])
    frame = open_frame(done / "frame")
    x = {n: ShardSet.open(done / "teachers" / n).read(rows) for n in ("ref", "wide")}
    found = targets.vectors(rows)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, frame.consensus(x), atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6)
    assert (targets.rows, targets.width, targets.frame_id) == (500, 12, frame.frame_id)
    assert targets.corpus_digest == open_corpus(done / "corpus").digest


def test_a_killed_build_goes_on_to_the_same_bytes(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {p.name: p.read_bytes() for p in (done / "targets").iterdir()}
    for name in (shard_name(128, 256), "manifest.json"):
        (done / "targets" / name).unlink()
    build.targets(done)
    assert {p.name: p.read_bytes() for p in (done / "targets").iterdir()} == before
    read = ShardSet.read
    monkeypatch.setattr(ShardSet, "read", lambda *_: pytest.fail("everything was done"))
    build.targets(done)
    monkeypatch.setattr(ShardSet, "read", read)


def test_one_flipped_bit(done: Path) -> None:
    path = done / "targets" / shard_name(128, 256)
    data = bytearray(path.read_bytes())
    data[-77] ^= 4
    path.write_bytes(data)
    targets = open_targets(done)
    assert targets.vectors(np.array([0])).shape == (1, 12)
    with pytest.raises(InputError, match=rf"{path.name}: expected SHA-256 .* the shard is damaged"):
        targets.vectors(np.array([0, 200]))


def test_a_missing_shard(done: Path) -> None:
    (done / "targets" / shard_name(0, 128)).unlink()
    with pytest.raises(
        InputError, match=r"this shard \(rows 0\.\.127\) is missing; remove that file and run"
    ):
        open_targets(done).vectors(np.array([5]))


def test_targets_of_another_frame_are_refused(done: Path, source: str, tmp_path: Path) -> None:  # law 17
    with pytest.raises(
        InputError, match=f"the frame asked for is {'0' * 64}; vectors of two frames cannot be compared"
    ):
        open_targets(done, frame_id="0" * 64)
    other = tmp_path / "other"
    build.embed(
        [source], [toy("ref", 12), toy("wide", 16), toy("more", 16)], other, held_out=20, shard_rows=128
    )
    build.fit(other)
    build.targets(other)
    ours, theirs = (open_frame(f / "frame").frame_id for f in (done, other))
    assert ours != theirs
    assert open_targets(other, frame_id=theirs).frame_id == theirs
    # a single shard of the other frame, put in by hand with its own record
    path = done / "targets" / shard_name(0, 128)
    path.write_bytes((other / "targets" / shard_name(0, 128)).read_bytes())
    with pytest.raises(InputError, match=shard_name(0, 128)):
        open_targets(done).vectors(np.array([5]))
    # the whole folder of the other frame
    (done / "targets").rename(tmp_path / "kept")
    (other / "targets").rename(done / "targets")
    with pytest.raises(InputError, match=f"targets of frame {theirs}, the frame in .* is {ours}"):
        open_targets(done)
    with pytest.raises(
        InputError, match=f"holds targets of frame {theirs}, the frame is now {ours}; remove that folder"
    ):
        build.targets(done)


def test_captions_and_targets_that_disagree(done: Path, tmp_path: Path, source: str) -> None:
    rows = Path(source).read_text().splitlines()
    (tmp_path / "fewer.txt").write_text("\n".join(rows[:-1]))
    (tmp_path / "changed.txt").write_text("\n".join([*rows[:-1], "one other caption"]))
    fewer = prepare_corpus([str(tmp_path / "fewer.txt")], tmp_path / "fewer")
    with pytest.raises(InputError, match="500 targets for the 499 captions of"):
        open_targets(done, corpus=fewer)
    changed = prepare_corpus([str(tmp_path / "changed.txt")], tmp_path / "changed")
    with pytest.raises(InputError, match="made for captions of digest"):
        open_targets(done, corpus=changed)


def test_targets_older_than_a_teacher_are_refused_by_digest(done: Path, tmp_path: Path) -> None:
    shards = done / "teachers" / "wide"
    for path in list(shards.iterdir()):
        path.unlink()
    moved = toy("wide", 16, "other")
    embed_corpus(
        open_corpus(done / "corpus"),
        FunctionTeacher(
            moved.spec, 16, lambda t: moved.encode(t) * 1.25, "wide"
        ),  # same name and fingerprint
        shards,
        shard_rows=128,
    )
    with pytest.raises(
        InputError, match="older than the vectors of wide; remove that folder to build it anew"
    ):
        build.targets(done)


def test_no_targets_yet(done: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no targets there; run `captionbert consensus targets` first"):
        open_targets(tmp_path / "nothing")
