"""The verbs on a consensus folder, as a user runs them: order, reuse, release, control corpus, audit."""

import gc
import json
import weakref
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

WORDS = ["cat", "dog", "man", "woman", "red", "blue", "runs", "sleeps", "park", "river", "tree", "snow"]


def encoder(name: str, width: int):
    meanings = np.random.default_rng(99).standard_normal((len(WORDS), 8))
    seen = np.random.default_rng(sum(map(ord, name))).standard_normal((8, width))

    def encode(texts: list[str]) -> np.ndarray:
        counts = np.array([[t.split().count(w) for w in WORDS] for t in texts], dtype=float)
        private = np.stack(
            [np.random.default_rng([ord(c) for c in name + t]).standard_normal(width) for t in texts]
        )
        return (counts @ meanings @ seen + 0.3 * private + 1.0).astype(np.float32)

    return encode


def toy(name: str, width: int) -> FunctionTeacher:
    return teacher_from_function(name, width, encoder(name, width))


def write(path: Path, rows: int, seed: int, longest: int = 9) -> str:
    random = np.random.default_rng(seed)
    path.write_text(
        "\n".join(" ".join(random.choice(WORDS, random.integers(3, longest))) + f" {i}" for i in range(rows))
    )
    return str(path)


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path / "a.txt", 500, 5)


TEACHERS = [("ref", 12), ("wide", 16)]


def test_the_whole_line_and_its_report(source: str, tmp_path: Path) -> None:
    out = tmp_path / "d"
    control = write(tmp_path / "control.txt", 120, 8, longest=60)
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


def test_a_model_folder_as_a_word_of_the_command_line(
    source: str, tmp_path: Path, tiny_tokenizer_dir: Path
) -> None:
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_tokenizer_dir)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    folder = tmp_path / "Tiny Bert"
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    report = build.embed([source], [str(folder), toy("wide", 16)], tmp_path / "d", shard_rows=128)
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
