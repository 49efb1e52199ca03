"""Peak memory of a forward pass at four doubling lengths, and whether it grows linearly.

Two measures. The peak resident set, from the kernel, includes what a fused attention kernel allocates inside.
The largest result of each operation, recorded op by op, is exact: if one op's result more than doubles (times
a small margin) when the length doubles, it is a length-squared buffer, and the op is named. The row carries
some padding, so that the mask is in play. Run by path as a script for the process, imported for the verdict.
"""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

PADDING = 8
# Linear growth doubles a size exactly; a term of n^2 makes the ratio approach 4.
MOST_GROWTH = 2.05
# The kernel's count has pages of allocator noise, so its ratio is judged loosely, and not at all under this
# size.
MOST_PEAK_GROWTH = 3.0
LEAST_PEAK_MB = 64.0


def measure_lengths(limit: int) -> list[int]:
    """Four doubling lengths that end at the model's limit: 1,024 to 8,192 for a limit of 8,192."""
    return [max(limit // 8, 16), limit // 4, limit // 2, limit]


def measure_memory(
    folder: Path, dtype: str, limit: int, *, scratch: Path, python: str | None, environment: dict[str, str]
) -> dict[str, Any]:
    """Measure an exported folder.

    Returns:
        {"dtype", "lengths": [{length, peak_mb, largest_result_mb, largest_op}], "linear": bool, "problems":
        [...]}.
    """
    rows = []
    for length in measure_lengths(limit):
        settings = scratch / f"memory-{dtype}-{length}.json"
        settings.write_text(
            json.dumps({"folder": str(folder), "dtype": dtype, "length": length}), encoding="utf-8"
        )
        done = subprocess.run(
            [python or sys.executable, __file__, str(settings)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=scratch,
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"memory at {length} tokens: exit code {done.returncode}\n{done.stderr[-800:]}"
            )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    problems = verdict(rows)
    for row in rows:
        del row["ops"]
    return {"dtype": dtype, "lengths": rows, "linear": not problems, "problems": problems}


def verdict(rows: list[dict[str, Any]]) -> list[str]:
    """Sentences that name what grows faster than the length; empty when all is linear.

    Args:
        rows: for each length, ascending by doubling: "length", "peak_mb", "ops" as [name, bytes] in order.
    """
    problems = []
    for shorter, longer in pairwise(rows[1:]):
        if [name for name, _ in shorter["ops"]] != [name for name, _ in longer["ops"]]:
            problems.append(f"{longer['length']} tokens run other operations than {shorter['length']}")
            continue
        for (name, small), (_, large) in zip(shorter["ops"], longer["ops"]):
            if large > small * MOST_GROWTH:
                problems.append(
                    f"{name}: {small} bytes at {shorter['length']} tokens, {large} at {longer['length']}: "
                    "more than linear"
                )
                break
    before, last = rows[-2], rows[-1]
    if last["peak_mb"] > LEAST_PEAK_MB and last["peak_mb"] > MOST_PEAK_GROWTH * before["peak_mb"]:
        problems.append(
            f"peak grows from {before['peak_mb']} MB at {before['length']} tokens to {last['peak_mb']} MB"
        )
    return problems


def resident(field: str) -> float:
    """VmRSS or VmHWM of this process, in MB."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"{field} is not in /proc/self/status")


def reset_peak() -> None:
    """Make VmHWM start again from the present size."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def _largest_results(model: Any, ids: Any, mask: Any) -> list[tuple[str, int]]:
    """(name, bytes of its largest new result) of each operation of a forward pass, in order."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    ops: list[tuple[str, int]] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            known = {
                x.untyped_storage().data_ptr()
                for x in tree_leaves((args, kwargs))
                if isinstance(x, torch.Tensor)
            }
            fresh = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
            sizes = [
                x.untyped_storage().nbytes() for x in fresh if x.untyped_storage().data_ptr() not in known
            ]
            ops.append((str(func), max(sizes, default=0)))
            return result

    with Recorder():
        model(input_ids=ids, attention_mask=mask)
    return ops


def main() -> None:
    """Load the folder, run one row, print peak and operations as JSON."""
    sys.modules["captionbert"] = None  # type: ignore[assignment]
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    import torch
    from transformers import AutoModel

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[settings["dtype"]]
    model = AutoModel.from_pretrained(settings["folder"], trust_remote_code=True, dtype=dtype).eval()
    length = settings["length"]
    ids = torch.randint(1, model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[:, -PADDING:] = 0
    with torch.inference_mode():
        # What a first call allocates once is not the input's.
        model(input_ids=ids[:, :16], attention_mask=mask[:, :16])
        reset_peak()
        before = resident("VmRSS")
        model(input_ids=ids, attention_mask=mask)
        peak = resident("VmHWM") - before
        ops = _largest_results(model, ids, mask)
    name, size = max(ops, key=lambda op: op[1])
    row = {
        "length": length,
        "peak_mb": round(peak, 1),
        "largest_result_mb": round(size / 2**20, 1),
        "largest_op": name,
        "ops": ops,
        "threads": torch.get_num_threads(),
        "pid": os.getpid(),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
