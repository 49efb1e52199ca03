"""The verbs on a consensus folder, as a user runs them: order, reuse, release, control corpus, audit."""

import gc
import importlib
import json
import sys
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import read_json
from captionbert.consensus import build
from captionbert.consensus.report import format_report
from captionbert.consensus.shards import shard_name
from captionbert.consensus.specs import TeacherSpec
from captionbert.consensus.teachers import FunctionTeacher, teacher_from_function

# By name: the test folder is no package.
sys.path.append(str(Path(__file__).parent))
setup = importlib.import_module("consensus_setup")
toy, encoder = setup.toy, setup.encoder


@pytest.fixture
def source(tmp_path: Path) -> str:
    return setup.write_captions(tmp_path / "a.txt", 500)


TEACHERS = [("ref", 12), ("wide", 16)]


def test_the_whole_line_and_its_report(source: str, tmp_path: Path) -> None:
    out = tmp_path / "d"
    control = setup.write_captions(tmp_path / "control.txt", 120, seed=8, longest=60)
    build.embed([source], [toy(*t) for t in TEACHERS], out, held_out=20, shard_rows=128, control=[control])
    report = build.fit(out)
    targets = build.targets(out)
    assert targets["rows"] == 500
    names = ["ref", "wide", "consensus", "control: ref", "control: wide", "control: consensus"]
    assert list(report["geometry"]) == names
    assert all({"effective_rank", "cv"} <= set(g) for g in report["geometry"].values())
    assert report["shift"]["shifted"] is True
    assert report["input"]["characters"]["max"] >= report["input"]["characters"]["p99"]
    text = format_report(read_json(out / "report.json"))
    assert "fitted on 384 rows, scored on 96 others" in text
    assert all(name in text for name in names)
    assert build.audit(out)["ok"] is True


def test_input_report_is_written_before_a_teacher_runs(source: str, tmp_path: Path) -> None:  # law 8
    seen: list[dict] = []

    def looks(texts: list[str]) -> np.ndarray:
        seen.append(json.loads((tmp_path / "d" / "report.json").read_text())["input"])
        return encoder("ref", 12)(texts)

    build.embed([source], [teacher_from_function("ref", 12, looks)], tmp_path / "d", shard_rows=500)
    assert len(seen) == 1
    assert {"p50", "p99", "max"} <= set(seen[0]["characters"])
    (tmp_path / "d" / "report.json").unlink()
    with pytest.raises(InputError, match="no finished embedding there"):
        build.fit(tmp_path / "nothing")
    assert "input" in build.fit(tmp_path / "d")


def words(monkeypatch: pytest.MonkeyPatch, made: dict) -> None:
    """Let `embed` load toys by name, as if they were words of the command line."""
    monkeypatch.setattr(build, "parse_teacher", lambda t: TeacherSpec(t, "function", t, dtype="fp32"))
    monkeypatch.setattr(build, "load_teacher", lambda spec: made[spec.name]())


