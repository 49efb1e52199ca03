"""What else limits a figure: the plain matmul rate of this moment, the load, the versions."""

import os
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


def matmul_rate(dtype: torch.dtype, seconds: float = 1.0) -> float:
    """GFLOP/s of a 2048 x 384 by 384 x 1536 product, the shape of the mini model's feed-forward."""
    a, b = torch.randn(2048, 384).to(dtype), torch.randn(384, 1536).to(dtype)
    a @ b
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        a @ b
        calls += 1
    return calls * 2 * 2048 * 384 * 1536 / (time.perf_counter() - start) / 1e9


def alternating_medians(functions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each function, run in turn `rounds` times after one warm-up, so that drift hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return {name: float(np.median(values)) for name, values in seconds.items()}


def surroundings() -> dict[str, Any]:
    """Processor, threads, load average and library versions, for the result file."""
    import sentence_transformers
    import transformers

    return {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "load_average_1min": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "sentence_transformers": sentence_transformers.__version__,
    }
