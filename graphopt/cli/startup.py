"""Lazy imports of slow modules, for a fast start of commands."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

# sympy takes twice as long to load as everything else. onnx_ir imports it for symbolic dimensions, which graphopt
# computes in graphopt.graph.shapes instead. onnx imports the two protobuf modules for models in JSON and text formats,
# which graphopt does not use.
LATE = frozenset({"sympy", "onnx_ir._symbolic_shapes", "google.protobuf.json_format", "google.protobuf.text_format"})


class _LateFinder:
    """Finder that delays the execution of the modules in LATE until their first use."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in LATE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def delay_slow_imports() -> None:
    """Makes later imports of the modules in LATE lazy."""
    if _LateFinder not in sys.meta_path:
        sys.meta_path.insert(0, _LateFinder)
