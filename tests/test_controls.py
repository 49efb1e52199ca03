"""Controls declare a direction and can fail."""

import dataclasses

import pytest

from captionbert.artifacts.errors import InputError
from captionbert.consensus.controls import SHUFFLED, Control


def test_a_control_declares_what_would_refute_it() -> None:  # law 5
    needed = {f.name for f in dataclasses.fields(Control) if f.default is dataclasses.MISSING}
    assert "refuted_when" in needed
    with pytest.raises(ValueError, match="declares no direction that would refute it"):
        Control("c", "cosine", "sometimes", 0.0, 2.0)  # type: ignore[arg-type]
    for margin in (-2.0, -5.0, 2.0, float("nan")):
        with pytest.raises(ValueError, match="cannot fail"):
            Control("c", "cosine", "not above", margin, 2.0)
    assert SHUFFLED.holds(0.5, 0.0)
    assert not SHUFFLED.holds(0.0, 0.0)
    assert not SHUFFLED.holds(float("nan"), 0.0)
    below = Control("c", "loss", "not below", 0.1, 10.0)
    assert below.holds(1.0, 2.0)
    assert not below.holds(2.0, 1.0)
    with pytest.raises(InputError, match=r"teacher t: loss 2\.0000 is not below that of c"):
        below.require(2.0, 1.0, "teacher t")
