"""Loss and gradients of one global batch, cut in different ways: they must be the same.

    python -m captionbert.benchmarks.batch_equivalence [--preset captionbert-mini] [--rows 2048] [--tiny]
    [--json F]

fp32, random weights, random ids of caption-like lengths, each of LOSSES, a structured preset with the lookup loss as
well: 1 x rows, 8 micro-batches of rows / 8, and two gloo processes of rows / 2 each. Printed: the loss difference,
and the largest difference of any gradient entry, absolute and as a share of the largest entry (fp32 sums over tens of
thousands of tokens reach some 1e-6 of it in any order). Exit status 0 only when the loss, relative, is within
1e-6 and the gradients, absolute or as that share where the largest entry is above 1, are within 4e-6.
"""

import argparse
import json
import multiprocessing
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from captionbert.artifacts.files import write_json
from captionbert.configuration_captionbert import CaptionBertConfig
from captionbert.modeling_captionbert import CaptionBertModel
from captionbert.probes.word_records import LookupTargets
from captionbert.recipes import LossSection
from captionbert.training.batches import StepBatch
from captionbert.training.order import rank_slice
from captionbert.training.step import StepSettings, backward_gradients, sum_over_processes
from captionbert.training.student import pointing_encode

# Rounding alone: fp32 sums in another order moved gradients by up to 1.2e-6 (a processor with AVX2 alone).
LIMIT, GRADIENT_LIMIT = 1e-6, 4e-6
_NESTED = LossSection(matryoshka_weight=0.5, matryoshka_dims=[8, 16])
LOSSES = {
    "one-way": LossSection(),
    "symmetric": LossSection(symmetric=True),
    "one-way, nested": _NESTED,
    "every term": replace(_NESTED, symmetric=True, similarity_weight=20.0, ranking_weight=10.0),
}
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_CPU = torch.device("cpu")


def make_model(preset: str, tiny: bool) -> CaptionBertModel:
    """A seeded fp32 student; `tiny` shrinks the preset to two layers of width 64."""
    small = {**TINY, "vocab_size": 2000, "projection_dim": 24} if tiny else {}
    torch.manual_seed(0)
    return CaptionBertModel(CaptionBertConfig.from_preset(preset, **small)).float().train()


def make_batch(rows: int, vocabulary: int, width: int, share: slice, lookup: bool = False) -> StepBatch:
    """The part `share` of a seeded global batch of `rows`; every tenth text occurs twice.

    `lookup`: tokens 2 and 3 of every other text look for token 1.
    """
    random = np.random.default_rng(1)
    lengths = np.clip(random.normal(14, 5, rows).astype(int), 4, 40)
    ids = [random.integers(5, vocabulary, length).tolist() for length in lengths]
    targets = torch.nn.functional.normalize(
        torch.from_numpy(random.standard_normal((rows, width))).float(), dim=1
    )
    groups = torch.from_numpy(np.where(np.arange(rows) % 10 == 9, np.arange(rows) - 1, np.arange(rows)))
    lookups = None
    if lookup:
        row = np.repeat(np.arange(0, len(ids[share]), 2), 2)
        position, truth = np.tile([2, 3], len(row) // 2), np.ones(len(row), dtype=bool)
        lookups = LookupTargets(row, position, np.ones(len(row), dtype=np.int64), truth, ~truth)
    return StepBatch(ids[share], torch.arange(rows)[share], targets, groups, lookups)


def gradients(
    preset: str, tiny: bool, rows: int, loss: LossSection, pieces: int, rank: int, world: int
) -> torch.Tensor:
    """[1 + parameters] loss and summed gradients of the batch, this process's part cut into `pieces`."""
    model = make_model(preset, tiny)
    lookup = model.config.position_type == "structured"
    share = rank_slice(rows, rank, world)
    batch = make_batch(rows, model.config.vocab_size, model.config.projection_dim, share, lookup)
    loss = replace(loss, lookup_weight=0.1 if lookup else 0.0)
    settings = StepSettings(loss, 1.0, "fp32", 1 << 30, padded=False)
    longest_first = np.argsort(-batch.lengths, kind="stable")
    sums = backward_gradients(
        pointing_encode(model),
        batch,
        settings,
        device=_CPU,
        parts=np.array_split(longest_first, pieces),
    )
    parameters = list(model.parameters())
    total = sum_over_processes(parameters, sums).sum().float()
    return torch.cat([total[None]] + [p.grad.reshape(-1) for p in parameters if p.grad is not None])


def _worker(rank: int, world: int, port: int, out: str, arguments: tuple[Any, ...]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    preset, tiny, rows, loss = arguments
    found = gradients(preset, tiny, rows, loss, 1, rank, world)
    if rank == 0:
        np.save(out, found.numpy())
    dist.destroy_process_group()


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def two_processes(work: Path, *arguments: Any) -> torch.Tensor:
    """`gradients` by two gloo processes."""
    out = str(work / "gradients.npy")
    # The libraries are imported once, not by each process.
    multiprocessing.set_forkserver_preload(["captionbert.benchmarks.batch_equivalence"])
    mp.start_processes(_worker, args=(2, free_port(), out, arguments), nprocs=2, start_method="forkserver")
    return torch.from_numpy(np.load(out))


def difference(reference: torch.Tensor, found: torch.Tensor) -> dict[str, float]:
    """Loss and gradient differences between two ways of cutting."""
    worst = float((reference[1:] - found[1:]).abs().max())
    largest = float(reference[1:].abs().max())
    return {
        "loss": float((reference[0] - found[0]).abs() / reference[0].abs()),
        "gradient_absolute": worst,
        "gradient_of_largest": worst / largest,
        "gradient_judged": worst / max(1.0, largest),
    }


def compare(preset: str, tiny: bool, rows: int, work: Path) -> dict[str, Any]:
    """All cuts against 1 x rows, for each of LOSSES."""
    report: dict[str, Any] = {
        "preset": preset,
        "tiny": tiny,
        "rows": rows,
        "limit": LIMIT,
        "gradient_limit": GRADIENT_LIMIT,
    }
    for name, loss in LOSSES.items():
        whole = gradients(preset, tiny, rows, loss, 1, 0, 1)
        report[name] = {
            f"8 x {rows // 8}": difference(whole, gradients(preset, tiny, rows, loss, 8, 0, 1)),
            "2 processes": difference(whole, two_processes(work, preset, tiny, rows, loss)),
        }
    report["same"] = all(
        cut["loss"] <= LIMIT and cut["gradient_judged"] <= GRADIENT_LIMIT
        for name in LOSSES
        for cut in report[name].values()
    )
    return report


def main(argv: list[str] | None = None) -> int:
    """Command line; 0 when all cuts agree within rounding."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="captionbert-mini")
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--tiny", action="store_true", help="two layers of width 64: seconds")
    parser.add_argument("--work", type=Path, default=Path("."), help="folder for one temporary file")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    report = compare(arguments.preset, arguments.tiny, arguments.rows, arguments.work)
    (arguments.work / "gradients.npy").unlink(missing_ok=True)
    print(json.dumps(report, indent=1))
    if arguments.json:
        write_json(arguments.json, report)
    return 0 if report["same"] else 1


if __name__ == "__main__":
    sys.exit(main())
