"""docs/architecture.md: what may know what."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import graphopt

ROOT = Path(graphopt.__file__).parent
# From the bottom up: a file imports nothing of a layer above its own.
LAYERS = (
    ("errors.py", "files.py", "remarks.py", "metadata.py", "strict_json.py", "__init__.py"),
    ("ops/", "targets/"),
    ("graph/",),
    ("forms/", "report/data.py", "report/__init__.py"),
    ("passes/",),
    ("pipeline.py", "half_precision.py"),
    ("runtime/",),
    ("optimizer.py",),
    ("checking/", "measure/"),
    ("report/",),
    ("cli/", "__main__.py"),
)


def layer(path: str) -> int:
    """The lowest layer that names the file, or its room."""
    return next(i for i, parts in enumerate(LAYERS) if path.startswith(parts))


def imports(path: Path) -> list[str]:
    """Files of the package that a file imports, relative to it."""
    found = []
    tree = ast.parse(path.read_text())
    # What only a type checker reads binds nothing: the package's own __init__ names its public functions so.
    tree.body = [n for n in tree.body if not (isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "graphopt":
            inner = node.module.split(".")[1:]
            for parts in [inner, *([*inner, name.name] for name in node.names)]:
                found += [
                    p for p in ("/".join(parts) + ".py", "/".join(parts) + "/__init__.py") if (ROOT / p).is_file()
                ]
    return found


@pytest.mark.once
def test_nothing_imports_from_a_layer_above() -> None:
    seen = set()
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        own = layer(name)
        for other in imports(path):
            above = layer(other)
            assert above <= own, f"{name} imports {other}"
            seen.add((own, above))
    assert len(seen) > len(LAYERS)  # the walk did find imports
