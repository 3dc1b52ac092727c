"""ONNX Runtime's contrib operators as input. CONTRIB maps (domain, name) to each operator in this folder's SPECS."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from graphopt.contrib.schema import Call, ContribOp

CONTRIB: dict[tuple[str, str], ContribOp] = {}
for _module in iter_modules(__path__):
    CONTRIB.update((s.identifier, s) for s in getattr(import_module(f"{__name__}.{_module.name}"), "SPECS", ()))

__all__ = ["CONTRIB", "Call", "ContribOp"]
