"""Parity: 0 on a sound export, continued after a kill; planted faults are named; memory verdicts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import EXPORT_RECORD, digest_json
from captionbert.configuration_captionbert import CaptionBertConfig
from captionbert.export.folder import export_checkpoint, identity_files
from captionbert.modeling_captionbert import CaptionBertModel
from captionbert.parity.cases import LENGTHS, all_cases, choose
from captionbert.parity.compare import compare_files, compare_hellos, difference, movement, padding_problems
from captionbert.parity.memory import _largest_results, measure_lengths, verdict
from captionbert.parity.process import Process, WorkerDied
from captionbert.parity.report import render
from captionbert.parity.run import run_parity


def write_checkpoint(folder: Path, config: CaptionBertConfig, tokenizer: Path) -> Path:
    """A tiny random checkpoint."""
    torch.manual_seed(0)
    CaptionBertModel(config).save_pretrained(folder / "model")
    shutil.copy(tokenizer / "tokenizer.json", folder / "model")
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path, tiny_config: CaptionBertConfig, tiny_tokenizer_dir: Path) -> Path:
    """Rotary positions, mean pooling: the variant that reads left padding."""
    return write_checkpoint(tmp_path / "checkpoint", tiny_config, tiny_tokenizer_dir)


def record_again(folder: Path) -> None:
    """Make a changed export consistent with its own record, so that only computing can find the fault."""
    record = json.loads((folder / EXPORT_RECORD).read_text())
    record["files"] = identity_files(folder)
    record["digest"] = digest_json(record["files"])
    (folder / EXPORT_RECORD).write_text(json.dumps(record))


def test_difference_is_zero_and_a_killed_run_continues(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, report_file = export_checkpoint(checkpoint, tmp_path / "out"), tmp_path / "parity.json"
    ask, asked = Process.ask, []

    def dying(self: Process, case: dict[str, Any], out: Path) -> dict[str, Any]:
        if len(asked) == 11:  # in the middle of the sixth case
            self.process.kill()
        asked.append(case["name"])
        return ask(self, case, out)

    monkeypatch.setattr(Process, "ask", dying)
    with pytest.raises(WorkerDied, match="the export process ended with code -9 at: batch of 6"):
        run_parity(checkpoint, folder, dtypes=["fp32"], json=report_file, memory=False)
    assert not report_file.exists()
    asked.clear()
    asked.extend(["not again"] * 12)
    report = run_parity(checkpoint, folder, dtypes=["fp32"], json=report_file, memory=False)
    cases, _ = choose("everyday", "fp32", 128)
    assert len(asked) - 12 == 2 * (len(cases) - 5)
    assert report["passed"], report["problems"]
    assert report["max_difference"] == 0
    assert [row["name"] for row in report["cases"]] == [case.name for case in cases]
    assert report["tensors"] == len(load_file(folder / "model.safetensors"))
    moved = {row["name"]: row["movement"] for row in report["cases"] if "movement" in row}
    assert set(moved) == {
        "padding added on the right",
        "padding added on the left",
        "other ids under the padding",
    }
    assert moved["other ids under the padding"] == {"sentence_vectors": 0.0, "token_states": 0.0}
    assert moved["padding added on the left"]["sentence_vectors"] < 1e-5
    assert json.loads(report_file.read_text()) == report
    assert "PASSED: maximum difference 0" in render(report)


def test_structured_positions_are_reproduced(
    tmp_path: Path, tiny_tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 64}
    config = CaptionBertConfig.from_preset(
        "whole-key-lookup-mini", **sizes, projection_dim=24, max_position_embeddings=2048
    )
    checkpoint = write_checkpoint(tmp_path / "checkpoint", config, tiny_tokenizer_dir)
    wanted = (
        "pointers of every token",
        "padding added on the right",
        "padding added on the left",
        "over 512 segments",
    )
    chosen = [case for case in all_cases() if case.name in wanted]
    monkeypatch.setattr("captionbert.parity.run.choose", lambda profile, dtype, limit: (chosen, []))
    report = run_parity(checkpoint, export_checkpoint(checkpoint, tmp_path / "out"), memory=False)
    assert report["passed"], report["problems"]
    assert [(row["dtype"], row["name"]) for row in report["cases"]] == [
        (dtype, case.name) for dtype in ("fp32", "bf16", "fp16") for case in chosen
    ]
    moved = {row["name"]: row["movement"]["sentence_vectors"] for row in report["cases"] if "movement" in row}
    assert set(moved) == {"padding added on the right", "padding added on the left"}
    assert moved["padding added on the left"] > 1e-5  # key phases are no distances: reported, not refused


def test_planted_code_and_weights_are_found(
    tmp_path: Path, tiny_config: CaptionBertConfig, tiny_tokenizer_dir: Path
) -> None:
    """Another activation in the exported code, one changed weight; learned positions refuse left padding."""
    fields = {k: v for k, v in tiny_config.to_dict().items() if k in CaptionBertConfig().__dict__}
    checkpoint = write_checkpoint(
        tmp_path / "checkpoint",
        CaptionBertConfig(**fields | {"position_type": "learned"}),
        tiny_tokenizer_dir,
    )
    folder = export_checkpoint(checkpoint, tmp_path / "out")
    modeling = folder / "modeling_captionbert.py"
    assert "F.gelu(" in modeling.read_text()
    modeling.write_text(modeling.read_text().replace("F.gelu(", "F.silu("))
    tensors = load_file(folder / "model.safetensors")
    tensors["final_norm.bias"][3] += 2**-20
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    record_again(folder)
    report = run_parity(checkpoint, folder, dtypes=["bf16"], memory=False)
    assert not report["passed"]
    assert report["max_difference"] > 0
    assert report["other_code"] == ["modeling_captionbert.py"]
    assert any("tensor final_norm.bias" in problem for problem in report["problems"])
    refused = {row["name"]: row["refused"] for row in report["cases"] if row.get("refused")}
    assert list(refused) == ["padding added on the left"]
    assert "pad on the right" in refused["padding added on the left"]
    text = render(report)
    assert "FAILED: maximum difference" in text
    assert "other code than this package: modeling_captionbert.py" in text


def test_an_export_of_another_checkpoint_is_refused(
    checkpoint: Path, tmp_path: Path, tiny_config: CaptionBertConfig, tiny_tokenizer_dir: Path
) -> None:
    folder = export_checkpoint(checkpoint, tmp_path / "out")
    path = checkpoint / "model" / "model.safetensors"
    tensors = load_file(path)
    tensors["final_norm.bias"] += 1
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(InputError, match="was exported from another checkpoint"):
        run_parity(checkpoint, folder)
    with pytest.raises(InputError, match="profile 'quick': unknown"):
        run_parity(checkpoint, folder, profile="quick")
    with pytest.raises(InputError, match="dtypes fp64: choose from"):
        run_parity(checkpoint, folder, dtypes=["fp64"])


# ---- cases ----


def test_the_full_profile_leaves_nothing_out_at_8192() -> None:
    for dtype in ("fp32", "bf16", "fp16"):
        cases, left_out = choose("full", dtype, 8192)
        assert left_out == []
        assert {case.tokens for case in cases if case.name.startswith("length ")} == set(LENGTHS)
        assert {len(case.rows) for case in cases if case.name.startswith("batch of")} == set(range(1, 9))


def test_the_everyday_profile_says_what_it_left_out() -> None:
    cases, left_out = choose("everyday", "fp16", 8192)
    assert all(case.tokens <= 512 for case in cases)
    assert len(cases) + len(left_out) == len(all_cases())
    assert "fp16: length 8192 (profile everyday; slow without fp16 arithmetic)" in left_out


@pytest.mark.parametrize("arithmetic", [True, False])
def test_long_bf16_cases_are_left_out_where_bf16_is_imitated(
    arithmetic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("captionbert.parity.cases.has_bf16", lambda: arithmetic)
    _, left_out = choose("everyday", "bf16", 8192)
    assert (
        "bf16: length 8192 (profile everyday; slow without bf16 arithmetic)" in left_out
    ) is not arithmetic
    assert bool(left_out) is not arithmetic
    assert choose("everyday", "fp32", 8192)[1] == choose("full", "bf16", 8192)[1] == []


def test_the_longest_profile_keeps_one_long_fp16_row() -> None:
    for limit in (8192, 3000):
        cases, left_out = choose("longest", "fp16", limit)
        assert [case.name for case in cases if case.tokens > 512] == [f"length {limit}"]
        assert any("profile longest; slow" in text for text in left_out)
    assert choose("longest", "fp32", 8192)[1] == []


def test_a_short_model_has_its_own_edge() -> None:
    cases, left_out = choose("full", "fp32", 100)
    assert {"length 99", "length 100"} <= {case.name for case in cases}
    assert "fp32: length 512 (the model reads 100 tokens)" in left_out


# ---- comparison ----


def test_difference_of_everything_that_can_differ() -> None:
    a = torch.tensor([1.0, 2.0])
    assert difference(a, a.clone()) == (0.0, 0.0)
    assert difference(a, a + torch.tensor([0.0, 0.5])) == (0.5, 0.25)
    infinite = (float("inf"), float("inf"))
    assert difference(a, a.double()) == infinite
    assert difference(a, a[:1]) == infinite
    nan = torch.tensor([float("nan"), 2.0])
    assert difference(nan, nan) == infinite


def answer(tmp_path: Path, name: str, **changes: torch.Tensor) -> Path:
    """The tensors of a small answer."""
    tensors = {
        "input_ids": torch.tensor([[2, 5, 0], [2, 6, 7]]),
        "attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]]),
        "last_hidden_state": torch.arange(12, dtype=torch.float32).reshape(2, 3, 2),
        "pooler_output": torch.ones(2, 4),
    }
    save_file(tensors | changes, tmp_path / name)
    return tmp_path / name


def test_compare_files(tmp_path: Path) -> None:
    left = answer(tmp_path, "a")
    same = compare_files(left, answer(tmp_path, "b"))
    assert (same["max_difference"], same["problems"], same["tensors"]) == (0.0, [], 2)
    other = compare_files(left, answer(tmp_path, "c", pooler_output=torch.ones(2, 4) * 1.5))
    assert (other["max_difference"], other["worst"]) == (0.5, "pooler_output")
    ids = compare_files(left, answer(tmp_path, "d", input_ids=torch.zeros(2, 3, dtype=torch.long)))
    assert ids["problems"] == ["the two tokenizers give different ids"]
    more = compare_files(left, answer(tmp_path, "e", extra=torch.ones(1)))
    assert more["problems"] == ["outputs differ: extra"]


def test_movement_compares_visible_tokens_only(tmp_path: Path) -> None:
    plain = load_file(answer(tmp_path, "a"))
    mask = torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1]])
    states = torch.full((2, 4, 2), 99.0)
    states[:, 1:] = plain["last_hidden_state"]
    moved = {
        "moved.attention_mask": mask,
        "moved.last_hidden_state": states,
        "moved.pooler_output": plain["pooler_output"] + 0.25,
    }
    assert movement(plain) is None
    assert movement(plain | moved) == {"sentence_vectors": 0.25, "token_states": 0.0}


def test_padding_on_the_right_must_move_nothing() -> None:
    assert padding_problems({"sentence_vectors": 2e-6}) == []
    (problem,) = padding_problems({"sentence_vectors": 1e-4})
    assert "padding on the right moves a sentence vector by 1.0e-04, more than 2e-06" in problem


def test_compare_hellos() -> None:
    good = {
        "loading": {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []},
        "tensors": {"a": "x", "b": "y"},
        "config": {"hidden_size": 4},
        "module": "transformers_modules.m.modeling_captionbert",
        "versions": {"torch": "2"},
        "threads": 2,
    }
    assert compare_hellos(good, good) == []
    faults = {
        "missing_keys at load: a": {"loading": {"missing_keys": ["a"]}},
        "tensor b is on one side only": {"tensors": {"a": "x"}},
        "tensor b: y in the checkpoint, z in the export": {"tensors": {"a": "x", "b": "z"}},
        "config field hidden_size: 4 in the checkpoint, 5 in the export": {"config": {"hidden_size": 5}},
        "the export ran captionbert.modeling_captionbert, not its own code": {
            "module": "captionbert.modeling_captionbert"
        },
        "the two processes run different versions or thread counts": {"threads": 1},
    }
    for message, change in faults.items():
        assert compare_hellos(good, good | change) == [message]


# ---- memory ----


def memory_rows(power: float, peak_power: float = 1.0) -> list[dict[str, Any]]:
    """Measurements whose second operation and peak grow with a power of the length."""
    return [
        {
            "length": n,
            "peak_mb": 100 * (n / 1024) ** peak_power,
            "ops": [["aten.mm", n * 4], ["aten.bmm", n**power]],
        }
        for n in measure_lengths(8192)
    ]


def test_memory_verdict() -> None:
    assert measure_lengths(8192) == [1024, 2048, 4096, 8192]
    assert verdict(memory_rows(1)) == []
    assert "aten.bmm" in verdict(memory_rows(2))[0]
    assert "more than linear" in verdict(memory_rows(2))[0]
    assert "peak grows" in verdict(memory_rows(1, peak_power=2))[0]


@pytest.mark.parametrize(("attention", "linear"), [("sdpa", True), ("eager", False)])
def test_a_length_squared_buffer_is_named(tiny_model: CaptionBertModel, attention: str, linear: bool) -> None:
    """Fused attention is linear op by op; plain attention, which is not, proves that the gauge sees."""
    tiny_model.set_attn_implementation(attention)
    rows = []
    for length in (16, 32, 64, 128):
        ids = torch.full((1, length), 7)
        mask = torch.ones_like(ids)
        mask[:, -3:] = 0
        with torch.inference_mode():
            rows.append({"length": length, "peak_mb": 0.0, "ops": _largest_results(tiny_model, ids, mask)})
    assert (verdict(rows) == []) is linear
