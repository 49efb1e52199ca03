"""Does a run that is killed and resumed end in the same bits? Runs the training program for real, twice.

    python -m captionbert.benchmarks.kill_resume --recipe mini --set data.consensus=DIR schedule.steps=60
        --work W [--kills 3] [--seed 0] [--json F]

Run A is left alone. Run B is ended by SIGKILL at random steps and moments, one of them while a checkpoint is
being written (its temporary folder is then still there), and started again by the same command until it is
complete. Compared by SHA-256: final weights, optimizer, state, metrics.json, metrics.jsonl. Exit status 0
only when all are equal.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from captionbert.artifacts.files import sha256_file, write_json

COMPARED = (
    "final/model/model.safetensors",
    "final/optimizer.safetensors",
    "final/state.json",
    "metrics.json",
    "metrics.jsonl",
)
PROGRAM = Path(__file__).resolve().parent.parent / "train_accelerate.py"


def start_program(options: list[str], log: Path) -> "subprocess.Popen[bytes]":
    """The training program as a new interpreter, its output appended to `log`."""
    with open(log, "ab") as stream:
        return subprocess.Popen([sys.executable, str(PROGRAM), *options], stdout=stream, stderr=stream)


def wait_until(
    condition: Callable[[], bool], process: "subprocess.Popen[bytes]", seconds: float = 1800
) -> bool:
    """Poll `condition` each millisecond while `process` lives; True when it held."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if condition():
            return True
        time.sleep(0.001)
    return False


def logged_step(run: Path) -> int:
    """The last step in metrics.jsonl, 0 without one."""
    file = run / "checkpoints" / "metrics.jsonl"
    lines = file.read_bytes().split(b"\n")[:-1] if file.is_file() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


def writing_checkpoint(run: Path) -> bool:
    """A step checkpoint is being written now."""
    return any((run / "checkpoints").glob(".tmp-step-*/*"))


def kill(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL, and wait for the end."""
    process.kill()
    process.wait()


def finish(process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait for a run that must end well."""
    if (status := process.wait()) != 0:
        raise RuntimeError(f"training ended with status {status}:\n{log.read_text()[-2000:]}")


def killed_run(
    options: list[str], run: Path, log: Path, steps: int, kills: int, seed: int
) -> list[dict[str, Any]]:
    """Run B: `kills` kills, the middle one during a checkpoint write, then to the end. Returns where each
    fell.
    """
    chance, record = random.Random(seed), []
    for number in range(kills):
        process = start_program(options, log)
        if number == kills // 2:
            hit = wait_until(lambda: writing_checkpoint(run), process)
        else:
            standing = logged_step(run)
            aim = chance.randint(standing + 1, max(standing + 1, steps - (kills - number)))
            hit = wait_until(lambda aim=aim: logged_step(run) >= aim, process)  # type: ignore[misc]
            time.sleep(chance.uniform(0.0, 0.2))
        kill(process)
        if not hit or (run / "checkpoints" / "final").exists():
            said = log.read_text()[-2000:]
            raise RuntimeError(f"the run ended before kill {number + 1}; give it more steps:\n{said}")
        record.append({"step": logged_step(run), "half_written_checkpoint": writing_checkpoint(run)})
    finish(start_program(options, log), log)
    return record


def _options(recipe: str, settings: list[str], run: Path) -> list[str]:
    return ["--recipe", recipe, "--out", str(run), "--set", *settings]


def compare(recipe: str, settings: list[str], work: Path, kills: int, seed: int) -> dict[str, Any]:
    """Run A and B in `work` and compare their digests."""
    work.mkdir(parents=True, exist_ok=True)
    log = work / "log.txt"
    settings = [*settings, "gauges.log_every=1"]
    finish(start_program(_options(recipe, settings, work / "whole"), log), log)
    resolved = yaml.safe_load((work / "whole" / "config" / "recipe.yaml").read_text(encoding="utf-8"))
    steps = resolved["schedule"]["steps"]
    # Minutes would be measured anew and give another number of steps: B gets the number that A found.
    settings += ["schedule.minutes=null", "schedule.epochs=null", f"schedule.steps={steps}"]
    if not resolved["checkpoint"]["steps"]:
        settings.append(f"checkpoint.steps={max(1, steps // 8)}")
    record = killed_run(_options(recipe, settings, work / "killed"), work / "killed", log, steps, kills, seed)
    digests = {
        name: {run: sha256_file(work / run / "checkpoints" / name) for run in ("whole", "killed")}
        for name in COMPARED
    }
    return {
        "steps": steps,
        "kills": record,
        "digests": digests,
        "identical": all(pair["whole"] == pair["killed"] for pair in digests.values()),
    }


def main(argv: list[str] | None = None) -> int:
    """Command line; 0 when every compared file is bit-identical."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder for both runs")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    result = compare(arguments.recipe, arguments.set, arguments.work, arguments.kills, arguments.seed)
    print(json.dumps(result, indent=1))
    if arguments.json:
        write_json(arguments.json, result)
    return 0 if result["identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
