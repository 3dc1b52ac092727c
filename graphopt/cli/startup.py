"""What keeps the start short."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

# sympy takes 0.4 s of CPU, twice what all else takes; onnx_ir imports it for arithmetic on symbolic dimensions, which
# nobody here does: graphopt.graph.shapes has its own.
# Models as JSON and as text, which onnx reads and writes as well, nobody asks for here.
LATE = frozenset({"sympy", "onnx_ir._symbolic_shapes", "google.protobuf.json_format", "google.protobuf.text_format"})


class _LateFinder:
    """Modules that are executed when something of them is first asked for."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in LATE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def sympy_when_needed() -> None:
    """From now on sympy is loaded by who uses it, not by who imports onnx_ir."""
    if _LateFinder not in sys.meta_path:
        sys.meta_path.insert(0, _LateFinder)
