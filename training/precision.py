"""The number type of a run's arithmetic, decided once: a run keeps what it was begun with, on any machine."""

import sys
from dataclasses import replace
from pathlib import Path

from captionbert.artifacts.arithmetic import fast_dtype, has_bf16
from captionbert.recipes import Recipe
from captionbert.training.identity import read_identity


def with_precision(recipe: Recipe, run_folder: Path) -> Recipe:
    """The recipe with "auto" precision decided: as the run was begun, or by what this machine computes in."""
    precision = recipe.compute.precision
    if precision == "auto":
        begun = run_folder / "config" / "identity.json"
        precision = (
            read_identity(run_folder)["recipe"]["compute.precision"] if begun.is_file() else fast_dtype()
        )
    elif precision == "bf16" and not has_bf16():
        print(
            "warning: compute.precision is bf16, which this machine only imitates, at a small part of the speed of "
            "fp32; compute.precision=auto or fp32 is fast here",
            file=sys.stderr,
        )
    return replace(recipe, compute=replace(recipe.compute, precision=precision))
