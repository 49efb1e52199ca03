"""The two processes of a parity run: start, ask one case, close. Only one of them computes at a time."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

WORKER = Path(__file__).with_name("worker.py")


class WorkerDied(RuntimeError):
    """A process ended without an answer; the message has its exit code and its last words."""


class Process:
    """A running worker, as a context manager; it loads in the background until `hello` is asked for."""

    def __init__(self, settings: dict[str, Any], *, scratch: Path, python: str | None = None) -> None:
        self.side = settings["side"]
        handle, name = tempfile.mkstemp(prefix=f"{self.side}-", suffix=".json", dir=scratch)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(settings, stream)
        self.errors = Path(name).with_suffix(".log")
        self.stderr = self.errors.open("w", encoding="utf-8")
        self.process = subprocess.Popen(
            [python or sys.executable, str(WORKER), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
            encoding="utf-8",
            env=worker_environment(scratch),
            cwd=scratch,
        )

    @cached_property
    def hello(self) -> dict[str, Any]:
        """Versions, tensor digests, config: see `Worker.hello`."""
        return self._read("loading")

    def __enter__(self) -> "Process":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.process.kill()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # a process that died has closed its end
            self.process.stdin.close()
        self.process.wait()
        self.stderr.close()

    def ask(self, case: dict[str, Any], out: Path) -> dict[str, Any]:
        """The answer to a case; its tensors lie in `out` unless the model refused."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"case": case, "out": str(out)}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._died(case["name"]) from None
        return self._read(case["name"])

    def _read(self, doing: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise self._died(doing)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _died(self, doing: str) -> WorkerDied:
        code = self.process.wait()
        words = self.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
        return WorkerDied(f"the {self.side} process ended with code {code} at: {doing}\n" + "\n".join(words))


def worker_environment(scratch: Path) -> dict[str, str]:
    """Offline, with an own module cache: no earlier copy of the remote code can stand in for this one."""
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_MODULES_CACHE": str(scratch / "modules"),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
