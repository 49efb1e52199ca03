"""What decides between bf16 and fp32."""

import pytest
import torch

from captionbert.artifacts import arithmetic


def answer(monkeypatch: pytest.MonkeyPatch, machine: str, *, avx512: bool, amx: bool, arm: bool) -> str:
    """The number type on a processor with these abilities and no accelerator."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(arithmetic.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: arm, raising=False)
    arithmetic.has_bf16.cache_clear()
    try:
        return arithmetic.fast_dtype()
    finally:
        arithmetic.has_bf16.cache_clear()


def test_bf16_only_where_it_is_an_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(monkeypatch, "x86_64", avx512=False, amx=False, arm=True) == "fp32"
    assert answer(monkeypatch, "AMD64", avx512=True, amx=False, arm=False) == "bf16"
    assert answer(monkeypatch, "x86_64", avx512=False, amx=True, arm=False) == "bf16"
    assert answer(monkeypatch, "aarch64", avx512=False, amx=False, arm=True) == "bf16"
    assert answer(monkeypatch, "aarch64", avx512=True, amx=True, arm=False) == "fp32"


def test_this_machine_has_an_answer() -> None:
    assert arithmetic.has_bf16() in (True, False)
