"""Modules that are loaded when something of them is first used, so that commands start fast."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

# Loading sympy takes twice the time of all else; onnx_ir imports it for arithmetic on symbolic dimensions, for which
# graphopt.graph.shapes has its own. onnx imports the two modules of protobuf to read and write models as JSON and as
# text, which nothing here does.
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
    """From now on the modules in LATE, sympy above all, are loaded when they are first used, not when imported."""
    if _LateFinder not in sys.meta_path:
        sys.meta_path.insert(0, _LateFinder)
