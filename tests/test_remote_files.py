"""Remote-code files must load where this package is absent: each packaging trap has its guard here."""

import ast
import re
import sys
from pathlib import Path

import pytest

from captionbert.export.folder import REMOTE_FILES

ROOT = Path(__file__).resolve().parent.parent
ALLOWED_IMPORTS = {"torch", "transformers", "tokenizers", "numpy", "tqdm"}  # transformers brings the others


def remote_file_problems(name: str, source: str, files: set[str]) -> list[str]:
    """What would break when `source` travels to a user's machine as one of the flat `files`."""
    problems = []
    for line in source.splitlines():  # the library's own pattern: it reads docstrings too
        found = re.match(r"^\s*(?:from\s+\.(\S+)\s+import|import\s+\.(\S+)\s*$)", line)
        target = found and (found.group(1) or found.group(2))
        if target and f"{target}.py" not in files:
            problems.append(f"{name}: relative import of {target!r}, which is no remote file")
    tree = ast.parse(source)
    guarded = {id(node) for part in ast.walk(tree) if isinstance(part, ast.Try) for node in ast.walk(part)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module is None:
            problems.append(f"{name}: 'from . import' is not seen by the library")
        if isinstance(node, ast.ImportFrom) and (
            node.level > 1 or (node.level == 1 and "." in (node.module or ""))
        ):
            problems.append(f"{name}: import from another folder")
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [node.module or ""]
        for module in modules:
            top = module.split(".")[0]
            if top not in ALLOWED_IMPORTS | sys.stdlib_module_names and id(node) not in guarded:
                problems.append(f"{name}: absolute import of {top!r}, which a user may not have")
    return problems


def reachable(start: str, sources: dict[str, str]) -> set[str]:
    """Files that travel when `start` is saved: it and what it imports relatively, again and again."""
    seen, queue = set(), [start]
    while queue:
        name = queue.pop()
        if name not in seen and name in sources:
            seen.add(name)
            queue += [
                f"{module}.py"
                for module in re.findall(r"^\s*from\s+\.(\w+)\s+import", sources[name], re.MULTILINE)
            ]
    return seen


def test_remote_files_have_no_trap() -> None:
    sources = {name: (ROOT / name).read_text() for name in REMOTE_FILES}
    problems = [
        p for name, text in sources.items() for p in remote_file_problems(name, text, set(REMOTE_FILES))
    ]
    assert problems == []
    assert reachable("modeling_captionbert.py", sources) == set(REMOTE_FILES)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('"""Like\n    from .ghost import y\n"""', "relative import of 'ghost'"),
        ("from . import rotary_captionbert", "'from . import' is not seen"),
        ("from .export.folder import x", "another folder"),
        ("from ..x import y", "another folder"),
        ("from captionbert.artifacts.errors import InputError", "absolute import of 'captionbert'"),
        ("def f():\n    import einops", "absolute import of 'einops'"),
    ],
)
def test_each_trap_is_caught(source: str, message: str) -> None:
    assert any(message in problem for problem in remote_file_problems("x.py", source, set(REMOTE_FILES)))


def test_a_guarded_import_is_no_trap() -> None:
    source = "try:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None"
    assert remote_file_problems("x.py", source, set(REMOTE_FILES)) == []


def test_a_file_that_nobody_imports_is_caught() -> None:
    sources = {"modeling_captionbert.py": "from .a import b", "a.py": "", "lonely.py": ""}
    assert reachable("modeling_captionbert.py", sources) == {"modeling_captionbert.py", "a.py"}
