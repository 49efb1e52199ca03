"""The house plan, held by test: which room may import which, the list of packages, the remote-file rules."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
REMOTE = {
    "attention_captionbert",
    "configuration_captionbert",
    "rotary_captionbert",
    "encoding_captionbert",
    "modeling_captionbert",
}
# room -> the rooms it may import. `artifacts` is the base; `probes.geometry` is arithmetic on arrays.
EDGES: dict[str, set[str]] = {
    "artifacts": set(),
    "probes": {"artifacts", "remote", "consensus"},
    "consensus": {"artifacts", "probes"},
    "recipes": {"artifacts", "remote"},
    "training": {"artifacts", "remote", "recipes", "probes", "consensus"},
    "train_accelerate": {"artifacts", "remote", "recipes", "probes", "training", "consensus"},
    "model_card": {"artifacts"},
    "export": {"artifacts", "remote", "model_card"},
    "parity": {"artifacts", "remote", "export"},
    "evaluation": {"artifacts", "probes", "consensus"},
    "distill": {
        "artifacts",
        "consensus",
        "evaluation",
        "export",
        "model_card",
        "parity",
        "probes",
        "recipes",
        "train_accelerate",
    },
    "cli_options": set(),
    "cli_probes": {"artifacts", "cli_options", "consensus", "distill", "export", "probes"},
    "cli": {
        "artifacts",
        "cli_options",
        "cli_probes",
        "consensus",
        "distill",
        "evaluation",
        "export",
        "parity",
        "recipes",
        "train_accelerate",
    },
}


def tracked(pattern: str) -> list[Path]:
    """Files of the repo that match, tracked or not yet ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [Path(p) for p in listed if (ROOT / p).is_file()]


SOURCES = [p for p in tracked("*.py") if p.parts[0] not in ("tests", "benchmarks", "__init__.py")]


def room_of(path: Path) -> str:
    name = path.parts[0].removesuffix(".py")
    return "remote" if name in REMOTE else name


def imports(path: Path) -> set[str]:
    """Every module a file imports, absolute names."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            prefix = "captionbert." if node.level else ""
            found.add(prefix + (node.module or ""))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_a_room_imports_only_what_the_plan_allows(path: Path) -> None:
    room = room_of(path)
    opened = {m.split(".")[1] for m in imports(path) if m.startswith("captionbert.")}
    opened = {"remote" if name in REMOTE else name for name in opened} - {room}
    allowed = set() if room == "remote" else EDGES[room]
    assert opened <= allowed, f"{path} opens {sorted(opened - allowed)}"


def test_nothing_imports_tests() -> None:
    for path in SOURCES:
        assert not any(
            m.split(".")[0] == "tests" or m.startswith("captionbert.tests") for m in imports(path)
        ), path


def test_every_room_is_packaged_and_no_stray_file_is() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packages = re.findall(r'"(captionbert[\w.]*)"', text.split("packages = [")[1].split("]")[0])
    rooms = {p.parts[0] for p in SOURCES if len(p.parts) == 2}
    assert {p.split(".")[1] for p in packages if "." in p} == rooms
    stray = (
        {p.stem for p in SOURCES if len(p.parts) == 1}
        - REMOTE
        - {"__init__", "cli", "cli_options", "cli_probes", "train_accelerate"}
    )
    assert not stray
    assert not (ROOT / "conftest.py").exists()


@pytest.mark.parametrize("name", sorted(REMOTE))
def test_remote_files_import_only_flat_siblings_and_known_libraries(name: str) -> None:
    text = (ROOT / f"{name}.py").read_text(encoding="utf-8")
    assert not re.search(r"^\s*(from|import)\s+captionbert", text, re.MULTILINE)
    relative = re.findall(r"^\s*from\s+(\.\S*)\s+import", text, re.MULTILINE)
    assert set(relative) <= {f".{n}" for n in REMOTE}, relative
    libraries = {m.split(".")[0] for m in imports(Path(f"{name}.py"))} - {"captionbert"}
    assert libraries <= {"torch", "transformers", "tokenizers", "numpy", "tqdm", *sys.stdlib_module_names}


def test_every_remote_file_is_reached_from_the_model() -> None:
    reached, pending = set(), {"modeling_captionbert"}
    while pending:
        name = pending.pop()
        reached.add(name)
        text = (ROOT / f"{name}.py").read_text(encoding="utf-8")
        pending |= set(re.findall(r"^\s*from\s+\.(\w+)\s+import", text, re.MULTILINE)) - reached
    assert reached == REMOTE  # a file that no remote file imports is not copied on export


def test_the_package_itself_imports_nothing() -> None:
    assert imports(Path("__init__.py")) == set()


def test_every_source_file_says_what_it_holds() -> None:
    for path in SOURCES:
        text = (ROOT / path).read_text(encoding="utf-8")
        if text.strip():
            assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"
