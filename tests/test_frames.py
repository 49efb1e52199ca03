"""The frame: the consensus formula by hand, its id, and what it refuses to be built from."""

import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import read_json, write_json
from captionbert.consensus.build import embed, open_consensus
from captionbert.consensus.build import fit as fit_and_report
from captionbert.consensus.build import targets as build_targets
from captionbert.consensus.captions import open_corpus
from captionbert.consensus.frames import Frame, fit_frame, open_frame, relative_weights
from captionbert.consensus.report import format_report
from captionbert.consensus.shards import ShardSet
from captionbert.consensus.teachers import teacher_from_function
from captionbert.distill.describe import describe

# By name: the test folder is no package.
sys.path.append(str(Path(__file__).parent))
setup = importlib.import_module("consensus_setup")
toy = setup.toy


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return setup.write_captions(tmp_path_factory.mktemp("text") / "a.txt", 600)


@pytest.fixture(scope="module")
def made_once(source: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "d"
    embed([source], [toy("ref", 12), toy("wide", 20), toy("slim", 8)], folder, held_out=20, shard_rows=256)
    return folder


@pytest.fixture
def embedded(made_once: Path, tmp_path: Path) -> Path:
    """A copy of an embedded folder, to fit in or to damage."""
    return Path(shutil.copytree(made_once, tmp_path / "d"))


def fitted(folder: Path, **options: object) -> Frame:
    return fit_frame(folder, *open_consensus(folder), **options)  # type: ignore[arg-type]


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_consensus_is_the_formula(embedded: Path) -> None:
    frame = fitted(embedded)
    rows = np.array([3, 400, 77])
    x = {
        n: ShardSet.open(embedded / "teachers" / n).read(rows).astype(float) for n in ("ref", "wide", "slim")
    }
    parts = [x["ref"]]  # as itself
    for name in ("wide", "slim"):
        m = frame.maps[name]
        parts.append((x[name] - m.mean_in) @ m.matrix + m.mean_out)
    np.testing.assert_allclose(frame.consensus(x), unit(sum(unit(p) for p in parts) / 3), atol=1e-12)
    assert np.array_equal(frame.mapped("ref", x["ref"]), x["ref"])


def test_a_teacher_missing_is_refused_not_averaged_without(embedded: Path) -> None:
    frame = fitted(embedded)
    with pytest.raises(
        InputError, match=r"needs vectors of \['ref', 'wide', 'slim'\], found \['ref', 'slim'\]"
    ):
        frame.consensus({"ref": np.ones((1, 12)), "slim": np.ones((1, 8))})
    (embedded / "teachers" / "slim" / "manifest.json").unlink()
    with pytest.raises(InputError, match="no such file"):
        fitted(embedded)


def test_score_rows_are_disjoint_and_the_table_complete(embedded: Path) -> None:
    frame = fitted(embedded)
    assert not np.intersect1d(frame.fit_rows, frame.score_rows).size
    assert sorted(frame.table) == ["slim", "wide"]
    row = frame.table["wide"]
    assert row["rows_per_dimension"] == pytest.approx(len(frame.fit_rows) / 20)
    assert row["out_of_sample"]["centred_cosine"] > 0.8 > row["shuffled"]["centred_cosine"]
    assert row["out_of_sample"]["rows"] == row["in_sample"]["rows"] == len(frame.score_rows)


def test_frame_id_is_the_reference_and_the_maps(embedded: Path, source: str, tmp_path: Path) -> None:
    frame = fitted(embedded)
    embed(
        [source],
        [toy("ref", 12), toy("wide", 20), toy("slim", 8)],
        tmp_path / "again",
        held_out=20,
        shard_rows=256,
    )
    assert fitted(tmp_path / "again").frame_id == frame.frame_id
    others = {
        "two": [toy("ref", 12), toy("wide", 20)],
        "order": [toy("wide", 20), toy("ref", 12), toy("slim", 8)],
        "weights": [toy("ref", 12, content="new"), toy("wide", 20), toy("slim", 8)],
    }
    ids = {frame.frame_id}
    for name, teachers in others.items():
        embed([source], teachers, tmp_path / name, held_out=20, shard_rows=256)
        ids.add(fitted(tmp_path / name).frame_id)
    assert len(ids) == 4
    assert fitted(embedded, seed=3).frame_id not in ids


def test_a_refit_with_the_same_inputs_reuses(embedded: Path) -> None:
    one = fitted(embedded)
    written = (embedded / "frame" / "maps.safetensors").stat().st_mtime_ns
    two = fitted(embedded)
    assert (embedded / "frame" / "maps.safetensors").stat().st_mtime_ns == written
    assert one.frame_id == two.frame_id
    assert np.array_equal(one.maps["wide"].matrix, two.maps["wide"].matrix)


def test_a_forced_frame_is_not_reused_silently(source: str, tmp_path: Path) -> None:
    embed([source], [toy("ref", 12), toy("wide", 60)], tmp_path / "d", shard_rows=256, force=True)
    with pytest.raises(InputError, match=r"teacher wide: .* fit rows for 60 dimensions"):
        fitted(tmp_path / "d")
    assert fitted(tmp_path / "d", force=True).table["wide"]["rows_per_dimension"] < 10
    with pytest.raises(InputError, match="fit rows for 60 dimensions"):
        fitted(tmp_path / "d")


def test_a_shuffled_teacher_fails_the_fit(source: str, tmp_path: Path) -> None:
    good = toy("wide", 20)

    def shuffled(texts: list[str]) -> np.ndarray:
        return good.encode(texts)[np.random.default_rng(0).permutation(len(texts))]

    teachers = [toy("ref", 12), teacher_from_function("wide", 20, shuffled)]
    embed([source], teachers, tmp_path / "d", shard_rows=1000)
    with pytest.raises(InputError, match=r"teacher wide: centred cosine out of sample .* not above"):
        fitted(tmp_path / "d")


def test_teachers_of_another_corpus_or_fingerprint_are_refused(embedded: Path, tmp_path: Path) -> None:
    info, corpus = open_consensus(embedded)
    (tmp_path / "b.txt").write_text("\n".join(f"cat dog {i}" for i in range(600)))
    embed([str(tmp_path / "b.txt")], [toy("slim", 8)], tmp_path / "other", shard_rows=256)
    mine, theirs = embedded / "teachers" / "slim", tmp_path / "other" / "teachers" / "slim"
    mine.rename(tmp_path / "kept")
    theirs.rename(mine)
    with pytest.raises(InputError, match=r"600 vectors of corpus .*, the captions are 600 rows of"):
        fit_frame(embedded, info, corpus)
    mine.rename(theirs)
    (tmp_path / "kept").rename(mine)
    info["teachers"][2]["fingerprint"] = "0" * 64
    with pytest.raises(InputError, match="not the teacher named in"):
        fit_frame(embedded, info, corpus)


def test_a_damaged_frame_is_refused(embedded: Path) -> None:
    fitted(embedded)
    write_json(embedded / "frame" / "frame.json", {"kind": "consensus-frame"})
    with pytest.raises(InputError, match=r"frame\.json: expected \d+ bytes"):
        open_frame(embedded / "frame")
    with pytest.raises(InputError, match="no frame there"):
        open_frame(embedded / "gone")


def test_weights_are_those_of_the_mean_and_part_of_the_frame(embedded: Path) -> None:
    plain = fitted(embedded)
    written = (embedded / "frame" / "maps.safetensors").read_bytes()
    frame = fitted(embedded, weights={"ref": 2.0, "slim": 0.5})
    assert frame.weights == {"ref": 1.0, "wide": 0.5, "slim": 0.25}
    assert (embedded / "frame" / "maps.safetensors").read_bytes() == written  # the maps stay
    rows = np.array([3, 400, 77])
    x = {n: ShardSet.open(embedded / "teachers" / n).read(rows).astype(float) for n in frame.teachers}
    parts = {name: unit(plain.mapped(name, x[name])) for name in frame.teachers}
    expected = unit(2 * parts["ref"] + parts["wide"] + 0.5 * parts["slim"])
    np.testing.assert_allclose(frame.consensus(x), expected, atol=1e-12)
    assert open_frame(embedded / "frame").frame_id == frame.frame_id != plain.frame_id
    assert fitted(embedded, weights={"ref": 2.0, "slim": 0.25}).frame_id not in (
        frame.frame_id,
        plain.frame_id,
    )
    assert fitted(embedded, weights={"ref": 4, "wide": 2, "slim": 1}).frame_id == frame.frame_id


def test_equal_weights_of_any_magnitude_are_no_weights(embedded: Path) -> None:
    plain = fitted(embedded)
    files = {p.name: p.read_bytes() for p in (embedded / "frame").iterdir()}
    build_targets(embedded)
    targets = {p.name: p.read_bytes() for p in (embedded / "targets").iterdir()}
    shutil.rmtree(embedded / "frame")
    shutil.rmtree(embedded / "targets")
    assert fitted(embedded, weights={"ref": 0.3, "wide": 0.3, "slim": 0.3}).weights is None
    build_targets(embedded)
    assert {p.name: p.read_bytes() for p in (embedded / "frame").iterdir()} == files
    assert {p.name: p.read_bytes() for p in (embedded / "targets").iterdir()} == targets
    fitted(embedded, weights={"ref": 2.0})
    assert fitted(embedded, weights={}).frame_id == plain.frame_id  # and back again


def test_weights_stay_until_others_are_given(embedded: Path) -> None:
    plain = fitted(embedded)
    frame = fitted(embedded, weights={"ref": 2.0})
    assert fitted(embedded).frame_id == frame.frame_id
    assert fitted(embedded, sample_rows=900).weights == frame.weights  # fitted anew, on other rows
    assert fitted(embedded, weights={"ref": 1.0}).frame_id == plain.frame_id
    fitted(embedded, weights={"ref": 2.0})
    info = read_json(embedded / "consensus.json")
    info["teachers"].pop()
    with pytest.raises(
        InputError, match=r"weighs ref=1, wide=0\.5, slim=0\.5, the teachers are now ref, wide; give"
    ):
        fit_frame(embedded, info, open_corpus(embedded / "corpus"))


def test_weights_are_in_the_report_and_old_targets_are_refused(embedded: Path) -> None:
    fitted(embedded)
    build_targets(embedded)
    report = fit_and_report(embedded, weights={"wide": 3.0})
    assert report["alignment"]["weights"]["wide"] == 1.0
    assert "weights of the mean: ref 0.333333, wide 1, slim 0.333333" in format_report(report)
    assert describe(embedded)["teachers"]["slim"]["weight"] == pytest.approx(1 / 3)
    with pytest.raises(InputError, match=r"holds targets of frame .*remove that folder"):
        build_targets(embedded)
    assert "weights" in fit_and_report(embedded)["alignment"]
    assert "weights" not in fit_and_report(embedded, weights={})["alignment"]
    assert "weight" not in describe(embedded)["teachers"]["slim"]


def test_weights_are_compared_as_decimals() -> None:
    names = ["a", "b"]
    assert relative_weights({"a": 0.1, "b": 0.3}, names) == relative_weights({"a": 1, "b": 3}, names)
    assert relative_weights(None, names) is None
    assert relative_weights({"a": 1.0}, names) is None  # the other weighs 1


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"wild": 2.0}, r"--weights: 'wild' is not among the teachers \['ref', 'wide', 'slim'\]"),
        ({"wide": 0.0}, r"--weights: wide=0; expected a positive number"),
        ({"wide": -1.0}, r"--weights: wide=-1; expected a positive number"),
        ({"wide": float("nan")}, r"--weights: wide=nan; expected a positive number"),
        ({"wide": 1e-200, "ref": 1e200}, r"wide weighs less than 1e-06 of the heaviest"),
        ({"wide": float("inf")}, r"--weights: wide=inf; expected a positive number"),
    ],
)
def test_weights_that_cannot_be(
    embedded: Path, weights: dict[str, float], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        fitted(embedded, weights=weights)
    assert not (embedded / "frame").exists()
    teachers = [toy("ref", 12), toy("wide", 20), toy("slim", 8)]
    with pytest.raises(InputError, match=message):
        embed(["nowhere.txt"], teachers, tmp_path / "new", weights=weights)  # before anything is read
