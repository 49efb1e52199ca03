"""Two answers to one case, compared value by value: maximum and mean difference, movement under padding.

The bar is a maximum difference of exactly 0: the same code, tensors, inputs and machine must give the same
bits, so no tolerance has a reason. Movement under padding is another question (the shapes of the sums
change): it is reported, not judged, except that both sides must move alike.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

PADDING_LIMIT = 2e-6  # fp32: the sums of a row have another order where the row is longer
_INPUTS = ("input_ids", "attention_mask")


def difference(a: torch.Tensor, b: torch.Tensor) -> tuple[float, float]:
    """Maximum and mean absolute difference; infinite where one is not finite or the forms differ."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf"), float("inf")
    if a.numel() == 0:
        return 0.0, 0.0
    gap = (a.double() - b.double()).abs()
    if not torch.isfinite(gap).all():
        return float("inf"), float("inf")
    return float(gap.max()), float(gap.mean())


def compare_files(reference: Path, export: Path) -> dict[str, Any]:
    """Compare the tensors of two answers.

    Returns:
        max_difference, mean_difference (over all outputs), worst (the tensor), same_tokens, tensors (how
        many), movement (see `movement`; absent without a padding study) and problems (sentences; empty when
        all is well).
    """
    left, right = load_file(reference), load_file(export)
    problems = []
    if sorted(left) != sorted(right):
        problems.append(f"outputs differ: {', '.join(sorted(set(left) ^ set(right)))}")
    names = [name for name in sorted(left) if name in right]
    gaps = {name: difference(left[name], right[name]) for name in names}
    inputs = [name for name in names if name.removeprefix("moved.") in _INPUTS]
    same_tokens = all(gaps[name][0] == 0 for name in inputs)
    if not same_tokens:
        problems.append("the two tokenizers give different ids")
    outputs = [name for name in names if name not in inputs]
    worst = max(outputs, key=lambda name: gaps[name][0])
    result = {
        "max_difference": gaps[worst][0],
        "mean_difference": sum(gaps[name][1] for name in outputs) / len(outputs),
        "worst": worst,
        "same_tokens": same_tokens,
        "tensors": len(outputs),
        "problems": problems,
    }
    moved = movement(right)
    return result if moved is None else result | {"movement": moved}


def movement(outputs: dict[str, torch.Tensor]) -> dict[str, float] | None:
    """Largest change of a sentence vector and of a visible token state under the padding study."""
    if "moved.pooler_output" not in outputs:
        return None
    plain, moved = (
        outputs["attention_mask"].bool(),
        outputs["moved.attention_mask"].bool(),
    )  # [B, T], [B, T + 64]
    states, moved_states = outputs["last_hidden_state"][plain], outputs["moved.last_hidden_state"][moved]
    return {
        "sentence_vectors": difference(outputs["pooler_output"], outputs["moved.pooler_output"])[0],
        "token_states": difference(states, moved_states)[0],
    }


def padding_problems(moved: dict[str, float]) -> list[str]:
    """What is wrong with a movement under padding that must not move a vector (fp32, padding on the right)."""
    if moved["sentence_vectors"] <= PADDING_LIMIT:
        return []
    return [
        f"padding on the right moves a sentence vector by {moved['sentence_vectors']:.1e}, more than "
        f"{PADDING_LIMIT:g}: hidden tokens are read somewhere"
    ]


def compare_hellos(reference: dict[str, Any], export: dict[str, Any]) -> list[str]:
    """What is wrong with the two loaded models; an empty list when keys, tensors, config and place agree."""
    problems = [f"{key} at load: {', '.join(names[:3])}" for key, names in export["loading"].items() if names]
    left, right = reference["tensors"], export["tensors"]
    problems += [f"tensor {name} is on one side only" for name in sorted(set(left) ^ set(right))[:3]]
    changed = [name for name in left if name in right and left[name] != right[name]]
    problems += [
        f"tensor {name}: {left[name]} in the checkpoint, {right[name]} in the export" for name in changed[:3]
    ]
    fields = sorted(set(reference["config"]) | set(export["config"]))
    problems += [
        f"config field {name}: {reference['config'].get(name)!r} in the checkpoint, "
        f"{export['config'].get(name)!r} in the export"
        for name in fields
        if reference["config"].get(name) != export["config"].get(name)
    ]
    if not export["module"].startswith("transformers_modules."):
        problems.append(f"the export ran {export['module']}, not its own code")
    if reference["versions"] != export["versions"] or reference["threads"] != export["threads"]:
        problems.append("the two processes run different versions or thread counts")
    return problems