def test_one_teacher_is_in_memory_at_a_time(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[weakref.ref] = []

    def load(name: str, width: int) -> FunctionTeacher:
        gc.collect()
        assert not [r for r in alive if r() is not None], "the teacher before is still in memory"
        teacher = toy(name, width)
        alive.append(weakref.ref(teacher))
        return teacher

    words(monkeypatch, {name: (lambda n=name, w=width: load(n, w)) for name, width in TEACHERS})
    build.embed([source], ["ref", "wide"], tmp_path / "d", shard_rows=128)
    assert len(alive) == 2


def test_a_second_run_loads_nothing_and_changes_nothing(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words(monkeypatch, {name: (lambda n=name, w=width: toy(n, w)) for name, width in TEACHERS})
    out = tmp_path / "d"

    def run() -> dict[str, bytes]:
        build.embed([source], ["ref", "wide"], out, shard_rows=128)
        build.fit(out)
        build.targets(out)
        return {
            str(p.relative_to(out)): p.read_bytes()
            for p in out.rglob("*")
            if p.is_file() and p.name != ".lock"
        }

    first = run()
    monkeypatch.setattr(build, "load_teacher", lambda spec: pytest.fail("a finished teacher was loaded"))
    assert run() == first
    (out / "teachers" / "wide" / shard_name(128, 256)).unlink()
    monkeypatch.setattr(build, "load_teacher", lambda spec: toy("wide", 16))
    assert run() == first


def test_weights_swapped_midway_are_refused(source: str, tmp_path: Path) -> None:
    def stops(texts: list[str]) -> np.ndarray:
        if any(t.endswith(" 200") for t in texts):
            raise KeyboardInterrupt
        return encoder("ref", 12)(texts)

    with pytest.raises(KeyboardInterrupt):
        build.embed([source], [teacher_from_function("ref", 12, stops)], tmp_path / "d", shard_rows=128)
    swapped = teacher_from_function("ref", 12, encoder("ref", 12), content="other weights")
    with pytest.raises(InputError, match="another teacher or frame"):
        build.embed([source], [swapped], tmp_path / "d", shard_rows=128)


def test_wrong_words(source: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"reference 'x' is not among the teachers \['ref'\]"):
        build.embed([source], [toy("ref", 12)], tmp_path / "d", reference="x")
    with pytest.raises(InputError, match=r"teachers of different names, found \['ref', 'ref'\]"):
        build.embed([source], [toy("ref", 12), toy("ref", 12)], tmp_path / "d")
    with pytest.raises(InputError, match="different names, found"):
        build.embed([source], [], tmp_path / "d")
    build.embed([source], [toy("ref", 12)], tmp_path / "d")
    with pytest.raises(InputError, match="no frame there"):
        build.targets(tmp_path / "d")


def never(texts: list[str]) -> np.ndarray:
    pytest.fail("a caption was embedded")


def test_too_few_captions_for_the_maps_are_refused_before_any_is_embedded(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teachers = [teacher_from_function("ref", 12, never), teacher_from_function("wide", 60, never)]
    message = r"teacher wide: 380 fit rows for 60 dimensions, N/d = 6\.3; .*--force"
    with pytest.raises(InputError, match=message):
        build.embed([source], teachers, tmp_path / "d")
    with pytest.raises(InputError, match="100 fit rows for 12 dimensions"):
        build.embed([source], [teachers[0], toy("slim", 8)], tmp_path / "d", sample_rows=100)
    # by words: a packaged width is known without loading, another one when the teacher is loaded
    monkeypatch.setattr(build, "load_teacher", lambda spec: pytest.fail("a teacher was loaded"))
    with pytest.raises(InputError, match="teacher paraphrase-l3: 380 fit rows for 384 dimensions"):
        build.embed([source], ["minilm", "paraphrase-l3"], tmp_path / "d")
    words(monkeypatch, {"ref": lambda: teachers[1]})
    with pytest.raises(InputError, match="teacher more: 380 fit rows for 60 dimensions"):
        build.embed([source], ["ref"], tmp_path / "d", later=["more"])
    assert not (tmp_path / "d" / "teachers").exists()
    build.embed([source], [toy("ref", 12), toy("wide", 60)], tmp_path / "d", force=True)
    assert build.fit(tmp_path / "d", force=True)["alignment"]["teachers"]["wide"]["rows_per_dimension"] < 10


def test_the_width_of_vectors_on_disk_is_known(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.embed([source], [toy("ref", 60)], tmp_path / "d")
    words(monkeypatch, {})
    monkeypatch.setattr(build, "load_teacher", lambda spec: pytest.fail("a teacher was loaded"))
    with pytest.raises(InputError, match="teacher more: 380 fit rows for 60 dimensions"):
        build.embed([source], ["ref", "more"], tmp_path / "d")


@pytest.mark.parametrize("held_out", [0, -3])
def test_nothing_held_out_is_refused(source: str, tmp_path: Path, held_out: int) -> None:
    with pytest.raises(InputError, match=f"--held-out {held_out}: expected 1 or more captions"):
        build.embed([source], [teacher_from_function("ref", 12, never)], tmp_path / "d", held_out=held_out)
    assert not (tmp_path / "d").exists()


@pytest.fixture
def bert(tmp_path: Path, tiny_tokenizer_dir: Path) -> Path:
    """A transformer's folder of width 16."""
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_tokenizer_dir)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    folder = tmp_path / "Tiny Bert"
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_an_embedding_goes_on_in_its_number_type_on_another_machine(
    source: str, tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = tmp_path / "d" / "teachers" / "tiny-bert"
    for bf16 in (True, False):
        monkeypatch.setattr("captionbert.artifacts.arithmetic.has_bf16", partial(bool, bf16))
        build.embed([source], [str(bert)], tmp_path / "d", shard_rows=128)
        assert read_json(shards / "manifest.json")["teacher"]["dtype"] == "bf16"
        (shards / shard_name(384, 500)).unlink()  # as a kill would have left it
    build.embed([source], [str(bert)], tmp_path / "e", shard_rows=128)
    assert read_json(tmp_path / "e/teachers/tiny-bert/manifest.json")["teacher"]["dtype"] == "fp32"


def test_a_model_folder_as_a_word_of_the_command_line(source: str, tmp_path: Path, bert: Path) -> None:
    report = build.embed([source], [str(bert), toy("wide", 16)], tmp_path / "d", shard_rows=128)
    assert report["input"]["tokens"]["tokenizer_of"] == "tiny-bert"
    assert report["input"]["tokens"]["max"] > report["input"]["tokens"]["p50"] > 3
    assert (tmp_path / "d" / "teachers" / "tiny-bert" / shard_name(384, 500)).is_file()


def test_another_reference_gives_its_width(source: str, tmp_path: Path) -> None:
    build.embed([source], [toy(*t) for t in TEACHERS], tmp_path / "d", reference="wide", shard_rows=128)
    build.fit(tmp_path / "d")
    assert build.targets(tmp_path / "d")["width"] == 16


def test_audit_names_every_damage(source: str, tmp_path: Path) -> None:
    out = tmp_path / "d"
    build.embed([source], [toy(*t) for t in TEACHERS], out, shard_rows=128)
    build.fit(out)
    build.targets(out)
    for path in (out / "teachers/ref" / shard_name(0, 128), out / "targets" / shard_name(128, 256)):
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
    (out / "teachers/wide" / shard_name(256, 384)).unlink()
    found = build.audit(out)
    assert found["ok"] is False
    text = "\n".join(found["problems"])
    assert len(found["problems"]) == 3
    assert "teachers/ref/rows-0000000000-0000000128.safetensors: expected SHA-256" in text
    assert "rows 256..383) is missing" in text
    assert "targets/rows-0000000128-0000000256.safetensors" in text


def test_two_processes_cannot_share_a_folder(source: str, tmp_path: Path) -> None:
    from captionbert.artifacts.files import folder_lock

    with folder_lock(tmp_path / "d"), pytest.raises(InputError, match="in use by process"):
        build.embed([source], [toy("ref", 12)], tmp_path / "d")
