"""Which number type a run takes: its own if it has begun, else the machine's."""

import json
from pathlib import Path

import pytest

from captionbert.recipes import recipe_from_dict
from captionbert.training import precision
from captionbert.training.identity import make_identity


def decided(asked: str, run: Path, *, bf16: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("captionbert.artifacts.arithmetic.has_bf16", lambda: bf16)
    monkeypatch.setattr(precision, "has_bf16", lambda: bf16)
    recipe = recipe_from_dict({"name": "r", "schedule": {"steps": 1}, "compute": {"precision": asked}})
    return precision.with_precision(recipe, run).compute.precision


def test_a_new_run_takes_what_this_machine_computes_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    assert decided("auto", tmp_path, bf16=True, monkeypatch=monkeypatch) == "bf16"
    assert decided("auto", tmp_path, bf16=False, monkeypatch=monkeypatch) == "fp32"
    assert decided("bf16", tmp_path, bf16=True, monkeypatch=monkeypatch) == "bf16"
    assert capsys.readouterr().err == ""
    assert decided("bf16", tmp_path, bf16=False, monkeypatch=monkeypatch) == "bf16"
    assert "compute.precision is bf16, which this machine only imitates" in capsys.readouterr().err


def test_a_begun_run_keeps_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = make_identity({"compute.precision": "bf16"}, {}, {}, {})
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "identity.json").write_text(json.dumps({**identity, "steps": 1, "digest": "d"}))
    assert decided("auto", tmp_path, bf16=False, monkeypatch=monkeypatch) == "bf16"
    assert decided("fp32", tmp_path, bf16=False, monkeypatch=monkeypatch) == "fp32"
