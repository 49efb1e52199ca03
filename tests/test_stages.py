"""The stage runner over fake stages: done once, resumed, refused or made again when an input changed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import folder_lock, read_json, sha256_file, write_json
from captionbert.distill.stages import RECORD, Stage, differences, run_stages


class Bench:
    """Three fake stages over one folder; each writes its inputs into a file and counts its runs."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.source = "first"
        self.runs: list[str] = []
        self.fail: str | None = None
        self.log: list[str] = []

    def stage(self, name: str, inputs: Any, *, repeatable: bool = True) -> Stage:
        path = self.out / f"{name}.json"

        def run() -> None:
            self.runs.append(name)
            if self.fail == name:
                raise RuntimeError(f"{name} failed")
            write_json(path, {"made from": inputs()})

        def output() -> str:
            read_json(path)
            return sha256_file(path)

        return Stage(name, f"make {name}", inputs, run, output, (path,), repeatable)

    def stages(self) -> list[Stage]:
        digest = lambda name: sha256_file(self.out / f"{name}.json")  # noqa: E731
        return [
            self.stage("read", lambda: {"source": self.source}),
            self.stage("train", lambda: {"data": digest("read")}, repeatable=False),
            self.stage("look", lambda: {"model": digest("train")}),
        ]

    def go(self, **options: Any) -> list[str]:
        """Run; returns the names of the stages that did work."""
        self.runs, self.log = [], []
        run_stages(self.out, self.stages(), say=self.log.append, **options)
        return self.runs


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "out")


def test_second_run_skips_everything_and_says_so(bench: Bench) -> None:
    assert bench.go() == ["read", "train", "look"]
    assert bench.go() == []
    assert bench.log == [
        f"[{i}/3] {name}: skipped (done)" for i, name in enumerate(("read", "train", "look"), 1)
    ]


def test_a_failed_stage_is_where_the_next_run_goes_on(bench: Bench) -> None:
    bench.fail = "train"
    with pytest.raises(RuntimeError, match="train failed"):
        bench.go()
    bench.fail = None
    assert bench.go() == ["train", "look"]
    assert "[2/3] train: make train (goes on)" in bench.log


def test_a_finished_artefact_without_its_record_is_not_taken_for_done(bench: Bench) -> None:
    bench.go()
    record = json.loads((bench.out / RECORD).read_text())
    record["stages"]["look"]["state"] = "started"  # killed after the artefact, before the record
    write_json(bench.out / RECORD, record)
    assert bench.go() == ["look"]


@pytest.mark.parametrize(
    "damage", [lambda p: p.unlink(), lambda p: p.write_text("{"), lambda p: p.write_text("{}")]
)
def test_a_missing_torn_or_changed_artefact_is_made_again(bench: Bench, damage: Any) -> None:
    bench.go()
    damage(bench.out / "look.json")
    assert bench.go() == ["look"]
    assert "(again: " in bench.log[2]
    assert bench.go() == []


def test_changed_input_of_a_repeatable_stage_is_made_again(bench: Bench) -> None:
    bench.go()
    stages = bench.stages()
    stages[2] = bench.stage("look", lambda: {"model": "another"})
    bench.runs, bench.log = [], []
    run_stages(bench.out, stages, say=bench.log.append)
    assert bench.runs == ["look"]
    assert "is another)" in bench.log[-2]


def test_changed_input_before_training_is_refused_and_named(bench: Bench) -> None:
    bench.go()
    before = (bench.out / "train.json").read_bytes()
    bench.source = "second"
    with pytest.raises(
        InputError, match=r"stage 'train' was finished with other inputs: data was \w+, is \w+"
    ) as caught:
        bench.go()
    assert "--redo train" in str(caught.value)
    assert (bench.out / "train.json").read_bytes() == before


def test_a_stage_that_failed_before_it_made_anything_takes_new_inputs(bench: Bench) -> None:
    bench.fail = "train"
    with pytest.raises(RuntimeError):
        bench.go()
    bench.fail, bench.source = None, "second"
    assert bench.go() == ["read", "train", "look"]


def test_redo_makes_that_stage_and_all_after_it(bench: Bench) -> None:
    bench.go()
    bench.source = "second"
    with pytest.raises(InputError):
        bench.go()
    assert bench.go(redo="train") == ["train", "look"]
    assert bench.go() == []


def test_redo_removes_the_old_artefacts_before_it_starts(bench: Bench) -> None:
    bench.go()
    bench.fail = "train"
    with pytest.raises(RuntimeError):
        bench.go(redo="train")
    assert sorted(path.name for path in bench.out.glob("*.json")) == ["read.json", RECORD]


def test_redo_runs_a_stage_that_owns_no_files(bench: Bench) -> None:
    bench.go()
    stage = bench.stage("look", lambda: {"model": sha256_file(bench.out / "train.json")})
    bench.runs.clear()
    run_stages(bench.out, [dataclasses.replace(stage, paths=())], say=bench.log.append, redo="look")
    assert bench.runs == ["look"]


def test_unknown_redo_names_the_stages(bench: Bench) -> None:
    with pytest.raises(InputError, match=r"--redo trian: no such stage; the stages are read, train, look"):
        bench.go(redo="trian")


def test_two_processes_do_not_share_a_folder(bench: Bench) -> None:
    with folder_lock(bench.out), pytest.raises(InputError, match="in use by"):
        bench.go()


def test_a_torn_record_is_an_input_error(bench: Bench) -> None:
    bench.go()
    (bench.out / RECORD).write_text('{"kind": "distill-st')
    with pytest.raises(InputError, match=RECORD):
        bench.go()


def test_differences_are_flat_and_short() -> None:
    old = {"minutes": 3, "recipe": {"lr": 0.1, "seed": 0}, "gone": "x"}
    new = {"minutes": 5, "recipe": {"lr": 0.1, "seed": 1}, "digest": "a" * 100}
    assert differences(old, new) == [
        f"digest was absent, is {'a' * 69}...",
        "gone was x, is absent",
        "minutes was 3, is 5",
        "recipe.seed was 0, is 1",
    ]
