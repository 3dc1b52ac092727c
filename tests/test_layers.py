"""docs/architecture.md: what may know what."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import graphopt

ROOT = Path(graphopt.__file__).parent
# From the bottom up: a file imports nothing of a layer above its own.
LAYERS = (
    ("errors.py", "targets.py", "remarks.py", "ops/"),
    ("model.py", "inference.py", "profit.py"),
    ("editor.py",),
    ("analysis/", "forms/"),
    ("passes/",),
    ("pipeline.py",),
    ("optimizer.py",),
    ("cli.py",),
)


def layer(path: str) -> int | None:
    return next((i for i, parts in enumerate(LAYERS) if path.startswith(parts)), None)


def imports(path: Path) -> list[str]:
    """Files of the package that a file imports, relative to it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
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
            if own is not None and above is not None:
                assert above <= own, f"{name} imports {other}"
                seen.add((own, above))
    assert len(seen) > len(LAYERS)  # the walk did find imports
