"""What structured positions cost beside relative-16: time of forward and forward with backward, and peak memory.

    python -m captionbert.benchmarks.structured [--shapes 32x64,1x8192] [--dtypes fp32,bf16] [--rounds 3] [--json F]

Models of the full size with random weights, random word ids with a boundary token in ten, captions laid end to end as
in training; bf16 is autocast of fp32 weights with a graph and bf16 weights without. Peak memory: of one forward pass
over a row of 8,192 tokens, in a process of its own, above what the loaded model holds. Printed: medians and the ratio
to relative-16 in the same run.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from captionbert.artifacts.files import write_json
from captionbert.benchmarks.machine import alternating_medians, matmul_rate, surroundings
from captionbert.configuration_captionbert import CaptionBertConfig
from captionbert.modeling_captionbert import CaptionBertModel
from captionbert.parity.memory import reset_peak, resident
from captionbert.training.step import DTYPES, precision_context

# By default the C library moves the size from which it returns a freed block at once, and peaks of one and the same
# pass differ by 15 %. With a fixed size the peak is that of the tensors.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072"}
BASELINE = "relative-16"
PRESETS = (BASELINE, "hierarchical", "whole-key-lookup")
LIMITS = {"hierarchical": 1.08, "whole-key-lookup": 1.12}  # of time; of memory 1.1 for both
MEMORY_LENGTH = 8192


def make_model(preset: str) -> Any:
    """A seeded full-size model in fp32."""
    torch.manual_seed(0)
    return CaptionBertModel(CaptionBertConfig.from_preset(preset)).eval()


def make_ids(rows: int, length: int) -> torch.Tensor:
    """[rows * length] ids: [CLS], words of a few hundred kinds and full stops, [SEP]."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2000, 2400, (rows, length), generator=generator)
    ids[torch.rand(rows, length, generator=generator) < 0.1] = 1012
    ids[:, 0], ids[:, -1] = 101, 102
    return ids.flatten()


def passes(preset: str, dtype: str, rows: int, length: int) -> dict[str, Callable[[], Any]]:
    """The two timed functions of a model: without and with a graph."""
    trained, ids, lengths = make_model(preset), make_ids(rows, length), [length] * rows
    plain = make_model(preset).to(DTYPES[dtype])

    def forward() -> None:
        with torch.inference_mode():
            plain.forward_packed(ids, lengths)

    def both() -> None:
        trained.zero_grad(set_to_none=True)
        with precision_context("cpu", dtype):
            vectors = trained.forward_packed(ids, lengths)
        vectors[:, 0].sum().backward()

    return {"forward": forward, "forward and backward": both}


def compare_times(dtype: str, rows: int, length: int, rounds: int) -> list[dict[str, Any]]:
    """One row for each pass: seconds by preset and ratios to the baseline."""
    functions = {preset: passes(preset, dtype, rows, length) for preset in PRESETS}
    found = []
    for name in ("forward", "forward and backward"):
        seconds = alternating_medians({preset: functions[preset][name] for preset in PRESETS}, rounds)
        ratios = {preset: round(seconds[preset] / seconds[BASELINE], 3) for preset in LIMITS}
        found.append(
            {
                "dtype": dtype,
                "shape": f"{rows} x {length}",
                "pass": name,
                "seconds": seconds,
                "ratios": ratios,
            }
        )
    return found


def peak_memory(preset: str, dtype: str) -> float:
    """MB that one forward pass over MEMORY_LENGTH tokens adds; meant for a fresh process."""
    model, ids = make_model(preset).to(DTYPES[dtype]), make_ids(1, MEMORY_LENGTH)
    with torch.inference_mode():
        model.forward_packed(ids[:64], [64])
        reset_peak()  # building the model held more than the pass will
        before = resident("VmHWM")
        model.forward_packed(ids, [MEMORY_LENGTH])
    return resident("VmHWM") - before


def compare_memory(dtype: str) -> dict[str, Any]:
    """Peak memory of each preset, in a process each, and ratios to the baseline."""
    megabytes = {}
    for preset in PRESETS:
        command = [
            sys.executable,
            "-m",
            "captionbert.benchmarks.structured",
            "--memory-of",
            preset,
            "--dtypes",
            dtype,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | ALLOCATOR)
        megabytes[preset] = float(done.stdout.strip().splitlines()[-1])
    ratios = {preset: round(megabytes[preset] / megabytes[BASELINE], 3) for preset in LIMITS}
    return {"dtype": dtype, "shape": f"1 x {MEMORY_LENGTH}", "megabytes": megabytes, "ratios": ratios}


def main() -> None:
    """Print one line a comparison and, with --json, write all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="32x64,1x8192")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    dtypes = options.dtypes.split(",")
    if options.memory_of:
        print(peak_memory(options.memory_of, dtypes[0]))
        return
    times, memory, rates = [], [], {}
    for dtype in dtypes:
        for shape in options.shapes.split(","):
            rows, length = map(int, shape.split("x"))
            for row in compare_times(dtype, rows, length, options.rounds):
                times.append(row)
                print(json.dumps(row))
        memory.append(compare_memory(dtype))
        print(json.dumps(memory[-1]))
        rates[dtype] = round(matmul_rate(DTYPES[dtype]))
    if options.json:
        report = {"kind": "benchmark-structured", "limits": LIMITS, "times": times, "memory": memory}
        write_json(options.json, report | {"matmul_gflops": rates, "surroundings": surroundings()})


if __name__ == "__main__":
    main()
